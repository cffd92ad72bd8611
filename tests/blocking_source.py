"""A source for tests that blocks without end in the stage that its config names, and its package."""

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from pyspark.sql import DataFrame, SparkSession

from coterie.spark.positions import Positions
from coterie.spark.prefixed_config import PrefixedConfig
from coterie.spark.rotation import Rotation
from coterie.spark.seams import TaskInput
from coterie.spark.sources.rate import RateSource

STAGES = ("validate", "split", "start", "read", "stop")
"""The stages in which the source can block: the value of ``source.option.blocks.in``. With ``read`` its first batch
blocks. With ``stop`` its third batch blocks, so that the task runs until it is stopped."""
THIRD_BATCH = 2

CALL_THREAD_PREFIX = "coterie "
"""The first characters of the names of the threads that call plug-ins."""
CALLS_END_TIMEOUT_S = 60

go_on = threading.Event()
"""Set at the end of a test: all calls that block return."""


def end_all_calls() -> None:
    """Let all calls that block return, and wait until no call into a plug-in runs in this process. Otherwise a call of
    this test would look up the installed plug-ins during the next test."""
    go_on.set()
    calls = [thread for thread in threading.enumerate() if thread.name.startswith(CALL_THREAD_PREFIX)]
    for thread in calls:
        thread.join(CALLS_END_TIMEOUT_S)
    assert not [thread.name for thread in calls if thread.is_alive()]


def block_if(stage: str, config_stage: str | None) -> None:
    """Block until the end of the test if ``stage`` is the one in which the source must block."""
    if stage == config_stage:
        go_on.wait()


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockingSource(RateSource):
    """Generates rows, and blocks."""

    blocks_in: str | None

    @classmethod
    def _stage(cls, config: PrefixedConfig) -> str | None:
        return config.values_under_prefix("option.").get("blocks.in")

    @classmethod
    def validate(cls, spark: SparkSession, config: PrefixedConfig) -> dict[str, list[str]]:
        block_if("validate", cls._stage(config))
        return {}

    @classmethod
    def initial_positions(
        cls, config: PrefixedConfig, source_partitions: Sequence[str], *, is_new_connector: bool
    ) -> Positions:
        block_if("split", cls._stage(config))
        return {}

    @classmethod
    def of(cls, config: PrefixedConfig, task_input: TaskInput) -> Self:
        rows_per_second = int(config.config.get("source.rows.per.second", "1"))
        return cls(rows_per_second=rows_per_second, task_input=task_input, blocks_in=cls._stage(config))

    def read(self, spark: SparkSession, checkpoint: Path, rotation: Rotation | None) -> DataFrame:
        block_if("start", self.blocks_in)
        return RateSource.read(self, spark, checkpoint, rotation)

    def check_before_read(self, checkpoint: Path, batch_id: int) -> None:
        block_if("read", self.blocks_in)
        if batch_id >= THIRD_BATCH:
            block_if("stop", self.blocks_in)


def blocking_config(stage: str) -> dict[str, str]:
    """The config of a connector that blocks in ``stage``."""
    return {
        "connector.class": BlockingSource.__name__,
        "source.option.blocks.in": stage,
        "trigger.interval.ms": "500",
        "sink.format": "noop",
    }


def install(folder: Path) -> dict[str, str]:
    """Install the source in ``folder`` as a package; returns the environment variables of a process that has it."""
    metadata = folder / "blocking_source-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: blocking-source\nVersion: 1.0\n")
    entry_point = f"blocking = {__name__}:{BlockingSource.__name__}"
    (metadata / "entry_points.txt").write_text(f"[coterie.connectors]\n{entry_point}\n")
    repository = Path(__file__).parents[1]
    before = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join([str(folder), str(repository), *([before] if before else [])])}
