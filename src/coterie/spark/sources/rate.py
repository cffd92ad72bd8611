"""``RateSource``: Spark's rate source, which generates rows at a fixed rate, for tests and demonstrations.

Each task has a separate rate stream, with all values, and keeps the values ``v`` with
``v % task_count = task_number``: over all tasks of a connector each value occurs once. Value and timestamp of a row are
computed from the checkpoint, so a replayed batch has the same rows.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StructField, StructType, TimestampType

from coterie.config.definition import ConfigDef, ConfigKey, Importance, Type, Width, at_least
from coterie.nouns.connector_offsets import ConnectorOffset, OffsetsRefusedError
from coterie.spark.generations.split import SplitFunction
from coterie.spark.generations.stores import PositionStore
from coterie.spark.paths import SOURCE_GROUP
from coterie.spark.positions import (
    Positions,
    commit_empty_batches,
    last_committed_source_offset,
    planned_source_offset,
    write_first_source_log_entry,
)
from coterie.spark.prefixed_config import OPTION_PREFIX, PrefixedConfig, errors_if_any_option_is_set
from coterie.spark.rotation import Rotation
from coterie.spark.seams import SMALL_BATCH_ROWS_MAX, TaskInput
from coterie.spark.sources.offset_values import (
    is_json_integer,
    parse_whole_number_offset,
    require_exact_partition_fields,
)

DEFINITION = ConfigDef(
    (
        ConfigKey(
            name="rows.per.second",
            type=Type.LONG,
            documentation="Rows per second that the connector reads, over all its tasks.",
            default="1",
            importance=Importance.HIGH,
            validator=at_least(1),
            group=SOURCE_GROUP,
            width=Width.SHORT,
            display_name="Rows per second",
        ),
    )
)
RATE_SCHEMA = StructType([StructField("timestamp", TimestampType()), StructField("value", LongType())])
"""The columns of Spark's rate source."""


