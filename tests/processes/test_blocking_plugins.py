"""Plug-ins that block without end, in a group of real workers: no other connector misses its batches, and no heartbeat
is late, while workers join, drain and restart."""

import signal
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import httpx
import pytest

from benchmarks.http_client import http
from coterie.nouns.membership import GroupProtocolName
from tests import blocking_source
from tests.blocking_source import STAGES, blocking_config
from tests.processes.cluster import GROUP_ID, SESSION_MS, Cluster, WorkerProcess, until

pytestmark = [pytest.mark.processes, pytest.mark.spark]


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How many connectors run, and what happens to the workers meanwhile."""

    blocking: int
    good: int
    interval_s: int
    """Time between two batches of a good connector."""
    lateness_max_s: float
    drains_and_restarts: bool
    """Whether, after one more worker has joined, one worker drains, one restarts with its jobs, and one moves its jobs
    before it restarts."""


# The first batches on a worker that has just started take 2 s on a machine on which other tests run too.
SMALL = Size(blocking=8, good=4, interval_s=2, lateness_max_s=5, drains_and_restarts=False)
FULL = Size(blocking=40, good=20, interval_s=5, lateness_max_s=2, drains_and_restarts=True)


class Fleet:
    """The workers of ``cluster``, and their connectors."""

    def __init__(self, cluster: Cluster, size: Size, environment: Mapping[str, str]) -> None:
        self.cluster, self.size, self._environment = cluster, size, environment
        self._properties = {"plugin.call.timeout.ms": "15000"}
        self.blocking = {f"bad-{number}": STAGES[number % len(STAGES)] for number in range(size.blocking)}
        self.good = [f"good-{number}" for number in range(size.good)]
        self.workers: list[WorkerProcess] = []

    def start(self, *names: str) -> None:
        """Start workers, and wait until the group has settled with them."""
        started = [
            self.cluster.start_worker(name, properties=self._properties, environment=self._environment)
            for name in names
        ]
        self.workers += started
        self.cluster.wait_ready(*self.workers)

    def create_all(self) -> None:
        """Create all connectors, the blocking ones first. Those that block in validate are refused."""
        refusals: list[httpx.Response] = []
        refused = [name for name, stage in self.blocking.items() if stage == "validate"]
        threads = [
            threading.Thread(target=lambda name=name: refusals.append(self._create(name, blocking_config("validate"))))
            for name in refused
        ]
        for thread in threads:
            thread.start()
        for name, stage in self.blocking.items():
            if stage != "validate":
                assert self._create(name, blocking_config(stage)).status_code == 201
        config = {
            "connector.class": "RateSource",
            "trigger.interval.ms": str(self.size.interval_s * 1000),
            "sink.format": "noop",
        }
        for name in self.good:
            assert self._create(name, config).status_code == 201
        self.wait_good_run()
        for thread in threads:
            thread.join()
        assert len(refusals) == len(refused)
        assert all("has not returned from validate" in refusal.text for refusal in refusals)
        for name in refused:
            del self.blocking[name]

    def _create(self, name: str, config: Mapping[str, str]) -> httpx.Response:
        body = {"name": name, "config": {"tasks.max": "1", **config}}
        return http.post(f"{self.workers[0].url}/connectors", json=body, timeout=120)

    def wait_good_run(self) -> None:
        tasks = {f"{name}-0" for name in self.good}
        until(
            lambda: tasks == {task for worker in self.workers for task in worker.running() if task in tasks},
            within_s=180,
            what="all good connectors run",
        )

    def wait_three_batches(self) -> None:
        """Wait until each good connector has committed three more batches."""
        before = {name: len(self.commit_times_s(name)) for name in self.good}
        until(
            lambda: all(len(self.commit_times_s(name)) >= before[name] + 3 for name in self.good),
            within_s=180,
            what="each good connector commits three batches",
        )

    def commit_times_s(self, connector: str) -> list[float]:
        """When the batches of ``connector`` were committed, in seconds since 1970."""
        commits = self.cluster.checkpoints.glob(f"{connector}-*/gen-*/0/*-*/commits/[0-9]*")
        return sorted(file.stat().st_mtime for file in commits)

    def lateness_s(self, connector: str) -> float:
        """By how much the latest batch was late, from the first one to the last one."""
        gaps = [after - before for before, after in pairwise(self.commit_times_s(connector))]
        return max(gaps) - self.size.interval_s

    def drain(self, name: str) -> None:
        """Drain the worker, and wait until its process has ended."""
        worker = next(worker for worker in self.workers if worker.name == name)
        self.workers.remove(worker)
        assert http.post(f"{self.workers[0].url}/coterie/workers/{name}/drain", timeout=60).status_code == 202
        assert worker.wait(within_s=180) == 0
        worker.wait_gone()

    def restart(self, worker: WorkerProcess, *, moves_jobs: bool) -> set[str]:
        """Restart the worker, and wait until the group has settled; returns the good connectors that it had before."""
        view = worker.view()
        assert view is not None
        of_worker = {task["connector"] for task in view["assigned"]["tasks"]} & set(self.good)
        query = "?moveJobs=true" if moves_jobs else ""
        answer = http.post(f"{worker.url}/coterie/workers/{worker.name}/restart{query}", timeout=60)
        assert answer.status_code == 202, answer.text
        until(
            lambda: (now := worker.view()) is not None and now["life"] != view["life"],
            within_s=120,
            what=f"{worker.name} has restarted",
        )
        self.cluster.wait_ready(*self.workers)
        return of_worker

    def delete_blocking(self) -> None:
        for name in self.blocking:
            assert http.delete(f"{self.workers[0].url}/connectors/{name}", timeout=60).status_code == 204
        until(
            lambda: (
                not any(
                    task["connector"] in self.blocking
                    for worker in self.workers
                    for task in (worker.view() or {"tasks": [{"connector": next(iter(self.blocking))}]})["tasks"]
                )
            ),
            within_s=60,
            what="no worker has a task of a deleted connector",
        )


@pytest.mark.parametrize(
    ("size", "group_protocol"),
    [
        pytest.param(SMALL, GroupProtocolName.CLASSIC, id="small", marks=pytest.mark.timeout(600)),
        *(
            pytest.param(FULL, one, id=f"full-{one}", marks=[pytest.mark.soak, pytest.mark.timeout(1_800)])
            for one in GroupProtocolName
        ),
    ],
)
def test_plugins_that_block_delay_no_batch_and_no_heartbeat_while_workers_come_and_go(
    cluster: Cluster, size: Size, tmp_path: Path
) -> None:
    cluster.start_broker()
    fleet = Fleet(cluster, size, blocking_source.install(tmp_path / "packages"))
    fleet.start("w0", "w1")
    fleet.create_all()
    fleet.wait_three_batches()
    fleet.start("w2")
    fleet.wait_three_batches()
    restarted: set[str] = set()
    if size.drains_and_restarts:
        fleet.drain("w1")
        fleet.wait_three_batches()
        restarted = fleet.restart(fleet.workers[0], moves_jobs=False)
        fleet.wait_good_run()
        fleet.wait_three_batches()
        moved = fleet.restart(fleet.workers[1], moves_jobs=True)
        assert moved - restarted, "this worker had good connectors"
        fleet.wait_good_run()
        fleet.wait_three_batches()
    fleet.delete_blocking()
    fleet.wait_three_batches()
    # A connector waits for the return of its worker that restarts with its jobs. The others must not.
    lateness = {name: fleet.lateness_s(name) for name in fleet.good}
    lost = [view["plugin_threads"]["lost"] for worker in fleet.workers if (view := worker.view()) is not None]
    members = cluster.end_broker()["groups"][GROUP_ID]
    largest_gap_ms = max(member["largest_gap_ms"] for member in members.values())
    print(  # noqa: T201
        f"lateness of batches at most {max(late for name, late in lateness.items() if name not in restarted):.2f} s, "
        f"of connectors whose worker restarted {max((lateness[name] for name in restarted), default=0):.2f} s; "
        f"largest gap between heartbeats {largest_gap_ms} ms; lost threads {lost}"
    )
    assert largest_gap_ms < SESSION_MS / 2
    assert {name: late for name, late in lateness.items() if late > size.lateness_max_s and name not in restarted} == {}


STORED_STAGES = {f"blocks-in-{stage}": stage for stage in STAGES if stage != "validate"}
"""By name, the connectors of the tests below. One that blocks in validate cannot be created."""


def create_stored(worker: WorkerProcess) -> None:
    for name, stage in STORED_STAGES.items():
        body = {"name": name, "config": {"tasks.max": "1", **blocking_config(stage)}}
        assert http.post(f"{worker.url}/connectors", json=body, timeout=60).status_code == 201


def wait_start_blocks(worker: WorkerProcess, *, within_s: float = 60) -> None:
    until(
        lambda: (
            ("blocks-in-start", "starting")
            in [(task["connector"], task["phase"]) for task in (worker.view() or {"tasks": []})["tasks"]]
        ),
        within_s=within_s,
        what="the start that blocks has begun",
    )


def end_in_time(worker: WorkerProcess, number: signal.Signals) -> None:
    """Send the signal to the worker's process group, and check that the worker ends in time and leaves no process."""
    worker.kill_group(number)
    began_s = time.monotonic()
    # The grace of stops is 2 s, then 2 s until they are given up, and 5 s for other calls. The rest is the machine's.
    assert worker.wait(within_s=30) == 0
    print(f"the worker ended {time.monotonic() - began_s:.1f} s after the signal")  # noqa: T201
    worker.wait_gone()


