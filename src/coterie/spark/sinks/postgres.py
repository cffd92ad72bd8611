"""The PostgreSQL sink: one transaction writes a batch's rows and the batch's number in a ledger, so a batch is written
once.

The same transaction writes the bad rows of the batch, where these go to a table of the same database.

psycopg comes with the extra ``coterie[postgres]``, so the modules that need it are imported when a sink is used.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Self

from pyspark.sql import DataFrame, SparkSession

from coterie.config.definition import ConfigDef
from coterie.nouns.errors import WorldError
from coterie.spark.arrow import read_arrow_batches
from coterie.spark.bad_records.keys import DeadLetterDestination, DeadLetterTable, NoDeadLetters
from coterie.spark.bad_records.separator import SeparatedRows
from coterie.spark.extras import missing_extra_message
from coterie.spark.fence import FencedError
from coterie.spark.prefixed_config import PrefixedConfig
from coterie.spark.rotation import Rotation
from coterie.spark.seams import Batch, StagedBatch, TaskCheckpointLineage
from coterie.spark.sinks.postgres_columns import select_columns_to_write
from coterie.spark.sinks.postgres_target import DEFINITION, PostgresTarget, value_combination_errors

if TYPE_CHECKING:
    from coterie.spark.sinks.postgres_writer import PostgresWriter


class PostgresSink:
    """Writes rows to a table of a PostgreSQL database. Its ledger keeps its few rows: there is no deduplication data to
    remove."""

    identity_keys: ClassVar[tuple[str, ...]] = (
        "connection.url",
        "table.name.format",
        "insert.mode",
        "pk.mode",
        "pk.fields",
    )
    connection_keys: ClassVar[tuple[str, ...]] = ("connection.url",)
    rotation: ClassVar[Rotation | None] = None
    free_key_prefixes: ClassVar[tuple[str, ...]] = ()
    atomic_dead_letter_destinations: ClassVar[tuple[type[DeadLetterDestination], ...]] = (
        NoDeadLetters,
        DeadLetterTable,
    )

    def __init__(self, target: PostgresTarget, config: PrefixedConfig) -> None:
        self._target = target
        self._config = config
        self._writer: PostgresWriter | None = None

    @classmethod
    def definition(cls, config: PrefixedConfig) -> ConfigDef:
        return DEFINITION

    @classmethod
    def validate(cls, spark: SparkSession, config: PrefixedConfig) -> dict[str, list[str]]:
        """Error messages by the user's key. Checks whether the values fit together, then whether the extra is
        installed, then the server (:func:`find_first_server_error`, with short timeouts), and stops after the first of
        these checks that finds errors."""
        if errors := value_combination_errors(config):
            return errors
        if missing_message := missing_extra_message("postgres"):
            return config.error_by_key("connection.url", missing_message)
        from coterie.spark.sinks.postgres_check import find_first_server_error

        return find_first_server_error(config)

    @classmethod
    def is_exactly_once(cls, config: PrefixedConfig) -> bool:
        return True

    @classmethod
    def of(cls, config: PrefixedConfig) -> Self:
        return cls(PostgresTarget.of(config), config)

    def to_sink_columns(self, rows: DataFrame) -> DataFrame:
        return select_columns_to_write(rows, self._target, self._config)

    def take_over(self, lineage: TaskCheckpointLineage, task_start_number: int) -> None:
        """End the sessions of earlier starts on the server, including those of this object, and store this start in the
        ledger.

        :raises FencedError: when a later start has taken over.
        :raises WorldError: when the extra ``coterie[postgres]`` is not installed; see also
            :meth:`PostgresWriter.take_over`.
        """
        if missing_message := missing_extra_message("postgres"):
            raise WorldError(missing_message)
        from coterie.spark.sinks.postgres_writer import PostgresWriter

        self.close()
        writer = PostgresWriter(self._target, lineage, task_start_number)
        self._writer = writer
        writer.take_over()

    @classmethod
    def remove_deduplication_data(cls, config: PrefixedConfig, lineages: Sequence[TaskCheckpointLineage]) -> None:
        """Does nothing: rows of the ledger stay. They are few, and with them a late second commit writes nothing."""

    def stage(self, batch: Batch) -> StagedBatch:
        """Write the batch in a transaction and leave the transaction open: :meth:`PostgresWriter.stage`, with the
        errors of that method.

        :raises FencedError: when :meth:`take_over` was not called before.
        """
        if self._writer is None:
            raise FencedError
        return self._writer.stage(batch.batch_id, batch.rows.schema, lambda: _separated_rows(batch))

    def close(self) -> None:
        """End the session with the server. If another thread uses the session and waits for the server, its call fails.
        Raises nothing. See :meth:`PostgresWriter.close`."""
        if self._writer is not None:
            self._writer.close()


def _separated_rows(batch: Batch) -> SeparatedRows:
    """The good and the bad rows of ``batch`` as Arrow record batches, which Spark computes while they are read. Without
    a separator all rows are good."""
    if batch.bad_row_separator_for_atomic_sink is not None:
        return batch.bad_row_separator_for_atomic_sink.separate()
    return SeparatedRows(
        read_arrow_batches(
            batch.rows, is_small=batch.is_small, has_bounded_spark_partitions=batch.has_bounded_spark_partitions
        )
    )
