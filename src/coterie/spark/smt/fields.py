"""Connect's transforms that rename, remove, mask, nest and convert columns of a value or fields of a key."""

from collections.abc import Mapping
from decimal import Decimal, InvalidOperation

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DateType,
    IntegralType,
    MapType,
    NumericType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from coterie.config.definition import Type, as_list, not_blank, one_of
from coterie.spark.prefixed_config import PrefixedConfig
from coterie.spark.record_columns import MetadataColumn, column, metadata_column, visible_names
from coterie.spark.smt.transform_type import (
    DEFAULTS,
    Errors,
    Side,
    TransformType,
    check_columns_exist,
    fields,
    key,
    not_empty_list,
    primitive_column,
    type_of,
    types,
    with_fields,
)

CONNECT = "org.apache.kafka.connect.transforms"
"""The Java package of Connect's transforms."""

# -- Cast -------------------------------------------------------------------------------------------------------------

CONNECT_TYPES: Mapping[str, str] = {
    "int8": "tinyint",
    "int16": "smallint",
    "int32": "int",
    "int64": "bigint",
    "float32": "float",
    "float64": "double",
    "boolean": "boolean",
    "string": "string",
    "bytes": "binary",
}
"""Spark's names of types, by Connect's names."""


def parse_cast(spec: str) -> dict[str, str]:
    """The new types in ``spec``, by column: ``price:decimal(10,2),distance:double``. A comma inside parentheses belongs
    to a type. A type alone, for a key or value that is not a struct, is returned under an empty name.

    :raises ValueError: when ``spec`` is not of this form; the message is for users. Whether the types exist is not
        checked.
    """
    items, depth = [""], 0
    for character in spec:
        depth += (character in "(<") - (character in ")>")
        if character == "," and depth == 0:
            items.append("")
        else:
            items[-1] += character
    if len(items) == 1 and spec.strip() and ":" not in spec:
        return {"": spec.strip()}
    found: dict[str, str] = {}
    for item in items:
        name, colon, type_ = (part.strip() for part in item.partition(":"))
        if not (name and colon and type_):
            raise ValueError(f"{item.strip()!r} is not column:type")
        if name in found:
            raise ValueError(f"column {name} is in the list twice")
        found[name] = type_
    return found


def _well_formed_cast(spec: str) -> str | None:
    """A check of a config value: None if :func:`parse_cast` accepts it, else the error message."""
    try:
        parse_cast(spec)
    except ValueError as error:
        return str(error)
    return None


def _cast_one(value: Column, before: DataType, name: str) -> Column:
    """``value``, a column of the type ``before``, cast to the type ``name``, which is Connect's or Spark's name."""
    if name == "int64" and isinstance(before, TimestampType):
        return F.unix_millis(value)  # As Connect casts its logical type Timestamp.
    return value.cast(CONNECT_TYPES.get(name, name))


def _cast(rows: DataFrame, side: Side, settings: PrefixedConfig) -> DataFrame:
    """Cast: change the types of fields, or of a key or value that is not a struct."""
    spec = parse_cast(settings.read(CAST.definition, "spec", str))
    if "" in spec:
        name = primitive_column(rows, side)
        if name is None:
            raise ValueError(f"{spec['']!r} is not column:type")
        return rows.withColumn(name, _cast_one(column(name), type_of(rows, name), spec[""]))
    before, now = types(rows, side), fields(rows, side)
    check_columns_exist(list(spec), before)
    return with_fields(
        rows, side, now | {name: _cast_one(now[name], before[name], type_) for name, type_ in spec.items()}
    )


CAST = TransformType(
    name="Cast",
    package=CONNECT,
    has_sides=True,
    keys=(
        key(
            "spec",
            "Columns and their new types: column:type,column:type.",
            "Types by column",
            validator=_well_formed_cast,
        ),
        DEFAULTS,
    ),
    apply=_cast,
)

# -- InsertField ------------------------------------------------------------------------------------------------------

_INSERTED = {
    "topic.field": (MetadataColumn.TOPIC, "the record's topic"),
    "partition.field": (MetadataColumn.PARTITION, "the record's partition"),
    "offset.field": (MetadataColumn.OFFSET, "the record's offset"),
    "timestamp.field": (MetadataColumn.TIMESTAMP, "the record's timestamp"),
}
"""By key of InsertField: the metadata column that is inserted, and its name in the documentation."""


