"""``SinkFolder``: the folder of a file sink, and the steps by which readers see each batch exactly once.

Theory of operation. Readers read ``PATH``, which contains final files only: all in the folder itself, or all in folders
``column=value``. The name of a file contains connector, task, lineage, batch and a number. Unfinished copies and commit
marks are beside ``PATH``, in ``.<name>.coterie/``:

| name | content |
|---|---|
| ``layout.json`` | format and partition columns of the folder, written by the first task that writes to the folder |
| ``staged/<task>-<lineage>-<unique>/`` | a copy that is being written: ``mark`` (a file), files in ``out/``, ``bad/`` |
| ``committed/<task>-<lineage>/<batch>/`` | the committed copy of a batch |

1. A task stages a copy: files under their final names, and a mark.
2. The task commits the copy by a rename to its name in ``committed``, with or without files. The mark stays there, so
   the folder is never empty, and the rename of any other copy of the batch fails.
3. Any owner of the task moves the files of the committed copy to the readers' folder, one by one. Another owner may
   move the same files: a missing file was moved. Once only the mark is left, the batch may be committed in the
   checkpoint.

An owner that stops between the steps leaves either a staged copy, which the next owner's take-over removes, or a
committed copy, whose remaining files the take-over and the replay move. Marks stay: an owner that was suspended
(SIGSTOP) or frozen finds the mark of its batch, however long this took. When a checkpoint generation is removed, a
plain file replaces the lineage's folder, and every later rename into that folder fails.

Where bad records go to a folder too, their files are in ``bad/`` of the same copy, and are moved to that folder after
the same commit: so one evaluation of the batch decides which records are good and which are bad. The mark contains the
path of that folder, so that an owner with another config moves the files to the folder for which the copy was written.

A move is a rename. So each start renames a test file, and fails for a folder on another mount. After the commit a
failure would be too late: if a folder was mounted later, the file is copied to a hidden name beside its final one, and
renamed there.

Versions of Coterie without checkpoint generations wrote each batch, as a folder, to
``PATH/<connector>/<task>-<lineage>/<batch>/``. The checkpoint of such a version is generation 0. The last batch
of that checkpoint is written to the same place, since a copy of it may already be there.
"""

import errno
import json
import os
import shutil
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from coterie.nouns.errors import WorldError
from coterie.spark.checkpoint import safe_name
from coterie.spark.fence import FencedError
from coterie.spark.generations.durable import (
    REPLACED_PREFIX,
    create_if_absent,
    remove,
    replace_folder_by_file,
    sync_folder,
)
from coterie.spark.seams import TaskLineage

MARK = "mark"
"""File of a copy. While a staged copy contains it, no other owner has removed the copy. In ``committed`` it keeps the
folder of the batch from being empty, so that no other copy can be renamed to this folder. Its text is the path of the
folder for bad records, or empty."""
OUT = "out"
"""Folder of a copy for the files of good records."""
BAD = "bad"
"""Folder of a copy for the files of bad records."""
STAGED = "staged"
"""Folder, in the work folder, of the staged copies."""
COMMITTED = "committed"
"""Folder, in the work folder, of the committed copies."""
LAYOUT = "layout.json"
"""File, in the work folder, with the :class:`FolderLayout` as JSON."""
SWEPT = "swept"
"""Prefix of the name that a folder in ``staged`` gets before it is deleted."""
FORMER_STAGED = "_staging"
"""The folder, in the readers' folder, in which generation 0 staged copies."""

