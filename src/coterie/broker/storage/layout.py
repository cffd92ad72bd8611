"""The layout (SQLite schema) of the log file, and the upgrade of a file with an older layout.

To change the layout, increment `LAYOUT_VERSION`, add the statements to `_UPGRADES`, and add a file of the old layout to
the tests. Tables of other modules are created here, too, so that one place lists the contents of the file.
"""

import logging
import os
import shutil
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from uuid import uuid4

from coterie.config.durable_files import fsync_folder
from coterie.nouns.errors import WorldError

logger = logging.getLogger(__name__)

LAYOUT_VERSION = 2
"""The layout that this version of coterie writes; a log file contains the number of its layout as SQLite's
``user_version``."""

_INITIAL_TABLES = """
CREATE TABLE numbers (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE topics (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, topic_id BLOB NOT NULL UNIQUE,
                     partitions INTEGER NOT NULL, configs TEXT NOT NULL);
CREATE TABLE batches (id INTEGER PRIMARY KEY, partition INTEGER NOT NULL REFERENCES partitions (id),
                      base_offset INTEGER NOT NULL, last_offset INTEGER NOT NULL, max_timestamp_ms INTEGER NOT NULL,
                      size_bytes INTEGER NOT NULL, data BLOB NOT NULL);
"""
"""The tables whose statements no upgrade has changed; `_LAYOUT_2` adds a column to one of them."""

# A partition whose topic is NULL belongs to a deleted topic: its batches are deleted in chunks, then its row. Row ids
# are never reused, so that a late append to a deleted topic finds no partition. `cleaned_offset` is where the next
# compaction begins to index keys; `sifted_offset` is the highest offset that any compaction, finished or not, has
# reached: only before it may offsets be missing.
_PARTITIONS = """
CREATE TABLE {name} (id INTEGER PRIMARY KEY AUTOINCREMENT, topic INTEGER REFERENCES topics (id),
                     number INTEGER NOT NULL, start_offset INTEGER NOT NULL DEFAULT 0,
                     cleaned_offset INTEGER NOT NULL DEFAULT 0, sifted_offset INTEGER NOT NULL DEFAULT 0,
                     UNIQUE (topic, number));
"""
"""The table of partitions; its name is a parameter, because an upgrade creates the new table beside the old one."""

# The index contains all columns that retention and the search by timestamp need, so that neither reads the bytes of
# batches. The horizon is the time from which the tombstones of a compacted batch may be deleted (KIP-534).
_LAYOUT_2 = """
CREATE INDEX batches_by_offset ON batches (partition, last_offset, base_offset, max_timestamp_ms, size_bytes);
ALTER TABLE batches ADD COLUMN delete_horizon_ms INTEGER;
CREATE INDEX batches_by_horizon ON batches (partition, delete_horizon_ms) WHERE delete_horizon_ms IS NOT NULL;
CREATE TABLE kept (kind TEXT NOT NULL, name TEXT NOT NULL, entries TEXT NOT NULL,
                   PRIMARY KEY (kind, name)) WITHOUT ROWID;
"""
"""The indexes, the column and the table that layout 2 adds."""

# The tables of `transaction_store`. When a partition is deleted, the trigger deletes its producers and aborted
# transactions.
_TRANSACTIONS = """
CREATE TABLE transactions (transactional_id TEXT PRIMARY KEY, producer_id INTEGER NOT NULL, epoch INTEGER NOT NULL,
                           previous_producer_id INTEGER NOT NULL, previous_epoch INTEGER NOT NULL,
                           timeout_ms INTEGER NOT NULL, state TEXT NOT NULL, partitions TEXT NOT NULL,
                           started_at_ms INTEGER NOT NULL, written_at_ms INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE producers (partition INTEGER NOT NULL, producer_id INTEGER NOT NULL, epoch INTEGER NOT NULL,
                        batches TEXT NOT NULL, open_offset INTEGER, written_at_ms INTEGER NOT NULL,
                        PRIMARY KEY (partition, producer_id)) WITHOUT ROWID;
CREATE INDEX producers_by_open_offset ON producers (partition, open_offset) WHERE open_offset IS NOT NULL;
CREATE TABLE aborted (partition INTEGER NOT NULL, last_offset INTEGER NOT NULL, first_offset INTEGER NOT NULL,
                      producer_id INTEGER NOT NULL, PRIMARY KEY (partition, last_offset)) WITHOUT ROWID;
CREATE TRIGGER partition_gone AFTER DELETE ON partitions BEGIN
    DELETE FROM producers WHERE partition = OLD.id;
    DELETE FROM aborted WHERE partition = OLD.id;
END;
"""

_TABLES = {"numbers", "topics", "partitions", "batches"}
"""The tables that every layout has."""

_UPGRADES: Mapping[int, str] = {
    1: _PARTITIONS.format(name="new_partitions")
    + """
INSERT INTO new_partitions (id, topic, number) SELECT id, topic, number FROM partitions;
DROP TABLE partitions;
ALTER TABLE new_partitions RENAME TO partitions;
DROP INDEX batches_by_offset;
"""
    + _LAYOUT_2
    + _TRANSACTIONS,
}
"""By the number of an older layout: the statements that upgrade a file from it to the next layout."""


