"""``SinkFolder``: the folder of a file sink, and the steps that publish a batch to readers exactly once.

Theory of operation. Readers read ``PATH``, which contains final files only: all in the folder itself, or all in folders
``column=value``. The name of a file contains connector, task, lineage, batch and a number. Unfinished copies and commit
marks are beside ``PATH``, in ``.<name>.coterie/``:

| name | content |
|---|---|
| ``layout.json`` | format and partition columns of the folder, written by the first task that writes to the folder |
| ``staged/<task>-<lineage>-<unique>/`` | a copy that is being written: a ``mark``, files in ``out/``, and in ``bad/`` |
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

Generation 0 wrote each batch, as a folder, to ``PATH/<connector>/<task>-<lineage>/<batch>/``. The last batch of such a
checkpoint is written to the same place, since a copy of it may already be there.
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
from coterie.spark.generations.durable import RETIRED_PREFIX, put_first, remove, retire, sync_folder
from coterie.spark.seams import TaskLineage

MARK = "mark"
OUT = "out"
BAD = "bad"
STAGED = "staged"
COMMITTED = "committed"
LAYOUT = "layout.json"
SWEPT = "swept"
"""Prefix of the name of a folder in ``staged`` that is being removed."""
FORMER_STAGED = "_staging"
"""The folder, in the readers' folder, in which generation 0 staged copies."""

