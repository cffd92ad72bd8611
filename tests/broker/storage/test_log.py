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
from coterie.wire.batches import NewRecord, decode_uncompressed_records_without_control, encode_batch, read_batch_header
from coterie.wire.errors import ErrorCode, KafkaRefusal
from tests.broker.full_disk import fill_disk, lift_limit


def batch(*values: bytes, timestamp_ms: int = 1) -> bytes:
    return encode_batch([NewRecord(key=None, value=value) for value in values], timestamp_ms=timestamp_ms)


def append(log: BrokerLog, data: bytes, topic: str = "t") -> "asyncio.Future[int]":
    return log.append(log.topics[topic].partitions[0], [(data, read_batch_header(data))])


async def test_appends_have_offsets_in_the_order_of_the_calls(tmp_path: Path) -> None:
    async with open_log(tmp_path / "log", tmp_path / "lock") as log:
        partition = (await log.create_topic("t", 1, {})).partitions[0]
        offsets = await asyncio.gather(*(append(log, batch(b"a", b"b")) for _ in range(50)))
        assert offsets == list(range(0, 100, 2))
        assert partition.end_offset == 100
        records = decode_uncompressed_records_without_control(await log.read(partition, 31, 10**6))
        assert records[0].offset == 30, "a read returns whole batches"
        assert records[-1].offset == 99


async def test_a_read_ends_at_its_limit_but_contains_at_least_one_batch(tmp_path: Path) -> None:
    async with open_log(tmp_path / "log", tmp_path / "lock") as log:
        partition = (await log.create_topic("t", 1, {})).partitions[0]
        for _ in range(3):
            await append(log, batch(b"x" * 100))
        size = len(batch(b"x" * 100))
        assert len(await log.read(partition, 0, 1)) == size
        assert len(await log.read(partition, 0, 2 * size)) == 2 * size
        assert await log.read(partition, 3, 10**6) == b""


async def test_creating_an_existing_topic_fails_and_other_writes_succeed(tmp_path: Path) -> None:
    async with open_log(tmp_path / "log", tmp_path / "lock") as log:
        await log.create_topic("t", 1, {})
        outcomes = await asyncio.gather(
            log.create_topic("t", 1, {}),
            append(log, batch(b"x")),
            log.run_write(lambda store: store.get_and_increment_counter("n")),
            return_exceptions=True,
        )
        assert isinstance(outcomes[0], KafkaRefusal)
        assert outcomes[0].error is ErrorCode.topic_already_exists
        assert (outcomes[1], outcomes[2]) == (0, 0)
        assert await log.run_write(lambda store: store.get_and_increment_counter("n")) == 1


async def test_a_refusal_after_a_write_rolls_back_the_whole_transaction(tmp_path: Path) -> None:
    def write_and_refuse(store: Store) -> None:
        store.get_and_increment_counter("n")
        raise WorldError("too late")

    async with open_log(tmp_path / "log", tmp_path / "lock") as log:
        await log.create_topic("t", 1, {})
        with pytest.raises(AssertionError, match="refuse before the first write"):
            await log.run_write(write_and_refuse)
        assert await log.run_write(lambda store: store.get_and_increment_counter("n")) == 0
        assert await append(log, batch(b"x")) == 0


async def test_a_full_disk_fails_only_the_append_that_does_not_fit(tmp_path: Path) -> None:
    async with open_log(tmp_path / "log", tmp_path / "lock") as log:
        partition = (await log.create_topic("t", 1, {})).partitions[0]
        await append(log, batch(b"before"))
        await log.run_write(partial(fill_disk, spare_pages=2))
        with pytest.raises(WorldError, match="full"):
            await append(log, batch(b"x" * 500_000))
        assert partition.end_offset == 1
        await log.run_write(lift_limit)
        assert await append(log, batch(b"after")) == 1
        assert [
            record.value for record in decode_uncompressed_records_without_control(await log.read(partition, 0, 10**6))
        ] == [
            b"before",
            b"after",
        ]


