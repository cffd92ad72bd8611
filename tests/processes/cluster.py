"""A cluster of real processes: one broker, some workers, each with its own JVM, and continuous input."""

import csv
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest

from benchmarks.http_client import http
from benchmarks.task_log import TaskTimeline, now_ms, parse_entries
from coterie.cli.parent import PIPE_DESCRIPTOR_VARIABLE
from coterie.nouns.membership import GroupProtocolName
from tests.broker.apis.connect_groups.worker import describe
from tests.broker.conftest import raw_client
from tests.ports import free_port
from tests.sink_files import counted

GROUP_ID = "cluster"
SESSION_MS = 10_000
TASKS = 4
ROWS_A_FILE = 400
INTERVAL_S = 1
"""Time between two files of a feed, and between two batches of a task."""
_TASK_LOG_SUFFIX = ".tasks"

CONNECT_IN_SOAK = pytest.mark.parametrize(
    "group_protocol", [GroupProtocolName.CLASSIC, pytest.param(GroupProtocolName.CONNECT, marks=pytest.mark.soak)]
)
"""These tests run with a classic group in `make test`, and with a connect group in `make soak`."""
CLASSIC_IN_SOAK = pytest.mark.parametrize(
    "group_protocol", [GroupProtocolName.CONNECT, pytest.param(GroupProtocolName.CLASSIC, marks=pytest.mark.soak)]
)
"""These tests run with a connect group in `make test`, and with a classic group in `make soak`."""

ValueT = TypeVar("ValueT")


def until(look: Callable[[], ValueT | None], *, within_s: float, what: str) -> ValueT:
    """Call ``look`` until it returns a value. The pauses are as long as a call, which may read many files, and at least
    a twentieth of the time so far, up to 0.5 s.

    :raises AssertionError: if there is no value within ``within_s``.
    """
    first_s = time.monotonic()
    deadline = first_s + within_s
    while True:
        began = time.monotonic()
        seen = look()
        if seen is not None and seen is not False:
            return seen
        now = time.monotonic()
        assert now < deadline, f"not within {within_s:.0f} s: {what}"
        time.sleep(max(0.05, min(0.5, (now - first_s) / 20), now - began))


@dataclass
class Process:
    """One process of ours with its process group, and its log."""

    name: str
    popen: subprocess.Popen[bytes]
    log: Path

    def kill_group(self, sign: signal.Signals = signal.SIGKILL) -> None:
        os.killpg(self.popen.pid, sign)

    def wait(self, *, within_s: float) -> int:
        return self.popen.wait(within_s)

    def group(self) -> list[int]:
        """The running processes of its group, without zombies."""
        members = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    stat = (entry / "stat").read_text().rpartition(")")[2].split()
                except OSError:
                    continue
                if stat[2] == str(self.popen.pid) and stat[0] != "Z":
                    members.append(int(entry.name))
        return members

    def wait_gone(self) -> None:
        """Wait until no process of its group is left."""
        until(lambda: not self.group(), within_s=10, what=f"{self.name} and all its children have ended")

    def jvm(self) -> int:
        """The process id of this worker's JVM; waits until it has started."""
        return until(self._jvm, within_s=60, what=f"{self.name} has a JVM")

    def _jvm(self) -> int | None:
        for pid in self.group():
            with suppress(FileNotFoundError, ProcessLookupError):  # it has ended since
                if Path(f"/proc/{pid}/comm").read_text().strip() == "java":
                    return pid
        return None

    def tail(self) -> str:
        return f"--- {self.name}\n" + "\n".join(self.log.read_text(errors="replace").splitlines()[-25:])


@dataclass
class WorkerProcess(Process):
    url: str

    def view(self) -> dict[str, Any] | None:
        """``/coterie/worker``, or None if the worker does not respond."""
        try:
            answer = http.get(f"{self.url}/coterie/worker", timeout=2)
        except httpx.HTTPError:
            return None
        return answer.json() if answer.status_code == 200 else None

    def running(self) -> set[str]:
        """The tasks that run here now, as the worker reports them."""
        view = self.view()
        return {f"{t['connector']}-{t['task']}" for t in view["tasks"] if t["phase"] == "running"} if view else set()

    def is_leader(self) -> bool:
        view = self.view()
        return view is not None and bool(view["group"]["is_leader"])


