"""Plain PySpark Structured Streaming, as a careful user writes it, for comparison with Coterie's pipelines.

``python -m benchmarks.plain_spark FOLDER`` opens a session with the settings of ``FOLDER/session.json``, then starts a
query for each file that is renamed to ``FOLDER/queries/<name>.json``, until the process is ended.
:class:`benchmarks.pipelines.PlainSpark` writes these files. When a query fails, the driver prints the error and ends.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from coterie.cli import parent

POLL_INTERVAL_S = 0.05


def main(folder: Path) -> int:
    parent.exit_with_parent()
    spark = SparkSession.builder.config(map=json.loads((folder / "session.json").read_text())).getOrCreate()
    spark.sparkContext.setLogLevel("WARN")
    (folder / "ready").touch()
    queries: dict[str, StreamingQuery] = {}
    while True:
        for file in sorted((folder / "queries").glob("*.json")):
            if file.stem not in queries:
                queries[file.stem] = start(spark, json.loads(file.read_text()))
        for name, query in queries.items():
            if not query.isActive:
                sys.stdout.write(f"{name} has ended: {query.exception()}\n")
                return 1
        time.sleep(POLL_INTERVAL_S)


def start(spark: SparkSession, asked: Mapping[str, Any]) -> StreamingQuery:
    """Start the query that ``asked`` describes; see :meth:`benchmarks.pipelines.Pipeline.spark_queries`."""
    reader = spark.readStream.format(asked["format"]).options(**asked["options"])
    if asked["format"] == "kafka":
        parsed = F.from_json(F.col("value").cast("string"), asked["schema"])
        rows = reader.load().select(parsed.alias("value")).select("value.*")
    else:
        rows = reader.schema(asked["schema"]).load()
    if asked["sql"]:
        rows.createOrReplaceTempView("source")
        rows = spark.sql(asked["sql"])
    for key, value in asked["session"].items():
        spark.conf.set(key, value)
    sink, to = asked["sink"], asked["to"]
    writer = rows.writeStream.option("checkpointLocation", asked["checkpoint"])
    if sink == "file sink":
        writer = writer.format("parquet").option("path", to["path"])
    else:
        write: Callable[[DataFrame, int], None] = partial(WRITES[sink], to)
        writer = writer.foreachBatch(write)
    return writer.trigger(processingTime=f"{asked['trigger_ms']} milliseconds").start()


# -- functions for foreachBatch ---------------------------------------------------------------------------------------


def append_files(to: Mapping[str, str], rows: DataFrame, batch_id: int) -> None:
    """At least once: the rows of a replayed batch are written twice."""
    rows.write.mode("append").parquet(to["path"])


def rename_files(to: Mapping[str, str], rows: DataFrame, batch_id: int) -> None:
    """Exactly once: a folder for each batch, published by one rename."""
    staged, final = f"{to['path']}/_staged-{batch_id}", f"{to['path']}/{batch_id}"
    if not os.path.exists(final):
        rows.write.mode("overwrite").parquet(staged)
        os.rename(staged, final)


def append_delta(to: Mapping[str, str], rows: DataFrame, batch_id: int) -> None:
    """At least once: the rows of a replayed batch are written twice."""
    rows.write.format("delta").mode("append").save(to["path"])


def commit_delta(to: Mapping[str, str], rows: DataFrame, batch_id: int) -> None:
    """Exactly once: Delta skips a version of this application that the table already has."""
    options = {"txnAppId": to["application"], "txnVersion": str(batch_id)}
    rows.write.format("delta").mode("append").options(**options).save(to["path"])


def append_table(to: Mapping[str, str], rows: DataFrame, batch_id: int) -> None:
    """At least once: the rows of a replayed batch are written twice."""
    _jdbc(to, rows, to["table"], "append")


def commit_table(to: Mapping[str, str], rows: DataFrame, batch_id: int) -> None:
    """Exactly once: Spark writes to a staging table, then one transaction writes the rows and the batch's number."""
    _jdbc(to, rows, to["staging"], "overwrite")
    columns = ", ".join(rows.columns)
    with psycopg.connect(to["dsn"]) as connection:
        first = connection.execute(
            "INSERT INTO batches (application, batch) VALUES (%s, %s) ON CONFLICT DO NOTHING",
            (to["application"], batch_id),
        )
        if first.rowcount:
            copied = f"INSERT INTO {to['table']} ({columns}) SELECT {columns} FROM {to['staging']}"
            connection.execute(copied.encode())


def _jdbc(to: Mapping[str, str], rows: DataFrame, table: str, mode: str) -> None:
    options = {
        "url": to["url"],
        "user": to["user"],
        "password": to["password"],
        "driver": "org.postgresql.Driver",
        "reWriteBatchedInserts": "true",
        "batchsize": "10000",
        "truncate": "true",
    }
    rows.write.format("jdbc").options(**options, dbtable=table).mode(mode).save()


WRITES: Mapping[str, Callable[[Mapping[str, str], DataFrame, int], None]] = {
    "append files": append_files,
    "rename files": rename_files,
    "append delta": append_delta,
    "commit delta": commit_delta,
    "append table": append_table,
    "commit table": commit_table,
}

if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
