"""The worker that computes a target assignment is killed or stopped after Prepare and before Install: another one
computes, and no task is lost or runs twice.

The workers are processes, and their tasks are light; their assignor is a plug-in that waits in the middle of its
computation.
"""

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchmarks.http_client import http
from benchmarks.task_log import fewest_stops, now_ms
from tests.processes import waiting_assignor
from tests.processes.cluster import SESSION_MS, Cluster, WorkerProcess, until

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]

CONNECTOR, TASKS = "light", 9
STOPS_WITHIN_MS = 3_000
"""A worker that continues after its session must have stopped its tasks within this time."""


@dataclass
class Computing:
    """A group of four workers. The last one has just joined, and the computing worker, which is the leader, has
    received the state of the group and has not installed a target."""

    cluster: Cluster
    leader: WorkerProcess
    others: list[WorkerProcess]
    """The two workers that had joined before, and the new one."""
    hold: Path
    """While it exists, the leader's computation waits."""
    since_ms: int
    """When the new worker was started."""

    @property
    def names(self) -> list[str]:
        return [self.leader.name, *(other.name for other in self.others)]

    def wait_balanced(self, names: list[str]) -> None:
        """Wait until each task runs once, evenly spread over the workers of these names."""
        what = f"{TASKS} tasks run on {', '.join(names)}"
        until(lambda: self.cluster.timeline().is_balanced(names, TASKS), within_s=60, what=what)

    def wait_computed(self) -> None:
        """Wait until a target is installed for the newest group epoch."""

        def is_computed() -> bool:
            group = self.describe()
            return bool(group.assignment_epoch == group.group_epoch)

        until(is_computed, within_s=30, what="another worker computes")

    def wait_logged(self, worker: WorkerProcess, text: str) -> None:
        until(lambda: text in worker.log.read_text(), within_s=30, what=f"{worker.name} logs: {text}")

    def describe(self) -> Any:
        return self.cluster.describe_connect_group()

    def stopped_since(self, *, gone: str | None = None) -> int:
        """How many tasks of workers other than ``gone`` have stopped since the new worker was started."""
        return sum(
            run.worker != gone and run.end_ms is not None and run.end_ms >= self.since_ms
            for run in self.cluster.timeline().runs()
        )


def begin_computation(cluster: Cluster, *, timeout_ms: int) -> Computing:
    """Start a group in which a computation is in progress, which the coordinator awaits for ``timeout_ms``."""
    folder = cluster.folder / "plug-ins"
    environment = waiting_assignor.install(folder)
    properties = {"group.protocol": "connect", "group.local.assignors": waiting_assignor.NAME}

    def start(name: str) -> WorkerProcess:
        return cluster.start_light_worker(name, properties=properties, environment=environment)

    cluster.delay_ms = 0
    configs = {"computation.timeout.ms": timeout_ms, "initial.rebalance.delay.ms": 500}
    cluster.start_broker(
        *(word for key, value in configs.items() for word in ("--config", f"group.connect.{key}={value}"))
    )
    workers = [start(name) for name in ("w0", "w1", "w2")]
    cluster.wait_ready(*workers)
    body = {"name": CONNECTOR, "config": {"connector.class": "LightSource", "tasks.max": str(TASKS)}}
    answer = http.post(f"{workers[0].url}/connectors", json=body, timeout=60)
    assert answer.status_code == 201, answer.text
    names = [worker.name for worker in workers]
    until(lambda: cluster.timeline().is_balanced(names, TASKS), within_s=60, what="all tasks run")
    cluster.wait_ready(*workers)
    *others, leader = sorted(workers, key=lambda worker: worker.is_leader())
    assert leader.is_leader(), "the leader computes"
    hold = waiting_assignor.hold_file(folder, leader.popen.pid)
    hold.touch()
    signalled = waiting_assignor.signal_file(folder, leader.popen.pid)
    signalled.unlink()
    since_ms = now_ms()
    others.append(start("w3"))
    until(signalled.exists, within_s=60, what="the leader computes")
    return Computing(cluster=cluster, leader=leader, others=others, hold=hold, since_ms=since_ms)


def test_another_worker_computes_when_the_computing_one_is_killed(cluster: Cluster) -> None:
    """Its connection was closed: the others do not wait for the end of its session, or of its computation."""
    computing = begin_computation(cluster, timeout_ms=60_000)
    cluster.kill_light_worker(computing.leader)
    killed_ms = now_ms()
    computing.wait_balanced([other.name for other in computing.others])
    assert cluster.timeline().last_ms() - killed_ms < SESSION_MS
    assert computing.stopped_since(gone=computing.leader.name) == 0
    computing.wait_computed()
    assert len(computing.describe().members) == len(computing.others)


def test_a_stopped_computer_that_continues_in_its_session_is_refused_and_loses_no_task(cluster: Cluster) -> None:
    computing = begin_computation(cluster, timeout_ms=1_500)
    leader, before = computing.leader, dict.fromkeys(computing.names[:3], TASKS // 3)
    os.kill(leader.popen.pid, signal.SIGSTOP)
    computing.wait_computed()
    computing.hold.unlink()
    os.kill(leader.popen.pid, signal.SIGCONT)
    computing.wait_logged(leader, "was not installed, and is not sent again: UNKNOWN_MEMBER_ID")
    computing.wait_balanced(computing.names)
    assert computing.stopped_since() == fewest_stops(before, computing.names)


def test_a_stopped_computer_that_continues_after_its_session_stops_its_tasks_and_joins_again(cluster: Cluster) -> None:
    computing = begin_computation(cluster, timeout_ms=1_500)
    leader, others = computing.leader, {other.name for other in computing.others}
    os.kill(leader.popen.pid, signal.SIGSTOP)
    computing.wait_computed()

    def others_run_all() -> bool:
        return len({task for task, worker in cluster.timeline().running() if worker in others}) == TASKS

    until(others_run_all, within_s=60, what="the session of the stopped worker ends, and the others run all tasks")
    computing.hold.unlink()
    continued_ms = now_ms()
    os.kill(leader.popen.pid, signal.SIGCONT)
    computing.wait_balanced(computing.names)
    earlier = [run for run in cluster.timeline().runs() if run.worker == leader.name and run.begin_ms < continued_ms]
    assert len(earlier) == TASKS // 3
    assert all(run.end_ms is not None and run.end_ms < continued_ms + STOPS_WITHIN_MS for run in earlier)
    assert "The group membership is lost; this worker stops all its tasks" in leader.log.read_text()
