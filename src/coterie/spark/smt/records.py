"""Connect's transforms of a record's headers and topic, and the transform that drops records."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from coterie.config.definition import Type, blank_value_error, one_of
from coterie.spark.prefixed_config import PrefixedConfig
from coterie.spark.record_columns import HEADERS_TYPE, MetadataColumn, required_metadata_column
from coterie.spark.smt.fields import CONNECT_TRANSFORMS_PACKAGE
from coterie.spark.smt.patterns import checked_whole_match_pattern
from coterie.spark.smt.transform_type import (
    REPLACE_NULL_WITH_DEFAULT_KEY,
    ErrorsByKey,
    KeyOrValue,
    TransformType,
    field_columns,
    filter_rows_to_which_transform_applies,
    make_transform_config_key,
    name_list_error,
    replace_all_fields,
    require_columns,
)

# -- headers ----------------------------------------------------------------------------------------------------------


def _always_uses_headers(settings: PrefixedConfig) -> bool:
    """The :attr:`TransformType.uses_headers` of the transforms of headers: returns True for every config."""
    return True


def headers_or_empty_if_null(rows: DataFrame) -> Column:
    """The column with the headers of each row; an empty array instead of null.

    :raises ValueError: when the rows have no metadata column for headers.
    """
    return F.coalesce(required_metadata_column(rows, MetadataColumn.HEADERS), F.array().cast(HEADERS_TYPE))


def header_struct(name: str, value: Column) -> Column:
    """A header with the name ``name``, as a struct. Its value is ``value`` as text, in UTF-8."""
    return F.struct(F.lit(name).alias("key"), F.encode(value.cast("string"), "UTF-8").alias("value"))


def append_headers(rows: DataFrame, headers: list[Column]) -> DataFrame:
    """``rows`` with ``headers``, columns made by :func:`header_struct`, after the existing headers.

    :raises ValueError: when ``headers`` is not empty and the rows have no metadata column for headers.
    """
    if not headers:
        return rows
    return rows.withColumn(
        MetadataColumn.HEADERS.value, F.concat(headers_or_empty_if_null(rows), F.array(*headers).cast(HEADERS_TYPE))
    )


def _header_count_errors(settings: PrefixedConfig) -> ErrorsByKey:
    """An error, by key, if the keys ``headers`` and ``fields`` have different numbers of names."""
    definition = HEADER_FROM.definition
    if len(settings.required_value(definition, "fields", tuple)) == len(
        settings.required_value(definition, "headers", tuple)
    ):
        return {}
    return settings.error_by_key("headers", f"It must have as many names as {settings.user_key('fields')}")


def _apply_header_from(rows: DataFrame, side: KeyOrValue, settings: PrefixedConfig) -> DataFrame:
    """HeaderFrom: copy or move fields into headers."""
    definition, columns = HEADER_FROM.definition, field_columns(rows, side)
    names = require_columns(list(settings.required_value(definition, "fields", tuple)), columns)
    headers = settings.required_value(definition, "headers", tuple)
    new_headers = [header_struct(name, columns[field]) for name, field in zip(headers, names, strict=True)]
    rows = append_headers(rows, new_headers)
    if settings.required_value(definition, "operation", str) == "copy":
        return rows
    return replace_all_fields(rows, side, {name: columns[name] for name in columns if name not in names})


HEADER_FROM = TransformType(
    short_class_name="HeaderFrom",
    java_package=CONNECT_TRANSFORMS_PACKAGE,
    has_key_and_value_classes=True,
    keys=(
        make_transform_config_key(
            "fields", "Columns whose values become headers.", "Columns", type_=Type.LIST, validator=name_list_error
        ),
        make_transform_config_key(
            "headers",
            "The headers' names, one for each column.",
            "Headers",
            type_=Type.LIST,
            validator=name_list_error,
        ),
        make_transform_config_key(
            "operation", "With move the columns are removed.", "Operation", validator=one_of(("copy", "move"))
        ),
        REPLACE_NULL_WITH_DEFAULT_KEY,
    ),
    apply=_apply_header_from,
    value_combination_errors=_header_count_errors,
    uses_headers=_always_uses_headers,
)


def _apply_insert_header(rows: DataFrame, side: KeyOrValue, settings: PrefixedConfig) -> DataFrame:
    name, text = (settings.required_value(INSERT_HEADER.definition, key, str) for key in ("header", "value.literal"))
    return append_headers(rows, [header_struct(name, F.lit(text))])


INSERT_HEADER = TransformType(
    short_class_name="InsertHeader",
    java_package=CONNECT_TRANSFORMS_PACKAGE,
    keys=(
        make_transform_config_key("header", "The header's name.", "Header", validator=blank_value_error),
        make_transform_config_key("value.literal", "The header's value.", "Value", validator=blank_value_error),
    ),
    apply=_apply_insert_header,
    uses_headers=_always_uses_headers,
)


def _apply_drop_headers(rows: DataFrame, side: KeyOrValue, settings: PrefixedConfig) -> DataFrame:
    names = list(settings.required_value(DROP_HEADERS.definition, "headers", tuple))
    kept_headers = F.filter(headers_or_empty_if_null(rows), lambda header: ~header["key"].isin(names))
    return rows.withColumn(MetadataColumn.HEADERS.value, kept_headers)


DROP_HEADERS = TransformType(
    short_class_name="DropHeaders",
    java_package=CONNECT_TRANSFORMS_PACKAGE,
    keys=(
        make_transform_config_key(
            "headers",
            "Names of the headers that are removed.",
            "Headers",
            type_=Type.LIST,
            validator=name_list_error,
        ),
    ),
    apply=_apply_drop_headers,
    uses_headers=_always_uses_headers,
)

# -- the topic --------------------------------------------------------------------------------------------------------


def _apply_regex_router(rows: DataFrame, side: KeyOrValue, settings: PrefixedConfig) -> DataFrame:
    """RegexRouter: a topic that ``regex`` matches as a whole becomes ``replacement``, in which ``$1`` is the first
    group; other topics stay.

    :raises ValueError: when the rows have no topic.
    :raises ConfigError: when ``regex`` is not valid.
    """
    definition, topic = REGEX_ROUTER.definition, required_metadata_column(rows, MetadataColumn.TOPIC)
    try:
        pattern = checked_whole_match_pattern(rows.sparkSession, settings.required_value(definition, "regex", str))
    except ValueError as error:
        raise settings.make_config_error("regex", str(error)) from error
    return rows.withColumn(
        MetadataColumn.TOPIC.value,
        F.regexp_replace(topic, pattern, settings.required_value(definition, "replacement", str)),
    )


REGEX_ROUTER = TransformType(
    short_class_name="RegexRouter",
    java_package=CONNECT_TRANSFORMS_PACKAGE,
    keys=(
        make_transform_config_key(
            "regex", "Java regular expression for the whole topic.", "Regular expression", validator=blank_value_error
        ),
        make_transform_config_key("replacement", "The new topic; $1 is the first group.", "Replacement"),
    ),
    apply=_apply_regex_router,
)


def _apply_timestamp_router(rows: DataFrame, side: KeyOrValue, settings: PrefixedConfig) -> DataFrame:
    """TimestampRouter: the topic becomes the text ``topic.format``, in which ``${topic}`` is replaced by the topic and
    ``${timestamp}`` by the record's time."""
    definition, topic = TIMESTAMP_ROUTER.definition, required_metadata_column(rows, MetadataColumn.TOPIC)
    topic_format = settings.required_value(definition, "topic.format", str)
    time_text = F.date_format(
        required_metadata_column(rows, MetadataColumn.TIMESTAMP),
        settings.required_value(definition, "timestamp.format", str),
    )
    topic_pieces: list[Column] = []
    for number, piece in enumerate(topic_format.split("${topic}")):
        topic_pieces += [topic] if number else []
        for index, literal in enumerate(piece.split("${timestamp}")):
            topic_pieces += [*([time_text] if index else []), F.lit(literal)]
    return rows.withColumn(MetadataColumn.TOPIC.value, F.concat(*topic_pieces))


