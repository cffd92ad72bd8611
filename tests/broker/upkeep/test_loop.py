"""The upkeep of a log in use: compaction, retention and deleted topics over real rows."""

import asyncio
import logging
import os
import sqlite3
import struct
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from crc32c import crc32c

from coterie.broker.groups.classic import CLASSIC_TOPIC
from coterie.broker.groups.log import GroupLog
from coterie.broker.settings import Upkeep
from coterie.broker.storage.log import BrokerLog, Partition, open_log
from coterie.broker.storage.store import Store, TopicGoneError, connect_read_only
from coterie.broker.topics.policies import TopicPolicy, policy_of
from coterie.broker.upkeep import loop
from coterie.broker.upkeep.loop import keep_up
from coterie.broker.upkeep.rows import Row, RowReader, remove_rows
from coterie.groups.classic.offset_messages import CommittedOffset, OffsetRemoved, OffsetWritten
from coterie.nouns.ids import GroupId, TopicPartition
from coterie.wire.batches import BatchRecord, NewRecord, decode_records, encode_batch, read_head
from tests.wire.fuzzing import batch_of

DEADLINE_S = 60
OFTEN = Upkeep(retention_check_interval_ms=5, cleaner_backoff_ms=5, initial_delay_ms=0)
COMPACT = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "delete.retention.ms": "1000"}


