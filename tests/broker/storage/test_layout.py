"""Layouts: a file of an older version of Coterie is upgraded with all its contents."""

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from coterie.broker.storage import layout
from coterie.broker.storage.log import open_log
from coterie.broker.storage.store import Store
from coterie.nouns.errors import WorldError
from coterie.wire.batches import NewRecord, decode_uncompressed_records_without_control, encode_batch, read_batch_header

LAYOUT_1 = Path(__file__).parents[1] / "files" / "layout_1.sqlite"
"""Written by the broker of layout 1: topics `orders` (3 partitions), `configs` (compact) and `empty`, 160 batches."""


KILLED_BEFORE_THE_COMMIT = """
import signal, sqlite3, sys
from coterie.broker.storage import layout
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.create_function("die", 0, lambda: signal.raise_signal(signal.SIGKILL))
layout._run_layout_statements(database, layout._UPGRADES[1] + "SELECT die();")
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    shutil.copy(LAYOUT_1, tmp_path / "log")
    return tmp_path / "log"


async def test_a_log_of_layout_1_is_upgraded_in_place(path: Path, tmp_path: Path) -> None:
    async with open_log(path, tmp_path / "lock") as log:
        assert log.cluster_id == "d321609b43c04b3da00eb0388e3a1291"
        assert {name: len(topic.partitions) for name, topic in log.topics.items()} == {
            "orders": 3,
            "configs": 1,
            "empty": 2,
        }
        orders = log.topics["orders"]
        assert str(orders.topic_id) == "c278e008-6b0d-4a17-8959-5bc507922f73"
        assert orders.configs == {"retention.ms": "-1"}
        assert [partition.end_offset for partition in orders.partitions] == [80, 80, 80]
        assert [partition.start_offset for partition in orders.partitions] == [0, 0, 0]
        records = decode_uncompressed_records_without_control(await log.read(orders.partitions[2], 0, 10**7))
        assert [record.offset for record in records] == list(range(80))
        assert records[78].value == b"v2-39"
        assert await log.run_write(lambda store: store.get_and_increment_counter("next producer id")) == 3
        batch = encode_batch([NewRecord(key=b"k", value=b"v")], timestamp_ms=1)
        assert await log.append(orders.partitions[0], [(batch, read_batch_header(batch))]) == 80
        assert (await log.create_topic("new", 1, {})).partitions[0].row_id not in {
            partition.row_id for topic in ("orders", "configs", "empty") for partition in log.topics[topic].partitions
        }


def test_an_upgraded_log_has_the_schema_of_a_new_one(path: Path, tmp_path: Path) -> None:
    for each in (path, tmp_path / "new"):
        Store(each).close()
    assert _schema(path) == _schema(tmp_path / "new")


def test_a_kill_during_the_upgrade_leaves_the_old_layout(path: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED_BEFORE_THE_COMMIT, str(path)], timeout=60, check=False)
    assert killed.returncode == -signal.SIGKILL
    database = sqlite3.connect(path)
    try:
        assert database.execute("PRAGMA user_version").fetchone() == (1,)
        assert database.execute("SELECT COUNT(*) FROM batches").fetchone() == (160,)
    finally:
        database.close()
    Store(path).close()
    assert _schema(path)[0] == (layout.LAYOUT_VERSION,)


def _schema(path: Path) -> list[tuple[object, ...]]:
    database = sqlite3.connect(path)
    try:
        return [
            *database.execute("PRAGMA user_version").fetchall(),
            *database.execute("PRAGMA auto_vacuum").fetchall(),
            *(
                (name, *(database.execute(f"PRAGMA table_info({name})").fetchall()))
                for (name,) in database.execute("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name")
            ),
            *database.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'index' ORDER BY name").fetchall(),
        ]
    finally:
        database.close()


# -- files that are no log --------------------------------------------------------------------------------------------


def foreign(path: Path) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE bookmarks (url)")
        database.execute("PRAGMA user_version = 2")
        database.commit()


def empty(path: Path) -> None:
    path.touch()


def only_wal(path: Path) -> None:
    path.with_name("log-wal").write_bytes(b"x")


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (foreign, "is an SQLite file, but not a broker's log"),
        (empty, "is empty: restore"),
        (only_wal, "is missing, but"),
    ],
)
async def test_a_file_that_is_no_log_is_refused_and_not_changed(
    make: Callable[[Path], None], complaint: str, tmp_path: Path
) -> None:
    path = tmp_path / "log"
    make(path)
    before = path.read_bytes() if path.exists() else None
    with pytest.raises(WorldError, match=complaint):
        async with open_log(path, tmp_path / "lock"):
            raise AssertionError("the file was opened")
    assert (path.read_bytes() if path.exists() else None) == before


async def test_a_kill_while_a_log_is_created_leaves_no_log(tmp_path: Path) -> None:
    (tmp_path / "log.new").write_bytes(b"half")
    async with open_log(tmp_path / "log", tmp_path / "lock") as log:
        assert log.is_new
    async with open_log(tmp_path / "log", tmp_path / "lock") as log:
        assert not log.is_new
    assert sorted(os.listdir(tmp_path)) == ["lock", "log"]


async def test_the_error_for_a_damaged_log_contains_advice(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"not a database, but long enough to look like something" * 100)
    with pytest.raises(
        WorldError, match=r"file is not a database; .coterie broker check .* lists the corruption; restore"
    ):
        async with open_log(tmp_path / "log", tmp_path / "lock"):
            raise AssertionError("the log was opened")