@pytest.mark.timeout(400)
def test_a_worker_whose_plugins_block_ends_in_time_at_any_moment(cluster: Cluster, tmp_path: Path) -> None:
    """While a stop blocks, during the first queries after the start of a process, and while a start blocks."""
    cluster.start_broker()
    temporary_files = tmp_path / "temporary"
    temporary_files.mkdir()
    environment = {**blocking_source.install(tmp_path / "packages"), "TMPDIR": str(temporary_files)}

    stopping = cluster.start_worker("stopping", environment=environment)
    cluster.wait_ready(stopping)
    create_stored(stopping)

    def batches() -> dict[str, list[str]]:
        return {
            name: sorted(file.name for file in cluster.checkpoints.glob(f"{name}-*/gen-*/0/*-*/offsets/[0-9]*"))
            for name in STORED_STAGES
        }

    until(
        lambda: "0" in (began := batches())["blocks-in-read"] and "2" in began["blocks-in-stop"],
        within_s=120,
        what="the batches that block have begun",
    )
    wait_start_blocks(stopping)
    assert http.delete(f"{stopping.url}/connectors/blocks-in-stop", timeout=60).status_code == 204
    end_in_time(stopping, signal.SIGTERM)
    assert list(temporary_files.glob("coterie-*/")) == []
    assert_abandoned_calls_are_logged(stopping)

    warming = cluster.start_worker("warming", environment=environment)
    until(lambda: any(temporary_files.glob("coterie-*/warm-up-*")), within_s=120, what="the first queries run")
    end_in_time(warming, signal.SIGINT)
    assert list(temporary_files.glob("coterie-*/")) == []
    assert [line for line in warming.log.read_text().splitlines() if "Error" in line or "Traceback" in line] == []

    starting = cluster.start_worker("starting", environment=environment)
    wait_start_blocks(starting, within_s=120)
    end_in_time(starting, signal.SIGINT)
    assert list(temporary_files.glob("coterie-*/")) == []
    assert_abandoned_calls_are_logged(starting)


def assert_abandoned_calls_are_logged(worker: WorkerProcess) -> None:
    """Assert that one line of the worker's log names the calls that had not returned when the worker ended."""
    (line,) = [line for line in worker.log.read_text().splitlines() if "calls into plug-ins have not returned" in line]
    assert "connector blocks-in-split" in line
    assert "task blocks-in-start-0" in line
