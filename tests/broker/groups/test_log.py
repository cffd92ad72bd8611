"""The records of groups in the broker's log: what a load returns, and what a broker restores at its start."""

import asyncio
import gc
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coterie.broker.context import BrokerContext
from coterie.broker.groups.classic import CLASSIC_TOPIC
from coterie.broker.groups.log import BATCH_BYTES_MAX, BATCH_RECORDS_MAX, GroupLog
from coterie.broker.settings import BrokerSettings
from coterie.broker.storage.log import open_log
from coterie.broker.storage.store import Store
from coterie.groups.classic.offset_messages import CommittedOffset, OffsetRemoved, OffsetWritten
from coterie.groups.classic.state import ClassicGroupSettings
from coterie.nouns.errors import WorldError
from coterie.nouns.ids import GroupId, TopicPartition
from coterie.wire.batch_filter import split_records
from coterie.wire.batches import (
    NewRecord,
    decode_uncompressed_records_without_control,
    encode_batch,
    iter_whole_batch_headers,
    read_batch_header,
)
from coterie.wire.errors import ErrorCode
from tests.broker.conftest import QUICK, RawClient, ThreadedBroker, raw_client
from tests.broker.full_disk import fill_disk, lift_limit
from tests.broker.groups.member import Member

COMMIT, FETCH, CREATE, DELETE_TOPICS = 8, 9, 19, 20
G, H = GroupId("g"), GroupId("h")


def written(offset: int, topic: str = "t") -> OffsetWritten:
    return OffsetWritten(
        partition=TopicPartition(topic, 0), committed_offset=CommittedOffset(offset=offset, committed_at_ms=1)
    )


async def test_a_load_returns_the_last_record_of_each_key_without_tombstones(tmp_path: Path) -> None:
    async with open_log(tmp_path / "log", tmp_path / "lock") as log:
        lines = await GroupLog.open(log, CLASSIC_TOPIC)
        first = lines.append(G, [written(1), written(2), written(7, "u")], now_ms=1)
        second = lines.append(H, [written(3), OffsetRemoved(partition=TopicPartition("t", 0))], now_ms=1)
        await asyncio.gather(first, second, lines.append(G, [written(4)], now_ms=1))
        assert await lines.load_all() == {G: [written(4), written(7, "u")]}
        assert await lines.load(G) == [written(4), written(7, "u")]
        assert await lines.load(H) == ()


