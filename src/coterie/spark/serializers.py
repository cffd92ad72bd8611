"""Serializers from columns to the key or the value of a Kafka record, named like Connect's converters.

The counterpart of :mod:`coterie.spark.converters`. Connect's JsonConverter can read the JSON that this module writes,
with the same setting of ``schemas.enable``: timestamps are milliseconds and dates are days, with Connect's logical
types in the schema; decimals are numbers, as with ``decimal.format=NUMERIC``.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    CharType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
)

from coterie.config.definition import ConfigDef, ConfigKey, Importance, Type, Width
from coterie.nouns.errors import WorldError
from coterie.spark.converters import CONVERTER_NAMES, FORMAT_BY_CONVERTER_CLASS, Format
from coterie.spark.paths import SINK_GROUP
from coterie.spark.prefixed_config import PrefixedConfig
from coterie.spark.record_columns import exact_column

_DEFAULT_FORMAT_BY_SIDE = {"key": Format.STRING, "value": Format.JSON}
"""The format by side, for a config that sets no converter."""

_CONNECT_TYPE_BY_SPARK_TYPE: dict[type[DataType], str] = {
    BooleanType: "boolean",
    ByteType: "int8",
    ShortType: "int16",
    IntegerType: "int32",
    LongType: "int64",
    FloatType: "float",
    DoubleType: "double",
    StringType: "string",
    CharType: "string",
    VarcharType: "string",
    BinaryType: "bytes",
}
"""Connect's name of each column type that Spark writes to JSON in the same way as Connect."""


def serializer_definition(config: PrefixedConfig, side: str) -> ConfigDef:
    """The config keys of the converter of ``side`` (``key`` or ``value``), without the prefix of ``config``; with the
    key for JSON if the converter is the JsonConverter."""
    name = f"{side}.converter"
    default = _DEFAULT_FORMAT_BY_SIDE[side]
    keys = [
        ConfigKey(
            name=name,
            type=Type.CLASS,
            documentation=f"Format in which the {side} of a record is written: the name of Connect's converter.",
            default=default.value,
            importance=Importance.HIGH,
            validator=CONVERTER_NAMES,
            group=SINK_GROUP,
            width=Width.LONG,
            display_name=f"{side.capitalize()} converter",
        )
    ]
    converter_class = config.config.get(config.user_key(name), default.value).strip()
    if FORMAT_BY_CONVERTER_CLASS.get(converter_class) is Format.JSON:
        keys.append(
            ConfigKey(
                name=f"{name}.schemas.enable",
                name_in_type_errors="schemas.enable",
                type=Type.BOOLEAN,
                documentation=f'Whether the {side} is written as {{"schema": ..., "payload": ...}}.',
                default="true",
                group=SINK_GROUP,
                width=Width.SHORT,
                display_name=f"Schema in the {side}",
            )
        )
    return ConfigDef(tuple(keys))


@dataclass(frozen=True, slots=True, kw_only=True)
class Serializer:
    """Converts columns to the bytes of the key or the value of Kafka records."""

    key_or_value_side: str
    """The part of the record that is written: ``key`` or ``value``."""
    format: Format
    """The format of the bytes."""
    has_schema_envelope: bool = False
    """For JSON: whether a record is an object with ``schema`` and ``payload``, and the columns are in ``payload``."""

    @classmethod
    def of(cls, config: PrefixedConfig, side: str) -> Self:
        """The serializer that ``config`` defines for ``side``.

        :raises ConfigError: when a value is not valid; the error names the key.
        """
        own_definition = serializer_definition(config, side)
        format_ = FORMAT_BY_CONVERTER_CLASS[config.required_value(own_definition, f"{side}.converter", str)]
        has_envelope = format_ is Format.JSON and config.required_value(
            own_definition, f"{side}.converter.schemas.enable", bool
        )
        return cls(key_or_value_side=side, format=format_, has_schema_envelope=has_envelope)

    def serialize_column(self, rows: DataFrame, name: str) -> Column:
        """The serialized bytes of the column ``name`` of ``rows``; null where the column is null.

        :raises WorldError: when the format does not support the column's type.
        """
        field, column = rows.schema[name], exact_column(name)
        match self.format:
            case Format.BYTES if not isinstance(field.dataType, BinaryType):
                raise WorldError(
                    f"Column {name} has type {field.dataType.simpleString()}, and the ByteArrayConverter of the "
                    f"{self.key_or_value_side} writes binary only; use a StringConverter or a JsonConverter"
                )
            case Format.BYTES:
                return column
            case Format.STRING if isinstance(field.dataType, (ArrayType, MapType, StructType)):
                raise WorldError(
                    f"Column {name} has type {field.dataType.simpleString()}, and the StringConverter of the "
                    f"{self.key_or_value_side} writes no lists, maps or structs; use a JsonConverter"
                )
            case Format.STRING:
                # Binary values are written unchanged.
                return column if isinstance(field.dataType, BinaryType) else column.cast("string").cast("binary")
            case Format.JSON:
                text = _column_to_json(column, field)
                return F.when(column.isNotNull(), self._to_bytes_in_envelope_if_set(text, field.dataType))

    def serialize_columns_as_json(self, rows: DataFrame, names: Sequence[str]) -> Column:
        """The bytes of a JSON object with the columns ``names`` of ``rows``, in an envelope if
        ``has_schema_envelope``. Only for the format JSON.

        :raises WorldError: when JSON does not support the type of a column.
        """
        fields = [rows.schema[name] for name in names]
        payload = F.struct(
            *(_to_json_type_or_raise(exact_column(name), rows.schema[name]).alias(name) for name in names)
        )
        return self._to_bytes_in_envelope_if_set(_struct_to_json(payload), StructType(fields))

    def _to_bytes_in_envelope_if_set(self, text: Column, type_: DataType) -> Column:
        """The bytes of the JSON ``text``, which was written from the column type ``type_``; in an envelope with the
        schema if ``has_schema_envelope``."""
        if not self.has_schema_envelope:
            return text.cast("binary")
        schema = json.dumps(_connect_schema(type_, is_optional=False), ensure_ascii=False, separators=(",", ":"))
        return F.concat(F.lit(f'{{"schema":{schema},"payload":'), text, F.lit("}")).cast("binary")


