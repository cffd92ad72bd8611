"""The noop sink: every batch is read and transformed whole, and written nowhere. For measurements and dry runs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from pyspark.sql import SparkSession

from coterie.config.definition import Definition
from coterie.spark.paths import SINK_OPTIONS, refused_options
from coterie.spark.seams import Batch, TaskLineage


@dataclass(frozen=True, slots=True, kw_only=True)
class NoopSink:
    """Nothing. A batch counts when it is committed to the checkpoint."""

    @classmethod
    def definition(cls) -> Definition:
        return Definition(())

    @classmethod
    def validate(cls, spark: SparkSession, config: Mapping[str, str]) -> dict[str, list[str]]:
        return refused_options(config, SINK_OPTIONS, "The noop sink")

    @classmethod
    def of(cls, config: Mapping[str, str]) -> Self:
        return cls()

    def take_over(self, lineage: TaskLineage) -> None:
        """No earlier owner has left anything."""

    def stage(self, batch: Batch) -> "NothingStaged":
        """Compute every row."""
        batch.rows.write.format("noop").mode("overwrite").save()
        return NothingStaged()


class NothingStaged:
    """There is nothing to put in place or to remove."""

    def put_in_place(self) -> None:
        pass

    def drop(self) -> None:
        pass
