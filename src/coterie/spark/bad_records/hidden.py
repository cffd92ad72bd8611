"""The hidden columns that carry a record's original bytes and its error beside the columns of its row.

A source that sifts bad records gives each row :data:`ORIGINAL` and :data:`ERROR`. Transforms do not see them: they are
led around every transform (``guarded.py``). At the end of the stream one column is left of both, :data:`BAD`: null for
a good row, and for a bad one the record and what is wrong with it.
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
"""A record as it was read, before any converter."""
FAULT = StructType(
    [
        StructField("stage", StringType()),
        StructField("class_name", StringType()),
        StructField("message", StringType()),
    ]
)
"""What is wrong with a record: Connect's name of the stage, the converter's or transform's class, and a sentence."""
BAD_ROW = StructType([*RECORD.fields, *FAULT.fields])
"""The columns of a bad row."""

POLL = "TASK_POLL"
TRANSFORMATION = "TRANSFORMATION"
PUT = "TASK_PUT"
"""Connect's names of the stages of errors in a source, in a transform and in a sink; a converter's is ``KEY_CONVERTER``
or ``VALUE_CONVERTER``."""


def with_hidden(records: DataFrame) -> DataFrame:
    """``records``, which have all columns of :data:`RECORD`, with the hidden columns and without an error."""
    original = F.struct(*(F.col(name) for name in RECORD.names))
    return records.withColumns({ORIGINAL: original, ERROR: F.lit(None).cast(FAULT)})


def fault(stage: str, class_name: str, message: str | Column) -> Column:
    """A value of :data:`ERROR`."""
    values = zip(FAULT.names, (stage, class_name, message), strict=True)
    return F.struct(*(F.lit(value).alias(name) for name, value in values))


def with_bad(rows: DataFrame) -> DataFrame:
    """``rows`` with :data:`BAD` in place of the hidden columns."""
    fields = [F.col(ORIGINAL)[name].alias(name) for name in RECORD.names]
    fields += [F.col(ERROR)[name].alias(name) for name in FAULT.names]
    bad = F.when(F.col(ERROR).isNotNull(), F.struct(*fields))
    return rows.withColumn(BAD, bad).drop(ORIGINAL, ERROR)


def good_rows(classified: DataFrame) -> DataFrame:
    """The good rows of a batch with the column :data:`BAD`, without that column."""
    return classified.where(F.col(BAD).isNull()).drop(BAD)


def bad_rows(classified: DataFrame) -> DataFrame:
    """The bad rows of a batch with the column :data:`BAD`, as columns of :data:`BAD_ROW`."""
    return classified.where(F.col(BAD).isNotNull()).select(f"{BAD}.*")
