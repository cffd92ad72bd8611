import asyncio
import contextlib
import os
import threading
import time
import uuid
from collections.abc import Mapping

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from coterie.engine.log import LogProgress, NewTopicRecord, TopicRecord
from coterie.kafka.topics import TopicLog, TopicsClient
from coterie.nouns.errors import WorldError

DEADLINE_S = 30
KEY = "config.storage.topic"


def fresh_name() -> str:
    return f"topic-{uuid.uuid4().hex[:8]}"


async def uncompacted(bootstrap: str, partitions: int = 1) -> str:
    """A topic that keeps all lines of a key during the test: compaction could run between append and read."""
    name = fresh_name()
    config = {"cleanup.policy": "compact", "min.compaction.lag.ms": "3600000"}
    client = AdminClient({"bootstrap.servers": bootstrap})
    await asyncio.wrap_future(client.create_topics([NewTopic(name, partitions, 1, config=config)])[name])
    return name


async def open_or_create_log(topics: TopicsClient, topic: str, *, partitions: int = 1) -> TopicLog:
    return await topics.open_or_create_log(topic, partitions=partitions, replication_factor=1, setting_key=KEY)


def line(key: str, value: str | None = "value") -> NewTopicRecord:
    return NewTopicRecord(key=key.encode(), value=None if value is None else value.encode())


async def read_to_end(log: TopicLog) -> list[TopicRecord]:
    """All lines up to the end of the topic."""
    lines: list[TopicRecord] = []
    async with asyncio.timeout(DEADLINE_S), contextlib.aclosing(log.follow()) as follow:
        async for progress in follow:
            lines.extend(progress.records)
            if progress.completes_first_read:
                return lines
    raise AssertionError("following ended by itself")


def system_threads(*, at_most: int) -> int:
    """The number of threads; waits for librdkafka's threads, which end shortly after its handles."""
    deadline_s = time.monotonic() + DEADLINE_S
    while (count := len(os.listdir("/proc/self/task"))) > at_most and time.monotonic() < deadline_s:
        time.sleep(0.01)
    return count


async def test_a_new_topic_is_read_to_its_end_at_once(topics: TopicsClient) -> None:
    log = await open_or_create_log(topics, fresh_name())
    assert await log.end_position() == 0
    assert await read_to_end(log) == []


async def test_the_end_of_each_of_many_new_topics_is_found_at_once(topics: TopicsClient) -> None:
    """For a moment, Kafka's new leader of a partition may not know yet that it is the leader."""
    for _ in range(12):
        log = await open_or_create_log(topics, fresh_name(), partitions=5)
        assert await log.end_position() == 0


async def test_appended_records_and_tombstones_are_read_in_order(topics: TopicsClient, bootstrap: str) -> None:
    log = await open_or_create_log(topics, await uncompacted(bootstrap))
    assert await log.append([line("a", "1"), line("b", "2"), line("a", None)]) == 3
    assert await log.append([line("c", "")]) == 4
    assert await log.end_position() == 4
    lines = await read_to_end(log)
    assert [(one.offset, one.key, one.value) for one in lines] == [
        (0, b"a", b"1"),
        (1, b"b", b"2"),
        (2, b"a", None),
        (3, b"c", b""),
    ]
    assert all(one.timestamp_ms > 0 for one in lines)


async def test_appending_nothing_is_no_error(topics: TopicsClient) -> None:
    log = await open_or_create_log(topics, fresh_name())
    assert await log.append([]) == 0


async def test_a_follower_reads_lines_as_they_are_appended(topics: TopicsClient) -> None:
    log = await open_or_create_log(topics, fresh_name())
    await log.append([line("before")])
    seen: list[TopicRecord] = []
    ends = 0
    async with asyncio.timeout(DEADLINE_S), contextlib.aclosing(log.follow()) as follow:
        async for progress in follow:
            seen.extend(progress.records)
            if progress.completes_first_read:
                ends += 1
                for number in range(5):
                    await log.append([line(f"after-{number}")])
            if len(seen) == 6:
                break
    assert [one.key for one in seen] == [b"before", *(f"after-{number}".encode() for number in range(5))]
    assert ends == 1


