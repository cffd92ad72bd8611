"""Questions to this worker's plug-ins, and their responses. They need no leader, and do not wait for the logs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from coterie.config.definition import ConfigKey
from coterie.config.plugins import Plugin


@dataclass(frozen=True, slots=True, kw_only=True)
class ListPlugins:
    """Ask for the plug-ins of this worker; answered with :class:`PluginList`."""

    connectors_only: bool
    """Whether only sources and sinks are listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribePlugin:
    """Ask for the config keys of a plug-in; answered with :class:`PluginConfigKeys`."""

    name: str
    """One of the names by which a config can name the plug-in."""
    version_range: str | None
    """The versions that the client accepts (KIP-891); None: any version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidateConnectorConfig:
    """Ask for the validation of a connector's config; answered with :class:`ConfigInfos`. If the config names an
    existing connector, it is validated as a change of this connector."""

    config: Mapping[str, str | None] = field(repr=False)
    """A value is None when the client has sent null, which is an error of its key."""


PluginQuestion: TypeAlias = ListPlugins | DescribePlugin
Question: TypeAlias = PluginQuestion | ValidateConnectorConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginList:
    """The answer to :class:`ListPlugins`: the plug-ins of a worker."""

    plugins: tuple[Plugin, ...]
    """In the order of :func:`coterie.config.plugins.sorted_as_in_connect`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginConfigKeys:
    """The answer to :class:`DescribePlugin`: the config keys of a plug-in."""

    keys: tuple[ConfigKey, ...] = field(repr=False)
    """In the order in which a form shows them. The keys of a source or sink include the keys that every connector
    has."""
