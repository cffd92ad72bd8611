"""``SharedDeltaTable``: a Delta table, read and written with deltalake. A commit has a batch's rows and its number.

Theory of operation. Delta's log has an action ``txn``: an application's id and a version. The application is one
lineage of one task (of its checkpoint), the version is the number of the batch. These are the steps of a commit::

    update the snapshot
    if the last version of the application in this snapshot >= batch: the table has the batch; stop
    commit file actions and txn as the version of the table that follows this snapshot
    if another commit has that version: repeat from the start

The check and the commit use one snapshot, and deltalake must not retry a commit itself (``max_commit_retries=0``): then
the commit fails if any other commit came after the snapshot. So if a task has two owners, for example one that was
frozen and resumes, only the first of them commits a batch. Delta itself does not compare versions.

The tasks of this process share one ``SharedDeltaTable`` for each path: the list of a table's files is in memory once,
and these tasks commit one after another, so that no commit fails because of a commit of another of these tasks.
"""

import errno
import logging
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias
from weakref import WeakValueDictionary

import pyarrow as pa
import pyarrow.compute
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from pyspark.sql.types import StructType

from coterie.nouns.errors import UnreachableError
from coterie.spark.sinks.delta_columns import DeltaTableLayout, new_table_schema_json
from coterie.spark.sinks.delta_target import LOG_FOLDER

log = logging.getLogger(__name__)

CHECKPOINT_INTERVAL = "10"
"""Number of commits between checkpoints of the log of a new table: Spark's default. With deltalake's default, 100, a
commit costs 1.7 times the CPU, since each commit reads the log from the last checkpoint on."""

CommitAction: TypeAlias = Callable[[DeltaTable, CommitProperties], None]
"""Makes one commit on top of the table's snapshot. The given properties must be those of the commit: they contain the
batch's ``txn``."""

COMMIT_TIMEOUT_S = 120
"""How long :meth:`SharedDeltaTable.commit` retries while other commits come first, and how long a task waits for the
table's lock: seconds."""
FIRST_RETRY_DELAY_MAX_S, RETRY_DELAY_MAX_S = 0.05, 2.0
"""Longest pauses before the first and before later retries of a commit, in seconds: a commit of another process takes
time, too. A pause is random; its longest value doubles with each retry, up to :data:`RETRY_DELAY_MAX_S`."""


