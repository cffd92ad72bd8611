"""The noop sink: all rows of a batch are read and transformed, and written nowhere. For measurements and dry runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from pyspark.sql import DataFrame, SparkSession

from coterie.config.definition import ConfigDef
from coterie.spark.bad_records.keys import DeadLetterDestination
from coterie.spark.prefixed_config import OPTION_PREFIX, PrefixedConfig, errors_if_any_option_is_set
from coterie.spark.record_columns import without_metadata_columns
from coterie.spark.rotation import Rotation
from coterie.spark.seams import Batch, TaskCheckpointLineage


@dataclass(frozen=True, slots=True, kw_only=True)
class NoopSink:
    """A sink that writes nothing. A batch is done when it is committed in the checkpoint."""

    identity_keys: ClassVar[tuple[str, ...]] = ()
    connection_keys: ClassVar[tuple[str, ...]] = ()
    rotation: ClassVar[Rotation | None] = None
    free_key_prefixes: ClassVar[tuple[str, ...]] = (OPTION_PREFIX,)
    atomic_dead_letter_destinations: ClassVar[tuple[type[DeadLetterDestination], ...]] = ()

    @classmethod
    def definition(cls, config: PrefixedConfig) -> ConfigDef:
        return ConfigDef(())

    @classmethod
    def validate(cls, spark: SparkSession, config: PrefixedConfig) -> dict[str, list[str]]:
        return errors_if_any_option_is_set(config, "The noop sink")

    @classmethod
    def is_exactly_once(cls, config: PrefixedConfig) -> bool:
        """True: nothing is written, so nothing is written twice."""
        return True

    @classmethod
    def of(cls, config: PrefixedConfig) -> Self:
        return cls()

    def to_sink_columns(self, rows: DataFrame) -> DataFrame:
        return without_metadata_columns(rows)

    def take_over(self, lineage: TaskCheckpointLineage, task_start_number: int) -> None:
        """Does nothing: earlier owners have written nothing."""

    @classmethod
    def remove_deduplication_data(cls, config: PrefixedConfig, lineages: Sequence[TaskCheckpointLineage]) -> None:
        """Does nothing: this sink stores no data by which it could reject batches."""

    def stage(self, batch: Batch) -> "NoopBatch":
        """Compute every row of the batch, and write nothing.

        :raises PySparkException, Py4JError: when Spark cannot compute the rows.
        """
        batch.rows.write.format("noop").mode("overwrite").save()
        return NoopBatch()

    def close(self) -> None:
        """Does nothing: there is no connection."""


class NoopBatch:
    """A batch of which there is nothing to commit or to remove."""

    def commit(self) -> None:
        """Does nothing."""
        pass

    def clean_up(self) -> None:
        """Does nothing."""
        pass
