"""The rate source on a real Spark session: each value once over all tasks, also over replays and hard stops."""

from pathlib import Path

import pytest

from coterie.spark.checkpoint import last_batch_id_in_log
from tests.spark.conftest import Rig, rows_of

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(180)]


async def test_each_value_is_written_once_over_all_tasks_also_after_a_replay(rig: Rig, tmp_path: Path) -> None:
    config = {
        "connector.class": "RateSource",
        "tasks.max": "2",
        "trigger.interval.ms": "0",
        "source.rows.per.second": "40",
        "sink.format": "json",
        "sink.path": str(tmp_path / "out"),
    }
    assert await rig.config_errors(config, ()) == {}

    def values(index: int) -> list[int]:
        return [value for value in rows_of(tmp_path / "out", "value") if value % 2 == index]

    for least in (40, 120):
        starts = [await rig.start(config, "rate", index) for index in range(2)]
        await rig.wait_until(lambda: all(len(values(index)) >= least for index in range(2)))  # noqa: B023
        held = [rig.spark_runtime.held_checkpoint(start.task) for start in starts]
        for start in starts:
            await rig.runtime.stop(start.task, grace_ms=0)
        for one in held:
            assert one is not None
            # The last batch was written and not committed, as after a kill at that point.
            (one.path / "commits" / str(last_batch_id_in_log(one.path / "commits"))).unlink()
    for index in range(2):
        found = values(index)
        assert found == list(range(index, found[-1] + 1, 2))
