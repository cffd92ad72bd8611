"""The data directory of a broker: created unreadable for other users of the machine, locked, and synced."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coterie.nouns.errors import WorldError


def make_folder(path: Path) -> None:
    """Create the directory with mode 0700. An existing directory keeps its mode: that is its owner's decision.

    :raises OSError: the directory cannot be created.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)


@contextmanager
def locked(lock_path: Path, *, refusal: str) -> Iterator[None]:
    """Lock the file ``lock_path``, and so its directory, against other brokers while the block runs.

    :raises WorldError: another process holds the lock; the error message is ``refusal``.
    :raises OSError: the lock file cannot be created.
    """
    lock = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise WorldError(refusal) from error
        yield
    finally:
        os.close(lock)


def sync_folder(path: Path) -> None:
    """Make the names in a directory durable, so that a file renamed into it survives a crash of the machine."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
