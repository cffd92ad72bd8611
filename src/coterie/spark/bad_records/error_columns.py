"""The error columns: hidden columns of a row that contain the record's original bytes and its error.

A source that reports bad records adds :data:`ORIGINAL_COLUMN` and :data:`ERROR_COLUMN` to each row. Transforms cannot
access these columns; ``tolerant_transforms.py`` keeps them unchanged. After the transforms one column,
:data:`BAD_ROW_COLUMN`, replaces both: null for a good row; for a bad row a struct with the record and the error. Rows
with this column are called classified rows. Good rows no longer have it; bad rows have only the fields of its struct,
as columns.
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

from coterie.spark.record_columns import HEADERS_TYPE

ORIGINAL_COLUMN = "__coterie_original"
"""Name of the column that contains the record as it was read (:data:`ORIGINAL_RECORD_TYPE`)."""
ERROR_COLUMN = "__coterie_error"
"""Name of the column that contains the row's error (:data:`ERROR_TYPE`); null for a good row."""
BAD_ROW_COLUMN = "__coterie_bad"
"""Name of the column that replaces :data:`ORIGINAL_COLUMN` and :data:`ERROR_COLUMN` (:data:`BAD_ROW_TYPE`); null for a
good row."""

ORIGINAL_RECORD_TYPE = StructType(
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
"""The type of :data:`ORIGINAL_COLUMN`: a record as it was read, before any converter."""
ERROR_TYPE = StructType(
    [
        StructField("stage", StringType()),
        StructField("class_name", StringType()),
        StructField("message", StringType()),
    ]
)
"""The type of :data:`ERROR_COLUMN`: Connect's name of the stage in which the record failed; the class of the source,
converter, transform or sink in which it failed; and a message."""
BAD_ROW_TYPE = StructType([*ORIGINAL_RECORD_TYPE.fields, *ERROR_TYPE.fields])
"""The type of :data:`BAD_ROW_COLUMN`, and the columns of a bad row: those of the original record, then those of the
error."""

STAGE_TASK_POLL = "TASK_POLL"
STAGE_TRANSFORMATION = "TRANSFORMATION"
STAGE_TASK_PUT = "TASK_PUT"
"""Connect's names of the stages in which a record can fail: in the source, in a transform, and in the sink. The stage
of a converter is ``KEY_CONVERTER`` or ``VALUE_CONVERTER``."""


def with_original_and_null_error_columns(records: DataFrame) -> DataFrame:
    """``records``, which have all columns of :data:`ORIGINAL_RECORD_TYPE`, with :data:`ORIGINAL_COLUMN` and
    :data:`ERROR_COLUMN` added. :data:`ERROR_COLUMN` is null in every row."""
    original = F.struct(*(F.col(name) for name in ORIGINAL_RECORD_TYPE.names))
    return records.withColumns({ORIGINAL_COLUMN: original, ERROR_COLUMN: F.lit(None).cast(ERROR_TYPE)})


def error_column_value(stage: str, class_name: str, message: str | Column) -> Column:
    """A value of the column :data:`ERROR_COLUMN`: a struct with the fields of :data:`ERROR_TYPE`."""
    values = zip(ERROR_TYPE.names, (stage, class_name, message), strict=True)
    return F.struct(*(F.lit(value).alias(name) for name, value in values))


def merge_into_bad_row_column(rows: DataFrame) -> DataFrame:
    """``rows`` with the column :data:`BAD_ROW_COLUMN` in place of :data:`ORIGINAL_COLUMN` and :data:`ERROR_COLUMN`:
    null for a row whose :data:`ERROR_COLUMN` is null, else a struct with the fields of both."""
    fields = [F.col(ORIGINAL_COLUMN)[name].alias(name) for name in ORIGINAL_RECORD_TYPE.names]
    fields += [F.col(ERROR_COLUMN)[name].alias(name) for name in ERROR_TYPE.names]
    bad_row = F.when(F.col(ERROR_COLUMN).isNotNull(), F.struct(*fields))
    return rows.withColumn(BAD_ROW_COLUMN, bad_row).drop(ORIGINAL_COLUMN, ERROR_COLUMN)


def good_rows(classified_rows: DataFrame) -> DataFrame:
    """The good rows of ``classified_rows``: those whose column :data:`BAD_ROW_COLUMN` is null. The result does not have
    this column."""
    return classified_rows.where(F.col(BAD_ROW_COLUMN).isNull()).drop(BAD_ROW_COLUMN)


def bad_rows(classified_rows: DataFrame) -> DataFrame:
    """The bad rows of ``classified_rows``: those whose column :data:`BAD_ROW_COLUMN` is not null. The columns of the
    result are those of :data:`BAD_ROW_TYPE`."""
    return classified_rows.where(F.col(BAD_ROW_COLUMN).isNotNull()).select(f"{BAD_ROW_COLUMN}.*")
