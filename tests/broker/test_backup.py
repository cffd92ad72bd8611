"""A copy of a log in use: whole, sound, and never in the place of something else by mistake."""

import asyncio
import os
import shutil
import sqlite3
import threading
from pathlib import Path

import pytest

from coterie.broker.backup import back_up
from coterie.broker.check import check
from coterie.broker.log import BrokerLog, open_log
from coterie.broker.store import connect_read_only
from coterie.nouns.errors import WorldError
from coterie.wire.batches import NewRecord, encode_batch, read_head


def copied(folder: Path, target: Path, *, force: bool = False) -> int:
    return back_up(folder / "log", target / "log", target / "lock", force=force, tell=lambda _: None)


def append(log: BrokerLog, size: int) -> "asyncio.Future[int]":
    data = encode_batch([NewRecord(key=None, value=os.urandom(size))], timestamp_ms=5)
    return log.append(log.topics["t"].partitions[0], data, read_head(data))


async def test_a_copy_made_under_load_has_all_that_was_acknowledged_before_it(tmp_path: Path) -> None:
    target = tmp_path / "copy"
    async with open_log(tmp_path / "log", tmp_path / "lock") as log:
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
            size_bytes = await asyncio.to_thread(copied, tmp_path, target)
            is_copied.set()
        assert loading.result() > 0
        assert size_bytes > 5_000_000
    assert list(check(target / "log", tell=lambda _: None)) == []
    async with open_log(target / "log", target / "lock") as log:
        assert log.topics["t"].topic_id == topic_id
        assert before <= log.topics["t"].partitions[0].end_offset <= before + loading.result()
        end_offset = log.topics["t"].partitions[0].end_offset
        assert await append(log, 10) == end_offset


async def test_a_target_that_is_there_is_overwritten_only_by_force(tmp_path: Path) -> None:
    target = tmp_path / "copy"
    async with open_log(tmp_path / "log", tmp_path / "lock") as log:
        await log.create_topic("t", 1, {})
        await append(log, 10)
        copied(tmp_path, target)
        await append(log, 10)
        with pytest.raises(WorldError, match="--force"):
            copied(tmp_path, target)
        copied(tmp_path, target, force=True)
    async with open_log(target / "log", target / "lock") as log:
        assert log.topics["t"].partitions[0].end_offset == 2
        with pytest.raises(WorldError, match="a broker uses the folder"):
            copied(tmp_path, target, force=True)


class Killed(BaseException):
    """As good as a kill: nobody catches it."""


async def killed_log(folder: Path, target: Path) -> None:
    """Two logs of the same record: one in ``folder`` that was closed, one in ``target`` as a kill leaves it."""
    async with open_log(folder / "log", folder / "lock") as log:
        await log.create_topic("t", 1, {})
        await append(log, 10)
        os.mkdir(target)
        for name in ("log", "log-wal"):
            shutil.copy(folder / name, target / name)


async def test_a_kill_before_the_rename_leaves_the_old_log_with_all_that_it_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "copy"
    await killed_log(tmp_path, target)

    def die(_self: Path, _target: Path) -> Path:
        raise Killed

    monkeypatch.setattr(Path, "replace", die)
    with pytest.raises(Killed):
        copied(tmp_path, target, force=True)
    async with open_log(target / "log", target / "lock") as log:
        assert log.topics["t"].partitions[0].end_offset == 1


async def test_a_log_that_is_being_read_is_not_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "copy"
    await killed_log(tmp_path, target)
    reading = connect_read_only(target / "log")
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda path, **more: connect(path, timeout=0, **more))
    try:
        reading.execute("BEGIN")
        reading.execute("SELECT * FROM topics").fetchone()
        with pytest.raises(WorldError, match="is being read"):
            copied(tmp_path, target, force=True)
    finally:
        reading.close()
    copied(tmp_path, target, force=True)


async def test_a_damaged_log_can_be_overwritten(tmp_path: Path) -> None:
    target = tmp_path / "copy"
    await killed_log(tmp_path, target)
    (target / "log").write_bytes(b"not a database, but long enough to look like something" * 100)
    (target / "log-wal").write_bytes(b"")
    copied(tmp_path, target, force=True)
    async with open_log(target / "log", target / "lock") as log:
        assert log.topics["t"].partitions[0].end_offset == 1


async def test_a_copy_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    async with open_log(tmp_path / "log", tmp_path / "lock") as log:
        await log.create_topic("t", 1, {})
        (tmp_path / "file").write_text("")
        with pytest.raises(WorldError, match="cannot be copied"):
            copied(tmp_path, tmp_path / "file")
    with pytest.raises(WorldError, match="there is no broker's log"):
        copied(tmp_path / "nowhere", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_a_source_that_is_no_log_is_refused_and_leaves_no_copy(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"not a database, but long enough to look like something" * 100)
    with pytest.raises(WorldError, match="not a database"):
        copied(tmp_path, tmp_path / "copy")
    assert sorted(path.name for path in (tmp_path / "copy").iterdir()) == ["lock"]
