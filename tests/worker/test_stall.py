"""The event loop's longest stall."""

import asyncio
import time

from coterie.worker.stall import StallMeter
from tests.worker.simulated import until


async def test_the_stall_of_a_blocked_event_loop_is_measured() -> None:
    meter = StallMeter()
    watching = asyncio.create_task(meter.measure_stalls())
    await asyncio.sleep(0)
    time.sleep(0.2)  # noqa: ASYNC251 - blocks the event loop on purpose
    await until(lambda: meter.longest_ms)
    assert meter.longest_ms >= 150
    watching.cancel()
