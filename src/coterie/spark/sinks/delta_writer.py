"""``DeltaWriter``: how one start of a task brings its batches into a Delta table."""

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
from coterie.spark.fence import FencedError
from coterie.spark.jars import missing
from coterie.spark.seams import Batch, Staged, TaskLineage
from coterie.spark.sinks import delta_spark
from coterie.spark.sinks.delta_columns import Layout, check_fit
from coterie.spark.sinks.delta_files import described, write_large, write_small
from coterie.spark.sinks.delta_spark import quoted
from coterie.spark.sinks.delta_table import Act, table_at
from coterie.spark.sinks.delta_target import DeltaTarget

log = logging.getLogger(__name__)

STAGING = "_coterie"
"""In the table's folder; readers and VACUUM pass over names that start with an underscore."""
SWEPT = "swept"
"""How a folder in staging is called that is being removed."""
MERGED_BYTES_MAX = 256 << 20
"""The largest table into which deltalake merges in this process: a merge may read all of it. Spark has larger ones."""


class DeltaWriter:
    """One start of one task. Batches come one after another."""

    def __init__(self, target: DeltaTarget, lineage: TaskLineage) -> None:
        self._target = target
        self._task = lineage.task
        self._table = table_at(target.path)
        self._application = f"{lineage.task}/{lineage.lineage}"
        self._folders = f"{safe_name(lineage.task.connector)}-{lineage.task.task}-{lineage.lineage}"

    def sweep(self) -> None:
        """Remove what earlier owners of this task have left in staging.

        One of them may still be writing. So its folder goes away whole, by a rename, and its mark with it: it commits
        no file of that folder any more.
        """
        for left in self._target.path.glob(f"{STAGING}/{self._folders}-*"):
            with suppress(FileNotFoundError):
                left.rename(left.with_name(f"{SWEPT}-{uuid.uuid4().hex}"))
        for swept in self._target.path.glob(f"{STAGING}/{SWEPT}-*"):
            shutil.rmtree(swept, ignore_errors=True)

    def stage(self, batch: Batch) -> Staged:
        """Write the batch so that a commit can bring it.

        :raises WorldError: when its rows do not fit into the table, or the table is absent or cannot be read.
        """
        layout = self.fitting(batch.rows.schema)
        if self._table.has(self._application, batch.batch_id):
            # The commit would look, too; without rows there is nothing to write until then.
            return StagedNothing()
        self._optimize(batch, layout)
        if why := self._why_spark(batch, layout):
            if lacking := missing(batch.rows.sparkSession, "delta"):
                raise WorldError(
                    f"Only Spark can write batch {batch.batch_id} to {self._target.where}: {why}. {lacking}"
                )
            return StagedForSpark(batch, self._target, self._application)
        if self._target.is_upsert:
            return self.stage_merge(batch.batch_id, layout, batch.rows.toArrow())

        def write(out: Path) -> None:
            if batch.is_small:
                write_small(batch.rows.toArrow(), out, layout.partition_columns)
            else:
                write_large(batch.rows, out, layout.partition_columns)

        return self.stage_files(batch.batch_id, layout, write)

    def stage_files(self, batch_id: int, layout: Layout, write: Callable[[Path], None]) -> "StagedFiles":
        """A batch that is appended; ``write`` makes its files in an empty folder."""
        folder = self._target.path / STAGING / f"{self._folders}-{uuid.uuid4().hex}"
        return StagedFiles(folder, layout, write, partial(self.commit, batch_id, layout))

    def stage_merge(self, batch_id: int, layout: Layout, rows: pa.Table) -> "StagedMerge":
        """A batch that is merged by key.

        :raises WorldError: when a key is null.
        """
        keys = self._target.key_columns
        if found := first_null(rows, keys):
            raise WorldError(
                f"{self._target.where}: batch {batch_id} of task {self._task}, row {found[0]} from 0: column "
                f"{found[1]} is null, and pk.fields names the column"
            )
        return StagedMerge(last_of_each(rows, keys), keys, partial(self.commit, batch_id, layout))

    def commit(self, batch_id: int, layout: Layout, act: Act) -> None:
        """See :meth:`Table.commit`."""
        self._table.commit(self._application, batch_id, layout, act)

    def fitting(self, rows: StructType) -> Layout:
        """The table's layout, into which rows of this schema fit; the table is created when that is wanted.

        :raises WorldError: when they do not fit, or there is no table.
        """
        for _ in range(2):
            if (layout := self._table.look()) is not None:
                check_fit(self._target.where, layout, rows, self._target.key_columns)
                return layout
            if not self._target.auto_create:
                raise WorldError(
                    f"There is no Delta table in {self._target.path}; create the table, or set auto.create=true"
                )
            self._table.create(rows, self._target.partition_columns)
        raise UnreachableError(f"Delta table {self._target.path} was removed as soon as it was created")

    def _why_spark(self, batch: Batch, layout: Layout) -> str | None:
        """Why only Spark's Delta can write the batch."""
        if layout.only_spark is not None or not self._target.is_upsert:
            return layout.only_spark
        if not batch.is_small:
            return "an upsert of so many rows does not fit into the driver's memory"
        if (size_bytes := self._table.size_bytes()) > MERGED_BYTES_MAX:
            return f"an upsert into a table of {size_bytes >> 20} MB does not fit into the driver's memory"
        return None

    def _optimize(self, batch: Batch, layout: Layout) -> None:
        """Make few large files of many small ones, if it is this batch's turn. A failure is no failure of the batch."""
        interval = self._target.optimize_interval
        if self._task.task != 0 or not interval or not batch.batch_id or batch.batch_id % interval:
            return
        try:
            if layout.only_spark is None:
                self._table.compact()
            else:
                delta_spark.compact(batch.rows.sparkSession, self._target.path)
        except (DeltaError, OSError, PySparkException, Py4JJavaError) as error:
            log.warning("%s could not be optimized: %s", self._target.where, str(error).strip().splitlines()[:1])


