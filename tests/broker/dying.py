"""A broker that kills itself at a named point, and a client that commits offsets all the time."""

import asyncio
import itertools
import multiprocessing
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from coterie.wire.errors import ErrorCode
from tests.broker import dying_broker
from tests.broker.conftest import RawClient, raw_client
from tests.ports import free_port

DEADLINE_S = 90
COMMIT, FETCH, CREATE = 8, 9, 19
TOPIC = "t"
PARTITIONS = 4
NEVER = "never"

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload([dying_broker.__name__])


class CrashingBroker:
    """A broker that kills itself at a point that each start names: see `dying_broker`. Its processes are forked from
    one that has imported everything, so that a test can start many."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._process: ForkServerProcess | None = None
        self._pipe: Connection | None = None
        self.port = free_port()

    def start(self, point: str) -> None:
        self._pipe, child_end = _FORKS.Pipe()
        self._process = _FORKS.Process(target=dying_broker.main, args=(self._data, self.port, point, child_end))
        self._process.start()
        child_end.close()
        try:
            self.port = self._pipe.recv()
        except EOFError:
            log = self._data.parent / "broker.log"
            raise AssertionError(f"the broker did not start; see {log}: {log.read_text()[-2000:]}") from None

    @property
    def has_ended(self) -> bool:
        assert self._process is not None
        return self._process.exitcode is not None

    def wait_ended(self) -> int:
        """Wait until the broker has killed itself; returns its exit code."""
        assert self._process is not None
        self._process.join(DEADLINE_S)
        assert self.has_ended, "the broker runs"
        return self.stop()

    def stop(self) -> int:
        """Kill the broker if it still runs; returns its exit code."""
        if self._process is None:
            return 0
        assert self._pipe is not None
        self._process.kill()
        self._process.join(DEADLINE_S)
        code = self._process.exitcode
        assert code is not None, "the broker has not ended"
        self._process.close()
        self._pipe.close()
        self._process = self._pipe = None
        return code


async def wait_killed(broker: CrashingBroker, triggers: Sequence[Callable[[], None]] = ()) -> None:
    """Wait until the broker has killed itself, and call ``triggers`` to make it reach its point."""
    async with asyncio.timeout(DEADLINE_S):
        for number in itertools.count():
            if broker.has_ended:
                break
            if triggers and number % 40 == 0:
                triggers[number // 40 % len(triggers)]()
            await asyncio.sleep(0.05)
    assert broker.stop() == -signal.SIGKILL


async def start(broker: CrashingBroker, point: str) -> None:
    """Start the broker, after its previous process has ended."""
    broker.stop()
    await asyncio.to_thread(broker.start, point)


def create_topic(broker: CrashingBroker) -> None:
    request = {"name": TOPIC, "num_partitions": PARTITIONS, "replication_factor": 1, "assignments": (), "configs": ()}
    with raw_client(broker.port) as client:
        client.ask(CREATE, 7, topics=[request], timeout=30_000, validate_only=False)


def committed_offset(client: RawClient, group: str, partition: int) -> int:
    """The committed offset, or -1 if there is none."""
    topics = [{"name": TOPIC, "partition_indexes": [partition]}]
    answer = client.ask(
        FETCH, 9, groups=[{"group_id": group, "member_id": None, "topics": topics}], require_stable=True
    )
    offset: int = answer.groups[0].topics[0].partitions[0].committed_offset
    return offset


class Committer(threading.Thread):
    """Commits 1, 2, 3, … for its own group, and checks after each restart that the acknowledged offset is there."""

    def __init__(self, port: int) -> None:
        super().__init__(name="committer")
        self._port = port
        self._enough = threading.Event()
        self.sent = 0
        self.acknowledged = 0
        self.failures: list[str] = []

    def run(self) -> None:
        while not self._enough.is_set():
            try:
                with raw_client(self._port) as client:
                    self._compare(client)
                    while not self._enough.wait(0.01):
                        self.sent += 1
                        error = self._commit(client, self.sent)
                        if error is ErrorCode.none:
                            self.acknowledged = self.sent
                        else:
                            self.failures.append(f"offset {self.sent}: {error.name}")
            except OSError:
                self._enough.wait(0.02)  # the broker cannot be reached

    def stop(self) -> None:
        self._enough.set()
        self.join(DEADLINE_S)
        assert not self.is_alive()
        with raw_client(self._port) as client:
            self._compare(client)
        assert self.acknowledged > 0
        assert self.failures == []

    def _commit(self, client: RawClient, offset: int) -> ErrorCode:
        partition = {"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}
        answer = client.ask(
            COMMIT, 9, group_id="reader", generation_id_or_member_epoch=-1, member_id="", group_instance_id=None,
            topics=[{"name": TOPIC, "partitions": [partition | {"committed_leader_epoch": -1}]}],
        )  # fmt: skip
        error: ErrorCode = answer.topics[0].partitions[0].error_code
        return error

    def _compare(self, client: RawClient) -> None:
        kept = max(committed_offset(client, "reader", 0), 0)
        if not self.acknowledged <= kept <= self.sent:
            self.failures.append(f"{self.acknowledged} was acknowledged, {kept} is kept")


@contextmanager
def committing(broker: CrashingBroker) -> Iterator[None]:
    create_topic(broker)
    committer = Committer(broker.port)
    committer.start()
    try:
        yield
    finally:
        committer.stop()
