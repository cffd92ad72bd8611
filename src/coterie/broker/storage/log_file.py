"""What can be said of a log's file before and when it cannot be opened: is it there, is it damaged, what to do."""

import sqlite3
from pathlib import Path

from coterie.nouns.errors import WorldError

_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def require_log(path: Path) -> None:
    """:raises WorldError: when there is no file, or nobody lets us look."""
    try:
        is_there = path.is_file()
    except OSError as error:
        raise WorldError(f"{path} cannot be looked at: {error.strerror}") from error
    if not is_there:
        raise WorldError(f"there is no broker's log at {path}; name the folder that --data names")


def is_damage(error: sqlite3.Error) -> bool:
    """Whether the file is to blame: otherwise it is its folder, the disk, or somebody who uses it."""
    # The low byte is the kind; what stands above it tells the kinds of a kind apart.
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGE


def unopened(path: Path, error: sqlite3.Error) -> WorldError:
    """Why the log cannot be opened, and what helps."""
    if is_damage(error):
        advice = f"`coterie broker check {path.parent}` says what is wrong; restore a backup"
    else:
        advice = f"see that the broker may read and write {path.parent} and what is in it"
    return WorldError(f"the broker's log {path} cannot be opened: {error}; {advice}")


def unread(path: Path, error: sqlite3.Error) -> WorldError:
    """Why the log, which is not known to be damaged, cannot be read, and what helps."""
    return WorldError(
        f"the log {path} cannot be read here: {error}; what a killed broker leaves (with a -wal beside it) is read only"
        " where its folder may be written: copy all of that folder to such a place"
    )
