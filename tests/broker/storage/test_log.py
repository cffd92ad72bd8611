"""The log: group commit, a full disk, two brokers on one directory, files of another layout."""

import asyncio
import sqlite3
import threading
from functools import partial
from pathlib import Path

import pytest

from coterie.broker.storage.log import BrokerLog, open_log
from coterie.broker.storage.store import DamagedLogError, Store
from coterie.nouns.errors import WorldError
from coterie.wire.batches import NewRecord, decode_records, encode_batch, read_head
from coterie.wire.errors import ErrorCode, KafkaRefusal
from tests.broker.full_disk import fill_disk, make_room


def batch(*values: bytes, timestamp_ms: int = 1) -> bytes:
    return encode_batch([NewRecord(key=None, value=value) for value in values], timestamp_ms=timestamp_ms)


def append(log: BrokerLog, data: bytes, topic: str = "t") -> "asyncio.Future[int]":
    return log.append(log.topics[topic].partitions[0], [(data, read_head(data))])


async def test_appends_have_offsets_in_the_order_of_the_calls(tmp_path: Path) -> None:
    async with open_log(tmp_path / "log", tmp_path / "lock") as log:
        partition = (await log.create_topic("t", 1, {})).partitions[0]
        offsets = await asyncio.gather(*(append(log, batch(b"a", b"b")) for _ in range(50)))
        assert offsets == list(range(0, 100, 2))
        assert partition.end_offset == 100
        records = decode_records(await log.read(partition, 31, 10**6))
        assert records[0].offset == 30, "a batch is whole"
        assert records[-1].offset == 99


async def test_a_read_ends_at_its_limit_but_holds_at_least_one_batch(tmp_path: Path) -> None:
    async with open_log(tmp_path / "log", tmp_path / "lock") as log:
        partition = (await log.create_topic("t", 1, {})).partitions[0]
        for _ in range(3):
            await append(log, batch(b"x" * 100))
        size = len(batch(b"x" * 100))
        assert len(await log.read(partition, 0, 1)) == size
        assert len(await log.read(partition, 0, 2 * size)) == 2 * size
        assert await log.read(partition, 3, 10**6) == b""


async def test_a_topic_that_exists_fails_alone(tmp_path: Path) -> None:
    async with open_log(tmp_path / "log", tmp_path / "lock") as log:
        await log.create_topic("t", 1, {})
        outcomes = await asyncio.gather(
            log.create_topic("t", 1, {}),
            append(log, batch(b"x")),
            log.write(lambda store: store.next_number("n")),
            return_exceptions=True,
        )
        assert isinstance(outcomes[0], KafkaRefusal)
        assert outcomes[0].error is ErrorCode.topic_already_exists
        assert (outcomes[1], outcomes[2]) == (0, 0)
        assert await log.write(lambda store: store.next_number("n")) == 1


async def test_who_refuses_after_having_written_takes_the_whole_transaction_along(tmp_path: Path) -> None:
    def write_and_refuse(store: Store) -> None:
        store.next_number("n")
        raise WorldError("too late")

    async with open_log(tmp_path / "log", tmp_path / "lock") as log:
        await log.create_topic("t", 1, {})
        with pytest.raises(AssertionError, match="refuse before the first write"):
            await log.write(write_and_refuse)
        assert await log.write(lambda store: store.next_number("n")) == 0
        assert await append(log, batch(b"x")) == 0


async def test_a_full_disk_fails_what_could_not_be_written_and_nothing_else(tmp_path: Path) -> None:
    async with open_log(tmp_path / "log", tmp_path / "lock") as log:
        partition = (await log.create_topic("t", 1, {})).partitions[0]
        await append(log, batch(b"before"))
        await log.write(partial(fill_disk, spare_pages=2))
        with pytest.raises(WorldError, match="full"):
            await append(log, batch(b"x" * 500_000))
        assert partition.end_offset == 1
        await log.write(make_room)
        assert await append(log, batch(b"after")) == 1
        assert [record.value for record in decode_records(await log.read(partition, 0, 10**6))] == [b"before", b"after"]


