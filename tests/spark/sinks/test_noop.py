"""The noop sink on a real Spark session: rows are read and checked, and nothing is written."""

import asyncio
import os
from pathlib import Path

import pytest

from coterie.herder.seams import TaskDied, TaskProgressed
from tests.spark.conftest import Rig, write_file

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(180)]


async def test_rows_are_read_and_nothing_is_written(rig: Rig, tmp_path: Path) -> None:
    config = rig.config(tmp_path, sink__format="noop")
    del config["sink.path"]
    assert await rig.config_errors(config, ()) == {}
    write_file(tmp_path / "in", "a.csv", [(row, 1.0, row) for row in range(25)])
    start = await rig.start(config, "noop")
    async with asyncio.timeout(60):
        while (event := await rig.runtime.next_event()) != TaskProgressed(task=start.task, batch_id=0, input_rows=25):
            assert not isinstance(event, TaskDied), event
    await rig.runtime.stop(start.task, grace_ms=10_000)
    assert os.listdir(tmp_path) == ["in"]


async def test_a_row_that_cannot_be_read_fails_the_task(rig: Rig, tmp_path: Path) -> None:
    """This shows that every row is computed, not only counted."""
    config = rig.config(tmp_path, sink__format="noop")
    del config["sink.path"]
    (tmp_path / "in" / "bad.csv").write_text("row,delay,distance\n1,not a number,1\n")
    start = await rig.start(config, "noop-bad")
    event = await rig.end_of(start.task)
    assert event.holds_checkpoint
    assert "bad.csv" in event.trace