class RatePositionStore:
    """Reads the position of a rate source from a checkpoint, and writes it into a new one. A position is the number of
    seconds whose values the task has read, by the name of its source partition."""

    def read(self, checkpoint: Path, source_partitions: Sequence[str]) -> Positions:
        offset = last_committed_source_offset(checkpoint)
        return {} if offset is None else {source_partitions[0]: int(offset)}

    def write_to_new_checkpoint(self, checkpoint: Path, positions: Positions) -> None:
        """Write ``positions`` so that the stream continues from now with the value that follows the last one read. No
        value is skipped for the time since the task last ran: in that time no values are generated."""
        for seconds in positions.values():
            write_first_source_log_entry(checkpoint, [str(round(time.time() * 1000) - seconds * 1000)])
            commit_empty_batches(checkpoint, str(seconds), batch_count=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class RateSource:
    """Generates rows ``timestamp TIMESTAMP, value BIGINT``, with values from 0: over all tasks ``rows_per_second`` rows
    in each second."""

    free_key_prefixes: ClassVar[tuple[str, ...]] = (OPTION_PREFIX,)
    identity_keys: ClassVar[tuple[str, ...]] = ("rows.per.second",)
    connection_keys: ClassVar[tuple[str, ...]] = ()
    split_function: ClassVar[SplitFunction] = SplitFunction.PARTS_V1
    has_fixed_split: ClassVar[bool] = True
    reports_bad_records: ClassVar[bool] = False
    position_store: ClassVar[PositionStore] = RatePositionStore()
    can_wait_for_rows: ClassVar[bool] = False

    rows_per_second: int
    """The rows per second of the connector, over all its tasks."""
    task_input: TaskInput

    @classmethod
    def definition(cls, config: PrefixedConfig) -> ConfigDef:
        return DEFINITION

    @classmethod
    def validate(cls, spark: SparkSession, config: PrefixedConfig) -> dict[str, list[str]]:
        return errors_if_any_option_is_set(config, "RateSource")

    @classmethod
    def keys_to_infer(cls, config: PrefixedConfig) -> Sequence[str]:
        """No keys: the columns are fixed."""
        return ()

    @classmethod
    def infer_values(cls, spark: SparkSession, config: PrefixedConfig) -> Mapping[str, str]:
        """Always an empty mapping: nothing is inferred, because the columns are fixed and :meth:`keys_to_infer` has no
        key."""
        return {}

    @classmethod
    def list_source_partitions(cls, config: PrefixedConfig) -> Sequence[str]:
        """One source partition: the stream of all values. :meth:`divide_partitions` makes one for each task of it."""
        return ["rate"]

    @classmethod
    def divide_partitions(cls, source_partitions: Sequence[str], tasks_max: int) -> Sequence[Sequence[str]]:
        """``tasks_max`` tasks, each with one source partition, whose name contains the task's number and ``tasks_max``:
        a task of another split has another source partition, and does not continue at its position."""
        return [[f"task {task} of {tasks_max}"] for task in range(tasks_max)]

    @classmethod
    def initial_positions(
        cls, config: PrefixedConfig, source_partitions: Sequence[str], *, is_new_connector: bool
    ) -> Positions:
        """No positions: the values begin with 0 at the first start of a task."""
        return {}

    @classmethod
    def to_offsets(cls, positions: Positions) -> Sequence[ConnectorOffset]:
        """For each task an offset with the number of seconds whose values the task has read."""
        offsets: list[ConnectorOffset] = []
        for partition, seconds in sorted(positions.items()):
            _, task, _, task_count = partition.split()  # As divide_partitions names it.
            offsets.append(
                ConnectorOffset(
                    partition={"task": int(task), "task_count": int(task_count)}, offset={"seconds": seconds}
                )
            )
        return offsets

    @classmethod
    def parse_offsets(cls, config: PrefixedConfig, offsets: Sequence[ConnectorOffset]) -> Mapping[str, int | None]:
        task_count = int(config.config.get("tasks.max", "1"))
        seconds_max = 2**62 // max(config.required_value(DEFINITION, "rows.per.second", int), 1000)
        changes: dict[str, int | None] = {}
        for offset in offsets:
            partition = require_exact_partition_fields(offset, "task", "task_count")
            # True and 1.0 equal 1, but their texts are not those of a task number.
            if (
                not all(map(is_json_integer, partition.values()))
                or partition["task"] not in range(task_count)
                or partition["task_count"] != task_count
            ):
                raise OffsetsRefusedError(
                    f"The connector has {task_count} task(s): a partition is "
                    f'{{"task": 0 to {task_count - 1}, "task_count": {task_count}}}'
                )
            changes[f"task {partition['task']} of {task_count}"] = parse_whole_number_offset(
                offset, "seconds", maximum=seconds_max
            )
        return changes

    @classmethod
    def of(cls, config: PrefixedConfig, task_input: TaskInput) -> Self:
        return cls(rows_per_second=config.required_value(DEFINITION, "rows.per.second", int), task_input=task_input)

    def schema(self, spark: SparkSession) -> StructType:
        return RATE_SCHEMA

    def read(self, spark: SparkSession, checkpoint: Path, rotation: Rotation | None) -> DataFrame:
        # One Spark partition: a batch of a file sink is one file.
        options = {"rowsPerSecond": str(self.rows_per_second), "numPartitions": "1"}
        rows = spark.readStream.format("rate").options(**options).load()
        return rows.where(f"value % {self.task_input.task_count} = {self.task_input.task_number}")

    def is_batch_small(self, spark: SparkSession, checkpoint: Path, batch_id: int) -> bool:
        """Whether the batch fits into the driver's memory (:meth:`Source.is_batch_small`). Computed from the number of
        seconds that the batch covers; the rows of the other tasks count, too, because Spark generates them before they
        are filtered."""
        previous_offset = planned_source_offset(checkpoint, batch_id - 1) if batch_id > 0 else None
        seconds = int(planned_source_offset(checkpoint, batch_id) or 0) - int(previous_offset or 0)
        return seconds * self.rows_per_second <= SMALL_BATCH_ROWS_MAX

    def has_bounded_spark_partitions(self, spark: SparkSession, checkpoint: Path, batch_id: int) -> bool:
        """Always False: one Spark partition has the rows of all seconds since the last batch, however long ago that
        was."""
        return False

    def check_before_read(self, checkpoint: Path, batch_id: int) -> None:
        """Does nothing: every batch can be read."""

    def check_after_read(self, spark: SparkSession, checkpoint: Path, batch_id: int) -> None:
        """Does nothing: a batch is always read as it was planned."""
