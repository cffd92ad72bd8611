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
from urllib.parse import unquote

from coterie.config.durable_files import fsync_folder
from coterie.nouns.errors import WorldError
from coterie.spark.checkpoint import last_batch_id_in_log, safe_file_name
from coterie.spark.fence import FencedError
from coterie.spark.generations.durable import (
    REPLACED_PREFIX,
    create_file_if_absent,
    replace_folder_by_file,
    try_remove_path,
)
from coterie.spark.seams import TaskCheckpointLineage

MARK_FILE = "mark"
"""File of a copy. While a staged copy contains it, no other owner has removed the copy. In ``committed`` it keeps the
folder of the batch from being empty, so that no other copy can be renamed to this folder. Its text is the path of the
folder for bad records, or empty."""
GOOD_FILES_FOLDER = "out"
"""Folder of a copy for the files of good records."""
BAD_FILES_FOLDER = "bad"
"""Folder of a copy for the files of bad records."""
STAGED_FOLDER = "staged"
"""Folder, in the work folder, that contains the staged copies."""
COMMITTED_FOLDER = "committed"
"""Folder, in the work folder, that contains the committed copies."""
LAYOUT_FILE = "layout.json"
"""File, in the work folder, that contains the :class:`FolderLayout` as JSON."""
REMOVED_PREFIX = "swept"
"""Prefix of the name to which a staged copy is renamed before it is deleted."""
LEGACY_LAYOUT_STAGED_FOLDER = "_staging"
"""The folder, in the readers' folder, in which versions of Coterie without checkpoint generations (generation 0) have
staged copies of batches."""