def create_new_log_file(path: Path) -> None:
    """Create an empty log at ``path``, which must not exist. After a kill at any time there is either the complete file
    or none.

    :raises WorldError: beside ``path`` there is a write-ahead log that is not empty, and whose log file is missing.
    :raises OSError: a file cannot be created or renamed.
    :raises sqlite3.Error: the file cannot be written.
    """
    wal = path.with_name(path.name + "-wal")
    if wal.exists() and wal.stat().st_size:
        raise WorldError(
            f"the log {path} is missing, but {wal.name} exists: restore both files, or move {wal.name} away to"
            " start with an empty log"
        )
    part = path.with_name(path.name + ".new")
    for suffix in ("", "-journal"):
        part.with_name(part.name + suffix).unlink(missing_ok=True)
    database = sqlite3.connect(os.fspath(part), isolation_level=None)
    try:
        create_or_upgrade_layout(database, part)
    finally:
        database.close()
    part.replace(path)
    fsync_folder(path.parent)


def check_is_broker_log(database: sqlite3.Connection, path: Path) -> None:
    """Check that the existing file ``path``, which ``database`` has opened, is a broker's log. A file whose layout is
    newer than `LAYOUT_VERSION` passes.

    :raises WorldError: the file is empty, or lacks a table that every log has.
    :raises sqlite3.Error: the file cannot be read, or is not an SQLite file.
    """
    if path.stat().st_size == 0:
        raise WorldError(f"the log {path} is empty: restore a backup, or move the file away to start with an empty log")
    if database.execute("PRAGMA user_version").fetchone() > (LAYOUT_VERSION,):
        return  # The tables of a newer layout are unknown; `create_or_upgrade_layout` reports the layout.
    tables = {name for (name,) in database.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    if not tables >= _TABLES:
        raise WorldError(
            f"the file {path} is an SQLite file, but not a broker's log; choose another data directory, or move the"
            " file away"
        )


def create_or_upgrade_layout(database: sqlite3.Connection, path: Path) -> None:
    """Create the tables in an empty ``database``, the file ``path``, or upgrade an older layout to `LAYOUT_VERSION`.
    After a kill the file has either the old layout or the new one. A file of an old version that SQLite cannot shrink
    is rewritten as a whole, if there is enough disk space.

    :raises WorldError: the file has a newer layout.
    :raises sqlite3.Error: the file cannot be written.
    """
    # SQLite applies this only to a file without tables; other files need `VACUUM`.
    database.execute("PRAGMA auto_vacuum = INCREMENTAL")
    (found,) = database.execute("PRAGMA user_version").fetchone()
    if found == 0:
        cluster_id = uuid4().hex
        _run_layout_statements(
            database,
            _INITIAL_TABLES
            + _PARTITIONS.format(name="partitions")
            + _LAYOUT_2
            + _TRANSACTIONS
            + f"INSERT INTO numbers VALUES ('cluster id', '{cluster_id}');",
        )
    elif found in _UPGRADES:
        logger.info("Upgrading %s from layout %d to layout %d", path, found, LAYOUT_VERSION)
        _run_layout_statements(database, "".join(_UPGRADES[layout] for layout in range(found, LAYOUT_VERSION)))
    elif found != LAYOUT_VERSION:
        raise WorldError(
            f"the log {path} was written by a newer version of coterie (layout {found}, this version uses"
            f" {LAYOUT_VERSION}); start the newer version, or choose another data directory"
        )
    if database.execute("PRAGMA auto_vacuum").fetchone() == (0,):
        _vacuum_if_disk_space(database, path)


def _run_layout_statements(database: sqlite3.Connection, statements: str) -> None:
    """Run ``statements`` and set the layout number in one SQLite transaction; after an error nothing is changed."""
    try:
        database.executescript(f"BEGIN IMMEDIATE; {statements} PRAGMA user_version = {LAYOUT_VERSION}; COMMIT;")
    except sqlite3.Error:
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise


def _vacuum_if_disk_space(database: sqlite3.Connection, path: Path) -> None:
    """Rewrite the whole file, so that SQLite can shrink it when data is deleted. If less than twice the file's size
    plus 64 MiB is free on the disk, log a warning instead and leave the file as it is: its free pages are reused, but
    the file does not shrink."""
    size_bytes = path.stat().st_size
    if shutil.disk_usage(path.parent).free < 2 * size_bytes + 64 * 1024 * 1024:
        logger.warning(
            "Not enough disk space to rewrite %s: its free pages are reused, but the file does not shrink. To let it"
            " shrink, free disk space and restart the broker",
            path,
        )
        return
    logger.info("Rewriting %s, so that the file can shrink when data is deleted (%d MB)", path, size_bytes // 1_000_000)
    database.execute("VACUUM")
