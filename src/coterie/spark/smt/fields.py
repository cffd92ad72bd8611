"""Connect's transforms that rename, remove, mask, nest and convert columns of a value or fields of a key."""

from collections.abc import Mapping
from decimal import Decimal, InvalidOperation

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
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

from coterie.config.definition import Type, blank_value_error, one_of, split_list
from coterie.spark.prefixed_config import PrefixedConfig
from coterie.spark.record_columns import (
    MetadataColumn,
    exact_column,
    has_metadata_column,
    required_metadata_column,
    visible_column_names,
)
from coterie.spark.smt.transform_type import (
    REPLACE_NULL_WITH_DEFAULT_KEY,
    ErrorsByKey,
    KeyOrValue,
    TransformType,
    column_type,
    field_columns,
    field_types,
    make_transform_config_key,
    name_list_error,
    non_struct_column_name_or_none,
    replace_all_fields,
    require_columns,
)

CONNECT_TRANSFORMS_PACKAGE = "org.apache.kafka.connect.transforms"
"""The Java package of Connect's transforms."""

# -- Cast -------------------------------------------------------------------------------------------------------------

SPARK_TYPE_BY_CONNECT_TYPE: Mapping[str, str] = {
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
"""Spark's name of each type of Connect, by Connect's name."""


def parse_cast_spec(spec: str) -> dict[str, str]:
    """The new types in ``spec``, by column: ``price:decimal(10,2),distance:double``. A comma between brackets
    belongs to a type. A type alone, for a key or value that is not a struct, is returned under an empty name.

    :raises ValueError: when ``spec`` is not of this form; the message is for users. Whether the types exist is not
        checked.
    """
    items, depth = [""], 0
    for character in spec:
        # A column's name may contain brackets, too: these do not count. A type alone has no column before it.
        if ":" in items[-1] or ":" not in spec:
            depth += (character in "(<") - (character in ")>")
        if character == "," and depth == 0:
            items.append("")
        else:
            items[-1] += character
    if len(items) == 1 and spec.strip() and ":" not in spec:
        return {"": spec.strip()}
    type_by_column: dict[str, str] = {}
    for item in items:
        name, colon, type_ = (item_part.strip() for item_part in item.partition(":"))
        if not (name and colon and type_):
            raise ValueError(f"{item.strip()!r} is not column:type")
        if name in type_by_column:
            raise ValueError(f"column {name} is in the list twice")
        type_by_column[name] = type_
    return type_by_column


def _cast_spec_error(spec: str) -> str | None:
    """A validator: None if :func:`parse_cast_spec` accepts ``spec``, else the error message."""
    try:
        parse_cast_spec(spec)
    except ValueError as error:
        return str(error)
    return None


def _cast_column(value: Column, old_type: DataType, new_type_name: str) -> Column:
    """``value``, a column of the type ``old_type``, cast to the type ``new_type_name``, a name of Connect or Spark."""
    if new_type_name == "int64" and isinstance(old_type, TimestampType):
        return F.unix_millis(value)  # As Connect casts its logical type Timestamp.
    return value.cast(SPARK_TYPE_BY_CONNECT_TYPE.get(new_type_name, new_type_name))


def _apply_cast(rows: DataFrame, side: KeyOrValue, settings: PrefixedConfig) -> DataFrame:
    """Cast: change the types of fields, or of a key or value that is not a struct.

    :raises ValueError: when the columns do not fit: see :attr:`TransformType.apply`.
    """
    spec = parse_cast_spec(settings.required_value(CAST.definition, "spec", str))
    if "" in spec:
        name = non_struct_column_name_or_none(rows, side)
        if name is None:
            raise ValueError(f"{spec['']!r} is not column:type, but the {side.value.lower()} is a struct")
        return rows.withColumn(name, _cast_column(exact_column(name), column_type(rows, name), spec[""]))
    old_types, columns = field_types(rows, side), field_columns(rows, side)
    require_columns(list(spec), old_types)
    return replace_all_fields(
        rows,
        side,
        columns | {name: _cast_column(columns[name], old_types[name], type_) for name, type_ in spec.items()},
    )


CAST = TransformType(
    short_class_name="Cast",
    java_package=CONNECT_TRANSFORMS_PACKAGE,
    has_key_and_value_classes=True,
    keys=(
        make_transform_config_key(
            "spec",
            "Columns and their new types: column:type,column:type.",
            "Types by column",
            validator=_cast_spec_error,
        ),
        REPLACE_NULL_WITH_DEFAULT_KEY,
    ),
    apply=_apply_cast,
)

# -- InsertField ------------------------------------------------------------------------------------------------------

_METADATA_BY_INSERT_KEY = {
    "topic.field": (MetadataColumn.TOPIC, "the record's topic"),
    "partition.field": (MetadataColumn.PARTITION, "the record's partition"),
    "offset.field": (MetadataColumn.OFFSET, "the record's offset"),
    "timestamp.field": (MetadataColumn.TIMESTAMP, "the record's timestamp"),
}
"""By key of InsertField: the metadata column that is inserted, and its description in the documentation of the key."""


def _insert_field_config_errors(settings: PrefixedConfig) -> ErrorsByKey:
    """An error, by key, if InsertField would insert nothing, or has a ``static.field`` without a ``static.value``."""
    values = {
        key.name: settings.optional_value(INSERT_FIELD.definition, key.name, str) for key in INSERT_FIELD.keys[:6]
    }
    if values["static.field"] is not None and values["static.value"] is None:
        return {
            settings.user_key("static.value"): [f"{settings.user_key('static.field')} needs a value: set static.value"]
        }
    if not any(value for name, value in values.items() if name != "static.value"):
        return {
            settings.user_key("topic.field"): [
                f"Set at least one of {', '.join([*_METADATA_BY_INSERT_KEY, 'static.field'])}"
            ]
        }
    return {}


def _apply_insert_field(rows: DataFrame, side: KeyOrValue, settings: PrefixedConfig) -> DataFrame:
    """InsertField: add fields with the record's topic, partition, offset or timestamp, or with a fixed text. A new
    field replaces an existing one of its name.

    :raises ValueError, ConfigError: when the columns do not fit: see :attr:`TransformType.apply`.
    """
    definition, new_fields = INSERT_FIELD.definition, field_columns(rows, side)
    for name, (metadata, _) in _METADATA_BY_INSERT_KEY.items():
        if (field_name := settings.optional_value(definition, name, str)) is not None:
            try:
                new_fields[field_name.rstrip("?!")] = required_metadata_column(rows, metadata)
            except ValueError as error:
                raise settings.make_config_error(name, str(error)) from error
    if (field_name := settings.optional_value(definition, "static.field", str)) is not None:
        new_fields[field_name.rstrip("?!")] = F.lit(settings.optional_value(definition, "static.value", str))
    return replace_all_fields(rows, side, new_fields)


INSERT_FIELD = TransformType(
    short_class_name="InsertField",
    java_package=CONNECT_TRANSFORMS_PACKAGE,
    has_key_and_value_classes=True,
    keys=(
        *(
            make_transform_config_key(
                name,
                f"The column to which {what} is written.",
                f"Column of {what}",
                is_optional=True,
                validator=blank_value_error,
            )
            for name, (_, what) in _METADATA_BY_INSERT_KEY.items()
        ),
        make_transform_config_key(
            "static.field",
            "The column for static.value.",
            "Column of the text",
            is_optional=True,
            validator=blank_value_error,
        ),
        make_transform_config_key("static.value", "The text of static.field.", "Text", is_optional=True),
        REPLACE_NULL_WITH_DEFAULT_KEY,
    ),
    apply=_apply_insert_field,
    value_combination_errors=_insert_field_config_errors,
)

# -- ReplaceField -----------------------------------------------------------------------------------------------------


def _parse_renames(value: str) -> dict[str, str]:
    """The new name by the old name, from ``value``: ``old1:new1,old2:new2``.

    :raises ValueError: when an item is not old:new.
    """
    new_name_by_old_name: dict[str, str] = {}
    for item in split_list(value):
        old_name, colon, new_name = (item_part.strip() for item_part in item.partition(":"))
        if not (old_name and colon and new_name) or ":" in new_name:
            raise ValueError(f"{item!r} is not old:new")
        new_name_by_old_name[old_name] = new_name
    return new_name_by_old_name


def _renames_error(value: str) -> str | None:
    """A validator: None if :func:`_parse_renames` accepts ``value``, else the error message."""
    try:
        _parse_renames(value)
    except ValueError as error:
        return str(error)
    return None


def _apply_replace_field(rows: DataFrame, side: KeyOrValue, settings: PrefixedConfig) -> DataFrame:
    """ReplaceField: remove and rename fields.

    :raises ValueError, ConfigError: when the columns do not fit: see :attr:`TransformType.apply`.
    """
    definition, columns = REPLACE_FIELD.definition, field_columns(rows, side)
    include, exclude = (list(settings.required_value(definition, name, tuple)) for name in ("include", "exclude"))
    renames = _parse_renames(",".join(settings.required_value(definition, "renames", tuple)))
    for name, column_names in (("include", include), ("exclude", exclude), ("renames", list(renames))):
        try:
            require_columns(column_names, columns)
        except ValueError as error:
            raise settings.make_config_error(name, str(error)) from error
    kept_names = [name for name in columns if name not in exclude and (not include or name in include)]
    new_names = [renames.get(name, name) for name in kept_names]
    if repeated := sorted({name for name in new_names if new_names.count(name) > 1}):
        raise settings.make_config_error("renames", f"two columns would have the name {', '.join(repeated)}")
    return replace_all_fields(rows, side, {renames.get(name, name): columns[name] for name in kept_names})


REPLACE_FIELD = TransformType(
    short_class_name="ReplaceField",
    java_package=CONNECT_TRANSFORMS_PACKAGE,
    has_key_and_value_classes=True,
    keys=(
        make_transform_config_key(
            "exclude", "Columns that are removed.", "Removed columns", type_=Type.LIST, default=""
        ),
        make_transform_config_key(
            "include", "The only columns that stay; empty means all.", "Kept columns", type_=Type.LIST, default=""
        ),
        make_transform_config_key(
            "renames",
            "New names: old:new,old:new.",
            "New names",
            type_=Type.LIST,
            default="",
            validator=_renames_error,
        ),
        REPLACE_NULL_WITH_DEFAULT_KEY,
    ),
    apply=_apply_replace_field,
)

# -- MaskField --------------------------------------------------------------------------------------------------------


def _replacement_literal(session: SparkSession, masked_name: str, type_: DataType, replacement: str) -> Column:
    """The configured ``replacement`` as an unnamed column of ``type_``, the type of the masked column ``masked_name``.

    :raises ValueError: when ``type_`` is neither text nor a number; or when ``type_`` is a number and ``replacement``
        is not a finite number of this type. Spark's ANSI cast decides: integers are digits after an optional sign;
        integers and decimals must be in the range of the type.
    """
    if isinstance(type_, StringType):
        return F.lit(replacement)
    if not isinstance(type_, NumericType):
        raise ValueError(f"column {masked_name} is neither text nor a number")
    if not (_is_finite_number(replacement) and _can_cast(session, replacement, type_)):
        raise ValueError(
            f"the replacement is not a value of type {type_.simpleString()}, the type of column {masked_name}"
        )
    return F.lit(replacement).cast(type_)


def _is_finite_number(text: str) -> bool:
    try:
        return Decimal(text).is_finite()
    except InvalidOperation:
        return False


def _can_cast(session: SparkSession, text: str, type_: DataType) -> bool:
    """Whether Spark's ANSI cast of ``text`` to ``type_`` succeeds. Spark computes this without a job."""
    texts = session.createDataFrame(pa.table({"text": [text]}))
    return texts.select(F.col("text").try_cast(type_).isNotNull()).collect()[0][0] is True


def _empty_value_literal(masked_name: str, type_: DataType) -> Column:
    """The empty value (0, False, an empty text, ...) by which Connect's MaskField replaces values of the type
    ``type_``. ``masked_name``: the column with this type, for the message.

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
            raise ValueError(f"column {masked_name} is a {type_.simpleString()}, which has no empty value")


def _apply_mask_field(rows: DataFrame, side: KeyOrValue, settings: PrefixedConfig) -> DataFrame:
    """MaskField: replace the values of fields by empty values or by a replacement; a null stays null.

    :raises ValueError, ConfigError: when the columns do not fit: see :attr:`TransformType.apply`.
    """
    definition, types_by_name, new_fields = MASK_FIELD.definition, field_types(rows, side), field_columns(rows, side)
    replacement = settings.optional_value(definition, "replacement", str)
    for name in require_columns(list(settings.required_value(definition, "fields", tuple)), types_by_name):
        try:
            mask = (
                _empty_value_literal(name, types_by_name[name])
                if replacement is None
                else _replacement_literal(rows.sparkSession, name, types_by_name[name], replacement)
            )
        except ValueError as error:
            raise settings.make_config_error("fields" if replacement is None else "replacement", str(error)) from error
        new_fields[name] = F.when(new_fields[name].isNotNull(), mask)
    return replace_all_fields(rows, side, new_fields)


MASK_FIELD = TransformType(
    short_class_name="MaskField",
    java_package=CONNECT_TRANSFORMS_PACKAGE,
    has_key_and_value_classes=True,
    keys=(
        make_transform_config_key(
            "fields", "Columns that are masked.", "Masked columns", type_=Type.LIST, validator=name_list_error
        ),
        make_transform_config_key(
            "replacement",
            "A text or number instead of the empty value.",
            "Replacement",
            is_optional=True,
            validator=blank_value_error,
        ),
        REPLACE_NULL_WITH_DEFAULT_KEY,
    ),
    apply=_apply_mask_field,
)

# -- ValueToKey, HoistField, ExtractField, Flatten --------------------------------------------------------------------


def _apply_value_to_key(rows: DataFrame, side: KeyOrValue, settings: PrefixedConfig) -> DataFrame:
    """ValueToKey: the record's key becomes a struct of fields of the value. A tombstone fails when the rows are
    evaluated.

    :raises ValueError: when the columns do not fit: see :attr:`TransformType.apply`.
    """
    columns = field_columns(rows, KeyOrValue.VALUE)
    names = require_columns(list(settings.required_value(VALUE_TO_KEY.definition, "fields", tuple)), columns)
    key = F.struct(*(columns[name].alias(name) for name in names))
    if has_metadata_column(rows, MetadataColumn.TOMBSTONE):
        # A key of nulls would be the same one for all tombstones. Connect refuses such a record, too.
        tombstone_error = F.raise_error(
            "The transform ValueToKey cannot make a key of the fields of a tombstone, whose value is null: drop "
            "tombstones before, with the transform Filter and a predicate of type RecordIsTombstone"
        )
        key = F.when(exact_column(MetadataColumn.TOMBSTONE.value), tombstone_error).otherwise(key)
    return rows.withColumn(MetadataColumn.KEY.value, key)


VALUE_TO_KEY = TransformType(
    short_class_name="ValueToKey",
    java_package=CONNECT_TRANSFORMS_PACKAGE,
    keys=(
        make_transform_config_key(
            "fields",
            "Columns that form the record's key.",
            "Columns of the key",
            type_=Type.LIST,
            validator=name_list_error,
        ),
        REPLACE_NULL_WITH_DEFAULT_KEY,
    ),
    apply=_apply_value_to_key,
)


def _apply_hoist_field(rows: DataFrame, side: KeyOrValue, settings: PrefixedConfig) -> DataFrame:
    """HoistField: the key or value becomes a struct with one field, which contains the former key or value."""
    name = settings.required_value(HOIST_FIELD.definition, "field", str)
    if side is KeyOrValue.KEY:
        return rows.withColumn(
            MetadataColumn.KEY.value, F.struct(required_metadata_column(rows, MetadataColumn.KEY).alias(name))
        )
    if (value_column := non_struct_column_name_or_none(rows, side)) is not None:
        return replace_all_fields(rows, side, {name: exact_column(value_column)})
    return replace_all_fields(rows, side, {name: F.struct(*map(exact_column, visible_column_names(rows)))})


HOIST_FIELD = TransformType(
    short_class_name="HoistField",
    java_package=CONNECT_TRANSFORMS_PACKAGE,
    has_key_and_value_classes=True,
    keys=(
        make_transform_config_key(
            "field", "The column that will contain the whole value.", "Column", validator=blank_value_error
        ),
    ),
    apply=_apply_hoist_field,
)


def _parse_field_path(text: str) -> list[str]:
    """The names in a path of nested fields, which are separated by dots; a name between backticks may contain dots
    (KIP-821)."""
    names, remaining_text = [], text
    while remaining_text:
        if remaining_text.startswith("`") and "`" in remaining_text[1:]:
            name, _, remaining_text = remaining_text[1:].partition("`")
            remaining_text = remaining_text.removeprefix(".")
        else:
            name, _, remaining_text = remaining_text.partition(".")
        names.append(name)
    return names


def _apply_extract_field(rows: DataFrame, side: KeyOrValue, settings: PrefixedConfig) -> DataFrame:
    """ExtractField: the key or value becomes the value of one of its fields. A value that is not a struct becomes the
    column ``value``.

    :raises ValueError: when the columns do not fit: see :attr:`TransformType.apply`.
    """
    definition = EXTRACT_FIELD.definition
    field_setting = settings.required_value(definition, "field", str)
    path = (
        _parse_field_path(field_setting)
        if settings.required_value(definition, "field.syntax.version", str) == "V2"
        else [field_setting]
    )
    types_by_name = field_types(rows, side)
    extracted, type_ = (
        field_columns(rows, side)[require_columns([path[0]], types_by_name)[0]],
        types_by_name[path[0]],
    )
    for name in path[1:]:
        if not isinstance(type_, StructType):
            raise ValueError(f"there is no field {name} in {field_setting}: the part before {name} is not a struct")
        nested_types = {field.name: field.dataType for field in type_.fields}
        extracted, type_ = extracted[require_columns([name], nested_types)[0]], nested_types[name]
    if side is KeyOrValue.KEY:
        return rows.withColumn(MetadataColumn.KEY.value, extracted)
    if isinstance(type_, StructType):
        return replace_all_fields(rows, side, {field.name: extracted[field.name] for field in type_.fields})
    return replace_all_fields(rows, side, {"value": extracted})


EXTRACT_FIELD = TransformType(
    short_class_name="ExtractField",
    java_package=CONNECT_TRANSFORMS_PACKAGE,
    has_key_and_value_classes=True,
    keys=(
        make_transform_config_key("field", "The column that becomes the value.", "Column", validator=blank_value_error),
        make_transform_config_key(
            "field.syntax.version",
            "With V2 the field is a path, with dots.",
            "Syntax of the field",
            default="V1",
            validator=one_of(("V1", "V2")),
        ),
        REPLACE_NULL_WITH_DEFAULT_KEY,
    ),
    apply=_apply_extract_field,
)


def _innermost_fields_by_flat_name(prefix: str, value: Column, type_: DataType, delimiter: str) -> dict[str, Column]:
    """The innermost fields of ``value``, a column of the type ``type_``, by flat name: the names of all levels after
    ``prefix``, joined by ``delimiter``. If ``value`` is not a struct, ``value`` itself under the name ``prefix``."""
    if not isinstance(type_, StructType):
        return {prefix: value}
    fields_by_name: dict[str, Column] = {}
    for field in type_.fields:
        fields_by_name |= _innermost_fields_by_flat_name(
            f"{prefix}{delimiter}{field.name}", value[field.name], field.dataType, delimiter
        )
    return fields_by_name


def _apply_flatten(rows: DataFrame, side: KeyOrValue, settings: PrefixedConfig) -> DataFrame:
    """Flatten: replace each field that is a struct by its innermost fields.

    :raises ValueError: when the columns do not fit: see :attr:`TransformType.apply`.
    """
    delimiter = settings.required_value(FLATTEN.definition, "delimiter", str)
    columns, flat_fields = field_columns(rows, side), list[tuple[str, Column]]()
    for name, type_ in field_types(rows, side).items():
        flat_fields += _innermost_fields_by_flat_name(name, columns[name], type_, delimiter).items()
    names = [name for name, _ in flat_fields]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"two columns would have the name {', '.join(repeated)}")
    return replace_all_fields(rows, side, dict(flat_fields))


FLATTEN = TransformType(
    short_class_name="Flatten",
    java_package=CONNECT_TRANSFORMS_PACKAGE,
    has_key_and_value_classes=True,
    keys=(make_transform_config_key("delimiter", "Text between the names of the levels.", "Delimiter", default="."),),
    apply=_apply_flatten,
)

# -- TimestampConverter -----------------------------------------------------------------------------------------------

_TIME_UNITS = ("seconds", "milliseconds", "microseconds", "nanoseconds")
"""The values of ``unix.precision``: units of a time that is a whole number, counted from 1970-01-01 00:00 UTC."""


def _missing_format_errors(settings: PrefixedConfig) -> ErrorsByKey:
    """An error, by key, if the target of TimestampConverter is text and ``format`` is not set."""
    definition = TIMESTAMP_CONVERTER.definition
    if settings.required_value(definition, "target.type", str) == "string" and not settings.required_value(
        definition, "format", str
    ):
        return {settings.user_key("format"): [f"{settings.user_key('target.type')}=string needs a format"]}
    return {}


def _to_timestamp(value: Column, type_: DataType, format_: str, precision: str) -> Column:
    """Convert ``value``, a column of the type ``type_``, to a timestamp. ``format_``: the pattern of times that are
    text. ``precision``: the unit of times that are whole numbers.

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


def _from_timestamp(timestamp: Column, target: str, format_: str, precision: str) -> Column:
    """Convert ``timestamp`` to the type that ``target``, a value of ``target.type``, names. ``format_``: the pattern of
    text. ``precision``: the unit of whole numbers."""
    match target:
        case "string":
            return F.date_format(timestamp, format_)
        case "Date":
            return F.to_date(timestamp)
        case "unix":
            match precision:
                case "seconds":
                    return F.unix_seconds(timestamp)
                case "milliseconds":
                    return F.unix_millis(timestamp)
                case "microseconds":
                    return F.unix_micros(timestamp)
                case _:
                    return F.unix_micros(timestamp) * F.lit(1000)
        case _:
            return timestamp


def _apply_timestamp_converter(rows: DataFrame, side: KeyOrValue, settings: PrefixedConfig) -> DataFrame:
    """TimestampConverter: convert one field, or a key or value that is not a struct, to another type of time.

    :raises ValueError: when the columns do not fit: see :attr:`TransformType.apply`.
    """
    definition = TIMESTAMP_CONVERTER.definition
    name, target, format_, precision = (
        settings.required_value(definition, name_, str)
        for name_ in ("field", "target.type", "format", "unix.precision")
    )

    def convert_to_target_type(value: Column, type_: DataType) -> Column:
        return _from_timestamp(_to_timestamp(value, type_, format_, precision), target, format_, precision)

    if not name:
        value_column = non_struct_column_name_or_none(rows, side)
        if value_column is None:
            raise ValueError(f"set field to the name of a field: the {side.value.lower()} is a struct")
        return rows.withColumn(
            value_column, convert_to_target_type(exact_column(value_column), column_type(rows, value_column))
        )
    types_by_name, columns = field_types(rows, side), field_columns(rows, side)
    require_columns([name], types_by_name)
    return replace_all_fields(rows, side, columns | {name: convert_to_target_type(columns[name], types_by_name[name])})


def _target_type_error(value: str) -> str | None:
    """A validator of ``target.type``: None if ``value`` is supported, else the error message."""
    if value == "Time":
        return "Time is not supported: rows have no type for a time of day. Use string with a format like HH:mm:ss"
    return one_of(("string", "unix", "Date", "Timestamp"))(value)


TIMESTAMP_CONVERTER = TransformType(
    short_class_name="TimestampConverter",
    java_package=CONNECT_TRANSFORMS_PACKAGE,
    has_key_and_value_classes=True,
    keys=(
        make_transform_config_key(
            "field", "The column; empty when the whole key or value is the time.", "Column", default=""
        ),
        make_transform_config_key(
            "target.type", "The new type: string, unix, Date or Timestamp.", "Target type", validator=_target_type_error
        ),
        make_transform_config_key("format", "Pattern of text, as of Spark's date_format.", "Format", default=""),
        make_transform_config_key(
            "unix.precision",
            "The unit of whole numbers.",
            "Unit",
            default="milliseconds",
            validator=one_of(_TIME_UNITS),
        ),
        REPLACE_NULL_WITH_DEFAULT_KEY,
    ),
    apply=_apply_timestamp_converter,
    value_combination_errors=_missing_format_errors,
)

# -- SetSchemaMetadata ------------------------------------------------------------------------------------------------

SET_SCHEMA_METADATA = TransformType(
    short_class_name="SetSchemaMetadata",
    java_package=CONNECT_TRANSFORMS_PACKAGE,
    has_key_and_value_classes=True,
    keys=(
        make_transform_config_key(
            "schema.name", "Without effect: the schema of rows has no name.", "Schema name", is_optional=True
        ),
        make_transform_config_key(
            "schema.version", "Without effect, as schema.name.", "Schema version", type_=Type.INT, is_optional=True
        ),
        REPLACE_NULL_WITH_DEFAULT_KEY,
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
