"""Calls into plug-ins on threads: time limits, lost threads, and results that come too late."""

import asyncio
import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from coterie.nouns.errors import ConfigError, WorldError
from coterie.spark import call_ledger
from coterie.spark.call_ledger import CallQueueSpec
from coterie.spark.fence import Fence, FencedError
from coterie.spark.plugin_calls import (
    AbandonedCallError,
    NoThreadError,
    PluginCalls,
    PluginTimeoutError,
    clean_up_stage_even_if_abandoned,
    plugin_stage,
    result_of,
)
from tests.refused_threads import refuse_threads

ONE_AT_ONCE = CallQueueSpec(name="test", concurrent_calls_max=1)
MANY_AT_ONCE = CallQueueSpec(name="many", concurrent_calls_max=100)
LONG_MS = 60_000
SHORT_MS = 50


class LostCounts:
    """The numbers of lost threads that were reported."""

    def __init__(self) -> None:
        self.counts: list[int] = []
        self._changed = threading.Condition()

    def add(self, count: int) -> None:
        with self._changed:
            self.counts.append(count)
            self._changed.notify_all()

    def wait_for(self, count: int) -> None:
        """Wait until ``count`` was reported."""
        with self._changed:
            assert self._changed.wait_for(lambda: count in self.counts, 30), self.counts


@pytest.fixture
def go_on() -> Iterator[threading.Event]:
    """Lets the plug-ins of a test return; set at the end of the test."""
    event = threading.Event()
    yield event
    event.set()


def closed(calls: PluginCalls) -> None:
    calls.close()
    calls.wait_or_abandon_running_calls(30)


async def test_a_call_returns_the_result_or_raises_the_exception_of_the_plugin() -> None:
    calls = PluginCalls(LONG_MS)

    def fails() -> None:
        raise ConfigError({"key": ["wrong"]})

    def exits() -> None:
        sys.exit(3)

    assert await calls.call(ONE_AT_ONCE, "connector c", lambda: 7, stage="validate") == 7
    with pytest.raises(ConfigError):
        await calls.call(ONE_AT_ONCE, "connector c", fails)
    with pytest.raises(RuntimeError, match="SystemExit: 3"):
        await calls.call(ONE_AT_ONCE, "connector c", exits)
    closed(calls)


async def test_a_call_that_hangs_is_abandoned_and_its_message_names_the_stage_and_the_place(
    go_on: threading.Event,
) -> None:
    lost = LostCounts()
    calls = PluginCalls(SHORT_MS, lost.add)
    fence = Fence()
    commits: list[str] = []
    late_error: list[BaseException] = []
    messages: list[str] = []
    counts_before_error: list[int] = []

    def hangs_in_the_plugin() -> None:
        go_on.wait(60)

    def starts() -> None:
        hangs_in_the_plugin()
        try:
            with fence.commit_or_raise_if_closed():
                commits.append("too late")
        except FencedError as error:
            late_error.append(error)
            raise

    def shut_fence(error: AbandonedCallError) -> None:
        messages.append(str(error))
        counts_before_error.extend(lost.counts)
        fence.close_nowait()

    with pytest.raises(
        PluginTimeoutError,
        match=r"The plug-in of task c-0 has not returned from start after \d+ ms: it is in wait "
        r"\(.*threading.py:\d+\)\. Repair the plug-in, or raise plugin\.call\.timeout\.ms",
    ) as raised:
        await calls.call(ONE_AT_ONCE, "task c-0", starts, stage="start", on_abandon=shut_fence)
    assert messages == [str(raised.value)]
    assert counts_before_error == [1], "the lost thread must be reported before the error"
    assert calls.lost_thread_count == 1
    go_on.set()
    lost.wait_for(0)
    assert late_error, "the start has returned late and found its fence shut"
    assert commits == []
    assert calls.lost_thread_count == 0
    closed(calls)


async def test_calls_that_hang_delay_other_calls_only_while_they_are_young(
    monkeypatch: pytest.MonkeyPatch, go_on: threading.Event
) -> None:
    monkeypatch.setattr(call_ledger, "COUNTED_AS_RUNNING_MAX_S", 0.1)
    calls = PluginCalls(LONG_MS)
    hanging = [calls.submit(ONE_AT_ONCE, f"connector bad-{number}", lambda: go_on.wait(60)) for number in range(3)]
    async with asyncio.timeout(30):
        assert await calls.call(ONE_AT_ONCE, "connector good", lambda: "created") == "created"
    assert not any(call.future.done() for call in hanging)
    go_on.set()
    for call in hanging:
        assert await result_of(call)
    closed(calls)