async def test_a_follower_reads_lines_of_committed_transactions_only(topics: TopicsClient, bootstrap: str) -> None:
    name = await uncompacted(bootstrap)
    log = await open_or_create_log(topics, name)
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name})
    await asyncio.to_thread(producer.init_transactions, DEADLINE_S)
    for value, ends in (("kept", producer.commit_transaction), ("aborted", producer.abort_transaction)):
        producer.begin_transaction()
        producer.produce(name, key="transactional", value=value)
        producer.flush(DEADLINE_S)
        await asyncio.to_thread(ends, DEADLINE_S)
    async with asyncio.timeout(DEADLINE_S):
        while await log.end_position() != 4:  # noqa: ASYNC110 - Kafka writes the markers after it has answered
            await asyncio.sleep(0.01)
    producer.begin_transaction()
    producer.produce(name, key="transactional", value="open")
    producer.flush(DEADLINE_S)
    assert await log.append([line("plain")]) == 6
    assert await log.end_position() == 4, "the open transaction hides itself and the line after it"
    steps: list[LogProgress] = []
    async with asyncio.timeout(DEADLINE_S), contextlib.aclosing(log.follow()) as follow:
        async for progress in follow:
            steps.append(progress)
            if progress.completes_first_read:
                assert [record.value for step in steps for record in step.records] == [b"kept"]
                assert progress.position == 4
                await asyncio.to_thread(producer.abort_transaction, DEADLINE_S)
            if progress.position == 7:
                break
    records = [record for step in steps for record in step.records]
    assert [(record.offset, record.value) for record in records] == [(0, b"kept"), (5, b"value")]
    assert [step.completes_first_read for step in steps].count(True) == 1


async def test_lines_of_one_key_stay_in_order_in_a_topic_with_several_partitions(
    topics: TopicsClient, bootstrap: str
) -> None:
    log = await open_or_create_log(topics, await uncompacted(bootstrap, partitions=5), partitions=5)
    keys = [f"key-{number}" for number in range(20)]
    for value in ("1", "2", "3"):
        await log.append([line(key, value) for key in keys])
    lines = await read_to_end(log)
    assert len({one.partition for one in lines}) > 1
    for key in keys:
        assert [one.value for one in lines if one.key == key.encode()] == [b"1", b"2", b"3"]
        assert len({one.partition for one in lines if one.key == key.encode()}) == 1
    assert await log.end_position() == max(one.offset for one in lines) + 1


async def test_another_client_reads_all_written_lines(topics: TopicsClient, bootstrap: str) -> None:
    name = fresh_name()
    log = await open_or_create_log(topics, name)
    await log.append([line("a")])
    later = TopicsClient([bootstrap], client_id="later")
    try:
        again = await open_or_create_log(later, name)
        await again.append([line("b")])
        assert [one.key for one in await read_to_end(again)] == [b"a", b"b"]
    finally:
        await later.close()


async def test_concurrent_appends_lose_nothing_and_keep_the_order_within_each(topics: TopicsClient) -> None:
    log = await open_or_create_log(topics, fresh_name())
    async with asyncio.TaskGroup() as group:
        for writer in range(50):
            group.create_task(log.append([line(f"{writer}-{number}") for number in range(4)]))
    keys = [one.key for one in await read_to_end(log)]
    assert len(keys) == 200
    for writer in range(50):
        own_keys = [f"{writer}-{number}".encode() for number in range(4)]
        assert [key for key in keys if key in own_keys] == own_keys


async def test_followers_read_independently_of_each_other(topics: TopicsClient) -> None:
    log = await open_or_create_log(topics, fresh_name())
    await log.append([line(str(number)) for number in range(1_200)])
    first, second = await asyncio.gather(read_to_end(log), read_to_end(log))
    assert first == second
    assert [one.offset for one in first] == list(range(1_200))


async def test_a_topic_whose_lines_need_no_order_may_have_any_number_of_partitions(
    topics: TopicsClient, bootstrap: str
) -> None:
    name = await uncompacted(bootstrap, partitions=5)
    there = await open_or_create_log(topics, name, partitions=5)
    await there.append([line(f"k{i}", "theirs") for i in range(20)])
    log = await open_or_create_log(topics, name, partitions=1)
    await log.append([line(f"k{i}", "ours") for i in range(20)])
    lines = await read_to_end(log)
    assert {one.partition for one in lines} == set(range(5))
    assert len(lines) == 40
    assert {one.key: one.value for one in lines} == {f"k{i}".encode(): b"ours" for i in range(20)}


async def test_a_topic_with_too_many_partitions_is_refused_with_advice(topics: TopicsClient) -> None:
    name = fresh_name()
    await open_or_create_log(topics, name, partitions=3)
    with pytest.raises(WorldError, match=r"has 3 partitions.* 1 partition, or name another topic as config"):
        await topics.open_or_create_log(
            name, partitions=1, replication_factor=1, setting_key=KEY, needs_one_partition=True
        )


async def topic_with_policy(bootstrap: str, policy: str) -> str:
    name = fresh_name()
    client = AdminClient({"bootstrap.servers": bootstrap})
    created = client.create_topics([NewTopic(name, 1, 1, config={"cleanup.policy": policy})])
    await asyncio.wrap_future(created[name])
    return name


