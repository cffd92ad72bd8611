"""The levels of loggers, as Kafka Connect names them, and the names of loggers."""

from collections.abc import Mapping
from enum import StrEnum

ROOT = "root"
"""The name of the logger of which all loggers are descendants."""
_JAVA_DOMAINS = frozenset({"com", "edu", "io", "java", "javax", "jdk", "net", "org", "scala", "sun"})
"""The first parts of the names of Java's packages: domains in reverse, and those of the languages themselves."""


class LoggerLevel(StrEnum):
    """The level of a logger. The members are in order, from ALL (all messages) to OFF (no message)."""

    ALL = "ALL"
    TRACE = "TRACE"
    DEBUG = "DEBUG"
    INFO = "INFO"
    WARN = "WARN"
    ERROR = "ERROR"
    FATAL = "FATAL"
    OFF = "OFF"


def is_same_or_descendant(name: str, ancestor: str) -> bool:
    """Whether the logger ``name`` is ``ancestor`` or a descendant of it."""
    return ancestor in (ROOT, name) or name.startswith(f"{ancestor}.")


def level_in_effect(levels: Mapping[str, LoggerLevel], name: str) -> LoggerLevel:
    """The level that applies to the logger ``name``: its level in ``levels``; if it has none there, that of its nearest
    ancestor in ``levels``. ``levels`` must contain the root."""
    while name not in levels:
        name = name.rpartition(".")[0] or ROOT
    return levels[name]


def is_java_logger_name(name: str) -> bool:
    """Whether ``name`` is the name of a Java logger, which is the name of a Java package or class: it has several
    parts, and the first one is a domain such as ``org`` or one of Java's own (``java``)."""
    first, dot, _ = name.partition(".")
    return bool(dot) and first in _JAVA_DOMAINS
