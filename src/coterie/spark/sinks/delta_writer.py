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
from coterie.spark.checkpoint import safe_name
from coterie.spark.failures import message_of
from coterie.spark.fence import FencedError
from coterie.spark.jars import missing_package_message
from coterie.spark.seams import Batch, StagedBatch, TaskLineage
from coterie.spark.sinks import delta_spark
from coterie.spark.sinks.delta_columns import DeltaTableLayout, check_fit
from coterie.spark.sinks.delta_files import described, write_large, write_small
from coterie.spark.sinks.delta_spark import quoted
from coterie.spark.sinks.delta_table import CommitAction, shared_table_at
from coterie.spark.sinks.delta_target import DeltaTarget

log = logging.getLogger(__name__)

STAGING = "_coterie"
"""Name of the staging folder in the table's folder. Readers and VACUUM ignore names that start with an underscore."""
SWEPT = "swept"
"""Prefix of the name that a folder in the staging folder gets before it is deleted."""
MERGED_BYTES_MAX = 256 << 20
"""The largest size of a table, in bytes, into which deltalake merges in this process, since a merge may read the whole
table. Spark merges into larger tables."""


class DeltaWriter:
    """Writes the batches of one start of one task. Batches come one after another."""

    def __init__(self, target: DeltaTarget, lineage: TaskLineage) -> None:
        self._target = target
        self._task = lineage.task
        self._table = shared_table_at(target.path)
        self._application = f"{lineage.task}/{lineage.lineage}"
        self._folders = f"{safe_name(lineage.task.connector)}-{lineage.task.task}-{lineage.lineage}"

    def sweep(self) -> None:
        """Remove the staged files of earlier owners of this task.

        An earlier owner may still be writing. So the folder of each of its batches, which contains a mark (an empty
        file), is renamed before it is deleted: the earlier owner finds neither the mark nor the files, and commits
        nothing.
        """
        for left in self._target.path.glob(f"{STAGING}/{self._folders}-*"):
            with suppress(FileNotFoundError):
                left.rename(left.with_name(f"{SWEPT}-{uuid.uuid4().hex}"))
        for swept in self._target.path.glob(f"{STAGING}/{SWEPT}-*"):
            shutil.rmtree(swept, ignore_errors=True)

    def stage(self, batch: Batch) -> StagedBatch:
        """Prepare the batch for its commit. Only the files of an append are written here. The commit writes upserts,
        and batches that only Spark's Delta can write. A batch that the table has is not written. Before every
        ``optimize_interval``-th batch, task 0 merges small files of the table.

        :raises WorldError: when the rows do not fit into the table, a key is null, there is no table, or jars for
            Spark's Delta are missing.
        :raises UnreachableError, OSError: see :meth:`SharedDeltaTable.refresh`.
        :raises OSError: when no file can be written to the staging folder.
        :raises PySparkException, Py4JError: when Spark cannot compute or write the rows.
        """
        layout = self.fitting(batch.rows.schema)
        if self._table.has_batch(self._application, batch.batch_id):
            # The commit checks this too; checked here, the rows need not be computed and written.
            return AlreadyCommitted()
        self._optimize(batch, layout)
        if why := self._why_spark(batch, layout):
            if lacking := missing_package_message(batch.rows.sparkSession, "delta"):
                raise WorldError(
                    f"Only Spark can write batch {batch.batch_id} to {self._target.where}: {why}. {lacking}"
                )
            return DirectDeltaWrite(batch, self._target, self._application)
        if self._target.is_upsert:
            return self.stage_merge(batch.batch_id, layout, batch.rows.toArrow())

        def write(out: Path) -> None:
            if batch.is_small:
                write_small(batch.rows.toArrow(), out, layout.partition_columns)
            else:
                write_large(batch.rows, out, layout.partition_columns)

        return self.stage_files(batch.batch_id, layout, write)

    def stage_files(self, batch_id: int, layout: DeltaTableLayout, write: Callable[[Path], None]) -> "StagedFiles":
        """Stage a batch that is appended. ``write`` receives an empty folder and writes the batch's files into it.

        :raises OSError: when no file can be written to the staging folder.
        """
        folder = self._target.path / STAGING / f"{self._folders}-{uuid.uuid4().hex}"
        return StagedFiles(folder, layout, write, partial(self.commit, batch_id, layout))

    def stage_merge(self, batch_id: int, layout: DeltaTableLayout, rows: pa.Table) -> "StagedMerge":
        """Stage ``rows``, a batch that is merged by key: of each key only the last row.

        :raises WorldError: when a key is null.
        """
        keys = self._target.key_columns
        if found := first_null(rows, keys):
            raise WorldError(
                f"{self._target.where}: batch {batch_id} of task {self._task}, row {found[0]} (counted from 0): column "
                f"{found[1]} is null, and the column is in pk.fields"
            )
        return StagedMerge(last_of_each(rows, keys), keys, partial(self.commit, batch_id, layout))

    def commit(self, batch_id: int, layout: DeltaTableLayout, action: CommitAction) -> None:
        """See :meth:`SharedDeltaTable.commit`."""
        self._table.commit(self._application, batch_id, layout, action)

    def fitting(self, rows: StructType) -> DeltaTableLayout:
        """The table's layout, after a check that rows of the schema ``rows`` fit into the table. With auto.create=true
        a missing table is created for ``rows``.

        :raises WorldError: when the rows do not fit, or there is no table.
        :raises UnreachableError, OSError: see :meth:`SharedDeltaTable.refresh` and :meth:`SharedDeltaTable.create`.
        """
        for _ in range(2):
            if (layout := self._table.refresh()) is not None:
                check_fit(self._target.where, layout, rows, self._target.key_columns)
                return layout
            if not self._target.auto_create:
                raise WorldError(
                    f"There is no Delta table in {self._target.path}; create the table, or set auto.create=true"
                )
            self._table.create(rows, self._target.partition_columns)
        raise UnreachableError(f"Delta table {self._target.path} was removed directly after this task had created it")

    def _why_spark(self, batch: Batch, layout: DeltaTableLayout) -> str | None:
        """The reason why only Spark's Delta can write the batch, for messages; None when deltalake can."""
        if layout.spark_only_reason is not None or not self._target.is_upsert:
            return layout.spark_only_reason
        if not batch.is_small:
            return "an upsert of so many rows does not fit into the driver's memory"
        if (size_bytes := self._table.size_bytes()) > MERGED_BYTES_MAX:
            return f"an upsert into a table of {size_bytes >> 20} MB does not fit into the driver's memory"
        return None

    def _optimize(self, batch: Batch, layout: DeltaTableLayout) -> None:
        """If this is task 0, and the batch's number is a multiple of ``optimize_interval`` and not 0: merge the table's
        small files into large ones. A failure is only logged."""
        interval = self._target.optimize_interval
        if self._task.task != 0 or not interval or not batch.batch_id or batch.batch_id % interval:
            return
        try:
            if layout.spark_only_reason is None:
                self._table.compact()
            else:
                delta_spark.compact(batch.rows.sparkSession, self._target.path)
        except (DeltaError, OSError, PySparkException, Py4JJavaError) as error:
            log.warning("%s: small files could not be merged: %s", self._target.where, message_of(error))


