"""The events of a runtime: their order, and which of them are merged."""

import asyncio
from dataclasses import replace

from coterie.herder.seams import RuntimeDied, TaskDied, TaskEvent, TaskProgressed, TaskRetrying
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId
from coterie.spark.events import EventQueue

ONE, TWO = (ConnectorTaskId(ConnectorName("c"), number) for number in range(2))


def progress(task: ConnectorTaskId, batch_id: int, *, input_rows: int = 1) -> TaskProgressed:
    return TaskProgressed(task=task, batch_id=batch_id, input_rows=input_rows)


async def test_unread_progress_is_replaced_by_newer_progress_of_the_same_task() -> None:
    events = EventQueue()
    for event in (progress(ONE, 1), progress(TWO, 1), progress(ONE, 2)):
        events.put(event)
    assert [await events.get(), await events.get()] == [progress(TWO, 1), progress(ONE, 2, input_rows=2)]


async def test_the_rows_of_replaced_progress_are_counted() -> None:
    events = EventQueue()
    for batch_id, input_rows in enumerate((5, 0, 7)):
        events.put(progress(ONE, batch_id, input_rows=input_rows))
    assert await events.get() == progress(ONE, 2, input_rows=12)


async def test_progress_keeps_the_topics_of_the_progress_that_it_replaces() -> None:
    events = EventQueue()
    for batch_id, topic in enumerate("ab"):
        events.put(replace(progress(ONE, batch_id), topics=frozenset(topic)))
    assert await events.get() == replace(progress(ONE, 1, input_rows=2), topics=frozenset("ab"))


async def test_only_the_last_of_many_waits_for_a_server_is_reported_after_the_progress_before_them() -> None:
    events = EventQueue()
    waits = [TaskRetrying(task=ONE, trace=str(attempt)) for attempt in range(3)]
    line: list[TaskEvent] = [progress(ONE, 1), *waits, progress(ONE, 2)]
    for event in line:
        events.put(event)
    assert [await events.get() for _ in range(3)] == [progress(ONE, 1), waits[-1], progress(ONE, 2)]


async def test_a_task_that_alternates_between_progress_and_waits_has_a_limited_number_of_unread_events() -> None:
    events = EventQueue()
    events.put(TaskDied(task=ONE, trace="t", holds_checkpoint=True))
    for number in range(1_000):
        events.put(progress(ONE, number))
        events.put(TaskRetrying(task=ONE, trace="always the same"))
        events.put(progress(TWO, number))
    events.put(RuntimeDied(reason="r"))
    unread = [await events.get()]
    while not isinstance(unread[-1], RuntimeDied):
        unread.append(await events.get())
    assert unread == [
        TaskDied(task=ONE, trace="t", holds_checkpoint=True),
        TaskRetrying(task=ONE, trace="always the same"),
        progress(ONE, 999, input_rows=1_000),
        TaskRetrying(task=ONE, trace="always the same"),
        progress(TWO, 999, input_rows=1_000),
        RuntimeDied(reason="r"),
    ]


async def test_the_topics_of_removed_progress_are_added_to_the_next_progress_of_the_task() -> None:
    events = EventQueue()
    for number, topic in enumerate("abc"):
        events.put(progress(TWO, number))
        events.put(replace(progress(ONE, number), topics=frozenset(topic)))
        events.put(TaskRetrying(task=ONE, trace="t"))
    found = [await events.get() for _ in range(4)]
    assert [event for event in found if isinstance(event, TaskProgressed) and event.task == ONE] == [
        replace(progress(ONE, 2, input_rows=3), topics=frozenset("abc"))
    ]


async def test_progress_is_not_merged_across_the_end_of_a_run() -> None:
    events = EventQueue()
    line: list[TaskEvent] = [progress(ONE, 1), TaskDied(task=ONE, trace="t", holds_checkpoint=True), progress(ONE, 0)]
    for event in line:
        events.put(event)
    assert [await events.get() for _ in line] == line


async def test_events_of_an_ended_run_are_dropped_and_other_events_stay() -> None:
    events = EventQueue()
    line: list[TaskEvent] = [
        progress(ONE, 1),
        RuntimeDied(reason="r"),
        TaskDied(task=ONE, trace="t", holds_checkpoint=True),
    ]
    for event in line:
        events.put(event)
    events.drop_events_of_task(ONE)
    assert await events.get() == RuntimeDied(reason="r")


async def test_a_waiting_reader_is_woken_from_another_thread() -> None:
    events = EventQueue()
    events.bind_to_running_loop()
    reader = asyncio.create_task(events.get())
    await asyncio.sleep(0)
    await asyncio.to_thread(events.put, progress(ONE, 1))
    assert await asyncio.wait_for(reader, 10) == progress(ONE, 1)
