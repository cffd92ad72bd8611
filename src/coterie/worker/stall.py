"""Measures the event loop's stalls. During a stall the worker sends no heartbeat and answers no request."""

import asyncio
import time

INTERVAL_MS = 20


class StallMeter:
    """Sleeps repeatedly for ``INTERVAL_MS``; the time that a sleep takes longer is the length of a stall."""

    def __init__(self) -> None:
        self.longest_ms = 0.0
        self._beat_s = time.monotonic()

    async def watch(self) -> None:
        """Runs until cancelled."""
        while True:
            self._beat_s = before = time.monotonic()
            await asyncio.sleep(INTERVAL_MS / 1000)
            self.longest_ms = max(self.longest_ms, (time.monotonic() - before) * 1000 - INTERVAL_MS)

    def silent_ms(self) -> float:
        """The time in ms since the loop last ran; safe on any thread."""
        return (time.monotonic() - self._beat_s) * 1000
