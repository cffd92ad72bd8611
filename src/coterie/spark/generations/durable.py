"""Durable steps on the shared file system: written whole, synced, put in place by one call."""

import contextlib
import os
import shutil
import uuid
from pathlib import Path

from coterie.spark.checkpoint import NoExchangeError, exchange

RETIRED_PREFIX = ".retired-"


def put_first(path: Path, text: str) -> bool:
    """Put a file with ``text`` at ``path`` unless a file stands there; True when this call put it."""
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
    """Have everything in ``folder`` on disk, and the folder itself."""
    for parent, _, names in os.walk(folder, topdown=False):
        for name in names:
            descriptor = os.open(os.path.join(parent, name), os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        sync_folder(Path(parent))


def retire(path: Path) -> None:
    """Have a plain file stand at the name of a folder, and remove the folder. The name never becomes free."""
    aside = path.with_name(f"{RETIRED_PREFIX}{uuid.uuid4().hex}")
    aside.touch(exist_ok=False)
    try:
        exchange(aside, path)
    except NoExchangeError:
        aside.unlink()
        _retire_without_exchange(path, aside)
    except FileNotFoundError:
        # A sweep took the plain file away; whoever swept has the same to retire.
        return
    remove(aside)


def remove(path: Path) -> None:
    """Remove a file or a folder that others may be removing, too."""
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
