"""Paths of this machine's file system in configs, and the names of the key groups of sources and sinks."""

from pathlib import Path

SOURCE_GROUP = "Source"
"""The group, in a form, of the config keys of sources."""
SINK_GROUP = "Sink"
"""The group, in a form, of the config keys of sinks."""


def local_path_error(value: str) -> str | None:
    """A validator: None for an absolute path or a URI ``file:///…``, else the error message. Sources and sinks of files
    access them only by this machine's file system."""
    if not value.strip():
        return "String must be non-empty"
    scheme, colon, path_of_uri = value.partition(":")
    if colon and "/" not in scheme and not (scheme == "file" and path_of_uri.startswith("///")):
        return "Only paths of this machine's file system can be read and written (/folder or file:///folder)"
    if not value.startswith(("/", "file:///")):
        return "A relative path is another folder on each worker; use an absolute one (/folder or file:///folder)"
    return None


def path_of_config_value(value: str) -> Path:
    """The path of a value that :func:`local_path_error` has accepted."""
    return Path(value.removeprefix("file://"))
