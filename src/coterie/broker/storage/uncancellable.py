"""Runs a blocking function to completion even if the caller is cancelled."""

import asyncio
from collections.abc import Callable


async def run_uncancellable(function: Callable[[], None]) -> None:
    """Run ``function`` on a thread and return when it has ended, even if the caller is cancelled meanwhile, once or
    several times: then `CancelledError` is raised after the end. An exception of ``function`` is raised.

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