class StagedFiles:
    """Rows in files that a commit is still to add to the table."""

    def __init__(
        self, folder: Path, layout: Layout, write: Callable[[Path], None], commit: Callable[[Act], None]
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
            # Not a refusal: the next start may find the folder in order.
            raise OSError(error.errno, f"Nothing can be written to {folder.parent}: {error.strerror}") from None
        try:
            write(out)
            self._files = list(described(out, layout.columns))
        except BaseException:
            self.drop()
            raise

    def put_in_place(self) -> None:
        """Add the files to the table, unless the table has the batch.

        :raises FencedError: when another owner has swept the files away.
        :raises UnreachableError: when the commit fails.
        """
        # A sweep takes the mark along. Spark, which writes on after a sweep, makes a part of the files anew.
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
        table.create_write_transaction(
            [action for _, action in self._files],
            mode="append",
            schema=table.schema(),
            partition_by=list(self._layout.partition_columns),
            commit_properties=properties,
        )

    def drop(self) -> None:
        """Remove what was not moved. What was moved may be in a commit, despite an error; else VACUUM removes it."""
        shutil.rmtree(self._folder, ignore_errors=True)


class StagedMerge:
    """The last row of each key, still to be merged into the table."""

    def __init__(self, rows: pa.Table, key_columns: Sequence[str], commit: Callable[[Act], None]) -> None:
        self._rows = rows
        self._key_columns = key_columns
        self._commit = commit

    def put_in_place(self) -> None:
        """Merge the rows, unless the table has the batch.

        :raises UnreachableError: when the commit fails.
        """
        if self._rows.num_rows:
            self._commit(self._merge)

    def _merge(self, table: DeltaTable, properties: CommitProperties) -> None:
        columns = {f"target.{quoted(name)}": f"source.{quoted(name)}" for name in self._rows.column_names}
        keys = {f"target.{quoted(name)}": f"source.{quoted(name)}" for name in self._key_columns}
        merger = table.merge(
            self._rows,
            " AND ".join(f"{target} = {source}" for target, source in keys.items()),
            source_alias="source",
            target_alias="target",
            # The rows are in memory. So their smallest and largest keys tell which files have to be read.
            streamed_exec=False,
            commit_properties=properties,
        )
        if changes := {target: source for target, source in columns.items() if target not in keys}:
            merger = merger.when_matched_update(changes)
        merger.when_not_matched_insert(columns).execute()

    def drop(self) -> None:
        """There is no copy."""


class StagedForSpark:
    """A batch that Spark's Delta is still to write: it has no step between writing and committing."""

    def __init__(self, batch: Batch, target: DeltaTarget, application: str) -> None:
        self._batch = batch
        self._target = target
        self._application = application

    def put_in_place(self) -> None:
        """Append or merge the rows, unless the table has the batch.

        :raises WorldError: when Spark refuses.
        """
        delta_spark.write(
            self._batch.rows, self._target.path, self._application, self._batch.batch_id, self._target.key_columns
        )

    def drop(self) -> None:
        """There is no copy."""


class StagedNothing:
    """A batch that the table has."""

    def put_in_place(self) -> None:
        """The first copy counts."""

    def drop(self) -> None:
        """There is no copy."""


def first_null(rows: pa.Table, columns: Sequence[str]) -> tuple[int, str] | None:
    """The place and the column of the first null in ``columns``."""
    found = [
        (pyarrow.compute.index(rows.column(name).is_null(), True).as_py(), name)
        for name in columns
        if rows.column(name).null_count
    ]
    return min(found, default=None)


def last_of_each(rows: pa.Table, key_columns: Sequence[str]) -> pa.Table:
    """Of the rows with equal values in ``key_columns`` the last one, each with its time zone as UTC."""
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