_EXISTS_ERRNOS = (errno.ENOTEMPTY, errno.EEXIST)
"""Errors of a rename to a folder that exists and is not empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderLayout:
    """Format and partition columns, which are the same for all files of a folder. Its ``str`` is the text for
    messages."""

    format: str
    partition_columns: tuple[str, ...]

    def __str__(self) -> str:
        columns = ", ".join(self.partition_columns)
        return f"{self.format} files" + (f" partitioned by {columns}" if columns else " without partition columns")


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkFolder:
    """A folder that readers read (``path``), and the work folder beside it."""

    path: Path
    layout: FolderLayout
    key: str = field(default="sink.path", compare=False)
    """The config key whose value is the folder; error messages contain this key."""
    bad: "SinkFolder | None" = None
    """The folder for the files of bad records; None when the copies of this folder contain no such files."""

    @property
    def work_folder(self) -> Path:
        """The folder for unfinished copies and commit marks, beside the readers' folder."""
        return self.path.parent / f".{self.path.name}.coterie"

    @property
    def staged(self) -> Path:
        """The folder of all staged copies."""
        return self.work_folder / STAGED

    def committed(self, lineage: TaskLineage) -> Path:
        """The folder of the committed batches of a task's lineage; it may not exist."""
        return self.work_folder / COMMITTED / _key(lineage)

    def take_over(self, lineage: TaskLineage) -> None:
        """Remove the staged copies of earlier owners of the task, and publish the remaining files of their last
        committed copy. Then check the folders: see :meth:`prepare`.

        An earlier owner may still be writing. So its copy, with the mark in it, is renamed before it is deleted: the
        earlier owner can then no longer commit the copy.

        :raises OSError: when a folder cannot be written, or a file of the last committed copy cannot be moved.
        :raises WorldError: see :meth:`prepare` and :meth:`publish_files`; also when files cannot be renamed into the
            folder because it is on another mount.
        """
        staged = [self.staged]
        if is_former := self.generation_zero_folder(lineage).is_dir():
            staged.append(self.path / FORMER_STAGED)
        self._make()
        for folder in staged:
            for left in folder.glob(f"{_key(lineage)}-*"):
                with suppress(FileNotFoundError):
                    left.rename(left.with_name(f"{SWEPT}-{uuid.uuid4().hex}"))
            for swept in folder.glob(f"{SWEPT}-*"):
                shutil.rmtree(swept, ignore_errors=True)
        if is_former:
            with suppress(OSError):
                (self.path / FORMER_STAGED).rmdir()
        # Only the last batch can have files left: a batch is staged after the batch before it is committed in the
        # checkpoint, which happens after the last move. This comes before `prepare`: a committed batch is published
        # even if the folder cannot take further batches.
        if (last := _last(self.committed(lineage))) is not None:
            self.publish_files(last)
        self.prepare(is_generation_zero=is_former)
        for readers in (self.bad,) if is_former else (self, self.bad):
            if readers is not None:
                self._try_a_rename(f".{_key(lineage)}-probe", readers)

    def prepare(self, *, is_generation_zero: bool = False) -> None:
        """Create the readers' folder, the work folder and the folder of bad records, and check that they can be used
        together. The first call for a folder stores its layout.

        In generation 0, connectors with different layouts could share a folder. So with ``is_generation_zero`` the
        readers' folder is not checked: the connector can then finish its last batch.

        :raises OSError: when a folder cannot be created.
        :raises WorldError: when two of the folders are on different devices, or one contains files of another format or
            with other partition columns.
        """
        self._make()
        if self.bad is not None:
            if sentence := self.bad_folder_incompatibility():
                raise WorldError(f"{self.bad.key}={sentence}")
            self.bad.prepare()
        if is_generation_zero:
            return
        if sentence := self.incompatibility():
            raise WorldError(f"{self.key}={sentence}")
        if not (self.work_folder / LAYOUT).exists():
            stated = {"format": self.layout.format, "partition_columns": self.layout.partition_columns}
            if not create_if_absent(self.work_folder / LAYOUT, json.dumps(stated)) and (
                sentence := self.incompatibility()
            ):
                raise WorldError(f"{self.key}={sentence}")

    def _make(self) -> None:
        """Create the readers' folder and the work folder.

        :raises OSError: when a folder cannot be created; the message names the config key.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.staged.mkdir(parents=True, exist_ok=True)
            (self.work_folder / COMMITTED).mkdir(exist_ok=True)
        except OSError as error:
            # An OSError, not a WorldError: the cause may be removed before the next start.
            raise OSError(error.errno, f"Nothing can be written to {self.key}={self.path}: {error.strerror}") from None

    def _try_a_rename(self, name: str, folder: "SinkFolder") -> None:
        """Check that files can be renamed from ``staged`` to ``folder``: rename an empty file with this ``name``, and
        remove it.

        :raises OSError: when no file can be written.
        :raises WorldError: when the two are on different mounts.
        """
        probe = self.staged / name
        try:
            probe.touch()
            os.rename(probe, folder.path / name)
            (folder.path / name).unlink()
        except FileNotFoundError:
            pass  # Another owner of the task has renamed or removed it.
        except OSError as error:
            probe.unlink(missing_ok=True)
            if error.errno != errno.EXDEV:
                sentence = f"Nothing can be written to {folder.key}={folder.path}: {error.strerror}"
                raise OSError(error.errno, sentence) from None
            raise WorldError(
                f"{folder.key}={folder.path} cannot be used: no file can be renamed from {self.staged} to this "
                f"folder, because the two are on different mounts. Set a folder on the mount of {self.work_folder}"
            ) from None

    def incompatibility(self) -> str | None:
        """The reason why the folder cannot be used with this config, as a message that begins with the path: it is on
        another device than the work folder, or contains files of another layout. None when the folder can be used."""
        if self.path.is_dir() and self.path.stat().st_dev != self.path.parent.stat().st_dev:
            return (
                f"{self.path} is on another device than {self.path.parent}, in which {self.work_folder.name} is "
                "created: "
                "files cannot be renamed from one to the other. Set a folder inside this folder"
            )
        try:
            stated = json.loads((self.work_folder / LAYOUT).read_text())
        except (FileNotFoundError, NotADirectoryError):
            return None
        layout = FolderLayout(format=stated["format"], partition_columns=tuple(stated["partition_columns"]))
        if layout == self.layout:
            return None
        return (
            f"{self.path} contains {layout} (see {self.work_folder / LAYOUT}), and readers could not read "
            f"{self.layout} "
            "beside these files: set another folder"
        )

    def bad_folder_incompatibility(self) -> str | None:
        """The reason why the folder of bad records cannot be used with this folder, as a message that begins with its
        path. None when it can be used, or there is no such folder."""
        if self.bad is None:
            return None
        if _device(self.bad.path) != _device(self.path.parent):
            return (
                f"{self.bad.path} is on another device than {self.work_folder}, from which the files of bad records "
                "are "
                f"renamed. Set a folder on the device of {self.path}"
            )
        return self.bad.incompatibility()

    def new_copy(self, lineage: TaskLineage, batch_id: int) -> "BatchCopy":
        """A copy of a batch, of which nothing is written yet. For a lineage of generation 0 it is a
        :class:`GenerationZeroCopy`."""
        former = self.generation_zero_folder(lineage)
        return (GenerationZeroCopy if former.is_dir() else BatchCopy)(self, lineage, batch_id)

    def remove_commit_markers(self, lineages: Sequence[TaskLineage]) -> None:
        """Replace the folder of committed batches of each of ``lineages`` by a plain file: later commits of these
        lineages fail. Before that, the remaining files of the last batch are published.

        :raises OSError, WorldError: see :meth:`publish_files`; OSError also when the folder cannot be replaced.
        """
        for lineage in lineages:
            folder = self.committed(lineage)
            if (last := _last(folder)) is not None:
                self.publish_files(last)
            if folder.is_dir():
                replace_folder_by_file(folder)
        # Folders that a killed process has left. A plain file of that prefix may be about to be exchanged.
        for left in (self.work_folder / COMMITTED).glob(f"{REPLACED_PREFIX}*"):
            if left.is_dir():
                remove(left)

    def generation_zero_folder(self, lineage: TaskLineage) -> Path:
        """Where a version of Coterie without checkpoint generations (generation 0) has put the batches of ``lineage``.
        The folder exists only if the lineage is of generation 0."""
        task = lineage.task
        return self.path / safe_name(task.connector) / f"{task.task}-{lineage.lineage}"

    def publish_files(self, committed: Path) -> None:
        """Move the files of the copy in ``committed``, the folder of one committed batch, to the readers' folder and to
        the folder of bad records, until only the mark is left. Another owner may move the same files at the same time.

        :raises OSError: when a file cannot be moved; the message names the folder and its config key.
        :raises WorldError: when there are files of bad records, and the mark does not contain the path of their folder.
        """
        try:
            _move(committed / OUT, self.path)
        except OSError as error:
            sentence = f"A batch could not be published in {self.key}={self.path}: {error.strerror or error}"
            raise OSError(error.errno, sentence) from error
        if not (committed / BAD).is_dir():
            return
        try:
            to = Path((committed / MARK).read_text())
        except (FileNotFoundError, NotADirectoryError):
            return  # Another owner has moved all files, and the marks of the lineage were removed since.
        if not to.is_absolute():
            raise WorldError(
                f"{committed} contains files of bad records, and its file {MARK} does not contain the folder they are "
                f"for (a crash of the machine may be the reason): write the folder's absolute path into {MARK}"
            )
        try:
            _move(committed / BAD, to)
        except OSError as error:
            key = "" if self.bad is None or self.bad.path != to else f"{self.bad.key}="
            raise OSError(
                error.errno,
                f"A batch is already committed to {self.key}={self.path}, and its bad records could not be moved to "
                f"{key}{to}: {error.strerror or error}. Make that folder writable, or write the absolute path of "
                f"another folder into {committed / MARK}",
            ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFiles:
    """Where a writer puts the good files or the bad files of a copy."""

    folder: Path
    """The folder to which the files are written; its subfolders have the names of those in the readers' folder."""
    prefix: str
    """The beginning of the files' names."""

    def name(self, number: int, suffix: str) -> str:
        """The final name of the file with this number in the copy; ``suffix`` is the end of the name."""
        return f"{self.prefix}-{number}{suffix}"


