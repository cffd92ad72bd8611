"""What a runtime tells, in which order, and what of it is merged."""

import asyncio

from coterie.herder.seams import RuntimeDied, TaskDied, TaskEvent, TaskProgressed, TaskWaiting
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId
from coterie.spark.events import Events

ONE, TWO = (ConnectorTaskId(ConnectorName("c"), number) for number in range(2))


def progress(task: ConnectorTaskId, batch_id: int) -> TaskProgressed:
    return TaskProgressed(task=task, batch_id=batch_id, input_rows=1)


async def test_unread_progress_gives_way_to_newer_progress_of_the_same_task() -> None:
    events = Events()
    for event in (progress(ONE, 1), progress(TWO, 1), progress(ONE, 2)):
        events.put(event)
    assert [await events.get(), await events.get()] == [progress(TWO, 1), progress(ONE, 2)]


async def test_of_many_waits_for_a_server_the_last_is_told_and_progress_before_them_too() -> None:
    events = Events()
    waits = [TaskWaiting(task=ONE, trace=str(attempt)) for attempt in range(3)]
    line: list[TaskEvent] = [progress(ONE, 1), *waits, progress(ONE, 2)]
    for event in line:
        events.put(event)
    assert [await events.get() for _ in range(3)] == [progress(ONE, 1), waits[-1], progress(ONE, 2)]


async def test_progress_is_not_moved_across_an_end() -> None:
    events = Events()
    line: list[TaskEvent] = [progress(ONE, 1), TaskDied(task=ONE, trace="t", is_held=True), progress(ONE, 0)]
    for event in line:
        events.put(event)
    assert [await events.get() for _ in line] == line


async def test_what_an_ended_run_left_is_forgotten_and_the_rest_stays() -> None:
    events = Events()
    line: list[TaskEvent] = [progress(ONE, 1), RuntimeDied(reason="r"), TaskDied(task=ONE, trace="t", is_held=True)]
    for event in line:
        events.put(event)
    events.forget(ONE)
    assert await events.get() == RuntimeDied(reason="r")


async def test_a_waiting_reader_is_woken_from_another_thread() -> None:
    events = Events()
    events.bind()
    reader = asyncio.create_task(events.get())
    await asyncio.sleep(0)
    await asyncio.to_thread(events.put, progress(ONE, 1))
    assert await asyncio.wait_for(reader, 10) == progress(ONE, 1)