_EXISTS_ERRNOS = (errno.ENOTEMPTY, errno.EEXIST)
"""Errors of a rename to a folder that exists and is not empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderLayout:
    """The format and the partition columns of the files in a folder: all files of a folder have the same. Its ``str``
    is the text for messages."""

    format: str
    partition_columns: tuple[str, ...]

    def __str__(self) -> str:
        columns = ", ".join(self.partition_columns)
        return f"{self.format} files" + (f" partitioned by {columns}" if columns else " without partition columns")


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkFolder:
    """The folder of a file sink: the folder that readers read (``path``), and beside it the work folder, with the
    copies of batches whose files are not in ``path`` yet, and with a mark for each committed batch."""

    path: Path
    layout: FolderLayout
    config_key: str = field(default="sink.path", compare=False)
    """The config key whose value is the folder; error messages contain this key."""
    bad_records_folder: "SinkFolder | None" = None
    """The folder for the files of bad records; None when the copies of this folder contain no such files."""

    @property
    def work_folder(self) -> Path:
        """The folder for copies of batches (:class:`BatchCopy`) whose files are not in the readers' folder yet, and for
        the marks of committed batches. It is beside the readers' folder (``path``)."""
        return self.path.parent / f".{self.path.name}.coterie"

    @property
    def staged_copies_folder(self) -> Path:
        """The folder of all staged copies of batches: those that are being written, or are written and not
        committed."""
        return self.work_folder / STAGED_FOLDER

    def committed_batches_folder(self, lineage: TaskCheckpointLineage) -> Path:
        """The folder of the committed batches of ``lineage``, a task and the id of its checkpoint's contents. The
        folder may not exist."""
        return self.work_folder / COMMITTED_FOLDER / _lineage_prefix(lineage)

    def take_over(self, lineage: TaskCheckpointLineage) -> None:
        """Remove the batch copies that earlier owners of the task have staged (written and not committed), and move
        the remaining files of their last committed copy to the readers' folder (:meth:`publish_files`). Then check
        the folders (:meth:`create_and_check_folders`). Creates missing folders first.

        An earlier owner may still be writing. So its copy, with the mark in it, is renamed before it is deleted: the
        earlier owner can then no longer commit the copy.

        :raises OSError: when a folder cannot be written, or a file of the last committed copy cannot be moved.
        :raises WorldError: see :meth:`create_and_check_folders` and :meth:`publish_files`; also when files cannot be
            renamed into the folder because it is on another mount.
        """
        staged_folders = [self.staged_copies_folder]
        if is_legacy_layout := self.legacy_layout_folder(lineage).is_dir():
            staged_folders.append(self.path / LEGACY_LAYOUT_STAGED_FOLDER)
        self._create_folders()
        for folder in staged_folders:
            for staged_copy in folder.glob(f"{_lineage_prefix(lineage)}-*"):
                with suppress(FileNotFoundError):
                    staged_copy.rename(staged_copy.with_name(f"{REMOVED_PREFIX}-{uuid.uuid4().hex}"))
            for removed_copy in folder.glob(f"{REMOVED_PREFIX}-*"):
                shutil.rmtree(removed_copy, ignore_errors=True)
        if is_legacy_layout:
            with suppress(OSError):
                (self.path / LEGACY_LAYOUT_STAGED_FOLDER).rmdir()
        # Only the last batch can have files left: a batch is staged after the batch before it is committed in the
        # checkpoint, which happens after the last move. This comes before `create_and_check_folders`: a committed batch
        # is published even if the folder cannot take further batches.
        if (last_committed := _last_batch_folder(self.committed_batches_folder(lineage))) is not None:
            self.publish_files(last_committed)
        self.create_and_check_folders(is_legacy_layout=is_legacy_layout)
        for reader_folder in (self.bad_records_folder,) if is_legacy_layout else (self, self.bad_records_folder):
            if reader_folder is not None:
                self._check_rename_into(f".{_lineage_prefix(lineage)}-probe", reader_folder)

    def create_and_check_folders(self, *, is_legacy_layout: bool = False) -> None:
        """Create the readers' folder, the work folder and the folder of bad records, and check that they can be used
        together. The first call for a folder stores its layout.

        ``is_legacy_layout``: whether the checkpoint is of a version of Coterie without checkpoint generations. These
        versions let connectors with different layouts share a folder. So the readers' folder is then not checked, and
        the connector can finish its last batch.

        :raises OSError: when a folder cannot be created.
        :raises WorldError: when two of the folders are on different devices, or one contains files of another format or
            with other partition columns.
        """
        self._create_folders()
        if self.bad_records_folder is not None:
            if message := self.bad_records_folder_error():
                raise WorldError(f"{self.bad_records_folder.config_key}={message}")
            self.bad_records_folder.create_and_check_folders()
        if is_legacy_layout:
            return
        if message := self.incompatibility_message():
            raise WorldError(f"{self.config_key}={message}")
        if not (self.work_folder / LAYOUT_FILE).exists():
            layout_json = {"format": self.layout.format, "partition_columns": self.layout.partition_columns}
            if not create_file_if_absent(self.work_folder / LAYOUT_FILE, json.dumps(layout_json)) and (
                message := self.incompatibility_message()
            ):
                raise WorldError(f"{self.config_key}={message}")

    def _create_folders(self) -> None:
        """Create the readers' folder and the work folder.

        :raises OSError: when a folder cannot be created; the message names the config key.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.staged_copies_folder.mkdir(parents=True, exist_ok=True)
            (self.work_folder / COMMITTED_FOLDER).mkdir(exist_ok=True)
        except OSError as error:
            # An OSError, not a WorldError: the cause may be removed before the next start.
            message = (
                f"{self.config_key}={self.path} cannot be used: {error.filename}: {error.strerror}. This worker must "
                f"be able to write to this folder and to create {self.work_folder}"
            )
            raise OSError(error.errno, message) from None

    def _check_rename_into(self, file_name: str, folder: "SinkFolder") -> None:
        """Check that files can be renamed from ``staged_copies_folder`` to ``folder``: rename an empty file with the
        name ``file_name``, and remove it.

        :raises OSError: when no file can be written.
        :raises WorldError: when the two folders are on different mounts.
        """
        test_file = self.staged_copies_folder / file_name
        try:
            test_file.touch()
            os.rename(test_file, folder.path / file_name)
            (folder.path / file_name).unlink()
        except FileNotFoundError:
            pass  # Another owner of the task has renamed or removed it.
        except OSError as error:
            test_file.unlink(missing_ok=True)
            if error.errno != errno.EXDEV:
                message = f"Nothing can be written to {folder.config_key}={folder.path}: {error.strerror}"
                raise OSError(error.errno, message) from None
            raise WorldError(
                f"{folder.config_key}={folder.path} cannot be used: no file can be renamed from "
                f"{self.staged_copies_folder} to this folder, because the two are on different mounts. Set a folder on "
                f"the mount of {self.work_folder}"
            ) from None

    def incompatibility_message(self) -> str | None:
        """The reason why the folder cannot be used with this config, as a message that begins with the path: it is on
        another device than the work folder, or contains files of another layout. None when the folder can be used.

        The layout of the files that connectors have written is in the work folder. Before the first connector writes,
        the files of other programs are examined (:func:`_name_of_other_layout`); later files of them are not."""
        if self.path.is_dir() and self.path.stat().st_dev != self.path.parent.stat().st_dev:
            return (
                f"{self.path} is on another device than {self.path.parent}, in which {self.work_folder.name} is "
                "created: files cannot be renamed from one to the other. Set a folder inside this folder"
            )
        try:
            layout_json = json.loads((self.work_folder / LAYOUT_FILE).read_text())
        except (FileNotFoundError, NotADirectoryError):
            if (name := _name_of_other_layout(self.path, self.layout)) is None:
                return None
            return (
                f"{self.path} contains {name}, and readers could not read {self.layout} beside it: set another folder, "
                "or move the other files to another folder"
            )
        layout = FolderLayout(format=layout_json["format"], partition_columns=tuple(layout_json["partition_columns"]))
        if layout == self.layout:
            return None
        return (
            f"{self.path} contains {layout} (see {self.work_folder / LAYOUT_FILE}), and readers could not read "
            f"{self.layout} beside these files: set another folder"
        )

    def bad_records_folder_error(self) -> str | None:
        """The reason why the folder of bad records cannot be used with this folder, as a message that begins with its
        path. None when it can be used, or there is no such folder."""
        if self.bad_records_folder is None:
            return None
        if _device_of(self.bad_records_folder.path) != _device_of(self.path.parent):
            return (
                f"{self.bad_records_folder.path} is on another device than {self.work_folder}, from which the files of "
                f"bad records are renamed. Set a folder on the device of {self.path}"
            )
        return self.bad_records_folder.incompatibility_message()

    def new_batch_copy(self, lineage: TaskCheckpointLineage, batch_id: int) -> "BatchCopy":
        """A copy of a batch, of which nothing is written yet. For a lineage of generation 0 it is a
        :class:`LegacyLayoutBatchCopy`."""
        legacy_layout_folder = self.legacy_layout_folder(lineage)
        return (LegacyLayoutBatchCopy if legacy_layout_folder.is_dir() else BatchCopy)(self, lineage, batch_id)

    def remove_deduplication_data(self, lineages: Sequence[TaskCheckpointLineage]) -> None:
        """Replace the folder of committed batches of each of ``lineages`` by a plain file: later commits of these
        lineages fail. Before that, the remaining files of the last batch are moved to the readers' folder.

        :raises OSError, WorldError: see :meth:`publish_files`; OSError also when the folder cannot be replaced.
        """
        for lineage in lineages:
            folder = self.committed_batches_folder(lineage)
            if (last_committed := _last_batch_folder(folder)) is not None:
                self.publish_files(last_committed)
            if folder.is_dir():
                replace_folder_by_file(folder)
        # Folders that a killed process has left. A plain file of that prefix may be about to be exchanged.
        for replaced_folder in (self.work_folder / COMMITTED_FOLDER).glob(f"{REPLACED_PREFIX}*"):
            if replaced_folder.is_dir():
                try_remove_path(replaced_folder)

    def legacy_layout_folder(self, lineage: TaskCheckpointLineage) -> Path:
        """Where a version of Coterie without checkpoint generations (generation 0) has put the batches of ``lineage``.
        The folder exists only if the lineage is of generation 0."""
        task = lineage.task
        return self.path / safe_file_name(task.connector) / f"{task.task}-{lineage.lineage_id}"

    def publish_files(self, batch_folder: Path) -> None:
        """Move the files of a committed copy, in the folder ``batch_folder``, to the readers' folder and to the folder
        of bad records, until only the mark is left. Another owner may move the same files at the same time.

        :raises OSError: when a file cannot be moved; the message names the folder, and its config key if the config
            names that folder.
        :raises WorldError: when there are files of bad records, and the mark does not contain the path of their folder.
        """
        try:
            _move_files_and_remove_folder(batch_folder / GOOD_FILES_FOLDER, self.path)
        except OSError as error:
            message = (
                f"The files of a committed batch could not be moved to {self.config_key}={self.path}: "
                f"{error.strerror or error}. They stay in {batch_folder} until a later attempt moves them"
            )
            raise OSError(error.errno, message) from error
        if not (batch_folder / BAD_FILES_FOLDER).is_dir():
            return
        try:
            bad_folder = Path((batch_folder / MARK_FILE).read_text())
        except (FileNotFoundError, NotADirectoryError):
            return  # Another owner has moved all files, and the marks of the lineage were removed since.
        if not bad_folder.is_absolute():
            raise WorldError(
                f"{batch_folder} contains files of bad records, and its file {MARK_FILE} does not contain the folder "
                "they are for (a crash of the machine may be the reason): write the folder's absolute path into "
                f"{MARK_FILE}"
            )
        try:
            _move_files_and_remove_folder(batch_folder / BAD_FILES_FOLDER, bad_folder)
        except OSError as error:
            bad_folder_key = (
                ""
                if self.bad_records_folder is None or self.bad_records_folder.path != bad_folder
                else f"{self.bad_records_folder.config_key}="
            )
            raise OSError(
                error.errno,
                f"A batch is already committed to {self.config_key}={self.path}, and its bad records could not be "
                f"moved to {bad_folder_key}{bad_folder}: {error.strerror or error}. Make that folder writable, or "
                f"write the absolute path of another folder into {batch_folder / MARK_FILE}",
            ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFileNames:
    """The names of the files to which one kind of rows of a copy is written: its good rows, or its bad rows."""

    folder: Path
    """The folder to which the files are written; its subfolders have the names of those in the readers' folder."""
    name_prefix: str
    """The beginning of the name of each file."""

    def file_name(self, number: int, suffix: str) -> str:
        """The name, with the ending ``suffix``, of the copy's file number ``number``; it keeps this name in the
        readers' folder."""
        return f"{self.name_prefix}-{number}{suffix}"