async def test_a_call_that_reaches_a_further_stage_after_it_was_abandoned_ends_there(go_on: threading.Event) -> None:
    lost = LostCounts()
    calls = PluginCalls(SHORT_MS, lost.add)
    stages: list[str] = []

    def split() -> None:
        with plugin_stage("list the partitions"):
            go_on.wait(60)
        with plugin_stage("infer the columns"):
            stages.append("inferred")

    with pytest.raises(PluginTimeoutError, match="has not returned from list the partitions"):
        await calls.call(ONE_AT_ONCE, "connector c", split)
    lost.wait_for(1)
    go_on.set()
    lost.wait_for(0)
    assert stages == []
    closed(calls)


async def test_a_call_that_returns_after_it_was_abandoned_still_releases_what_it_has_opened(
    go_on: threading.Event,
) -> None:
    lost = LostCounts()
    calls = PluginCalls(SHORT_MS, lost.add)
    released: list[str] = []

    def start() -> None:
        try:
            with plugin_stage("open"):
                go_on.wait(60)
        finally:
            with clean_up_stage_even_if_abandoned("close"):
                released.append("connection")

    with pytest.raises(PluginTimeoutError, match="has not returned from open"):
        await calls.call(ONE_AT_ONCE, "task c-0", start)
    go_on.set()
    lost.wait_for(0)
    assert released == ["connection"]
    closed(calls)


async def test_a_release_that_hangs_has_a_time_limit_and_is_named(go_on: threading.Event) -> None:
    calls = PluginCalls(SHORT_MS)

    def start() -> None:
        with clean_up_stage_even_if_abandoned("close"):
            go_on.wait(60)

    with pytest.raises(PluginTimeoutError, match="has not returned from close"):
        await calls.call(ONE_AT_ONCE, "task c-0", start)
    go_on.set()
    closed(calls)


async def test_time_between_stages_is_not_limited() -> None:
    calls = PluginCalls(SHORT_MS)

    def split() -> str:
        with plugin_stage("list the partitions"):
            pass
        time.sleep(4 * SHORT_MS / 1000)
        return "split"

    assert await calls.call(ONE_AT_ONCE, "connector c", split) == "split"
    closed(calls)


async def test_a_call_that_is_not_needed_any_more_ends_also_while_it_waits(
    monkeypatch: pytest.MonkeyPatch, go_on: threading.Event
) -> None:
    monkeypatch.setattr(call_ledger, "COUNTED_AS_RUNNING_MAX_S", 60)
    lost = LostCounts()
    calls = PluginCalls(LONG_MS, lost.add)
    in_stage = threading.Event()

    def hang() -> None:
        in_stage.set()
        go_on.wait(60)

    running = calls.submit(ONE_AT_ONCE, "task c-0", hang, stage="start")
    assert in_stage.wait(60)
    waiting = calls.submit(ONE_AT_ONCE, "task c-1", lambda: go_on.wait(60), stage="start")
    for call, message in ((waiting, "was ended before it began"), (running, "has not returned from start")):
        call.limit_remaining_time(0)
        with pytest.raises(PluginTimeoutError, match=message):
            await result_of(call)
    lost.wait_for(1)
    closed(calls)


async def test_a_cancelled_caller_does_not_disturb_its_call_or_the_others(go_on: threading.Event) -> None:
    calls = PluginCalls(LONG_MS)
    running, waiting = (
        asyncio.create_task(calls.call(ONE_AT_ONCE, f"connector {name}", lambda: go_on.wait(60))) for name in "ab"
    )
    await asyncio.sleep(0)
    for caller in (waiting, running):
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
    last = asyncio.create_task(calls.call(ONE_AT_ONCE, "connector c", lambda: "last"))
    await asyncio.sleep(0)
    go_on.set()
    assert await last == "last"
    closed(calls)


async def test_a_call_that_waits_when_the_calls_are_closed_fails_with_a_clear_error(go_on: threading.Event) -> None:
    calls = PluginCalls(LONG_MS)
    running, waiting = (
        asyncio.create_task(calls.call(ONE_AT_ONCE, "connector c", lambda: go_on.wait(60))) for _ in range(2)
    )
    await asyncio.sleep(0)
    calls.close()
    for refused in (waiting, asyncio.create_task(calls.call(ONE_AT_ONCE, "connector d", lambda: 1))):
        with pytest.raises(WorldError, match="Spark is not running on this worker"):
            await refused
    go_on.set()
    assert await running
    calls.wait_or_abandon_running_calls(30)


