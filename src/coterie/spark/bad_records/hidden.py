"""The error columns: hidden columns of a row that contain the record's original bytes and its error.

A source that reports bad records adds :data:`ORIGINAL` and :data:`ERROR` to each row. Transforms cannot access these
columns; ``guarded.py`` keeps them unchanged. At the end of the stream one column replaces both, :data:`BAD`: null for a
good row; for a bad row a struct with the record and the error.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from coterie.spark.record import HEADERS_TYPE

ORIGINAL = "__coterie_original"
ERROR = "__coterie_error"
BAD = "__coterie_bad"

RECORD = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("headers", HEADERS_TYPE),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
    ]
)
"""The type of :data:`ORIGINAL`: a record as it was read, before any converter."""
FAULT = StructType(
    [
        StructField("stage", StringType()),
        StructField("class_name", StringType()),
        StructField("message", StringType()),
    ]
)
"""The type of :data:`ERROR`: Connect's name of the stage, the converter's or transform's class, and a message."""
BAD_ROW = StructType([*RECORD.fields, *FAULT.fields])
"""The type of :data:`BAD`: the columns of a bad row."""

POLL = "TASK_POLL"
TRANSFORMATION = "TRANSFORMATION"
PUT = "TASK_PUT"
"""Connect's names of the stages of errors in a source, in a transform and in a sink; a converter's is ``KEY_CONVERTER``
or ``VALUE_CONVERTER``."""


def with_hidden(records: DataFrame) -> DataFrame:
    """``records``, which have all columns of :data:`RECORD`, with the error columns added and no error set."""
    original = F.struct(*(F.col(name) for name in RECORD.names))
    return records.withColumns({ORIGINAL: original, ERROR: F.lit(None).cast(FAULT)})


def fault(stage: str, class_name: str, message: str | Column) -> Column:
    """A value of :data:`ERROR`."""
    values = zip(FAULT.names, (stage, class_name, message), strict=True)
    return F.struct(*(F.lit(value).alias(name) for name, value in values))


def with_bad(rows: DataFrame) -> DataFrame:
    """``rows`` with :data:`BAD` instead of the error columns."""
    fields = [F.col(ORIGINAL)[name].alias(name) for name in RECORD.names]
    fields += [F.col(ERROR)[name].alias(name) for name in FAULT.names]
    bad = F.when(F.col(ERROR).isNotNull(), F.struct(*fields))
    return rows.withColumn(BAD, bad).drop(ORIGINAL, ERROR)


def good_rows(classified: DataFrame) -> DataFrame:
    """The good rows of a batch with the column :data:`BAD`, without that column."""
    return classified.where(F.col(BAD).isNull()).drop(BAD)


def bad_rows(classified: DataFrame) -> DataFrame:
    """The bad rows of a batch with the column :data:`BAD`, with the columns of :data:`BAD_ROW`."""
    return classified.where(F.col(BAD).isNotNull()).select(f"{BAD}.*")
