"""Reads of the config log and the status log, and their responses. Any worker can serve them at any time."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from coterie.herder.status_records import Status
from coterie.nouns.connector_offsets import ConnectorOffset
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId


@dataclass(frozen=True, slots=True, kw_only=True)
class ListConnectors:
    """Ask for the names of all connectors; answered with :class:`ConnectorNames`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeConnectors:
    """Ask for the configs and the statuses of ``connectors``, of none if it is empty; answered at once with
    :class:`ConnectorDescriptions`, from what this worker has read so far."""

    connectors: tuple[ConnectorName, ...]
    """The names of the connectors; empty: of none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeConnector:
    """Ask for one connector; answered with :class:`ConnectorInfo`."""

    connector: ConnectorName


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeTaskConfigs:
    """Ask for the configs of a connector's tasks; answered with :class:`TaskConfigs`."""

    connector: ConnectorName


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeConnectorStatus:
    """Ask for the statuses of a connector and of its tasks; answered with :class:`ConnectorStatus`."""

    connector: ConnectorName


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeTaskStatus:
    """Ask for the status of one task; answered with :class:`TaskStatus`."""

    task: ConnectorTaskId


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeConnectorOffsets:
    """Ask for a connector's offsets (KIP-875), which the worker's runtime reads; answered with
    :class:`ConnectorOffsets`."""

    connector: ConnectorName


ReadAnsweredFromLogs: TypeAlias = (
    ListConnectors
    | DescribeConnectors
    | DescribeConnector
    | DescribeTaskConfigs
    | DescribeConnectorStatus
    | DescribeTaskStatus
)
"""A read that is answered from the logs alone."""
Read: TypeAlias = ReadAnsweredFromLogs | DescribeConnectorOffsets


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorInfo:
    """The answer to :class:`DescribeConnector`: a connector's config and its committed tasks. ``config_version`` is the
    offset of the config's line; None, in the response to a write, if another write has already replaced the config."""

    connector: ConnectorName
    config: Mapping[str, str] = field(repr=False)
    """The config as the config topic contains it: no value is added, hidden or resolved."""
    tasks: tuple[ConnectorTaskId, ...]
    """The tasks whose configs are committed in the config log, by number."""
    config_version: int | None
    """The version of the config: the offset of the line that contains it, so all workers have the same version. None in
    the response to a write after which another write has replaced the config already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorStatus:
    """The answer to :class:`DescribeConnectorStatus`: the statuses of a connector and of its tasks."""

    connector: ConnectorName
    status: Status
    tasks: tuple[tuple[ConnectorTaskId, Status], ...]
    """The tasks whose configs are committed and that have a status, by number."""
    config: Mapping[str, str] = field(repr=False)
    """The connector's config, from which the REST API derives the connector's type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorNames:
    """The answer to :class:`ListConnectors`: the names of all connectors."""

    connectors: tuple[ConnectorName, ...]
    """The names, sorted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorDescriptions:
    """The answer to :class:`DescribeConnectors`: the configs and statuses of the connectors that the request names."""

    connectors: tuple[tuple[ConnectorInfo, ConnectorStatus | None], ...]
    """The connectors in the order of the request, each with its status; None while a connector has no status yet.
    Connectors that do not exist are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskConfigs:
    """The answer to :class:`DescribeTaskConfigs`: the configs of a connector's committed tasks, by number."""

    tasks: tuple[tuple[ConnectorTaskId, Mapping[str, str]], ...] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorOffsets:
    """The answer to :class:`DescribeConnectorOffsets`: how far a connector's tasks have read."""

    offsets: tuple[ConnectorOffset, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskStatus:
    """The answer to :class:`DescribeTaskStatus`: the status of one task."""

    task: ConnectorTaskId
    status: Status
