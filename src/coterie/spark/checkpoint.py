"""Who holds a task's checkpoint: taken over by one atomic step on the file system, asked for by one look at a path.

Theory of operation. A task's folder, ``LOCATION/<connector>-<incarnation>/<task>/``, holds one directory, the
checkpoint, and for every start that ever was a plain file or that directory, named ``<number>-<fresh id>``. To take
over, a contender puts a plain file there under the next free number, finds the directory and *exchanges* the two names
in one system call. It holds the checkpoint if its own name is a directory now; otherwise another was quicker, and it
looks again.

Why an exchange and not a rename: a query that finds nothing at its path makes the folder anew and runs on for ever. A
plain file at its path stops it at its next write, whatever it wants to write, and stays there.

Why this is safe: only a contender itself ever calls with its own name in first place, and always while a plain file
stands there. So a name turns into a directory by its owner's call alone, at most once after the owner has last looked,
and what was taken from a name never comes back to it.

The directory is known from impostors by the file ``lineage`` inside it: the id of the checkpoint's life, made with it.
Where a file system has no exchange, a rename and a plain file at the old path take its place. An old query can make its
folder anew between the two; what it wrote there is taken in, and the file is put there again until it stands.
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
"""Where the first directory of a task is put; every holder has taken it from somewhere, the first one from here."""
PATIENCE_MS = 30_000
"""How long a contender looks for a directory that is on its way between two names."""

_NAME = re.compile(r"(\d+)-[0-9a-z]+")
_NO_EXCHANGE = {errno.EINVAL, errno.ENOSYS, errno.EXDEV, errno.EOPNOTSUPP, errno.EPERM}
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldCheckpoint:
    """A checkpoint that was just taken over."""

    path: Path
    """The directory; the query of this start writes here and nowhere else."""
    starts: int
    """Which start of the task this is, from 1; it counts over all workers."""
    lineage: str
    """The id of this checkpoint's life: another one has never seen its batch numbers."""
    batch_in_flight: int | None
    """The batch that was planned and not committed when the checkpoint was taken: the first one to run now."""


class NoExchangeError(CoterieError):
    """This file system cannot exchange two names."""


def check_location(location: Path) -> None:
    """Make the folder of all checkpoints where it is missing, and write and rename a file in it.

    :raises WorldError: when that fails; names the key and the folder.
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
"""How long a connector's :func:`safe_name` may be. File systems take names of 255 bytes, and the longest name that is
made of a connector's is that of a folder in which a sink stages: task number, lineage and a fresh id follow."""


def safe_name(text: str) -> str:
    """``text`` as the name of a visible file that no one reads as a path, a pattern or a partition (``a=b``)."""
    quoted = quote(text, safe=" ").replace(" ", "%20").replace("~", "%7E")
    return "%" + f"{ord(quoted[0]):02X}" + quoted[1:] if quoted[:1] in (".", "_") else quoted


def make_first(folder: Path) -> None:
    """Make a task's folder and its first directory, whole and at most once: that name never becomes free again."""
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
        # Another made it (a directory with something in it), and perhaps it is taken already (a plain file).
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise


def take_over(
    folder: Path, *, check: Callable[[], None] = lambda: None, exchange_allowed: bool = True
) -> HeldCheckpoint:
    """Take the checkpoint in ``folder`` from the worker that holds it. Nothing is made where there is none.

    ``check`` is called before each look for the checkpoint; what it raises ends the search.

    :raises WorldError: when the folder cannot be used, or holds no checkpoint.
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
    """Exchange a fresh name with the checkpoint that stands in ``folder`` now; None when there is none.

    The name that is returned holds the checkpoint, unless another contender was quicker.
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
    """What stands at a name of ours, swept; None when it is no checkpoint, or was taken already."""
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
    """Whether another has taken the checkpoint that was held at ``path``.

    A file there means taken. So does nothing, or a directory without a lineage: both are moments of a take-over on a
    file system that has no exchange.
    """
    return not (path / LINEAGE).is_file()


def starts_of(path: Path) -> int:
    """The number in a checkpoint's name: which start of the task it belongs to."""
    return int(path.name.partition("-")[0])


def was_started(folder: Path) -> bool:
    """Whether a start has ever taken the checkpoint in a task's folder."""
    try:
        return any(number > 0 for number in _starts(folder))
    except (FileNotFoundError, NotADirectoryError):
        return False


def last_batch(log: Path) -> int | None:
    """The highest batch number in a checkpoint's ``offsets`` or ``commits``, None when there is none (any more)."""
    try:
        return max((int(name) for name in os.listdir(log) if name.isdigit()), default=None)
    except (FileNotFoundError, NotADirectoryError):
        return None


def batch_in_flight(path: Path) -> int | None:
    """The batch that stands in ``offsets`` and not in ``commits``."""
    planned = last_batch(path / "offsets")
    return None if planned == last_batch(path / "commits") else planned


def sweep(path: Path) -> None:
    """Remove what a writer left half-written in the checkpoint: its temporary names start with a dot."""
    for parent, _, names in os.walk(path):
        for name in names:
            if name.startswith("."):
                Path(parent, name).unlink(missing_ok=True)


# -- the steps of a take-over -----------------------------------------------------------------------------------------


def _claim(folder: Path) -> Path:
    """A plain file under a number that no other start ever had.

    The number is reserved under a name that holds nothing else, so that two contenders cannot both have it; the
    reservation goes once the claim itself stands. One that a crash left behind costs its number, no more.
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
            raise WorldError(f"{folder} holds no checkpoint directory: see whether files were removed there")
        else:
            time.sleep(0.001)


def _names(folder: Path) -> list[str]:
    return [name for name in os.listdir(folder) if _NAME.fullmatch(name)]


def _starts(folder: Path) -> list[int]:
    return [starts_of(folder / name) for name in _names(folder)]


def _find_directory(folder: Path) -> Path | None:
    return next((folder / name for name in _names(folder) if not is_taken(folder / name)), None)


def exchange(one: Path, other: Path) -> None:
    """Exchange what stands under two names, in one step (Linux ``renameat2``).

    :raises NoExchangeError: where the kernel or the file system cannot.
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
    """Rename the directory, then put a plain file at its old path until it stands.

    Contenders do this one at a time, under a lock that the kernel gives back when its process dies. The order to close
    the old path is written down first: whoever comes after a contender that died in between closes it in its stead.
    For a moment our own name is free, so that here two starts at once can get the same number; their ids still differ.
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
    """Move what an old query wrote after the rename to where it would have stood."""
    for parent, _, names in os.walk(aside):
        for name in names:
            there = into / Path(parent).relative_to(aside) / name
            if not name.startswith(".") and not there.exists():
                there.parent.mkdir(parents=True, exist_ok=True)
                Path(parent, name).rename(there)