class StagedFiles:
    """A batch in files in the staging folder, not yet added to the table. The constructor creates the folder and calls
    ``write``, which writes the files into it."""

    def __init__(
        self,
        folder: Path,
        layout: DeltaTableLayout,
        write: Callable[[Path], None],
        commit: Callable[[CommitAction], None],
    ) -> None:
        assert layout.columns is not None, "deltalake can read a table that it writes to"
        self._folder = folder
        self._mark = folder / "mark"
        self._layout = layout
        self._commit = commit
        out = folder / "out"
        try:
            out.mkdir(parents=True)
            self._mark.touch()
        except OSError as error:
            # An OSError, not a WorldError: the cause may be removed before the next start.
            raise OSError(error.errno, f"Nothing can be written to {folder.parent}: {error.strerror}") from None
        try:
            write(out)
            self._files = list(described(out, layout.columns))
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
        if not self._mark.exists():
            raise FencedError
        if not self._files:
            return
        for path, action in self._files:
            try:
                path.rename(self._folder.parents[1] / action.path)
            except FileNotFoundError:
                raise FencedError from None
        self._commit(self._add)

    def _add(self, table: DeltaTable, properties: CommitProperties) -> None:
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
        shutil.rmtree(self._folder, ignore_errors=True)


class StagedMerge:
    """The last row of each key of a batch, not yet merged into the table."""

    def __init__(self, rows: pa.Table, key_columns: Sequence[str], commit: Callable[[CommitAction], None]) -> None:
        self._rows = rows
        self._key_columns = key_columns
        self._commit = commit

    def commit(self) -> None:
        """Merge the rows, unless the table has the batch. Without rows nothing is committed.

        :raises UnreachableError, OSError: see :meth:`SharedDeltaTable.commit`.
        """
        if self._rows.num_rows:
            self._commit(self._merge)

    def _merge(self, table: DeltaTable, properties: CommitProperties) -> None:
        """Merge the rows in one commit: a :data:`CommitAction`."""
        columns = {f"target.{quoted(name)}": f"source.{quoted(name)}" for name in self._rows.column_names}
        keys = {f"target.{quoted(name)}": f"source.{quoted(name)}" for name in self._key_columns}
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

    def __init__(self, batch: Batch, target: DeltaTarget, application: str) -> None:
        self._batch = batch
        self._target = target
        self._application = application

    def commit(self) -> None:
        """Append or merge the rows, unless the table has the batch.

        :raises UnreachableError, WorldError: see :func:`coterie.spark.sinks.delta_spark.write`.
        """
        delta_spark.write(
            self._batch.rows, self._target.path, self._application, self._batch.batch_id, self._target.key_columns
        )

    def clean_up(self) -> None:
        """Does nothing: there is no staged copy."""


class AlreadyCommitted:
    """A batch that the table already has."""

    def commit(self) -> None:
        """Does nothing: the batch is committed."""

    def clean_up(self) -> None:
        """Does nothing: there is no staged copy."""


def first_null(rows: pa.Table, columns: Sequence[str]) -> tuple[int, str] | None:
    """The first row with a null in ``columns``: its number in ``rows``, from 0, and the column. None when there is no
    null."""
    found = [
        (pyarrow.compute.index(rows.column(name).is_null(), True).as_py(), name)
        for name in columns
        if rows.column(name).null_count
    ]
    return min(found, default=None)


def last_of_each(rows: pa.Table, key_columns: Sequence[str]) -> pa.Table:
    """The last row of each key: of all rows with equal values in ``key_columns``, only the last one. The order of the
    rows may change. Timestamps with another time zone than UTC become timestamps in UTC."""
    position = "__coterie_position"
    places = pa.array(range(rows.num_rows), pa.int64())
    last = rows.append_column(position, places).group_by(list(key_columns)).aggregate([(position, "max")])
    kept = rows.take(last.column(f"{position}_max"))
    fields = [
        field.with_type(pa.timestamp(field.type.unit, "UTC"))
        if pa.types.is_timestamp(field.type) and field.type.tz is not None
        else field
        for field in kept.schema
    ]
    return kept.cast(pa.schema(fields))
