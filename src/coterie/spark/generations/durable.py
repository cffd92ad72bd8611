"""Operations on the shared file system that are atomic for other workers: they create a complete file, or replace a
folder; and calls of fsync.
"""

import contextlib
import os
import shutil
import uuid
from pathlib import Path

from coterie.spark.checkpoint import ExchangeUnsupportedError, exchange_names

REPLACED_PREFIX = ".retired-"
"""Prefix of the temporary names under which replaced folders are removed."""


def create_if_absent(path: Path, text: str) -> bool:
    """Create the file ``path`` with ``text``, unless ``path`` exists. Returns whether this call created the file, which
    is durable then. Atomic: no reader finds a part of the text."""
    aside = path.with_name(f".{path.name}-{uuid.uuid4().hex}")
    with aside.open("x") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(aside, path)
    except FileExistsError:
        return False
    finally:
        aside.unlink()
    sync_folder(path.parent)
    return True


def sync_folder(folder: Path) -> None:
    """fsync ``folder``: the names in it are then durable, the contents of its files are not."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """fsync all files and folders in ``folder``, and ``folder`` itself."""
    for parent, _, names in os.walk(folder, topdown=False):
        for name in names:
            descriptor = os.open(os.path.join(parent, name), os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        sync_folder(Path(parent))


def replace_folder_by_file(path: Path) -> None:
    """Replace the folder ``path`` by an empty plain file, and remove the folder. Does nothing to a plain file at
    ``path``.

    The path is never free where the file system can exchange two names. Elsewhere it is free for a moment, and a folder
    that another worker creates there in this moment is replaced too.
    """
    aside = path.with_name(f"{REPLACED_PREFIX}{uuid.uuid4().hex}")
    aside.touch(exist_ok=False)
    try:
        exchange_names(aside, path)
    except ExchangeUnsupportedError:
        aside.unlink()
        _replace_without_exchange(path, aside)
    except FileNotFoundError:
        # Another worker has removed the plain file as a leftover; that worker replaces the folder too.
        return
    remove(aside)


def remove(path: Path) -> None:
    """Remove a file or a folder, if it exists. Errors during the removal of a folder are ignored: other workers may
    remove the folder at the same time."""
    try:
        path.unlink(missing_ok=True)
    except (IsADirectoryError, PermissionError):
        shutil.rmtree(path, ignore_errors=True)


def _replace_without_exchange(path: Path, aside: Path) -> None:
    """Rename the folder ``path`` to ``aside``, and create a plain file at ``path``, until a plain file is there."""
    while not path.is_file():
        with contextlib.suppress(FileNotFoundError):
            path.rename(aside)
        try:
            path.touch(exist_ok=False)
        except FileExistsError:
            shutil.rmtree(aside, ignore_errors=True)
