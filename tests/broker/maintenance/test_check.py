"""The check of a broker's log: a sound log has no findings, and each kind of damage has its finding."""

import asyncio
import sqlite3
import struct
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from coterie.broker.groups.classic import CLASSIC_TOPIC
from coterie.broker.groups.connect import CONNECT_TOPIC
from coterie.broker.groups.log import GroupLog
from coterie.broker.maintenance.check import log_file_findings
from coterie.broker.maintenance.loop import run_maintenance
from coterie.broker.settings import MaintenanceSettings
from coterie.broker.storage.log import open_log
from coterie.broker.transactions.writes import UnaddedPartitionRule
from coterie.nouns.errors import WorldError
from coterie.wire.batches import NewRecord, encode_batch, read_batch_header
from tests.broker.transactions.transactional import running_transactions


async def write(folder: Path) -> None:
    """A compacted topic with gaps, one whose start offset has moved, one that was deleted, and records of groups."""
    path = folder / "log"
    async with open_log(path, folder / "lock") as log, asyncio.TaskGroup() as tasks:
        await GroupLog.open(log, CLASSIC_TOPIC)
        await GroupLog.open(log, CONNECT_TOPIC)
        compacted = await log.create_topic("c", 1, {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"})
        plain = await log.create_topic("p", 2, {})
        gone = await log.create_topic("g", 1, {})
        for n in range(30):
            for topic in (compacted, plain, gone):
                data = encode_batch(
                    [NewRecord(key=b"a", value=b"%d" % n), NewRecord(key=b"%d" % n, value=b"x" * 200)], timestamp_ms=5
                )
                await log.append(topic.partitions[0], [(data, read_batch_header(data))])
        await log.delete_records(plain.partitions[0], 7)
        await log.replace_group_configs("g", {"consumer.session.timeout.ms": "9"})
        await log.delete_topic(gone)
        keeping = tasks.create_task(
            run_maintenance(log, path, MaintenanceSettings(initial_delay_ms=0, cleaner_backoff_ms=5), now_ms=lambda: 10)
        )
        cleaned = [(0,)]
        with closing(sqlite3.connect(path)) as database:
            async with asyncio.timeout(60):
                while cleaned != [(58,)] or log.deletion_wanted.is_set():
                    cleaned = database.execute("SELECT MAX(cleaned_offset) FROM partitions").fetchall()
                    await asyncio.sleep(0.005)
        keeping.cancel()


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    await write(tmp_path)
    return tmp_path / "log"


@pytest.fixture
def database(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        yield database


def findings(path: Path) -> list[str]:
    return list(log_file_findings(path, report_progress=lambda _: None))


def test_a_log_after_compaction_retention_and_deletions_has_no_findings(path: Path) -> None:
    assert findings(path) == []


async def test_an_open_transaction_is_no_finding(tmp_path: Path) -> None:
    async with running_transactions(tmp_path) as broker:
        producer = await broker.init("alice")
        await broker.send(
            [b"a"], producer, 0, transactional_id="alice", unadded_partition_rule=UnaddedPartitionRule.ADD_PARTITION
        )
        assert broker.partition().first_unstable_offset == 0
    assert findings(tmp_path / "log.sqlite") == []


def test_a_long_check_reports_its_progress(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.broker.maintenance.check.PROGRESS_INTERVAL_S", 0)
    progress: list[str] = []
    assert list(log_file_findings(path, report_progress=progress.append)) == []
    assert progress[0] == "SQLite checks its pages and indexes"
    assert progress[-1] == "100 % of 0 MB of batches checked"


async def test_a_log_in_use_is_checked_and_not_disturbed(path: Path, tmp_path: Path) -> None:
    async with open_log(path, tmp_path / "lock") as log:
        data = encode_batch([NewRecord(key=None, value=b"x")], timestamp_ms=5)
        appends = [log.append(log.topics["p"].partitions[1], [(data, read_batch_header(data))]) for _ in range(100)]
        assert await asyncio.to_thread(findings, path) == []
        assert await asyncio.gather(*appends) == list(range(100))
        assert await asyncio.to_thread(findings, path) == []


def garbled(data: bytes) -> bytes:
    return data[:-3] + bytes([data[-3] ^ 0xFF]) + data[-2:]


def moved(data: bytes) -> bytes:
    return struct.pack(">q", 999) + data[8:]


def change(change: Callable[[bytes], bytes]) -> Callable[[sqlite3.Connection], None]:
    def damage(database: sqlite3.Connection) -> None:
        row_id, data = database.execute(
            "SELECT b.id, b.data FROM batches b JOIN partitions p ON p.id = b.partition JOIN topics t ON t.id = p.topic"
            " WHERE t.name = 'p' AND b.base_offset = 10"
        ).fetchone()
        database.execute("UPDATE batches SET data = ? WHERE id = ?", (change(data), row_id))

    return damage


def run(statement: str) -> Callable[[sqlite3.Connection], None]:
    def damage(database: sqlite3.Connection) -> None:
        database.execute(statement)

    return damage


P0 = "(SELECT p.id FROM partitions p JOIN topics t ON t.id = p.topic WHERE t.name = 'p' AND p.number = 0)"


@pytest.mark.parametrize(
    ("damage", "finding"),
    [
        (change(garbled), "p-0: the batch at offset 10 is corrupt: the CRC of a batch does not match its bytes"),
        (change(moved), "p-0: the batch at offset 10 has the offsets 999 to 1000 in its header"),
        (
            change(lambda data: data[:20]),
            "p-0: the batch at offset 10 is corrupt: a batch of 20 bytes has no complete header",
        ),
        (
            run(f"DELETE FROM batches WHERE partition = {P0} AND base_offset = 10"),
            "p-0: the offsets 10 to 11 are missing",
        ),
        (
            run(f"UPDATE batches SET base_offset = 9 WHERE partition = {P0} AND base_offset = 10"),
            "p-0: the batch at offset 9 overlaps the previous batch, which ends at offset 9",
        ),
        (
            run(f"UPDATE batches SET max_timestamp_ms = 77 WHERE partition = {P0} AND base_offset = 10"),
            "p-0: the batch at offset 10 has another maximum timestamp or size in its row than in its header",
        ),
        (
            run(f"UPDATE partitions SET cleaned_offset = 61 WHERE id = {P0}"),
            "p-0: compaction reached offset 61, after the end offset",
        ),
        (run(f"DELETE FROM partitions WHERE id = {P0}"), "p: has the partitions [1], expected 2 partitions"),
        (
            run(f"DELETE FROM partitions WHERE id = {P0}"),
            "rows of the table batches refer to a topic or partition that",
        ),
        (run("UPDATE topics SET configs = '{' WHERE name = 'p'"), "p: the configs are not a JSON object"),
        (run("UPDATE kept SET entries = 'null'"), "group configs of g: not a JSON object"),
        (run("DELETE FROM numbers"), "the log has no cluster id"),
        (
            run(f"INSERT INTO producers VALUES ({P0}, 4, 0, '[[0, 0, 60]]', NULL, 0)"),
            "p-0: the state of producer 4 has an offset at or after the end offset 60",
        ),
        (
            run(f"INSERT INTO producers VALUES ({P0}, 4, 0, '[]', 61, 0)"),
            "p-0: the open transaction of producer 4 begins at offset 61, after the end offset 60",
        ),
        (
            run(f"INSERT INTO producers VALUES ({P0}, 4, 0, 'x', NULL, 0)"),
            "p-0: the state of producer 4 is invalid",
        ),
        (
            run(f"INSERT INTO producers VALUES ({P0}, 4, 0, '[]', 12, 0)"),
            "p-0: producer 4 has an open transaction since offset 12, but no transactional id has this transaction as"
            " ongoing",
        ),
        (
            run("INSERT INTO transactions VALUES ('alice', 4, 0, -1, -1, 1, 'Ongoing', '{', 1, 1)"),
            "the transaction of alice has invalid partitions",
        ),
        (
            run(f"INSERT INTO aborted VALUES ({P0}, 60, 12, 4)"),
            "p-0: an aborted transaction of producer 4 has the offsets 12 to 60, but the end offset of the partition is"
            " 60",
        ),
    ],
)
def test_each_kind_of_damage_has_its_finding(
    damage: Callable[[sqlite3.Connection], None], finding: str, database: sqlite3.Connection, path: Path
) -> None:
    damage(database)
    found = findings(path)
    assert [line for line in found if finding in line], found


@pytest.mark.parametrize(("topic", "kind"), [(CLASSIC_TOPIC.name, 2), (CONNECT_TOPIC.name, 3)])
async def test_an_undecodable_record_of_a_group_is_found(path: Path, tmp_path: Path, topic: str, kind: int) -> None:
    async with open_log(path, tmp_path / "lock") as log:
        data = encode_batch([NewRecord(key=bytes((0, kind, 0x7F)), value=b"")], timestamp_ms=5)
        await log.append(log.topics[topic].partitions[0], [(data, read_batch_header(data))])
    (finding,) = findings(path)
    assert finding.startswith(f"{topic}-0: the batch at offset 0 is corrupt: ")


def test_corrupt_pages_are_found(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(4096 * 12)
        file.write(b"\xa5" * 4096 * 6)
    assert findings(path)


def test_a_file_that_is_no_log_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(WorldError, match="there is no broker's log"):
        findings(tmp_path / "log")
    (tmp_path / "log").write_bytes(b"not a database, but long enough to look like something" * 100)
    assert findings(tmp_path / "log") == ["the file cannot be read: file is not a database"]
    with closing(sqlite3.connect(tmp_path / "other")) as other:
        other.execute("PRAGMA user_version = 77")
    with pytest.raises(WorldError, match="layout 77"):
        findings(tmp_path / "other")
