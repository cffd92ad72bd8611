"""The host of groups, with another machine than the classic one: a counter, in a separate log topic."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import pytest

from coterie.broker.clock import make_steady_clock_ms
from coterie.broker.groups.host import GroupHost
from coterie.broker.groups.log import GroupLog
from coterie.broker.groups.registry import Groups
from coterie.broker.storage.log import BrokerLog
from coterie.engine.output import Output
from coterie.groups.effects import Effect, SetTimer, TimerFired
from coterie.nouns.ids import GroupId, ReplyTo
from coterie.wire.errors import ErrorCode
from tests.broker.full_disk import fill_disk, lift_limit
from tests.broker.groups.counting import COUNTER_TOPIC, Add, Counted, Counter, CounterMachine, Loaded, Total

C, D = GroupId("c"), GroupId("d")
Counters = Groups[Counter, Add, Loaded, Total, Counted, str]


@asynccontextmanager
async def counters(log: BrokerLog, *, groups_max: int = 10) -> AsyncIterator[Counters]:
    """A host of all counters; the next host reads what it has written."""
    async with asyncio.TaskGroup() as tasks, asyncio.timeout(60):
        lines = await GroupLog.open(log, COUNTER_TOPIC)
        groups: Counters = Groups(CounterMachine(), lines, groups_max, tasks, make_steady_clock_ms())
        await groups.load()
        yield groups
        groups.close()


def add(amount: int) -> Callable[[ReplyTo], Add]:
    return lambda reply_to: Add(reply_to=reply_to, amount=amount)


def counted(total: int) -> Counted:
    return Counted(error=ErrorCode.none, total=total)


async def test_counters_are_restored_from_their_own_topic_after_a_restart(log: BrokerLog) -> None:
    async with counters(log) as groups:
        assert await groups.ask(C, add(3)) == counted(3)
        assert await groups.ask(C, add(4)) == counted(7)
        assert await groups.ask(D, add(1)) == counted(1)
        assert (await groups.ask(D, add(-1))).error is ErrorCode.invalid_request
    assert list(log.topics) == ["__counters"]
    async with counters(log) as groups:
        assert groups.ids() == [C, D]
        assert groups.ask_nowait(C, add(0)) == counted(7)


async def test_a_response_is_sent_when_everything_it_shows_is_durable(log: BrokerLog) -> None:
    async with counters(log) as groups:
        await groups.ask(C, add(1))
        (partition,) = log.topics["__counters"].partitions
        changed, read = groups.ask_nowait(C, add(1)), groups.ask_nowait(C, add(0))
        assert isinstance(changed, Awaitable)
        assert isinstance(read, Awaitable), "the total is not durable yet"
        assert await read == counted(2)
        assert partition.end_offset == 2
        assert await changed == counted(2)


async def test_a_counter_is_reloaded_after_a_failed_append(log: BrokerLog) -> None:
    async with counters(log) as groups:
        await groups.ask(C, add(3))
        await log.run_write(fill_disk)
        failed, lost = groups.ask_nowait(C, add(200_000)), groups.ask_nowait(C, add(0))
        assert isinstance(failed, Awaitable)
        assert isinstance(lost, Awaitable)
        assert (await failed).error is (await lost).error is ErrorCode.not_coordinator
        assert await groups.ask(C, add(0)) == counted(3), "the total must be that of the log"
        await log.run_write(lift_limit)
        assert await groups.ask(C, add(1)) == counted(4)


async def test_a_bug_in_the_machine_loses_only_what_was_not_durable(log: BrokerLog) -> None:
    async with counters(log) as groups:
        await groups.ask(C, add(3))
        assert (await groups.ask(C, add(-1_000))).error is ErrorCode.not_coordinator
        assert await groups.ask(C, add(0)) == counted(3)


async def test_a_bug_in_an_effect_that_follows_an_append_refuses_the_request_and_reloads_the_group(
    log: BrokerLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with counters(log) as groups:
        await groups.ask(C, add(3))
        failures = [AssertionError("planted")]

        def fail_once(*_: object) -> None:
            if failures:
                raise failures.pop()

        monkeypatch.setattr(CounterMachine, "observe_response", fail_once)
        assert (await groups.ask(C, add(2))).error is ErrorCode.not_coordinator
        assert await groups.ask(C, add(0)) == counted(5), "the record of the failed request is in the log"


async def test_a_deadline_resets_a_counter_and_a_reset_counter_is_removed(log: BrokerLog) -> None:
    lines = await GroupLog.open(log, COUNTER_TOPIC)
    host = GroupHost(C, CounterMachine(reset_ms=20), (), lines, make_steady_clock_ms())
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        running = tasks.create_task(host.run())
        assert await host.ask(add(3)) == counted(3)
        await running
    assert await lines.load(C) == ()


async def test_a_loaded_counter_has_its_deadline_again(log: BrokerLog) -> None:
    lines = await GroupLog.open(log, COUNTER_TOPIC)
    await lines.append(C, [3], now_ms=1)
    host = GroupHost(C, CounterMachine(reset_ms=20), await lines.load(C), lines, make_steady_clock_ms())
    assert host.has_state
    async with asyncio.timeout(60):
        await host.run()
    assert await lines.load(C) == ()


async def test_no_more_counters_than_allowed_are_created(log: BrokerLog) -> None:
    async with counters(log, groups_max=1) as groups:
        assert await groups.ask(D, add(0)) == counted(0)
        assert await groups.ask(C, add(1)) == counted(1)
        assert (await groups.ask(D, add(1))).error is ErrorCode.policy_violation
        assert groups.ids() == [C]


async def test_a_bug_in_a_notification_after_a_reload_makes_the_group_reload_again(
    log: BrokerLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = CounterMachine(reset_ms=1_000)
    failures = [AssertionError("planted")]

    def notifications_after_load(records: Sequence[Total]) -> Sequence[Loaded]:
        if failures:
            raise failures.pop()
        return [None]

    lines = await GroupLog.open(log, COUNTER_TOPIC)
    await lines.append(C, [3], now_ms=1)
    host = GroupHost(C, machine, await lines.load(C), lines, make_steady_clock_ms())
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        running = tasks.create_task(host.run())
        monkeypatch.setattr(machine, "notifications_after_load", notifications_after_load)
        assert (await host.ask(add(-1_000))).error is ErrorCode.not_coordinator
        await running
    assert not failures
    assert await lines.load(C) == (), "the second reload has set the counter's timer"


async def test_a_notification_during_a_reload_makes_the_group_read_its_log_again(
    log: BrokerLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cause of the notification may be a record that the read did not reach."""
    lines = await GroupLog.open(log, COUNTER_TOPIC)
    await lines.append(C, [3], now_ms=1)
    host = GroupHost(C, CounterMachine(), await lines.load(C), lines, make_steady_clock_ms())
    load = lines.load
    reads: list[Sequence[Total]] = []

    async def append_after_first_read(group_id: GroupId) -> Sequence[Total]:
        reads.append(await load(group_id))
        if len(reads) == 1:
            await lines.append(C, [5], now_ms=1)
            host.notify(None)
        return reads[-1]

    monkeypatch.setattr(lines, "load", append_after_first_read)
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        running = tasks.create_task(host.run())
        host.refuse_pending_and_start_reload()
        assert await host.ask(add(0)) == counted(5)
        running.cancel()
    assert reads == [[3], [5]]


