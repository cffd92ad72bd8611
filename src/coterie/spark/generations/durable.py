"""Operations on the shared file system that are atomic for other workers: they create a complete file, or replace a
folder; and calls of fsync.
"""

import contextlib
import os
import shutil
import uuid
from pathlib import Path

from coterie.config.durable_files import fsync_folder
from coterie.spark.checkpoint import ExchangeUnsupportedError, exchange_names

REPLACED_PREFIX = ".retired-"
"""Prefix of the temporary names under which replaced folders are removed."""


def create_file_if_absent(path: Path, text: str) -> bool:
    """Create the file ``path`` with ``text``, unless ``path`` exists. Returns whether this call created the file, which
    is durable then. Atomic: no reader finds a part of the text."""
    temporary_file = path.with_name(f".{path.name}-{uuid.uuid4().hex}")
    with temporary_file.open("x") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(temporary_file, path)
    except FileExistsError:
        return False
    finally:
        temporary_file.unlink()
    fsync_folder(path.parent)
    return True


def fsync_folder_tree(folder: Path) -> None:
    """fsync all files and folders in ``folder``, and ``folder`` itself."""
    for parent, _, names in os.walk(folder, topdown=False):
        for name in names:
            descriptor = os.open(os.path.join(parent, name), os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        fsync_folder(Path(parent))


def replace_folder_by_file(path: Path) -> None:
    """Replace the folder ``path`` by an empty plain file of the same name, and remove the folder. A plain
    file at ``path`` stays an empty plain file. If nothing is at ``path``, nothing changes where the file system can
    exchange two names; elsewhere the plain file is created.

    The path is never free where the file system can exchange two names. Elsewhere it is free for a moment, and a folder
    that another worker creates there in this moment is replaced too.
    """
    replaced_path = path.with_name(f"{REPLACED_PREFIX}{uuid.uuid4().hex}")
    replaced_path.touch(exist_ok=False)
    try:
        exchange_names(replaced_path, path)
    except ExchangeUnsupportedError:
        replaced_path.unlink()
        _replace_folder_by_file_without_exchange(path, replaced_path)
    except FileNotFoundError:
        # Another worker has removed the plain file as a leftover; that worker replaces the folder too. Or there is no
        # folder.
        replaced_path.unlink(missing_ok=True)
        return
    try_remove_path(replaced_path)


def try_remove_path(path: Path) -> None:
    """Remove the file or the folder ``path``, if it exists. Errors during the removal of a folder are ignored: other
    workers may remove the folder at the same time."""
    try:
        path.unlink(missing_ok=True)
    except (IsADirectoryError, PermissionError):
        shutil.rmtree(path, ignore_errors=True)


def _replace_folder_by_file_without_exchange(path: Path, replaced_path: Path) -> None:
    """Rename the folder ``path`` to ``replaced_path``, and create an empty plain file at ``path``. If another worker
    creates a folder at ``path`` in between, delete the folder at ``replaced_path`` and repeat, until a plain file is at
    ``path``. The caller removes what is left at ``replaced_path``."""
    while not path.is_file():
        with contextlib.suppress(FileNotFoundError):
            path.rename(replaced_path)
        try:
            path.touch(exist_ok=False)
        except FileExistsError:
            shutil.rmtree(replaced_path, ignore_errors=True)
