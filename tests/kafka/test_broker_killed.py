import asyncio
import itertools

import pytest

from coterie.engine.log import NewTopicRecord, TopicRecord
from coterie.kafka.topics import TopicLog, TopicsClient
from tests.kafka.embedded_broker import EmbeddedBroker

DEADLINE_S = 60
KILLS = 3
APPENDS_BETWEEN = 60
LAST = b"last"

pytestmark = pytest.mark.processes


async def test_acknowledged_records_survive_kills_of_the_broker_and_are_read_once_in_order(
    mortal_broker: EmbeddedBroker,
) -> None:
    topics = TopicsClient([mortal_broker.bootstrap_servers], client_id="tests")
    try:
        log = await topics.open_log("configs", partitions=1, replication_factor=1, setting_key="config.storage.topic")
        acknowledged: dict[int, int] = {}
        """The number of each line, by its offset."""
        seen: list[TopicRecord] = []
        another, enough = asyncio.Semaphore(0), asyncio.Event()
        async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as tasks:
            appending = tasks.create_task(_append(log, acknowledged, another, enough))
            tasks.create_task(_follow(log, seen))
            for _ in range(KILLS):
                for _ in range(APPENDS_BETWEEN):
                    await another.acquire()
                await asyncio.to_thread(mortal_broker.kill)
                await asyncio.to_thread(mortal_broker.start)
            for _ in range(APPENDS_BETWEEN):
                await another.acquire()
            enough.set()
            await appending
            await log.append([NewTopicRecord(key=LAST, value=None)])
    finally:
        await topics.close()
    assert [line.offset for line in seen] == list(range(len(seen)))
    numbers = [int(line.key) for line in seen if line.key not in (None, LAST)]
    assert {offset: numbers[offset] for offset in acknowledged} == acknowledged
    # A line whose acknowledgement was lost with the broker is sent again, and then occurs twice in a row.
    assert [number for number, _ in itertools.groupby(numbers)] == list(range(numbers[-1] + 1))


async def _append(
    log: TopicLog, acknowledged: dict[int, int], another: asyncio.Semaphore, enough: asyncio.Event
) -> None:
    for number in itertools.count():
        if enough.is_set():
            return
        end = await log.append([NewTopicRecord(key=str(number).encode(), value=b"value")])
        acknowledged[end - 1] = number
        another.release()


async def _follow(log: TopicLog, seen: list[TopicRecord]) -> None:
    async for progress in log.follow():
        seen.extend(progress.records)
        if seen and seen[-1].key == LAST:
            return