_STANDS = (errno.ENOTEMPTY, errno.EEXIST)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Format and partition columns, which are the same for all files of a folder."""

    format: str
    partition_columns: tuple[str, ...]

    def __str__(self) -> str:
        columns = ", ".join(self.partition_columns)
        return f"{self.format} files" + (f" partitioned by {columns}" if columns else " without partition columns")


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkFolder:
    """A folder that readers read, and the work folder beside it."""

    path: Path
    layout: Layout
    key: str = field(default="sink.path", compare=False)
    """The config key whose value is the folder; error messages contain this key."""
    bad: "SinkFolder | None" = None
    """The folder for the files of bad records, if the copies of this folder contain such files."""

    @property
    def work(self) -> Path:
        return self.path.parent / f".{self.path.name}.coterie"

    @property
    def staged(self) -> Path:
        return self.work / STAGED

    def committed(self, lineage: TaskLineage) -> Path:
        """The folder of all committed batches of a task's lineage."""
        return self.work / COMMITTED / _key(lineage)

    def take_over(self, lineage: TaskLineage) -> None:
        """Remove the staged copies of earlier owners of the task, and publish the files of their last committed copy.

        An earlier owner may still be writing. So its copy, mark included, is renamed before it is deleted: the earlier
        owner can then no longer commit the copy.

        :raises OSError: when the folder cannot be written.
        :raises WorldError: when the folder cannot be used with this config.
        """
        staged = [self.staged]
        if is_former := self.former(lineage).is_dir():
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
            self.move_out(last)
        self.prepare(is_former=is_former)
        for readers in (self.bad,) if is_former else (self, self.bad):
            if readers is not None:
                self._try_a_rename(f".{_key(lineage)}-probe", readers)

    def prepare(self, *, is_former: bool = False) -> None:
        """Create the readers' folder and the work folder, and check that they can be used together.

        In generation 0, connectors with other layouts could share a folder; ``is_former`` lets them finish.

        :raises OSError: when a folder cannot be created.
        :raises WorldError: when files cannot be renamed from one folder to the other, or the readers' folder contains
            files of another format or with other partition columns.
        """
        self._make()
        if self.bad is not None:
            if sentence := self.bad_misfit():
                raise WorldError(f"{self.bad.key}={sentence}")
            self.bad.prepare()
        if is_former:
            return
        if sentence := self.misfit():
            raise WorldError(f"{self.key}={sentence}")
        if not (self.work / LAYOUT).exists():
            stated = {"format": self.layout.format, "partition_columns": self.layout.partition_columns}
            if not put_first(self.work / LAYOUT, json.dumps(stated)) and (sentence := self.misfit()):
                raise WorldError(f"{self.key}={sentence}")

    def _make(self) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.staged.mkdir(parents=True, exist_ok=True)
            (self.work / COMMITTED).mkdir(exist_ok=True)
        except OSError as error:
            # An OSError, not a WorldError: the cause may be removed before the next start.
            raise OSError(error.errno, f"Nothing can be written to {self.key}={self.path}: {error.strerror}") from None

    def _try_a_rename(self, name: str, folder: "SinkFolder") -> None:
        """Check that files can be renamed from ``staged`` to ``folder``: rename an empty file and remove it."""
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
                f"{folder.key}={folder.path} cannot be used: no file can be renamed from {self.staged} to it, as "
                f"the two are on different mounts. Set a folder on the mount of {self.work}"
            ) from None

    def misfit(self) -> str | None:
        """The reason why the folder, if it exists, cannot be used with this config, for users; None when it can."""
        if self.path.is_dir() and self.path.stat().st_dev != self.path.parent.stat().st_dev:
            return (
                f"{self.path} is on another device than {self.path.parent}, in which {self.work.name} is created: "
                "files cannot be renamed from one to the other. Set a folder inside of this one"
            )
        try:
            stated = json.loads((self.work / LAYOUT).read_text())
        except (FileNotFoundError, NotADirectoryError):
            return None
        layout = Layout(format=stated["format"], partition_columns=tuple(stated["partition_columns"]))
        if layout == self.layout:
            return None
        return (
            f"{self.path} contains {layout} (see {self.work / LAYOUT}), and readers could not read {self.layout} "
            "beside them: set another folder"
        )

    def bad_misfit(self) -> str | None:
        """The reason why the folder of bad records cannot be used with this one, for users; None when it can."""
        if self.bad is None:
            return None
        if _device(self.bad.path) != _device(self.path.parent):
            return (
                f"{self.bad.path} is on another device than {self.work}, from which the files of bad records are "
                f"renamed. Set a folder on the device of {self.path}"
            )
        return self.bad.misfit()

    def copy(self, lineage: TaskLineage, batch_id: int) -> "Copy":
        """A new copy of a batch, of which nothing is written yet."""
        former = self.former(lineage)
        return (FormerCopy if former.is_dir() else Copy)(self, lineage, batch_id)

    def retire(self, lineages: Sequence[TaskLineage]) -> None:
        """Remove the commit marks of ``lineages`` after publishing all their batches; later commits of them fail."""
        for lineage in lineages:
            folder = self.committed(lineage)
            if (last := _last(folder)) is not None:
                self.move_out(last)
            if folder.is_dir():
                retire(folder)
        # Folders that a killed process has left. A plain file of that prefix may be about to be exchanged.
        for left in (self.work / COMMITTED).glob(f"{RETIRED_PREFIX}*"):
            if left.is_dir():
                remove(left)

    def former(self, lineage: TaskLineage) -> Path:
        """The folder of a lineage's batches if the lineage is of generation 0; it does not exist otherwise."""
        task = lineage.task
        return self.path / safe_name(task.connector) / f"{task.task}-{lineage.lineage}"

    def move_out(self, committed: Path) -> None:
        """Move the files of a committed copy to the readers' folder, until only the mark is left.

        :raises OSError: when a file cannot be moved; the message contains the config key of the folder, and what to do.
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
class Files:
    """The files of a copy that are for one readers' folder."""

    folder: Path
    """The folder to which they are written; its subfolders are those of the readers' folder."""
    prefix: str
    """Prefix of their names."""

    def name(self, number: int, suffix: str) -> str:
        """The final name of file ``number``."""
        return f"{self.prefix}-{number}{suffix}"


