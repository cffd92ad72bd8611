"""Which columns of a row are what of a Kafka record; the only place that says so.

A record's value is all visible columns: a field of the value is a column. What else a record has is in hidden columns,
one for each :class:`Part`. Transforms change them and SQL does not see them. A sink takes what it needs of them
(:meth:`coterie.spark.seams.Sink.shape`). The rows of a source that reads no records have no hidden columns.
"""

from enum import Enum

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BinaryType, StringType, StructField, StructType

HIDDEN = "__coterie_"
"""What names of hidden columns start with."""


class Part(Enum):
    """What a record has beside its value: the name of the hidden column."""

    KEY = HIDDEN + "key"
    """The converted key: a struct, or a primitive value."""
    HEADERS = HIDDEN + "headers"
    """An array of key and value; there only when a transform or a predicate of the connector uses headers."""
    TOPIC = HIDDEN + "topic"
    PARTITION = HIDDEN + "partition"
    OFFSET = HIDDEN + "offset"
    TIMESTAMP = HIDDEN + "timestamp"
    TOMBSTONE = HIDDEN + "tombstone"
    """Whether the value is null. The visible columns are null then, and cannot tell that."""

    @property
    def word(self) -> str:
        """What messages call it."""
        return self.value.removeprefix(HIDDEN)


MATCHES = HIDDEN + "matches"
"""Whether a row matches the predicate of the transform that is being applied; there only meanwhile."""
BEFORE = HIDDEN + "before"
"""The row before that transform; there only meanwhile."""
_HIDDEN_NAMES = frozenset([*(part.value for part in Part), MATCHES, BEFORE])

HEADERS_TYPE = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))


def is_hidden(name: str) -> bool:
    return name in _HIDDEN_NAMES


def column(name: str) -> Column:
    """The column with exactly this name, dots and all."""
    return F.col("`" + name.replace("`", "``") + "`")


def has(rows: DataFrame, part: Part) -> bool:
    return part.value in rows.columns


def part_of(rows: DataFrame, part: Part) -> Column:
    """:raises ValueError: when the rows have no such part."""
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