async def test_an_append_is_seen_by_readers_though_nobody_waits_for_it(tmp_path: Path) -> None:
    async with open_log(tmp_path / "log", tmp_path / "lock") as log:
        partition = (await log.create_topic("t", 1, {})).partitions[0]
        grew = asyncio.Event()
        partition.watch(grew)
        append(log, batch(b"x")).cancel()
        async with asyncio.timeout(60):
            await grew.wait()
        assert partition.end_offset == 1


async def test_a_bug_in_telling_one_outcome_keeps_no_other_from_being_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def stumble(_: int) -> None:
        raise KeyError("who was it for?")

    async with open_log(tmp_path / "log", tmp_path / "lock") as log:
        partition = (await log.create_topic("t", 1, {})).partitions[0]
        async with asyncio.timeout(60):
            outcomes = await asyncio.gather(
                append(log, batch(b"a")),
                log.write(lambda store: store.next_number("n"), stumble),
                append(log, batch(b"b")),
            )
        assert (*outcomes,) == (0, 0, 1)
        assert partition.end_offset == 2
    assert [record.message for record in caplog.records] == [
        "Bug in Coterie: a callback failed after a durable write; the broker's memory may be stale"
    ]


async def test_who_meets_damage_hears_of_it_and_who_stands_beside_it_is_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def meet_damage(_: Store) -> None:
        error = sqlite3.DatabaseError("planted")
        error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT_INDEX
        raise error

    async with open_log(tmp_path / "log", tmp_path / "lock") as log:
        await log.create_topic("t", 1, {})
        met = threading.Barrier(2)
        first = log.write(lambda _: (met.wait(60), met.wait(60)))  # between the two the others gather
        await asyncio.to_thread(met.wait, 60)
        writes = [meet_damage, append, append, meet_damage, meet_damage, append]
        told: list[int] = []
        rest = [append(log, batch(b"a")) if write is append else log.write(meet_damage) for write in writes]
        for number, future in enumerate(rest):
            future.add_done_callback(lambda _, number=number: told.append(number))  # type: ignore[misc]
        await asyncio.to_thread(met.wait, 60)
        outcomes = await asyncio.gather(*rest, return_exceptions=True)
        assert [outcome for outcome in outcomes if isinstance(outcome, int)] == [0, 1, 2]
        assert [isinstance(outcome, DamagedLogError) for outcome in outcomes] == [
            write is meet_damage for write in writes
        ]
        assert told == sorted(told)
        await first
        assert await append(log, batch(b"again")) == 3
    (said,) = caplog.records
    assert said.message.startswith(
        "The broker's log file is corrupt; requests that read the corrupt pages fail: planted; `coterie"
    )


async def test_two_brokers_do_not_share_a_directory(tmp_path: Path) -> None:
    async with open_log(tmp_path / "log", tmp_path / "lock"):
        with pytest.raises(WorldError, match="another broker uses the data directory"):
            async with open_log(tmp_path / "log", tmp_path / "lock"):
                pass
    async with open_log(tmp_path / "log", tmp_path / "lock") as log:
        assert log.topics == {}


async def test_a_log_of_another_layout_is_refused_by_name(tmp_path: Path) -> None:
    database = sqlite3.connect(tmp_path / "log")
    database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(WorldError, match="layout 99"):
        async with open_log(tmp_path / "log", tmp_path / "lock"):
            pass


async def test_what_is_no_database_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"not a database, but long enough to look like something" * 100)
    with pytest.raises(WorldError, match="cannot be opened"):
        async with open_log(tmp_path / "log", tmp_path / "lock"):
            pass


async def test_the_cluster_and_its_numbers_outlive_a_restart(tmp_path: Path) -> None:
    async with open_log(tmp_path / "log", tmp_path / "lock") as log:
        cluster_id = log.cluster_id
        topic = await log.create_topic("t", 3, {"cleanup.policy": "compact"})
        assert [await log.write(lambda store: store.next_number("producer")) for _ in range(3)] == [0, 1, 2]
    async with open_log(tmp_path / "log", tmp_path / "lock") as log:
        assert log.cluster_id == cluster_id
        assert log.topics["t"].topic_id == topic.topic_id
        assert (len(log.topics["t"].partitions), log.topics["t"].configs) == (3, {"cleanup.policy": "compact"})
        assert await log.write(lambda store: store.next_number("producer")) == 3
