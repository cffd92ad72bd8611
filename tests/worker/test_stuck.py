"""A worker whose event loop is blocked or whose herder does not respond stops its tasks in time and rejoins."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from coterie.herder.messages import Event
from coterie.nouns.membership import GroupProtocolName
from coterie.worker.worker import Worker
from tests.kafka.embedded_broker import EmbeddedBroker
from tests.worker.fleet import ORDERS, SESSION_MS, Fleet
from tests.worker.simulated import until

pytestmark = pytest.mark.processes


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    """In a separate process, since the test blocks the worker's event loop."""
    broker = EmbeddedBroker(tmp_path / "data")
    broker.start()
    yield broker
    broker.kill()


@pytest.fixture(params=list(GroupProtocolName))
async def fleet(broker: EmbeddedBroker, request: pytest.FixtureRequest) -> AsyncIterator[Fleet]:
    """Workers with each group protocol."""
    async with AsyncExitStack() as stack:
        fleet = Fleet(broker.bootstrap_servers, stack, group_protocol=request.param)
        await fleet.set_session_timeout()
        yield fleet
        await fleet.stop()


async def test_tasks_of_a_blocked_event_loop_stop_within_the_session_and_the_worker_rejoins(
    fleet: Fleet,
) -> None:
    one = await fleet.start()
    await until(lambda: one.worker.phase == "running", within_s=60)
    await fleet.create(ORDERS, 3)
    await fleet.until_running(one, ORDERS, 3)
    began_s = time.monotonic()
    time.sleep(1.5 * SESSION_MS / 1000)  # noqa: ASYNC251 - this is the stall
    (halted_s,) = one.runtime.halted_at_s
    assert halted_s < began_s + SESSION_MS / 1000, "another worker may own the tasks by then"
    assert not one.runtime.running
    assert set(fleet.starts().values()) == {1}
    await until(lambda: len(one.runtime.running) == 3, within_s=60)
    await fleet.until_running(one, ORDERS, 3)
    assert set(fleet.starts().values()) == {2}, "each task was started once more, in a new membership"
    assert len(one.runtime.halted_at_s) == 1


async def test_a_stall_shorter_than_the_lease_stops_no_task(fleet: Fleet) -> None:
    one = await fleet.start()
    await until(lambda: one.worker.phase == "running", within_s=60)
    await fleet.create(ORDERS, 2)
    await fleet.until_running(one, ORDERS, 2)
    lease_ends_ms = one.worker.lease_ends_ms
    await until(lambda: one.worker.lease_ends_ms != lease_ends_ms)
    time.sleep(SESSION_MS / 3 / 1000)  # noqa: ASYNC251 - this is the stall
    lease_ends_ms = one.worker.lease_ends_ms
    await until(lambda: one.worker.lease_ends_ms != lease_ends_ms, within_s=60)
    assert set(fleet.starts().values()) == {1}
    assert not one.runtime.halted_at_s


class BlockableWorker(Worker):
    """Its herder does not end a tick while ``unblock`` is an event that is not set."""

    unblock: asyncio.Event | None = None

    async def _next_event_or_ping(self) -> Event | asyncio.Event:
        event = await super()._next_event_or_ping()
        if self.unblock is not None:
            await self.unblock.wait()
        return event


@pytest.mark.parametrize("halt_error", [None, RuntimeError("the JVM has ended")], ids=["halts", "halt raises"])
async def test_a_worker_with_a_blocked_herder_loses_its_membership_and_another_continues(
    fleet: Fleet, halt_error: Exception | None, caplog: pytest.LogCaptureFixture
) -> None:
    stuck, other = await fleet.start(kind=BlockableWorker), await fleet.start()
    assert isinstance(stuck.worker, BlockableWorker)
    stuck.runtime.halt_error = halt_error
    await until(lambda: stuck.worker.phase == other.worker.phase == "running", within_s=60)
    await fleet.create(ORDERS, 4)
    await until(lambda: len(stuck.runtime.running) == len(other.runtime.running) == 2, within_s=60)
    await fleet.until_running(other, ORDERS, 4)
    kept = set(other.runtime.running)
    stuck.worker.unblock = asyncio.Event()
    await until(lambda: len(other.runtime.running) == 4, within_s=90)
    assert not stuck.runtime.running, "a task still runs after the membership was lost"
    by_watchdogs = sum("The event loop has been blocked" in record.message for record in caplog.records)
    assert len(stuck.runtime.halted_at_s) + len(other.runtime.halted_at_s) == 1 + by_watchdogs
    assert stuck.runtime.halted_at_s
    stuck.worker.unblock.set()
    await until(lambda: len(stuck.runtime.running) == len(other.runtime.running) == 2, within_s=90)
    assert all(fleet.starts()[str(task)] == 1 for task in kept & set(other.runtime.running))