TIMESTAMP_ROUTER = TransformType(
    short_class_name="TimestampRouter",
    java_package=CONNECT_TRANSFORMS_PACKAGE,
    keys=(
        make_transform_config_key(
            "topic.format", "The new topic.", "Topic", default="${topic}-${timestamp}", validator=blank_value_error
        ),
        make_transform_config_key(
            "timestamp.format", "Pattern of ${timestamp}, as of Spark's date_format.", "Time", default="yyyyMMdd"
        ),
    ),
    apply=_apply_timestamp_router,
)

# -- Filter -----------------------------------------------------------------------------------------------------------


def _missing_condition_errors(settings: PrefixedConfig) -> ErrorsByKey:
    """An error, by key, if a Filter has neither ``condition`` nor ``predicate``."""
    if any(settings.config.get(settings.user_key(name), "").strip() for name in ("condition", "predicate")):
        return {}
    name = settings.user_key("condition")
    return {name: [f'Missing required configuration "{name}" which has no default value.']}


def _apply_filter(rows: DataFrame, side: KeyOrValue, settings: PrefixedConfig) -> DataFrame:
    """Filter: keep only the rows for which ``condition`` is true; without a condition, drop all rows. With a predicate,
    only rows that match the predicate are dropped."""
    condition = settings.optional_value(FILTER.definition, "condition", str)
    return filter_rows_to_which_transform_applies(rows, F.lit(False) if condition is None else F.expr(condition))


FILTER = TransformType(
    short_class_name="Filter",
    java_package=CONNECT_TRANSFORMS_PACKAGE,
    keys=(
        make_transform_config_key(
            "condition",
            "SQL condition; rows for which it is true are kept. Without it, rows that match the predicate are dropped.",
            "Condition",
            is_optional=True,
            validator=blank_value_error,
        ),
    ),
    apply=_apply_filter,
    value_combination_errors=_missing_condition_errors,
)

TRANSFORM_TYPES = (HEADER_FROM, INSERT_HEADER, DROP_HEADERS, REGEX_ROUTER, TIMESTAMP_ROUTER, FILTER)
