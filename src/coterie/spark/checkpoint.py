"""Ownership of a task's checkpoint: one atomic file system operation takes the checkpoint over, and one path lookup
tests whether a start still holds it.

Theory of operation. A task's folder, ``LOCATION/<connector>-<incarnation>/<task>/``, contains one entry for each start
of the task, named ``<number>-<fresh id>``. One entry is a directory, the checkpoint; all others are plain files. To
take over, a start creates a plain file under the next free number, finds the directory and *exchanges* the two names
in one system call. The start holds the checkpoint if its own name is now the directory. Otherwise another start took
the checkpoint first, and this start tries again.

Why an exchange and not a rename: a query that finds nothing at its path creates the folder again and continues without
end. A plain file at the path makes the next write of the query fail, and no query removes that file.

Why this is safe: only the start that owns a name passes this name to the system call as the first one, and only while
the name is a plain file. So a name becomes a directory only by a call of its owner, at most once after the owner last
checked it, and a directory that was taken from a name never returns to this name.

Checkpoint lineage: the id of a checkpoint directory's contents, which the file ``lineage`` in the directory contains.
Batch ids are unique in one lineage. A directory without this file is not the checkpoint.

Where a file system has no exchange, a rename and the creation of a plain file at the old path replace the exchange. An
old query can create its folder again between the two steps. The files in that folder are then moved into the
checkpoint, and the creation of the plain file is tried again, until a plain file is at the old path.
"""

import ctypes
import errno
import fcntl
import os
import re
import shutil
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from coterie.nouns.errors import CoterieError, WorldError
from coterie.nouns.jobs import TASKS_MAX

LINEAGE = "lineage"
"""Name of the file, in a checkpoint directory, that contains the checkpoint's lineage."""
FIRST_CHECKPOINT_NAME = "0-genesis"
"""Name of a task's first checkpoint directory: the first start takes the checkpoint over from this name."""
TAKE_OVER_TIMEOUT_MS = 30_000
"""How long a take-over searches for the checkpoint directory before it fails. One search can miss the directory while
another start renames it."""

_NAME = re.compile(r"(\d+)-[0-9a-z]+")
"""The name of a start's entry, or of the first checkpoint directory; the group is the start's number."""
_EXCHANGE_UNSUPPORTED_ERRNOS = {errno.EINVAL, errno.ENOSYS, errno.EXDEV, errno.EOPNOTSUPP, errno.EPERM}
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldCheckpoint:
    """A checkpoint that this worker has taken over."""

    path: Path
    """The checkpoint directory. The query of this start writes to no other checkpoint directory."""
    start_number: int
    """The number of this start of the task, from 1, counted over all workers."""
    lineage: str
    """The checkpoint lineage: the id of the directory's contents. Batch ids are unique in one lineage."""
    batch_in_flight: int | None
    """The number of the batch that was planned and not committed at the take-over: the query runs this batch first.
    None when all planned batches were committed."""


class ExchangeUnsupportedError(CoterieError):
    """The kernel or the file system cannot exchange two names."""


def check_location(location: Path) -> None:
    """Create ``location``, the folder of all checkpoints, if it is missing, and check that this worker can write,
    rename and delete a file in it.

    :raises WorldError: when one of these operations fails; the message names the config key and the folder.
    """
    probe = location / f".check-{uuid.uuid4().hex}"
    renamed = probe.with_suffix(".renamed")
    try:
        location.mkdir(parents=True, exist_ok=True)
        try:
            probe.write_bytes(b"check")
            probe.rename(renamed)
        finally:
            probe.unlink(missing_ok=True)
            renamed.unlink(missing_ok=True)
    except OSError as error:
        raise WorldError(
            f"checkpoint.location={location} cannot be used: {error.strerror}; name a folder in which all workers of "
            "the group can write"
        ) from error


NAME_BYTES_MAX = 255 - len(f"-{TASKS_MAX}--") - 2 * len(uuid.UUID(int=0).hex)
"""Maximum length of a connector's :func:`safe_name`, in bytes. File systems accept names of 255 bytes. The longest name
that contains the connector's name is a staging folder of a sink: connector, task number, lineage and a fresh id."""


def safe_name(text: str) -> str:
    """``text``, percent-encoded to a file name that is not hidden, and that no program reads as a path, a pattern or a
    partition (``a=b``)."""
    quoted = quote(text, safe=" ").replace(" ", "%20").replace("~", "%7E")
    return "%" + f"{ord(quoted[0]):02X}" + quoted[1:] if quoted[:1] in (".", "_") else quoted


