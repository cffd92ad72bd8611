"""What is waited for to its end, whoever wants to leave before."""

import asyncio
from collections.abc import Callable


async def run_to_the_end(function: Callable[[], None]) -> None:
    """Run ``function`` on a thread. Whoever is cancelled meanwhile, however often, goes when it has returned.

    `asyncio.shield` alone lets its caller go at once, with the thread at work on what the caller then closes.
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