class BatchCopy:
    """One attempt to write a batch: the files that one start of a task writes, from the staging folder to the readers'
    folder. A batch may have several copies, when several owners of the task write it; only one copy is committed."""

    def __init__(self, sink_folder: SinkFolder, lineage: TaskCheckpointLineage, batch_id: int) -> None:
        self.sink_folder = sink_folder
        self._committed_batch_folder = sink_folder.committed_batches_folder(lineage) / str(batch_id)
        self.staging_folder = sink_folder.staged_copies_folder / f"{_lineage_prefix(lineage)}-{uuid.uuid4().hex}"
        name_prefix = f"{_lineage_prefix(lineage)}-{batch_id}"
        self.good_files = OutputFileNames(folder=self.staging_folder / GOOD_FILES_FOLDER, name_prefix=name_prefix)
        self.bad_files = OutputFileNames(
            folder=self.staging_folder / BAD_FILES_FOLDER, name_prefix=f"{name_prefix}-bad"
        )
        """The files of bad records, if the folder has :attr:`SinkFolder.bad_records_folder`. Their names differ from
        those of ``good_files``, since both may be for one folder."""

    @property
    def is_batch_committed(self) -> bool:
        """Whether a copy of the batch, this one or another, is committed: then no copy need be written."""
        return self._committed_batch_folder.is_dir()

    def check_sink_and_create_staging_folder(self) -> None:
        """Create and check the folders of the sink (:meth:`SinkFolder.create_and_check_folders`), and create the
        staging folder of this copy. The folder contains a mark: a file that shows that no other owner has removed the
        copy.

        :raises FencedError: when another owner has removed this copy.
        :raises OSError: when a folder cannot be created.
        :raises WorldError: see :meth:`SinkFolder.create_and_check_folders`.
        """
        self._create_and_check_folders()
        self.staging_folder.mkdir()
        try:
            bad_folder = self.sink_folder.bad_records_folder
            (self.staging_folder / MARK_FILE).write_text("" if bad_folder is None else str(bad_folder.path))
            self.good_files.folder.mkdir()
        except FileNotFoundError as error:
            raise FencedError from error

    def commit(self) -> None:
        """Commit this copy, unless another copy of the batch is committed; then move the committed copy's files to the
        readers' folder.

        :raises FencedError: when another owner has removed this copy, or the lineage's marks were removed.
        :raises OSError: when the copy cannot be renamed, or a file cannot be moved.
        :raises WorldError: see :meth:`SinkFolder.publish_files`.
        """
        try:
            self._commit_by_rename()
        except OSError as error:
            if error.errno == errno.ENOTDIR or not self.is_still_staged:
                raise FencedError from error
            message = (
                f"A batch could not be committed to {self.sink_folder.config_key}={self.sink_folder.path}: "
                f"{error.strerror}"
            )
            raise OSError(error.errno, message) from error
        self._publish_files()

    def clean_up(self) -> None:
        """Remove the staging folder of this copy, if it still exists. Raises nothing."""
        shutil.rmtree(self.staging_folder, ignore_errors=True)

    def _commit_by_rename(self) -> None:
        """Rename the staging folder to the folder of the committed batch. Does nothing if a copy of the batch is
        committed.

        :raises FencedError: when another owner has removed this copy.
        :raises OSError: when the rename fails for another reason than a committed copy.
        """
        if self.is_batch_committed:
            return
        if not self.is_still_staged:
            raise FencedError
        with suppress(FileExistsError):
            self._committed_batch_folder.parent.mkdir()
        try:
            os.rename(self.staging_folder, self._committed_batch_folder)
        except OSError as error:
            if error.errno not in _EXISTS_ERRNOS:
                raise

    def _publish_files(self) -> None:
        """Move the files of the committed copy to the readers' folder: :meth:`SinkFolder.publish_files`."""
        self.sink_folder.publish_files(self._committed_batch_folder)

    def _create_and_check_folders(self) -> None:
        """Create and check the folders that the copy needs: :meth:`SinkFolder.create_and_check_folders`."""
        self.sink_folder.create_and_check_folders()

    @property
    def is_still_staged(self) -> bool:
        """Whether the mark file is in the staging folder of this copy. Another owner that removes the copy first
        renames the whole folder, so the mark file leaves with the folder. False also before the copy was staged, and
        after it was committed."""
        return (self.staging_folder / MARK_FILE).exists()


