"""A copy of a log in use: complete, consistent, and never over another file by mistake."""

import asyncio
import os
import shutil
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from coterie.broker.maintenance.backup import back_up_log_and_return_size
from coterie.broker.maintenance.check import log_file_findings
from coterie.broker.storage.log import BrokerLog, open_log
from coterie.broker.storage.store import open_database_read_only
from coterie.nouns.errors import WorldError
from coterie.wire.batches import NewRecord, encode_batch, read_batch_header


def copied(folder: Path, target: Path, *, force: bool = False) -> int:
    return back_up_log_and_return_size(
        folder / "log", target / "log", target / "lock", force=force, report_progress=lambda _: None
    )


def append(log: BrokerLog, size: int) -> "asyncio.Future[int]":
    data = encode_batch([NewRecord(key=None, value=os.urandom(size))], timestamp_ms=5)
    return log.append(log.topics["t"].partitions[0], [(data, read_batch_header(data))])


async def test_a_copy_made_under_load_contains_all_records_acknowledged_before_it(tmp_path: Path) -> None:
    target = tmp_path / "copy"
    async with open_log(tmp_path / "data" / "log", tmp_path / "data" / "lock") as log:
        topic_id = (await log.create_topic("t", 1, {})).topic_id
        await asyncio.gather(*(append(log, 10_000) for _ in range(500)))
        before = log.topics["t"].partitions[0].end_offset
        is_copied = threading.Event()

        async def load() -> int:
            count = 0
            while not is_copied.is_set():
                await append(log, 1_000)
                count += 1
            return count

        async with asyncio.TaskGroup() as tasks:
            loading = tasks.create_task(load())
            size_bytes = await asyncio.to_thread(copied, tmp_path / "data", target)
            is_copied.set()
        assert loading.result() > 0
        assert size_bytes > 5_000_000
    assert list(log_file_findings(target / "log", report_progress=lambda _: None)) == []
    async with open_log(target / "log", target / "lock") as log:
        assert log.topics["t"].topic_id == topic_id
        assert before <= log.topics["t"].partitions[0].end_offset <= before + loading.result()
        end_offset = log.topics["t"].partitions[0].end_offset
        assert await append(log, 10) == end_offset


async def test_an_existing_target_is_overwritten_only_with_force(tmp_path: Path) -> None:
    target = tmp_path / "copy"
    async with open_log(tmp_path / "data" / "log", tmp_path / "data" / "lock") as log:
        await log.create_topic("t", 1, {})
        await append(log, 10)
        copied(tmp_path / "data", target)
        await append(log, 10)
        with pytest.raises(WorldError, match="--force"):
            copied(tmp_path / "data", target)
        copied(tmp_path / "data", target, force=True)
    async with open_log(target / "log", target / "lock") as log:
        assert log.topics["t"].partitions[0].end_offset == 2
        with pytest.raises(WorldError, match="a broker or another backup uses the directory"):
            copied(tmp_path / "data", target, force=True)


class Killed(BaseException):
    """Simulates a kill: no code catches it."""


async def killed_log(folder: Path, target: Path) -> None:
    """Two logs of the same record: one in ``folder`` that was closed, one in ``target`` as a kill leaves it."""
    async with open_log(folder / "log", folder / "lock") as log:
        await log.create_topic("t", 1, {})
        await append(log, 10)
        os.mkdir(target)
        for name in ("log", "log-wal"):
            shutil.copy(folder / name, target / name)


async def test_a_kill_before_the_rename_leaves_the_old_log_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "copy"
    await killed_log(tmp_path / "data", target)

    def kill(_self: Path, _target: Path) -> Path:
        raise Killed

    monkeypatch.setattr(Path, "replace", kill)
    with pytest.raises(Killed):
        copied(tmp_path / "data", target, force=True)
    async with open_log(target / "log", target / "lock") as log:
        assert log.topics["t"].partitions[0].end_offset == 1


async def test_a_log_that_is_being_read_is_not_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "copy"
    await killed_log(tmp_path / "data", target)
    reading = open_database_read_only(target / "log")
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda path, **more: connect(path, timeout=0, **more))
    try:
        reading.execute("BEGIN")
        reading.execute("SELECT * FROM topics").fetchone()
        with pytest.raises(WorldError, match="another process reads"):
            copied(tmp_path / "data", target, force=True)
    finally:
        reading.close()
    copied(tmp_path / "data", target, force=True)


async def test_a_damaged_log_can_be_overwritten(tmp_path: Path) -> None:
    target = tmp_path / "copy"
    await killed_log(tmp_path / "data", target)
    (target / "log").write_bytes(b"not a database, but long enough to look like something" * 100)
    (target / "log-wal").write_bytes(b"")
    copied(tmp_path / "data", target, force=True)
    async with open_log(target / "log", target / "lock") as log:
        assert log.topics["t"].partitions[0].end_offset == 1


