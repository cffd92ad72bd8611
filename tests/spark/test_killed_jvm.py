"""The end of Spark's JVM during a re-split: the error names the JVM, and a new JVM finishes the re-split."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

KILL_DURING_RESPLIT = """
import asyncio, json, os, signal, sys
from pathlib import Path
from coterie.herder.seams import RuntimeDied, SplitOrOffsetChangeAbortedError
from coterie.nouns.connector_offsets import RESET_OFFSETS
from coterie.nouns.ids import Incarnation
from coterie.nouns.jobs import ConnectorName
from coterie.spark.runtime import SparkTaskRuntime
from coterie.spark.settings import SparkConfig
from coterie.spark.sinks.files import FileSink
from tests.spark.conftest import Rig, rows_of, write_file

NAME, INCARNATION = ConnectorName("orders"), Incarnation("i")
folder = Path(sys.argv[1])

async def open_runtime():
    runtime = SparkTaskRuntime(
        SparkConfig(
            checkpoint_location=folder / "checkpoints", scratch_folder=folder / "scratch", jvm_log_file=folder / "log"
        )
    )
    await runtime.open()
    return runtime

async def main():
    runtime = await open_runtime()
    rig = Rig(runtime)
    config = rig.config(folder)
    write_file(folder / "in", "a.csv", [(1, 1.0, 1)])
    start = await rig.start(config, NAME)
    await rig.wait_until(lambda: rows_of(folder / "out") == [1])
    checkpoint = runtime.held_checkpoint(start.task).path
    await runtime.stop(start.task, grace_ms=10_000)
    (checkpoint / "commits" / "0").unlink()  # As after a kill inside the batch, which the re-split then runs.
    stage = FileSink.stage

    def kill_jvm(*args):
        os.kill(runtime.jvm_pid, signal.SIGKILL)
        return stage(*args)

    FileSink.stage = kill_jvm

    async def error_text(operation):
        try:
            await operation
        except SplitOrOffsetChangeAbortedError as error:
            return str(error)

    async def split(tasks_max):
        return await runtime.split(NAME, INCARNATION, {**config, "tasks.max": tasks_max}, [start.config])

    errors = [await error_text(split("2"))]
    while not isinstance(event := await runtime.next_event(), RuntimeDied):
        pass
    change = runtime.change_offsets(NAME, INCARNATION, config, [start.config], RESET_OFFSETS)
    errors += [await error_text(split("2")), await error_text(change)]
    await runtime.close()
    FileSink.stage = stage
    runtime = await open_runtime()
    result = await split("2")
    await runtime.close()
    print(json.dumps([event.reason, errors, len(result.task_configs), rows_of(folder / "out")]))

asyncio.run(main())
"""


@pytest.mark.spark
@pytest.mark.timeout(240)
def test_a_re_split_that_the_end_of_the_jvm_has_ended_is_reported_as_such_and_finished_by_a_new_jvm(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-c", KILL_DURING_RESPLIT, str(tmp_path)]
    root = Path(__file__).parents[2]
    ended = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=230, check=False)
    assert ended.returncode == 0, ended.stderr
    reason, errors, task_count, rows = json.loads(ended.stdout)
    assert "was killed by signal 9" in reason
    split_text = (
        f"{reason}. The split of connector orders is tried again by a worker whose Spark runs: another one, or this "
        "one after its restart"
    )
    change_text = (
        f"{reason}. The change of the offsets of connector orders was not made; request it again from a worker whose "
        "Spark runs"
    )
    assert errors == [split_text, split_text, change_text]
    assert (task_count, rows) == (2, [1])