class LegacyLayoutBatchCopy(BatchCopy):
    """A copy of the last batch of a checkpoint of generation 0 (of a version of Coterie without checkpoint
    generations), written where that version wrote its batches."""

    def __init__(self, sink_folder: SinkFolder, lineage: TaskCheckpointLineage, batch_id: int) -> None:
        super().__init__(sink_folder, lineage, batch_id)
        self._committed_batch_folder = sink_folder.legacy_layout_folder(lineage) / str(batch_id)

    def _create_and_check_folders(self) -> None:
        self.sink_folder.create_and_check_folders(is_legacy_layout=True)

    def _commit_by_rename(self) -> None:
        """Rename the folder of good files to the batch's folder, unless the batch is committed or has no files. A batch
        without files has no such folder.

        :raises FencedError, OSError: see :meth:`BatchCopy._commit_by_rename`.
        """
        if self.is_batch_committed:
            return
        has_files = any(_iter_files(self.good_files.folder))
        # Checked after the listing: a copy that was removed must not be taken for a batch without rows.
        if not self.is_still_staged:
            raise FencedError
        if not has_files:
            return
        try:
            os.rename(self.good_files.folder, self._committed_batch_folder)
        except OSError as error:
            if error.errno not in _EXISTS_ERRNOS:
                raise

    def _publish_files(self) -> None:
        """Does nothing: readers of these batches read the folder to which the copy was renamed."""


