"""Calls the code of a plug-in on separate threads, with a time limit.

Such code may block for ever. The event loop must not wait for it, and neither must the end of the process: the threads
are daemon threads, because a thread pool would join its threads at exit.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from coterie.nouns.errors import WorldError

ResultT = TypeVar("ResultT")


class PluginCaller:
    """Calls the functions of one plug-in, each on a new thread, and never two of them at the same time: while a call
    runs, also after its time limit, another call is refused with WorldError. Nothing waits for a thread after the time
    limit of its call."""

    def __init__(self, name: str) -> None:
        """``name`` names the plug-in in errors and in the list of threads."""
        self._name = name
        self._is_busy = threading.Lock()
        """Held while a call runs, also after its time limit."""

    async def call(self, function: Callable[[], ResultT], *, timeout_ms: int) -> ResultT:
        """Call ``function`` on a new thread, and return its result. An exception of ``function`` is raised here.
        ``timeout_ms`` is the time limit.

        After the time limit, the thread continues: Python cannot stop a thread. Until it has ended, further calls are
        refused.

        :raises WorldError: when the time limit is over, or an earlier call has not ended.
        :raises RuntimeError: when ``function`` raises StopIteration, or an exception that is no :class:`Exception`,
            such as SystemExit.
        """
        if not self._is_busy.acquire(blocking=False):
            raise WorldError(
                f"{self._name} is not called, because it has not returned from an earlier call. If it never returns, "
                "restart this process"
            )
        outcome: Future[ResultT] = Future()

        def call_function_and_set_future() -> None:
            try:
                try:
                    result = function()
                finally:
                    self._is_busy.release()
            except BaseException as error:  # noqa: BLE001 - a plug-in may raise any exception, SystemExit too
                outcome.set_exception(_as_exception(error))
            else:
                outcome.set_result(result)

        threading.Thread(target=call_function_and_set_future, name=self._name, daemon=True).start()
        # Shielded: a future that is cancelled could not take the late result.
        waiting = asyncio.shield(asyncio.wrap_future(outcome))
        done, _ = await asyncio.wait([waiting], timeout=timeout_ms / 1000)
        if not done:
            waiting.cancel()
            raise WorldError(f"{self._name} did not return within {timeout_ms / 1000:g} s")
        return await waiting


def _as_exception(error: BaseException) -> Exception:
    """``error`` itself if a future can raise it: any Exception other than StopIteration. Otherwise a RuntimeError with
    the type and the message of ``error``."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    return RuntimeError(f"{type(error).__name__}: {error}")
