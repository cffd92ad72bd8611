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
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from coterie.nouns.errors import UnreachableError, WorldError
from coterie.spark.failures import message_of, raise_error_message

COMMIT_TIMEOUT_S = 120
"""How long a batch is retried while other commits come first: seconds from the first attempt."""
POSITION = "__coterie_position"
"""Temporary column of an upsert: a number that grows with the row's position in the batch."""
RANK = "__coterie_rank"
"""Temporary column of an upsert: 1 for the last row of each key."""
_CONFLICT = "DELTA_CONCURRENT_"
"""Prefix of the names of Delta's errors for a conflict: another commit came first."""
_TUNED = {
    # A snapshot in one partition, and no separate job for statistics: 0.9 s of CPU a commit instead of 9 s.
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.databricks.delta.stats.collect": "false",
}
"""Settings of Spark's Delta while a batch is written."""
_TRANSACTION = "spark.databricks.delta.write.txn"
"""Prefix of the settings AppId and Version. While they are set, every command of a session commits a ``txn`` with these
values."""


def write(rows: DataFrame, path: Path, application: str, batch_id: int, key_columns: Sequence[str]) -> None:
    """Append ``rows`` to the Delta table at ``path`` or, with ``key_columns``, upsert the last row of each key.

    The commit contains the ``txn`` of ``application`` and ``batch_id``. The table is not changed when its log has this
    ``txn`` or that of a later batch.

    :raises UnreachableError: when other commits come first for :data:`COMMIT_TIMEOUT_S`.
    :raises WorldError: when Spark cannot write the batch for another reason, for example because a key is null.
    """
    session = rows.sparkSession
    settings = _TUNED | {f"{_TRANSACTION}AppId": application, f"{_TRANSACTION}Version": str(batch_id)}
    for key, value in settings.items():
        session.conf.set(key, value)
    give_up = time.monotonic() + COMMIT_TIMEOUT_S
    try:
        while True:
            try:
                if key_columns:
                    _merge(session, rows, path, key_columns)
                else:
                    rows.write.format("delta").mode("append").save(str(path))
                return
            # PySpark has no class for Delta's conflict exceptions.
            except (PySparkException, Py4JJavaError) as error:
                sentence = (
                    f"Delta table {path}: batch {batch_id} failed: {raise_error_message(error) or message_of(error)}"
                )
                if _CONFLICT not in str(error):
                    raise WorldError(sentence) from error
                if time.monotonic() > give_up:
                    raise UnreachableError(sentence) from error
    finally:
        for key in settings:
            session.conf.unset(key)


def _merge(session: SparkSession, rows: DataFrame, path: Path, key_columns: Sequence[str]) -> None:
    """Upsert the last row of each key. A null in a key column fails the query."""
    for name in key_columns:
        refusal = F.raise_error(F.lit(f"Column {name} is null, and the column is in pk.fields"))
        rows = rows.withColumn(name, F.coalesce(_column(name), refusal))
    last = Window.partitionBy(*(_column(name) for name in key_columns)).orderBy(F.col(POSITION).desc())
    columns = rows.columns
    rows = rows.withColumn(POSITION, F.monotonically_increasing_id()).withColumn(RANK, F.row_number().over(last))
    rows = rows.where(F.col(RANK) == 1).drop(POSITION, RANK)
    view = f"coterie_{uuid.uuid4().hex}"
    rows.createOrReplaceTempView(view)
    names = [quoted(name) for name in columns]
    changes = ", ".join(f"target.{name} = source.{name}" for name in names if name not in map(quoted, key_columns))
    try:
        session.sql(
            f"MERGE INTO delta.{quoted(str(path))} AS target USING {view} AS source "
            f"ON {' AND '.join(f'target.{name} = source.{name}' for name in map(quoted, key_columns))} "
            + (f"WHEN MATCHED THEN UPDATE SET {changes} " if changes else "")
            + f"WHEN NOT MATCHED THEN INSERT ({', '.join(names)}) "
            f"VALUES ({', '.join(f'source.{name}' for name in names)})"
        )
    finally:
        session.catalog.dropTempView(view)


def compact(session: SparkSession, path: Path) -> None:
    """Merge the table's small files into large ones. Its rows stay the same.

    :raises PySparkException, Py4JJavaError: when Spark's Delta reports an error.
    """
    session.sql(f"OPTIMIZE delta.{quoted(str(path))}")


def quoted(name: str) -> str:
    """``name`` as an identifier in Spark's SQL."""
    return "`" + name.replace("`", "``") + "`"


def _column(name: str) -> Column:
    """The column with exactly this name, which may contain dots."""
    return F.col(quoted(name))