@dataclass
class Stage:
    """A log that is looked after all the time, by a clock of ours."""

    log: BrokerLog
    path: Path
    now_ms: int = 1_000_000

    async def topic(self, configs: Mapping[str, str]) -> Partition:
        return (await self.log.create_topic("t", 1, configs)).partitions[0]

    async def put(self, partition: Partition, *records: tuple[str, str | None], timestamp_ms: int = 0) -> int:
        data = encode_batch(
            [NewRecord(key=key.encode(), value=None if value is None else value.encode()) for key, value in records],
            timestamp_ms=timestamp_ms or self.now_ms,
        )
        return await self.log.append(partition, [(data, read_head(data))])

    async def records(self, partition: Partition, offset: int = 0) -> list[BatchRecord]:
        found: list[BatchRecord] = []
        while data := await self.log.read(partition, offset, 10_000):
            found += [record for record in decode_records(data) if record.offset >= offset]
            offset = found[-1].offset + 1 if found else offset
            offset = max(offset, last_offset(data) + 1)
        return found

    async def told(self, partition: Partition) -> list[tuple[str, str | None]]:
        return [
            ((record.key or b"").decode(), None if record.value is None else record.value.decode())
            for record in await self.records(partition)
        ]

    async def until_told(self, partition: Partition, wanted: Sequence[tuple[str, str | None]]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while await self.told(partition) != list(wanted):  # noqa: ASYNC110 - as in `until`
                await asyncio.sleep(0.005)

    def rows(self, query: str = "SELECT COUNT(*) FROM batches") -> int:
        with closing(connect_read_only(self.path)) as database:
            (count,) = database.execute(query).fetchone()
            return int(count)


def last_offset(data: bytes) -> int:
    at = 0
    while True:
        head = read_head(data, at)
        at += head.size_bytes
        if at >= len(data):
            return head.last_offset


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 - what is awaited are rows that another thread writes
            await asyncio.sleep(0.005)


@asynccontextmanager
async def staged(path: Path, settings: Upkeep = OFTEN) -> AsyncIterator[Stage]:
    async with open_log(path / "log", path / "lock") as log, asyncio.TaskGroup() as tasks:
        stage = Stage(log, path / "log")
        keeping = tasks.create_task(keep_up(log, path / "log", settings, now_ms=lambda: stage.now_ms))
        yield stage
        keeping.cancel()


async def test_a_compacted_topic_keeps_offsets_and_the_last_value_of_each_key(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        partition = await stage.topic(COMPACT)
        for n in range(20):
            await stage.put(partition, ("a", f"a{n}"), (f"b{n % 3}", f"b{n}"))
        await stage.put(partition, ("end", ""))

        kept = [("b2", "b17"), ("b0", "b18"), ("a", "a19"), ("b1", "b19"), ("end", "")]
        await stage.until_told(partition, kept)
        assert [record.offset for record in await stage.records(partition)] == [35, 37, 38, 39, 40]
        assert partition.end_offset == 41
        assert (partition.start_offset, stage.rows()) == (0, 4)
        in_the_hole = await stage.log.read(partition, 3, 1)
        assert (read_head(in_the_hole).base_offset, read_head(in_the_hole).last_offset) == (34, 35)


async def test_the_newest_batch_and_what_is_young_stay_as_they_are(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        partition = await stage.topic(COMPACT | {"min.compaction.lag.ms": "500"})
        await stage.put(partition, ("a", "1"))
        await stage.put(partition, ("a", "2"))
        stage.now_ms += 400
        await stage.put(partition, ("a", "3"))
        await stage.put(partition, ("a", "4"))
        stage.now_ms += 150

        await stage.until_told(partition, [("a", "2"), ("a", "3"), ("a", "4")])
        stage.now_ms += 10_000

        await stage.until_told(partition, [("a", "3"), ("a", "4")])


async def test_a_tombstone_goes_by_itself_when_its_delay_is_over(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        partition = await stage.topic(COMPACT)
        await stage.put(partition, ("a", "1"))
        await stage.put(partition, ("a", None))
        await stage.put(partition, ("end", ""))

        await stage.until_told(partition, [("a", None), ("end", "")])
        stage.now_ms += 999
        await stage.put(partition, ("end", "2"))
        await until(lambda: stage.rows("SELECT cleaned_offset FROM partitions") == 3)
        assert ("a", None) in await stage.told(partition)
        stage.now_ms += 1

        await stage.until_told(partition, [("end", ""), ("end", "2")])


async def test_what_cannot_be_unpacked_is_kept_whole_and_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with staged(tmp_path) as stage:
        partition = await stage.topic(COMPACT)
        for value in range(3):
            data = bytearray(encode_batch([NewRecord(key=b"a", value=b"%d" % value)], timestamp_ms=1))
            data[30] ^= 0xFF  # its CRC is wrong now, as on a disk that forgets
            await stage.log.append(partition, [(bytes(data), read_head(bytes(data)))])
        await stage.put(partition, ("a", "x"))
        await stage.put(partition, ("a", "y"))
        await stage.put(partition, ("a", None))
        await stage.put(partition, ("end", ""))
        await until(lambda: stage.rows() == 5)
        stage.now_ms += 5_000
        await stage.put(partition, ("end", "2"))
        await until(lambda: stage.rows("SELECT cleaned_offset FROM partitions") == 7)
        assert stage.rows() == 6, "a value may stand in what cannot be read, so the tombstone stays"
    said = [record for record in caplog.records if "cannot be read" in record.message]
    assert len(said) == 1
    assert "Maintenance of t-0" in said[0].message


async def test_a_partition_rests_when_what_waited_for_its_horizon_can_no_longer_be_read(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        partition = await stage.topic(COMPACT)
        await stage.put(partition, ("a", None))
        await stage.put(partition, ("end", ""))
        await until(lambda: stage.rows("SELECT COUNT(delete_horizon_ms) FROM batches") == 1)
        await until(lambda: stage.rows("SELECT MAX(cleaned_offset) FROM partitions") == 1)  # the pass is over
        await stage.log.write(
            lambda store: (
                store.database.execute(
                    "UPDATE batches SET data = CAST(SUBSTR(data, 1, LENGTH(data) - 1) || x'ff' AS BLOB)"
                    " WHERE last_offset = 0"
                ).rowcount
            )
        )
        statements: list[str] = []
        await stage.log.write(lambda store: store.database.set_trace_callback(statements.append))
        stage.now_ms += 1_000
        await until(lambda: stage.rows("SELECT COUNT(delete_horizon_ms) FROM batches") == 0)
        other = (await stage.log.create_topic("u", 1, COMPACT)).partitions[0]
        for n in range(1, 6):  # each is another turn
            await stage.put(other, ("a", str(n)))
            await stage.put(other, ("a", str(n)))
            await until(lambda: stage.rows("SELECT MAX(cleaned_offset) FROM partitions") == 2 * n - 1)  # noqa: B023
        passes = [line for line in statements if "SET cleaned_offset" in line and line.endswith(f"= {partition.id}")]
        assert len(passes) == 1


async def test_compaction_stops_before_an_open_transaction(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        partition = await stage.topic(COMPACT)
        partition.open_offset = 2
        for value in "1234":
            await stage.put(partition, ("a", value))

        await stage.until_told(partition, [("a", "2"), ("a", "3"), ("a", "4")])
        await until(lambda: stage.rows("SELECT cleaned_offset FROM partitions") == 2)
        partition.open_offset = None

        await stage.until_told(partition, [("a", "3"), ("a", "4")])


async def test_what_an_aborted_transaction_wrote_goes_and_its_marker_later(tmp_path: Path) -> None:
    async with staged(tmp_path, Upkeep(initial_delay_ms=10**9)) as stage:
        partition = await stage.topic(COMPACT)
        await stage.put(partition, ("a", "before"))
        for attributes, key in ((0x10, b"a"), (0x30, struct.pack(">hh", 0, 0))):
            data = bytearray(encode_batch([NewRecord(key=key, value=b"")], timestamp_ms=1))
            data[21:23] = struct.pack(">h", attributes)
            data[43:53] = struct.pack(">qh", 77, 0)
            data = with_crc(data)
            await stage.log.append(partition, [(bytes(data), read_head(bytes(data)))])
        await stage.log.write(
            lambda store: store.database.execute(
                "INSERT INTO aborted (partition, last_offset, first_offset, producer_id) VALUES (?, 2, 1, 77)",
                (partition.id,),
            )
        )
        await stage.put(partition, ("end", ""))
        async with looked_after(stage):
            await until(lambda: stage.rows() == 3)
            assert await stage.told(partition) == [("a", "before"), ("end", "")]
            assert stage.rows("SELECT COUNT(*) FROM aborted") == 1
            stage.now_ms += 1_000
            await until(lambda: stage.rows() == 2 and stage.rows("SELECT COUNT(*) FROM aborted") == 0)


def with_crc(data: bytearray) -> bytearray:
    data[17:21] = struct.pack(">I", crc32c(bytes(data[21:])))
    return data


@asynccontextmanager
async def looked_after(stage: Stage) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as tasks:
        keeping = tasks.create_task(keep_up(stage.log, stage.path, OFTEN, now_ms=lambda: stage.now_ms))
        yield
        keeping.cancel()


async def test_groups_are_what_they_were_after_a_compaction(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        groups = await GroupLog.open(stage.log, CLASSIC_TOPIC)
        appends = [
            groups.append(
                GroupId(f"g{n % 3}"),
                [
                    OffsetRemoved(partition=TopicPartition("t", n % 5))
                    if n % 11 == 0
                    else OffsetWritten(
                        partition=TopicPartition("t", n % 5), committed=CommittedOffset(offset=n, committed_at_ms=n)
                    )
                ],
                now_ms=1,
            )
            for n in range(500)
        ]
        await asyncio.gather(*appends)
        before = await groups.load_all()
        await until(lambda: stage.rows() <= 3 * 5 + 1)
        after = await groups.load_all()
        assert {group_id: {*records} for group_id, records in after.items()} == {
            group_id: {*records} for group_id, records in before.items()
        }
        assert sum(len(records) for records in before.values()) > 5


async def test_both_policies_hold_together(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        partition = await stage.topic(COMPACT | {"cleanup.policy": "compact,delete", "retention.ms": "1000"})
        for n in range(4):
            await stage.put(partition, ("a", str(n)), ("b", str(n)), timestamp_ms=stage.now_ms + n)
        await stage.until_told(partition, [("a", "2"), ("b", "2"), ("a", "3"), ("b", "3")])
        stage.now_ms += 1_003
        await stage.until_told(partition, [("a", "3"), ("b", "3")])
        assert partition.start_offset == 6


async def test_configs_that_cannot_be_followed_stop_nobody_elses_upkeep(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with staged(tmp_path) as stage:
        await stage.log.create_topic("a", 1, {"min.cleanable.dirty.ratio": "much"})
        partition = await stage.topic({"retention.ms": "1000"})
        await stage.put(partition, ("a", "0"), timestamp_ms=5)
        await until(lambda: partition.start_offset == 1)
    assert len([record for record in caplog.records if "its configs are invalid" in record.message]) == 1


async def test_a_hostile_batch_is_kept_whole_and_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with staged(tmp_path) as stage:
        hostile = (await stage.log.create_topic("hostile", 1, COMPACT)).partitions[0]
        for deltas in (2**63 - 1, 0), (0, 2**40):
            data = batch_of((*deltas, b"a"), (0, 1, b"b"))
            await stage.log.append(hostile, [(data, read_head(data))])
        for value in "12":
            await stage.put(hostile, ("b", value))
        partition = await stage.topic(COMPACT)
        for value in "123":
            await stage.put(partition, ("a", value))

        await stage.until_told(partition, [("a", "2"), ("a", "3")])
        assert await stage.log.read(hostile, 0, 1)
        await until(lambda: stage.rows("SELECT cleaned_offset FROM partitions ORDER BY id LIMIT 1 OFFSET 0") == 5)
        assert stage.rows(f"SELECT COUNT(*) FROM batches WHERE partition = {hostile.id}") == 4
    assert len([record for record in caplog.records if "Maintenance of hostile-0" in record.message]) == 1


@pytest.mark.parametrize("planted", [AssertionError("planted"), sqlite3.DatabaseError("planted")])
async def test_a_partition_whose_upkeep_fails_stops_nobody_elses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, planted: Exception
) -> None:
    async with staged(tmp_path, Upkeep(initial_delay_ms=10**9)) as stage:
        both = COMPACT | {"cleanup.policy": "compact,delete", "retention.ms": "1000"}
        broken = (await stage.log.create_topic("broken", 1, both)).partitions[0]
        partition = await stage.topic(both)
        for value in "1234":
            await stage.put(broken, ("a", value))
            await stage.put(partition, ("a", value))
        rows, kept = RowReader.rows, RowReader.offset_kept_by_time

        def failing_rows(reader: RowReader, partition_id: int, *args: int) -> list[Row]:
            if partition_id == broken.id:
                raise planted
            return rows(reader, partition_id, *args)

        def failing_kept(reader: RowReader, partition_id: int, *args: int) -> int:
            if partition_id == broken.id:
                raise planted
            return kept(reader, partition_id, *args)

        with monkeypatch.context() as patched:
            patched.setattr(RowReader, "rows", failing_rows)
            patched.setattr(RowReader, "offset_kept_by_time", failing_kept)
            async with looked_after(stage):
                await stage.until_told(partition, [("a", "3"), ("a", "4")])
                stage.now_ms += 1_001
                await until(lambda: partition.start_offset == 4 and stage.rows() == 4)
        told = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
        if isinstance(planted, sqlite3.Error):
            assert [line.partition(";")[0] for line in told] == [
                f"Delayed the {work} of broken-0 because its rows cannot be read"
                for work in ("retention", "compaction")
            ]
        else:
            assert told == [
                f"Bug in Coterie: the {work} of broken-0 failed; all other maintenance continues"
                for work in ("retention", "compaction")
            ]
        caplog.clear()
        async with looked_after(stage):
            await until(lambda: broken.start_offset == 4 and stage.rows() == 0)


async def test_damage_in_one_partition_stops_nobody_elses_upkeep_and_is_said_once_for_each_work(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    names = ("damaged", "sound", "gone")
    async with staged(tmp_path, Upkeep(initial_delay_ms=10**9)) as stage:
        for name in names:
            topic = await stage.log.create_topic(name, 1, {"retention.ms": "1000"})
            await asyncio.gather(*(stage.put(topic.partitions[0], ("a", str(n))) for n in range(600)))
    garble_first_leaf(tmp_path / "log", "batches_by_offset")
    async with staged(tmp_path) as stage:
        damaged, sound, gone = (stage.log.topics[name].partitions[0] for name in names)
        stage.now_ms += 1_001
        await until(lambda: sound.start_offset == gone.start_offset == 600)
        await until(lambda: stage.rows(f"SELECT COUNT(*) FROM batches WHERE partition = {sound.id}") == 0)
        await stage.log.delete_records(damaged, 599)
        await stage.put(sound, ("a", "next"))
        await stage.log.delete_records(sound, 601)
        await until(lambda: stage.rows(f"SELECT COUNT(*) FROM batches WHERE partition = {sound.id}") == 0)
        statements: list[str] = []
        await stage.log.write(lambda store: store.database.set_trace_callback(statements.append))
        for name in ("damaged", "gone"):
            await stage.log.delete_topic(stage.log.topics[name])
        await until(lambda: stage.rows(f"SELECT COUNT(*) FROM partitions WHERE id = {gone.id}") == 0)
        for _ in range(3):
            await stage.put(sound, ("a", "next"))
            await stage.log.delete_records(sound, sound.end_offset)
            await until(lambda: stage.rows(f"SELECT COUNT(*) FROM batches WHERE partition = {sound.id}") == 0)
        assert not [line for line in statements if f"FROM batches WHERE partition = {damaged.id} " in line]
    told = [record.message.partition(": ")[0] for record in caplog.records if record.levelno >= logging.WARNING]
    assert told == [
        "Delayed the retention of damaged-0 because its rows cannot be read; all other maintenance continues",
        "Delayed the removal of deleted records of damaged-0 because its rows cannot be read; all other maintenance"
        " continues",
        f"Delayed the removal of partition {damaged.id} of a deleted topic because its rows cannot be read; all other"
        " maintenance continues",
    ]


async def test_damage_that_a_write_meets_is_not_met_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []

    def meet_damage(store: Store, partition_id: int, last_offset: int) -> None:
        if partition_id == damaged.id:
            tried.append(last_offset)
            error = sqlite3.DatabaseError("planted")
            error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
            raise error
        remove_rows(store, partition_id, last_offset)

    monkeypatch.setattr("coterie.broker.upkeep.loop.remove_rows", meet_damage)
    async with staged(tmp_path, Upkeep(initial_delay_ms=10**9)) as stage:
        damaged, sound = [(await stage.log.create_topic(name, 1, {})).partitions[0] for name in ("damaged", "sound")]
        await stage.put(damaged, ("a", "1"))
        await stage.log.delete_records(damaged, 1)
        # By itself: what is written in one transaction with something else is tried once more, alone.
        await until(lambda: "Stopped the removal of deleted records of damaged-0" in caplog.text)
        await stage.put(sound, ("a", "1"))
        await stage.log.delete_records(sound, 1)
        for _ in range(3):
            await until(lambda: stage.rows() == 1)
            await stage.put(sound, ("a", "next"))
            await stage.log.delete_records(sound, sound.end_offset)
        await until(lambda: stage.rows() == 1)
    assert tried == [0]
    told = [record.message.partition(": ")[0] for record in caplog.records if record.levelno >= logging.WARNING]
    assert told == [
        "The broker's log file is corrupt; requests that read the corrupt pages fail",
        "Stopped the removal of deleted records of damaged-0 because its data is corrupt; all other maintenance"
        " continues",
    ]


async def test_rows_of_a_topic_that_is_created_while_upkeep_looks_for_hidden_rows_have_its_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, created = threading.Event(), threading.Event()
    look_for = RowReader.partitions_with_hidden_rows

    def look_late(reader: RowReader, failed: Callable[[int, sqlite3.Error], None]) -> list[tuple[int, int]]:
        looks.set()
        assert created.wait(DEADLINE_S)
        return look_for(reader, failed)

    def meet_damage(store: Store, partition_id: int, last_offset: int) -> None:
        error = sqlite3.DatabaseError("planted")
        error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
        raise error

    monkeypatch.setattr(RowReader, "partitions_with_hidden_rows", look_late)
    monkeypatch.setattr("coterie.broker.upkeep.loop.remove_rows", meet_damage)
    async with staged(tmp_path, Upkeep(initial_delay_ms=10**9)) as stage:
        await until(looks.is_set)
        partition = await stage.topic({})
        await stage.put(partition, ("a", "1"))
        await stage.log.delete_records(partition, 1)
        created.set()
        await until(lambda: "Stopped the removal" in caplog.text)
    assert "Stopped the removal of deleted records of t-0 because" in caplog.text
    assert "of a deleted topic" not in caplog.text


def garble_first_leaf(path: Path, tree: str) -> None:
    """SQLite's file format: an index's page begins with 2 above its leaves, and ends its head with the places of its
    cells, each of which begins with a page's number."""
    with closing(sqlite3.connect(path)) as database:
        (root,) = database.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (tree,)).fetchone()
        (size,) = database.execute("PRAGMA page_size").fetchone()
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    content = path.read_bytes()
    page = content[(root - 1) * size : root * size]
    assert page[0] == 2, "there are leaves under the root"
    (cell,) = struct.unpack_from(">H", page, 12)
    (leaf,) = struct.unpack_from(">I", page, cell)
    path.write_bytes(content[: (leaf - 1) * size] + b"\xff" * size + content[leaf * size :])


async def test_a_buffer_for_few_keys_takes_several_passes_to_the_same_end(tmp_path: Path) -> None:
    few = Upkeep(retention_check_interval_ms=5, cleaner_backoff_ms=5, initial_delay_ms=0, dedupe_buffer_size=180 * 10)
    async with staged(tmp_path, few) as stage:
        partition = await stage.topic(COMPACT)
        for n in range(100):
            await stage.put(partition, (f"k{n % 50}", str(n)))
        await stage.put(partition, ("end", ""))
        wanted = [(f"k{n % 50}", str(n)) for n in range(50, 100)] + [("end", "")]

        await stage.until_told(partition, wanted)


# -- retention --------------------------------------------------------------------------------------------------------


async def test_records_go_when_they_are_too_old_and_the_log_begins_behind_them(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        partition = await stage.topic({"retention.ms": "1000"})
        for n in range(5):
            await stage.put(partition, ("a", str(n)), timestamp_ms=stage.now_ms + n)
        stage.now_ms += 1_003
        await until(lambda: partition.start_offset == 3 and stage.rows() == 2)
        assert await stage.told(partition) == [("a", "3"), ("a", "4")]
        stage.now_ms += 10_000
        await until(lambda: partition.start_offset == 5 and stage.rows() == 0)
        assert await stage.put(partition, ("a", "next")) == 5
    async with open_log(tmp_path / "log", tmp_path / "lock") as log:
        partition = log.topics["t"].partitions[0]
        assert (partition.start_offset, partition.end_offset) == (5, 6)


async def test_an_emptied_log_keeps_its_end_over_a_restart(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        partition = await stage.topic({})
        await stage.put(partition, ("a", "1"), ("b", "2"))
        assert await stage.log.delete_records(partition, 99) == 2
        await until(lambda: stage.rows() == 0)
    async with open_log(tmp_path / "log", tmp_path / "lock") as log:
        partition = log.topics["t"].partitions[0]
        assert (partition.start_offset, partition.end_offset) == (2, 2)


async def test_a_partition_keeps_as_many_bytes_as_it_may(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        size = len(encode_batch([NewRecord(key=b"a", value=b"x" * 100)], timestamp_ms=1))
        partition = await stage.topic({"retention.bytes": str(3 * size), "retention.ms": "-1"})
        for _ in range(10):
            await stage.put(partition, ("a", "x" * 100))
        await until(lambda: partition.start_offset == 7 and stage.rows() == 3)


async def test_a_batch_without_a_time_is_as_old_as_the_one_behind_it(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        partition = await stage.topic({"retention.ms": "1000"})
        await stage.put(partition, ("a", "0"), timestamp_ms=-1)
        await stage.put(partition, ("a", "1"), timestamp_ms=5)
        await stage.put(partition, ("a", "2"), timestamp_ms=-1)
        await until(lambda: partition.start_offset == 2 and stage.rows() == 1)


async def test_records_in_the_middle_of_a_batch_can_be_deleted(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        partition = await stage.topic({})
        await stage.put(partition, ("a", "1"), ("b", "2"))
        await stage.put(partition, ("c", "3"))
        assert await stage.log.delete_records(partition, 1) == 1
        assert await stage.log.delete_records(partition, 0) == 1, "a start never goes back"
        assert [record.offset for record in await stage.records(partition, 1)] == [1, 2]


# -- space ------------------------------------------------------------------------------------------------------------


async def fill(stage: Stage, partition: Partition, size_bytes: int) -> None:
    data = encode_batch([NewRecord(key=b"a", value=os.urandom(500_000))], timestamp_ms=stage.now_ms)
    head = read_head(data)
    await asyncio.gather(*(stage.log.append(partition, [(data, head)]) for _ in range(size_bytes // 500_000)))


async def test_a_steady_load_makes_the_file_no_larger(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        partition = await stage.topic({"retention.bytes": "4000000", "retention.ms": "-1"})
        for round_ in range(1, 9):
            await fill(stage, partition, 6_000_000)
            await until(lambda: partition.start_offset == 12 * round_ - 8 and stage.rows() == 8)  # noqa: B023
        assert stage.path.stat().st_size < 20_000_000, "48 MB were written, 4 MB are kept"


async def test_much_unused_space_is_given_back(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        partition = await stage.topic({})
        await fill(stage, partition, 100_000_000)
        await stage.log.delete_topic(stage.log.topics["t"])
        partition = await stage.topic({})
        # The file itself is cut when the write-ahead log is written back, by one of the next appends.
        async with asyncio.timeout(DEADLINE_S):
            while stage.path.stat().st_size > 75_000_000:
                await stage.put(partition, ("a", "x" * 10_000))


# -- topics -----------------------------------------------------------------------------------------------------------


async def test_a_deleted_topics_name_is_free_at_once_and_its_rows_go(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        partition = await stage.topic({})
        topic = stage.log.topics["t"]
        waiting = asyncio.Event()
        partition.watch(waiting)
        for _ in range(3):
            await stage.put(partition, ("a", "x" * 500_000))
        waiting.clear()
        await stage.log.delete_topic(topic)
        assert waiting.is_set(), "who waits for records looks again"
        with pytest.raises(TopicGoneError):
            await stage.put(partition, ("a", "late"))
        with pytest.raises(TopicGoneError):
            await stage.log.delete_topic(topic)
        again = await stage.topic({})
        assert (again.end_offset, again.id != partition.id) == (0, True)
        assert topic.topic_id not in stage.log.topics_by_id
        await stage.put(again, ("a", "new"))
        await until(lambda: stage.rows() == 1 and stage.rows("SELECT COUNT(*) FROM partitions") == 1)
        assert await stage.told(again) == [("a", "new")]


async def test_a_topic_that_was_deleted_in_another_life_goes_too(tmp_path: Path) -> None:
    async with staged(tmp_path, Upkeep(initial_delay_ms=10**9)) as stage:
        await stage.put(await stage.topic({}), ("a", "x"))
        keep = stage.log.sweep_wanted
        stage.log.sweep_wanted = asyncio.Event()  # nobody is told any more: a kill at this point
        await stage.log.delete_topic(stage.log.topics["t"])
        assert not keep.is_set()
        assert stage.rows() == 1
    async with staged(tmp_path) as stage:
        assert stage.log.topics == {}
        await until(lambda: stage.rows() == 0 and stage.rows("SELECT COUNT(*) FROM partitions") == 0)


async def test_upkeep_ends_after_the_step_that_runs_however_often_it_is_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a broker's TaskGroup does once more, when the broker is cancelled itself."""
    begun, may_end = threading.Event(), threading.Event()

    def slowly(configs: Mapping[str, str]) -> TopicPolicy:
        begun.set()
        may_end.wait(DEADLINE_S)
        return policy_of(configs)

    monkeypatch.setattr(loop, "policy_of", slowly)
    async with open_log(tmp_path / "log", tmp_path / "lock") as log:
        await log.create_topic("t", 1, {})
        keeping = asyncio.create_task(keep_up(log, tmp_path / "log", OFTEN, now_ms=lambda: 0))
        await asyncio.to_thread(begun.wait, DEADLINE_S)
        for _ in range(3):
            keeping.cancel()
            for _ in range(10):
                await asyncio.sleep(0)
        assert not keeping.done()
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await keeping
        assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_topic_grows_and_changes(tmp_path: Path) -> None:
    async with open_log(tmp_path / "log", tmp_path / "lock") as log:
        topic = await log.create_topic("t", 1, {"retention.ms": "1"})
        await log.create_partitions(topic, 3)
        await log.create_partitions(topic, 2)
        await log.set_topic_configs(topic, {"cleanup.policy": "compact"})
        assert [partition.number for partition in topic.partitions] == [0, 1, 2]
        assert topic.configs == {"cleanup.policy": "compact"}
        data = encode_batch([NewRecord(key=None, value=b"")], timestamp_ms=1)
        assert await log.append(topic.partitions[2], [(data, read_head(data))]) == 0
        await log.set_group_configs("g", {"consumer.session.timeout.ms": "9"})
        await log.set_group_configs("h", {"consumer.session.timeout.ms": "9"})
        await log.set_group_configs("h", {})
    async with open_log(tmp_path / "log", tmp_path / "lock") as log:
        topic = log.topics["t"]
        assert [partition.end_offset for partition in topic.partitions] == [0, 0, 1]
        assert topic.configs == {"cleanup.policy": "compact"}
        assert log.group_configs["g"] == {"consumer.session.timeout.ms": "9"}
        assert "h" not in log.group_configs


@pytest.fixture(autouse=True)
def _nothing_goes_wrong_unheard(caplog: pytest.LogCaptureFixture) -> object:
    caplog.set_level(logging.INFO)
    yield
    assert not [record for record in caplog.get_records("call") if "Bug in Coterie" in record.message]
