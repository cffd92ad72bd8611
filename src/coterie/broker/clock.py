"""The time by which the broker measures: the wall's at its start, and the loop's steady clock from there."""

import asyncio
import time
from collections.abc import Callable


def steady_clock() -> Callable[[], int]:
    """Milliseconds since the epoch; a wall clock that is set meanwhile ends no session and no transaction."""
    loop = asyncio.get_running_loop()
    wall_ms = round(time.time() * 1000 - loop.time() * 1000)
    return lambda: wall_ms + round(loop.time() * 1000)
