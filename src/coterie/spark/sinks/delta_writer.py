"""``DeltaWriter``: writes the batches of one start of a task to a Delta table."""

import logging
import shutil
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import DeltaError
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql.types import StructType

from coterie.nouns.errors import UnreachableError, WorldError
from coterie.spark.checkpoint import safe_file_name
from coterie.spark.failures import error_message
from coterie.spark.fence import FencedError
from coterie.spark.jars import missing_jars_message
from coterie.spark.record_columns import quote_name
from coterie.spark.seams import Batch, StagedBatch, TaskCheckpointLineage
from coterie.spark.sinks import delta_spark
from coterie.spark.sinks.delta_columns import DeltaTableLayout, check_rows_and_upsert_fit
from coterie.spark.sinks.delta_files import (
    files_to_rename_with_add_actions,
    write_parquet_by_arrow,
    write_parquet_by_spark,
)
from coterie.spark.sinks.delta_table import CommitAction, shared_table_at
from coterie.spark.sinks.delta_target import DeltaTarget

log = logging.getLogger(__name__)

STAGING_FOLDER = "_coterie"
"""Name of the staging folder in the table's folder. Readers and VACUUM ignore names that start with an underscore."""
REMOVED_PREFIX = "swept"
"""Prefix of the name to which a folder in the staging folder is renamed before it is deleted."""
DELTALAKE_MERGE_TABLE_BYTES_MAX = 256 << 20
"""The largest size of a table, in bytes, into which deltalake merges an upsert in this process: a merge may read the
whole table. Spark merges into larger tables."""