class SharedDeltaTable:
    """The Delta table at ``path``. The tasks of this process share one object (:func:`shared_table_at`). Nothing is
    created or committed twice: a table that exists, or a batch that the table has, is left as it is. ``has_batch`` and
    ``table_size_bytes`` are about the version that :meth:`read_newest_layout` has read last. Safe on any thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.RLock()
        """Held from :meth:`read_newest_layout` to the commit on top of its snapshot, and not between two attempts of a
        commit."""
        self._table: DeltaTable | None = None
        self._log_inode = 0

    def read_newest_layout(self) -> DeltaTableLayout | None:
        """Read the table's log, and return the layout of the newest version; None when there is no table. If deltalake
        cannot read the table, the layout has no columns, and ``spark_only_reason`` is deltalake's message.

        :raises UnreachableError: when the server of the file system cannot be reached, or other tasks of this process
            hold the table's lock for :data:`COMMIT_TIMEOUT_S`.
        :raises OSError: when a file of the log cannot be read for another reason.
        """
        with self._hold_lock():
            try:
                table = self._update_snapshot()
            except TableNotFoundError:
                self._table = None
                return None
            except DeltaError as error:
                if self._table is not None:
                    # A cleanup of the log may have deleted files that the snapshot needs: read the whole log again.
                    self._table = None
                    return self.read_newest_layout()
                return DeltaTableLayout(
                    columns=None,
                    partition_columns=(),
                    is_append_only=False,
                    spark_only_reason=delta_error_message(error),
                )
            except OSError as error:
                self._table = None
                raise make_task_error(f"The log of Delta table {self.path} cannot be read", error) from error
            metadata, protocol = table.metadata(), table.protocol()
            return DeltaTableLayout.of(
                schema=table.schema().to_json(),
                partition_columns=metadata.partition_columns,
                configuration=metadata.configuration,
                writer_version=protocol.min_writer_version,
                writer_features=protocol.writer_features or (),
            )

    def _update_snapshot(self) -> DeltaTable:
        """The table with the snapshot of its newest version.

        :raises TableNotFoundError: when there is no table.
        :raises DeltaError, OSError: when deltalake cannot read the table.
        """
        folder = self.path / LOG_FOLDER
        try:
            inode = folder.stat().st_ino
        except FileNotFoundError:
            raise TableNotFoundError from None
        table = self._table
        # A table that was removed and created again has another log; it must not be taken for a later version.
        if table is None or inode != self._log_inode or not (folder / f"{table.version():020}.json").exists():
            table = DeltaTable(str(self.path))
            self._table, self._log_inode = table, inode
        else:
            table.update_incremental()
        return table

    def create_if_absent(self, rows: StructType, partition_columns: tuple[str, ...]) -> None:
        """Create the table for ``rows``, partitioned by ``partition_columns``, unless the table exists: another task
        may create it at the same time.

        :raises WorldError: when no Delta table can have such columns (:func:`new_table_schema_json`).
        :raises UnreachableError: when the server of the file system cannot be reached; see also
            :meth:`read_newest_layout`.
        :raises OSError: when the table cannot be created for another reason.
        """
        schema = Schema.from_json(new_table_schema_json(rows, partition_columns))
        # If deltalake retried a creation that came second, this would change the table's schema in its version 1.
        commit_properties = CommitProperties(max_commit_retries=0)
        try:
            DeltaTable.create(
                str(self.path),
                schema,
                mode="ignore",
                partition_by=list(partition_columns),
                configuration={"delta.checkpointInterval": CHECKPOINT_INTERVAL},
                commit_properties=commit_properties,
            )
        except (DeltaError, OSError) as error:
            if self.read_newest_layout() is None:
                raise make_task_error(f"Delta table {self.path} cannot be created", error) from error

    def has_batch(self, application_id: str, batch_id: int) -> bool:
        """Whether the table had the batch, or a later one of ``application_id``, at the last
        :meth:`read_newest_layout`. ``application_id`` identifies a task and the contents of its checkpoint, in which
        batches are numbered from 0.

        :raises UnreachableError: when other tasks of this process hold the table's lock for :data:`COMMIT_TIMEOUT_S`.
        """
        with self._hold_lock():
            return self._table is not None and _snapshot_has_batch(self._table, application_id, batch_id)

    def commit(self, application_id: str, batch_id: int, layout: DeltaTableLayout, action: CommitAction) -> None:
        """Call ``action``, which commits the batch, unless the table has the batch. After a conflict with another
        commit, call ``action`` again. ``layout`` is the table's layout for which the batch was written.

        :raises UnreachableError: when the table now has another layout or was removed, other commits come first for
            :data:`COMMIT_TIMEOUT_S`, or the server of the file system cannot be reached; see also
            :meth:`read_newest_layout`.
        :raises OSError: when the commit fails for another reason.
        """
        deadline = time.monotonic() + COMMIT_TIMEOUT_S
        failure: Exception | None = None
        pause_s = FIRST_RETRY_DELAY_MAX_S
        while True:
            with self._hold_lock():
                newest_layout = self.read_newest_layout()
                table = self._table
                # A commit that raised an error may be in the table, for example if only the log's checkpoint after it
                # failed.
                if table is not None and _snapshot_has_batch(table, application_id, batch_id):
                    return
                if table is None or newest_layout != layout:
                    raise UnreachableError(
                        f"Delta table {self.path} was changed or removed while batch {batch_id} was written. "
                        "Another attempt writes the batch to the table as it is then"
                    )
                if failure is not None and (not _is_commit_conflict(failure) or time.monotonic() > deadline):
                    message = f"Delta table {self.path}: the commit of batch {batch_id} failed"
                    raise make_task_error(message, failure) from failure
                transaction = Transaction(application_id, batch_id, time.time_ns() // 1_000_000)
                try:
                    action(table, CommitProperties(max_commit_retries=0, app_transactions=[transaction]))
                    return
                except (DeltaError, OSError) as error:
                    failure = error
            if _is_commit_conflict(failure):
                time.sleep(random.uniform(0, pause_s))
                pause_s = min(2 * pause_s, RETRY_DELAY_MAX_S)

    @contextmanager
    def _hold_lock(self) -> Iterator[None]:
        """Context manager: the block runs while this thread holds the table's lock.

        :raises UnreachableError: when other tasks of this process hold the lock for :data:`COMMIT_TIMEOUT_S`.
        """
        if not self._lock.acquire(timeout=COMMIT_TIMEOUT_S):
            raise UnreachableError(
                f"Delta table {self.path}: other tasks of this worker have been writing to it for "
                f"{COMMIT_TIMEOUT_S} s. The next attempt waits for them again"
            )
        try:
            yield
        finally:
            self._lock.release()

    def table_size_bytes(self) -> int:
        """The total size of the table's files at the last :meth:`read_newest_layout`; 0 when there was no table.

        :raises UnreachableError: when other tasks of this process hold the table's lock for :data:`COMMIT_TIMEOUT_S`.
        """
        with self._hold_lock():
            if self._table is None:
                return 0
            files = pa.table(self._table.get_add_actions())
            return pyarrow.compute.sum(files.column("size_bytes")).as_py() or 0

    def merge_small_files(self) -> None:
        """Merge the table's small files into large ones. Readers see the same rows, and batches can be committed while
        this runs.

        :raises DeltaError, OSError: when deltalake reports an error.
        """
        # Not under the lock, since it takes long. deltalake itself puts its commit after commits made while it ran.
        metrics = DeltaTable(str(self.path)).optimize.compact(max_concurrent_tasks=1)
        log.info(
            "Delta table %s: merged %s small files into %s",
            self.path,
            metrics["numFilesRemoved"],
            metrics["numFilesAdded"],
        )


def _snapshot_has_batch(table: DeltaTable, application_id: str, batch_id: int) -> bool:
    """Whether the snapshot of ``table`` has the batch, or a later one of ``application_id``."""
    last_batch_id = table.transaction_version(application_id)
    return last_batch_id is not None and last_batch_id >= batch_id


_shared_tables: WeakValueDictionary[Path, SharedDeltaTable] = WeakValueDictionary()
"""The tables that tasks of this process use, by path. An entry disappears when no task uses its table any more."""
_shared_tables_lock = threading.Lock()


def shared_table_at(path: Path) -> SharedDeltaTable:
    """The object for the table at ``path`` that all tasks of this process share."""
    with _shared_tables_lock:
        table = _shared_tables.get(path)
        if table is None:
            table = _shared_tables[path] = SharedDeltaTable(path)
        return table


_UNREACHABLE_ERRNOS = frozenset(
    (
        errno.ECONNABORTED,
        errno.ECONNREFUSED,
        errno.ECONNRESET,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.EIO,
        errno.ENETDOWN,
        errno.ENETUNREACH,
        errno.ENOTCONN,
        errno.EREMOTEIO,
        errno.ESTALE,
        errno.ETIMEDOUT,
    )
)
"""Error numbers of a file system whose server cannot be reached. After another error a retry is useless until an
operator removes the cause, for example a full disk or a missing right."""
_ERRNO_PATTERN = re.compile(r"\(os error (\d+)\)")
"""Finds the number of a file system error (errno) in a message of deltalake."""


def make_task_error(message: str, error: Exception) -> UnreachableError | OSError:
    """The task's error for ``error``, which deltalake raised. ``message`` says what has failed. UnreachableError, after
    which another start of the task may succeed, when other commits came first or the server of the file system cannot
    be reached. OSError in all other cases."""
    full_message = f"{message}: {delta_error_message(error)}"
    error_number = _errno_of(error)
    if _is_commit_conflict(error) or error_number in _UNREACHABLE_ERRNOS:
        return UnreachableError(full_message)
    return OSError(error_number or errno.EIO, full_message)


def _is_commit_conflict(error: Exception) -> bool:
    """Whether ``error`` of a commit means that another commit came first. An error of the file system does not."""
    return isinstance(error, CommitFailedError) and _errno_of(error) is None


def _errno_of(error: Exception) -> int | None:
    """The errno of a file system error; None when ``error`` contains none."""
    match_ = _ERRNO_PATTERN.search(str(error))
    return int(match_[1]) if match_ else error.errno if isinstance(error, OSError) else None


def delta_error_message(error: Exception) -> str:
    """The first line of the message of ``error``; its class if the message is empty."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