def _inserts(settings: PrefixedConfig) -> Errors:
    """An error, by key, if InsertField inserts nothing, or a ``static.field`` without a ``static.value``."""
    values = {one.name: settings.find(INSERT_FIELD.definition, one.name, str) for one in INSERT_FIELD.keys[:6]}
    if values["static.field"] is not None and values["static.value"] is None:
        return {settings.key("static.value"): [f"{settings.key('static.field')} needs a value: set static.value"]}
    if not any(value for name, value in values.items() if name != "static.value"):
        return {settings.key("topic.field"): [f"Set at least one of {', '.join([*_INSERTED, 'static.field'])}"]}
    return {}


def _insert_field(rows: DataFrame, side: Side, settings: PrefixedConfig) -> DataFrame:
    """InsertField: add fields with the record's topic, partition, offset or timestamp, or with a fixed text."""
    own, made = INSERT_FIELD.definition, fields(rows, side)
    for name, (part, _) in _INSERTED.items():
        if (given := settings.find(own, name, str)) is not None:
            try:
                made[given.rstrip("?!")] = metadata_column(rows, part)
            except ValueError as error:
                raise settings.config_error(name, str(error)) from error
    if (given := settings.find(own, "static.field", str)) is not None:
        made[given.rstrip("?!")] = F.lit(settings.find(own, "static.value", str))
    return with_fields(rows, side, made)


INSERT_FIELD = TransformType(
    name="InsertField",
    package=CONNECT,
    has_sides=True,
    keys=(
        *(
            key(
                name, f"The column to which {what} is written.", f"Column of {what}", optional=True, validator=not_blank
            )
            for name, (_, what) in _INSERTED.items()
        ),
        key("static.field", "The column for static.value.", "Column of the text", optional=True, validator=not_blank),
        key("static.value", "The text of static.field.", "Text", optional=True),
        DEFAULTS,
    ),
    apply=_insert_field,
    check_values=_inserts,
)

# -- ReplaceField -----------------------------------------------------------------------------------------------------


def _pairs(value: str) -> dict[str, str]:
    """The new name by the old name, from ``value``: ``old:new,old:new``.

    :raises ValueError: when an item is not old:new.
    """
    found: dict[str, str] = {}
    for item in as_list(value):
        old, colon, new = (part.strip() for part in item.partition(":"))
        if not (old and colon and new) or ":" in new:
            raise ValueError(f"{item!r} is not old:new")
        found[old] = new
    return found


def _well_formed_renames(value: str) -> str | None:
    """A check of a config value: None if :func:`_pairs` accepts it, else the error message."""
    try:
        _pairs(value)
    except ValueError as error:
        return str(error)
    return None


def _replace_field(rows: DataFrame, side: Side, settings: PrefixedConfig) -> DataFrame:
    """ReplaceField: remove and rename fields."""
    own, there = REPLACE_FIELD.definition, fields(rows, side)
    include, exclude = (list(settings.read(own, name, tuple)) for name in ("include", "exclude"))
    renames = _pairs(",".join(settings.read(own, "renames", tuple)))
    for name, named in (("include", include), ("exclude", exclude), ("renames", list(renames))):
        try:
            check_columns_exist(named, there)
        except ValueError as error:
            raise settings.config_error(name, str(error)) from error
    left = [name for name in there if name not in exclude and (not include or name in include)]
    new = [renames.get(name, name) for name in left]
    if twice := sorted({name for name in new if new.count(name) > 1}):
        raise settings.config_error("renames", f"two columns would have the name {', '.join(twice)}")
    return with_fields(rows, side, {renames.get(name, name): there[name] for name in left})


REPLACE_FIELD = TransformType(
    name="ReplaceField",
    package=CONNECT,
    has_sides=True,
    keys=(
        key("exclude", "Columns that are removed.", "Removed columns", type_=Type.LIST, default=""),
        key("include", "The only columns that stay; empty means all.", "Kept columns", type_=Type.LIST, default=""),
        key(
            "renames",
            "New names: old:new,old:new.",
            "New names",
            type_=Type.LIST,
            default="",
            validator=_well_formed_renames,
        ),
        DEFAULTS,
    ),
    apply=_replace_field,
)