def _lineage_prefix(lineage: TaskCheckpointLineage) -> str:
    """Connector, task and lineage as text: the beginning of the names of a lineage's folders and files."""
    return f"{safe_file_name(lineage.task.connector)}-{lineage.task.task}-{lineage.lineage_id}"


def _last_batch_folder(committed_batches_folder: Path) -> Path | None:
    """The folder of the newest committed batch in ``committed_batches_folder``, a lineage's folder of committed
    batches; None when it contains no batch or does not exist."""
    last_batch_id = last_batch_id_in_log(committed_batches_folder)
    return None if last_batch_id is None else committed_batches_folder / str(last_batch_id)


def _iter_files(folder: Path) -> Iterator[Path]:
    """The files in ``folder`` and its subfolders; none if ``folder`` does not exist, for example because another owner
    has moved all files.

    :raises OSError: when a folder cannot be listed. If the error were ignored, the files of that folder would count as
        moved.
    """

    def raise_unless_missing(error: OSError) -> None:
        if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
            raise error

    for parent, _, names in os.walk(folder, onerror=raise_unless_missing):
        yield from (Path(parent, name) for name in names)


def _name_of_other_layout(folder: Path, layout: FolderLayout) -> str | None:
    """The path, in ``folder``, of a file or partition folder that readers would see and that does not belong to
    ``layout``. None if there is none, and if the folder cannot be listed.

    Of the partition folders at one level only the first one is examined further. Folders without ``=`` in the name are
    not examined: readers do not see their files.
    """
    level_folder = folder
    for column in (*layout.partition_columns, None):
        try:
            with os.scandir(level_folder) as scan:
                entries = [(entry.name, entry.is_dir()) for entry in scan if not entry.name.startswith(("_", "."))]
        except OSError:
            return None
        partition_folders = sorted(name for name, is_folder in entries if is_folder and "=" in name)
        other_names = [
            name
            for name in partition_folders
            if column is None or unquote(name.partition("=")[0]).lower() != column.lower()
        ]
        other_names += [
            name for name, is_folder in entries if not is_folder and (column or not _has_format(name, layout.format))
        ]
        if other_names:
            return str((level_folder / min(other_names)).relative_to(folder))
        if not partition_folders:
            return None
        level_folder /= partition_folders[0]
    return None


