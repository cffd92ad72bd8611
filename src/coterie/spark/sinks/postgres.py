"""The PostgreSQL sink: one transaction writes a batch's rows and its number in a ledger, so it is written once.

The same transaction writes the bad rows of the batch, where these go to a table of the same database.

psycopg comes with the extra ``coterie[postgres]``, so the modules that need it are imported when a sink is used.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Self

from pyspark.sql import DataFrame, SparkSession

from coterie.config.definition import Definition
from coterie.nouns.errors import WorldError
from coterie.spark.arrow import pieces
from coterie.spark.bad_records.keys import DeadLetters, Dropped, ToTable
from coterie.spark.bad_records.sifted import Divided
from coterie.spark.end_config import EndConfig
from coterie.spark.extras import missing_extra
from coterie.spark.fence import FencedError
from coterie.spark.rotation import Rotation
from coterie.spark.seams import Batch, Staged, TaskLineage
from coterie.spark.sinks.postgres_columns import table_columns
from coterie.spark.sinks.postgres_target import DEFINITION, PostgresTarget, errors_of

if TYPE_CHECKING:
    from coterie.spark.sinks.postgres_writer import PostgresWriter


class PostgresSink:
    """Writes rows to a table."""

    identity: ClassVar[tuple[str, ...]] = ("connection.url", "table.name.format", "insert.mode", "pk.mode", "pk.fields")
    access: ClassVar[tuple[str, ...]] = ("connection.url",)
    rotation: ClassVar[Rotation | None] = None
    free_prefixes: ClassVar[tuple[str, ...]] = ()
    holds: ClassVar[tuple[type[DeadLetters], ...]] = (Dropped, ToTable)

    def __init__(self, target: PostgresTarget, config: EndConfig) -> None:
        self._target = target
        self._config = config
        self._writer: PostgresWriter | None = None

    @classmethod
    def definition(cls, config: EndConfig) -> Definition:
        return DEFINITION

    @classmethod
    def validate(cls, spark: SparkSession, config: EndConfig) -> dict[str, list[str]]:
        """Errors of the keys together; when there are none, errors against the server, with short timeouts."""
        if found := errors_of(config):
            return found
        if missing := missing_extra("postgres"):
            return config.error("connection.url", missing)
        from coterie.spark.sinks.postgres_check import errors_at_server

        return errors_at_server(config)

    @classmethod
    def is_exactly_once(cls, config: EndConfig) -> bool:
        return True

    @classmethod
    def of(cls, config: EndConfig) -> Self:
        return cls(PostgresTarget.of(config), config)

    def shape(self, rows: DataFrame) -> DataFrame:
        return table_columns(rows, self._target, self._config)

    def take_over(self, lineage: TaskLineage, start: int) -> None:
        """End the server's sessions of earlier starts, including those of this object.

        :raises FencedError: when a later start has taken over.
        """
        if missing := missing_extra("postgres"):
            raise WorldError(missing)
        from coterie.spark.sinks.postgres_writer import PostgresWriter

        self.close()
        writer = PostgresWriter(self._target, lineage, start)
        self._writer = writer
        writer.take_over()

    @classmethod
    def retire(cls, config: EndConfig, lineages: Sequence[TaskLineage]) -> None:
        """Does nothing: rows of the ledger stay. They are few, and with them a late second commit writes nothing."""

    def stage(self, batch: Batch) -> Staged:
        if self._writer is None:
            raise FencedError
        return self._writer.stage(batch.batch_id, batch.rows.schema, lambda: _divided(batch))

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


def _divided(batch: Batch) -> Divided:
    if batch.sifter is not None:
        return batch.sifter.divide()
    return Divided(pieces(batch.rows, is_small=batch.is_small))