class BatchCopy:
    """A copy of one batch, from its staging until its files are in the readers' folder."""

    def __init__(self, folder: SinkFolder, lineage: TaskLineage, batch_id: int) -> None:
        self.folder = folder
        self._committed = folder.committed(lineage) / str(batch_id)
        self.staged = folder.staged / f"{_key(lineage)}-{uuid.uuid4().hex}"
        name = f"{_key(lineage)}-{batch_id}"
        self.good = OutputFiles(folder=self.staged / OUT, prefix=name)
        self.bad = OutputFiles(folder=self.staged / BAD, prefix=f"{name}-bad")
        """The files of bad records, if the folder has :attr:`SinkFolder.bad`. Their names differ from those of
        ``good``, since both may be for one folder."""

    @property
    def is_committed(self) -> bool:
        """Whether a copy of the batch, this one or another, is committed: then no copy need be written."""
        return self._committed.is_dir()

    def create_staging(self) -> None:
        """Check the folders (:meth:`SinkFolder.prepare`), and create the staging folder of this copy with its mark.

        :raises FencedError: when another owner has removed this copy.
        :raises OSError: when a folder cannot be created.
        :raises WorldError: see :meth:`SinkFolder.prepare`.
        """
        self._prepare()
        self.staged.mkdir()
        try:
            bad = self.folder.bad
            (self.staged / MARK).write_text("" if bad is None else str(bad.path))
            self.good.folder.mkdir()
        except FileNotFoundError as error:
            raise FencedError from error

    def commit(self) -> None:
        """Commit this copy, unless another copy of the batch is committed; then publish the committed copy's files.

        :raises FencedError: when another owner has removed this copy, or the lineage's marks were removed.
        :raises OSError: when the copy cannot be renamed, or a file cannot be moved.
        :raises WorldError: see :meth:`SinkFolder.publish_files`.
        """
        try:
            self._commit_by_rename()
        except OSError as error:
            if error.errno == errno.ENOTDIR or not self.is_intact:
                raise FencedError from error
            sentence = f"A batch could not be committed to {self.folder.key}={self.folder.path}: {error.strerror}"
            raise OSError(error.errno, sentence) from error
        self._publish_files()

    def clean_up(self) -> None:
        """Remove the staging folder of this copy, if it still exists. Raises nothing."""
        shutil.rmtree(self.staged, ignore_errors=True)

    def _commit_by_rename(self) -> None:
        """Rename the staging folder to the folder of the committed batch. Does nothing if a copy of the batch is
        committed.

        :raises FencedError: when another owner has removed this copy.
        :raises OSError: when the rename fails for another reason than a committed copy.
        """
        if self.is_committed:
            return
        if not self.is_intact:
            raise FencedError
        with suppress(FileExistsError):
            self._committed.parent.mkdir()
        try:
            os.rename(self.staged, self._committed)
        except OSError as error:
            if error.errno not in _EXISTS_ERRNOS:
                raise

    def _publish_files(self) -> None:
        """See :meth:`SinkFolder.publish_files`."""
        self.folder.publish_files(self._committed)

    def _prepare(self) -> None:
        """See :meth:`SinkFolder.prepare`."""
        self.folder.prepare()

    @property
    def is_intact(self) -> bool:
        """Whether the staged copy exists and no other owner has removed it: a removal first renames the folder with its
        mark."""
        return (self.staged / MARK).exists()


