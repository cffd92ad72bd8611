"""The noop sink: every batch is read and transformed whole, and written nowhere. For measurements and dry runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from pyspark.sql import DataFrame, SparkSession

from coterie.config.definition import Definition
from coterie.spark.bad_records.keys import DeadLetters
from coterie.spark.end_config import OPTIONS, EndConfig, refused_options
from coterie.spark.record import visible
from coterie.spark.rotation import Rotation
from coterie.spark.seams import Batch, TaskLineage


@dataclass(frozen=True, slots=True, kw_only=True)
class NoopSink:
    """Nothing. A batch counts when it is committed to the checkpoint."""

    identity: ClassVar[tuple[str, ...]] = ()
    access: ClassVar[tuple[str, ...]] = ()
    rotation: ClassVar[Rotation | None] = None
    free_prefixes: ClassVar[tuple[str, ...]] = (OPTIONS,)
    holds: ClassVar[tuple[type[DeadLetters], ...]] = ()

    @classmethod
    def definition(cls, config: EndConfig) -> Definition:
        return Definition(())

    @classmethod
    def validate(cls, spark: SparkSession, config: EndConfig) -> dict[str, list[str]]:
        return refused_options(config, "The noop sink")

    @classmethod
    def is_exactly_once(cls, config: EndConfig) -> bool:
        """No reader sees a row twice."""
        return True

    @classmethod
    def of(cls, config: EndConfig) -> Self:
        return cls()

    def shape(self, rows: DataFrame) -> DataFrame:
        return visible(rows)

    def take_over(self, lineage: TaskLineage, start: int) -> None:
        """No earlier owner has left anything."""

    @classmethod
    def retire(cls, config: EndConfig, lineages: Sequence[TaskLineage]) -> None:
        """There is nothing to guard."""

    def stage(self, batch: Batch) -> "NothingStaged":
        """Compute every row."""
        batch.rows.write.format("noop").mode("overwrite").save()
        return NothingStaged()

    def close(self) -> None:
        """There is no connection."""


class NothingStaged:
    """There is nothing to put in place or to remove."""

    def put_in_place(self) -> None:
        pass

    def drop(self) -> None:
        pass
