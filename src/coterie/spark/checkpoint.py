"""Ownership of a task's checkpoint: one atomic file system operation takes it over, one path lookup tests it.

Theory of operation. A task's folder, ``LOCATION/<connector>-<incarnation>/<task>/``, contains one entry for each start
of the task, named ``<number>-<fresh id>``. One entry is a directory, the checkpoint; all others are plain files. To
take over, a start creates a plain file under the next free number, finds the directory and *exchanges* the two names
in one system call. It holds the checkpoint if its own name is now the directory. Otherwise another start took the
checkpoint first, and this start tries again.

Why an exchange and not a rename: a query that finds nothing at its path creates the folder again and continues without
end. A plain file at the path makes the next write of the query fail, and no query removes that file.

Why this is safe: only the start that owns a name passes this name to the system call as the first one, and only while
the name is a plain file. So a name becomes a directory only by a call of its owner, at most once after the owner last
checked it, and a directory that was taken from a name never returns to this name.

Checkpoint lineage: the id of a checkpoint directory's contents; batch ids are unique in it. The file ``lineage`` in
the directory contains it. A directory without this file is not the checkpoint.

Where a file system has no exchange, a rename and the creation of a plain file at the old path replace it. An old query
can create its folder again between the two steps. Its files are then moved into the checkpoint, and the plain file is
created again, until a plain file is at the old path.
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
GENESIS = "0-genesis"
"""Name of a task's first checkpoint directory: the first start takes the checkpoint over from this name."""
PATIENCE_MS = 30_000
"""Time limit of a take-over for finding the directory, which has neither name while another start renames it."""

_NAME = re.compile(r"(\d+)-[0-9a-z]+")
_NO_EXCHANGE = {errno.EINVAL, errno.ENOSYS, errno.EXDEV, errno.EOPNOTSUPP, errno.EPERM}
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldCheckpoint:
    """A checkpoint that this worker has taken over."""

    path: Path
    """The directory, and the only one to which the query of this start writes."""
    starts: int
    """The number of this start of the task, from 1, counted over all workers."""
    lineage: str
    """The checkpoint lineage: the id of the directory's contents; batch ids are unique in it."""
    batch_in_flight: int | None
    """The batch that was planned and not committed in the checkpoint at the take-over: the first batch to run."""


class NoExchangeError(CoterieError):
    """The kernel or the file system cannot exchange two names."""


def check_location(location: Path) -> None:
    """Create the folder of all checkpoints where it is missing, and write and rename a file in it.

    :raises WorldError: when an operation fails; the message names the config key and the folder.
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
"""The longest :func:`safe_name` of a connector, in bytes. File systems accept names of 255 bytes. The longest name that
contains the connector's name is a staging folder of a sink: connector, task number, lineage and a fresh id."""


def safe_name(text: str) -> str:
    """``text``, quoted as a file name that is not hidden, and that no program reads as a path, a pattern or a partition
    (``a=b``)."""
    quoted = quote(text, safe=" ").replace(" ", "%20").replace("~", "%7E")
    return "%" + f"{ord(quoted[0]):02X}" + quoted[1:] if quoted[:1] in (".", "_") else quoted


def make_first(folder: Path) -> None:
    """Create a task's folder and its first directory, atomically and at most once: its name is never free again."""
    folder.mkdir(parents=True, exist_ok=True)
    if any(_NAME.fullmatch(name) for name in os.listdir(folder)):
        return
    unborn = folder / f".{uuid.uuid4().hex}"
    unborn.mkdir()
    (unborn / LINEAGE).write_text(uuid.uuid4().hex)
    try:
        unborn.rename(folder / GENESIS)
    except OSError as error:
        shutil.rmtree(unborn)
        # Another worker has created it: a directory that is not empty, or a plain file after a take-over.
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise


def take_over(
    folder: Path, *, check: Callable[[], None] = lambda: None, exchange_allowed: bool = True
) -> HeldCheckpoint:
    """Take over the checkpoint in ``folder`` from its holder. Creates no checkpoint.

    ``check`` is called before each search for the checkpoint; an exception that it raises ends the take-over.

    :raises WorldError: when the folder cannot be used, or contains no checkpoint.
    """
    try:
        mine = _claim(folder)
        while True:
            _exchange_until_held(folder, mine, check=check, exchange_allowed=exchange_allowed)
            if (held := look(mine)) is not None:
                return held
    except OSError as error:
        raise WorldError(f"The checkpoint in {folder} cannot be taken over: {error}") from error


def take_once(folder: Path) -> Path | None:
    """Exchange a fresh name with the checkpoint in ``folder``, and return that name; None when no checkpoint was found.

    The returned name holds the checkpoint, unless another start took it first; :func:`look` tests that.
    """
    holder = _find_directory(folder)
    if holder is None:
        return None
    mine = _claim(folder)
    try:
        exchange(mine, holder)
    except NoExchangeError:
        _rename_instead(folder, mine)
    except FileNotFoundError:
        return None
    return mine


def look(mine: Path) -> HeldCheckpoint | None:
    """The checkpoint at the name ``mine``, after :func:`sweep`; None when the name holds no checkpoint (any more)."""
    if is_taken(mine):
        return None
    try:
        sweep(mine)
        return HeldCheckpoint(
            path=mine,
            starts=starts_of(mine),
            lineage=(mine / LINEAGE).read_text(),
            batch_in_flight=batch_in_flight(mine),
        )
    except OSError:
        if not is_taken(mine):
            raise
        return None


