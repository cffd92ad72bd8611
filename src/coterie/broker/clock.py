"""The two times by which the broker measures: a steady one for whatever waits, and the wall's for records."""

import asyncio
import time
from collections.abc import Callable


def steady_clock() -> Callable[[], int]:
    """Milliseconds since the epoch: the wall's at this call, and from there the loop's. A wall clock that is set
    meanwhile ends no session and no transaction."""
    loop = asyncio.get_running_loop()
    wall_ms = round(time.time() * 1000 - loop.time() * 1000)
    return lambda: wall_ms + round(loop.time() * 1000)


def wall_ms() -> int:
    """Milliseconds since the epoch, as the machine has them now: for records' timestamps. The steady clock stands still
    while a machine sleeps, and does not hear when the wall's is set."""
    return time.time_ns() // 1_000_000
