"""The longest stall of the event loop: while it lasts no heartbeat leaves and no request is answered."""

import asyncio

INTERVAL_MS = 20


class StallMeter:
    """Sleeps for a moment, again and again; how much longer than that it slept is how long the loop was held up."""

    def __init__(self) -> None:
        self.longest_ms = 0.0

    async def watch(self) -> None:
        """Runs until cancelled."""
        clock = asyncio.get_running_loop().time
        while True:
            before = clock()
            await asyncio.sleep(INTERVAL_MS / 1000)
            self.longest_ms = max(self.longest_ms, (clock() - before) * 1000 - INTERVAL_MS)
