"""``Function``: applies a user's function to Arrow batches, in Python processes beside the JVM."""

from collections.abc import Callable, Iterator
from typing import TypeAlias, cast

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from coterie.config.definition import blank_value_error
from coterie.spark.extras import missing_extra_message
from coterie.spark.prefixed_config import PrefixedConfig
from coterie.spark.record_columns import without_metadata_columns
from coterie.spark.smt.transform_type import KeyOrValue, TransformType, make_transform_config_key
from coterie.spark.user_code import function_name_error, load_allowed_function

BatchFunction: TypeAlias = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""A user's function: it receives the Arrow batches of one Spark partition, and returns the Arrow batches that replace
them."""


def _apply_function(rows: DataFrame, side: KeyOrValue, settings: PrefixedConfig) -> DataFrame:
    """Function: replace ``rows`` by the rows that the user's function returns for them. The metadata columns are
    removed before the call, so neither the function nor the result has them. ``side`` has no effect.

    :raises ValueError: when the extra ``coterie[python]`` is not installed, or as :func:`load_allowed_function`.
    :raises ConfigError: when Spark cannot parse ``schema``.
    """
    if missing_message := missing_extra_message("python"):
        raise ValueError(missing_message)
    definition = FUNCTION.definition
    function_name = settings.required_value(definition, "function", str)
    function = load_allowed_function(rows.sparkSession, function_name)
    try:
        schema = cast(StructType, StructType.fromDDL(settings.required_value(definition, "schema", str)))
    except PySparkException as error:
        raise settings.make_config_error("schema", str(error).strip().splitlines()[0]) from error
    expected = to_arrow_schema(schema, timezone="UTC")
    return without_metadata_columns(rows).mapInArrow(
        _with_columns_checked_and_cast(function, function_name, expected), schema
    )


def _with_columns_checked_and_cast(
    function: BatchFunction, function_name: str, expected_schema: pa.Schema
) -> BatchFunction:
    """A function that calls ``function`` and returns its batches with the columns in the order and of the types of
    ``expected_schema``: the columns are matched by name and cast, because the JVM checks neither names nor types. The
    returned function raises TypeError when ``function`` returns columns with other names. ``function_name``: the name
    of ``function`` in that message.

    The inner function is sent to Python processes by value, so Coterie need not be installed in their Python.
    """

    def call_check_and_cast(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in function(batches):
            if sorted(batch.schema.names) != sorted(expected_schema.names):
                returned_names, expected_names = ", ".join(batch.schema.names), ", ".join(expected_schema.names)
                raise TypeError(
                    f"{function_name} returned the columns {returned_names}, and the schema in the config has "
                    f"{expected_names}"
                )
            columns = [batch.column(field.name).cast(field.type) for field in expected_schema]
            yield type(batch).from_arrays(columns, schema=expected_schema)

    return call_check_and_cast


FUNCTION = TransformType(
    short_class_name="Function",
    java_package=None,
    keys=(
        make_transform_config_key(
            "function",
            "package.module:name of a function from an iterator of pyarrow.RecordBatch to another such iterator.",
            "Function",
            validator=function_name_error,
        ),
        make_transform_config_key(
            "schema",
            "The columns that the function returns, as in CREATE TABLE.",
            "Columns",
            validator=blank_value_error,
        ),
    ),
    apply=_apply_function,
    accepts_predicate=False,
)
