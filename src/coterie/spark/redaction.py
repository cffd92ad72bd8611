"""Keeps the values of references to secrets that are options of readers and writers out of Spark's plans and settings.
:mod:`coterie.spark.redacted_events` covers everything else that Spark's UI and event log show.

Spark redacts an option of a reader or writer, or a setting, whose name or value matches one of two patterns: a static
one of the application, and one of the session. Coterie's static pattern has the names of secrets; the one of a task's
session has the names of those options whose values come from references.
"""

import re
from collections.abc import Mapping

from pyspark.sql import SparkSession

from coterie.config.secrets import SECRET_NAME_PATTERN
from coterie.spark.prefixed_config import OPTION_PREFIX, SINK_PREFIX, SOURCE_PREFIX
from coterie.spark.sessions import new_session_without_java_functions

_OPTIONS_PATTERN_KEY = "spark.sql.redaction.options.regex"
_SPARK_OPTIONS_PATTERN = "(?i)url"
"""Spark's default of :data:`_OPTIONS_PATTERN_KEY`."""
REDACTION_SETTINGS: Mapping[str, str] = {
    "spark.redaction.regex": f"(?i){SECRET_NAME_PATTERN}",
    _OPTIONS_PATTERN_KEY: _SPARK_OPTIONS_PATTERN,
    # Spark cuts off the texts about the files of a plan, by default after 100 characters. A secret that is cut off is
    # not found.
    "spark.sql.maxMetadataStringLength": "10000",
}
"""The settings of a worker's Spark session by which Spark redacts settings and options whose names are those of
secrets."""
_PREFIXES = (SOURCE_PREFIX, SINK_PREFIX, OPTION_PREFIX, "consumer.override.", "producer.override.")
"""Prefixes, in their order, of a connector's key that are not in the name of the Spark option that the key sets."""


def new_redacting_session(
    spark: SparkSession, config: Mapping[str, str], resolved_config: Mapping[str, str]
) -> SparkSession:
    """A new session of the application of ``spark``, without :data:`FUNCTIONS_THAT_CALL_JAVA`, that redacts the options
    whose values come from references: those whose values in ``config`` and in ``resolved_config`` differ."""
    session = new_session_without_java_functions(spark)
    names = sorted({_spark_option_name_end(key) for key, value in config.items() if resolved_config[key] != value})
    if names:
        pattern = "|".join(re.escape(name) for name in names)
        session.conf.set(_OPTIONS_PATTERN_KEY, rf"{_SPARK_OPTIONS_PATTERN}|(^|\.)({pattern})$")
    return session


def _spark_option_name_end(key: str) -> str:
    """The end of the name of the Spark option that ``key``, a connector's key, becomes: ``key`` without Coterie's
    prefixes. ``source.option.password`` becomes ``password``; ``sink.producer.override.sasl.jaas.config`` becomes
    ``sasl.jaas.config``, the end of Spark's option ``kafka.sasl.jaas.config``."""
    for prefix in _PREFIXES:
        key = key.removeprefix(prefix)
    return key
