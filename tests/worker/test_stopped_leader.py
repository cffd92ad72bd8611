"""A leader process that is stopped (SIGSTOP) before, after and inside its work on the log, and continued under the next
leader of a classic group, writes nothing that is ever read."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from coterie.kafka.topics import Topics
from tests.ports import free_port
from tests.worker.process_fleet import CONNECTOR, ProcessFleet
from tests.worker.simulated import until
from tests.worker.stopping_worker import AFTER_OPENING, BEFORE_OPENING, IN_TRANSACTION

SESSION_MS = 6_000
BROKERS = [
    pytest.param("embedded_broker", marks=pytest.mark.processes, id="embedded"),
    pytest.param("real_kafka", marks=pytest.mark.kafka, id="kafka"),
]


def is_stopped(process: subprocess.Popen[bytes]) -> bool:
    """Whether the process is stopped by a signal."""
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


async def read_keys(bootstrap: str, topic: str) -> list[bytes | None]:
    """The keys of all lines of the topic that are ever read."""
    topics = Topics([bootstrap], client_id="reader")
    try:
        log = await topics.open_log(topic, partitions=1, replication_factor=1, setting_key="config.storage.topic")
        keys: list[bytes | None] = []
        async with contextlib.aclosing(log.follow()) as follow:
            async for progress in follow:
                keys += [record.key for record in progress.records]
                if progress.is_at_end:
                    break
        return keys
    finally:
        await topics.close()


@pytest.mark.timeout(240)
@pytest.mark.parametrize("point", [BEFORE_OPENING, AFTER_OPENING, IN_TRANSACTION])
@pytest.mark.parametrize("broker", BROKERS)
async def test_a_stopped_leader_that_continues_under_the_next_one_writes_nothing(
    broker: str, point: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    bootstrap: str = request.getfixturevalue(broker).bootstrap_servers
    group = f"stopped-{uuid.uuid4().hex[:8]}"
    properties = {
        "session.timeout.ms": str(SESSION_MS),
        "scheduled.rebalance.max.delay.ms": "0",
    }
    appended = tmp_path / "appended"
    async with ProcessFleet(bootstrap, group=group, properties=properties) as fleet:
        own = {**fleet._properties, "listeners": f"http://127.0.0.1:{free_port()}", "worker.name": "stopped"}
        command = [sys.executable, "-m", "tests.worker.stopping_worker", json.dumps(own), point, str(appended)]
        with (tmp_path / "worker.log").open("wb") as log:
            former = subprocess.Popen(command, stdout=log, stderr=log)  # noqa: ASYNC220 - returns at once
        try:
            # Its first line as the leader is a session key.
            await until(lambda: is_stopped(former), within_s=60)
            (worker,) = await fleet.start("next")
            assert await _created(fleet, worker.url, "first") == 201
            before = await read_keys(bootstrap, f"{group}-configs")
            os.kill(former.pid, signal.SIGCONT)

            async def has_rejoined() -> bool:
                view = await fleet.group()
                return view is not None and len(view["members"]) == 2

            await until(has_rejoined, within_s=60)
            assert await _created(fleet, worker.url, "second") == 201, "a fenced leader opens the log again"
            after = await read_keys(bootstrap, f"{group}-configs")
        finally:
            os.kill(former.pid, signal.SIGCONT)
            former.kill()
            await asyncio.to_thread(former.wait)
    assert not appended.exists(), f"the former leader has written {appended.read_text()}"
    assert before.count(b"session-key") == 1, "the next leader has written its own key"
    assert after.count(b"connector-first") == after.count(b"connector-second") == 1


async def _created(fleet: ProcessFleet, url: str, name: str) -> int:
    """Create a connector at the worker with this URL; returns the status of the response."""
    answer = await fleet.client.post(f"{url}/connectors", json={"name": name, "config": CONNECTOR})
    return answer.status_code
