"""Measures the event loop's stalls: times in which the loop runs nothing that is ready, because one function blocks it.
During a stall the worker sends no heartbeat and answers no request.
"""

import asyncio
import time

INTERVAL_MS = 20
"""How long the meter sleeps between two readings of the clock, in ms."""


class StallMeter:
    """Sleeps on the event loop repeatedly for ``INTERVAL_MS``. If a sleep takes longer, the loop was stalled for
    the additional time."""

    def __init__(self) -> None:
        self.longest_ms = 0.0
        """The longest stall so far, in ms."""
        self._last_tick_s = time.monotonic()
        """When :meth:`measure_stalls` last ran on the loop, in s on the monotonic clock; before, when this object was
        created."""

    async def measure_stalls(self) -> None:
        """Measure until cancelled: after each sleep, store the longest stall so far in ``longest_ms``."""
        while True:
            self._last_tick_s = before = time.monotonic()
            await asyncio.sleep(INTERVAL_MS / 1000)
            self.longest_ms = max(self.longest_ms, (time.monotonic() - before) * 1000 - INTERVAL_MS)

    def stalled_ms(self) -> float:
        """The time in ms since :meth:`measure_stalls` last ran on the loop, or since this object was created. A loop
        without a stall gives 0 to about ``INTERVAL_MS``. Safe on any thread."""
        return (time.monotonic() - self._last_tick_s) * 1000