def create_first_checkpoint(folder: Path) -> None:
    """Create ``folder``, a task's folder, with the task's first checkpoint directory. Does nothing if the folder has a
    first checkpoint or an entry of a start. The directory appears complete, and no second one can be created: after a
    take-over a plain file has the name :data:`FIRST_CHECKPOINT_NAME`.

    :raises OSError: when the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if any(_NAME.fullmatch(name) for name in os.listdir(folder)):
        return
    unborn = folder / f".{uuid.uuid4().hex}"
    unborn.mkdir()
    (unborn / LINEAGE).write_text(uuid.uuid4().hex)
    try:
        unborn.rename(folder / FIRST_CHECKPOINT_NAME)
    except OSError as error:
        shutil.rmtree(unborn)
        # Another worker has created it: a directory that is not empty, or a plain file after a take-over.
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise


def take_over(folder: Path, *, check: Callable[[], None] = lambda: None, may_exchange: bool = True) -> HeldCheckpoint:
    """Take over the checkpoint in ``folder``, a task's folder, from the start that holds it. Creates no checkpoint.

    ``check`` is called before each search for the checkpoint; an exception that it raises ends the take-over.
    ``may_exchange``: False replaces the exchange of names by a rename, as on a file system that has no exchange.

    :raises WorldError: when the folder cannot be read or written, or no checkpoint is found in it for
        :data:`TAKE_OVER_TIMEOUT_MS`.
    """
    try:
        mine = _reserve_start_number(folder)
        while True:
            _exchange_until_held(folder, mine, check=check, may_exchange=may_exchange)
            if (held := open_if_held(mine)) is not None:
                return held
    except OSError as error:
        raise WorldError(f"The checkpoint in {folder} cannot be taken over: {error}") from error


def try_take_over(folder: Path) -> Path | None:
    """Try once to take over the checkpoint in ``folder``: exchange the name of a new start with the checkpoint's name.

    Returns the path of the new name; None when no checkpoint was found, or it was moved before the exchange. The path
    holds the checkpoint unless another start took it first: :func:`open_if_held` tests that.

    :raises OSError: when the folder cannot be read or written.
    """
    holder = _find_directory(folder)
    if holder is None:
        return None
    mine = _reserve_start_number(folder)
    try:
        exchange_names(mine, holder)
    except ExchangeUnsupportedError:
        _rename_instead(folder, mine)
    except FileNotFoundError:
        return None
    return mine


def open_if_held(mine: Path) -> HeldCheckpoint | None:
    """The checkpoint at the path ``mine``, after :func:`sweep`; None when ``mine`` holds no checkpoint, or another
    start has taken the checkpoint over.

    :raises OSError: when the checkpoint cannot be read.
    """
    if is_taken_over(mine):
        return None
    try:
        sweep(mine)
        return HeldCheckpoint(
            path=mine,
            start_number=start_number_of(mine),
            lineage=(mine / LINEAGE).read_text(),
            batch_in_flight=batch_in_flight(mine),
        )
    except OSError:
        if not is_taken_over(mine):
            raise
        return None


def is_taken_over(path: Path) -> bool:
    """Whether another start has taken over the checkpoint that was held at ``path``, or is taking it over now.

    True when ``path`` is a plain file. Also true when nothing is at ``path``, or a directory without a lineage: both
    occur during a take-over on a file system that has no exchange.
    """
    return not (path / LINEAGE).is_file()


def start_number_of(path: Path) -> int:
    """The number in the name of ``path``: that of the task's start that created the name; 0 for the first checkpoint
    directory."""
    return int(path.name.partition("-")[0])


def was_started(folder: Path) -> bool:
    """Whether a start of the task has ever created its entry in ``folder``, the task's folder. Such a start may have
    failed before it held the checkpoint. False when the folder does not exist."""
    try:
        return any(number > 0 for number in _start_numbers(folder))
    except (FileNotFoundError, NotADirectoryError):
        return False


def last_batch(log: Path) -> int | None:
    """The highest batch number in ``log``, which is the folder ``offsets`` (planned batches) or ``commits`` (committed
    batches) of a checkpoint; None when the folder contains no batch or does not exist."""
    try:
        return max((int(name) for name in os.listdir(log) if name.isdigit()), default=None)
    except (FileNotFoundError, NotADirectoryError):
        return None


def batch_in_flight(path: Path) -> int | None:
    """The number of the last planned batch of the checkpoint ``path`` if that batch is not committed, else None."""
    planned = last_batch(path / "offsets")
    return None if planned == last_batch(path / "commits") else planned


def sweep(path: Path) -> None:
    """Remove all files whose names start with a dot from the checkpoint ``path`` and its subfolders. They are the
    temporary files of processes that were killed."""
    for parent, _, names in os.walk(path):
        for name in names:
            if name.startswith("."):
                Path(parent, name).unlink(missing_ok=True)


# -- the steps of a take-over -----------------------------------------------------------------------------------------


def _reserve_start_number(folder: Path) -> Path:
    """Create the entry of a new start in ``folder``, a plain file, with a number that no other start has. Returns its
    path.

    The file ``.<number>`` first reserves the number, so that two starts cannot get the same number. The reservation is
    removed once the plain file exists. A reservation that remains after a crash only makes its number unusable.
    """
    number = 0
    while True:
        number = max([number, *_start_numbers(folder)]) + 1
        reservation = folder / f".{number}"
        try:
            reservation.touch(exist_ok=False)
        except FileExistsError:
            continue
        try:
            if number not in _start_numbers(folder):
                mine = folder / f"{number}-{uuid.uuid4().hex[:12]}"
                mine.touch(exist_ok=False)
                return mine
        finally:
            reservation.unlink()


def _exchange_until_held(folder: Path, mine: Path, *, check: Callable[[], None], may_exchange: bool) -> None:
    """Exchange ``mine``, this start's plain file, with the checkpoint directory, until ``mine`` is that directory.

    :raises WorldError: when no directory is found and :data:`TAKE_OVER_TIMEOUT_MS` is over.
    """
    deadline = time.monotonic() + TAKE_OVER_TIMEOUT_MS / 1000
    while True:
        check()
        holder = _find_directory(folder)
        if holder is not None:
            try:
                if not may_exchange:
                    raise ExchangeUnsupportedError
                exchange_names(mine, holder)
            except ExchangeUnsupportedError:
                _rename_instead(folder, mine)
            except FileNotFoundError:
                continue
            if not is_taken_over(mine):
                return
        elif time.monotonic() > deadline:
            raise WorldError(
                f"The task folder {folder} contains no checkpoint directory: check whether files were removed there"
            )
        else:
            time.sleep(0.001)


def _names(folder: Path) -> list[str]:
    """The names of the starts' entries in ``folder``, and of the first checkpoint."""
    return [name for name in os.listdir(folder) if _NAME.fullmatch(name)]