async def test_any_number_of_records_is_split_into_batches_that_can_be_compacted(tmp_path: Path) -> None:
    tombstones = [OffsetRemoved(partition=TopicPartition("gone", number)) for number in range(BATCH_RECORDS_MAX + 1)]
    large = [
        OffsetWritten(
            partition=TopicPartition("t", number),
            committed_offset=CommittedOffset(offset=1, metadata="m" * 30_000, committed_at_ms=1),
        )
        for number in range(2 * BATCH_BYTES_MAX // 30_000 + 1)
    ]
    async with open_log(tmp_path / "log", tmp_path / "lock") as log:
        lines = await GroupLog.open(log, CLASSIC_TOPIC)
        await lines.append(G, [*tombstones, *large], now_ms=1)
        (partition,) = log.topics["__consumer_offsets"].partitions
        data = await log.read(partition, 0, 10**8)
        heads = [head for _, head in iter_whole_batch_headers(data)]
        assert partition.end_offset == sum(head.record_count for head in heads) == len(tombstones) + len(large)
        assert len(heads) == 4
        assert all(head.record_count <= BATCH_RECORDS_MAX for head in heads)
        assert all(head.size_bytes <= BATCH_BYTES_MAX * 1.1 for head in heads)
        assert sum(
            len(split_records(data[at : at + head.size_bytes], head)) for at, head in iter_whole_batch_headers(data)
        ) == len(tombstones) + len(large)
        assert await lines.load(G) == large


async def test_records_that_need_several_batches_are_all_written_or_none(tmp_path: Path) -> None:
    tombstones = [OffsetRemoved(partition=TopicPartition("gone", number)) for number in range(2 * BATCH_RECORDS_MAX)]
    async with open_log(tmp_path / "log", tmp_path / "lock") as log:
        lines = await GroupLog.open(log, CLASSIC_TOPIC)
        (partition,) = log.topics["__consumer_offsets"].partitions

        batch = encode_batch([NewRecord(key=bytes(15), value=None)] * BATCH_RECORDS_MAX, timestamp_ms=1)

        def leave_room(store: Store) -> None:
            (page_size,) = store.database.execute("PRAGMA page_size").fetchone()
            fill_disk(store, spare_pages=len(batch) * 3 // 2 // page_size)

        await log.run_write(leave_room)
        with pytest.raises(WorldError, match="cannot be written"):
            await lines.append(G, tombstones, now_ms=1)
        assert partition.end_offset == 0
        await lines.append(G, tombstones[:BATCH_RECORDS_MAX], now_ms=1)
        assert partition.end_offset == BATCH_RECORDS_MAX, "one of the two batches was written"


async def test_groups_that_load_at_the_same_time_share_a_read_of_the_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_log(tmp_path / "log", tmp_path / "lock") as log:
        lines = await GroupLog.open(log, CLASSIC_TOPIC)
        await lines.append(G, [written(1)], now_ms=1)
        reads: list[int] = []
        read = log.read

        async def counted(partition: Any, offset: int, size_max: int) -> bytes:
            reads.append(offset)
            return await read(partition, offset, size_max)

        monkeypatch.setattr(log, "read", counted)
        loads = (lines.load(G), *(lines.load(GroupId(f"g{number}")) for number in range(50)))
        loaded = await asyncio.gather(*loads)
        assert loaded == [[written(1)], *[()] * 50]
        # The first load reads alone, all later ones share a second read; each ends with an empty read.
        assert reads.count(0) <= 2


@pytest.mark.parametrize("failure", [WorldError("planted"), KeyError("planted")])
async def test_loads_that_share_a_failed_read_all_fail_and_the_next_load_reads_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    unfetched: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unfetched.append(context))
    async with open_log(tmp_path / "log", tmp_path / "lock") as log:
        lines = await GroupLog.open(log, CLASSIC_TOPIC)
        await lines.append(G, [written(1)], now_ms=1)
        reads = []
        is_reading, may_go_on = asyncio.Event(), asyncio.Event()

        async def fail_once(*_: Any) -> bytes:
            reads.append(1)
            if len(reads) == 1:
                is_reading.set()
                await may_go_on.wait()
            if len(reads) == 2:
                raise failure
            return b""

        with monkeypatch.context() as patched:
            patched.setattr(log, "read", fail_once)
            first = asyncio.create_task(lines.load(GroupId("first")))
            await is_reading.wait()
            loads = [asyncio.create_task(lines.load(group_id)) for group_id in (G, H, G, GroupId("given up"))]
            await asyncio.sleep(0)  # all of them wait for the end of the first pass
            loads[3].cancel()  # a cancelled load gets no result, and asyncio logs no warning about it
            may_go_on.set()
            async with asyncio.timeout(60):
                assert await first == ()
                outcomes = await asyncio.gather(*loads, return_exceptions=True)
        assert outcomes[:3] == [failure] * 3
        assert isinstance(outcomes[3], asyncio.CancelledError)
        assert await lines.load(G) == [written(1)]
    del outcomes, loads
    gc.collect()
    assert unfetched == []


async def test_another_load_continues_when_the_load_that_reads_is_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_log(tmp_path / "log", tmp_path / "lock") as log:
        lines = await GroupLog.open(log, CLASSIC_TOPIC)
        await lines.append(G, [written(1)], now_ms=1)
        is_reading, may_go_on, reading = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def never(*_: Any) -> bytes:
            if not is_reading.is_set():
                is_reading.set()
                await may_go_on.wait()
                return b""
            reading.set()
            await asyncio.get_running_loop().create_future()
            return b""

        with monkeypatch.context() as patched:
            patched.setattr(log, "read", never)
            first = asyncio.create_task(lines.load(GroupId("first")))
            await is_reading.wait()
            loads = [asyncio.create_task(lines.load(group_id)) for group_id in (H, G, H)]
            await asyncio.sleep(0)  # all of them wait for the end of the first pass
            may_go_on.set()
            async with asyncio.timeout(60):
                assert await first == ()
                await reading.wait()
            loads.append(asyncio.create_task(lines.load(G)))
            await asyncio.sleep(0)
        loads[0].cancel()
        async with asyncio.timeout(60):
            outcomes = await asyncio.gather(*loads, return_exceptions=True)
        assert isinstance(outcomes[0], asyncio.CancelledError)
        assert outcomes[1:] == [[written(1)], (), [written(1)]]


async def test_an_undecodable_record_is_reported_in_one_sentence(tmp_path: Path) -> None:
    async with open_log(tmp_path / "log", tmp_path / "lock") as log:
        lines = await GroupLog.open(log, CLASSIC_TOPIC)
        await lines.append(G, [written(1)], now_ms=1)
        (partition,) = log.topics["__consumer_offsets"].partitions
        damaged = encode_batch([NewRecord(key=b"\0\1\0\1g\0\1t\0\0\0\0", value=b"\x7f\0")], timestamp_ms=1)
        await log.append(partition, [(damaged, read_batch_header(damaged))])
        with pytest.raises(WorldError, match="cannot decode a record of topic __consumer_offsets"):
            await lines.load_all()


def commit(
    client: RawClient, topic: str, offset: int, member: Member | None = None, *, metadata: str = ""
) -> ErrorCode:
    partition = {"partition_index": 0, "committed_offset": offset, "committed_metadata": metadata}
    partition |= {"committed_leader_epoch": 0}
    answer = client.ask(
        COMMIT, 9, group_id="g", topics=[{"name": topic, "partitions": [partition]}], group_instance_id=None,
        generation_id_or_member_epoch=-1 if member is None else member.generation,
        member_id="" if member is None else member.member_id,
    )  # fmt: skip
    error: ErrorCode = answer.topics[0].partitions[0].error_code
    return error


def fetched(client: RawClient) -> dict[str, int]:
    answer = client.ask(FETCH, 9, groups=[{"group_id": "g", "member_id": None, "topics": None}], require_stable=True)
    return {topic.name: topic.partitions[0].committed_offset for topic in answer.groups[0].topics}


def create(client: RawClient, *topics: str) -> None:
    request = [
        {"name": topic, "num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()}
        for topic in topics
    ]
    client.ask(CREATE, 7, topics=request, timeout=10_000, validate_only=False)


def restart(broker: ThreadedBroker) -> None:
    broker.stop()
    broker.start()


def test_offsets_of_groups_with_and_without_members_survive_a_restart(broker: ThreadedBroker) -> None:
    with raw_client(broker.port) as client:
        create(client, "t", "u")
        assert commit(client, "t", 3) is ErrorCode.none
        member = Member(client)
        member.join()
        member.sync((member.member_id, b"work"))
        assert commit(client, "u", 4, member) is ErrorCode.none
    restart(broker)
    with raw_client(broker.port) as client:
        assert fetched(client) == {"t": 3, "u": 4}
        assert commit(client, "u", 5, member) is ErrorCode.none
        assert fetched(client) == {"t": 3, "u": 5}


def test_a_restart_removes_the_offsets_of_a_topic_whose_deletion_a_crash_interrupted(broker: ThreadedBroker) -> None:
    with raw_client(broker.port) as client:
        create(client, "gone", "recreated", "t")
        for topic in ("gone", "recreated", "t"):
            commit(client, topic, 3)

    async def end_topics(node: BrokerContext) -> None:
        log = node.log
        await log.delete_topic(log.topics["gone"])
        await log.delete_topic(log.topics["recreated"])
        await log.create_topic("recreated", 1, {})

    broker.run(end_topics)
    restart(broker)
    with raw_client(broker.port) as client:
        assert fetched(client) == {"t": 3}
    restart(broker)
    with raw_client(broker.port) as client:
        assert fetched(client) == {"t": 3}


def test_offsets_that_the_log_cannot_write_are_neither_acknowledged_nor_visible(broker: ThreadedBroker) -> None:
    with raw_client(broker.port) as client:
        create(client, "t")
        broker.run(lambda node: node.log.run_write(fill_disk))
        offset = 0
        while (error := commit(client, "t", offset + 1, metadata="x" * 4096)) is ErrorCode.none:
            offset += 1
        assert error is ErrorCode.not_coordinator
        # A request during the reload of the group waits for its end.
        assert fetched(client) == ({"t": offset} if offset else {})
        broker.run(lambda node: node.log.run_write(lift_limit))
        assert commit(client, "t", 7) is ErrorCode.none
        assert fetched(client) == {"t": 7}


@pytest.mark.parametrize(
    "settings", [ClassicGroupSettings(offsets_retention_ms=200, offsets_retention_check_interval_ms=50)], indirect=True
)
def test_expired_offsets_are_removed_by_tombstones(broker: ThreadedBroker) -> None:
    with raw_client(broker.port) as client:
        create(client, "t")
        commit(client, "t", 3)
        wait_until(lambda: fetched(client) == {})
        wait_until(lambda: not broker.broker.context.groups.ids())
    (partition,) = broker.broker.context.log.topics["__consumer_offsets"].partitions
    data = broker.run(lambda node: node.log.read(partition, 0, 10**6))
    assert [line.value is None for line in decode_uncompressed_records_without_control(data)] == [False, True, True]


@pytest.fixture
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> BrokerSettings:
    return BrokerSettings(data_path=tmp_path / "broker", group_limits=getattr(request, "param", QUICK))


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
