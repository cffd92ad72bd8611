"""``SinkFolder``: where the batches of a file sink lie, and the steps that show a batch to readers exactly once.

Theory of operation. Readers look at ``PATH``, which holds final files only: all in the folder itself, or all in folders
``column=value``. Each file is named by connector, task, lineage, batch and a number. Work lies beside it, in
``.<name>.coterie/``:

| name | what it is |
|---|---|
| ``layout.json`` | format and partition columns of the folder, put there by the first task that writes to it |
| ``staged/<task>-<lineage>-<unique>/`` | a copy that is being written: a ``mark``, files in ``out/``, and in ``bad/`` |
| ``committed/<task>-<lineage>/<batch>/`` | the copy of a batch that counts |

1. A task stages a copy: files under their final names, and a mark.
2. The *decisive step* renames the copy, with files or without, to its name in ``committed``. The mark makes the folder
   non-empty for ever, so that the rename of any other copy of the batch fails.
3. Any owner of the task moves the files of the committed copy to where readers look, one by one. Another owner may move
   the same files: a file that is gone was moved. Once only the mark is left, the batch may be committed to the
   checkpoint.

So whoever stops between the steps leaves either a copy that does not count, which the next owner's take-over removes,
or a committed copy, of which the take-over and the replay move the rest. Marks stay: an owner that stood still for any
time finds the mark of its batch. When the generation of the checkpoints is retired, a plain file takes the place of the
lineage's folder, and refuses every rename into it.

Where bad records go to a folder too, their files are in ``bad/`` of the same copy, and are moved to that folder after
the same decisive step: so one evaluation of the batch fixes which records are good and which are bad. The mark states
the folder, so that an owner with another config moves them to where the copy was written for.

A move is a rename. So each start tries one, to refuse folders behind mounts that no file can be renamed to. After the
decisive step it is too late to refuse: where a mount came later, the file is copied to a hidden name beside its final
one, and renamed there.

A checkpoint from before generations has put each batch, as a folder, at ``PATH/<connector>/<task>-<lineage>/<batch>/``.
Its last batch goes the same way, since a copy may stand there already.
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
"""How a folder in ``staged`` is called that is being removed."""
FORMER_STAGED = "_staging"
"""Where copies were staged before generations, in the folder itself."""

_STANDS = (errno.ENOTEMPTY, errno.EEXIST)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What all files of a folder have in common."""

    format: str
    partition_columns: tuple[str, ...]

    def __str__(self) -> str:
        columns = ", ".join(self.partition_columns)
        return f"{self.format} files" + (f" partitioned by {columns}" if columns else " without partition columns")


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkFolder:
    """A folder that readers look at, and the work folder beside it."""

    path: Path
    layout: Layout
    key: str = field(default="sink.path", compare=False)
    """The key that names the folder; errors name it."""
    bad: "SinkFolder | None" = None
    """Where the files of bad records go, if the copies of this folder hold them."""

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
        """Remove what earlier owners of the task have staged, and move out what they have committed.

        An earlier owner may still be writing. So its copy goes away whole, by a rename, and its mark with it: what it
        writes afterwards is not put in place by it any more.

        :raises OSError: when nothing can be written here.
        :raises WorldError: when the folder cannot be used as it is asked for.
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
        # A batch is staged once the one before it is committed to the checkpoint, and that comes after its last file.
        # First of all: what counts already is not held up by a folder that is fit for no further batch.
        if (last := _last(self.committed(lineage))) is not None:
            self.move_out(last)
        self.prepare(is_former=is_former)
        for readers in (self.bad,) if is_former else (self, self.bad):
            if readers is not None:
                self._try_a_rename(f".{_key(lineage)}-probe", readers)

    def prepare(self, *, is_former: bool = False) -> None:
        """Make both folders, and see whether they go together.

        Before generations, connectors with other layouts could share a folder; ``is_former`` lets them finish.

        :raises OSError: when one cannot be made.
        :raises WorldError: when files cannot be renamed from one to the other, or the folder holds other files.
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
            # Not a refusal: the next start may find the folder in order.
            raise OSError(error.errno, f"Nothing can be written to {self.key}={self.path}: {error.strerror}") from None

    def _try_a_rename(self, name: str, folder: "SinkFolder") -> None:
        """Rename an empty file from where copies are staged to ``folder``, and remove it."""
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
                f"between two mounts. Name a folder on the mount that {self.work} is on"
            ) from None

    def misfit(self) -> str | None:
        """Why the folder, as far as it is there, cannot be used as it is asked for: a sentence, or None."""
        if self.path.is_dir() and self.path.stat().st_dev != self.path.parent.stat().st_dev:
            return (
                f"{self.path} is on another device than {self.path.parent}, where {self.work.name} is to be: files "
                "cannot be renamed from one to the other. Name a folder inside of this one"
            )
        try:
            stated = json.loads((self.work / LAYOUT).read_text())
        except (FileNotFoundError, NotADirectoryError):
            return None
        layout = Layout(format=stated["format"], partition_columns=tuple(stated["partition_columns"]))
        if layout == self.layout:
            return None
        return (
            f"{self.path} holds {layout}, and readers could not read {self.layout} beside them: name another folder "
            f"({self.work / LAYOUT} says so)"
        )

    def bad_misfit(self) -> str | None:
        """Why the folder of bad records cannot be used together with this one: a sentence, or None."""
        if self.bad is None:
            return None
        if _device(self.bad.path) != _device(self.path.parent):
            return (
                f"{self.bad.path} is on another device than {self.work}, from where the files of bad records are "
                f"renamed after the step that fixes good and bad rows. Name a folder on the device of {self.path}"
            )
        return self.bad.misfit()

    def copy(self, lineage: TaskLineage, batch_id: int) -> "Copy":
        """A copy of a batch, to be staged."""
        former = self.former(lineage)
        return (FormerCopy if former.is_dir() else Copy)(self, lineage, batch_id)

    def retire(self, lineages: Sequence[TaskLineage]) -> None:
        """Remove the marks of lineages whose batches are all moved out; no batch of theirs is put in place any more."""
        for lineage in lineages:
            folder = self.committed(lineage)
            if (last := _last(folder)) is not None:
                self.move_out(last)
            if folder.is_dir():
                retire(folder)
        # Left behind by one that was killed. A plain file of that prefix may be about to be exchanged.
        for left in (self.work / COMMITTED).glob(f"{RETIRED_PREFIX}*"):
            if left.is_dir():
                remove(left)

    def former(self, lineage: TaskLineage) -> Path:
        """Where batches of a lineage stand that began before generations."""
        task = lineage.task
        return self.path / safe_name(task.connector) / f"{task.task}-{lineage.lineage}"

    def move_out(self, committed: Path) -> None:
        """Move the files of a committed copy to where readers look, until only the mark is left.

        :raises OSError: when a file cannot be moved; names the key of the folder, and what to do.
        """
        try:
            _move(committed / OUT, self.path)
        except OSError as error:
            sentence = f"A batch could not be put in place at {self.key}={self.path}: {error.strerror or error}"
            raise OSError(error.errno, sentence) from error
        if not (committed / BAD).is_dir():
            return
        try:
            to = Path((committed / MARK).read_text())
        except (FileNotFoundError, NotADirectoryError):
            return  # Another owner has moved all, and the lineage is retired since.
        if not to.is_absolute():
            raise WorldError(
                f"{committed} holds files of bad records, and its file {MARK} does not say where they belong, as "
                f"after a crash of the machine: write the folder's absolute path into {MARK}"
            )
        try:
            _move(committed / BAD, to)
        except OSError as error:
            key = "" if self.bad is None or self.bad.path != to else f"{self.bad.key}="
            raise OSError(
                error.errno,
                f"A batch counts already at {self.key}={self.path}, and its bad records could not be moved to "
                f"{key}{to}: {error.strerror or error}. Let them be written there, or write the absolute path of "
                f"another folder into {committed / MARK}",
            ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """The files of a copy that are to lie in one folder of readers."""

    folder: Path
    """Where they are written: as they are to lie for readers."""
    prefix: str
    """How their names begin."""

    def name(self, number: int, suffix: str) -> str:
        """The final name of one of them."""
        return f"{self.prefix}-{number}{suffix}"


class Copy:
    """A copy of one batch, from its staging until its files are where readers look."""

    def __init__(self, folder: SinkFolder, lineage: TaskLineage, batch_id: int) -> None:
        self.folder = folder
        self._committed = folder.committed(lineage) / str(batch_id)
        self.staged = folder.staged / f"{_key(lineage)}-{uuid.uuid4().hex}"
        name = f"{_key(lineage)}-{batch_id}"
        self.good = Files(folder=self.staged / OUT, prefix=name)
        self.bad = Files(folder=self.staged / BAD, prefix=f"{name}-bad")
        """The bad records, for a folder that has :attr:`SinkFolder.bad`. Even in one folder their names are others."""

    @property
    def is_decided(self) -> bool:
        """Whether a copy of the batch counts already, so that this one need not be written."""
        return self._committed.is_dir()

    def begin(self) -> None:
        """Make the folder to write to.

        :raises FencedError: when another owner has swept this copy away.
        :raises OSError: when nothing can be written here.
        :raises WorldError: when the folder cannot be used as it is asked for.
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
        """Take the decisive step, unless another copy of the batch has; then move the files of the copy that counts.

        :raises FencedError: when another owner has swept this copy away, or the lineage is retired.
        :raises OSError: when a step failed.
        """
        try:
            self._decide()
        except OSError as error:
            if error.errno == errno.ENOTDIR or not self.is_whole:
                raise FencedError from error
            sentence = f"A batch could not be put in place at {self.folder.key}={self.folder.path}: {error.strerror}"
            raise OSError(error.errno, sentence) from error
        self._show()

    def drop(self) -> None:
        """Remove what is left of the staged copy."""
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
        """Whether no other owner has swept the staged copy away: a sweep takes the mark along."""
        return (self.staged / MARK).exists()


class FormerCopy(Copy):
    """A copy of the last batch of a checkpoint from before generations: it goes where such batches stand."""

    def __init__(self, folder: SinkFolder, lineage: TaskLineage, batch_id: int) -> None:
        super().__init__(folder, lineage, batch_id)
        self._committed = folder.former(lineage) / str(batch_id)

    def _prepare(self) -> None:
        self.folder.prepare(is_former=True)

    def _decide(self) -> None:
        if self.is_decided:
            return
        has_files = any(_files(self.good.folder))
        # After the look: a swept copy must not be taken for a batch without rows.
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
        """Readers of these batches look there."""


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

    :raises OSError: when it cannot be listed: files that are not seen would be taken for moved.
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
            # Another owner has moved it, and the lineage may be retired since; or a folder was removed just now:
            # the next look makes it again.
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

    The hidden copy is begun before the file is opened, and the owner that removes the file removes all hidden copies.
    So an owner that stood still in between has nothing left to rename.
    """
    # Not under its suffix: readers that take hidden files too look for that.
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
    """The device of a folder, or that on which it would be made."""
    while not path.exists():
        path = path.parent
    return path.stat().st_dev
