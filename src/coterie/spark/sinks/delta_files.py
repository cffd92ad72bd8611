"""Writes the rows of a batch as Parquet files, and describes these files for the log of a Delta table."""

import json
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet
from deltalake.transaction import AddAction
from pyspark.sql import DataFrame
from pyspark.sql.types import DataType, DateType, StringType, StructType, TimestampType

from coterie.spark.sinks.delta_columns import WHOLE_NUMBER_TYPES

_NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
"""The text for null in the name of a partition folder."""
_STATISTICS_TEXT_LENGTH_MAX = 32
"""The most characters of a text that the statistics of a file contain as a smallest or largest value; a longer text is
left out."""


def write_parquet_by_arrow(rows: pa.Table, folder: Path, partition_columns: Sequence[str]) -> None:
    """Write ``rows``, which are in the driver's memory, as Parquet files below the empty ``folder``. Without rows no
    file is written."""
    if not rows.num_rows:
        return
    if not partition_columns:
        pyarrow.parquet.write_table(rows, folder / "part-0.parquet")
        return
    schema = pa.schema([rows.schema.field(name) for name in partition_columns])
    pyarrow.dataset.write_dataset(
        rows,
        folder,
        basename_template="part-{i}.parquet",
        format="parquet",
        partitioning=pyarrow.dataset.partitioning(schema, flavor="hive"),
        max_partitions=rows.num_rows,
        existing_data_behavior="overwrite_or_ignore",
    )


def write_parquet_by_spark(rows: DataFrame, folder: Path, partition_columns: Sequence[str]) -> None:
    """Write ``rows`` with Spark as Parquet files below ``folder``. Some of the files may have no rows."""
    # Only this query uses the session. Spark's default, INT96, has no statistics.
    rows.sparkSession.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    writer = rows.write.mode("append")
    if partition_columns:
        writer = writer.partitionBy(*partition_columns)
    writer.parquet(str(folder))


def files_to_rename_with_add_actions(folder: Path, columns: StructType) -> Iterator[tuple[Path, AddAction]]:
    """Each file below ``folder`` that has rows, and the action that adds this file to the table. The action contains a
    new, unique name: the caller must move the file to this name in the table's folder. ``columns``: the columns of the
    table."""
    types = {field.name: field.dataType for field in columns.fields}
    for path in sorted(folder.rglob("part-*")):
        if not path.is_file():
            continue  # the folder of a partition column whose name begins so
        footer = pyarrow.parquet.read_metadata(path)
        if footer.num_rows:
            stat = path.stat()
            yield (
                path,
                AddAction(
                    path=f"part-{uuid.uuid4()}.snappy.parquet",
                    size=stat.st_size,
                    partition_values=_partition_values(path.parent.relative_to(folder)),
                    modification_time=time.time_ns() // 1_000_000,
                    data_change=True,
                    stats=json.dumps(_file_statistics(footer, types)),
                ),
            )


def _partition_values(folder: Path) -> dict[str, str | None]:
    """The values of the partition columns, by column, from folder names such as ``day=2026-01-01/city=Z%C3%BCrich``.
    None is null or empty text."""
    pairs = (part.split("=", 1) for part in folder.parts)
    return {unquote(name): None if value in (_NULL_PARTITION, "") else unquote(value) for name, value in pairs}


def _file_statistics(footer: Any, types: Mapping[str, DataType]) -> dict[str, Any]:
    """The statistics of a file by which readers skip the file: the number of rows and, by column, the number of nulls
    and the smallest and largest value. ``footer`` is the file's metadata. Nested columns, and values without an exact
    form in JSON (:func:`_statistics_value`), are left out."""
    smallest: dict[str, Any] = {}
    largest: dict[str, Any] = {}
    null_counts: dict[str, int] = {}
    for index in range(footer.num_columns):
        column_chunks = [footer.row_group(group).column(index) for group in range(footer.num_row_groups)]
        name = column_chunks[0].path_in_schema
        chunk_statistics = [group.statistics for group in column_chunks]
        if name not in types or not all(chunk_statistics):
            continue
        if all(statistics.has_null_count for statistics in chunk_statistics):
            null_counts[name] = sum(statistics.null_count for statistics in chunk_statistics)
        with_bounds = [statistics for statistics in chunk_statistics if statistics.has_min_max]
        if not with_bounds or any(
            not statistics.has_min_max and statistics.num_values for statistics in chunk_statistics
        ):
            continue
        low = _statistics_value(min(statistics.min for statistics in with_bounds), types[name])
        high = _statistics_value(max(statistics.max for statistics in with_bounds), types[name])
        if low is not None and high is not None:
            smallest[name], largest[name] = low, high
    return {"numRecords": footer.num_rows, "minValues": smallest, "maxValues": largest, "nullCount": null_counts}


def _statistics_value(value: Any, type_: DataType) -> Any:
    """``value`` as the statistics in Delta's log write it in JSON; None when they leave it out: JSON has no exact form
    of it, or it is a text longer than :data:`_STATISTICS_TEXT_LENGTH_MAX`."""
    match type_:
        case TimestampType() if isinstance(value, datetime):
            return value.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
        case DateType():
            return value.isoformat()
        case StringType() if isinstance(value, str) and len(value) <= _STATISTICS_TEXT_LENGTH_MAX:
            return value
        case _:
            return value if isinstance(type_, WHOLE_NUMBER_TYPES) else None
