"""The levels of loggers, as Kafka Connect names them."""

from enum import StrEnum


class LoggerLevel(StrEnum):
    """A level of a logger, from the most to the fewest messages."""

    TRACE = "TRACE"
    DEBUG = "DEBUG"
    INFO = "INFO"
    WARN = "WARN"
    ERROR = "ERROR"
    FATAL = "FATAL"
    OFF = "OFF"
