"""The broker's two clocks: a monotonic clock for timeouts and deadlines, and the wall clock for record timestamps."""

import asyncio
import time
from collections.abc import Callable


def steady_clock() -> Callable[[], int]:
    """Return a clock in milliseconds since the epoch. It starts at the wall clock's time and then follows the event
    loop's monotonic clock, so setting the wall clock later expires no session and no transaction."""
    loop = asyncio.get_running_loop()
    wall_ms = round(time.time() * 1000 - loop.time() * 1000)
    return lambda: wall_ms + round(loop.time() * 1000)


def wall_ms() -> int:
    """The wall clock's time in milliseconds since the epoch, for record timestamps. The steady clock is unsuitable for
    them: it stops while the computer sleeps, and it ignores changes of the wall clock."""
    return time.time_ns() // 1_000_000
