"""``RateSource``: Spark's rate source, which generates rows at a fixed rate, for tests and demonstrations.

Each task reads a separate rate stream and keeps the values ``v`` with ``v % count = index``: over all tasks of a
connector each value occurs once. Value and timestamp of a row are computed from the checkpoint, so a replayed batch has
the same rows.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StructField, StructType, TimestampType

from coterie.config.definition import Definition, Importance, Key, Type, Width, at_least
from coterie.spark.end_config import OPTIONS, EndConfig, refused_options
from coterie.spark.generations.split import SplitFunction
from coterie.spark.generations.stores import PositionStore
from coterie.spark.paths import SOURCE_GROUP
from coterie.spark.positions import (
    Positions,
    commit_empty_batches,
    committed_offset,
    planned_offset,
    write_source_log,
)
from coterie.spark.rotation import Rotation
from coterie.spark.seams import SMALL_BATCH_ROWS, Share

DEFINITION = Definition(
    (
        Key(
            name="rows.per.second",
            type=Type.LONG,
            documentation="Rows per second that the connector reads, over all its tasks.",
            default="1",
            importance=Importance.HIGH,
            check=at_least(1),
            group=SOURCE_GROUP,
            width=Width.SHORT,
            display_name="Rows per second",
        ),
    )
)
SCHEMA = StructType([StructField("timestamp", TimestampType()), StructField("value", LongType())])


class RatePositions:
    """The seconds for which a task has counted, by the name of its source partition."""

    def read(self, checkpoint: Path, parts: Sequence[str]) -> Positions:
        offset = committed_offset(checkpoint)
        return {} if offset is None else {parts[0]: int(offset)}

    def seed(self, checkpoint: Path, positions: Positions) -> None:
        """Continue to count now. The values of the time since the last run are not skipped: they come later."""
        for seconds in positions.values():
            write_source_log(checkpoint, [str(round(time.time() * 1000) - seconds * 1000)])
            commit_empty_batches(checkpoint, str(seconds), batches=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class RateSource:
    """Generates rows ``timestamp TIMESTAMP, value BIGINT``, with values from 0."""

    free_prefixes: ClassVar[tuple[str, ...]] = (OPTIONS,)
    identity: ClassVar[tuple[str, ...]] = ("rows.per.second",)
    access: ClassVar[tuple[str, ...]] = ()
    split_function: ClassVar[SplitFunction] = SplitFunction.PARTS_V1
    has_fixed_split: ClassVar[bool] = True
    sifts_bad_records: ClassVar[bool] = False
    store: ClassVar[PositionStore] = RatePositions()
    can_rotate: ClassVar[bool] = False

    rows_per_second: int
    share: Share

    @classmethod
    def definition(cls, config: EndConfig) -> Definition:
        return DEFINITION

    @classmethod
    def validate(cls, spark: SparkSession, config: EndConfig) -> dict[str, list[str]]:
        return refused_options(config, "RateSource")

    @classmethod
    def open_keys(cls, config: EndConfig) -> Sequence[str]:
        """No keys: the columns are fixed."""
        return ()

    @classmethod
    def infer(cls, spark: SparkSession, config: EndConfig) -> Mapping[str, str]:
        """Nothing: there are no keys to infer."""
        return {}

    @classmethod
    def parts(cls, config: EndConfig) -> Sequence[str]:
        """One partition: the stream of values."""
        return ["rate"]

    @classmethod
    def split(cls, parts: Sequence[str], tasks_max: int) -> Sequence[Sequence[str]]:
        """One partition for each task: each task counts separately, and a task of another split cannot use its
        position."""
        return [[f"task {task} of {tasks_max}"] for task in range(tasks_max)]

    @classmethod
    def starts(cls, config: EndConfig, parts: Sequence[str], *, is_first: bool) -> Positions:
        """No positions: Spark starts to count at the first start of a task."""
        return {}

    @classmethod
    def of(cls, config: EndConfig, share: Share) -> Self:
        return cls(rows_per_second=config.read(DEFINITION, "rows.per.second", int), share=share)

    def schema(self, spark: SparkSession) -> StructType:
        return SCHEMA

    def read(self, spark: SparkSession, checkpoint: Path, rotation: Rotation | None) -> DataFrame:
        # One Spark partition: a batch of a file sink is one file.
        options = {"rowsPerSecond": str(self.rows_per_second), "numPartitions": "1"}
        rows = spark.readStream.format("rate").options(**options).load()
        return rows.where(f"value % {self.share.count} = {self.share.index}")

    def is_small(self, spark: SparkSession, checkpoint: Path, batch_id: int) -> bool:
        """Computed from the seconds for which the batch counts."""
        before = planned_offset(checkpoint, batch_id - 1) if batch_id > 0 else None
        seconds = int(planned_offset(checkpoint, batch_id) or 0) - int(before or 0)
        return seconds * self.rows_per_second <= SMALL_BATCH_ROWS

    def check_plan(self, checkpoint: Path, batch_id: int) -> None:
        """Does nothing: any batch can be read."""

    def check_read(self, spark: SparkSession, checkpoint: Path, batch_id: int) -> None:
        """Does nothing: a batch is always read as it was planned."""