async def test_a_bug_that_recurs_after_each_reload_is_slowed_down_and_logged_once(
    log: BrokerLog, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    machine = CounterMachine(reset_ms=0)
    sleep = asyncio.sleep
    pauses: list[float] = []
    has_recurred = asyncio.Event()

    async def record_pause(delay_s: float) -> None:
        pauses.append(delay_s)
        if len(pauses) == 6:
            has_recurred.set()
        await sleep(0)

    def fail_at_deadline(counter: Counter, event: object, **_: object) -> Output[Total, Effect[Counted, str]]:
        if isinstance(event, TimerFired):
            raise AssertionError("planted")
        assert event is None
        return Output(effects=(SetTimer(key="reset", at_ms=0),))

    lines = await GroupLog.open(log, COUNTER_TOPIC)
    await lines.append(C, [3], now_ms=1)
    monkeypatch.setattr(machine, "step", fail_at_deadline)
    host = GroupHost(C, machine, await lines.load(C), lines, lambda: 1)
    monkeypatch.setattr(asyncio, "sleep", record_pause)
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        running = tasks.create_task(host.run())
        await has_recurred.wait()
        running.cancel()
    assert pauses == [0, 0.5, 1, 2, 2, 2]
    (record,) = [one for one in caplog.records if one.levelno == logging.ERROR]
    assert record.getMessage().startswith("Bug in Coterie: the coordinator of group c failed; its pending requests")


async def test_a_group_shows_no_record_that_was_not_written_while_it_pauses(
    log: BrokerLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses, goes_on = asyncio.Event(), asyncio.Event()
    sleep = asyncio.sleep

    async def pause(delay_s: float) -> None:
        if delay_s:
            pauses.set()
            await goes_on.wait()
        await sleep(0)

    async with counters(log) as groups:
        await groups.ask(C, add(3))
        await log.run_write(fill_disk)
        assert (await groups.ask(C, add(200_000))).error is ErrorCode.not_coordinator
        assert await groups.ask(C, add(0)) == counted(3)
        monkeypatch.setattr(asyncio, "sleep", pause)
        assert (await groups.ask(C, add(200_000))).error is ErrorCode.not_coordinator
        await pauses.wait()
        assert groups.inspect_group(C, lambda counter: counter.total) == 3
        await log.run_write(lift_limit)
        waiting = asyncio.ensure_future(groups.ask(C, add(1)))
        goes_on.set()
        assert await waiting == counted(4)
