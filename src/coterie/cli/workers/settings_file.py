"""A worker's settings, read from its file."""

from collections.abc import Callable
from pathlib import Path

from coterie.config import properties
from coterie.config.worker import WorkerSettings
from coterie.nouns.errors import ConfigError, WorldError


def read(path: Path) -> tuple[WorkerSettings, list[str]]:
    """The settings in a worker file, and a warning of each of its keys that comes to nothing.

    :raises ConfigError: names the file and each wrong key.
    :raises WorldError: when the file cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise WorldError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise WorldError(f"{path} is not UTF-8: {error.reason} at byte {error.start}") from error
    try:
        found = properties.parse(text)
    except ConfigError as error:
        raise ConfigError(_named(error, lambda line: f"{path}, {line}")) from None
    try:
        settings = WorkerSettings.from_properties(found)
    except ConfigError as error:
        raise ConfigError(_named(error, lambda _: str(path))) from None
    unknown = dict.fromkeys(WorkerSettings.unknown_keys(found), "it means nothing to a worker")
    return settings, [
        f"{path}: the key {key} is ignored: {why}" for key, why in {**unknown, **settings.idle_keys()}.items()
    ]


def _named(error: ConfigError, place: Callable[[str], str]) -> dict[str, list[str]]:
    return {key: [f"{place(key)}: {sentence}" for sentence in sentences] for key, sentences in error.errors.items()}