class Copy:
    """A copy of one batch, from its staging until its files are in the readers' folder."""

    def __init__(self, folder: SinkFolder, lineage: TaskLineage, batch_id: int) -> None:
        self.folder = folder
        self._committed = folder.committed(lineage) / str(batch_id)
        self.staged = folder.staged / f"{_key(lineage)}-{uuid.uuid4().hex}"
        name = f"{_key(lineage)}-{batch_id}"
        self.good = Files(folder=self.staged / OUT, prefix=name)
        self.bad = Files(folder=self.staged / BAD, prefix=f"{name}-bad")
        """The files of bad records, if the folder has :attr:`SinkFolder.bad`. Their names differ from those of
        ``good``, since both may be for one folder."""

    @property
    def is_decided(self) -> bool:
        """Whether a copy of the batch is already committed, so that this one need not be written."""
        return self._committed.is_dir()

    def begin(self) -> None:
        """Create the staging folder.

        :raises FencedError: when another owner has removed this copy.
        :raises OSError: when the folder cannot be written.
        :raises WorldError: when the folder cannot be used with this config.
        """
        self._prepare()
        self.staged.mkdir()
        try:
            bad = self.folder.bad
            (self.staged / MARK).write_text("" if bad is None else str(bad.path))
            self.good.folder.mkdir()
        except FileNotFoundError as error:
            raise FencedError from error

    def put_in_place(self) -> None:
        """Commit this copy, unless another copy of the batch is committed; then publish the committed copy's files.

        :raises FencedError: when another owner has removed this copy, or the lineage's marks were removed.
        :raises OSError: when a step failed.
        """
        try:
            self._decide()
        except OSError as error:
            if error.errno == errno.ENOTDIR or not self.is_whole:
                raise FencedError from error
            sentence = f"A batch could not be committed to {self.folder.key}={self.folder.path}: {error.strerror}"
            raise OSError(error.errno, sentence) from error
        self._show()

    def drop(self) -> None:
        """Remove the rest of the staged copy."""
        shutil.rmtree(self.staged, ignore_errors=True)

    def _decide(self) -> None:
        if self.is_decided:
            return
        if not self.is_whole:
            raise FencedError
        with suppress(FileExistsError):
            self._committed.parent.mkdir()
        try:
            os.rename(self.staged, self._committed)
        except OSError as error:
            if error.errno not in _STANDS:
                raise

    def _show(self) -> None:
        self.folder.move_out(self._committed)

    def _prepare(self) -> None:
        self.folder.prepare()

    @property
    def is_whole(self) -> bool:
        """Whether no other owner has removed the staged copy: a removal renames the folder with its mark first."""
        return (self.staged / MARK).exists()


class FormerCopy(Copy):
    """A copy of the last batch of a checkpoint of generation 0, written where generation 0 wrote its batches."""

    def __init__(self, folder: SinkFolder, lineage: TaskLineage, batch_id: int) -> None:
        super().__init__(folder, lineage, batch_id)
        self._committed = folder.former(lineage) / str(batch_id)

    def _prepare(self) -> None:
        self.folder.prepare(is_former=True)

    def _decide(self) -> None:
        if self.is_decided:
            return
        has_files = any(_files(self.good.folder))
        # Checked after the listing: a copy that was removed must not be taken for a batch without rows.
        if not self.is_whole:
            raise FencedError
        if not has_files:
            return
        try:
            os.rename(self.good.folder, self._committed)
        except OSError as error:
            if error.errno not in _STANDS:
                raise

    def _show(self) -> None:
        """Nothing to move: readers of these batches read the committed folder."""


def _key(lineage: TaskLineage) -> str:
    return f"{safe_name(lineage.task.connector)}-{lineage.task.task}-{lineage.lineage}"


def _last(committed: Path) -> Path | None:
    """The newest committed batch of a lineage."""
    try:
        batches = [int(name) for name in os.listdir(committed)]
    except (FileNotFoundError, NotADirectoryError):
        return None
    return committed / str(max(batches)) if batches else None


def _files(folder: Path) -> Iterator[Path]:
    """The files in ``folder``; none where it does not exist (any more).

    :raises OSError: when it cannot be listed: files that are not listed would be taken for moved.
    """

    def failed(error: OSError) -> None:
        if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
            raise error

    for parent, _, names in os.walk(folder, onerror=failed):
        yield from (Path(parent, name) for name in names)


def _move(files_of: Path, to: Path) -> None:
    """Move all files in a folder of a committed copy, and remove the folder."""
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
    """Move a file to another mount. Repeatable: another owner may copy the same file at the same time.

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
    """The device of a folder; if the folder does not exist, the device on which it would be created."""
    while not path.exists():
        path = path.parent
    return path.stat().st_dev
