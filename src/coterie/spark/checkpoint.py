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
import hashlib
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
from coterie.nouns.jobs import TASKS_PER_CONNECTOR_MAX

LINEAGE_FILE = "lineage"
"""Name of the file, in a checkpoint directory, that contains the checkpoint's lineage."""
FIRST_CHECKPOINT_NAME = "0-genesis"
"""Name of a task's first checkpoint directory: the first start takes the checkpoint over from this name."""
TAKE_OVER_TIMEOUT_MS = 30_000
"""How long a take-over searches for the checkpoint directory before it fails. One search can miss the directory while
another start renames it."""

_ENTRY_NAME = re.compile(r"(\d+)-[0-9a-z]+")
"""The name of a start's entry, or of the first checkpoint directory; the group is the start's number."""
_EXCHANGE_UNSUPPORTED_ERRNOS = {errno.EINVAL, errno.ENOSYS, errno.EXDEV, errno.EOPNOTSUPP, errno.EPERM}
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldCheckpoint:
    """A checkpoint that this worker has taken over for one start of a task, or for a re-split."""

    path: Path
    """The checkpoint directory. The query of this start writes to no other checkpoint directory."""
    task_start_number: int
    """The number of this start of the task, from 1, counted over all workers."""
    lineage_id: str
    """The checkpoint lineage: the id of the directory's contents. Batch ids are unique in one lineage."""
    batch_id_in_flight: int | None
    """The number of the batch that was planned and not committed at the take-over: the query runs this batch first.
    None when all planned batches were committed."""


class ExchangeUnsupportedError(CoterieError):
    """The kernel or the file system cannot exchange two names."""


def create_checkpoint_location_and_test_write(location: Path) -> None:
    """Create ``location``, the folder of all checkpoints, if it is missing, and check that this worker can write,
    rename and delete a file in it.

    :raises WorldError: when one of these operations fails; the message names the config key and the folder.
    """
    test_file = location / f".check-{uuid.uuid4().hex}"
    renamed_test_file = test_file.with_suffix(".renamed")
    try:
        location.mkdir(parents=True, exist_ok=True)
        try:
            test_file.write_bytes(b"check")
            test_file.rename(renamed_test_file)
        finally:
            test_file.unlink(missing_ok=True)
            renamed_test_file.unlink(missing_ok=True)
    except OSError as error:
        raise WorldError(
            f"checkpoint.location={location} cannot be used: {error.strerror}; name a folder in which all workers of "
            "the group can write"
        ) from error


_SAFE_NAME_SIZE_MAX = 255 - len(f"-{TASKS_PER_CONNECTOR_MAX}--") - 2 * len(uuid.UUID(int=0).hex)
"""Maximum length of a :func:`safe_file_name`, in bytes. File systems accept names of 255 bytes. The longest name that
contains a connector's name is a staging folder of a sink: connector, task number, lineage and a fresh id."""


def safe_file_name(text: str) -> str:
    """``text``, percent-encoded to a file name that is not hidden, and that no program reads as a path, a pattern or a
    partition (``a=b``). A long name is cut and ends with ``~`` and a hash of ``text``; no other name contains ``~``."""
    encoded = quote(text, safe=" ").replace(" ", "%20").replace("~", "%7E")
    safe = "%" + f"{ord(encoded[0]):02X}" + encoded[1:] if encoded[:1] in (".", "_") else encoded
    if len(safe) <= _SAFE_NAME_SIZE_MAX:
        return safe
    ending = "~" + hashlib.sha256(text.encode()).hexdigest()[:32]
    return safe[: _SAFE_NAME_SIZE_MAX - len(ending)] + ending


