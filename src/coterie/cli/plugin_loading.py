"""Creates the plug-ins that installed packages register by entry point (`assignors.connect.interface`)."""

import logging
from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from typing import Any, TypeVar

from coterie.nouns.errors import ConfigError, invalid_value_message

PluginT = TypeVar("PluginT")

logger = logging.getLogger(__name__)


def load_plugin(found: EntryPoints, name: str, *, kind: str, key: str, create: Callable[[Any], PluginT]) -> PluginT:
    """The plug-in that is registered under ``name`` in the entry points ``found``: the result of ``create`` with its
    class. Also logs which class that is. ``kind`` names the kind of plug-in in messages, such as ``assignor``, and
    ``key`` is the config key that contains the name.

    :raises ConfigError: when no entry point, or several, have this name, the class cannot be imported, or ``create``
        fails.
    """
    entry = find_sole_entry_point_or_raise(found, name, kind=kind, key=key)
    try:
        plugin = create(entry.load())
    except Exception as error:
        raise make_unusable_plugin_error(
            kind, name, f"{entry.value} cannot be created: {type(error).__name__}: {error}"
        ) from error
    logger.info("Loaded the %s %s: %s", kind, name, entry.value)
    return plugin


def check_plugins_registered_exactly_once(group: str, names: Sequence[str], *, kind: str, key: str) -> None:
    """Check that exactly one installed package registers each of ``names`` in the entry points ``group``. Nothing is
    imported. ``kind`` and ``key`` are for the message: the kind of plug-in, and the config key that contains the names.

    :raises ConfigError: when no package, or several, register one of ``names``.
    """
    found = entry_points(group=group)
    for name in names:
        find_sole_entry_point_or_raise(found, name, kind=kind, key=key)


def find_sole_entry_point_or_raise(found: EntryPoints, name: str, *, kind: str, key: str) -> EntryPoint:
    """The entry point of ``found`` with this name. Nothing is imported. ``kind`` and ``key`` are for the message: the
    kind of plug-in, and the config key that contains the name.

    :raises ConfigError: when ``found`` has no entry point with this name, or several.
    """
    match [entry for entry in found if entry.name == name]:
        case []:
            known = ", ".join(sorted(found.names)) or "none"
            raise ConfigError({key: [invalid_value_message(key, name, f"no {kind} has this name; installed: {known}")]})
        case [entry]:
            return entry
        case entries:
            where = ", ".join(sorted(entry.value for entry in entries))
            raise make_unusable_plugin_error(kind, name, f"several packages register it: {where}")


def make_unusable_plugin_error(kind: str, name: str, why: str) -> ConfigError:
    """Build the error for a plug-in of the kind ``kind`` with the name ``name`` that cannot be used because of
    ``why``."""
    return ConfigError({f"{kind} {name}": [f"The {kind} {name} cannot be used: {why}"]})
