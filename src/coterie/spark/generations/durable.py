"""Durable operations on the shared file system: complete files, fsync, and one atomic call that publishes the
result."""

import contextlib
import os
import shutil
import uuid
from pathlib import Path

from coterie.spark.checkpoint import NoExchangeError, exchange

RETIRED_PREFIX = ".retired-"


def put_first(path: Path, text: str) -> bool:
    """Create the file ``path`` with ``text``, unless it exists; atomic. Returns True when this call created it."""
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


def retire(path: Path) -> None:
    """Replace a folder by a plain file at the same path, and remove the folder. The path never becomes free."""
    aside = path.with_name(f"{RETIRED_PREFIX}{uuid.uuid4().hex}")
    aside.touch(exist_ok=False)
    try:
        exchange(aside, path)
    except NoExchangeError:
        aside.unlink()
        _retire_without_exchange(path, aside)
    except FileNotFoundError:
        # Another worker has removed the plain file as a leftover; that worker replaces the folder too.
        return
    remove(aside)


def remove(path: Path) -> None:
    """Remove a file or a folder. Other workers may remove it at the same time."""
    try:
        path.unlink(missing_ok=True)
    except (IsADirectoryError, PermissionError):
        shutil.rmtree(path, ignore_errors=True)


def _retire_without_exchange(path: Path, aside: Path) -> None:
    while not path.is_file():
        with contextlib.suppress(FileNotFoundError):
            path.rename(aside)
        try:
            path.touch(exist_ok=False)
        except FileExistsError:
            shutil.rmtree(aside, ignore_errors=True)