def _has_format(file_name: str, format_: str) -> bool:
    """Whether the suffix of ``file_name`` is that of ``format_``, before the suffix of a codec if there is one:
    ``a.json``, ``a.json.gz``."""
    return file_name.endswith(f".{format_}") or Path(file_name).stem.endswith(f".{format_}")


def _move_files_and_remove_folder(source_folder: Path, target_folder: Path) -> None:
    """Move all files in ``source_folder``, a folder of a committed copy, to the same subfolders of ``target_folder``;
    then remove ``source_folder``. A file that another owner moves at the same time is skipped.

    :raises OSError: when a file cannot be moved.
    """
    while files := list(_iter_files(source_folder)):
        for file in files:
            target = target_folder / file.relative_to(source_folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            # Another owner has moved the file, and the lineage's marks may have been removed since; or a target folder
            # was removed just now: the next iteration creates it again.
            with suppress(FileNotFoundError, NotADirectoryError):
                try:
                    os.rename(file, target)
                except OSError as error:
                    if error.errno != errno.EXDEV:
                        raise
                    _move_across_mounts(file, target)
    for folder, _, _ in os.walk(source_folder, topdown=False):
        with suppress(OSError):  # Another owner removes it too.
            os.rmdir(folder)


def _move_across_mounts(file: Path, target: Path) -> None:
    """Move ``file`` to ``target``, a path on another mount, by a hidden copy beside ``target`` that is renamed. Another
    owner may move the same file at the same time.

    The hidden copy is created before the file is opened, and the owner that removes the file removes all hidden copies.
    So an owner that was suspended in between has no hidden copy left to rename.
    """
    # Without the file's suffix: readers that read hidden files too select files by suffix.
    hidden_prefix = f".{target.name}."
    hidden_copy = target.with_name(hidden_prefix + uuid.uuid4().hex)
    try:
        with hidden_copy.open("xb") as copy, file.open("rb") as source:
            shutil.copyfileobj(source, copy)
            copy.flush()
            os.fsync(copy.fileno())
        os.rename(hidden_copy, target)
    finally:
        hidden_copy.unlink(missing_ok=True)
    fsync_folder(target.parent)
    file.unlink(missing_ok=True)
    for leftover in target.parent.iterdir():
        if leftover.name.startswith(hidden_prefix):
            leftover.unlink(missing_ok=True)


def _device_of(path: Path) -> int:
    """The number of the device on which the folder ``path`` is or, if it does not exist, would be created."""
    while not path.exists():
        path = path.parent
    return path.stat().st_dev