async def test_a_copy_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    async with open_log(tmp_path / "data" / "log", tmp_path / "data" / "lock") as log:
        await log.create_topic("t", 1, {})
        (tmp_path / "file").write_text("")
        with pytest.raises(WorldError, match=r"the log .* cannot be copied to .*/file/log"):
            copied(tmp_path / "data", tmp_path / "file")
    with pytest.raises(WorldError, match="there is no broker's log"):
        copied(tmp_path / "nowhere", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


async def test_a_copy_that_is_interrupted_leaves_nothing_behind(tmp_path: Path) -> None:
    async with open_log(tmp_path / "data" / "log", tmp_path / "data" / "lock") as log:
        await log.create_topic("t", 1, {})

        def interrupt(_line: str) -> None:
            raise KeyboardInterrupt

        deep = tmp_path / "backups" / "monday"
        with pytest.raises(KeyboardInterrupt):
            back_up_log_and_return_size(
                tmp_path / "data" / "log", deep / "log", deep / "lock", force=False, report_progress=interrupt
            )
        assert not (tmp_path / "backups").exists()
        copied(tmp_path / "data", deep)
        with pytest.raises(KeyboardInterrupt):
            back_up_log_and_return_size(
                tmp_path / "data" / "log", deep / "log", deep / "lock", force=True, report_progress=interrupt
            )
    assert sorted(path.name for path in deep.iterdir()) == ["lock", "log"]


def test_a_source_that_is_no_log_is_refused_and_leaves_no_copy(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "log").write_bytes(b"not a database, but long enough to look like something" * 100)
    with pytest.raises(
        WorldError, match=r"is corrupt and was not copied: file is not a database; .coterie broker check"
    ):
        copied(tmp_path / "data", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def garbled_pages(path: Path) -> None:
    """Overwrite some pages in the middle of the file."""
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2 // 4096 * 4096)
        file.write(os.urandom(8 * 4096))


def flipped_byte(path: Path) -> None:
    """Change a byte in the value of a record, where SQLite finds no corruption."""
    content = path.read_bytes()
    at = content.rindex(b"\x5a" * 100)
    path.write_bytes(content[:at] + b"\x00" + content[at + 1 :])


@pytest.mark.parametrize("damage", [garbled_pages, flipped_byte])
async def test_a_damaged_log_does_not_take_the_place_of_a_good_copy(
    damage: Callable[[Path], None], tmp_path: Path
) -> None:
    async with open_log(tmp_path / "data" / "log", tmp_path / "data" / "lock") as log:
        partition = (await log.create_topic("t", 1, {})).partitions[0]
        for _ in range(50):
            data = encode_batch([NewRecord(key=None, value=b"\x5a" * 5_000)], timestamp_ms=5)
            await log.append(partition, [(data, read_batch_header(data))])
    copied(tmp_path / "data", tmp_path / "copy")
    good = (tmp_path / "copy" / "log").read_bytes()
    damage(tmp_path / "data" / "log")
    with pytest.raises(WorldError, match=r"is corrupt and was not copied: .*coterie broker check"):
        copied(tmp_path / "data", tmp_path / "copy", force=True)
    assert (tmp_path / "copy" / "log").read_bytes() == good
    assert sorted(path.name for path in (tmp_path / "copy").iterdir()) == ["lock", "log"]


async def test_a_backup_into_its_source_folder_is_refused(tmp_path: Path) -> None:
    async with open_log(tmp_path / "data" / "log", tmp_path / "data" / "lock") as log:
        await log.create_topic("t", 1, {})
    (tmp_path / "link").symlink_to(tmp_path / "data")
    for target in (tmp_path / "data", tmp_path / "link", tmp_path / "data" / "copy", tmp_path / "data" / ".." / "data"):
        with pytest.raises(WorldError, match="is the broker's data directory, or in it"):
            copied(tmp_path / "data", target, force=True)
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == ["lock", "log"]


async def test_an_inaccessible_target_is_one_clear_error(tmp_path: Path) -> None:
    async with open_log(tmp_path / "data" / "log", tmp_path / "data" / "lock") as log:
        await log.create_topic("t", 1, {})
    # Root may access every folder; a name that is too long for the file system fails at the same call.
    with pytest.raises(WorldError, match=r"the copy .* cannot be written: File name too long"):
        copied(tmp_path / "data", tmp_path / ("x" * 300))
    with pytest.raises(WorldError, match="cannot be accessed: File name too long"):
        copied(tmp_path / ("x" * 300), tmp_path / "copy")


async def test_a_log_that_cannot_be_read_here_is_not_reported_as_damaged(tmp_path: Path) -> None:
    await killed_log(tmp_path / "other", tmp_path / "data")
    # The effect of a read-only folder, also for root: SQLite cannot create the files that it needs beside the log.
    (tmp_path / "data" / "log-wal").unlink()
    (tmp_path / "data" / "log-wal").mkdir()
    with pytest.raises(WorldError, match=r"the log .*/data/log cannot be read here: .*copy the whole data directory"):
        copied(tmp_path / "data", tmp_path / "copy")
    with pytest.raises(WorldError, match="cannot be read here"):
        list(log_file_findings(tmp_path / "data" / "log", report_progress=lambda _: None))


async def test_a_log_of_an_older_layout_is_copied_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    shutil.copy(Path(__file__).parents[1] / "files" / "layout_1.sqlite", tmp_path / "data" / "log")
    copied(tmp_path / "data", tmp_path / "copy")
    async with open_log(tmp_path / "copy" / "log", tmp_path / "copy" / "lock") as log:
        assert len(log.topics) == 3