class GenerationZeroCopy(BatchCopy):
    """A copy of the last batch of a checkpoint of generation 0 (of a version of Coterie without checkpoint
    generations), written where that version wrote its batches."""

    def __init__(self, folder: SinkFolder, lineage: TaskLineage, batch_id: int) -> None:
        super().__init__(folder, lineage, batch_id)
        self._committed = folder.generation_zero_folder(lineage) / str(batch_id)

    def _prepare(self) -> None:
        self.folder.prepare(is_generation_zero=True)

    def _commit_by_rename(self) -> None:
        """Rename the folder of good files to the batch's folder. A batch without files has no such folder.

        :raises FencedError, OSError: see :meth:`BatchCopy._commit_by_rename`.
        """
        if self.is_committed:
            return
        has_files = any(_files(self.good.folder))
        # Checked after the listing: a copy that was removed must not be taken for a batch without rows.
        if not self.is_intact:
            raise FencedError
        if not has_files:
            return
        try:
            os.rename(self.good.folder, self._committed)
        except OSError as error:
            if error.errno not in _EXISTS_ERRNOS:
                raise

    def _publish_files(self) -> None:
        """Does nothing: readers of these batches read the folder to which the copy was renamed."""


def _key(lineage: TaskLineage) -> str:
    """Connector, task and lineage: the beginning of the names of a lineage's folders and files."""
    return f"{safe_name(lineage.task.connector)}-{lineage.task.task}-{lineage.lineage}"


