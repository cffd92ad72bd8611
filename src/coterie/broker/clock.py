"""The broker's two clocks: a monotonic clock for timeouts and deadlines, and the wall clock for record timestamps."""

import asyncio
import time
from collections.abc import Callable


def make_steady_clock_ms() -> Callable[[], int]:
    """Return a function that returns the time, in milliseconds since 1970. It adds the time that the event loop's
    monotonic clock has measured since this call to the wall clock's time at this call. So a later change of the wall
    clock expires no session and no transaction."""
    loop = asyncio.get_running_loop()
    wall_clock_at_loop_zero_ms = round(time.time() * 1000 - loop.time() * 1000)
    return lambda: wall_clock_at_loop_zero_ms + round(loop.time() * 1000)


def wall_clock_ms() -> int:
    """The wall clock's time in milliseconds since 1970, for record timestamps. The clock of
    :func:`make_steady_clock_ms` is unsuitable for record timestamps: it stops while the computer sleeps, and it ignores
    changes of the wall clock."""
    return time.time_ns() // 1_000_000