def is_taken(path: Path) -> bool:
    """Whether another start has taken over the checkpoint that was held at ``path``.

    True when ``path`` is a plain file. Also true when nothing is at ``path``, or a directory without a lineage: both
    occur during a take-over on a file system that has no exchange.
    """
    return not (path / LINEAGE).is_file()


def starts_of(path: Path) -> int:
    """The number in a checkpoint's name: the number of the task's start that created the name."""
    return int(path.name.partition("-")[0])


def was_started(folder: Path) -> bool:
    """Whether a start has ever taken over the checkpoint in a task's folder."""
    try:
        return any(number > 0 for number in _starts(folder))
    except (FileNotFoundError, NotADirectoryError):
        return False


def last_batch(log: Path) -> int | None:
    """The highest batch number in ``log``, a checkpoint's folder ``offsets`` or ``commits``; None when the folder is
    empty or missing."""
    try:
        return max((int(name) for name in os.listdir(log) if name.isdigit()), default=None)
    except (FileNotFoundError, NotADirectoryError):
        return None


def batch_in_flight(path: Path) -> int | None:
    """The number of the batch that is in ``offsets`` and not in ``commits``; None when there is none."""
    planned = last_batch(path / "offsets")
    return None if planned == last_batch(path / "commits") else planned


def sweep(path: Path) -> None:
    """Remove incomplete files from the checkpoint: the names of Spark's temporary files start with a dot."""
    for parent, _, names in os.walk(path):
        for name in names:
            if name.startswith("."):
                Path(parent, name).unlink(missing_ok=True)


# -- the steps of a take-over -----------------------------------------------------------------------------------------


def _claim(folder: Path) -> Path:
    """Create a plain file under a number that no other start has had.

    The file ``.<number>`` first reserves the number, so that two starts cannot get the same number. The reservation is
    removed once the plain file exists. A reservation that remains after a crash only makes its number unusable.
    """
    number = 0
    while True:
        number = max([number, *_starts(folder)]) + 1
        reservation = folder / f".{number}"
        try:
            reservation.touch(exist_ok=False)
        except FileExistsError:
            continue
        try:
            if number not in _starts(folder):
                mine = folder / f"{number}-{uuid.uuid4().hex[:12]}"
                mine.touch(exist_ok=False)
                return mine
        finally:
            reservation.unlink()


def _exchange_until_held(folder: Path, mine: Path, *, check: Callable[[], None], exchange_allowed: bool) -> None:
    deadline = time.monotonic() + PATIENCE_MS / 1000
    while True:
        check()
        holder = _find_directory(folder)
        if holder is not None:
            try:
                if not exchange_allowed:
                    raise NoExchangeError
                exchange(mine, holder)
            except NoExchangeError:
                _rename_instead(folder, mine)
            except FileNotFoundError:
                continue
            if not is_taken(mine):
                return
        elif time.monotonic() > deadline:
            raise WorldError(f"{folder} contains no checkpoint directory: check whether files were removed there")
        else:
            time.sleep(0.001)


def _names(folder: Path) -> list[str]:
    return [name for name in os.listdir(folder) if _NAME.fullmatch(name)]


def _starts(folder: Path) -> list[int]:
    return [starts_of(folder / name) for name in _names(folder)]


def _find_directory(folder: Path) -> Path | None:
    return next((folder / name for name in _names(folder) if not is_taken(folder / name)), None)


def exchange(one: Path, other: Path) -> None:
    """Exchange the entries of two names in one atomic step (Linux ``renameat2``).

    :raises NoExchangeError: where the kernel or the file system does not support it.
    """
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError as error:
        raise NoExchangeError from error
    if renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) != 0:
        code = ctypes.get_errno()
        if code in _NO_EXCHANGE:
            raise NoExchangeError
        raise OSError(code, os.strerror(code), str(one), None, str(other))


# -- without exchange -------------------------------------------------------------------------------------------------


def _rename_instead(folder: Path, mine: Path) -> None:
    """Rename the directory to ``mine``, then create a plain file at its old path.

    A lock, which the kernel releases when its process ends, lets one start at a time do this. A file ``.close-<name>``
    is created before the rename: when a process ends between the two steps, the next start closes the old path.
    Between ``unlink`` and ``rename`` the name ``mine`` is free, so that two concurrent starts can get the same number;
    their ids still differ.
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
            if is_taken(old):
                _close(old, into=mine)
                order.unlink()


def _close(path: Path, *, into: Path) -> None:
    while not path.is_file():
        try:
            path.touch(exist_ok=False)
        except FileExistsError:
            aside = path.with_name(f".aside-{uuid.uuid4().hex}")
            path.rename(aside)
            _take_in(aside, into)
            shutil.rmtree(aside)


def _take_in(aside: Path, into: Path) -> None:
    """Move the files that an old query wrote after the rename to the same relative paths in ``into``."""
    for parent, _, names in os.walk(aside):
        for name in names:
            there = into / Path(parent).relative_to(aside) / name
            if not name.startswith(".") and not there.exists():
                there.parent.mkdir(parents=True, exist_ok=True)
                Path(parent, name).rename(there)