# -- MaskField --------------------------------------------------------------------------------------------------------


def _replaced(name: str, type_: DataType, replacement: str) -> Column:
    """The configured ``replacement`` as a column of the type ``type_``, that of the column ``name``.

    :raises ValueError: when ``type_`` is neither text nor a number, or ``replacement`` is not a value of it.
    """
    if isinstance(type_, StringType):
        return F.lit(replacement)
    if not isinstance(type_, NumericType):
        raise ValueError(f"column {name} is neither text nor a number")
    try:
        number = Decimal(replacement)
    except InvalidOperation:
        number = Decimal("NaN")
    if not number.is_finite() or (isinstance(type_, IntegralType) and number != number.to_integral_value()):
        raise ValueError(f"the replacement is not a value of type {type_.simpleString()}, the type of column {name}")
    return F.lit(replacement).cast(type_)


def _empty(name: str, type_: DataType) -> Column:
    """The empty value (0, False, an empty text, ...) by which Connect's MaskField replaces values of the type
    ``type_``, that of the column ``name``.

    :raises ValueError: when this type has no empty value; the message names the column.
    """
    match type_:
        case StringType():
            return F.lit("")
        case BooleanType():
            return F.lit(False)
        case NumericType():
            return F.lit(0).cast(type_)
        case DateType() | TimestampType() | TimestampNTZType():
            return F.lit("1970-01-01").cast(type_)
        case ArrayType():
            return F.array().cast(type_)
        case MapType():
            return F.create_map().cast(type_)
        case _:
            raise ValueError(f"column {name} is a {type_.simpleString()}, which has no empty value")


def _mask_field(rows: DataFrame, side: Side, settings: PrefixedConfig) -> DataFrame:
    """MaskField: replace the values of fields by empty values or by a replacement; a null stays null."""
    own, there, made = MASK_FIELD.definition, types(rows, side), fields(rows, side)
    replacement = settings.find(own, "replacement", str)
    for name in check_columns_exist(list(settings.read(own, "fields", tuple)), there):
        try:
            mask = _empty(name, there[name]) if replacement is None else _replaced(name, there[name], replacement)
        except ValueError as error:
            raise settings.config_error("fields" if replacement is None else "replacement", str(error)) from error
        made[name] = F.when(made[name].isNotNull(), mask)
    return with_fields(rows, side, made)


MASK_FIELD = TransformType(
    name="MaskField",
    package=CONNECT,
    has_sides=True,
    keys=(
        key("fields", "Columns that are masked.", "Masked columns", type_=Type.LIST, validator=not_empty_list),
        key(
            "replacement",
            "A text or number instead of the empty value.",
            "Replacement",
            optional=True,
            validator=not_blank,
        ),
        DEFAULTS,
    ),
    apply=_mask_field,
)

# -- ValueToKey, HoistField, ExtractField, Flatten --------------------------------------------------------------------


def _value_to_key(rows: DataFrame, side: Side, settings: PrefixedConfig) -> DataFrame:
    """ValueToKey: the record's key becomes a struct of fields of the value."""
    there = fields(rows, Side.VALUE)
    names = check_columns_exist(list(settings.read(VALUE_TO_KEY.definition, "fields", tuple)), there)
    return rows.withColumn(MetadataColumn.KEY.value, F.struct(*(there[name].alias(name) for name in names)))


VALUE_TO_KEY = TransformType(
    name="ValueToKey",
    package=CONNECT,
    keys=(
        key(
            "fields",
            "Columns that form the record's key.",
            "Columns of the key",
            type_=Type.LIST,
            validator=not_empty_list,
        ),
        DEFAULTS,
    ),
    apply=_value_to_key,
)


def _hoist_field(rows: DataFrame, side: Side, settings: PrefixedConfig) -> DataFrame:
    """HoistField: the key or value becomes a struct with one field, which contains the former key or value."""
    name = settings.read(HOIST_FIELD.definition, "field", str)
    if side is Side.KEY:
        return rows.withColumn(
            MetadataColumn.KEY.value, F.struct(metadata_column(rows, MetadataColumn.KEY).alias(name))
        )
    if (only := primitive_column(rows, side)) is not None:
        return with_fields(rows, side, {name: column(only)})
    return with_fields(rows, side, {name: F.struct(*map(column, visible_names(rows)))})


