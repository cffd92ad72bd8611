"""A worker whose loop stands still or whose herder does not answer: it stops its work in time and comes back."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from coterie.herder.messages import Event
from coterie.worker.worker import Worker
from tests.kafka.embedded_broker import EmbeddedBroker
from tests.worker.fleet import ORDERS, SESSION_MS, Fleet
from tests.worker.simulated import until

pytestmark = pytest.mark.processes


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    """In a process of its own: it must not stand still with a worker's loop."""
    broker = EmbeddedBroker(tmp_path / "data")
    broker.start()
    yield broker
    broker.kill()


@pytest.fixture
async def fleet(broker: EmbeddedBroker) -> AsyncIterator[Fleet]:
    async with AsyncExitStack() as stack:
        fleet = Fleet(broker.bootstrap_servers, stack)
        yield fleet
        await fleet.stop()


async def test_a_loop_that_stands_still_has_its_tasks_stopped_within_the_session_and_then_takes_part_again(
    fleet: Fleet,
) -> None:
    one = await fleet.start()
    await until(lambda: one.worker.phase == "running", within_s=60)
    await fleet.create(ORDERS, 3)
    await fleet.until_running(one, ORDERS, 3)
    began_s = time.monotonic()
    time.sleep(1.5 * SESSION_MS / 1000)  # noqa: ASYNC251 - this is the stall
    (halted_s,) = one.runtime.halted_at_s
    assert halted_s < began_s + SESSION_MS / 1000, "nobody else can have been given the tasks by then"
    assert not one.runtime.running
    assert set(fleet.starts().values()) == {1}
    await until(lambda: len(one.runtime.running) == 3, within_s=60)
    await fleet.until_running(one, ORDERS, 3)
    assert set(fleet.starts().values()) == {2}, "each was started once more, in a place of its own"
    assert len(one.runtime.halted_at_s) == 1


async def test_a_stall_shorter_than_the_lease_stops_nothing(fleet: Fleet) -> None:
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


class HeldUp(Worker):
    """Its herder begins a tick and does not end it as long as it is held."""

    free: asyncio.Event | None = None

    async def _next_event(self) -> Event | asyncio.Event:
        event = await super()._next_event()
        if self.free is not None:
            await self.free.wait()
        return event


async def test_a_herder_whose_tick_does_not_end_gives_its_place_up_and_another_worker_continues(
    fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    stuck, other = await fleet.start(kind=HeldUp), await fleet.start()
    assert isinstance(stuck.worker, HeldUp)
    await until(lambda: stuck.worker.phase == other.worker.phase == "running", within_s=60)
    await fleet.create(ORDERS, 4)
    await until(lambda: len(stuck.runtime.running) == len(other.runtime.running) == 2, within_s=60)
    await fleet.until_running(other, ORDERS, 4)
    kept = set(other.runtime.running)
    stuck.worker.free = asyncio.Event()
    await until(lambda: len(other.runtime.running) == 4, within_s=90)
    assert not stuck.runtime.running, "all has stopped, though its herder knows nothing of it yet"
    by_watchdogs = sum("The event loop was blocked" in record.message for record in caplog.records)
    assert len(stuck.runtime.halted_at_s) + len(other.runtime.halted_at_s) == 1 + by_watchdogs
    assert stuck.runtime.halted_at_s
    stuck.worker.free.set()
    await until(lambda: len(stuck.runtime.running) == len(other.runtime.running) == 2, within_s=90)
    assert all(fleet.starts()[str(task)] == 1 for task in kept & set(other.runtime.running))
