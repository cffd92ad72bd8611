"""Paths of this machine's file system in configs, and the headings under which forms show the keys of both ends."""

from pathlib import Path

SOURCE_GROUP = "Source"
SINK_GROUP = "Sink"


def local_file_path(value: str) -> str | None:
    """A check: sources and sinks of files look at them through this machine's file system."""
    if not value.strip():
        return "String must be non-empty"
    scheme, colon, rest = value.partition(":")
    if colon and "/" not in scheme and not (scheme == "file" and rest.startswith("///")):
        return "Only paths of this machine's file system can be read and written (/folder or file:///folder)"
    if not value.startswith(("/", "file:///")):
        return "A relative path is another folder on each worker; use an absolute one (/folder or file:///folder)"
    return None


def as_path(value: str) -> Path:
    """The path that a value which passes :func:`local_file_path` names."""
    return Path(value.removeprefix("file://"))
