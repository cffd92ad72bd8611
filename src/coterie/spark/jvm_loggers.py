"""The loggers of Spark's JVM, which are those of Log4j 2. A level that is set applies to a logger and to all its
descendants, also to those for which another level was set before. All functions block.
"""

from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from coterie.nouns.errors import WorldError
from coterie.nouns.logger_levels import ROOT, LoggerLevel, is_same_or_descendant, level_in_effect


def read_logger_levels(spark: SparkSession) -> dict[str, LoggerLevel]:
    """The levels in effect, by logger name, of all loggers of the JVM and of all names in its logging configuration.

    :raises WorldError: when the JVM does not answer.
    """
    try:
        context = _log4j_context(spark)
        configured = {
            entry.getKey() or ROOT: LoggerLevel(entry.getValue().getLevel().name())
            for entry in context.getConfiguration().getLoggers().entrySet()
        }
        names = [one.getName() or ROOT for one in context.getLoggers()]
    except (Py4JError, OSError) as error:
        raise WorldError(f"The loggers of Spark's JVM cannot be read: {error}") from error
    return configured | {name: level_in_effect(configured, name) for name in names}


def set_logger_level(spark: SparkSession, name: str, level: LoggerLevel) -> None:
    """Set the level of the logger ``name``, which is created if it does not exist, and of its descendants.

    :raises WorldError: when the JVM does not answer.
    """
    log4j_name = "" if name == ROOT else name
    try:
        context = _log4j_context(spark)
        log4j = spark.sparkContext._gateway.jvm.org.apache.logging.log4j  # type: ignore[union-attr]
        context.getLogger(log4j_name)
        java_level = log4j.Level.getLevel(level.value)
        for entry in list(context.getConfiguration().getLoggers().entrySet()):
            if is_same_or_descendant(entry.getKey() or ROOT, name):
                entry.getValue().setLevel(java_level)
        # Last, because it also applies the levels that were set above.
        log4j.core.config.Configurator.setLevel(log4j_name, java_level)
        context.updateLoggers()
    except (Py4JError, OSError) as error:
        raise WorldError(f"The level of logger {name} of Spark's JVM cannot be set: {error}") from error


def _log4j_context(spark: SparkSession) -> Any:
    """Log4j's context of all loggers."""
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    return gateway.jvm.org.apache.logging.log4j.LogManager.getContext(False)