def _last(committed: Path) -> Path | None:
    """The folder of the newest batch in ``committed``, the folder of a lineage's committed batches; None when it has
    none."""
    try:
        batches = [int(name) for name in os.listdir(committed)]
    except (FileNotFoundError, NotADirectoryError):
        return None
    return committed / str(max(batches)) if batches else None


def _files(folder: Path) -> Iterator[Path]:
    """The files in ``folder`` and its subfolders; none where a folder does not exist (any more).

    :raises OSError: when a folder cannot be listed: without this error the caller would take its files for moved.
    """

    def failed(error: OSError) -> None:
        if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
            raise error

    for parent, _, names in os.walk(folder, onerror=failed):
        yield from (Path(parent, name) for name in names)


def _move(files_of: Path, to: Path) -> None:
    """Move all files in ``files_of``, a folder of a committed copy, to the same subfolders of ``to``; then remove
    ``files_of``. A file that another owner moves at the same time is skipped.

    :raises OSError: when a file cannot be moved.
    """
    while files := list(_files(files_of)):
        for file in files:
            there = to / file.relative_to(files_of)
            there.parent.mkdir(parents=True, exist_ok=True)
            # Another owner has moved the file, and the lineage's marks may have been removed since; or a target folder
            # was removed just now: the next iteration creates it again.
            with suppress(FileNotFoundError, NotADirectoryError):
                try:
                    os.rename(file, there)
                except OSError as error:
                    if error.errno != errno.EXDEV:
                        raise
                    _copy(file, there)
    for folder, _, _ in os.walk(files_of, topdown=False):
        with suppress(OSError):  # Another owner removes it too.
            os.rmdir(folder)


def _copy(file: Path, there: Path) -> None:
    """Move ``file`` to ``there``, its final path on another mount. Repeatable: another owner may copy the same file at
    the same time.

    The hidden copy is created before the file is opened, and the owner that removes the file removes all hidden copies.
    So an owner that was suspended in between has no hidden copy left to rename.
    """
    # Without the file's suffix: readers that read hidden files too select files by suffix.
    hidden = f".{there.name}."
    aside = there.with_name(hidden + uuid.uuid4().hex)
    try:
        with aside.open("xb") as copy, file.open("rb") as source:
            shutil.copyfileobj(source, copy)
            copy.flush()
            os.fsync(copy.fileno())
        os.rename(aside, there)
    finally:
        aside.unlink(missing_ok=True)
    sync_folder(there.parent)
    file.unlink(missing_ok=True)
    for left in there.parent.iterdir():
        if left.name.startswith(hidden):
            left.unlink(missing_ok=True)


def _device(path: Path) -> int:
    """The number of the device of a folder; if the folder does not exist, of the device on which it would be
    created."""
    while not path.exists():
        path = path.parent
    return path.stat().st_dev
