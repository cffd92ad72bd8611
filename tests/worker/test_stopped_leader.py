"""A leader process that is stopped (SIGSTOP) before, after and inside its work on the leader's log, and continued under
the next leader, writes nothing that is ever read; without the fence, what it writes is read."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from coterie.engine.log import TopicRecord
from coterie.kafka.group_admin import GroupAdmin
from coterie.kafka.topics import TopicsClient
from coterie.nouns.ids import GroupId
from coterie.nouns.membership import GroupProtocolName
from tests.ports import free_port
from tests.worker.process_fleet import CONNECTOR, ProcessFleet, WorkerProcess
from tests.worker.simulated import until
from tests.worker.stopping_worker import AFTER_OPENING, APPENDED, BEFORE_OPENING, IN_TRANSACTION, POINTS

SESSION_MS = 6_000
"""The minimum of a real Kafka."""
PROTOCOLS = [
    pytest.param("embedded_broker", GroupProtocolName.CLASSIC, marks=pytest.mark.processes, id="embedded-classic"),
    pytest.param("embedded_broker", GroupProtocolName.CONNECT, marks=pytest.mark.processes, id="embedded-connect"),
    pytest.param("real_kafka", GroupProtocolName.CLASSIC, marks=pytest.mark.kafka, id="kafka-classic"),
]

SHORT_CASES = {
    ("embedded_broker", GroupProtocolName.CLASSIC, IN_TRANSACTION),
    ("embedded_broker", GroupProtocolName.CONNECT, BEFORE_OPENING),
    ("real_kafka", GroupProtocolName.CLASSIC, AFTER_OPENING),
}
"""The cases of `make test`, one for each of :data:`PROTOCOLS` and for each point; `make soak` has all combinations."""
CASES = [
    pytest.param(
        *protocol.values,
        point,
        marks=[*protocol.marks, *([] if (*protocol.values, point) in SHORT_CASES else [pytest.mark.soak])],
        id=f"{protocol.id}-{point}",
    )
    for protocol in PROTOCOLS
    for point in POINTS
]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoppedLeader:
    """A leader process that has stopped itself, and the worker that leads the group since."""

    process: "subprocess.Popen[bytes]"
    notes_file: Path
    fleet: ProcessFleet
    successor: WorkerProcess

    @property
    def notes(self) -> list[str]:
        """The points that the process has passed, and its appended lines."""
        return self.notes_file.read_text().splitlines()

    @property
    def appended(self) -> list[bytes]:
        """The values of the lines that the process has appended, as it believes."""
        return [bytes.fromhex(note.removeprefix(APPENDED)) for note in self.notes if note.startswith(APPENDED)]

    def resume(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)

    async def create(self, name: str) -> int:
        """Create a connector at the successor; returns the status of the response."""
        answer = await self.fleet.client.post(
            f"{self.successor.url}/connectors", json={"name": name, "config": CONNECTOR}
        )
        return answer.status_code


@contextlib.asynccontextmanager
async def stopped_leader(
    bootstrap: str, group: str, protocol: GroupProtocolName, point: str, tmp_path: Path, *, is_fenced: bool
) -> AsyncIterator[StoppedLeader]:
    """Start a worker, the leader, whose process stops at ``point``, and then its successor."""
    properties = {
        "session.timeout.ms": str(SESSION_MS),
        "group.protocol": protocol.value,
        "scheduled.rebalance.max.delay.ms": "0",
    }
    if protocol is GroupProtocolName.CONNECT:
        admin = GroupAdmin([bootstrap], client_id="tests", timeout_ms=60_000)
        await admin.alter_group_configs(GroupId(group), {"connect.session.timeout.ms": str(SESSION_MS)})
    notes = tmp_path / "notes"
    async with ProcessFleet(bootstrap, group=group, properties=properties) as fleet:
        own = {**fleet.properties, "listeners": f"http://127.0.0.1:{free_port()}", "worker.name": "stopped"}
        fence = "yes" if is_fenced else "no"
        command = [sys.executable, "-m", "tests.worker.stopping_worker", json.dumps(own), point, fence, str(notes)]
        with (tmp_path / "worker.log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)  # noqa: ASYNC220 - returns at once
        try:
            # Its first line as the leader is a session key.
            await until(lambda: is_stopped(process), within_s=60)
            successor = fleet.begin("next")

            async def leads() -> bool:
                view = await fleet.view(successor)
                return view is not None and bool(view["group"]["leader_url"] == successor.url + "/")

            # In a connect group the successor joins while the stopped process is still the leader.
            await until(leads, within_s=60)
            assert is_stopped(process)
            yield StoppedLeader(process=process, notes_file=notes, fleet=fleet, successor=successor)
        finally:
            os.kill(process.pid, signal.SIGCONT)
            process.kill()
            await asyncio.to_thread(process.wait)


def is_stopped(process: "subprocess.Popen[bytes]") -> bool:
    """Whether the process is stopped by a signal."""
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


async def read_lines(bootstrap: str, topic: str) -> list[TopicRecord]:
    """All lines of the topic that are ever read."""
    topics = TopicsClient([bootstrap], client_id="reader")
    try:
        log = await topics.open_or_create_log(
            topic, partitions=1, replication_factor=1, setting_key="config.storage.topic"
        )
        lines: list[TopicRecord] = []
        async with contextlib.aclosing(log.follow()) as follow:
            async for progress in follow:
                lines += progress.records
                if progress.completes_first_read:
                    break
        return lines
    finally:
        await topics.close()


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("broker", "group_protocol", "point"), CASES)
async def test_a_stopped_leader_that_continues_under_the_next_one_writes_nothing(
    broker: str, group_protocol: GroupProtocolName, point: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    bootstrap: str = request.getfixturevalue(broker).bootstrap_servers
    group = f"stopped-{uuid.uuid4().hex[:8]}"
    topic = f"{group}-configs"
    async with stopped_leader(bootstrap, group, group_protocol, point, tmp_path, is_fenced=True) as stopped:
        assert stopped.notes == list(POINTS[: POINTS.index(point) + 1]), "the process has stopped where it should"
        assert await stopped.create("first") == 201
        before = await read_lines(bootstrap, topic)
        stopped.resume()

        async def has_rejoined() -> bool:
            view = await stopped.fleet.group()
            return view is not None and len(view["members"]) == 2

        await until(has_rejoined, within_s=60)
        if point == BEFORE_OPENING:
            # A successor that was fenced between the two parts of an append would not know whether it has appended.
            await until(lambda: AFTER_OPENING in stopped.notes, within_s=60)
        assert await stopped.create("second") == 201, "a fenced leader opens the log again"
        after = [line.key for line in await read_lines(bootstrap, topic)]
    assert stopped.appended == []
    assert [line.key for line in before].count(b"session-key") == 1, "the successor has written its own key"
    # The line of the stopped leader and the marker that aborts its transaction have the first two offsets. A reader of
    # uncommitted lines may find neither: a compaction removes them.
    assert before[0].offset == (2 if point == IN_TRANSACTION else 0)
    assert after.count(b"session-key") == 1
    assert after.count(b"connector-first") == after.count(b"connector-second") == 1


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("broker", "group_protocol", "point"), CASES)
async def test_without_the_fence_the_line_of_the_stopped_leader_is_read(
    broker: str, group_protocol: GroupProtocolName, point: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    bootstrap: str = request.getfixturevalue(broker).bootstrap_servers
    group = f"unfenced-{uuid.uuid4().hex[:8]}"
    async with stopped_leader(bootstrap, group, group_protocol, point, tmp_path, is_fenced=False) as stopped:
        assert stopped.notes == list(POINTS[: POINTS.index(point) + 1]), "the process has stopped where it should"
        stopped.resume()
        await until(lambda: len(stopped.appended) == 1, within_s=60)
        (line,) = stopped.appended

        async def is_read() -> bool:
            return line in [read.value for read in await read_lines(bootstrap, f"{group}-configs")]

        # A transaction of the successor that is still open hides the line until it ends.
        await until(is_read, within_s=60)
