import asyncio
import itertools

import pytest

from coterie.engine.log import NewTopicRecord, TopicRecord
from coterie.kafka.topics import TopicLog, TopicsClient
from coterie.nouns.errors import WorldError
from tests.kafka.embedded_broker import EmbeddedBroker

APPEND_TIMEOUT_S = 5
"""How long an append to a missing topic is awaited. An append that creates the topic ends within this time."""
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
        log = await topics.open_or_create_log(
            "configs", partitions=1, replication_factor=1, setting_key="config.storage.topic"
        )
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


async def test_a_client_that_runs_creates_no_topic_in_a_broker_that_lost_its_data(
    mortal_broker: EmbeddedBroker,
) -> None:
    """The broker would create the topic with cleanup.policy=delete, and no worker could start."""
    topics, admin = [TopicsClient([mortal_broker.bootstrap_servers], client_id=name) for name in ("old", "new")]
    record = NewTopicRecord(key=b"key", value=b"value")
    try:
        log = await topics.open_or_create_log(
            "configs", partitions=1, replication_factor=1, setting_key="config.storage.topic"
        )
        leader_log = topics.new_leader_log(log, transactional_id="configs")
        await log.append([record])
        await asyncio.to_thread(mortal_broker.kill)
        mortal_broker.delete_data()
        await asyncio.to_thread(mortal_broker.start)
        await leader_log.open(transaction_timeout_ms=10_000)
        for appending in (log, leader_log):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(APPEND_TIMEOUT_S):
                    await appending.append([record])
        with pytest.raises(WorldError, match="cannot describe topic configs"):
            await admin.topic_id("configs")
        log = await admin.open_or_create_log(
            "configs", partitions=1, replication_factor=1, setting_key="config.storage.topic"
        )
        await log.append([record])
    finally:
        await topics.close()
        await admin.close()
