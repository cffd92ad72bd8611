"""Workers that write to a Delta table are killed and stopped during a backlog; each row is in the table once."""

import contextlib
import json
import os
import signal
from pathlib import Path

import pytest
from deltalake import DeltaTable

from coterie.spark.checkpoint import LINEAGE_FILE, find_batch_id_in_flight
from tests.spark.conftest import SCHEMA, write_file
from tests.spark.holders import TaskProcess, directories, last_committed_batch, wait_for_commits, wait_until
from tests.spark.sinks.delta_rows import rows_of

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(900)]

FILES = 60
ROWS = 20
"""Rows of a file, and of a batch."""


def state_of(holder: TaskProcess, folder: Path) -> str:
    """The state of the task's batch, from the files."""
    (checkpoint,) = directories(holder, folder)
    if (batch_id := find_batch_id_in_flight(checkpoint)) is None:
        return "between batches"
    application = f"fight-0/{(checkpoint / LINEAGE_FILE).read_text()}"
    last = DeltaTable(str(folder / "table")).transaction_version(application)
    return "planned" if last is None or last < batch_id else "in the table"


def stop_in(holder: TaskProcess, folder: Path, state: str) -> None:
    """Stop the worker when the files show its task in this state."""

    def is_stopped() -> bool:
        # Python and the JVM are one process group.
        os.killpg(holder.process.pid, signal.SIGSTOP)
        if state_of(holder, folder) == state:
            return True
        os.killpg(holder.process.pid, signal.SIGCONT)
        return False

    wait_until(is_stopped, f"a batch is {state}")


def test_each_row_is_in_the_table_once_although_workers_are_killed_and_stopped(tmp_path: Path) -> None:
    for number in range(FILES):
        write_file(tmp_path / "in", f"{number:02}.csv", [(number * ROWS + i, 1.0, i) for i in range(ROWS)])
    config = {
        "connector.class": "FileSource",
        "tasks.max": "1",
        "trigger.interval.ms": "0",
        "source.format": "csv",
        "source.path": str(tmp_path / "in"),
        "source.schema": SCHEMA,
        "source.option.header": "true",
        "source.max.files.per.trigger": "1",
        "sink.class": "DeltaSink",
        "sink.path": str(tmp_path / "table"),
        "sink.auto.create": "true",
        "sink.optimize.interval.batches": "7",
    }
    start = f"start {tmp_path.name} {json.dumps(config)}"
    with contextlib.ExitStack() as stack:

        def started(number: int) -> TaskProcess:
            holder = TaskProcess(tmp_path, f"worker-{number}", stack)
            holder.jvm = int(holder.wait_for_line("ready").split()[1])
            holder.send_command(start)
            holder.wait_for_line("holds")
            return holder

        holder = started(0)
        for number, state in enumerate(("planned", "in the table", "planned", "in the table"), 1):
            wait_for_commits(holder, tmp_path, 5)
            stop_in(holder, tmp_path, state)
            if number <= 2:
                holder.kill()
                holder = started(number)
            else:
                old, holder = holder, started(number)
                wait_for_commits(holder, tmp_path, 3)
                os.killpg(old.process.pid, signal.SIGCONT)
                old.wait_for_line("taken")
            assert last_committed_batch(holder, tmp_path) < FILES - 1, "the backlog was read before the end"
        wait_until(lambda: len(rows_of(tmp_path / "table")) >= FILES * ROWS, "all rows are there")
        holder.ask("stop", "stopped")
    assert rows_of(tmp_path / "table") == list(range(FILES * ROWS))