async def test_closing_waits_for_calls_only_for_the_given_time(go_on: threading.Event) -> None:
    threads_before = set(threading.enumerate())
    calls = PluginCalls(LONG_MS)
    hanging = calls.submit(MANY_AT_ONCE, "connector c", lambda: go_on.wait(60), stage="validate")
    calls.close()
    await asyncio.to_thread(calls.wait_or_abandon_running_calls, 0.01)
    with pytest.raises(PluginTimeoutError):
        await result_of(hanging)
    names_left = {thread.name for thread in set(threading.enumerate()) - threads_before} - {"asyncio_0"}
    assert names_left == {"coterie connector c"}


EXIT_WITH_LOST_THREADS = """
import threading
from coterie.spark.call_ledger import CallQueueSpec
from coterie.spark.plugin_calls import PluginCalls, PluginTimeoutError

calls = PluginCalls(50)
queue = CallQueueSpec(name="test", concurrent_calls_max=100)
hanging = [calls.submit(queue, f"connector c-{n}", threading.Event().wait, stage="validate") for n in range(40)]
for call in hanging:
    assert isinstance(call.future.exception(30), PluginTimeoutError)
assert calls.lost_thread_count == 40
print("all lost")
"""


def test_a_process_with_lost_threads_exits_at_once() -> None:
    command = [sys.executable, "-c", EXIT_WITH_LOST_THREADS]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (0, "all lost\n"), ended.stderr


def test_a_stage_outside_of_a_call_has_no_effect() -> None:
    with contextlib.suppress(FencedError), plugin_stage("start"):
        return
    pytest.fail("the stage was refused")


async def test_calls_fail_until_the_system_starts_the_thread_that_watches_their_time_limits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = PluginCalls(SHORT_MS)
    refuse_threads(monkeypatch, "coterie-call-limits")
    with pytest.raises(WorldError, match="this worker did not begin: the system starts no further thread"):
        await calls.call(ONE_AT_ONCE, "this worker", lambda: 1)
    monkeypatch.undo()
    go_on = threading.Event()
    with pytest.raises(PluginTimeoutError):
        await calls.call(ONE_AT_ONCE, "this worker", go_on.wait, stage="start")
    go_on.set()
    closed(calls)


async def test_a_function_finds_its_call_abandoned_only_after_on_abandon_was_called() -> None:
    """Otherwise it would find its own fence open, and report that a later start has fenced it in a sink."""
    is_lost, has_tried_stage = threading.Event(), threading.Event()
    fence, was_fence_closed = Fence(), []

    def report_count(_: int) -> None:
        is_lost.set()
        has_tried_stage.wait(0.5)

    def function() -> None:
        assert is_lost.wait(30)
        try:
            with plugin_stage("start"):
                pytest.fail("the stage was not refused")
        except FencedError:
            was_fence_closed.append(fence.is_closed)
            has_tried_stage.set()

    calls = PluginCalls(LONG_MS, report_count)
    call = calls.submit(ONE_AT_ONCE, "task c-0", function, on_abandon=lambda _: fence.close_nowait())
    call.limit_remaining_time(0)
    with pytest.raises(PluginTimeoutError):
        await result_of(call)
    assert await asyncio.to_thread(has_tried_stage.wait, 30)
    assert was_fence_closed == [True]
    closed(calls)


async def test_a_call_for_which_the_system_starts_no_thread_is_abandoned_and_later_calls_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls, lock = PluginCalls(LONG_MS), threading.Lock()

    def on_abandon(error: AbandonedCallError) -> None:
        with lock:  # the caller of `submit` may hold a lock that this function needs
            messages.append(str(error))

    messages: list[str] = []
    refuse_threads(monkeypatch, "coterie connector c")
    with lock:
        call = calls.submit(ONE_AT_ONCE, "connector c", lambda: 1, on_abandon=on_abandon)
    with pytest.raises(NoThreadError, match="connector c did not begin: the system starts no further thread"):
        await result_of(call)
    assert [message.partition(":")[0] for message in messages] == ["The call for connector c did not begin"]
    monkeypatch.undo()
    assert await calls.call(ONE_AT_ONCE, "connector c", lambda: 2) == 2
    closed(calls)
