"""A copy of a broker's log while the broker runs: `coterie broker backup`.

The copy is made from one snapshot: it contains everything that was acknowledged before the copy began, and no partial
write; the broker continues to write to its write-ahead log. SQLite also copies corrupt pages, and a corrupt copy must
not replace a good one. So the copy has another name until it is complete and checked, and then one rename commits it.
If the copy overwrites a log that has a write-ahead log, the content of this write-ahead log is first moved into the old
log: after a kill at any time there is either the complete old log or the copy.
"""

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from coterie.broker.maintenance.check import PROGRESS_INTERVAL_S, log_file_findings
from coterie.broker.storage.folder import lock_folder, make_folder_private_if_new
from coterie.broker.storage.log_file import check_log_exists, is_corruption_error, make_read_error
from coterie.broker.storage.store import open_database_read_only
from coterie.config.durable_files import fsync_folder
from coterie.nouns.errors import WorldError

_STEP_PAGES = 1_024
"""The number of pages that SQLite copies between two calls for the progress."""


def back_up_log_and_return_size(
    source: Path, target: Path, target_lock: Path, *, force: bool, report_progress: Callable[[str], None]
) -> int:
    """Copy the log file ``source`` to the file ``target`` and return the size of the copy in bytes. With ``force`` an
    existing ``target`` is overwritten. The directory of ``target`` is created if necessary, and locked with
    ``target_lock`` during the copy. ``report_progress`` gets a line about the progress about every 2 s. A copy that
    fails, or that an exception interrupts, leaves no new files.

    :raises WorldError: there is no log, or it is corrupt or cannot be read; the copy cannot be written; or ``target``
        exists without ``force``, is in the directory of ``source``, or is in a directory that a broker or another
        backup uses.
    """
    check_log_exists(source)
    _check_target(source, target, force=force)
    part = target.with_name(target.name + ".part")
    try:
        refusal = f"a broker or another backup uses the directory {target.parent}; choose another directory"
        with (
            _create_folder_undone_on_error(target.parent, target_lock),
            lock_folder(target_lock, error_message=refusal),
        ):
            try:
                _copy_log(source, part, report_progress)
                _check_copy(source, part, report_progress)
                _replace_target(part, target)
            finally:
                for suffix in ("", "-journal", "-wal", "-shm"):
                    part.with_name(part.name + suffix).unlink(missing_ok=True)
            return target.stat().st_size
    except (OSError, sqlite3.Error) as error:
        raise WorldError(f"the log {source} cannot be copied to {target}: {error}") from error


def _check_target(source: Path, target: Path, *, force: bool) -> None:
    """Check that ``target`` is outside of the directory of ``source``, and does not exist unless ``force``.

    :raises WorldError: ``target`` is in that directory, exists without ``force``, or cannot be accessed.
    """
    try:
        is_there = target.exists()
        folder, copied = target.parent.resolve(), source.parent.resolve()
    except OSError as error:
        raise WorldError(f"the copy {target} cannot be written: {error.strerror}") from error
    if folder.is_relative_to(copied):
        raise WorldError(
            f"the directory {target.parent} is the broker's data directory, or in it; choose another directory"
        )
    if is_there and not force:
        raise WorldError(
            f"the file {target} already exists; choose another directory, or overwrite the file with --force"
        )


@contextmanager
def _create_folder_undone_on_error(folder: Path, lock_path_deleted_on_error: Path) -> Iterator[None]:
    """Create the directory and its missing parents. If the block fails, delete ``lock_path_deleted_on_error`` if it did
    not exist before, and the created directories as far as they are empty."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    has_lock = lock_path_deleted_on_error.exists()
    try:
        make_folder_private_if_new(folder)
        yield
    except BaseException:
        if not has_lock:
            lock_path_deleted_on_error.unlink(missing_ok=True)
        for each in missing:
            # The directory stays if another process has put a file into it.
            with suppress(OSError):
                each.rmdir()
        raise


def _copy_log(source: Path, part: Path, report_progress: Callable[[str], None]) -> None:
    """Copy the log ``source`` to the temporary file ``part``, which is deleted first if it exists.

    :raises WorldError: the first read of ``source`` shows that it is corrupt or cannot be read.
    :raises sqlite3.Error: the copy cannot be written, or a later read fails.
    """
    part.unlink(missing_ok=True)
    reported_at_s = time.monotonic()

    def on_step(_status: int, remaining: int, total: int) -> None:
        nonlocal reported_at_s
        if time.monotonic() - reported_at_s >= PROGRESS_INTERVAL_S:
            reported_at_s = time.monotonic()
            report_progress(f"{100 * (total - remaining) // max(1, total)} % copied")

    reading = open_database_read_only(source)
    try:
        # Without an open read transaction SQLite would restart the copy after each write of the broker.
        try:
            reading.execute("BEGIN")
            reading.execute("SELECT COUNT(*) FROM sqlite_schema").fetchone()
        except sqlite3.Error as error:
            raise (
                _make_corrupt_log_error(source, str(error))
                if is_corruption_error(error)
                else make_read_error(source, error)
            ) from error
        writing = sqlite3.connect(os.fspath(part), isolation_level=None)
        try:
            reading.backup(writing, pages=_STEP_PAGES, progress=on_step)
        finally:
            writing.close()
    finally:
        reading.close()


def _check_copy(source: Path, part: Path, report_progress: Callable[[str], None]) -> None:
    """Check the temporary copy ``part`` as `coterie broker check` does.

    :raises WorldError: the copy is corrupt. Then ``source`` is corrupt, too, because SQLite copies corrupt pages as
        they are.
    """
    finding = next(log_file_findings(part, report_progress=report_progress, accepts_older_layout=True), None)
    if finding is not None:
        raise _make_corrupt_log_error(source, finding)


def _make_corrupt_log_error(source: Path, finding: str) -> WorldError:
    """Build the error for a log that is corrupt according to ``finding``."""
    return WorldError(
        f"the log {source} is corrupt and was not copied: {finding}; `coterie broker check {source.parent}` lists"
        " all findings; earlier backups are unchanged"
    )


def _replace_target(part: Path, target: Path) -> None:
    """Make the copy durable and rename it to ``target``.

    :raises WorldError: another process reads the log that would be overwritten.
    """
    with part.open("rb") as file:
        os.fsync(file.fileno())
    _checkpoint_wal_unless_corrupt(target)
    # SQLite must not apply the overwritten log's write-ahead log to the copy.
    for suffix in ("-wal", "-shm"):
        target.with_name(target.name + suffix).unlink(missing_ok=True)
    part.replace(target)
    fsync_folder(target.parent)


def _checkpoint_wal_unless_corrupt(target: Path) -> None:
    """Move the content of ``target``'s write-ahead log into ``target``, if both files exist: a crash during the
    replacement must leave a complete old log. A corrupt log stays as it is.

    :raises WorldError: another process reads the log.
    :raises sqlite3.OperationalError: the log cannot be written, for example because the disk is full.
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
        raise WorldError(
            f"another process reads the log {target}, which would be overwritten; retry when the process has finished"
        )
