"""The levels of a worker's loggers: those of Python's ``logging``, and those of the JVM in which its tasks run, with
Connect's names of levels. The two roots have one name, ``root``."""

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass

from coterie.herder.seams import TaskRuntime
from coterie.nouns.logger_levels import ROOT, LoggerLevel, is_java_logger_name, is_same_or_descendant, level_in_effect

_NUMBER_BY_LEVEL = {
    LoggerLevel.ALL: 1,
    LoggerLevel.TRACE: 5,
    LoggerLevel.DEBUG: logging.DEBUG,
    LoggerLevel.INFO: logging.INFO,
    LoggerLevel.WARN: logging.WARNING,
    LoggerLevel.ERROR: logging.ERROR,
    LoggerLevel.FATAL: logging.CRITICAL,
    LoggerLevel.OFF: logging.CRITICAL + 10,
}
"""The number of each level in Python's ``logging``, which has no names for ALL, TRACE and OFF."""
COTERIE_LOGGER_BY_CONNECT_NAME = {
    "org.apache.kafka.connect.runtime.Worker": "coterie.spark.runtime",
    "org.apache.kafka.connect.runtime.WorkerConnector": "coterie.spark.splitting",
    "org.apache.kafka.connect.runtime.WorkerSinkTask": "coterie.spark",
    "org.apache.kafka.connect.runtime.WorkerSourceTask": "coterie.spark",
    "org.apache.kafka.connect.runtime.distributed.DistributedHerder": "coterie.worker",
    "org.apache.kafka.connect.runtime.distributed.WorkerCoordinator": "coterie.worker.membership",
}
"""Names of Connect's loggers that its documentation uses, and so scripts of its users, each with the Coterie logger
that does the same work. A Connect name is an alias: it has the level of the Coterie logger; setting one sets both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggerState:
    """The level of a logger that is in effect, and when it was last changed."""

    level: LoggerLevel
    """The level in effect: a logger without an own level has that of its nearest ancestor."""
    last_modified_ms: int | None
    """When :meth:`LoggerLevelControl.set_level` last changed the level, also by a call for an ancestor or an alias, in
    ms since the Unix epoch; None: never."""


class LoggerLevelControl:
    """Reads and sets the levels of one worker's loggers.

    Where Python and the JVM have a logger of the same name, Python's is shown, and both are set.
    """

    def __init__(self, runtime: TaskRuntime) -> None:
        self._runtime = runtime
        self._last_modified_ms: dict[str, int] = {}
        self._setting = asyncio.Lock()
        """Held while a call sets levels, so that the calls are executed in the order in which they came."""

    async def logger_states(self) -> dict[str, LoggerState]:
        """The states of all loggers that exist, by name, including the names in :data:`COTERIE_LOGGER_BY_CONNECT_NAME`.

        :raises WorldError: when the JVM does not answer.
        """
        levels = {**await self._runtime.logger_levels(), **_python_levels_with_connect_names()}
        return {name: self._logger_state(name, level) for name, level in sorted(levels.items())}

    async def logger_state(self, name: str) -> LoggerState | None:
        """The state of the logger ``name``; None if the logger does not exist.

        :raises WorldError: when Python has no logger ``name`` and the JVM does not answer.
        """
        level = _python_levels_with_connect_names().get(name) or (await self._runtime.logger_levels()).get(name)
        return None if level is None else self._logger_state(name, level)

    async def set_level(self, name: str, level: LoggerLevel) -> list[str]:
        """Set the level of the logger ``name`` and of its descendants. If neither exists, the logger is created: in the
        JVM, if one runs and ``name`` is that of a Java class or package, else in Python.

        Returns the sorted names of the loggers that have changed: of ``name`` and its descendants, those whose level in
        effect was not ``level`` before. Not returned are Coterie's loggers that have changed only because one of
        Connect's names for them (:data:`COTERIE_LOGGER_BY_CONNECT_NAME`) is ``name`` or a descendant of ``name``.

        :raises WorldError: when the JVM does not answer. Then no level of Python's loggers was set.
        """
        async with self._setting:
            in_python, in_jvm = _python_levels_with_connect_names(), await self._runtime.logger_levels()
            is_known_in_python, is_known_in_jvm = (
                any(is_same_or_descendant(other, name) for other in levels) for levels in (in_python, in_jvm)
            )
            is_new_in_jvm = not is_known_in_python and bool(in_jvm) and is_java_logger_name(name)
            changed: set[str] = set()
            if is_known_in_jvm or is_new_in_jvm:
                changed |= _loggers_that_change(in_jvm, name, level)
                await self._runtime.set_logger_level(name, level)
            if is_known_in_python or not (is_known_in_jvm or is_new_in_jvm):
                changed |= _loggers_that_change(in_python, name, level)
                for connect_name, own_name in COTERIE_LOGGER_BY_CONNECT_NAME.items():
                    if is_same_or_descendant(connect_name, name):
                        _set_python_level_and_descendants(own_name, level)
                if name not in COTERIE_LOGGER_BY_CONNECT_NAME:
                    _set_python_level_and_descendants(name, level)
            others = {
                other
                for other, now in _python_levels_with_connect_names().items()
                if in_python.get(other, now) is not now
            }
            self._last_modified_ms.update(dict.fromkeys(changed | others, time.time_ns() // 1_000_000))
            return sorted(changed)

    def _logger_state(self, name: str, level: LoggerLevel) -> LoggerState:
        return LoggerState(level=level, last_modified_ms=self._last_modified_ms.get(name))


def _loggers_that_change(levels: Mapping[str, LoggerLevel], name: str, level: LoggerLevel) -> set[str]:
    """The names of the loggers whose level in effect changes when ``level`` is set for ``name``, which need not exist,
    and for its descendants. ``levels``: the present levels, by name."""
    affected = {other: before for other, before in levels.items() if is_same_or_descendant(other, name)}
    affected.setdefault(name, level_in_effect(levels, name))
    return {other for other, before in affected.items() if before is not level}


# -- Python's loggers -------------------------------------------------------------------------------------------------


def _python_loggers() -> dict[str, logging.Logger]:
    """Python's loggers by name, the root logger as ``root``. Left out are names that are only prefixes of the names of
    loggers."""
    loggers = dict(logging.root.manager.loggerDict)  # Another thread may create a logger meanwhile.
    return {ROOT: logging.root, **{name: one for name, one in loggers.items() if isinstance(one, logging.Logger)}}


def _python_levels_with_connect_names() -> dict[str, LoggerLevel]:
    """The level in effect of each of Python's loggers, and of each name in :data:`COTERIE_LOGGER_BY_CONNECT_NAME`."""
    loggers = _python_loggers()
    loggers |= {
        connect_name: logging.getLogger(own_name) for connect_name, own_name in COTERIE_LOGGER_BY_CONNECT_NAME.items()
    }
    return {name: _level_in_effect(one) for name, one in loggers.items()}


def _level_in_effect(one: logging.Logger) -> LoggerLevel:
    """The level in effect of ``one``. A number between two levels counts as the higher: a logger with 25 writes
    warnings."""
    number = one.getEffectiveLevel()
    return next((level for level, least in _NUMBER_BY_LEVEL.items() if number <= least), LoggerLevel.OFF)


def _set_python_level_and_descendants(name: str, level: LoggerLevel) -> None:
    """Set the level of a logger, which is created if it does not exist, and of its descendants."""
    logging.getLogger(name)
    for other, one in _python_loggers().items():
        if is_same_or_descendant(other, name):
            one.setLevel(_NUMBER_BY_LEVEL[level])