def create_first_checkpoint_if_absent(task_folder: Path) -> None:
    """Create ``task_folder``, a task's folder, with the task's first checkpoint directory. Does nothing if the folder
    has a first checkpoint or an entry of a start. The directory appears complete, and no second one can be created:
    after a take-over a plain file has the name :data:`FIRST_CHECKPOINT_NAME`.

    :raises OSError: when the folder cannot be written.
    """
    task_folder.mkdir(parents=True, exist_ok=True)
    if any(_ENTRY_NAME.fullmatch(name) for name in os.listdir(task_folder)):
        return
    unfinished_folder = task_folder / f".{uuid.uuid4().hex}"
    unfinished_folder.mkdir()
    (unfinished_folder / LINEAGE_FILE).write_text(uuid.uuid4().hex)
    try:
        unfinished_folder.rename(task_folder / FIRST_CHECKPOINT_NAME)
    except OSError as error:
        shutil.rmtree(unfinished_folder)
        # Another worker has created it: a directory that is not empty, or a plain file after a take-over.
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise


def take_over_checkpoint(
    task_folder: Path, *, check: Callable[[], None] = lambda: None, tries_exchange_first: bool = True
) -> HeldCheckpoint:
    """Take over the checkpoint in ``task_folder``, a task's folder, from the start that holds it. Creates no
    checkpoint.

    ``check`` is called before each search for the checkpoint; an exception that it raises ends the take-over.
    ``tries_exchange_first``: False replaces the exchange of names by a rename, as on a file system that has no
    exchange.

    :raises WorldError: when the folder cannot be read or written, or no checkpoint is found in it for
        :data:`TAKE_OVER_TIMEOUT_MS`.
    """
    try:
        own_entry = _create_start_entry(task_folder)
        while True:
            _exchange_names_until_held(task_folder, own_entry, check=check, tries_exchange_first=tries_exchange_first)
            if (held_checkpoint := clean_and_open_checkpoint_if_held(own_entry)) is not None:
                return held_checkpoint
    except OSError as error:
        raise WorldError(
            f"The checkpoint in {task_folder} cannot be taken over: {error}; check that this worker can read and write "
            "all files there"
        ) from error


def try_take_over_checkpoint_unverified(task_folder: Path) -> Path | None:
    """Try once to take over the checkpoint in ``task_folder``: exchange the name of a new start with the checkpoint's
    name.

    Returns the path of the new name; None when no checkpoint was found, or it was moved before the exchange. The path
    holds the checkpoint unless another start took it first: :func:`clean_and_open_checkpoint_if_held` tests that.

    :raises OSError: when the folder cannot be read or written.
    """
    checkpoint_path = find_checkpoint_directory(task_folder)
    if checkpoint_path is None:
        return None
    own_entry = _create_start_entry(task_folder)
    try:
        exchange_names(own_entry, checkpoint_path)
    except ExchangeUnsupportedError:
        _take_over_by_rename_if_found(task_folder, own_entry)
    except FileNotFoundError:
        return None
    return own_entry


def clean_and_open_checkpoint_if_held(entry: Path) -> HeldCheckpoint | None:
    """The checkpoint in the directory ``entry``, after :func:`remove_temporary_files`; None when ``entry`` is no
    checkpoint, or another start has taken the checkpoint over.

    :raises OSError: when the checkpoint cannot be read.
    """
    if is_checkpoint_taken_over_or_absent(entry):
        return None
    try:
        remove_temporary_files(entry)
        return HeldCheckpoint(
            path=entry,
            task_start_number=task_start_number_of(entry),
            lineage_id=(entry / LINEAGE_FILE).read_text(),
            batch_id_in_flight=find_batch_id_in_flight(entry),
        )
    except OSError:
        if not is_checkpoint_taken_over_or_absent(entry):
            raise
        return None


def is_checkpoint_taken_over_or_absent(entry: Path) -> bool:
    """Whether another start has taken over the checkpoint that was held at ``entry``, or is taking it over now.

    True when ``entry`` is a plain file. Also true when nothing is at ``entry``, or a directory without a lineage: both
    occur during a take-over on a file system that has no exchange.
    """
    return not (entry / LINEAGE_FILE).is_file()


