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

from coterie.config.definition import Definition, Importance, Key, Type, Width, not_blank
from coterie.nouns.errors import WorldError
from coterie.spark.bad_records.keys import DeadLetters
from coterie.spark.end_config import OPTIONS, EndConfig
from coterie.spark.jars import missing
from coterie.spark.paths import SINK_GROUP
from coterie.spark.record import visible
from coterie.spark.rotation import Rotation
from coterie.spark.seams import Batch, TaskLineage
from coterie.spark.transforms import first_sentence

DEFINITION = Definition(
    (
        Key(
            name="format",
            type=Type.STRING,
            documentation="Format of Spark's writer, by its short name or its class; console prints to the JVM's log.",
            importance=Importance.HIGH,
            check=not_blank,
            group=SINK_GROUP,
            width=Width.SHORT,
            display_name="Sink format",
        ),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkSink:
    """Rows written by Spark's writer of ``format``, with the options under ``option.``."""

    identity: ClassVar[tuple[str, ...]] = ("format",)
    access: ClassVar[tuple[str, ...]] = ("format",)
    rotation: ClassVar[Rotation | None] = None
    free_prefixes: ClassVar[tuple[str, ...]] = (OPTIONS,)
    holds: ClassVar[tuple[type[DeadLetters], ...]] = ()

    format: str
    options: Mapping[str, str]

    @classmethod
    def definition(cls, config: EndConfig) -> Definition:
        return DEFINITION

    @classmethod
    def validate(cls, spark: SparkSession, config: EndConfig) -> dict[str, list[str]]:
        """Check that Spark has the format and, for a format in a package of jars, that the jars are present."""
        format_ = config.read(DEFINITION, "format", str)
        package = _package(format_, config.under(OPTIONS))
        if package is not None and (sentence := missing(spark, package)) is not None:
            return config.error("format", sentence)
        source = spark._jvm.org.apache.spark.sql.execution.datasources.DataSource  # type: ignore[union-attr]
        try:
            source.lookupDataSource(format_, spark._jsparkSession.sessionState().conf())
        except Py4JJavaError:
            return config.error("format", "Spark has no such format; is its jar in the worker's jars.dir?")
        return {}

    @classmethod
    def is_exactly_once(cls, config: EndConfig) -> bool:
        return False

    @classmethod
    def of(cls, config: EndConfig) -> Self:
        return cls(format=config.read(DEFINITION, "format", str), options=config.under(OPTIONS))

    def shape(self, rows: DataFrame) -> DataFrame:
        return visible(rows)

    def take_over(self, lineage: TaskLineage, start: int) -> None:
        """Does nothing: Spark's writers do not report which rows an earlier owner has written."""

    @classmethod
    def retire(cls, config: EndConfig, lineages: Sequence[TaskLineage]) -> None:
        """Does nothing: Spark's writers keep no commit markers."""

    def stage(self, batch: Batch) -> "Unwritten":
        return Unwritten(self, batch.rows)

    def close(self) -> None:
        """Does nothing: there is no connection."""


class Unwritten:
    """The rows of a batch; Spark's writer makes them visible as it writes them, so nothing is staged."""

    def __init__(self, sink: SparkSink, rows: DataFrame) -> None:
        self._sink = sink
        self._rows = rows

    def put_in_place(self) -> None:
        """Append the rows.

        :raises WorldError: when the writer fails.
        """
        try:
            self._rows.write.format(self._sink.format).options(**self._sink.options).mode("append").save()
        except PySparkException as error:
            raise WorldError(f"Spark's {self._sink.format} writer failed: {first_sentence(error)}") from error

    def drop(self) -> None:
        """Does nothing: there is no staged copy."""


def _package(format_: str, options: Mapping[str, str]) -> str | None:
    """The package of jars that the writer of ``format_`` needs; None when it needs none."""
    match format_.lower():
        case "kafka" | "delta" | "avro" as package:
            return package
        case "jdbc" if options.get("url", "").startswith("jdbc:postgresql:"):
            return "postgres"
        case _:
            return None
