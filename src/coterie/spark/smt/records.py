"""Connect's transforms of a record's headers and topic, and the transform that drops records."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from coterie.config.definition import Type, not_blank, one_of
from coterie.spark.prefixed_config import PrefixedConfig
from coterie.spark.record_columns import HEADERS_TYPE, MetadataColumn, metadata_column
from coterie.spark.smt.fields import CONNECT
from coterie.spark.smt.patterns import whole_match
from coterie.spark.smt.transform_type import (
    DEFAULTS,
    Errors,
    Side,
    TransformType,
    check_columns_exist,
    fields,
    filter_rows,
    key,
    not_empty_list,
    with_fields,
)

# -- headers ----------------------------------------------------------------------------------------------------------


def _uses_headers(settings: PrefixedConfig) -> bool:
    """True: the :attr:`TransformType.uses_headers` of the transforms of headers."""
    return True


def headers_of(rows: DataFrame) -> Column:
    """The column with the headers of each row; an empty array instead of null.

    :raises ValueError: when the rows have no metadata column for headers.
    """
    return F.coalesce(metadata_column(rows, MetadataColumn.HEADERS), F.array().cast(HEADERS_TYPE))


def header(name: str, value: Column) -> Column:
    """A header with the name ``name``, as a struct. Its value is ``value`` as text, in UTF-8."""
    return F.struct(F.lit(name).alias("key"), F.encode(value.cast("string"), "UTF-8").alias("value"))


def with_headers(rows: DataFrame, added: list[Column]) -> DataFrame:
    """``rows`` with the headers ``added``, made by :func:`header`, after the existing headers.

    :raises ValueError: when ``added`` is not empty and the rows have no metadata column for headers.
    """
    if not added:
        return rows
    return rows.withColumn(MetadataColumn.HEADERS.value, F.concat(headers_of(rows), F.array(*added).cast(HEADERS_TYPE)))


def _counts(settings: PrefixedConfig) -> Errors:
    """An error, by key, if ``headers`` and ``fields`` have different numbers of names."""
    own = HEADER_FROM.definition
    if len(settings.read(own, "fields", tuple)) == len(settings.read(own, "headers", tuple)):
        return {}
    return settings.error_by_key("headers", f"It must have as many names as {settings.key('fields')}")


def _header_from(rows: DataFrame, side: Side, settings: PrefixedConfig) -> DataFrame:
    """HeaderFrom: copy or move fields into headers."""
    own, there = HEADER_FROM.definition, fields(rows, side)
    names = check_columns_exist(list(settings.read(own, "fields", tuple)), there)
    headers = settings.read(own, "headers", tuple)
    added = [header(name, there[field]) for name, field in zip(headers, names, strict=True)]
    rows = with_headers(rows, added)
    if settings.read(own, "operation", str) == "copy":
        return rows
    return with_fields(rows, side, {name: there[name] for name in there if name not in names})


HEADER_FROM = TransformType(
    name="HeaderFrom",
    package=CONNECT,
    has_sides=True,
    keys=(
        key("fields", "Columns whose values become headers.", "Columns", type_=Type.LIST, validator=not_empty_list),
        key(
            "headers", "The headers' names, one for each column.", "Headers", type_=Type.LIST, validator=not_empty_list
        ),
        key("operation", "With move the columns are removed.", "Operation", validator=one_of(("copy", "move"))),
        DEFAULTS,
    ),
    apply=_header_from,
    check_values=_counts,
    uses_headers=_uses_headers,
)


def _insert_header(rows: DataFrame, side: Side, settings: PrefixedConfig) -> DataFrame:
    name, text = (settings.read(INSERT_HEADER.definition, each, str) for each in ("header", "value.literal"))
    return with_headers(rows, [header(name, F.lit(text))])


INSERT_HEADER = TransformType(
    name="InsertHeader",
    package=CONNECT,
    keys=(
        key("header", "The header's name.", "Header", validator=not_blank),
        key("value.literal", "The header's value.", "Value", validator=not_blank),
    ),
    apply=_insert_header,
    uses_headers=_uses_headers,
)


def _drop_headers(rows: DataFrame, side: Side, settings: PrefixedConfig) -> DataFrame:
    names = list(settings.read(DROP_HEADERS.definition, "headers", tuple))
    left = F.filter(headers_of(rows), lambda one: ~one["key"].isin(names))
    return rows.withColumn(MetadataColumn.HEADERS.value, left)


DROP_HEADERS = TransformType(
    name="DropHeaders",
    package=CONNECT,
    keys=(
        key("headers", "Names of the headers that are removed.", "Headers", type_=Type.LIST, validator=not_empty_list),
    ),
    apply=_drop_headers,
    uses_headers=_uses_headers,
)

# -- the topic --------------------------------------------------------------------------------------------------------


def _regex_router(rows: DataFrame, side: Side, settings: PrefixedConfig) -> DataFrame:
    """RegexRouter: a topic that ``regex`` matches as a whole becomes ``replacement``; other topics stay."""
    own, topic = REGEX_ROUTER.definition, metadata_column(rows, MetadataColumn.TOPIC)
    try:
        pattern = whole_match(rows.sparkSession, settings.read(own, "regex", str))
    except ValueError as error:
        raise settings.config_error("regex", str(error)) from error
    return rows.withColumn(
        MetadataColumn.TOPIC.value, F.regexp_replace(topic, pattern, settings.read(own, "replacement", str))
    )


REGEX_ROUTER = TransformType(
    name="RegexRouter",
    package=CONNECT,
    keys=(
        key("regex", "Java regular expression for the whole topic.", "Regular expression", validator=not_blank),
        key("replacement", "The new topic; $1 is the first group.", "Replacement"),
    ),
    apply=_regex_router,
)


def _timestamp_router(rows: DataFrame, side: Side, settings: PrefixedConfig) -> DataFrame:
    """TimestampRouter: the topic becomes ``topic.format``, with the topic and the record's time in it."""
    own, topic = TIMESTAMP_ROUTER.definition, metadata_column(rows, MetadataColumn.TOPIC)
    text = settings.read(own, "topic.format", str)
    at = F.date_format(metadata_column(rows, MetadataColumn.TIMESTAMP), settings.read(own, "timestamp.format", str))
    made: list[Column] = []
    for number, piece in enumerate(text.split("${topic}")):
        made += [topic] if number else []
        for place, literal in enumerate(piece.split("${timestamp}")):
            made += [*([at] if place else []), F.lit(literal)]
    return rows.withColumn(MetadataColumn.TOPIC.value, F.concat(*made))