def task_start_number_of(entry: Path) -> int:
    """The number in the name of ``entry``: that of the task's start that created the entry; 0 for the first checkpoint
    directory."""
    return int(entry.name.partition("-")[0])


def was_task_started(task_folder: Path) -> bool:
    """Whether a start of the task has ever created its entry in ``task_folder``, the task's folder. Such a start may
    have failed before it held the checkpoint. False when the folder does not exist."""
    try:
        return any(number > 0 for number in _task_start_numbers(task_folder))
    except (FileNotFoundError, NotADirectoryError):
        return False


def last_batch_id_in_log(log_folder: Path) -> int | None:
    """The highest batch number that is a name in ``log_folder``: the folder ``offsets`` (planned batches) or
    ``commits`` (committed batches) of a checkpoint, or a file sink's folder of a lineage's committed batches. None when
    the folder contains no batch or does not exist. Names that are no numbers are ignored: NFS or a user may have added
    them."""
    try:
        names = os.listdir(log_folder)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return max((int(name) for name in names if name.isascii() and name.isdigit()), default=None)


def find_batch_id_in_flight(checkpoint: Path) -> int | None:
    """The number of the last planned batch of ``checkpoint`` if that batch is not committed, else None."""
    last_planned = last_batch_id_in_log(checkpoint / "offsets")
    return None if last_planned == last_batch_id_in_log(checkpoint / "commits") else last_planned


def remove_temporary_files(checkpoint: Path) -> None:
    """Remove all files whose names start with a dot from the checkpoint ``checkpoint`` and its subfolders. They are the
    temporary files of processes that were killed."""
    for parent, _, names in os.walk(checkpoint):
        for name in names:
            if name.startswith("."):
                Path(parent, name).unlink(missing_ok=True)


# -- the steps of a take-over -----------------------------------------------------------------------------------------


def _create_start_entry(folder: Path) -> Path:
    """Create the entry of a new start in ``folder``, a plain file, with a number that no other start has. Returns its
    path.

    The file ``.<number>`` first reserves the number, so that two starts cannot get the same number. The reservation is
    removed once the plain file exists. A reservation that remains after a crash only makes its number unusable.
    """
    number = 0
    while True:
        number = max([number, *_task_start_numbers(folder)]) + 1
        reservation = folder / f".{number}"
        try:
            reservation.touch(exist_ok=False)
        except FileExistsError:
            continue
        try:
            if number not in _task_start_numbers(folder):
                own_entry = folder / f"{number}-{uuid.uuid4().hex[:12]}"
                own_entry.touch(exist_ok=False)
                return own_entry
        finally:
            reservation.unlink()


def _exchange_names_until_held(
    folder: Path, own_entry: Path, *, check: Callable[[], None], tries_exchange_first: bool
) -> None:
    """Exchange ``own_entry``, this start's plain file, with the checkpoint directory in ``folder``, the task's folder,
    until ``own_entry`` is that directory. ``check`` and ``tries_exchange_first``: see :func:`take_over_checkpoint`.

    :raises WorldError: when no directory is found, or ``own_entry`` was removed, and :data:`TAKE_OVER_TIMEOUT_MS` is
        over.
    :raises OSError: when the folder cannot be read or written.
    """
    deadline_s = time.monotonic() + TAKE_OVER_TIMEOUT_MS / 1000
    while True:
        check()
        checkpoint_path = find_checkpoint_directory(folder)
        if checkpoint_path is not None:
            try:
                if not tries_exchange_first:
                    raise ExchangeUnsupportedError
                exchange_names(own_entry, checkpoint_path)
            except ExchangeUnsupportedError:
                _take_over_by_rename_if_found(folder, own_entry)
            except FileNotFoundError:
                checkpoint_path = None  # Another start has moved the directory, or files were removed.
            if not is_checkpoint_taken_over_or_absent(own_entry):
                return
        if checkpoint_path is None:
            if time.monotonic() > deadline_s:
                raise WorldError(
                    f"The task folder {folder} contains no checkpoint directory, or no longer the file "
                    f"{own_entry.name} of this start: check whether files were removed there"
                )
            time.sleep(0.001)


