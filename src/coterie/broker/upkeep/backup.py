"""A copy of a broker's log while the broker runs on it: `coterie broker backup`.

One snapshot is read and held to the end, so the copy has all that was acknowledged before it began and nothing half;
the broker writes on meanwhile, into its write-ahead log. The copy takes its place in one rename when it is whole and
has been checked: SQLite copies damaged pages, too, and a copy of those must not replace a good one. What a log that it
overwrites had in a write-ahead log of its own is written back into that log first: a kill at any time leaves the old
log or the copy, with all that it had.
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
    """Copy the log ``source`` to ``target`` and return its bytes; with ``force`` in the place of a log that is there.
    ``tell`` hears from time to time how far the copy is. What fails or is interrupted leaves nothing behind.

    :raises WorldError: when there is nothing to copy, no room, a damaged log, or a target that is there or in use.
    """
    require_log(source)
    _check_target(source, target, force=force)
    part = target.with_name(target.name + ".part")
    try:
        refusal = f"a broker uses the folder {target.parent}; a backup goes somewhere else"
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
    """:raises WorldError: when a copy may not go there."""
    try:
        is_there = target.exists()
        folder, copied = target.parent.resolve(), source.parent.resolve()
    except OSError as error:
        raise WorldError(f"the copy {target} cannot be written: {error.strerror}") from error
    if folder.is_relative_to(copied):
        raise WorldError(f"{target.parent} is the broker's folder, or in it; a backup goes somewhere else")
    if is_there and not force:
        raise WorldError(f"{target} is there already; choose another folder, or overwrite it with --force")


@contextmanager
def _made(folder: Path, lock_path: Path) -> Iterator[None]:
    """The folder, made where it is missing; what was made goes again when the block fails."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    has_lock = lock_path.exists()
    try:
        make_folder(folder)
        yield
    except BaseException:
        if not has_lock:
            lock_path.unlink(missing_ok=True)
        for each in missing:
            # Somebody else may have put something there by now.
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
            tell(f"{100 * (total - remaining) // max(1, total)} % are copied")

    reading = connect_read_only(source)
    try:
        # Without a transaction that stays open the copy would begin anew whenever the broker writes.
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
    """:raises WorldError: when the copy, and so its source, is damaged."""
    finding = next(check(part, tell=tell, may_be_older=True), None)
    if finding is not None:
        raise _damaged(source, finding)


def _damaged(source: Path, finding: str) -> WorldError:
    return WorldError(
        f"the log {source} is damaged and was not copied: {finding}; `coterie broker check {source.parent}` names"
        " every finding, and a backup that was made before stays as it is"
    )


def _put_in_place(part: Path, target: Path) -> None:
    with part.open("rb") as file:
        os.fsync(file.fileno())
    _write_back(target)
    # What an overwritten log left in its write-ahead log must not be read into the copy.
    for suffix in ("-wal", "-shm"):
        target.with_name(target.name + suffix).unlink(missing_ok=True)
    part.replace(target)
    sync_folder(target.parent)


def _write_back(target: Path) -> None:
    """Bring the log ``target``, if there is one, to need its write-ahead log no more.

    :raises WorldError, sqlite3.Error: when somebody reads it, or there is no room.
    """
    if not (target.exists() and target.with_name(target.name + "-wal").exists()):
        return
    old = sqlite3.connect(os.fspath(target), isolation_level=None)
    try:
        (is_busy, _, _) = old.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    except sqlite3.OperationalError:
        raise
    except sqlite3.DatabaseError:
        return  # It is no log, or a damaged one: there is nothing in it that could be kept whole.
    finally:
        old.close()
    if is_busy:
        raise WorldError(f"{target} is being read; overwrite it when that has ended")
