"""``Function``: applies a user's function to Arrow batches, in Python processes beside the JVM."""

from collections.abc import Callable, Iterator
from typing import TypeAlias, cast

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from coterie.config.definition import not_blank
from coterie.spark.extras import missing_extra
from coterie.spark.prefixed_config import PrefixedConfig
from coterie.spark.record_columns import without_metadata
from coterie.spark.smt.transform_type import Side, TransformType, key
from coterie.spark.user_code import load, well_formed

Batches: TypeAlias = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""A user's function over the Arrow batches of one Spark partition."""


def _apply(rows: DataFrame, side: Side, settings: PrefixedConfig) -> DataFrame:
    """Function: the rows that the user's function returns, without metadata columns."""
    if missing := missing_extra("python"):
        raise ValueError(missing)
    own = FUNCTION.definition
    named = settings.read(own, "function", str)
    function = load(rows.sparkSession, named)
    try:
        schema = cast(StructType, StructType.fromDDL(settings.read(own, "schema", str)))
    except PySparkException as error:
        raise settings.config_error("schema", str(error).strip().splitlines()[0]) from error
    expected = to_arrow_schema(schema, timezone="UTC")
    return without_metadata(rows).mapInArrow(_checked(function, named, expected), schema)


def _checked(function: Batches, named: str, expected: pa.Schema) -> Batches:
    """A function that calls ``function`` and returns its batches with the columns in the order and of the types of
    ``expected``: the columns are matched by name and cast, because the JVM checks neither. The returned function raises
    TypeError when ``function`` returns other columns. ``named``: the name of ``function`` in that message.

    The inner function is sent to Python processes by value, so Coterie need not be installed in their Python.
    """

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in function(batches):
            if sorted(batch.schema.names) != sorted(expected.names):
                there, wanted = ", ".join(batch.schema.names), ", ".join(expected.names)
                raise TypeError(f"{named} returned the columns {there}, and the schema in the config has {wanted}")
            columns = [batch.column(field.name).cast(field.type) for field in expected]
            yield type(batch).from_arrays(columns, schema=expected)

    return run


FUNCTION = TransformType(
    name="Function",
    package=None,
    keys=(
        key(
            "function",
            "package.module:name of a function from an iterator of pyarrow.RecordBatch to another such iterator.",
            "Function",
            validator=well_formed,
        ),
        key("schema", "The columns that the function returns, as in CREATE TABLE.", "Columns", validator=not_blank),
    ),
    apply=_apply,
    takes_predicate=False,
)
