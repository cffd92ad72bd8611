"""Writes to the config log, and changes of offsets: they wait for the group to settle."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from coterie.herder.requests.ids import ClientRequestId
from coterie.herder.requests.reads import ConnectorInfo
from coterie.herder.session_keys import Signature
from coterie.nouns.connector_offsets import OffsetChange
from coterie.nouns.ids import Incarnation
from coterie.nouns.jobs import ConnectorName
from coterie.nouns.states import TargetState


@dataclass(frozen=True, slots=True, kw_only=True)
class IfMatch:
    """A condition of a write: the connector exists, and its config has one of ``config_versions``
    (:attr:`coterie.herder.requests.reads.ConnectorInfo.config_version`), or any version if ``config_versions`` is None.
    It is checked at the head of the queue of writes, so no other write can come between."""

    config_versions: frozenset[int] | None
    """The config must have one of these versions; None: any version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PutConnector:
    """Create a connector, or replace its config. Answered with :class:`WrittenConnector`."""

    connector: ConnectorName
    config: Mapping[str, str] = field(repr=False)
    may_replace: bool
    """Whether the config of an existing connector is replaced. Otherwise the request is refused if the connector
    exists."""
    initial_state: TargetState | None = None
    """The target state to write with the config (KIP-980); None: no target state is written."""
    initial_offsets: OffsetChange | None = None
    """The offsets at which a new connector begins (KIP-995); None: where its config determines."""
    if_match: IfMatch | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchConnector:
    """Change keys of a connector's config (KIP-477). The patch is merged with the config that the connector has when
    the write is at the head of the queue. Answered with :class:`WrittenConnector`."""

    connector: ConnectorName
    patch: Mapping[str, str | None] = field(repr=False)
    """The new value of each key; None removes the key. It does not change the key ``name``."""
    if_match: IfMatch | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteConnector:
    """Delete a connector. Answered with :class:`DeletedConnector`."""

    connector: ConnectorName
    if_match: IfMatch | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SetTargetState:
    """Pause, stop or resume a connector. Answered with :class:`SuccessWithoutContent`."""

    connector: ConnectorName
    target_state: TargetState


@dataclass(frozen=True, slots=True, kw_only=True)
class PutTaskConfigs:
    """Write the task configs into which a connector's owner has split it (Connect's internal endpoint). Answered with
    :class:`SuccessWithoutContent`."""

    connector: ConnectorName
    configs: Sequence[Mapping[str, str]] = field(repr=False)
    signature: Signature | None = None
    """The signature of the request (KIP-507); None if the request contains none, and for the leader's own writes."""
    incarnation: Incarnation | None = None
    """The incarnation of the connector that was split; None for the request of a worker of Kafka Connect, which does
    not contain it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartConnector:
    """Restart a connector, with ``include_tasks`` its tasks, too (KIP-745). Answered with :class:`ConnectorStatus`, in
    which the jobs that are restarted have the state RESTARTING."""

    connector: ConnectorName
    include_tasks: bool
    only_failed: bool
    """Whether only jobs in the state FAILED are restarted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeOffsets:
    """Change the offsets of a stopped connector (KIP-875). Answered with :class:`SuccessWithoutContent` when the change
    has taken effect."""

    connector: ConnectorName
    change: OffsetChange


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteAttempt:
    """One attempt to perform a client's write. If the connection to the leader breaks after the write was sent, the
    next attempt has the same ``id``."""

    id: ClientRequestId
    """The id of the client's request. The line that the write appends contains this id."""
    time_left_ms: int
    """The time limit of the attempt, from its arrival."""
    is_repeat: bool = False
    """Whether an earlier attempt may have taken effect or may still do so. The write is then looked up in the config
    log before anything else."""


Write: TypeAlias = (
    PutConnector | PatchConnector | DeleteConnector | SetTargetState | PutTaskConfigs | RestartConnector | ChangeOffsets
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenConnector:
    """The response to a write of a connector's config."""

    info: ConnectorInfo
    """The connector with the written config."""
    replaced_config: Mapping[str, str] | None = field(repr=False)
    """The config that the write has replaced; None when there was no such connector, or when the config is not known
    any more (see ``created``)."""
    created: bool
    """Whether the request has created the connector. Also True for a repeated request that has replaced a config, if
    compaction had removed this config from the config topic before this worker read the topic."""
    has_set_offsets: bool
    """Whether the request has set the offsets at which the connector begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedConnector:
    """The response to the deletion of a connector. ``replaced_config`` is the config that it had; None if that is not
    known any more."""

    replaced_config: Mapping[str, str] | None = field(repr=False)
    """The config that the connector had; None when it is not known any more."""
