"""A copy of a broker's log while the broker runs: `coterie broker backup`.

The copy is made from one snapshot: it contains everything that was acknowledged before it began, and no partial write;
the broker continues to write to its write-ahead log. After the copy is complete and checked, one rename commits it:
SQLite also copies corrupt pages, and a corrupt copy must not replace a good one. If the copy overwrites a log that has
a write-ahead log, that is checkpointed into the old log first: after a kill at any time there is either the complete
old log or the copy.
"""

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from coterie.broker.storage.folder import locked, make_folder, sync_folder
from coterie.broker.storage.log_file import is_damage, require_log, unread
from coterie.broker.storage.store import connect_read_only
from coterie.broker.upkeep.check import TELL_EVERY_S, check
from coterie.nouns.errors import WorldError

_STEP_PAGES = 1_024


def back_up(source: Path, target: Path, target_lock: Path, *, force: bool, tell: Callable[[str], None]) -> int:
    """Copy the log ``source`` to ``target`` and return the size in bytes; with ``force`` replace an existing log.
    ``tell`` is called regularly with the progress. A failed or interrupted copy leaves no files.

    :raises WorldError: there is no log, it is corrupt, there is no disk space, or the target exists or is in use.
    """
    require_log(source)
    _check_target(source, target, force=force)
    part = target.with_name(target.name + ".part")
    try:
        refusal = f"a broker uses the directory {target.parent}; choose another directory for the backup"
        with _made(target.parent, target_lock), locked(target_lock, refusal=refusal):
            try:
                _copy(source, part, tell)
                _check_copy(source, part, tell)
                _put_in_place(part, target)
            finally:
                for suffix in ("", "-journal", "-wal", "-shm"):
                    part.with_name(part.name + suffix).unlink(missing_ok=True)
            return target.stat().st_size
    except (OSError, sqlite3.Error) as error:
        raise WorldError(f"the copy {target} cannot be written: {error}") from error


def _check_target(source: Path, target: Path, *, force: bool) -> None:
    """:raises WorldError: the copy may not be written there."""
    try:
        is_there = target.exists()
        folder, copied = target.parent.resolve(), source.parent.resolve()
    except OSError as error:
        raise WorldError(f"the copy {target} cannot be written: {error.strerror}") from error
    if folder.is_relative_to(copied):
        raise WorldError(f"{target.parent} is the broker's data directory, or in it; choose another directory")
    if is_there and not force:
        raise WorldError(f"{target} already exists; choose another directory, or overwrite it with --force")


@contextmanager
def _made(folder: Path, lock_path: Path) -> Iterator[None]:
    """Create the directory if it does not exist; if the block fails, delete what was created."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    has_lock = lock_path.exists()
    try:
        make_folder(folder)
        yield
    except BaseException:
        if not has_lock:
            lock_path.unlink(missing_ok=True)
        for each in missing:
            # The directory stays if another process has put a file into it.
            with suppress(OSError):
                each.rmdir()
        raise


def _copy(source: Path, part: Path, tell: Callable[[str], None]) -> None:
    part.unlink(missing_ok=True)
    told_at_s = time.monotonic()

    def on_step(_status: int, remaining: int, total: int) -> None:
        nonlocal told_at_s
        if time.monotonic() - told_at_s >= TELL_EVERY_S:
            told_at_s = time.monotonic()
            tell(f"{100 * (total - remaining) // max(1, total)} % copied")

    reading = connect_read_only(source)
    try:
        # Without an open read transaction SQLite would restart the copy after each write of the broker.
        try:
            reading.execute("BEGIN")
            reading.execute("SELECT COUNT(*) FROM sqlite_schema").fetchone()
        except sqlite3.Error as error:
            raise _damaged(source, str(error)) if is_damage(error) else unread(source, error) from error
        writing = sqlite3.connect(os.fspath(part), isolation_level=None)
        try:
            reading.backup(writing, pages=_STEP_PAGES, progress=on_step)
        finally:
            writing.close()
    finally:
        reading.close()


def _check_copy(source: Path, part: Path, tell: Callable[[str], None]) -> None:
    """:raises WorldError: the copy, and so its source, is corrupt."""
    finding = next(check(part, tell=tell, may_be_older=True), None)
    if finding is not None:
        raise _damaged(source, finding)


def _damaged(source: Path, finding: str) -> WorldError:
    return WorldError(
        f"the log {source} is corrupt and was not copied: {finding}; `coterie broker check {source.parent}` lists"
        " all findings; earlier backups are unchanged"
    )


def _put_in_place(part: Path, target: Path) -> None:
    with part.open("rb") as file:
        os.fsync(file.fileno())
    _write_back(target)
    # SQLite must not apply the overwritten log's write-ahead log to the copy.
    for suffix in ("-wal", "-shm"):
        target.with_name(target.name + suffix).unlink(missing_ok=True)
    part.replace(target)
    sync_folder(target.parent)


def _write_back(target: Path) -> None:
    """Checkpoint the write-ahead log of the log ``target``, if both exist.

    :raises WorldError, sqlite3.Error: another process reads the log, or the disk is full.
    """
    if not (target.exists() and target.with_name(target.name + "-wal").exists()):
        return
    old = sqlite3.connect(os.fspath(target), isolation_level=None)
    try:
        (is_busy, _, _) = old.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    except sqlite3.OperationalError:
        raise
    except sqlite3.DatabaseError:
        return  # Not a log, or a corrupt log: it cannot be preserved anyway.
    finally:
        old.close()
    if is_busy:
        raise WorldError(f"another process reads {target}; retry when it has finished")