@pytest.mark.parametrize("policy", ["delete", "compact,delete"])
async def test_a_topic_that_deletes_lines_is_refused_with_advice(
    topics: TopicsClient, bootstrap: str, policy: str
) -> None:
    """As in Connect (TopicAdmin.verifyTopicCleanupPolicyOnlyCompact)."""
    name = await topic_with_policy(bootstrap, policy)
    with pytest.raises(
        WorldError, match=rf"cleanup\.policy={policy}.* set it to compact by `kafka-configs.sh"
    ) as raised:
        await open_or_create_log(topics, name)
    assert (
        f"kafka-configs.sh --bootstrap-server {bootstrap} --alter --entity-type topics --entity-name {name} "
        "--add-config cleanup.policy=compact`; or, if the topic has no records, delete it by `kafka-topics.sh "
        f"--bootstrap-server {bootstrap} --delete --topic {name}`, and the worker creates it correctly; or name another"
    ) in str(raised.value)


@pytest.mark.parametrize("policy", ["compact,compact", ""])
async def test_a_topic_that_deletes_no_lines_is_accepted(topics: TopicsClient, bootstrap: str, policy: str) -> None:
    """As in Connect, which compares the set of the policies, and accepts an empty one."""
    log = await open_or_create_log(topics, await topic_with_policy(bootstrap, policy))
    assert await log.append([line("a")]) == 1


async def test_more_replicas_than_brokers_are_refused_with_advice(topics: TopicsClient) -> None:
    with pytest.raises(WorldError, match=r"set config\.storage\.replication\.factor to at most"):
        await topics.open_or_create_log(fresh_name(), partitions=1, replication_factor=3, setting_key=KEY)


async def test_the_cluster_has_an_id(topics: TopicsClient) -> None:
    assert await topics.cluster_id()


async def test_a_topic_that_is_deleted_and_created_again_has_another_id(topics: TopicsClient, bootstrap: str) -> None:
    name, admin = fresh_name(), AdminClient({"bootstrap.servers": bootstrap})
    first = await (await open_or_create_log(topics, name)).topic_id()
    assert len(first) == 16
    assert first == await topics.topic_id(name)
    assert first != await (await open_or_create_log(topics, fresh_name())).topic_id()
    await asyncio.wrap_future(admin.delete_topics([name])[name])
    assert first != await (await open_or_create_log(topics, name)).topic_id()


async def test_the_error_for_an_unreachable_broker_names_its_address() -> None:
    topics = TopicsClient(["127.0.0.1:1"], client_id="tests", request_timeout_ms=300)
    try:
        with pytest.raises(WorldError, match=r"bootstrap\.servers=127\.0\.0\.1:1 run"):
            await open_or_create_log(topics, "nowhere")
        with pytest.raises(WorldError, match=r"127\.0\.0\.1:1"):
            await topics.cluster_id()
    finally:
        await topics.close()


async def test_a_follower_that_waits_for_the_brokers_ends_when_its_cluster_is_closed(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = TopicsClient([bootstrap], client_id="tests")
    log = await open_or_create_log(topics, fresh_name())
    has_asked = asyncio.Event()

    async def does_not_respond(topic: str, partitions: int) -> Mapping[int, int]:
        has_asked.set()
        raise WorldError("no broker responds")

    monkeypatch.setattr(topics, "end_offsets", does_not_respond)
    following = asyncio.create_task(anext(log.follow()))
    await has_asked.wait()
    await topics.close()
    with pytest.raises(WorldError, match="no broker responds"):
        await asyncio.wait_for(following, DEADLINE_S)


async def test_a_closed_cluster_leaves_no_thread_and_ends_its_followers(bootstrap: str) -> None:
    threads_before, system_before = threading.active_count(), len(os.listdir("/proc/self/task"))
    topics = TopicsClient([bootstrap], client_id="tests")
    log = await open_or_create_log(topics, fresh_name())
    await log.append([line("a")])
    follow = log.follow()
    await anext(follow)
    await topics.close()
    await topics.close()
    with pytest.raises(WorldError, match="is closed"):
        async for _ in follow:
            pass
    with pytest.raises(WorldError, match="is closed"):
        await log.append([line("b")])
    with pytest.raises(WorldError, match="is closed"):
        await log.end_position()
    assert threading.active_count() == threads_before
    assert system_threads(at_most=system_before) <= system_before


async def test_a_follower_ends_its_thread_even_if_its_close_is_not_awaited(topics: TopicsClient) -> None:
    name = fresh_name()
    await open_or_create_log(topics, name)
    follower = topics.open_reader(name, 1)
    reading = asyncio.ensure_future(follower.poll_next_records())
    await asyncio.sleep(0)
    thread = next(one for one in threading.enumerate() if one.name.startswith(f"coterie-follow-{name}"))
    closing = asyncio.ensure_future(follower.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert await reading == []
    await asyncio.to_thread(thread.join, DEADLINE_S)
    assert not thread.is_alive()


async def test_a_cancelled_append_does_not_affect_other_appends(topics: TopicsClient) -> None:
    log = await open_or_create_log(topics, fresh_name())
    given_up = asyncio.ensure_future(log.append([line(str(number)) for number in range(100)]))
    await asyncio.sleep(0)
    given_up.cancel()
    end = await log.append([line("last")])
    assert [one.key for one in await read_to_end(log)][-1] == b"last"
    assert await log.end_position() == end
