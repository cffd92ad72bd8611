"""Plug-ins as Kafka Connect's REST API lists them: their classes, types and versions, and the lookup by a name."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from coterie.nouns.errors import CoterieError


class UnknownPluginError(CoterieError):
    """There is no plug-in with a requested name; the message is Connect's."""


class PluginVersionError(CoterieError):
    """A plug-in does not have a requested version; the message is Connect's."""


class PluginType(StrEnum):
    """The types of plug-ins, in the order in which Connect lists them."""

    SINK = "sink"
    SOURCE = "source"
    TRANSFORMATION = "transformation"
    PREDICATE = "predicate"
    CONVERTER = "converter"
    HEADER_CONVERTER = "header_converter"

    @property
    def is_connector(self) -> bool:
        """Whether a connector can be made of the plug-in: it is a source or a sink."""
        return self in (PluginType.SINK, PluginType.SOURCE)

    @property
    def interface_name(self) -> str:
        """The name of Connect's interface for this type of plug-in, for error messages."""
        return {"header_converter": "HeaderConverter"}.get(self.value, self.value.capitalize())


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """One plug-in. A class that has two types is two plug-ins, as in Connect."""

    class_name: str
    """The complete name of the class."""
    type: PluginType
    version: str | None
    """The version of the package with the class; None when it has none."""
    aliases: tuple[str, ...] = ()
    """The other names by which a config can name the plug-in."""

    @property
    def names(self) -> tuple[str, ...]:
        """All names by which a config can name the plug-in."""
        return (self.class_name, *self.aliases)


def sorted_as_in_connect(plugins: Iterable[Plugin]) -> Sequence[Plugin]:
    """``plugins`` in the order of Connect's list: by type, then by class name."""
    types = list(PluginType)
    return sorted(plugins, key=lambda plugin: (types.index(plugin.type), plugin.class_name))


def find_plugin(plugins: Iterable[Plugin], name: str, version_range: str | None = None) -> Plugin:
    """The first of ``plugins`` that has the name ``name``, after a check that its version is in ``version_range``
    (None: any version).

    :raises UnknownPluginError: when no plug-in has this name.
    :raises PluginVersionError: when the plug-in's version is not in ``version_range``, or ``version_range`` is invalid.
    """
    plugin = next((plugin for plugin in plugins if name in plugin.names), None)
    if plugin is None:
        raise UnknownPluginError(f"Unknown plugin {name}.")
    if version_range is not None and (message := version_error(plugin, version_range)) is not None:
        raise PluginVersionError(message)
    return plugin


def version_error(plugin: Plugin, version_range: str) -> str | None:
    """The error message, in Connect's words, when the version of ``plugin`` is not in ``version_range``, or the plug-in
    has no version; another error message when ``version_range`` is invalid. None when the version is in the range.

    ``version_range``: one version; an interval as Maven writes it: ``[1.0,2.0)``, ``[1.0,)`` (KIP-891); or ``latest``
    or a blank text, which accept every plug-in, also one without a version.
    """
    requirement = version_range.strip()
    if requirement in ("", "latest"):
        return None
    if not (interval := _VERSION_INTERVAL_PATTERN.fullmatch(requirement)):
        requirement = f"[{requirement},{requirement}]"
        interval = _VERSION_INTERVAL_PATTERN.fullmatch(requirement)
    if interval is None:
        return f"Invalid version range {version_range}: use a version, latest, or an interval such as [1.0,2.0)"
    if plugin.version is not None and _interval_contains(interval, plugin.version):
        return None
    return (
        f"Plugin {plugin.class_name} not found that matches the version range {requirement}, available versions: "
        f"[{plugin.version or 'undefined'}]"
    )


_VERSION_INTERVAL_PATTERN = re.compile(r"([\[(])([^\[\](),]{0,100}),([^\[\](),]{0,100})([\])])")
"""An interval of versions; an empty end has no limit. A version has at most 100 characters: Python converts no text of
thousands of digits into a number."""


def _interval_contains(interval: re.Match[str], version: str) -> bool:
    """Whether ``version`` is in the interval that :data:`_VERSION_INTERVAL_PATTERN` has matched."""
    opening, least, greatest, closing = (text.strip() for text in interval.groups())
    number = _comparable_version(version)
    if least and (number < _comparable_version(least) or (opening == "(" and number == _comparable_version(least))):
        return False
    return not (
        greatest
        and (number > _comparable_version(greatest) or (closing == ")" and number == _comparable_version(greatest)))
    )


def _comparable_version(version: str) -> tuple[int, ...]:
    """The numbers at the beginning of ``version``, without zeros at their end: 1.2, 1.2.0 and 1.2-SNAPSHOT are one
    version."""
    leading = re.match(r"\d*(\.\d+)*", version)
    assert leading is not None
    numbers = [int(number) for number in leading[0].split(".") if number]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)
