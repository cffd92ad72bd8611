"""Connect's transforms of a record's headers and topic, and the transform that drops records."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from coterie.config.definition import Type, not_blank, one_of
from coterie.spark.end_config import EndConfig
from coterie.spark.record import HEADERS_TYPE, Part, part_of
from coterie.spark.smt.fields import CONNECT
from coterie.spark.smt.kind import DEFAULTS, Errors, Kind, Side, fields, keep, key, known, names_given, with_fields
from coterie.spark.smt.patterns import whole_match

# -- headers ----------------------------------------------------------------------------------------------------------


def _uses_headers(settings: EndConfig) -> bool:
    return True


def headers_of(rows: DataFrame) -> Column:
    """The headers; an empty array instead of null.

    :raises ValueError: when the rows have no metadata column for headers.
    """
    return F.coalesce(part_of(rows, Part.HEADERS), F.array().cast(HEADERS_TYPE))


def header(name: str, value: Column) -> Column:
    """A header whose value is the text of ``value`` in UTF-8."""
    return F.struct(F.lit(name).alias("key"), F.encode(value.cast("string"), "UTF-8").alias("value"))


def with_headers(rows: DataFrame, added: list[Column]) -> DataFrame:
    """``rows`` with the headers ``added`` after the existing headers."""
    if not added:
        return rows
    return rows.withColumn(Part.HEADERS.value, F.concat(headers_of(rows), F.array(*added).cast(HEADERS_TYPE)))


def _counts(settings: EndConfig) -> Errors:
    own = HEADER_FROM.definition
    if len(settings.read(own, "fields", tuple)) == len(settings.read(own, "headers", tuple)):
        return {}
    return settings.error("headers", f"It must have as many names as {settings.key('fields')}")


def _header_from(rows: DataFrame, side: Side, settings: EndConfig) -> DataFrame:
    own, there = HEADER_FROM.definition, fields(rows, side)
    names = known(list(settings.read(own, "fields", tuple)), there)
    headers = settings.read(own, "headers", tuple)
    added = [header(name, there[field]) for name, field in zip(headers, names, strict=True)]
    rows = with_headers(rows, added)
    if settings.read(own, "operation", str) == "copy":
        return rows
    return with_fields(rows, side, {name: there[name] for name in there if name not in names})


HEADER_FROM = Kind(
    name="HeaderFrom",
    package=CONNECT,
    has_sides=True,
    keys=(
        key("fields", "Columns whose values become headers.", "Columns", type_=Type.LIST, check=names_given),
        key("headers", "The headers' names, one for each column.", "Headers", type_=Type.LIST, check=names_given),
        key("operation", "With move the columns are removed.", "Operation", check=one_of(("copy", "move"))),
        DEFAULTS,
    ),
    apply=_header_from,
    check=_counts,
    uses_headers=_uses_headers,
)


def _insert_header(rows: DataFrame, side: Side, settings: EndConfig) -> DataFrame:
    name, text = (settings.read(INSERT_HEADER.definition, each, str) for each in ("header", "value.literal"))
    return with_headers(rows, [header(name, F.lit(text))])


INSERT_HEADER = Kind(
    name="InsertHeader",
    package=CONNECT,
    keys=(
        key("header", "The header's name.", "Header", check=not_blank),
        key("value.literal", "The header's value.", "Value", check=not_blank),
    ),
    apply=_insert_header,
    uses_headers=_uses_headers,
)


def _drop_headers(rows: DataFrame, side: Side, settings: EndConfig) -> DataFrame:
    names = list(settings.read(DROP_HEADERS.definition, "headers", tuple))
    left = F.filter(headers_of(rows), lambda one: ~one["key"].isin(names))
    return rows.withColumn(Part.HEADERS.value, left)


DROP_HEADERS = Kind(
    name="DropHeaders",
    package=CONNECT,
    keys=(key("headers", "Names of the headers that are removed.", "Headers", type_=Type.LIST, check=names_given),),
    apply=_drop_headers,
    uses_headers=_uses_headers,
)

# -- the topic --------------------------------------------------------------------------------------------------------


def _regex_router(rows: DataFrame, side: Side, settings: EndConfig) -> DataFrame:
    own, topic = REGEX_ROUTER.definition, part_of(rows, Part.TOPIC)
    try:
        pattern = whole_match(rows.sparkSession, settings.read(own, "regex", str))
    except ValueError as error:
        raise settings.refused("regex", str(error)) from error
    return rows.withColumn(Part.TOPIC.value, F.regexp_replace(topic, pattern, settings.read(own, "replacement", str)))


REGEX_ROUTER = Kind(
    name="RegexRouter",
    package=CONNECT,
    keys=(
        key("regex", "Java regular expression for the whole topic.", "Regular expression", check=not_blank),
        key("replacement", "The new topic; $1 is the first group.", "Replacement"),
    ),
    apply=_regex_router,
)


def _timestamp_router(rows: DataFrame, side: Side, settings: EndConfig) -> DataFrame:
    own, topic = TIMESTAMP_ROUTER.definition, part_of(rows, Part.TOPIC)
    text = settings.read(own, "topic.format", str)
    at = F.date_format(part_of(rows, Part.TIMESTAMP), settings.read(own, "timestamp.format", str))
    made: list[Column] = []
    for number, piece in enumerate(text.split("${topic}")):
        made += [topic] if number else []
        for place, literal in enumerate(piece.split("${timestamp}")):
            made += [*([at] if place else []), F.lit(literal)]
    return rows.withColumn(Part.TOPIC.value, F.concat(*made))


TIMESTAMP_ROUTER = Kind(
    name="TimestampRouter",
    package=CONNECT,
    keys=(
        key("topic.format", "The new topic.", "Topic", default="${topic}-${timestamp}", check=not_blank),
        key("timestamp.format", "Pattern of ${timestamp}, as of Spark's date_format.", "Time", default="yyyyMMdd"),
    ),
    apply=_timestamp_router,
)

# -- Filter -----------------------------------------------------------------------------------------------------------


def _drops_something(settings: EndConfig) -> Errors:
    if any(settings.config.get(settings.key(name), "").strip() for name in ("condition", "predicate")):
        return {}
    name = settings.key("condition")
    return {name: [f'Missing required configuration "{name}" which has no default value.']}


def _filter(rows: DataFrame, side: Side, settings: EndConfig) -> DataFrame:
    condition = settings.find(FILTER.definition, "condition", str)
    return keep(rows, F.lit(False) if condition is None else F.expr(condition))


FILTER = Kind(
    name="Filter",
    package=CONNECT,
    keys=(
        key(
            "condition",
            "SQL condition; rows for which it is true are kept. Without it, rows that match the predicate are dropped.",
            "Condition",
            optional=True,
            check=not_blank,
        ),
    ),
    apply=_filter,
    check=_drops_something,
)

KINDS = (HEADER_FROM, INSERT_HEADER, DROP_HEADERS, REGEX_ROUTER, TIMESTAMP_ROUTER, FILTER)
