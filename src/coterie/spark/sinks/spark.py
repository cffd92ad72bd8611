"""Any sink of Spark's own batch writer, for example ``console``: every batch is appended, at least once.

Spark's writers do not store which batches they have written. So the rows of a batch that is replayed, after its worker
crashed or another worker took the task over, are written again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from coterie.config.definition import ConfigDef, ConfigKey, Importance, Type, Width, blank_value_error
from coterie.nouns.errors import WorldError
from coterie.spark.bad_records.keys import DeadLetterDestination
from coterie.spark.jars import missing_jars_message
from coterie.spark.paths import SINK_GROUP
from coterie.spark.prefixed_config import OPTION_PREFIX, PrefixedConfig
from coterie.spark.record_columns import without_metadata_columns
from coterie.spark.rotation import Rotation
from coterie.spark.seams import Batch, TaskCheckpointLineage
from coterie.spark.transforms import first_message_line

DEFINITION = ConfigDef(
    (
        ConfigKey(
            name="format",
            type=Type.STRING,
            documentation="Format of Spark's writer, by its short name or its class; console prints to the JVM's log.",
            importance=Importance.HIGH,
            validator=blank_value_error,
            group=SINK_GROUP,
            width=Width.SHORT,
            display_name="Sink format",
        ),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkSink:
    """Writes rows by Spark's batch writer of ``format``, with the options under ``option.``. Not exactly once: a
    replayed batch is written again."""

    identity_keys: ClassVar[tuple[str, ...]] = ("format",)
    connection_keys: ClassVar[tuple[str, ...]] = ("format",)
    rotation: ClassVar[Rotation | None] = None
    free_key_prefixes: ClassVar[tuple[str, ...]] = (OPTION_PREFIX,)
    atomic_dead_letter_destinations: ClassVar[tuple[type[DeadLetterDestination], ...]] = ()

    format: str
    options: Mapping[str, str]

    @classmethod
    def definition(cls, config: PrefixedConfig) -> ConfigDef:
        return DEFINITION

    @classmethod
    def validate(cls, spark: SparkSession, config: PrefixedConfig) -> dict[str, list[str]]:
        """Error messages by the user's key: Spark does not have the format, or the jars of its package are missing."""
        format_ = config.required_value(DEFINITION, "format", str)
        package = _needed_jar_package(format_, config.values_under_prefix(OPTION_PREFIX))
        if package is not None and (message := missing_jars_message(spark, package)) is not None:
            return config.error_by_key("format", message)
        data_source_class = spark._jvm.org.apache.spark.sql.execution.datasources.DataSource  # type: ignore[union-attr]
        try:
            data_source_class.lookupDataSource(format_, spark._jsparkSession.sessionState().conf())
        except Py4JJavaError:
            return config.error_by_key(
                "format",
                f"Spark has no format {format_}; if the format is in a jar, put the jar into the worker's jars.dir",
            )
        return {}

    @classmethod
    def is_exactly_once(cls, config: PrefixedConfig) -> bool:
        return False

    @classmethod
    def of(cls, config: PrefixedConfig) -> Self:
        return cls(
            format=config.required_value(DEFINITION, "format", str), options=config.values_under_prefix(OPTION_PREFIX)
        )

    def to_sink_columns(self, rows: DataFrame) -> DataFrame:
        return without_metadata_columns(rows)

    def take_over(self, lineage: TaskCheckpointLineage, task_start_number: int) -> None:
        """Does nothing: Spark's writers do not report which rows an earlier owner has written."""

    @classmethod
    def remove_deduplication_data(cls, config: PrefixedConfig, lineages: Sequence[TaskCheckpointLineage]) -> None:
        """Does nothing: Spark's writers store no data by which they could reject batches."""

    def stage(self, batch: Batch) -> "DirectSparkWrite":
        """The batch for :meth:`DirectSparkWrite.commit`. Nothing is computed or written here."""
        return DirectSparkWrite(self, batch.rows)

    def close(self) -> None:
        """Does nothing: there is no connection."""


class DirectSparkWrite:
    """The rows of a batch; Spark's writer makes them visible as it writes them, so nothing is staged."""

    def __init__(self, sink: SparkSink, rows: DataFrame) -> None:
        self._sink = sink
        self._rows = rows

    def commit(self) -> None:
        """Append the rows, also if they were appended before by another copy of the batch.

        :raises WorldError: when Spark's writer fails.
        :raises Py4JJavaError: when the writer fails with an exception for which PySpark has no class.
        """
        try:
            self._rows.write.format(self._sink.format).options(**self._sink.options).mode("append").save()
        except PySparkException as error:
            raise WorldError(f"Spark's {self._sink.format} writer failed: {first_message_line(error)}") from error

    def clean_up(self) -> None:
        """Does nothing: there is no staged copy."""


def _needed_jar_package(format_: str, options: Mapping[str, str]) -> str | None:
    """The name of the package of jars (:func:`coterie.spark.jars.jar_packages`) that Spark's writer of ``format_``
    needs with these options; None when it needs no package."""
    match format_.lower():
        case "kafka" | "delta" | "avro" as package:
            return package
        case "jdbc" if options.get("url", "").startswith("jdbc:postgresql:"):
            return "postgres"
        case _:
            return None
