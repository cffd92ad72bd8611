"""Writes the rows of a batch as files under their final names: by Spark, small ones of Parquet by Arrow on the driver.

Both writers write the same Parquet: times as microseconds in UTC, Spark's own names of partition folders, and the
schema of the rows as Spark writes it, so that readers can treat all files alike.
"""

import io
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.orc
import pyarrow.parquet
import pyspark
from pyspark.sql import DataFrame
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from coterie.nouns.errors import WorldError
from coterie.spark.arrow import read_arrow_batches
from coterie.spark.seams import Batch
from coterie.spark.sinks.file_copies import OutputFileNames

FORMATS = ("csv", "json", "orc", "parquet")

_SPARK_FILE_NAME = re.compile(r"part-\d+-[0-9a-f-]{36}[-.]c\d+(.*)")
"""The name of a file that Spark has written. The group is the suffix: codec and format."""
_ARROW_CODEC_BY_SUFFIX = {".bz2": "bz2", ".gz": "gzip"}
"""By suffix of a text file that Spark has compressed, Arrow's name of the codec."""
_ARROW_CODEC_BY_SPARK_CODEC = {
    "snappy": ("snappy", ".snappy.parquet"),
    "gzip": ("gzip", ".gz.parquet"),
    "zstd": ("zstd", ".zstd.parquet"),
    "none": ("none", ".parquet"),
    "uncompressed": ("none", ".parquet"),
}
"""By Spark's name of a codec that Arrow supports too: Arrow's name, and the suffix of a file's name."""
_NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
"""The text for null and for empty text in the name of a partition folder."""
_ESCAPED_CHARACTERS = re.compile(r"[\x01-\x1f\x7f\"#%'*/:=?\\{\[\]^]")
"""The characters that are escaped in the name of a partition folder."""
_ARROW_WRITTEN_TYPES: tuple[type[DataType], ...] = (
    BinaryType,
    BooleanType,
    ByteType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    TimestampNTZType,
    TimestampType,
)
"""The types, except nested ones, whose values Arrow and Spark write into files in the same form."""
_ARROW_PARTITION_TYPES: tuple[type[DataType], ...] = (
    BooleanType,
    ByteType,
    DateType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
)
"""Types of partition columns whose values Arrow writes into folder names in the same form as Spark."""


def write_batch(
    batch: Batch, files: OutputFileNames, *, format_: str, partition_fields: Sequence[str], options: Mapping[str, str]
) -> None:
    """Write the rows of ``batch`` as ``files``; files without rows are left out as far as that can be detected
    (:func:`_may_file_have_rows`). ``partition_fields``: the configured partition columns, outermost first. ``options``:
    options of Spark's writer.

    :raises WorldError: when the rows lack a partition column, or have no other column.
    :raises PySparkException, Py4JError: when Spark cannot compute or write the rows.
    """
    partition_columns = _match_partition_columns_ignoring_case(batch.rows, partition_fields)
    lower_options = {key.lower(): value.lower() for key, value in options.items()}
    codec = lower_options.pop("compression", None) or batch.rows.sparkSession.conf.get(
        "spark.sql.parquet.compression.codec"
    )
    if (
        format_ == "parquet"
        and batch.is_small
        and not lower_options
        and codec in _ARROW_CODEC_BY_SPARK_CODEC
        and all(_arrow_writes_type_as_spark(field.dataType) for field in batch.rows.schema)
        and all(type(batch.rows.schema[name].dataType) in _ARROW_PARTITION_TYPES for name in partition_columns)
    ):
        _write_by_arrow(batch.rows, files, partition_columns, codec)
    else:
        _write_by_spark(batch.rows, files, partition_columns, format_, options)


def _match_partition_columns_ignoring_case(rows: DataFrame, columns: Sequence[str]) -> list[str]:
    """The names in ``columns``, each in the upper and lower case in which ``rows`` have it: Spark compares names of
    columns without regard to case.

    :raises WorldError: when ``rows`` lack one of these columns, or have no other column.
    """
    name_by_lower_name = {name.lower(): name for name in rows.columns}
    if missing_columns := [name for name in columns if name.lower() not in name_by_lower_name]:
        raise WorldError(
            f"sink.partition.field.name contains {', '.join(missing_columns)}, and the rows have only the columns "
            f"{', '.join(rows.columns)}: correct the value of the key, or add these columns by a transform"
        )
    if len(name_by_lower_name) == len(columns):
        raise WorldError("sink.partition.field.name contains every column of the rows: leave out at least one")
    return [name_by_lower_name[name.lower()] for name in columns]


# -- Spark ------------------------------------------------------------------------------------------------------------