HOIST_FIELD = TransformType(
    name="HoistField",
    package=CONNECT,
    has_sides=True,
    keys=(key("field", "The column that will contain the whole value.", "Column", validator=not_blank),),
    apply=_hoist_field,
)


def _path(text: str) -> list[str]:
    """The names in a path of nested fields, which are separated by dots; a name between backticks may contain dots
    (KIP-821)."""
    names, rest = [], text
    while rest:
        if rest.startswith("`") and "`" in rest[1:]:
            name, _, rest = rest[1:].partition("`")
            rest = rest.removeprefix(".")
        else:
            name, _, rest = rest.partition(".")
        names.append(name)
    return names


def _extract_field(rows: DataFrame, side: Side, settings: PrefixedConfig) -> DataFrame:
    """ExtractField: the key or value becomes the value of one of its fields."""
    own = EXTRACT_FIELD.definition
    text = settings.read(own, "field", str)
    path = _path(text) if settings.read(own, "field.syntax.version", str) == "V2" else [text]
    there = types(rows, side)
    found, type_ = fields(rows, side)[check_columns_exist([path[0]], there)[0]], there[path[0]]
    for name in path[1:]:
        if not isinstance(type_, StructType):
            raise ValueError(f"there is no field {name}: column {path[0]} is not nested so deep")
        inner = {field.name: field.dataType for field in type_.fields}
        found, type_ = found[check_columns_exist([name], inner)[0]], inner[name]
    if side is Side.KEY:
        return rows.withColumn(MetadataColumn.KEY.value, found)
    if isinstance(type_, StructType):
        return with_fields(rows, side, {field.name: found[field.name] for field in type_.fields})
    return with_fields(rows, side, {"value": found})


EXTRACT_FIELD = TransformType(
    name="ExtractField",
    package=CONNECT,
    has_sides=True,
    keys=(
        key("field", "The column that becomes the value.", "Column", validator=not_blank),
        key(
            "field.syntax.version",
            "With V2 the field is a path, with dots.",
            "Syntax of the field",
            default="V1",
            validator=one_of(("V1", "V2")),
        ),
        DEFAULTS,
    ),
    apply=_extract_field,
)


def _flat(prefix: str, value: Column, type_: DataType, delimiter: str) -> dict[str, Column]:
    """The innermost fields of ``value``, a column of the type ``type_``, by their flat names, which start with
    ``prefix``; ``value`` itself by ``prefix`` if it is not a struct."""
    if not isinstance(type_, StructType):
        return {prefix: value}
    flat: dict[str, Column] = {}
    for field in type_.fields:
        flat |= _flat(f"{prefix}{delimiter}{field.name}", value[field.name], field.dataType, delimiter)
    return flat


def _flatten(rows: DataFrame, side: Side, settings: PrefixedConfig) -> DataFrame:
    """Flatten: replace each field that is a struct by its innermost fields."""
    delimiter = settings.read(FLATTEN.definition, "delimiter", str)
    there, made = fields(rows, side), list[tuple[str, Column]]()
    for name, type_ in types(rows, side).items():
        made += _flat(name, there[name], type_, delimiter).items()
    names = [name for name, _ in made]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"two columns would have the name {', '.join(twice)}")
    return with_fields(rows, side, dict(made))


FLATTEN = TransformType(
    name="Flatten",
    package=CONNECT,
    has_sides=True,
    keys=(key("delimiter", "Text between the names of the levels.", "Delimiter", default="."),),
    apply=_flatten,
)

# -- TimestampConverter -----------------------------------------------------------------------------------------------

_PRECISIONS = ("seconds", "milliseconds", "microseconds", "nanoseconds")
"""The units of a time that is a whole number, counted from 1970-01-01 00:00 UTC."""


def _needs_format(settings: PrefixedConfig) -> Errors:
    """An error, by key, if the target of TimestampConverter is text and ``format`` is not set."""
    own = TIMESTAMP_CONVERTER.definition
    if settings.read(own, "target.type", str) == "string" and not settings.read(own, "format", str):
        return {settings.key("format"): [f"{settings.key('target.type')}=string needs a format"]}
    return {}


