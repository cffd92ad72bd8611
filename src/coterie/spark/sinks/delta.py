"""The Delta sink: one commit of a Delta table contains a batch's rows and the batch's number, so a batch is written
once.

Rows are written as Parquet files, by Arrow on the driver (small batches) or by Spark. The files are moved into the
table's folder, and a commit adds them to the table. Upserts are merged by deltalake (small batches into small tables)
or by Spark's Delta. Tables with features that deltalake does not support are written by Spark's Delta. All these ways
read the batch numbers from the same place in the table's log: see ``delta_table.py``.

deltalake comes with the extra ``coterie[delta]``, so the modules that need it are imported when a sink is used.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Self

from pyspark.sql import DataFrame, SparkSession

from coterie.config.definition import ConfigDef
from coterie.nouns.errors import WorldError
from coterie.spark.bad_records.keys import DeadLetterDestination
from coterie.spark.extras import missing_extra_message
from coterie.spark.fence import FencedError
from coterie.spark.prefixed_config import PrefixedConfig
from coterie.spark.record_columns import without_metadata_columns
from coterie.spark.rotation import Rotation
from coterie.spark.seams import Batch, StagedBatch, TaskCheckpointLineage
from coterie.spark.sinks.delta_target import DEFINITION, DeltaTarget, value_combination_errors

if TYPE_CHECKING:
    from coterie.spark.sinks.delta_writer import DeltaWriter


class DeltaSink:
    """Writes batches to a Delta table."""

    identity_keys: ClassVar[tuple[str, ...]] = ("path", "insert.mode", "pk.fields", "partition.field.name")
    connection_keys: ClassVar[tuple[str, ...]] = ()
    free_key_prefixes: ClassVar[tuple[str, ...]] = ()
    rotation: ClassVar[Rotation | None] = None
    atomic_dead_letter_destinations: ClassVar[tuple[type[DeadLetterDestination], ...]] = ()

    def __init__(self, target: DeltaTarget) -> None:
        self._target = target
        self._writer: DeltaWriter | None = None

    @classmethod
    def definition(cls, config: PrefixedConfig) -> ConfigDef:
        return DEFINITION

    @classmethod
    def validate(cls, spark: SparkSession, config: PrefixedConfig) -> dict[str, list[str]]:
        """Error messages by the user's key. Checks whether the values fit together, then whether the extra is
        installed, then the table (:func:`find_first_table_error`), and stops after the first of these checks that finds
        errors."""
        if errors := value_combination_errors(config):
            return errors
        if missing_message := missing_extra_message("delta"):
            return config.error_by_key("path", missing_message)
        from coterie.spark.sinks.delta_check import find_first_table_error

        return find_first_table_error(spark, config)

    @classmethod
    def is_exactly_once(cls, config: PrefixedConfig) -> bool:
        return True

    @classmethod
    def of(cls, config: PrefixedConfig) -> Self:
        return cls(DeltaTarget.of(config))

    def take_over(self, lineage: TaskCheckpointLineage, task_start_number: int) -> None:
        """Remove the staged files of earlier owners of this task, and prepare to write the batches of ``lineage``.
        ``task_start_number`` is not used: the table's log prevents a second commit of a batch.

        :raises WorldError: when the extra ``coterie[delta]`` is not installed.
        """
        if missing_message := missing_extra_message("delta"):
            raise WorldError(missing_message)
        from coterie.spark.sinks.delta_writer import DeltaWriter

        self._writer = DeltaWriter(self._target, lineage)
        self._writer.remove_earlier_staged_files()

    def to_sink_columns(self, rows: DataFrame) -> DataFrame:
        return without_metadata_columns(rows)

    @classmethod
    def remove_deduplication_data(cls, config: PrefixedConfig, lineages: Sequence[TaskCheckpointLineage]) -> None:
        """Does nothing: batch numbers of lineages stay in the table's log, so a late second commit writes nothing."""

    def stage(self, batch: Batch) -> StagedBatch:
        """Prepare the batch for its commit: :meth:`DeltaWriter.stage`, with the errors of that method.

        :raises FencedError: when :meth:`take_over` was not called before.
        """
        if self._writer is None:
            raise FencedError
        return self._writer.stage(batch)

    def close(self) -> None:
        """Does nothing: there is no connection."""