def _column_to_json(column: Column, field: StructField) -> Column:
    """The JSON text of ``column``, which ``field`` describes, for any supported type. Spark's ``to_json`` writes only
    objects and lists."""
    text = _struct_to_json(F.struct(_to_json_type_or_raise(column, field).alias("v")))
    return F.substring(text, F.lit(len('{"v":') + 1), F.length(text) - len('{"v":}'))


def _struct_to_json(payload: Column) -> Column:
    """The JSON text of a struct, with its null fields."""
    return F.to_json(payload, {"ignoreNullFields": "false"})


def _to_json_type_or_raise(column: Column, field: StructField) -> Column:
    """``column``, converted to types that Spark writes to JSON in the same way as Connect.

    :raises WorldError: when the type of ``field`` has no such conversion; the message names the column.
    """
    try:
        return _convert_to_json_type(column, field.dataType)
    except ValueError as error:
        raise WorldError(
            f"Column {field.name} has type {error}, which a JsonConverter cannot write; cast or drop it by a transform"
        ) from error


def _convert_to_json_type(column: Column, type_: DataType) -> Column:
    """:func:`_to_json_type_or_raise` for a column, list item, map value or struct field of the type ``type_``.

    :raises ValueError: when a type cannot be written; the message is the name of the type.
    """
    match type_:
        case TimestampType():
            return F.unix_millis(column)
        case TimestampNTZType():
            return F.timestamp_diff("MILLISECOND", F.lit("1970-01-01 00:00:00").cast("timestamp_ntz"), column)
        case DateType():
            return F.unix_date(column)
        case ArrayType():
            _convert_to_json_type(F.lit(None), type_.elementType)
            return F.transform(column, lambda item: _convert_to_json_type(item, type_.elementType))
        case MapType(keyType=StringType()):
            _convert_to_json_type(F.lit(None), type_.valueType)
            return F.transform_values(column, lambda _, value: _convert_to_json_type(value, type_.valueType))
        case StructType():
            converted_fields = (
                _convert_to_json_type(column[field.name], field.dataType).alias(field.name) for field in type_.fields
            )
            return F.when(column.isNotNull(), F.struct(*converted_fields))
        case DecimalType():
            return column
        case _ if type(type_) in _CONNECT_TYPE_BY_SPARK_TYPE:
            return column
        case _:
            raise ValueError(type_.simpleString())


def _connect_schema(type_: DataType, *, is_optional: bool) -> dict[str, Any]:
    """The schema, as Connect's JsonConverter writes it, of a column type that :func:`_convert_to_json_type`
    supports."""
    schema: dict[str, Any]
    match type_:
        case StructType():
            fields = [
                {**_connect_schema(field.dataType, is_optional=field.nullable), "field": field.name}
                for field in type_.fields
            ]
            schema = {"type": "struct", "fields": fields}
        case ArrayType():
            items = _connect_schema(type_.elementType, is_optional=type_.containsNull)
            schema = {"type": "array", "items": items}
        case MapType():
            values = _connect_schema(type_.valueType, is_optional=type_.valueContainsNull)
            schema = {"type": "map", "keys": {"type": "string", "optional": False}, "values": values}
        case TimestampType() | TimestampNTZType():
            schema = {"type": "int64", "name": "org.apache.kafka.connect.data.Timestamp", "version": 1}
        case DateType():
            schema = {"type": "int32", "name": "org.apache.kafka.connect.data.Date", "version": 1}
        case DecimalType():
            name = "org.apache.kafka.connect.data.Decimal"
            schema = {"type": "bytes", "name": name, "version": 1, "parameters": {"scale": str(type_.scale)}}
        case _:
            schema = {"type": _CONNECT_TYPE_BY_SPARK_TYPE[type(type_)]}
    return {**schema, "optional": is_optional}
