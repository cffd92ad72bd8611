"""Checks of the log file before it is opened, and error messages if it cannot be opened or read."""

import sqlite3
from pathlib import Path

from coterie.nouns.errors import WorldError

_CORRUPTION_CODES = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
"""SQLite's primary result codes for a corrupt file and for a file that is not an SQLite file."""


def check_log_exists(path: Path) -> None:
    """Check that ``path`` is an existing file.

    :raises WorldError: there is no file, or the directory cannot be accessed.
    """
    try:
        is_there = path.is_file()
    except OSError as error:
        raise WorldError(f"the log {path} cannot be accessed: {error.strerror}") from error
    if not is_there:
        raise WorldError(f"there is no broker's log at {path}; use the data directory that the broker has as --data")


def is_corruption_error(error: sqlite3.Error) -> bool:
    """Whether ``error`` means that the file is corrupt or not an SQLite file. Other errors come, for example,
    from the directory, the disk, or another process's lock."""
    # The low byte is SQLite's primary result code; the higher bytes are the extended code.
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _CORRUPTION_CODES


def make_open_error(path: Path, error: sqlite3.Error) -> WorldError:
    """Build the error for a log that cannot be opened because of ``error``, with advice."""
    if is_corruption_error(error):
        advice = f"`coterie broker check {path.parent}` lists the corruption; restore a backup"
    else:
        advice = f"check the disk, and that the broker may read and write {path.parent} and the files in it"
    return WorldError(f"the broker's log {path} cannot be opened: {error}; {advice}")


def make_read_error(path: Path, error: sqlite3.Error) -> WorldError:
    """Build the error for a log that a command (backup or check) cannot read because of ``error``, which is no error of
    corruption (:func:`is_corruption_error`), with advice."""
    return WorldError(
        f"the log {path} cannot be read here: {error}; if a -wal file is beside the log, because the broker was killed,"
        " the log can only be read in a writable directory: copy the whole data directory to one"
    )
