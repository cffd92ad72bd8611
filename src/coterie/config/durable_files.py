"""Writes of small files that survive a crash of the machine."""

import os
import tempfile
from pathlib import Path


def fsync_folder(folder: Path) -> None:
    """fsync ``folder``: afterwards the names of the files in it survive a crash of the machine. The contents of the
    files are not synced.

    :raises OSError: the folder cannot be opened or synced.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_private_file(path: Path, text: str) -> None:
    """Replace the file ``path``, which need not exist, by a file with ``text`` that only its owner may read. Durable
    when this function returns, and atomic: a reader gets either the previous text or the new one.

    :raises OSError: the file cannot be written.
    """
    # mkstemp creates the file with mode 0600.
    descriptor, partial = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        os.unlink(partial)
        raise
    fsync_folder(path.parent)
