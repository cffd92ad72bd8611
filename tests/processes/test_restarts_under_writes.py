"""Clients write to any worker while three workers restart in turn: every write succeeds, and is readable at once."""

import itertools
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from benchmarks.http_client import http
from coterie.nouns.membership import GroupProtocolName
from tests.processes.cluster import CLASSIC_IN_SOAK, Cluster, WorkerProcess, until
from tests.processes.writers import Journal, Writer

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

WRITERS = 6
REPOSITORY = Path(__file__).parents[2]


class RestartingWorkers:
    """Three light workers; one at a time restarts, while writes of ``journal`` wait for their responses."""

    def __init__(self, cluster: Cluster, journal: Journal) -> None:
        self.cluster = cluster
        self._journal = journal
        self.restarting: set[str] = set()
        self.stopped_s: list[float] = []
        """When each leader was ordered to stop or to restart."""
        self._names = (f"worker-{number}" for number in itertools.count())
        self.workers = [self._start() for _ in range(3)]
        cluster.wait_ready(*self.workers)

    def urls(self) -> list[str]:
        return [worker.url for worker in self.workers]

    def leader(self) -> WorkerProcess:
        """The leader, as it sees itself."""
        return until(
            lambda: next((worker for worker in self.workers if worker.is_leader()), None),
            within_s=60,
            what="a worker leads",
        )

    def replace_leader(self) -> WorkerProcess:
        """End the leader as a supervisor does, with SIGTERM, and start another process in its place. Returns the former
        leader."""
        worker = self._leader_to_stop()
        worker.popen.send_signal(signal.SIGTERM)
        assert worker.wait(within_s=60) == 0
        self.workers[self.workers.index(worker)] = started = self._start()
        self.restarting.add(started.url)
        self._wait_joined(started, None)
        self.restarting -= {worker.url, started.url}
        return worker

    def relaunch_leader(self) -> None:
        """Let the leader restart in place: it keeps its membership."""
        worker = self._leader_to_stop()
        life = _life(worker)
        answer = http.post(f"{worker.url}/coterie/workers/{worker.name}/restart", timeout=30)
        assert answer.status_code == 202, answer.text
        self._wait_joined(worker, life)
        self.restarting.remove(worker.url)

    def _leader_to_stop(self) -> WorkerProcess:
        worker = self.leader()
        self.restarting.add(worker.url)
        wait_for_unanswered(self._journal)
        self.stopped_s.append(time.monotonic())
        return worker

    @staticmethod
    def _wait_joined(worker: WorkerProcess, former_life: str | None) -> None:
        """Wait until the worker's process, which is not that of ``former_life``, serves requests as a member. With so
        many writes a classic group hardly ever settles."""

        def has_joined() -> bool:
            view = worker.view()
            return view is not None and view["life"] != former_life and bool(view["group"]["member_id"])

        until(has_joined, within_s=60, what=f"{worker.name} has restarted")

    def _start(self) -> WorkerProcess:
        path = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
        return self.cluster.start_light_worker(next(self._names), environment={"PYTHONPATH": path})


def wait_for_unanswered(journal: Journal) -> None:
    """Wait until half of the clients wait for a response, so that a worker's end comes in the middle of writes."""
    until(lambda: len(journal.unanswered) >= WRITERS // 2, within_s=60, what="writes wait for their responses")


def _life(worker: WorkerProcess) -> str | None:
    """The id of the process start; None while the worker does not respond."""
    view = worker.view()
    return None if view is None else str(view["life"])


def start_writers(journal: Journal, workers: RestartingWorkers, urls: Callable[[], Sequence[str]]) -> list[Writer]:
    writers = [Writer(number, urls, workers.restarting, journal) for number in range(WRITERS)]
    for writer in writers:
        writer.start()
    return writers


def end_writers(journal: Journal, writers: Sequence[Writer], *, writes: int) -> None:
    """Wait until ``writes`` are answered, and end the clients. Every write was successful and readable at once."""
    until(
        lambda: len(journal.writes) >= writes or any(writer.error for writer in writers),
        within_s=500,
        what=f"{writes} writes are answered",
    )
    for writer in writers:
        writer.stop()
    for writer in writers:
        writer.join()
        assert writer.error is None
    assert [write for write in journal.writes if write.status >= 400] == []
    assert journal.broken == []
    assert journal.unreadable == []
    slowest_s = max(write.ended_s - write.began_s for write in journal.writes)
    print(f"{dict(Counter(write.method for write in journal.writes))}, slowest {slowest_s:.1f} s")  # noqa: T201


def check_writes(cluster: Cluster, *, replacements: int, relaunches: int, writes: int) -> None:
    """Write at least ``writes`` times. Meanwhile the leader is replaced ``replacements`` times, and then restarts in
    place ``relaunches`` times."""
    cluster.start_broker()
    journal = Journal()
    workers = RestartingWorkers(cluster, journal)
    writers = start_writers(journal, workers, workers.urls)
    leaders = [workers.replace_leader() for _ in range(replacements)]
    assert len({leader.name for leader in leaders}) == replacements, "each time another worker led"
    for _ in range(relaunches):
        workers.relaunch_leader()
    end_writers(journal, writers, writes=writes)
    under_way = [journal.in_flight(stopped_s) for stopped_s in workers.stopped_s]
    assert all(under_way), "no write was under way when a leader stopped"
    print(f"{under_way} under way as leaders stopped, {len(journal.refused)} refused connections")  # noqa: T201


def test_each_of_150_writes_succeeds_while_three_workers_restart(cluster: Cluster) -> None:
    check_writes(cluster, replacements=2, relaunches=1, writes=150)


@pytest.mark.soak
@pytest.mark.parametrize("group_protocol", list(GroupProtocolName))
def test_each_of_1000_writes_succeeds_while_three_workers_restart(cluster: Cluster) -> None:
    check_writes(cluster, replacements=4, relaunches=3, writes=1_000)


@CLASSIC_IN_SOAK
def test_a_forwarded_write_whose_leader_is_killed_is_neither_lost_nor_performed_twice(cluster: Cluster) -> None:
    cluster.start_broker()
    journal = Journal()
    workers = RestartingWorkers(cluster, journal)
    leader = workers.leader()
    followers = [worker.url for worker in workers.workers if worker is not leader]
    writers = start_writers(journal, workers, lambda: followers)
    until(lambda: len(journal.writes) > 20, within_s=60, what="the clients write")
    wait_for_unanswered(journal)
    killed_s = time.monotonic()
    leader.kill_group()
    end_writers(journal, writers, writes=len(journal.writes) + 40)
    assert journal.in_flight(killed_s) > 1, "no write was under way when the leader was killed"
    assert journal.refused == []