class Feed(threading.Thread):
    """Writes files of numbered rows elsewhere and renames them into the folder, at fixed intervals, until `stop`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(name="feed", daemon=True)
        self.folder = folder
        self.rows = 0
        self._done = threading.Event()
        folder.mkdir(parents=True)

    def run(self) -> None:
        number = 0
        while not self._done.wait(INTERVAL_S):
            aside = self.folder.parent / f"{self.folder.name}.aside"
            with aside.open("w", newline="") as file:
                out = csv.writer(file)
                out.writerow(["row", "half"])
                out.writerows([row, row / 2] for row in range(self.rows, self.rows + ROWS_A_FILE))
            aside.rename(self.folder / f"part-{number:06}.csv")
            self.rows += ROWS_A_FILE
            number += 1

    def stop(self) -> int:
        self._done.set()
        self.join()
        return self.rows


@dataclass
class Cluster:
    """The processes of a test; all of them end with the test, even if it is killed."""

    folder: Path
    broker_port: int = field(default_factory=free_port)
    processes: list[Process] = field(default_factory=list)
    broker: Process | None = None
    group_protocol: GroupProtocolName = GroupProtocolName.CLASSIC
    """The group protocol of all workers."""
    session_ms: int = SESSION_MS
    """The session timeout: a classic group has it from its workers, a connect group from the broker."""
    delay_ms: int = 2_000
    killed_ms: dict[str, int] = field(default_factory=dict)
    """When light workers were killed, by name (:meth:`kill_light_worker`)."""
    _pipe: tuple[int, int] = field(default_factory=os.pipe)
    """The started processes read this pipe, and end when its other end is closed."""

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def out(self) -> Path:
        return self.folder / "out"

    def start_broker(self, *options: str) -> Process:
        """Start the broker with these further options of its command; returns when it listens."""
        listen, data = f"127.0.0.1:{self.broker_port}", str(self.folder / "broker")
        session = f"group.connect.session.timeout.ms={self.session_ms}"
        self.broker = self._spawn(
            "broker", "-m", "coterie", "broker", "--listen", listen, "--data", data, "--config", session, *options
        )
        until(lambda: self._listens(self.broker_port), within_s=30, what="the broker listens")
        return self.broker

    def end_broker(self) -> Any:
        """End the broker with SIGTERM; returns the statistics of its group coordinator."""
        assert self.broker is not None
        self.broker.popen.send_signal(signal.SIGTERM)
        assert self.broker.wait(within_s=20) == 0
        return json.loads((self.folder / "broker" / "stats.json").read_text())

    def describe_connect_group(self) -> Any:
        """The connect group of the workers, as its coordinator describes it."""
        with raw_client(self.broker_port) as client:
            return describe(client, GROUP_ID)

    def start_worker(
        self,
        name: str,
        *,
        bootstrap_port: int | None = None,
        properties: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> WorkerProcess:
        """Start a worker with ``properties`` over those of all workers, and with ``environment`` added to the variables
        of this process; returns at once. See :meth:`wait_ready`."""
        return self._spawn_worker(name, ("-m", "coterie", "worker", "-c"), (), bootstrap_port, properties, environment)

    def start_light_worker(
        self,
        name: str,
        *,
        properties: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> WorkerProcess:
        """Start a worker without Spark, whose tasks only log their starts and stops (:meth:`timeline`), with
        ``environment`` added to the variables of this process; returns at once."""
        self._task_log(name).touch()
        program, log = ("-m", "benchmarks.light_worker"), (str(self._task_log(name)),)
        return self._spawn_worker(name, program, log, None, properties, environment)

    def kill_light_worker(self, worker: WorkerProcess) -> None:
        """Kill the worker with SIGKILL, and note the time for :meth:`timeline`."""
        worker.kill_group()
        self.killed_ms[worker.name] = now_ms()

    def _spawn_worker(
        self,
        name: str,
        program: Sequence[str],
        further_arguments: Sequence[str],
        bootstrap_port: int | None,
        properties: Mapping[str, str] | None,
        environment: Mapping[str, str] | None = None,
    ) -> WorkerProcess:
        port = free_port()
        settings = {
            "bootstrap.servers": f"127.0.0.1:{bootstrap_port or self.broker_port}",
            "group.id": GROUP_ID,
            "group.protocol": self.group_protocol.value,
            "config.storage.topic": "configs",
            "offset.storage.topic": "offsets",
            "status.storage.topic": "statuses",
            "config.storage.replication.factor": "1",
            "offset.storage.replication.factor": "1",
            "status.storage.replication.factor": "1",
            "listeners": f"http://127.0.0.1:{port}",
            "session.timeout.ms": str(self.session_ms),
            "heartbeat.interval.ms": "500",
            "rebalance.timeout.ms": "20000",
            "scheduled.rebalance.max.delay.ms": str(self.delay_ms),
            "task.shutdown.graceful.timeout.ms": "2000",
            "checkpoint.location": str(self.checkpoints),
            "worker.name": name,
            **(properties or {}),
        }
        file = self.folder / f"{name}.properties"
        file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        process = self._spawn(name, *program, str(file), *further_arguments, environment=environment)
        worker = WorkerProcess(name=name, popen=process.popen, log=process.log, url=f"http://127.0.0.1:{port}")
        self.processes[-1] = worker
        return worker

    def wait_ready(self, *workers: WorkerProcess) -> None:
        """Wait until all have settled in one generation or group epoch. Spark has needed up to 102 s to start."""

        def settled() -> bool:
            for worker in workers:
                assert worker.popen.poll() is None, worker.tail()
            views = [worker.view() for worker in workers]
            groups = [view["group"] for view in views if view is not None]
            one = len({group["generation"] for group in groups}) == 1
            return one and len(groups) == len(workers) and all(group["settled"] for group in groups)

        until(
            settled,
            within_s=240,
            what=f"{', '.join(worker.name for worker in workers)} settle in one generation or group epoch",
        )

    def create(self, worker: WorkerProcess, name: str, source: Path, sink_format: str, *, tasks: int = TASKS) -> None:
        config = {
            "connector.class": "FileSource",
            "tasks.max": str(tasks),
            "trigger.interval.ms": str(INTERVAL_S * 1_000),
            "source.format": "csv",
            "source.path": str(source),
            "source.schema": "row BIGINT, half DOUBLE",
            "source.option.header": "true",
            "sink.format": sink_format,
            "sink.path": str(self.out / name),
        }
        answer = http.post(f"{worker.url}/connectors", json={"name": name, "config": config}, timeout=60)
        assert answer.status_code == 201, answer.text

    def wait_running(
        self, workers: list[WorkerProcess], connector: str, *, tasks: int = TASKS, within_s: float = 60
    ) -> None:
        """Wait until ``workers`` and no others run every task of ``connector``, each once."""
        expected = {f"{connector}-{task}" for task in range(tasks)}

        def all_run() -> bool:
            running = [task for worker in workers for task in worker.running() if task in expected]
            return sorted(running) == sorted(expected)

        until(all_run, within_s=within_s, what=f"{connector} runs on {[worker.name for worker in workers]}")

    def starts(self, connector: str) -> dict[int, int]:
        """How often each task of ``connector`` was started, from the number in its checkpoint's name."""
        counts: dict[int, int] = {}
        for folder in self.checkpoints.glob(f"{connector}-*/gen-*/[0-9]*"):
            counts[int(folder.name)] = max(
                (int(held.name.partition("-")[0]) for held in folder.iterdir() if held.is_dir()), default=0
            )
        return counts

    def committed(self, connector: str) -> int:
        """The number of rows that a reader of the folder sees."""
        return sum(self.rows(connector).values())

    def rows(self, connector: str) -> Counter[int]:
        """How often each row occurs in the files that a reader sees, counted without Spark."""
        return counted(self.out / connector, "row")

    def assert_exact(self, connector: str, rows: int, *, within_s: float = 180) -> None:
        """Wait until all ``rows`` have arrived; then check that none is lost or doubled."""
        until(
            lambda: len(self.rows(connector)) >= rows,
            within_s=within_s,
            what=f"all {rows} rows of {connector} arrive",
        )
        seen = self.rows(connector)
        assert sorted(set(range(rows)) - seen.keys()) == []
        assert [row for row, count in seen.items() if count > 1] == []
        assert len(seen) == rows

    def cli(self, *arguments: str) -> str:
        """The output of `coterie` for these arguments; the command must succeed."""
        command = [sys.executable, "-m", "coterie", *arguments]
        ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=550)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    def timeline(self) -> TaskTimeline:
        """The starts and stops of the tasks of all light workers so far."""
        logs = sorted(self.folder.glob(f"*{_TASK_LOG_SUFFIX}"))
        return TaskTimeline(
            entries=[entry for log in logs for entry in parse_entries(log.read_text(), log.stem)],
            killed_ms=self.killed_ms,
        )

    def _task_log(self, name: str) -> Path:
        return self.folder / f"{name}{_TASK_LOG_SUFFIX}"

    def _spawn(self, name: str, *arguments: str, environment: Mapping[str, str] | None = None) -> Process:
        """Start a process of Python with ``arguments``, and with ``environment`` added to this process's variables."""
        log = self.folder / f"{name}.log"
        with log.open("ab") as out:
            popen = subprocess.Popen(
                [sys.executable, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=self.folder,
                env={**os.environ, **(environment or {}), PIPE_DESCRIPTOR_VARIABLE: str(self._pipe[0])},
                pass_fds=(self._pipe[0],),
            )
        process = Process(name=name, popen=popen, log=log)
        self.processes.append(process)
        return process

    @staticmethod
    def _listens(port: int) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    def end(self) -> None:
        for process in self.processes:
            if process.group():
                process.kill_group()
            process.wait(within_s=10)
            process.wait_gone()
        for descriptor in self._pipe:
            os.close(descriptor)
