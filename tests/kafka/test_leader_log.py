"""The leader's log on both brokers: one writer at a time, whole transactions, and the rest of a fenced writer."""

import asyncio
import contextlib
import uuid
from collections.abc import Callable, Sequence

import pytest

from coterie.engine.log import NewTopicRecord
from coterie.kafka.leader_log import LeaderTopicLog
from coterie.kafka.topics import TopicLog, TopicsClient
from coterie.nouns.errors import RecordsDiscardedError, WorldError, WriterFencedError

DEADLINE_S = 30


class Writers:
    """The config topic of one group, and any number of workers' leader logs."""

    def __init__(self, topics: TopicsClient, log: TopicLog) -> None:
        self.log = log
        self._topics = topics

    def leader_log(self) -> LeaderTopicLog:
        return self._topics.new_leader_log(self.log, transactional_id=self.log.topic)

    async def opened(self) -> LeaderTopicLog:
        leader_log = self.leader_log()
        await leader_log.open(transaction_timeout_ms=60_000)
        return leader_log

    async def wait_until_readable(self, end_offset: int) -> None:
        """Wait until the log's end is ``end_offset``: Kafka writes the marker of a transaction after its response."""
        async with asyncio.timeout(DEADLINE_S):
            while await self.log.end_position() != end_offset:  # noqa: ASYNC110 - no event announces a marker
                await asyncio.sleep(0.01)

    async def keys(self) -> list[str]:
        """The keys of all lines that are read up to the end."""
        keys: list[str] = []
        async with asyncio.timeout(DEADLINE_S), contextlib.aclosing(self.log.follow()) as follow:
            async for progress in follow:
                keys += [(record.key or b"").decode() for record in progress.records]
                if progress.completes_first_read:
                    break
        return keys


def lines(*keys: str) -> Sequence[NewTopicRecord]:
    return [NewTopicRecord(key=key.encode(), value=b"value") for key in keys]


@pytest.fixture
async def writers(topics: TopicsClient) -> Writers:
    name = f"configs-{uuid.uuid4().hex[:8]}"
    log = await topics.open_or_create_log(name, partitions=1, replication_factor=1, setting_key="config.storage.topic")
    return Writers(topics, log)


async def test_a_leader_writes_whole_transactions_whose_end_needs_no_marker(writers: Writers) -> None:
    first = await writers.opened()
    assert await first.append(lines("a", "b")) == 2
    assert await first.append(lines("c")) == 4, "after the marker of the first one"
    await writers.wait_until_readable(4)
    assert await writers.keys() == ["a", "b", "c"]
    assert await writers.log.append(lines("plain")) == 6
    assert await writers.log.end_position() == 6


async def test_a_leader_that_opens_the_log_fences_the_one_before_it(writers: Writers) -> None:
    first = await writers.opened()
    await first.append(lines("a"))
    second = await writers.opened()
    with pytest.raises(WorldError, match=r"another worker writes|unknown whether"):
        await first.append(lines("late"))
    await second.append(lines("b"))
    with pytest.raises(WorldError, match="not open"):
        await first.append(lines("later"))
    await first.open(transaction_timeout_ms=60_000)
    end_offset = await first.append(lines("c"))
    with pytest.raises(WriterFencedError):
        await second.append(lines("late"))
    await writers.wait_until_readable(end_offset)
    assert await writers.keys() == ["a", "b", "c"]


async def test_what_a_leader_has_left_in_an_open_transaction_is_never_read(
    writers: Writers, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await writers.opened()
    sent, may_commit = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    commit: Callable[..., None] = LeaderTopicLog.commit_blocking

    def commit_later(self: LeaderTopicLog, producer: object) -> None:
        if self is first:
            loop.call_soon_threadsafe(sent.set)
            asyncio.run_coroutine_threadsafe(may_commit.wait(), loop).result(DEADLINE_S)
        commit(self, producer)

    monkeypatch.setattr(LeaderTopicLog, "commit_blocking", commit_later)
    paused = asyncio.ensure_future(first.append(lines("lost-1", "lost-2")))
    await sent.wait()
    second = await writers.opened()
    await second.append(lines("a"))
    may_commit.set()
    with pytest.raises(WorldError):
        await paused
    await writers.wait_until_readable(await second.append(lines("b")))
    assert await writers.keys() == ["a", "b"]


async def test_the_end_of_a_transaction_is_known_before_its_append_has_returned(
    writers: Writers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a write that looks up the end meanwhile would wait until this worker has read the marker."""
    first = await writers.opened()
    loop = asyncio.get_running_loop()
    commit: Callable[..., None] = LeaderTopicLog.commit_blocking
    found: list[int] = []

    async def find_end() -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not found or found[-1] == 0:
                found.append(await writers.log.end_position())

    def commit_and_find_end(self: LeaderTopicLog, producer: object) -> None:
        commit(self, producer)
        asyncio.run_coroutine_threadsafe(find_end(), loop).result(DEADLINE_S)

    monkeypatch.setattr(LeaderTopicLog, "commit_blocking", commit_and_find_end)
    assert await first.append(lines("a")) == 1
    assert found[-1] == 1


async def test_no_record_of_an_append_with_a_record_that_is_too_large_is_read(writers: Writers) -> None:
    leader_log = await writers.opened()
    too_large = NewTopicRecord(key=b"large", value=b"v" * 2_000_000)
    with pytest.raises(RecordsDiscardedError, match="cannot write to topic"):
        await leader_log.append([*lines("a"), too_large])
    await leader_log.open(transaction_timeout_ms=60_000)
    await writers.wait_until_readable(await leader_log.append(lines("b")))
    assert await writers.keys() == ["b"]


async def test_a_closed_log_ends_its_calls(writers: Writers) -> None:
    leader_log = await writers.opened()
    await leader_log.close()
    await leader_log.close()
    with pytest.raises(WorldError, match="is closed"):
        await leader_log.append(lines("a"))


async def test_an_unreachable_broker_fails_the_opening_when_the_worker_shuts_down() -> None:
    topics = TopicsClient(["127.0.0.1:1"], client_id="tests")
    leader_log = topics.new_leader_log(TopicLog(topics, "configs", 1), transactional_id="t")
    opening = asyncio.ensure_future(leader_log.open(transaction_timeout_ms=60_000))
    await asyncio.sleep(0)
    await topics.close()
    with pytest.raises(WorldError, match="cannot open topic configs"):
        await opening
