"""The levels of the loggers of this process: those of Python's ``logging``, with Connect's names of levels."""

import logging
import time
from dataclasses import dataclass

from coterie.nouns.logger_levels import LoggerLevel

ROOT = "root"
"""The name of the logger of which all loggers are descendants."""
_NUMBER_BY_LEVEL = {
    LoggerLevel.TRACE: 5,
    LoggerLevel.DEBUG: logging.DEBUG,
    LoggerLevel.INFO: logging.INFO,
    LoggerLevel.WARN: logging.WARNING,
    LoggerLevel.ERROR: logging.ERROR,
    LoggerLevel.FATAL: logging.CRITICAL,
    LoggerLevel.OFF: logging.CRITICAL + 10,
}
"""Python's numbers; Python has no names for TRACE and OFF."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggerState:
    """The level of a logger."""

    level: LoggerLevel
    """The level in effect: a logger without an own level has that of its nearest ancestor."""
    last_modified_ms: int | None
    """When the level was last changed through :meth:`LoggerLevels.set_level`, in ms since the Unix epoch; None:
    never."""


class LoggerLevels:
    """Reads and sets the levels of this process's loggers."""

    def __init__(self) -> None:
        self._last_modified_ms: dict[str, int] = {}

    def states(self) -> dict[str, LoggerState]:
        """All loggers that exist, by name."""
        return {name: self._state(name, known) for name, known in sorted(_existing_loggers().items())}

    def state(self, name: str) -> LoggerState | None:
        """The logger ``name``; None if it does not exist."""
        known = _existing_loggers().get(name)
        return None if known is None else self._state(name, known)

    def set_level(self, name: str, level: LoggerLevel) -> list[str]:
        """Set the level of the logger ``name``, which is created if it does not exist, and of its descendants. Returns
        the names of those that had another level, sorted."""
        logging.getLogger(name)
        loggers = {
            other: known
            for other, known in _existing_loggers().items()
            if name in (ROOT, other) or other.startswith(f"{name}.")
        }
        changed = sorted(other for other, known in loggers.items() if _level_of(known) is not level)
        now_ms = time.time_ns() // 1_000_000
        for known in loggers.values():
            known.setLevel(_NUMBER_BY_LEVEL[level])
        self._last_modified_ms.update(dict.fromkeys(changed, now_ms))
        return changed

    def _state(self, name: str, known: logging.Logger) -> LoggerState:
        return LoggerState(level=_level_of(known), last_modified_ms=self._last_modified_ms.get(name))


def _existing_loggers() -> dict[str, logging.Logger]:
    """All loggers by name, without the names that only descendants of loggers use."""
    loggers = dict(logging.root.manager.loggerDict)  # Another thread may create a logger meanwhile.
    return {ROOT: logging.root, **{name: one for name, one in loggers.items() if isinstance(one, logging.Logger)}}


def _level_of(known: logging.Logger) -> LoggerLevel:
    """The level in effect. A number between two levels counts as the higher: a logger with 25 writes warnings."""
    number = known.getEffectiveLevel()
    return next((level for level, least in _NUMBER_BY_LEVEL.items() if number <= least), LoggerLevel.OFF)
