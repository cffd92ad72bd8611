"""Reads a worker's settings file."""

from collections.abc import Callable
from pathlib import Path

from coterie.config import properties
from coterie.config.worker import WorkerSettings
from coterie.nouns.errors import ConfigError, WorldError


def read_settings_and_warnings(path: Path) -> tuple[WorkerSettings, list[str]]:
    """Read the settings file ``path`` of a worker; returns the settings, and the warnings: one for each key that is
    unknown or that other settings make ineffective. Logs nothing.

    :raises ConfigError: when lines are invalid, or else keys; each message begins with the file, and for a line with
        its number. The keys are checked in steps, and the first step with errors is reported.
    :raises WorldError: when the file cannot be read or is not UTF-8, or a secret to which it refers cannot be hidden.
    """
    properties_by_key = read_properties(path)
    try:
        settings = WorkerSettings.from_properties(properties_by_key)
    except ConfigError as error:
        raise ConfigError(_messages_with_location(error, lambda _: str(path))) from None
    unknown_keys = dict.fromkeys(WorkerSettings.unknown_keys(properties_by_key), "it is not a key of a worker")
    return settings, [
        f"{path}: the key {key} is ignored: {reason}"
        for key, reason in {**unknown_keys, **settings.ineffective_keys()}.items()
    ]


def read_properties(path: Path) -> dict[str, str]:
    """The keys and values of the properties file ``path``.

    :raises ConfigError: when lines are invalid; names the file and each of these lines.
    :raises WorldError: when the file cannot be read or is not UTF-8.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise WorldError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise WorldError(f"{path} is not UTF-8: {error.reason} at byte {error.start}") from error
    try:
        return properties.parse_properties(text)
    except ConfigError as error:
        raise ConfigError(_messages_with_location(error, lambda line: f"{path}, {line}")) from None


def _messages_with_location(error: ConfigError, place_of: Callable[[str], str]) -> dict[str, list[str]]:
    """The messages of ``error`` by key, each after the text that ``place_of`` returns for the key: the file, or the
    file and the line."""
    return {key: [f"{place_of(key)}: {sentence}" for sentence in sentences] for key, sentences in error.errors.items()}
