"""A worker's settings, read from its file."""

from pathlib import Path

from coterie.config import properties
from coterie.config.worker import WorkerSettings
from coterie.nouns.errors import WorldError


def read(path: Path) -> tuple[WorkerSettings, list[str]]:
    """The settings in a worker file, and those of its keys that nobody knows.

    :raises ConfigError: names each wrong key.
    :raises WorldError: when the file cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise WorldError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise WorldError(f"{path} is not UTF-8: {error.reason} at byte {error.start}") from error
    found = properties.parse(text)
    return WorkerSettings.from_properties(found), WorkerSettings.unknown_keys(found)