def _start_numbers(folder: Path) -> list[int]:
    return [start_number_of(folder / name) for name in _names(folder)]


def _find_directory(folder: Path) -> Path | None:
    """The path of the checkpoint directory in ``folder``; None when no entry is a directory with a lineage."""
    return next((folder / name for name in _names(folder) if not is_taken_over(folder / name)), None)


def exchange_names(first: Path, second: Path) -> None:
    """Exchange the files or directories at two paths in one atomic step (Linux ``renameat2``).

    :raises ExchangeUnsupportedError: when the kernel or the file system cannot exchange names.
    :raises OSError: when the exchange fails for another reason, for example because a path does not exist.
    """
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError as error:
        raise ExchangeUnsupportedError from error
    if renameat2(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE) != 0:
        code = ctypes.get_errno()
        if code in _EXCHANGE_UNSUPPORTED_ERRNOS:
            raise ExchangeUnsupportedError
        raise OSError(code, os.strerror(code), str(first), None, str(second))


# -- without exchange -------------------------------------------------------------------------------------------------


def _rename_instead(folder: Path, mine: Path) -> None:
    """Rename the checkpoint directory to ``mine``, then create a plain file at its old path. Does nothing if ``folder``
    contains no checkpoint directory.

    A lock, which the kernel releases when its process ends, lets one start at a time do this. A file ``.close-<name>``
    is created before the rename: when a process ends between the two steps, the next start creates the plain file at
    the old path. Between ``unlink`` and ``rename`` the name ``mine`` is free, so that two concurrent starts can get the
    same number; their ids still differ.
    """
    with (folder / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        holder = _find_directory(folder)
        if holder is None:
            return
        (folder / f".close-{holder.name}").touch()
        mine.unlink(missing_ok=True)
        holder.rename(mine)
        for order in folder.glob(".close-*"):
            old = folder / order.name.removeprefix(".close-")
            if is_taken_over(old):
                _close(old, into=mine)
                order.unlink()


def _close(path: Path, *, into: Path) -> None:
    """Create a plain file at ``path``. If an old query has created its folder there again, the folder's files are first
    moved into ``into``, the checkpoint's new path."""
    while not path.is_file():
        try:
            path.touch(exist_ok=False)
        except FileExistsError:
            aside = path.with_name(f".aside-{uuid.uuid4().hex}")
            path.rename(aside)
            _merge_late_writes(aside, into)
            shutil.rmtree(aside)


def _merge_late_writes(aside: Path, into: Path) -> None:
    """Move the files in ``aside``, which an old query wrote after the rename, to the same relative paths in ``into``.
    Temporary files, and files that exist in ``into``, stay in ``aside``."""
    for parent, _, names in os.walk(aside):
        for name in names:
            there = into / Path(parent).relative_to(aside) / name
            if not name.startswith(".") and not there.exists():
                there.parent.mkdir(parents=True, exist_ok=True)
                Path(parent, name).rename(there)