def _start_entry_names(folder: Path) -> list[str]:
    """The names in the task's folder ``folder`` that are entries of starts, or the first checkpoint."""
    return [name for name in os.listdir(folder) if _ENTRY_NAME.fullmatch(name)]


def _task_start_numbers(folder: Path) -> list[int]:
    return [task_start_number_of(folder / name) for name in _start_entry_names(folder)]


def find_checkpoint_directory(folder: Path) -> Path | None:
    """The path of the checkpoint directory in ``folder``; None when no entry is a directory with a lineage."""
    return next(
        (folder / name for name in _start_entry_names(folder) if not is_checkpoint_taken_over_or_absent(folder / name)),
        None,
    )


def exchange_names(first_path: Path, second_path: Path) -> None:
    """Exchange the names of the files or directories ``first_path`` and ``second_path`` in one atomic step (Linux
    ``renameat2``).

    :raises ExchangeUnsupportedError: when the kernel or the file system cannot exchange names.
    :raises OSError: when the exchange fails for another reason, for example because a path does not exist.
    """
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError as error:
        raise ExchangeUnsupportedError from error
    if renameat2(_AT_FDCWD, os.fsencode(first_path), _AT_FDCWD, os.fsencode(second_path), _RENAME_EXCHANGE) != 0:
        error_number = ctypes.get_errno()
        if error_number in _EXCHANGE_UNSUPPORTED_ERRNOS:
            raise ExchangeUnsupportedError
        raise OSError(error_number, os.strerror(error_number), str(first_path), None, str(second_path))


# -- without exchange -------------------------------------------------------------------------------------------------


def _take_over_by_rename_if_found(folder: Path, own_entry: Path) -> None:
    """Rename the checkpoint directory to ``own_entry``, then create a plain file at its old path. Does nothing if
    ``folder`` contains no checkpoint directory.

    A lock, which the kernel releases when its process ends, lets one start at a time do this. A file ``.close-<name>``
    is created before the rename: when a process ends between the two steps, the next start creates the plain file at
    the old path. The plain file ``own_entry`` is removed just before the rename. At that moment no file has the number
    of this start, so that a concurrent start can get the same number; the random ids in the names of the two entries
    still differ.
    """
    with (folder / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        checkpoint_path = find_checkpoint_directory(folder)
        if checkpoint_path is None:
            return
        (folder / f".close-{checkpoint_path.name}").touch()
        own_entry.unlink(missing_ok=True)
        checkpoint_path.rename(own_entry)
        for close_request in folder.glob(".close-*"):
            old_path = folder / close_request.name.removeprefix(".close-")
            if is_checkpoint_taken_over_or_absent(old_path):
                _replace_old_path_by_file(old_path, checkpoint=own_entry)
                close_request.unlink()


def _replace_old_path_by_file(path: Path, *, checkpoint: Path) -> None:
    """Create a plain file at ``path``. If an old query has created its folder there again, the folder's files are first
    moved into ``checkpoint``, the checkpoint's new path."""
    while not path.is_file():
        try:
            path.touch(exist_ok=False)
        except FileExistsError:
            late_folder = path.with_name(f".aside-{uuid.uuid4().hex}")
            path.rename(late_folder)
            _merge_late_writes(late_folder, checkpoint)
            shutil.rmtree(late_folder)


def _merge_late_writes(late_folder: Path, checkpoint: Path) -> None:
    """Move the files in ``late_folder``, which an old query wrote after the rename, to the same relative paths in
    ``checkpoint``. Temporary files, and files that exist in ``checkpoint``, stay in ``late_folder``."""
    for parent, _, names in os.walk(late_folder):
        for name in names:
            target = checkpoint / Path(parent).relative_to(late_folder) / name
            if not name.startswith(".") and not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                Path(parent, name).rename(target)
