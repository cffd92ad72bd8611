"""What a runtime leaves behind when it is closed, and how it ends when it never came to life."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from coterie.nouns.errors import WorldError
from coterie.spark.runtime import SparkTaskRuntime
from coterie.spark.settings import SparkConfig

LIFE = """
import asyncio, json, os, sys, threading
from pathlib import Path
from coterie.spark.runtime import SparkTaskRuntime
from coterie.spark.settings import SparkConfig

async def main():
    folder = Path(sys.argv[1])
    runtime = SparkTaskRuntime(
        SparkConfig(checkpoint_location=folder / "checkpoints", scratch=folder / "scratch", log_file=folder / "log")
    )
    await runtime.open()
    jvm = runtime.jvm_pid
    await runtime.close()
    await runtime.close()
    ours = [thread.name for thread in threading.enumerate() if thread.name.startswith("coterie")]
    print(json.dumps({"jvm lives": Path(f"/proc/{jvm}").exists(), "threads": ours, "cwd": os.listdir(".")}))

asyncio.run(main())
"""


@pytest.mark.spark
@pytest.mark.timeout(180)
def test_a_closed_runtime_leaves_no_process_no_thread_and_nothing_in_the_working_folder(tmp_path: Path) -> None:
    cwd = tmp_path / "cwd"
    cwd.mkdir()
    command = [sys.executable, "-c", LIFE, str(tmp_path)]
    life = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=170, check=True)
    assert json.loads(life.stdout) == {"jvm lives": False, "threads": [], "cwd": []}
    assert life.stderr == ""


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
        SparkConfig(checkpoint_location=folder / "checkpoints", scratch=folder / "scratch", log_file=folder / "log")
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
    await rig.wait_until(lambda: runtime.held(start.task) is None)
    await runtime.close()
    await stopping

asyncio.run(main())
"""


@pytest.mark.spark
@pytest.mark.timeout(180)
def test_a_runtime_that_is_closed_beneath_a_stop_says_so_in_one_line(tmp_path: Path) -> None:
    command = [sys.executable, "-c", STOPPING, str(tmp_path)]
    root = Path(__file__).parents[2]
    life = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=170, check=False)
    assert life.returncode == 0, life.stderr
    (line,) = life.stderr.splitlines()
    assert "c-0: stopping the query failed; its further commits are rejected" in line


async def test_without_java_opening_says_what_to_install_and_closing_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coterie.spark.java.packaged_java", lambda: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    config = SparkConfig(checkpoint_location=tmp_path / "c", scratch=tmp_path / "s", log_file=tmp_path / "log")
    runtime = SparkTaskRuntime(config)
    with pytest.raises(WorldError, match="pip install"):
        await runtime.open()
    await runtime.close()
