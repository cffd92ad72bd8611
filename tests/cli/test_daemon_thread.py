"""Code of a plug-in that blocks, raises or ends its thread."""

import asyncio
import threading

import pytest

from coterie.cli.daemon_thread import PluginCaller
from coterie.nouns.errors import WorldError

LONG_MS = 10_000


async def test_the_result_and_the_exception_reach_the_caller() -> None:
    thread = PluginCaller("plug-in")
    assert await thread.call(lambda: 1 + 1, timeout_ms=LONG_MS) == 2
    with pytest.raises(ZeroDivisionError):
        await thread.call(lambda: 1 // 0, timeout_ms=LONG_MS)
    assert await thread.call(threading.current_thread, timeout_ms=LONG_MS) is not threading.current_thread()


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), StopIteration(), TimeoutError("mine")])
async def test_an_exception_that_ends_threads_or_loops_reaches_only_the_caller(error: BaseException) -> None:
    def fail() -> None:
        raise error

    with pytest.raises((RuntimeError, TimeoutError)):
        await PluginCaller("plug-in").call(fail, timeout_ms=LONG_MS)


async def test_a_call_that_never_returns_is_given_up_and_blocks_only_its_own_plugin() -> None:
    thread, returns = PluginCaller("plug-in"), threading.Event()
    with pytest.raises(WorldError, match=r"plug-in did not return within 0\.01 s"):
        await thread.call(returns.wait, timeout_ms=10)
    with pytest.raises(WorldError, match="is not called, because it has not returned from an earlier call"):
        await thread.call(lambda: None, timeout_ms=LONG_MS)
    assert await PluginCaller("other").call(lambda: 1, timeout_ms=LONG_MS) == 1
    blocked = [one for one in threading.enumerate() if one.name == "plug-in"]
    assert all(one.daemon for one in blocked), "they must not keep the process"
    returns.set()
    for one in blocked:
        await asyncio.to_thread(one.join, 10)
    assert await thread.call(lambda: 2, timeout_ms=LONG_MS) == 2
