"""The folder of a broker's data: made so that other users of the machine cannot read it, locked, and synced."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coterie.nouns.errors import WorldError


def make_folder(path: Path) -> None:
    """Where there is one it stays as it is: its mode is its owner's decision.

    :raises OSError: when it cannot be made.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)


@contextmanager
def locked(lock_path: Path, *, refusal: str) -> Iterator[None]:
    """The folder of the file ``lock_path``, held against other brokers while the block runs.

    :raises WorldError: with ``refusal`` as its text when another broker holds it.
    :raises OSError: when the file cannot be made.
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
    """Make the names in a folder durable: a file that was renamed into it survives a crash of the machine."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