def _moment(value: Column, type_: DataType, format_: str, precision: str) -> Column:
    """``value``, a column of the type ``type_``, as a timestamp. ``format_``: the pattern of times that are text.
    ``precision``: the unit of times that are whole numbers.

    :raises ValueError: when a column of this type cannot contain a time, or is text and ``format_`` is empty.
    """
    match type_:
        case TimestampType():
            return value
        case TimestampNTZType() | DateType():
            return value.cast("timestamp")
        case StringType():
            if not format_:
                raise ValueError("the column is text, and text needs a format: set format")
            return F.to_timestamp(value, format_)
        case IntegralType():
            number = value.cast("bigint")
            match precision:
                case "seconds":
                    return F.timestamp_seconds(number)
                case "milliseconds":
                    return F.timestamp_millis(number)
                case "microseconds":
                    return F.timestamp_micros(number)
                case _:
                    return F.timestamp_micros(F.floor(number / F.lit(1000)).cast("bigint"))
        case _:
            raise ValueError(f"the column has type {type_.simpleString()}, and must be a time, text or a whole number")


def _as_target(moment: Column, target: str, format_: str, precision: str) -> Column:
    """The timestamp ``moment``, converted to the type that the value ``target`` of ``target.type`` names."""
    match target:
        case "string":
            return F.date_format(moment, format_)
        case "Date":
            return F.to_date(moment)
        case "unix":
            match precision:
                case "seconds":
                    return F.unix_seconds(moment)
                case "milliseconds":
                    return F.unix_millis(moment)
                case "microseconds":
                    return F.unix_micros(moment)
                case _:
                    return F.unix_micros(moment) * F.lit(1000)
        case _:
            return moment


def _timestamp_converter(rows: DataFrame, side: Side, settings: PrefixedConfig) -> DataFrame:
    """TimestampConverter: convert one field, or a key or value that is not a struct, to another type of time."""
    own = TIMESTAMP_CONVERTER.definition
    name, target, format_, precision = (
        settings.read(own, each, str) for each in ("field", "target.type", "format", "unix.precision")
    )

    def converted(value: Column, type_: DataType) -> Column:
        return _as_target(_moment(value, type_, format_, precision), target, format_, precision)

    if not name:
        only = primitive_column(rows, side)
        if only is None:
            raise ValueError("name a column: the rows have several")
        return rows.withColumn(only, converted(column(only), type_of(rows, only)))
    there, made = types(rows, side), fields(rows, side)
    check_columns_exist([name], there)
    return with_fields(rows, side, made | {name: converted(made[name], there[name])})


def _target(value: str) -> str | None:
    """A check of a value of ``target.type``: None if it is supported, else the error message."""
    if value == "Time":
        return "Time is not supported: rows have no type for a time of day. Use string with a format like HH:mm:ss"
    return one_of(("string", "unix", "Date", "Timestamp"))(value)


TIMESTAMP_CONVERTER = TransformType(
    name="TimestampConverter",
    package=CONNECT,
    has_sides=True,
    keys=(
        key("field", "The column; empty when the whole key or value is the time.", "Column", default=""),
        key("target.type", "The new type: string, unix, Date or Timestamp.", "Target type", validator=_target),
        key("format", "Pattern of text, as of Spark's date_format.", "Format", default=""),
        key(
            "unix.precision",
            "The unit of whole numbers.",
            "Unit",
            default="milliseconds",
            validator=one_of(_PRECISIONS),
        ),
        DEFAULTS,
    ),
    apply=_timestamp_converter,
    check_values=_needs_format,
)

# -- SetSchemaMetadata ------------------------------------------------------------------------------------------------

SET_SCHEMA_METADATA = TransformType(
    name="SetSchemaMetadata",
    package=CONNECT,
    has_sides=True,
    keys=(
        key("schema.name", "Without effect: the schema of rows has no name.", "Schema name", optional=True),
        key("schema.version", "Without effect, as schema.name.", "Schema version", type_=Type.INT, optional=True),
        DEFAULTS,
    ),
    apply=lambda rows, side, settings: rows,
)

TRANSFORM_TYPES = (
    CAST,
    INSERT_FIELD,
    REPLACE_FIELD,
    MASK_FIELD,
    VALUE_TO_KEY,
    HOIST_FIELD,
    EXTRACT_FIELD,
    FLATTEN,
    TIMESTAMP_CONVERTER,
    SET_SCHEMA_METADATA,
)
