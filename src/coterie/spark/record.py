"""The columns of a row that represent a Kafka record. No other module defines them.

The visible columns are the fields of the record's value. Hidden metadata columns contain the key, the headers, the
topic and so on, one column for each :class:`Part`. Transforms can change them; SQL cannot access them. A sink selects
those that it needs (:meth:`coterie.spark.seams.Sink.shape`). Rows of a source that reads no records have no metadata
columns.
"""

from enum import Enum

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BinaryType, StringType, StructField, StructType

HIDDEN = "__coterie_"
"""Prefix of the names of hidden columns."""


class Part(Enum):
    """The metadata columns of a record, by name of the hidden column."""

    KEY = HIDDEN + "key"
    """The converted key: a struct, or a primitive value."""
    HEADERS = HIDDEN + "headers"
    """An array of key and value. Exists only when a transform or a predicate of the connector uses headers."""
    TOPIC = HIDDEN + "topic"
    PARTITION = HIDDEN + "partition"
    OFFSET = HIDDEN + "offset"
    TIMESTAMP = HIDDEN + "timestamp"
    TOMBSTONE = HIDDEN + "tombstone"
    """Whether the value is null. The visible columns are then null, as they also are for a value with null fields."""

    @property
    def word(self) -> str:
        """The name of the field in messages."""
        return self.value.removeprefix(HIDDEN)


MATCHES = HIDDEN + "matches"
"""Whether a row matches the predicate of a transform. Exists only while that transform is applied."""
BEFORE = HIDDEN + "before"
"""The row before a transform with a predicate. Exists only while that transform is applied."""
_HIDDEN_NAMES = frozenset([*(part.value for part in Part), MATCHES, BEFORE])

HEADERS_TYPE = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))


def is_hidden(name: str) -> bool:
    return name in _HIDDEN_NAMES


def column(name: str) -> Column:
    """The column with exactly this name, which may contain dots."""
    return F.col("`" + name.replace("`", "``") + "`")


def has(rows: DataFrame, part: Part) -> bool:
    return part.value in rows.columns


def part_of(rows: DataFrame, part: Part) -> Column:
    """:raises ValueError: when the rows have no such metadata column."""
    if not has(rows, part):
        raise ValueError(f"the rows have no {part.word}: only records that KafkaSource reads have one")
    return column(part.value)


def visible_names(rows: DataFrame) -> list[str]:
    return [name for name in rows.columns if not is_hidden(name)]


def hidden_names(rows: DataFrame) -> list[str]:
    return [name for name in rows.columns if is_hidden(name)]


def visible(rows: DataFrame) -> DataFrame:
    """``rows`` without the hidden columns."""
    return rows.select(*map(column, visible_names(rows))) if hidden_names(rows) else rows
