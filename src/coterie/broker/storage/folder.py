"""The data directory of a broker: created so that other users of the machine cannot read it, locked, and synced."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coterie.nouns.errors import WorldError


def make_folder_private_if_new(path: Path) -> None:
    """Create the directory with mode 0700, and its missing parents with the default mode. An existing directory keeps
    its mode: that is its owner's decision.

    :raises OSError: the directory cannot be created.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)


@contextmanager
def lock_folder(lock_path: Path, *, error_message: str) -> Iterator[None]:
    """Hold an exclusive lock on the file ``lock_path`` while the block runs; the file is created if it does not exist.
    Each broker and each backup holds such a lock on the directory into which it writes.

    :raises WorldError: another process holds the lock; the error message is ``error_message``.
    :raises OSError: the lock file cannot be created or opened.
    """
    lock = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise WorldError(error_message) from error
        yield
    finally:
        os.close(lock)