class DeltaWriter:
    """Writes the batches of one start of one task. Batches come one after another."""

    def __init__(self, target: DeltaTarget, lineage: TaskCheckpointLineage) -> None:
        self._target = target
        self._task = lineage.task
        self._table = shared_table_at(target.path)
        self._application_id = f"{lineage.task}/{lineage.lineage_id}"
        self._staging_prefix = f"{safe_file_name(lineage.task.connector)}-{lineage.task.task}-{lineage.lineage_id}"

    def remove_earlier_staged_files(self) -> None:
        """Remove the staged files of earlier owners of this task: the files of batches that are not committed.

        An earlier owner may still be writing. So the folder of each of its batches, which contains a mark (an empty
        file), is renamed before it is deleted. The earlier owner then finds neither the mark nor the files, and its
        commit raises FencedError.
        """
        for staged_folder in self._target.path.glob(f"{STAGING_FOLDER}/{self._staging_prefix}-*"):
            with suppress(FileNotFoundError):
                staged_folder.rename(staged_folder.with_name(f"{REMOVED_PREFIX}-{uuid.uuid4().hex}"))
        for folder in self._target.path.glob(f"{STAGING_FOLDER}/{REMOVED_PREFIX}-*"):
            shutil.rmtree(folder, ignore_errors=True)

    def stage(self, batch: Batch) -> StagedBatch:
        """Prepare the batch for its commit.

        A batch that deltalake appends is written to files in the staging folder. The rows of a batch that deltalake
        upserts are computed, and stay in memory. A batch that only Spark's Delta can write is computed and written by
        the commit. Nothing is prepared for a batch that the table has. With auto.create=true a missing table is created
        first. When the batch's number is a multiple of ``optimize_interval_batches`` and not 0, task 0 first merges
        small files of the table.

        :raises WorldError: when the rows do not fit into the table, a key is null, there is no table, or jars for
            Spark's Delta are missing.
        :raises UnreachableError, OSError: see :meth:`SharedDeltaTable.read_newest_layout` and
            :meth:`SharedDeltaTable.create_if_absent`.
        :raises OSError: when no file can be written to the staging folder.
        :raises PySparkException, Py4JError: when Spark cannot compute or write the rows.
        """
        layout = self.check_or_create_table(batch.rows.schema)
        if self._table.has_batch(self._application_id, batch.batch_id):
            # The commit checks this too; checked here, the rows need not be computed and written.
            return AlreadyCommittedBatch()
        self._merge_small_files_if_due(batch, layout)
        if reason := self._spark_only_reason(batch, layout):
            if missing_jars := missing_jars_message(batch.rows.sparkSession, "delta"):
                raise WorldError(
                    f"Only Spark can write batch {batch.batch_id} to {self._target.description}: {reason}. "
                    f"{missing_jars}"
                )
            return DirectDeltaWrite(batch, self._target, self._application_id)
        if self._target.is_upsert:
            return self.stage_merge(batch.batch_id, layout, batch.rows.toArrow())

        def write(folder: Path) -> None:
            if batch.is_small:
                write_parquet_by_arrow(batch.rows.toArrow(), folder, layout.partition_columns)
            else:
                write_parquet_by_spark(batch.rows, folder, layout.partition_columns)

        return self.stage_files(batch.batch_id, layout, write)

    def stage_files(
        self, batch_id: int, layout: DeltaTableLayout, write_files: Callable[[Path], None]
    ) -> "StagedFiles":
        """Stage a batch that is appended. ``write_files`` receives an empty folder and writes the batch's files into
        it.

        :raises OSError: when no file can be written to the staging folder.
        """
        folder = self._target.path / STAGING_FOLDER / f"{self._staging_prefix}-{uuid.uuid4().hex}"
        return StagedFiles(folder, layout, write_files, partial(self.commit, batch_id, layout))

    def stage_merge(self, batch_id: int, layout: DeltaTableLayout, rows: pa.Table) -> "StagedMerge":
        """Stage ``rows``, a batch that is merged by key; of several rows with one key only the last one is staged.

        :raises WorldError: when a key is null.
        """
        keys = self._target.key_columns
        if null_position := find_first_row_with_null(rows, keys):
            raise WorldError(
                f"{self._target.description}: batch {batch_id} of task {self._task}, row {null_position[0]} (counted "
                f"from 0): column {null_position[1]} is null, and the column is in pk.fields"
            )
        return StagedMerge(last_row_of_each_key(rows, keys), keys, partial(self.commit, batch_id, layout))

    def commit(self, batch_id: int, layout: DeltaTableLayout, action: CommitAction) -> None:
        """Commit a batch by ``action``, unless the table has the batch: :meth:`SharedDeltaTable.commit`. ``layout`` is
        the table's layout for which the batch was written."""
        self._table.commit(self._application_id, batch_id, layout, action)

    def check_or_create_table(self, rows: StructType) -> DeltaTableLayout:
        """The table's layout, after a check that rows of the schema ``rows`` fit into the table. With auto.create=true
        a missing table is created for ``rows``.

        :raises WorldError: when the rows do not fit, or there is no table.
        :raises UnreachableError, OSError: see :meth:`SharedDeltaTable.read_newest_layout` and
            :meth:`SharedDeltaTable.create_if_absent`.
        """
        for _ in range(2):
            if (layout := self._table.read_newest_layout()) is not None:
                check_rows_and_upsert_fit(self._target.description, layout, rows, self._target.key_columns)
                return layout
            if not self._target.creates_missing_table:
                raise WorldError(
                    f"There is no Delta table in {self._target.path}; create the table, or set auto.create=true"
                )
            self._table.create_if_absent(rows, self._target.partition_columns)
        raise UnreachableError(
            f"Delta table {self._target.path} was removed twice, directly after it had been created for a batch; "
            "find out what removes it. The batch is tried again while errors.retry.timeout and errors.restart.max allow"
        )

    def _spark_only_reason(self, batch: Batch, layout: DeltaTableLayout) -> str | None:
        """The reason why only Spark's Delta can write the batch, for messages; None when deltalake can."""
        if layout.spark_only_reason is not None or not self._target.is_upsert:
            return layout.spark_only_reason
        if not batch.is_small:
            return "an upsert of so many rows does not fit into the driver's memory"
        if (size_bytes := self._table.table_size_bytes()) > DELTALAKE_MERGE_TABLE_BYTES_MAX:
            return f"an upsert into a table of {size_bytes >> 20} MB does not fit into the driver's memory"
        return None

    def _merge_small_files_if_due(self, batch: Batch, layout: DeltaTableLayout) -> None:
        """Merge the table's small files into large ones if this is task 0, and the batch's number is a multiple of
        ``optimize_interval_batches`` and not 0. A failure is only logged."""
        interval = self._target.optimize_interval_batches
        if self._task.task != 0 or not interval or not batch.batch_id or batch.batch_id % interval:
            return
        try:
            if layout.spark_only_reason is None:
                self._table.merge_small_files()
            else:
                delta_spark.merge_small_files(batch.rows.sparkSession, self._target.path)
        except (DeltaError, OSError, PySparkException, Py4JJavaError) as error:
            log.warning(
                "%s: small files could not be merged: %s. The next attempt follows after %d batches",
                self._target.description,
                error_message(error),
                interval,
            )


