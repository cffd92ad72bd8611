"""The noop sink: all rows of a batch are read and transformed, and written nowhere. For measurements and dry runs."""

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
    """A sink that writes nothing. A batch is done when it is committed in the checkpoint."""

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
        """True: nothing is written, so nothing is written twice."""
        return True

    @classmethod
    def of(cls, config: EndConfig) -> Self:
        return cls()

    def shape(self, rows: DataFrame) -> DataFrame:
        return visible(rows)

    def take_over(self, lineage: TaskLineage, start: int) -> None:
        """Does nothing: earlier owners have written nothing."""

    @classmethod
    def retire(cls, config: EndConfig, lineages: Sequence[TaskLineage]) -> None:
        """Does nothing: there are no commit markers."""

    def stage(self, batch: Batch) -> "NothingStaged":
        """Compute every row."""
        batch.rows.write.format("noop").mode("overwrite").save()
        return NothingStaged()

    def close(self) -> None:
        """Does nothing: there is no connection."""


class NothingStaged:
    """A batch of which there is nothing to commit or to remove."""

    def put_in_place(self) -> None:
        pass

    def drop(self) -> None:
        pass
