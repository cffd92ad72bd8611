"""What the keys of all sources and all sinks have in common: headings, options, checks of paths."""

from collections.abc import Mapping

SOURCE_GROUP = "Source"
SINK_GROUP = "Sink"
"""Headings under which forms show the keys."""
SOURCE_OPTIONS = "source.option."
SINK_OPTIONS = "sink.option."
"""Keys that start with this are options of Spark's own reader or writer."""


def local_file_path(value: str) -> str | None:
    """A check: sources and sinks of files look at them through this machine's file system."""
    if not value.strip():
        return "String must be non-empty"
    scheme, colon, rest = value.partition(":")
    if colon and "/" not in scheme and not (scheme == "file" and rest.startswith("///")):
        return "Only paths of this machine's file system can be read and written (/folder or file:///folder)"
    return None


def option_values(config: Mapping[str, str], prefix: str) -> dict[str, str]:
    """The options under ``prefix``, without it."""
    return {key.removeprefix(prefix): value for key, value in config.items() if key.startswith(prefix)}


def refused_options(config: Mapping[str, str], prefix: str, where: str) -> dict[str, list[str]]:
    """Errors by key, for a source or sink without options."""
    return {prefix + option: [f"{where} has no options"] for option in option_values(config, prefix)}
