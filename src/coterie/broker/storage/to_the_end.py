"""Runs a blocking function to completion even if the caller is cancelled."""

import asyncio
from collections.abc import Callable


async def run_to_the_end(function: Callable[[], None]) -> None:
    """Run ``function`` on a thread. A caller that is cancelled once or several times returns after the function has.

    With `asyncio.shield` alone the caller would return at once and then close what the thread still uses.
    """
    running = asyncio.ensure_future(asyncio.to_thread(function))
    cancelled: asyncio.CancelledError | None = None
    while not running.done():
        try:
            await asyncio.shield(running)
        except asyncio.CancelledError as error:
            cancelled = error
    running.result()
    if cancelled is not None:
        raise cancelled
