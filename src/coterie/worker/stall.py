"""The event loop's stalls: while one lasts no heartbeat leaves and no request is answered."""

import asyncio
import time

INTERVAL_MS = 20


class StallMeter:
    """Sleeps for a moment, again and again; how much longer than that it slept is how long the loop was held up."""

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
        """For how long the loop has given no sign; safe on any thread."""
        return (time.monotonic() - self._beat_s) * 1000