async def test_a_cancelled_append_is_visible_to_readers(tmp_path: Path) -> None:
    async with open_log(tmp_path / "log", tmp_path / "lock") as log:
        partition = (await log.create_topic("t", 1, {})).partitions[0]
        grew = asyncio.Event()
        partition.watch(grew)
        append(log, batch(b"x")).cancel()
        async with asyncio.timeout(60):
            await grew.wait()
        assert partition.end_offset == 1


async def test_a_failed_callback_of_one_write_does_not_affect_the_other_writes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def stumble(_: int) -> None:
        raise KeyError("planted")

    async with open_log(tmp_path / "log", tmp_path / "lock") as log:
        partition = (await log.create_topic("t", 1, {})).partitions[0]
        async with asyncio.timeout(60):
            outcomes = await asyncio.gather(
                append(log, batch(b"a")),
                log.run_write(lambda store: store.get_and_increment_counter("n"), stumble),
                append(log, batch(b"b")),
            )
        assert (*outcomes,) == (0, 0, 1)
        assert partition.end_offset == 2
    assert [record.message for record in caplog.records] == [
        "Bug in Coterie: a callback failed after a durable write; the broker's state in memory may differ from its "
        "log: restart the broker"
    ]


async def test_damage_fails_only_the_writes_that_meet_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def meet_damage(_: Store) -> None:
        error = sqlite3.DatabaseError("planted")
        error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT_INDEX
        raise error

    async with open_log(tmp_path / "log", tmp_path / "lock") as log:
        await log.create_topic("t", 1, {})
        met = threading.Barrier(2)
        first = log.run_write(lambda _: (met.wait(60), met.wait(60)))  # the other writes queue up between the two waits
        await asyncio.to_thread(met.wait, 60)
        writes = [meet_damage, append, append, meet_damage, meet_damage, append]
        completed: list[int] = []
        rest = [append(log, batch(b"a")) if write is append else log.run_write(meet_damage) for write in writes]
        for number, future in enumerate(rest):
            future.add_done_callback(lambda _, number=number: completed.append(number))  # type: ignore[misc]
        await asyncio.to_thread(met.wait, 60)
        outcomes = await asyncio.gather(*rest, return_exceptions=True)
        assert [outcome for outcome in outcomes if isinstance(outcome, int)] == [0, 1, 2]
        assert [isinstance(outcome, DamagedLogError) for outcome in outcomes] == [
            write is meet_damage for write in writes
        ]
        assert completed == sorted(completed)
        await first
        assert await append(log, batch(b"again")) == 3
    (record,) = caplog.records
    assert record.message.startswith(
        "The broker's log file is corrupt; requests that read the corrupt pages fail: planted; `coterie"
    )


async def test_two_brokers_do_not_share_a_directory(tmp_path: Path) -> None:
    async with open_log(tmp_path / "log", tmp_path / "lock"):
        with pytest.raises(WorldError, match="another broker or a backup uses the data directory"):
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


async def test_a_file_that_is_no_database_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"not a database, but long enough to look like something" * 100)
    with pytest.raises(WorldError, match="cannot be opened"):
        async with open_log(tmp_path / "log", tmp_path / "lock"):
            pass


async def test_the_cluster_id_and_the_counters_survive_a_restart(tmp_path: Path) -> None:
    async with open_log(tmp_path / "log", tmp_path / "lock") as log:
        cluster_id = log.cluster_id
        topic = await log.create_topic("t", 3, {"cleanup.policy": "compact"})
        assert [await log.run_write(lambda store: store.get_and_increment_counter("producer")) for _ in range(3)] == [
            0,
            1,
            2,
        ]
    async with open_log(tmp_path / "log", tmp_path / "lock") as log:
        assert log.cluster_id == cluster_id
        assert log.topics["t"].topic_id == topic.topic_id
        assert (len(log.topics["t"].partitions), log.topics["t"].configs) == (3, {"cleanup.policy": "compact"})
        assert await log.run_write(lambda store: store.get_and_increment_counter("producer")) == 3
