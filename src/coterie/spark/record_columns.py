"""The columns of a row that represent a Kafka record. No other module defines them.

The visible columns are the fields of the record's value. Hidden metadata columns contain the key, the headers, the
topic and so on, one column for each :class:`MetadataColumn`. Transforms can change the metadata columns; SQL cannot
access them. A sink selects those that it needs (:meth:`coterie.spark.seams.Sink.to_sink_columns`). Rows of a source
that reads no records have no metadata columns."""

from enum import Enum

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BinaryType, StringType, StructField, StructType

METADATA_PREFIX = "__coterie_"
"""Prefix of the names of all hidden columns (:func:`is_known_metadata_column_name`)."""


class MetadataColumn(Enum):
    """The metadata columns of a record. A member's value is the name of the hidden column."""

    KEY = METADATA_PREFIX + "key"
    """The converted key: a struct, or a primitive value."""
    HEADERS = METADATA_PREFIX + "headers"
    """An array of structs with the fields ``key`` and ``value``. Exists only when a transform or a predicate of the
    connector uses headers."""
    TOPIC = METADATA_PREFIX + "topic"
    PARTITION = METADATA_PREFIX + "partition"
    OFFSET = METADATA_PREFIX + "offset"
    TIMESTAMP = METADATA_PREFIX + "timestamp"
    TOMBSTONE = METADATA_PREFIX + "tombstone"
    """Whether the record's value is null. The visible columns are then null; they are also null for a value whose
    fields are all null."""

    @property
    def record_field_name(self) -> str:
        """The name of the record's field in error messages: ``key``, ``topic``, ..."""
        return self.value.removeprefix(METADATA_PREFIX)


PREDICATE_MATCHES_COLUMN = METADATA_PREFIX + "matches"
"""Whether a row matches the predicate of a transform. Exists only while that transform is applied."""
ROW_BEFORE_COLUMN = METADATA_PREFIX + "before"
"""The row before a transform with a predicate. Exists only while that transform is applied."""
_METADATA_NAMES = frozenset([*(part.value for part in MetadataColumn), PREDICATE_MATCHES_COLUMN, ROW_BEFORE_COLUMN])

HEADERS_TYPE = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
"""The type of the column :attr:`MetadataColumn.HEADERS`."""


def is_known_metadata_column_name(name: str) -> bool:
    """Whether ``name`` is the name of a hidden column of this module: a metadata column, or one of the two columns that
    exist only while a transform with a predicate is applied."""
    return name in _METADATA_NAMES


def quote_name(name: str) -> str:
    """``name`` as an identifier in Spark's SQL."""
    return "`" + name.replace("`", "``") + "`"


def exact_column(name: str) -> Column:
    """The column with exactly the name ``name``, which may contain dots."""
    return F.col(quote_name(name))


def has_metadata_column(rows: DataFrame, column_kind: MetadataColumn) -> bool:
    """Whether ``rows`` have the metadata column ``column_kind``."""
    return column_kind.value in rows.columns


def required_metadata_column(rows: DataFrame, column_kind: MetadataColumn) -> Column:
    """The metadata column ``column_kind`` of ``rows``.

    :raises ValueError: when the rows have no such column.
    """
    if not has_metadata_column(rows, column_kind):
        raise ValueError(
            f"the rows have no {column_kind.record_field_name}: only records that KafkaSource reads have this field"
        )
    return exact_column(column_kind.value)


def visible_column_names(rows: DataFrame) -> list[str]:
    """The names of the columns of ``rows`` that are not hidden (:func:`is_known_metadata_column_name`), in their
    order."""
    return [name for name in rows.columns if not is_known_metadata_column_name(name)]


def metadata_column_names(rows: DataFrame) -> list[str]:
    """The names of the hidden columns of ``rows`` (:func:`is_known_metadata_column_name`), in their order."""
    return [name for name in rows.columns if is_known_metadata_column_name(name)]


def without_metadata_columns(rows: DataFrame) -> DataFrame:
    """``rows`` without the hidden columns (:func:`is_known_metadata_column_name`)."""
    return rows.select(*map(exact_column, visible_column_names(rows))) if metadata_column_names(rows) else rows
