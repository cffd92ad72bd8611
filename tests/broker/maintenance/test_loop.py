"""The maintenance of a log in use: compaction, retention and deleted topics over real rows."""

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
from coterie.broker.maintenance import loop
from coterie.broker.maintenance.loop import run_maintenance
from coterie.broker.maintenance.rows import BatchRow, RowReader, remove_batch_rows
from coterie.broker.settings import MaintenanceSettings
from coterie.broker.storage.log import BrokerLog, Partition, open_log
from coterie.broker.storage.store import Store, TopicGoneError, open_database_read_only
from coterie.broker.topics.cleanup_settings import CleanupSettings, cleanup_settings
from coterie.groups.classic.offset_messages import CommittedOffset, OffsetRemoved, OffsetWritten
from coterie.nouns.ids import GroupId, TopicPartition
from coterie.wire.batches import (
    BatchRecord,
    NewRecord,
    decode_uncompressed_records_without_control,
    encode_batch,
    read_batch_header,
)
from tests.wire.fuzzing import batch_of

DEADLINE_S = 60
FREQUENT_MAINTENANCE = MaintenanceSettings(retention_check_interval_ms=5, cleaner_backoff_ms=5, initial_delay_ms=0)
COMPACT = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "delete.retention.ms": "1000"}


@dataclass
class MaintainedLog:
    """A log with frequent maintenance and a manual clock."""

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
        return await self.log.append(partition, [(data, read_batch_header(data))])

    async def records(self, partition: Partition, offset: int = 0) -> list[BatchRecord]:
        found: list[BatchRecord] = []
        while data := await self.log.read(partition, offset, 10_000):
            found += [record for record in decode_uncompressed_records_without_control(data) if record.offset >= offset]
            offset = found[-1].offset + 1 if found else offset
            offset = max(offset, last_offset(data) + 1)
        return found

    async def key_values(self, partition: Partition) -> list[tuple[str, str | None]]:
        return [
            ((record.key or b"").decode(), None if record.value is None else record.value.decode())
            for record in await self.records(partition)
        ]

    async def wait_key_values(self, partition: Partition, expected: Sequence[tuple[str, str | None]]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while await self.key_values(partition) != list(expected):  # noqa: ASYNC110 - as in `until`
                await asyncio.sleep(0.005)

    def rows(self, query: str = "SELECT COUNT(*) FROM batches") -> int:
        with closing(open_database_read_only(self.path)) as database:
            (count,) = database.execute(query).fetchone()
            return int(count)


def last_offset(data: bytes) -> int:
    at = 0
    while True:
        head = read_batch_header(data, at)
        at += head.size_bytes
        if at >= len(data):
            return head.last_offset


async def wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 - what is awaited are rows that another thread writes
            await asyncio.sleep(0.005)


@asynccontextmanager
async def maintained_log(
    path: Path, settings: MaintenanceSettings = FREQUENT_MAINTENANCE
) -> AsyncIterator[MaintainedLog]:
    async with open_log(path / "log", path / "lock") as log, asyncio.TaskGroup() as tasks:
        stage = MaintainedLog(log, path / "log")
        keeping = tasks.create_task(run_maintenance(log, path / "log", settings, now_ms=lambda: stage.now_ms))
        yield stage
        keeping.cancel()


async def test_a_compacted_topic_keeps_offsets_and_the_last_value_of_each_key(tmp_path: Path) -> None:
    async with maintained_log(tmp_path) as stage:
        partition = await stage.topic(COMPACT)
        for n in range(20):
            await stage.put(partition, ("a", f"a{n}"), (f"b{n % 3}", f"b{n}"))
        await stage.put(partition, ("end", ""))

        kept = [("b2", "b17"), ("b0", "b18"), ("a", "a19"), ("b1", "b19"), ("end", "")]
        await stage.wait_key_values(partition, kept)
        assert [record.offset for record in await stage.records(partition)] == [35, 37, 38, 39, 40]
        assert partition.end_offset == 41
        assert (partition.start_offset, stage.rows()) == (0, 4)
        in_the_hole = await stage.log.read(partition, 3, 1)
        assert (read_batch_header(in_the_hole).base_offset, read_batch_header(in_the_hole).last_offset) == (34, 35)


async def test_the_newest_batch_and_young_batches_are_not_compacted(tmp_path: Path) -> None:
    async with maintained_log(tmp_path) as stage:
        partition = await stage.topic(COMPACT | {"min.compaction.lag.ms": "500"})
        await stage.put(partition, ("a", "1"))
        await stage.put(partition, ("a", "2"))
        stage.now_ms += 400
        await stage.put(partition, ("a", "3"))
        await stage.put(partition, ("a", "4"))
        stage.now_ms += 150

        await stage.wait_key_values(partition, [("a", "2"), ("a", "3"), ("a", "4")])
        stage.now_ms += 10_000

        await stage.wait_key_values(partition, [("a", "3"), ("a", "4")])


async def test_a_tombstone_is_removed_when_its_delay_is_over(tmp_path: Path) -> None:
    async with maintained_log(tmp_path) as stage:
        partition = await stage.topic(COMPACT)
        await stage.put(partition, ("a", "1"))
        await stage.put(partition, ("a", None))
        await stage.put(partition, ("end", ""))

        await stage.wait_key_values(partition, [("a", None), ("end", "")])
        stage.now_ms += 999
        await stage.put(partition, ("end", "2"))
        await wait_until(lambda: stage.rows("SELECT cleaned_offset FROM partitions") == 3)
        assert ("a", None) in await stage.key_values(partition)
        stage.now_ms += 1

        await stage.wait_key_values(partition, [("end", ""), ("end", "2")])


async def test_a_batch_that_cannot_be_decompressed_is_kept_and_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with maintained_log(tmp_path) as stage:
        partition = await stage.topic(COMPACT)
        for value in range(3):
            data = bytearray(encode_batch([NewRecord(key=b"a", value=b"%d" % value)], timestamp_ms=1))
            data[30] ^= 0xFF  # its CRC is wrong now, as after a disk error
            await stage.log.append(partition, [(bytes(data), read_batch_header(bytes(data)))])
        await stage.put(partition, ("a", "x"))
        await stage.put(partition, ("a", "y"))
        await stage.put(partition, ("a", None))
        await stage.put(partition, ("end", ""))
        await wait_until(lambda: stage.rows() == 5)
        stage.now_ms += 5_000
        await stage.put(partition, ("end", "2"))
        await wait_until(lambda: stage.rows("SELECT cleaned_offset FROM partitions") == 7)
        assert stage.rows() == 6, "the unreadable batch may contain a value, so the tombstone must stay"
    warnings = [record for record in caplog.records if "cannot be read" in record.message]
    assert len(warnings) == 1
    assert "Maintenance of t-0" in warnings[0].message


async def test_no_pass_is_repeated_for_a_delete_horizon_in_a_batch_that_became_unreadable(tmp_path: Path) -> None:
    async with maintained_log(tmp_path) as stage:
        partition = await stage.topic(COMPACT)
        await stage.put(partition, ("a", None))
        await stage.put(partition, ("end", ""))
        await wait_until(lambda: stage.rows("SELECT COUNT(delete_horizon_ms) FROM batches") == 1)
        await wait_until(lambda: stage.rows("SELECT MAX(cleaned_offset) FROM partitions") == 1)  # the pass is over
        await stage.log.run_write(
            lambda store: (
                store.database.execute(
                    "UPDATE batches SET data = CAST(SUBSTR(data, 1, LENGTH(data) - 1) || x'ff' AS BLOB)"
                    " WHERE last_offset = 0"
                ).rowcount
            )
        )
        statements: list[str] = []
        await stage.log.run_write(lambda store: store.database.set_trace_callback(statements.append))
        stage.now_ms += 1_000
        await wait_until(lambda: stage.rows("SELECT COUNT(delete_horizon_ms) FROM batches") == 0)
        other = (await stage.log.create_topic("u", 1, COMPACT)).partitions[0]
        for n in range(1, 6):  # each is another run
            await stage.put(other, ("a", str(n)))
            await stage.put(other, ("a", str(n)))
            await wait_until(lambda: stage.rows("SELECT MAX(cleaned_offset) FROM partitions") == 2 * n - 1)  # noqa: B023
        passes = [
            line for line in statements if "SET cleaned_offset" in line and line.endswith(f"= {partition.row_id}")
        ]
        assert len(passes) == 1


async def test_compaction_stops_before_an_open_transaction(tmp_path: Path) -> None:
    async with maintained_log(tmp_path) as stage:
        partition = await stage.topic(COMPACT)
        partition.first_unstable_offset = 2
        for value in "1234":
            await stage.put(partition, ("a", value))

        await stage.wait_key_values(partition, [("a", "2"), ("a", "3"), ("a", "4")])
        await wait_until(lambda: stage.rows("SELECT cleaned_offset FROM partitions") == 2)
        partition.first_unstable_offset = None

        await stage.wait_key_values(partition, [("a", "3"), ("a", "4")])


async def test_records_of_an_aborted_transaction_are_removed_and_its_marker_later(tmp_path: Path) -> None:
    async with maintained_log(tmp_path, MaintenanceSettings(initial_delay_ms=10**9)) as stage:
        partition = await stage.topic(COMPACT)
        await stage.put(partition, ("a", "before"))
        for attributes, key in ((0x10, b"a"), (0x30, struct.pack(">hh", 0, 0))):
            data = bytearray(encode_batch([NewRecord(key=key, value=b"")], timestamp_ms=1))
            data[21:23] = struct.pack(">h", attributes)
            data[43:53] = struct.pack(">qh", 77, 0)
            data = with_crc(data)
            await stage.log.append(partition, [(bytes(data), read_batch_header(bytes(data)))])
        await stage.log.run_write(
            lambda store: store.database.execute(
                "INSERT INTO aborted (partition, last_offset, first_offset, producer_id) VALUES (?, 2, 1, 77)",
                (partition.row_id,),
            )
        )
        await stage.put(partition, ("end", ""))
        async with maintenance_running(stage):
            await wait_until(lambda: stage.rows() == 3)
            assert await stage.key_values(partition) == [("a", "before"), ("end", "")]
            assert stage.rows("SELECT COUNT(*) FROM aborted") == 1
            stage.now_ms += 1_000
            await wait_until(lambda: stage.rows() == 2 and stage.rows("SELECT COUNT(*) FROM aborted") == 0)


async def test_a_corrupt_batch_is_kept_though_its_header_names_an_aborted_transaction(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with maintained_log(tmp_path, MaintenanceSettings(initial_delay_ms=10**9)) as stage:
        partition = await stage.topic(COMPACT)
        for number, (attributes, key) in enumerate(((0x10, b"a"), (0x10, b"a"), (0x30, struct.pack(">hh", 0, 0)))):
            data = bytearray(encode_batch([NewRecord(key=key, value=b"")], timestamp_ms=1))
            data[21:23] = struct.pack(">h", attributes)
            data[43:53] = struct.pack(">qh", 77, 0)
            data = with_crc(data)
            if number == 0:
                data[-1] ^= 0xFF  # its CRC is wrong now, as after a disk error
            await stage.log.append(partition, [(bytes(data), read_batch_header(bytes(data)))])
        await stage.log.run_write(
            lambda store: store.database.execute(
                "INSERT INTO aborted (partition, last_offset, first_offset, producer_id) VALUES (?, 2, 0, 77)",
                (partition.row_id,),
            )
        )
        await stage.put(partition, ("end", ""))
        async with maintenance_running(stage):
            await wait_until(lambda: stage.rows("SELECT MAX(cleaned_offset) FROM partitions") == 3)
        assert stage.rows("SELECT COUNT(*) FROM batches WHERE last_offset = 0") == 1
        assert stage.rows("SELECT COUNT(*) FROM batches WHERE last_offset = 1") == 0
    assert "the batch at offset 0 cannot be read; compaction keeps it as it is" in caplog.text


def with_crc(data: bytearray) -> bytearray:
    data[17:21] = struct.pack(">I", crc32c(bytes(data[21:])))
    return data


@asynccontextmanager
async def maintenance_running(stage: MaintainedLog) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as tasks:
        keeping = tasks.create_task(
            run_maintenance(stage.log, stage.path, FREQUENT_MAINTENANCE, now_ms=lambda: stage.now_ms)
        )
        yield
        keeping.cancel()


async def test_a_compaction_does_not_change_groups(tmp_path: Path) -> None:
    async with maintained_log(tmp_path) as stage:
        # A compaction may come between the appends; with the default ratio the rest might then never be compacted.
        await stage.log.create_topic(CLASSIC_TOPIC.name, 1, COMPACT)
        groups = await GroupLog.open(stage.log, CLASSIC_TOPIC)
        appends = [
            groups.append(
                GroupId(f"g{n % 3}"),
                [
                    OffsetRemoved(partition=TopicPartition("t", n % 5))
                    if n % 11 == 0
                    else OffsetWritten(
                        partition=TopicPartition("t", n % 5),
                        committed_offset=CommittedOffset(offset=n, committed_at_ms=n),
                    )
                ],
                now_ms=1,
            )
            for n in range(500)
        ]
        await asyncio.gather(*appends)
        before = await groups.load_all()
        await wait_until(lambda: stage.rows() <= 3 * 5 + 1)
        after = await groups.load_all()
        assert {group_id: {*records} for group_id, records in after.items()} == {
            group_id: {*records} for group_id, records in before.items()
        }
        assert sum(len(records) for records in before.values()) > 5


async def test_both_cleanup_policies_apply_together(tmp_path: Path) -> None:
    async with maintained_log(tmp_path) as stage:
        partition = await stage.topic(COMPACT | {"cleanup.policy": "compact,delete", "retention.ms": "1000"})
        for n in range(4):
            await stage.put(partition, ("a", str(n)), ("b", str(n)), timestamp_ms=stage.now_ms + n)
        await stage.wait_key_values(partition, [("a", "2"), ("b", "2"), ("a", "3"), ("b", "3")])
        stage.now_ms += 1_003
        await stage.wait_key_values(partition, [("a", "3"), ("b", "3")])
        assert partition.start_offset == 6


async def test_a_partition_with_invalid_configs_does_not_stop_other_maintenance(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with maintained_log(tmp_path) as stage:
        await stage.log.create_topic("a", 1, {"min.cleanable.dirty.ratio": "much"})
        partition = await stage.topic({"retention.ms": "1000"})
        await stage.put(partition, ("a", "0"), timestamp_ms=5)
        await wait_until(lambda: partition.start_offset == 1)
    assert len([record for record in caplog.records if "its configs are invalid" in record.message]) == 1


async def test_a_hostile_batch_is_kept_and_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with maintained_log(tmp_path) as stage:
        hostile = (await stage.log.create_topic("hostile", 1, COMPACT)).partitions[0]
        for deltas in (2**63 - 1, 0), (0, 2**40):
            data = batch_of((*deltas, b"a"), (0, 1, b"b"))
            await stage.log.append(hostile, [(data, read_batch_header(data))])
        for value in "12":
            await stage.put(hostile, ("b", value))
        partition = await stage.topic(COMPACT)
        for value in "123":
            await stage.put(partition, ("a", value))

        await stage.wait_key_values(partition, [("a", "2"), ("a", "3")])
        assert await stage.log.read(hostile, 0, 1)
        await wait_until(lambda: stage.rows("SELECT cleaned_offset FROM partitions ORDER BY id LIMIT 1 OFFSET 0") == 5)
        assert stage.rows(f"SELECT COUNT(*) FROM batches WHERE partition = {hostile.row_id}") == 4
    assert len([record for record in caplog.records if "Maintenance of hostile-0" in record.message]) == 1


@pytest.mark.parametrize("planted", [AssertionError("planted"), sqlite3.DatabaseError("planted")])
async def test_a_partition_whose_maintenance_fails_does_not_stop_other_maintenance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, planted: Exception
) -> None:
    async with maintained_log(tmp_path, MaintenanceSettings(initial_delay_ms=10**9)) as stage:
        both = COMPACT | {"cleanup.policy": "compact,delete", "retention.ms": "1000"}
        broken = (await stage.log.create_topic("broken", 1, both)).partitions[0]
        partition = await stage.topic(both)
        for value in "1234":
            await stage.put(broken, ("a", value))
            await stage.put(partition, ("a", value))
        rows, kept = RowReader.next_batch_rows, RowReader.start_offset_after_time_retention

        def failing_rows(reader: RowReader, partition_id: int, *args: int) -> list[BatchRow]:
            if partition_id == broken.row_id:
                raise planted
            return rows(reader, partition_id, *args)

        def failing_kept(reader: RowReader, partition_id: int, *args: int) -> int:
            if partition_id == broken.row_id:
                raise planted
            return kept(reader, partition_id, *args)

        with monkeypatch.context() as patched:
            patched.setattr(RowReader, "next_batch_rows", failing_rows)
            patched.setattr(RowReader, "start_offset_after_time_retention", failing_kept)
            async with maintenance_running(stage):
                await stage.wait_key_values(partition, [("a", "3"), ("a", "4")])
                stage.now_ms += 1_001
                await wait_until(lambda: partition.start_offset == 4 and stage.rows() == 4)
        messages = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
        if isinstance(planted, sqlite3.Error):
            assert [line.partition(";")[0] for line in messages] == [
                f"Delayed the {work} of broken-0 because its rows cannot be read, will retry"
                for work in ("retention", "compaction")
            ]
        else:
            assert messages == [
                f"Bug in Coterie: the {work} of broken-0 failed, will retry; all other maintenance continues"
                for work in ("retention", "compaction")
            ]
        caplog.clear()
        async with maintenance_running(stage):
            await wait_until(lambda: broken.start_offset == 4 and stage.rows() == 0)


async def test_damage_in_one_partition_stops_no_other_maintenance_and_is_logged_once_for_each_task(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    names = ("damaged", "sound", "gone")
    async with maintained_log(tmp_path, MaintenanceSettings(initial_delay_ms=10**9)) as stage:
        for name in names:
            topic = await stage.log.create_topic(name, 1, {"retention.ms": "1000"})
            await asyncio.gather(*(stage.put(topic.partitions[0], ("a", str(n))) for n in range(600)))
    garble_first_leaf(tmp_path / "log", "batches_by_offset")
    async with maintained_log(tmp_path) as stage:
        damaged, sound, gone = (stage.log.topics[name].partitions[0] for name in names)
        stage.now_ms += 1_001
        await wait_until(lambda: sound.start_offset == gone.start_offset == 600)
        await wait_until(lambda: stage.rows(f"SELECT COUNT(*) FROM batches WHERE partition = {sound.row_id}") == 0)
        await stage.log.delete_records(damaged, 599)
        await stage.put(sound, ("a", "next"))
        await stage.log.delete_records(sound, 601)
        await wait_until(lambda: stage.rows(f"SELECT COUNT(*) FROM batches WHERE partition = {sound.row_id}") == 0)
        statements: list[str] = []
        await stage.log.run_write(lambda store: store.database.set_trace_callback(statements.append))
        for name in ("damaged", "gone"):
            await stage.log.delete_topic(stage.log.topics[name])
        await wait_until(lambda: stage.rows(f"SELECT COUNT(*) FROM partitions WHERE id = {gone.row_id}") == 0)
        for _ in range(3):
            await stage.put(sound, ("a", "next"))
            await stage.log.delete_records(sound, sound.end_offset)
            await wait_until(lambda: stage.rows(f"SELECT COUNT(*) FROM batches WHERE partition = {sound.row_id}") == 0)
        assert not [line for line in statements if f"FROM batches WHERE partition = {damaged.row_id} " in line]
    messages = [record.message.partition(": ")[0] for record in caplog.records if record.levelno >= logging.WARNING]
    assert messages == [
        "Delayed the retention of damaged-0 because its rows cannot be read, will retry; all other maintenance"
        " continues",
        "Delayed the removal of deleted records of damaged-0 because its rows cannot be read, will retry; all other"
        " maintenance continues",
        f"Delayed the removal of partition {damaged.row_id} of a deleted topic because its rows cannot be read, will "
        "retry; all other maintenance continues",
    ]


async def test_a_maintenance_task_is_not_repeated_after_its_write_found_damage(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []

    def meet_damage(store: Store, partition_row_id: int, last_offset: int) -> None:
        if partition_row_id == damaged.row_id:
            tried.append(last_offset)
            error = sqlite3.DatabaseError("planted")
            error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
            raise error
        remove_batch_rows(store, partition_row_id, last_offset)

    monkeypatch.setattr("coterie.broker.maintenance.loop.remove_batch_rows", meet_damage)
    async with maintained_log(tmp_path, MaintenanceSettings(initial_delay_ms=10**9)) as stage:
        damaged, sound = [(await stage.log.create_topic(name, 1, {})).partitions[0] for name in ("damaged", "sound")]
        await stage.put(damaged, ("a", "1"))
        await stage.log.delete_records(damaged, 1)
        # Alone: a write that fails in a shared transaction is tried again in its own.
        await wait_until(lambda: "Stopped the removal of deleted records of damaged-0" in caplog.text)
        await stage.put(sound, ("a", "1"))
        await stage.log.delete_records(sound, 1)
        for _ in range(3):
            await wait_until(lambda: stage.rows() == 1)
            await stage.put(sound, ("a", "next"))
            await stage.log.delete_records(sound, sound.end_offset)
        await wait_until(lambda: stage.rows() == 1)
    assert tried == [0]
    messages = [record.message.partition(": ")[0] for record in caplog.records if record.levelno >= logging.WARNING]
    assert messages == [
        "The broker's log file is corrupt; requests that read the corrupt pages fail",
        "Stopped the removal of deleted records of damaged-0 until the broker restarts, because the data is corrupt; "
        "all other maintenance continues",
    ]


async def test_rows_of_a_topic_created_during_the_search_for_hidden_rows_are_logged_with_its_name(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, created = threading.Event(), threading.Event()
    look_for = RowReader.partitions_with_rows_before_start

    def look_late(reader: RowReader, failed: Callable[[int, sqlite3.Error], None]) -> list[tuple[int, int]]:
        looks.set()
        assert created.wait(DEADLINE_S)
        return look_for(reader, failed)

    def meet_damage(store: Store, partition_row_id: int, last_offset: int) -> None:
        error = sqlite3.DatabaseError("planted")
        error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
        raise error

    monkeypatch.setattr(RowReader, "partitions_with_rows_before_start", look_late)
    monkeypatch.setattr("coterie.broker.maintenance.loop.remove_batch_rows", meet_damage)
    async with maintained_log(tmp_path, MaintenanceSettings(initial_delay_ms=10**9)) as stage:
        await wait_until(looks.is_set)
        partition = await stage.topic({})
        await stage.put(partition, ("a", "1"))
        await stage.log.delete_records(partition, 1)
        created.set()
        await wait_until(lambda: "Stopped the removal" in caplog.text)
    assert "Stopped the removal of deleted records of t-0 until the broker restarts, because" in caplog.text
    assert "of a deleted topic" not in caplog.text


def garble_first_leaf(path: Path, tree: str) -> None:
    """SQLite's file format: an index's interior page begins with 2, its header ends with the offsets of its cells, and
    each cell begins with a page number."""
    with closing(sqlite3.connect(path)) as database:
        (root,) = database.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (tree,)).fetchone()
        (size,) = database.execute("PRAGMA page_size").fetchone()
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    content = path.read_bytes()
    page = content[(root - 1) * size : root * size]
    assert page[0] == 2, "the root is no interior page"
    (cell,) = struct.unpack_from(">H", page, 12)
    (leaf,) = struct.unpack_from(">I", page, cell)
    path.write_bytes(content[: (leaf - 1) * size] + b"\xff" * size + content[leaf * size :])


async def test_a_small_key_buffer_needs_several_passes_for_the_same_result(tmp_path: Path) -> None:
    few = MaintenanceSettings(
        retention_check_interval_ms=5, cleaner_backoff_ms=5, initial_delay_ms=0, dedupe_buffer_bytes=180 * 10
    )
    async with maintained_log(tmp_path, few) as stage:
        partition = await stage.topic(COMPACT)
        for n in range(100):
            await stage.put(partition, (f"k{n % 50}", str(n)))
        await stage.put(partition, ("end", ""))
        expected = [(f"k{n % 50}", str(n)) for n in range(50, 100)] + [("end", "")]

        await stage.wait_key_values(partition, expected)


# -- retention --------------------------------------------------------------------------------------------------------


async def test_records_older_than_the_retention_are_removed_and_the_log_starts_after_them(tmp_path: Path) -> None:
    async with maintained_log(tmp_path) as stage:
        partition = await stage.topic({"retention.ms": "1000"})
        for n in range(5):
            await stage.put(partition, ("a", str(n)), timestamp_ms=stage.now_ms + n)
        stage.now_ms += 1_003
        await wait_until(lambda: partition.start_offset == 3 and stage.rows() == 2)
        assert await stage.key_values(partition) == [("a", "3"), ("a", "4")]
        stage.now_ms += 10_000
        await wait_until(lambda: partition.start_offset == 5 and stage.rows() == 0)
        assert await stage.put(partition, ("a", "next")) == 5
    async with open_log(tmp_path / "log", tmp_path / "lock") as log:
        partition = log.topics["t"].partitions[0]
        assert (partition.start_offset, partition.end_offset) == (5, 6)


async def test_an_emptied_log_keeps_its_end_offset_over_a_restart(tmp_path: Path) -> None:
    async with maintained_log(tmp_path) as stage:
        partition = await stage.topic({})
        await stage.put(partition, ("a", "1"), ("b", "2"))
        assert await stage.log.delete_records(partition, 99) == 2
        await wait_until(lambda: stage.rows() == 0)
    async with open_log(tmp_path / "log", tmp_path / "lock") as log:
        partition = log.topics["t"].partitions[0]
        assert (partition.start_offset, partition.end_offset) == (2, 2)


async def test_a_partition_keeps_as_many_bytes_as_its_retention_allows(tmp_path: Path) -> None:
    async with maintained_log(tmp_path) as stage:
        size = len(encode_batch([NewRecord(key=b"a", value=b"x" * 100)], timestamp_ms=1))
        partition = await stage.topic({"retention.bytes": str(3 * size), "retention.ms": "-1"})
        for _ in range(10):
            await stage.put(partition, ("a", "x" * 100))
        await wait_until(lambda: partition.start_offset == 7 and stage.rows() == 3)


async def test_a_batch_without_a_timestamp_is_as_old_as_the_next_batch(tmp_path: Path) -> None:
    async with maintained_log(tmp_path) as stage:
        partition = await stage.topic({"retention.ms": "1000"})
        await stage.put(partition, ("a", "0"), timestamp_ms=-1)
        await stage.put(partition, ("a", "1"), timestamp_ms=5)
        await stage.put(partition, ("a", "2"), timestamp_ms=-1)
        await wait_until(lambda: partition.start_offset == 2 and stage.rows() == 1)


async def test_records_in_the_middle_of_a_batch_can_be_deleted(tmp_path: Path) -> None:
    async with maintained_log(tmp_path) as stage:
        partition = await stage.topic({})
        await stage.put(partition, ("a", "1"), ("b", "2"))
        await stage.put(partition, ("c", "3"))
        assert await stage.log.delete_records(partition, 1) == 1
        assert await stage.log.delete_records(partition, 0) == 1, "a start offset must never decrease"
        assert [record.offset for record in await stage.records(partition, 1)] == [1, 2]


# -- space ------------------------------------------------------------------------------------------------------------


async def fill(stage: MaintainedLog, partition: Partition, size_bytes: int) -> None:
    data = encode_batch([NewRecord(key=b"a", value=os.urandom(500_000))], timestamp_ms=stage.now_ms)
    head = read_batch_header(data)
    await asyncio.gather(*(stage.log.append(partition, [(data, head)]) for _ in range(size_bytes // 500_000)))


async def test_the_file_does_not_grow_under_a_steady_load(tmp_path: Path) -> None:
    async with maintained_log(tmp_path) as stage:
        partition = await stage.topic({"retention.bytes": "4000000", "retention.ms": "-1"})
        for round_ in range(1, 9):
            await fill(stage, partition, 6_000_000)
            await wait_until(lambda: partition.start_offset == 12 * round_ - 8 and stage.rows() == 8)  # noqa: B023
        assert stage.path.stat().st_size < 20_000_000, "48 MB were written, 4 MB are kept"


async def test_unused_space_of_the_file_is_released(tmp_path: Path) -> None:
    async with maintained_log(tmp_path) as stage:
        partition = await stage.topic({})
        await fill(stage, partition, 100_000_000)
        await stage.log.delete_topic(stage.log.topics["t"])
        partition = await stage.topic({})
        # The file shrinks at the next checkpoint of the write-ahead log, in one of the next appends.
        async with asyncio.timeout(DEADLINE_S):
            while stage.path.stat().st_size > 75_000_000:
                await stage.put(partition, ("a", "x" * 10_000))


# -- topics -----------------------------------------------------------------------------------------------------------


async def test_a_deleted_topics_name_is_free_at_once_and_its_rows_are_removed(tmp_path: Path) -> None:
    async with maintained_log(tmp_path) as stage:
        partition = await stage.topic({})
        topic = stage.log.topics["t"]
        waiting = asyncio.Event()
        partition.watch(waiting)
        for _ in range(3):
            await stage.put(partition, ("a", "x" * 500_000))
        waiting.clear()
        await stage.log.delete_topic(topic)
        assert waiting.is_set(), "a waiting reader must be notified"
        with pytest.raises(TopicGoneError):
            await stage.put(partition, ("a", "late"))
        with pytest.raises(TopicGoneError):
            await stage.log.delete_topic(topic)
        again = await stage.topic({})
        assert (again.end_offset, again.row_id != partition.row_id) == (0, True)
        assert topic.topic_id not in stage.log.topics_by_id
        await stage.put(again, ("a", "new"))
        await wait_until(lambda: stage.rows() == 1 and stage.rows("SELECT COUNT(*) FROM partitions") == 1)
        assert await stage.key_values(again) == [("a", "new")]


async def test_rows_of_a_topic_deleted_before_a_restart_are_removed(tmp_path: Path) -> None:
    async with maintained_log(tmp_path, MaintenanceSettings(initial_delay_ms=10**9)) as stage:
        await stage.put(await stage.topic({}), ("a", "x"))
        keep = stage.log.deletion_wanted
        stage.log.deletion_wanted = asyncio.Event()  # simulates a kill: the maintenance gets no notification
        await stage.log.delete_topic(stage.log.topics["t"])
        assert not keep.is_set()
        assert stage.rows() == 1
    async with maintained_log(tmp_path) as stage:
        assert stage.log.topics == {}
        await wait_until(lambda: stage.rows() == 0 and stage.rows("SELECT COUNT(*) FROM partitions") == 0)


async def test_maintenance_ends_after_the_current_step_however_often_it_is_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker's TaskGroup cancels it once more when the broker itself is cancelled."""
    begun, may_end = threading.Event(), threading.Event()

    def slowly(configs: Mapping[str, str]) -> CleanupSettings:
        begun.set()
        may_end.wait(DEADLINE_S)
        return cleanup_settings(configs)

    monkeypatch.setattr(loop, "cleanup_settings", slowly)
    async with open_log(tmp_path / "log", tmp_path / "lock") as log:
        await log.create_topic("t", 1, {})
        keeping = asyncio.create_task(run_maintenance(log, tmp_path / "log", FREQUENT_MAINTENANCE, now_ms=lambda: 0))
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


async def test_a_topic_gets_more_partitions_and_other_configs(tmp_path: Path) -> None:
    async with open_log(tmp_path / "log", tmp_path / "lock") as log:
        topic = await log.create_topic("t", 1, {"retention.ms": "1"})
        await log.increase_partitions_to(topic, 3)
        await log.increase_partitions_to(topic, 2)
        await log.replace_topic_configs(topic, {"cleanup.policy": "compact"})
        assert [partition.number for partition in topic.partitions] == [0, 1, 2]
        assert topic.configs == {"cleanup.policy": "compact"}
        data = encode_batch([NewRecord(key=None, value=b"")], timestamp_ms=1)
        assert await log.append(topic.partitions[2], [(data, read_batch_header(data))]) == 0
        await log.replace_group_configs("g", {"consumer.session.timeout.ms": "9"})
        await log.replace_group_configs("h", {"consumer.session.timeout.ms": "9"})
        await log.replace_group_configs("h", {})
    async with open_log(tmp_path / "log", tmp_path / "lock") as log:
        topic = log.topics["t"]
        assert [partition.end_offset for partition in topic.partitions] == [0, 0, 1]
        assert topic.configs == {"cleanup.policy": "compact"}
        assert log.group_configs["g"] == {"consumer.session.timeout.ms": "9"}
        assert "h" not in log.group_configs


@pytest.fixture(autouse=True)
def _no_bug_is_logged(caplog: pytest.LogCaptureFixture) -> object:
    caplog.set_level(logging.INFO)
    yield
    assert not [record for record in caplog.get_records("call") if "Bug in Coterie" in record.message]
