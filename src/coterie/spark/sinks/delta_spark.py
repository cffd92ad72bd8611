"""Writes a batch with Spark's Delta: to tables that only Spark can write to, and upserts too large for the driver.

Spark searches the batch's ``txn`` (see ``delta_table.py``) in the snapshot on which a commit is based, and fails when
another commit adds this ``txn`` in the meantime: so both this module and ``delta_table.py`` commit a batch once.
"""

import time
import uuid
from collections.abc import Sequence
from pathlib import Path

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from coterie.nouns.errors import UnreachableError, WorldError
from coterie.spark.failures import error_message, message_passed_to_raise_error
from coterie.spark.record_columns import exact_column, quote_name

COMMIT_TIMEOUT_S = 120
"""How long a batch is retried while other commits come first: seconds from the first attempt."""
POSITION_COLUMN = "__coterie_position"
"""Temporary column of an upsert: a number that grows with the row's position in the batch."""
RANK_COLUMN = "__coterie_rank"
"""Temporary column of an upsert: 1 for the last row of each key."""
_CONFLICT_ERROR_PREFIX = "DELTA_CONCURRENT_"
"""Prefix of the names of Delta's errors after which a retry may succeed: another commit came first."""
_DELTA_SETTINGS = {
    # A snapshot in one partition, and no separate job for statistics: 0.9 s of CPU a commit instead of 9 s.
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.databricks.delta.stats.collect": "false",
}
"""Settings of Spark's Delta while a batch is written, which reduce the CPU time of a commit."""
_TXN_SETTING_PREFIX = "spark.databricks.delta.write.txn"
"""Prefix of the settings AppId and Version. While they are set, every command of a session commits a ``txn`` with these
values."""


def append_or_upsert_once(
    rows: DataFrame, path: Path, application_id: str, batch_id: int, key_columns: Sequence[str]
) -> None:
    """Append ``rows`` to the Delta table at ``path`` or, with ``key_columns``, upsert the last row of each key.

    The commit contains the ``txn`` of ``application_id`` and ``batch_id``. The table is not changed when its log has
    this ``txn`` or that of a later batch.

    :raises UnreachableError: when other commits come first for :data:`COMMIT_TIMEOUT_S`.
    :raises WorldError: when Spark cannot write the batch for another reason, for example because a key is null.
    """
    session = rows.sparkSession
    settings = _DELTA_SETTINGS | {
        f"{_TXN_SETTING_PREFIX}AppId": application_id,
        f"{_TXN_SETTING_PREFIX}Version": str(batch_id),
    }
    for key, value in settings.items():
        session.conf.set(key, value)
    deadline = time.monotonic() + COMMIT_TIMEOUT_S
    try:
        while True:
            try:
                if key_columns:
                    _upsert_last_row_of_each_key(session, rows, path, key_columns)
                else:
                    rows.write.format("delta").mode("append").save(str(path))
                return
            # PySpark has no class for Delta's conflict exceptions.
            except (PySparkException, Py4JJavaError) as error:
                message = (
                    f"Delta table {path}: batch {batch_id} failed: "
                    f"{message_passed_to_raise_error(error) or error_message(error)}"
                )
                if _CONFLICT_ERROR_PREFIX not in str(error):
                    raise WorldError(message) from error
                if time.monotonic() > deadline:
                    raise UnreachableError(message) from error
    finally:
        for key in settings:
            session.conf.unset(key)


def _upsert_last_row_of_each_key(
    session: SparkSession, rows: DataFrame, path: Path, key_columns: Sequence[str]
) -> None:
    """Upsert the last row of each key. A null in a key column fails the query."""
    for name in key_columns:
        null_key_error = F.raise_error(F.lit(f"Column {name} is null, and the column is in pk.fields"))
        rows = rows.withColumn(name, F.coalesce(exact_column(name), null_key_error))
    newest_first = Window.partitionBy(*(exact_column(name) for name in key_columns)).orderBy(
        F.col(POSITION_COLUMN).desc()
    )
    columns = rows.columns
    rows = rows.withColumn(POSITION_COLUMN, F.monotonically_increasing_id()).withColumn(
        RANK_COLUMN, F.row_number().over(newest_first)
    )
    rows = rows.where(F.col(RANK_COLUMN) == 1).drop(POSITION_COLUMN, RANK_COLUMN)
    view = f"coterie_{uuid.uuid4().hex}"
    rows.createOrReplaceTempView(view)
    names = [quote_name(name) for name in columns]
    assignments = ", ".join(
        f"target.{name} = source.{name}" for name in names if name not in map(quote_name, key_columns)
    )
    try:
        session.sql(
            f"MERGE INTO delta.{quote_name(str(path))} AS target USING {view} AS source "
            f"ON {' AND '.join(f'target.{name} = source.{name}' for name in map(quote_name, key_columns))} "
            + (f"WHEN MATCHED THEN UPDATE SET {assignments} " if assignments else "")
            + f"WHEN NOT MATCHED THEN INSERT ({', '.join(names)}) "
            f"VALUES ({', '.join(f'source.{name}' for name in names)})"
        )
    finally:
        session.catalog.dropTempView(view)


def merge_small_files(session: SparkSession, path: Path) -> None:
    """Merge the table's small files into large ones. Its rows stay the same.

    :raises PySparkException, Py4JJavaError: when Spark's Delta reports an error.
    """
    session.sql(f"OPTIMIZE delta.{quote_name(str(path))}")