TIMESTAMP_ROUTER = TransformType(
    name="TimestampRouter",
    package=CONNECT,
    keys=(
        key("topic.format", "The new topic.", "Topic", default="${topic}-${timestamp}", validator=not_blank),
        key("timestamp.format", "Pattern of ${timestamp}, as of Spark's date_format.", "Time", default="yyyyMMdd"),
    ),
    apply=_timestamp_router,
)

# -- Filter -----------------------------------------------------------------------------------------------------------


def _drops_something(settings: PrefixedConfig) -> Errors:
    """An error, by key, if neither ``condition`` nor ``predicate`` is set."""
    if any(settings.config.get(settings.key(name), "").strip() for name in ("condition", "predicate")):
        return {}
    name = settings.key("condition")
    return {name: [f'Missing required configuration "{name}" which has no default value.']}


def _filter(rows: DataFrame, side: Side, settings: PrefixedConfig) -> DataFrame:
    """Filter: keep only the rows for which ``condition`` is true; without a condition, drop all rows. With a predicate,
    only rows that match the predicate are dropped."""
    condition = settings.find(FILTER.definition, "condition", str)
    return filter_rows(rows, F.lit(False) if condition is None else F.expr(condition))


FILTER = TransformType(
    name="Filter",
    package=CONNECT,
    keys=(
        key(
            "condition",
            "SQL condition; rows for which it is true are kept. Without it, rows that match the predicate are dropped.",
            "Condition",
            optional=True,
            validator=not_blank,
        ),
    ),
    apply=_filter,
    check_values=_drops_something,
)

TRANSFORM_TYPES = (HEADER_FROM, INSERT_HEADER, DROP_HEADERS, REGEX_ROUTER, TIMESTAMP_ROUTER, FILTER)