class StagedFiles:
    """A batch in files in its staging folder, not yet added to the table. The constructor creates the folder and calls
    ``write_files``, which writes the files into a folder inside it."""

    def __init__(
        self,
        staging_folder: Path,
        layout: DeltaTableLayout,
        write_files: Callable[[Path], None],
        commit_action: Callable[[CommitAction], None],
    ) -> None:
        assert layout.columns is not None, "deltalake can read a table that it writes to"
        self._staging_folder = staging_folder
        self._mark_file = staging_folder / "mark"
        self._layout = layout
        self._commit_action = commit_action
        output_folder = staging_folder / "out"
        try:
            output_folder.mkdir(parents=True)
            self._mark_file.touch()
        except OSError as error:
            # An OSError, not a WorldError: the cause may be removed before the next start.
            raise OSError(error.errno, f"Nothing can be written to {staging_folder.parent}: {error.strerror}") from None
        try:
            write_files(output_folder)
            self._files = list(files_to_rename_with_add_actions(output_folder, layout.columns))
        except BaseException:
            self.clean_up()
            raise

    def commit(self) -> None:
        """Move the files into the table's folder, and commit them unless the table has the batch. Without files nothing
        is committed.

        :raises FencedError: when another owner has removed the files.
        :raises UnreachableError, OSError: see :meth:`SharedDeltaTable.commit`.
        :raises OSError: when a file cannot be moved.
        """
        # A take-over renames the folder with the mark. The files alone prove nothing: if Spark was still writing, it
        # creates a part of them again after the take-over.
        if not self._mark_file.exists():
            raise FencedError
        if not self._files:
            return
        for path, action in self._files:
            try:
                path.rename(self._staging_folder.parents[1] / action.path)
            except FileNotFoundError:
                raise FencedError from None
        self._commit_action(self._add_files)

    def _add_files(self, table: DeltaTable, properties: CommitProperties) -> None:
        """Add the files in one commit: a :data:`CommitAction`."""
        table.create_write_transaction(
            [action for _, action in self._files],
            mode="append",
            schema=table.schema(),
            partition_by=list(self._layout.partition_columns),
            commit_properties=properties,
        )

    def clean_up(self) -> None:
        """Remove the staged files that were not moved. Moved files stay, since they may be in a commit even after an
        error; VACUUM removes those that are in no commit."""
        shutil.rmtree(self._staging_folder, ignore_errors=True)


class StagedMerge:
    """A batch that is merged by key: the last row of each key, in memory, not yet merged into the table."""

    def __init__(
        self, rows: pa.Table, key_columns: Sequence[str], commit_action: Callable[[CommitAction], None]
    ) -> None:
        self._rows = rows
        self._key_columns = key_columns
        self._commit_action = commit_action

    def commit(self) -> None:
        """Merge the rows, unless the table has the batch. Without rows nothing is committed.

        :raises UnreachableError, OSError: see :meth:`SharedDeltaTable.commit`.
        """
        if self._rows.num_rows:
            self._commit_action(self._merge_rows)

    def _merge_rows(self, table: DeltaTable, properties: CommitProperties) -> None:
        """Merge the rows in one commit: a :data:`CommitAction`."""
        columns = {f"target.{quote_name(name)}": f"source.{quote_name(name)}" for name in self._rows.column_names}
        keys = {f"target.{quote_name(name)}": f"source.{quote_name(name)}" for name in self._key_columns}
        merger = table.merge(
            self._rows,
            " AND ".join(f"{target} = {source}" for target, source in keys.items()),
            source_alias="source",
            target_alias="target",
            # The rows are in memory, so deltalake selects the files to read by the smallest and largest keys.
            streamed_exec=False,
            commit_properties=properties,
        )
        if changes := {target: source for target, source in columns.items() if target not in keys}:
            merger = merger.when_matched_update(changes)
        merger.when_not_matched_insert(columns).execute()

    def clean_up(self) -> None:
        """Does nothing: the rows are only in memory."""


class DirectDeltaWrite:
    """A batch that Spark's Delta writes and commits in one step: nothing is staged."""

    def __init__(self, batch: Batch, target: DeltaTarget, application_id: str) -> None:
        self._batch = batch
        self._target = target
        self._application_id = application_id

    def commit(self) -> None:
        """Append or merge the rows, unless the table has the batch.

        :raises UnreachableError, WorldError: see :func:`coterie.spark.sinks.delta_spark.append_or_upsert_once`.
        """
        delta_spark.append_or_upsert_once(
            self._batch.rows, self._target.path, self._application_id, self._batch.batch_id, self._target.key_columns
        )

    def clean_up(self) -> None:
        """Does nothing: there is no staged copy."""


class AlreadyCommittedBatch:
    """A staged batch that the table already has: there is nothing to commit."""

    def commit(self) -> None:
        """Does nothing: the batch is committed."""

    def clean_up(self) -> None:
        """Does nothing: there is no staged copy."""


def find_first_row_with_null(rows: pa.Table, columns: Sequence[str]) -> tuple[int, str] | None:
    """The first row with a null in ``columns``: its number in ``rows``, from 0, and the column. None when there is no
    null."""
    null_positions = [
        (pyarrow.compute.index(rows.column(name).is_null(), True).as_py(), name)
        for name in columns
        if rows.column(name).null_count
    ]
    return min(null_positions, default=None)


def last_row_of_each_key(rows: pa.Table, key_columns: Sequence[str]) -> pa.Table:
    """The last row of each key: of all rows with equal values in ``key_columns``, only the last one. The order of the
    rows may change. Timestamps with another time zone than UTC become timestamps in UTC."""
    position_column = "__coterie_position"
    positions = pa.array(range(rows.num_rows), pa.int64())
    last_positions = (
        rows.append_column(position_column, positions).group_by(list(key_columns)).aggregate([(position_column, "max")])
    )
    last_rows = rows.take(last_positions.column(f"{position_column}_max"))
    fields = [
        field.with_type(pa.timestamp(field.type.unit, "UTC"))
        if pa.types.is_timestamp(field.type) and field.type.tz is not None
        else field
        for field in last_rows.schema
    ]
    return last_rows.cast(pa.schema(fields))
