"""The Delta sink: one commit of a Delta table contains a batch's rows and the batch's number, so it is written once.

Rows are written as Parquet files beside the table's own, by Arrow on the driver (small batches) or by Spark, and a
commit adds them. Upserts are merged by deltalake (small batches into small tables) or by Spark's Delta. Tables with
features that deltalake does not support are written by Spark's Delta. All read the batch numbers from the same place in
the table's log: see ``delta_table.py``.

deltalake comes with the extra ``coterie[delta]``, so the modules that need it are imported when a sink is used.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Self

from pyspark.sql import DataFrame, SparkSession

from coterie.config.definition import Definition
from coterie.nouns.errors import WorldError
from coterie.spark.bad_records.keys import DeadLetters
from coterie.spark.end_config import EndConfig
from coterie.spark.extras import missing_extra
from coterie.spark.fence import FencedError
from coterie.spark.record import visible
from coterie.spark.rotation import Rotation
from coterie.spark.seams import Batch, Staged, TaskLineage
from coterie.spark.sinks.delta_target import DEFINITION, DeltaTarget, errors_of

if TYPE_CHECKING:
    from coterie.spark.sinks.delta_writer import DeltaWriter


class DeltaSink:
    """Rows of a Delta table."""

    identity: ClassVar[tuple[str, ...]] = ("path", "insert.mode", "pk.fields", "partition.field.name")
    access: ClassVar[tuple[str, ...]] = ()
    free_prefixes: ClassVar[tuple[str, ...]] = ()
    rotation: ClassVar[Rotation | None] = None
    holds: ClassVar[tuple[type[DeadLetters], ...]] = ()

    def __init__(self, target: DeltaTarget) -> None:
        self._target = target
        self._writer: DeltaWriter | None = None

    @classmethod
    def definition(cls, config: EndConfig) -> Definition:
        return DEFINITION

    @classmethod
    def validate(cls, spark: SparkSession, config: EndConfig) -> dict[str, list[str]]:
        """Errors of the keys together; when there are none, errors against the existing table."""
        if found := errors_of(config):
            return found
        if missing := missing_extra("delta"):
            return config.error("path", missing)
        from coterie.spark.sinks.delta_check import errors_at_table

        return errors_at_table(spark, config)

    @classmethod
    def is_exactly_once(cls, config: EndConfig) -> bool:
        return True

    @classmethod
    def of(cls, config: EndConfig) -> Self:
        return cls(DeltaTarget.of(config))

    def take_over(self, lineage: TaskLineage, start: int) -> None:
        """Remove the files that earlier owners of this task wrote and did not commit."""
        if missing := missing_extra("delta"):
            raise WorldError(missing)
        from coterie.spark.sinks.delta_writer import DeltaWriter

        self._writer = DeltaWriter(self._target, lineage)
        self._writer.sweep()

    def shape(self, rows: DataFrame) -> DataFrame:
        return visible(rows)

    @classmethod
    def retire(cls, config: EndConfig, lineages: Sequence[TaskLineage]) -> None:
        """Does nothing: batch numbers of lineages stay in the table's log, so a late second commit writes nothing."""

    def stage(self, batch: Batch) -> Staged:
        if self._writer is None:
            raise FencedError
        return self._writer.stage(batch)

    def close(self) -> None:
        """Does nothing: there is no connection."""