def _write_by_spark(
    rows: DataFrame, files: OutputFileNames, partition_columns: Sequence[str], format_: str, options: Mapping[str, str]
) -> None:
    """Write the rows by Spark to a separate folder, then rename each file to its final name. Files without rows are
    deleted, as far as that can be detected (:func:`_may_file_have_rows`)."""
    if format_ == "parquet":
        # INT96, Spark's default, has no zone: other readers would read local times here and UTC in Arrow's files.
        rows.sparkSession.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    spark_folder = files.folder.parent / "spark"
    rows.write.format(format_).options(**options).partitionBy(*partition_columns).save(str(spark_folder))
    values = {key.lower(): value for key, value in options.items()}
    has_header = values.get("header", "").lower() == "true"
    ends_lines = values.get("linesep", "\n").endswith("\n")
    number = 0
    for spark_file, suffix in _spark_files(spark_folder):
        # Only a line feed ends the header line that `_may_file_have_rows` skips. With another line separator every file
        # is kept, also one with a header and no row.
        if (has_header and not ends_lines) or _may_file_have_rows(spark_file, format_, has_header=has_header):
            folder = files.folder / spark_file.parent.relative_to(spark_folder)
            folder.mkdir(parents=True, exist_ok=True)
            spark_file.rename(folder / files.file_name(number, suffix))
            number += 1
    shutil.rmtree(spark_folder)


def _spark_files(folder: Path) -> Iterator[tuple[Path, str]]:
    """The files that Spark has written below ``folder``, each with the suffix (codec and format) of its name."""
    for parent, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            if match_ := _SPARK_FILE_NAME.fullmatch(name):
                yield Path(parent, name), match_[1]


def _may_file_have_rows(file: Path, format_: str, *, has_header: bool) -> bool:
    """Whether the file ``file`` has rows. True also for a file that is compressed by a codec of Hadoop, such as
    ``.snappy``, which cannot be read here. With ``has_header`` the first line of a CSV file is no row."""
    match format_:
        case "parquet":
            return bool(pyarrow.parquet.read_metadata(file).num_rows)
        case "orc":
            return bool(pyarrow.orc.ORCFile(file).nrows)
        case _ if file.suffix in (*_ARROW_CODEC_BY_SUFFIX, f".{format_}"):
            with pa.input_stream(str(file), compression=_ARROW_CODEC_BY_SUFFIX.get(file.suffix)) as stream:
                text = io.BufferedReader(stream)
                return all(text.readline() for _ in range(2 if has_header and format_ == "csv" else 1))
        case _:  # Hadoop's own codecs, such as .snappy: the file may be without rows.
            return True


# -- Arrow ------------------------------------------------------------------------------------------------------------


def _arrow_writes_type_as_spark(type_: DataType) -> bool:
    """Whether Arrow writes values of this type into files in the same form as Spark."""
    match type_:
        case ArrayType():
            return _arrow_writes_type_as_spark(type_.elementType)
        case MapType():
            return _arrow_writes_type_as_spark(type_.keyType) and _arrow_writes_type_as_spark(type_.valueType)
        case StructType():
            return all(_arrow_writes_type_as_spark(field.dataType) for field in type_)
        case _:
            return type(type_) in _ARROW_WRITTEN_TYPES


def _write_by_arrow(rows: DataFrame, files: OutputFileNames, partition_columns: Sequence[str], codec: str) -> None:
    """Write the rows on the driver by Arrow, one Parquet file for each partition folder; without rows no file.
    ``codec``: Spark's name of the compression."""
    batches = list(read_arrow_batches(rows, is_small=True, has_bounded_spark_partitions=True))
    if not any(batch.num_rows for batch in batches):
        return
    table = pa.Table.from_batches(batches)
    file_schema = StructType([field for field in rows.schema if field.name not in partition_columns])
    metadata = {
        "org.apache.spark.version": pyspark.__version__,
        "org.apache.spark.sql.parquet.row.metadata": file_schema.json(),
    }
    compression, suffix = _ARROW_CODEC_BY_SPARK_CODEC[codec]
    for number, (folder, partition_rows) in enumerate(_rows_by_partition_folder(table, partition_columns)):
        (files.folder / folder).mkdir(parents=True, exist_ok=True)
        pyarrow.parquet.write_table(
            partition_rows.replace_schema_metadata(metadata),
            files.folder / folder / files.file_name(number, suffix),
            compression=compression,
        )


def _rows_by_partition_folder(table: pa.Table, partition_columns: Sequence[str]) -> Iterator[tuple[str, pa.Table]]:
    """For each combination of values of the partition columns: the path of its folder, and its rows without these
    columns. Without partition columns: an empty path and all rows."""
    if not partition_columns:
        yield "", table
        return
    partition_texts = [pc.cast(table[name], pa.string()).to_pylist() for name in partition_columns]
    row_numbers_by_values: dict[tuple[str | None, ...], list[int]] = {}
    for row, values in enumerate(zip(*partition_texts, strict=True)):
        row_numbers_by_values.setdefault(tuple(value or None for value in values), []).append(row)
    other_columns = table.drop_columns(list(partition_columns))
    for values, row_numbers in row_numbers_by_values.items():
        folders = (
            f"{_escape_folder_name(name)}={_NULL_PARTITION if value is None else _escape_folder_name(value)}"
            for name, value in zip(partition_columns, values, strict=True)
        )
        yield "/".join(folders), other_columns.take(row_numbers)


def _escape_folder_name(text: str) -> str:
    """``text`` for the name of a partition folder: the characters that Hive and Spark escape there become ``%`` and two
    hexadecimal digits."""
    return _ESCAPED_CHARACTERS.sub(lambda match_: f"%{ord(match_[0]):02X}", text)
