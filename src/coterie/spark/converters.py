"""Converters from the bytes of a Kafka record's key or value to columns, named like Connect's converters."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Self, cast

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    StringType,
    StructField,
    StructType,
)

from coterie.config.definition import (
    ConfigDef,
    ConfigKey,
    Importance,
    OneOfPluginClasses,
    Type,
    Width,
    blank_value_error,
)
from coterie.nouns.errors import ConfigError
from coterie.spark.bad_records.error_columns import ERROR_COLUMN, ERROR_TYPE, error_column_value
from coterie.spark.columns import to_ddl
from coterie.spark.paths import SOURCE_GROUP
from coterie.spark.prefixed_config import PrefixedConfig
from coterie.spark.transforms import first_message_line


class Format(Enum):
    """The format of the bytes of a record's key or value. A member's value is the class name of Connect's converter."""

    JSON = "org.apache.kafka.connect.json.JsonConverter"
    STRING = "org.apache.kafka.connect.storage.StringConverter"
    BYTES = "org.apache.kafka.connect.converters.ByteArrayConverter"


FORMAT_BY_CONVERTER_CLASS: Mapping[str, Format] = {
    name: format_ for format_ in Format for name in (format_.value, format_.value.rpartition(".")[2])
}
"""The format of each of Connect's converters, by the converter's class name with and without the package."""
CONVERTER_NAMES = OneOfPluginClasses(
    tuple(sorted(format_.value for format_ in Format)),
    interface_name="Converter",
    also_accepted_names=frozenset(FORMAT_BY_CONVERTER_CLASS),
)
"""The validator of ``key.converter`` and ``value.converter``."""

_FLAT_COLUMN_PREFIX, _ITEMS_COLUMN_PREFIX, _CORRUPT_RECORD_COLUMN = "coterie_flat_", "coterie_items_", "coterie_corrupt"
"""Names of columns that exist only while JSON is parsed. The first two are prefixes: ``key`` or ``value`` follows."""


def converter_definition(config: PrefixedConfig, side: str) -> ConfigDef:
    """The config keys of the converter of ``side`` (``key`` or ``value``): ``<side>.converter`` and, if ``config``
    chooses the JsonConverter, the keys for JSON. The names are without the prefix of ``config``, such as
    ``source.``."""
    keys = [
        ConfigKey(
            name=f"{side}.converter",
            type=Type.CLASS,
            documentation=f"Format of a record's {side}: the name of Connect's converter.",
            default=Format.BYTES.value,
            importance=Importance.HIGH,
            validator=CONVERTER_NAMES,
            group=SOURCE_GROUP,
            width=Width.LONG,
            display_name=f"{side.capitalize()} converter",
        )
    ]
    converter_class = config.config.get(config.user_key(keys[0].name), "").strip()
    if FORMAT_BY_CONVERTER_CLASS.get(converter_class) is Format.JSON:
        keys += _json_converter_keys(side)
    return ConfigDef(tuple(keys))


def _json_converter_keys(side: str) -> list[ConfigKey]:
    return [
        ConfigKey(
            name=f"{side}.schema",
            type=Type.STRING,
            documentation=(
                f"Columns in the JSON of the {side}, as in CREATE TABLE: id BIGINT, name STRING, ... By default they "
                "are inferred from the newest records when the connector is created."
            ),
            is_optional=True,
            importance=Importance.HIGH,
            validator=blank_value_error,
            group=SOURCE_GROUP,
            width=Width.LONG,
            display_name=f"Columns of the {side}",
        ),
        ConfigKey(
            name=f"{side}.converter.schemas.enable",
            name_in_type_errors="schemas.enable",
            type=Type.BOOLEAN,
            documentation=f'Whether the {side} is {{"schema": ..., "payload": ...}}; only the payload is read.',
            default="true",
            group=SOURCE_GROUP,
            width=Width.SHORT,
            display_name=f"Schema in the {side}",
        ),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Converter:
    """Converts the bytes in the column ``key_or_value_side`` of records, which also have the columns ``topic``,
    ``partition`` and ``offset``."""

    key_or_value_side: str
    """The part of the record that is converted: ``key`` or ``value``."""
    format: Format
    """The format of the bytes."""
    json_columns_ddl: str = ""
    """For JSON: the column definitions, as in CREATE TABLE; empty for the other formats."""
    has_schema_envelope: bool = False
    """For JSON: whether a record is an object with ``schema`` and ``payload``, and the columns are in ``payload``."""

    @classmethod
    def of(cls, config: PrefixedConfig, side: str) -> Self:
        """The converter that ``config`` defines for ``side``.

        :raises ConfigError: when a value is not valid, or a JsonConverter has no columns; the error names the key.
        """
        own_definition = converter_definition(config, side)
        format_ = FORMAT_BY_CONVERTER_CLASS[config.required_value(own_definition, f"{side}.converter", str)]
        if format_ is not Format.JSON:
            return cls(key_or_value_side=side, format=format_)
        return cls(
            key_or_value_side=side,
            format=format_,
            json_columns_ddl=config.required_value(
                _schema_key_as_required(own_definition, side), f"{side}.schema", str
            ),
            has_schema_envelope=config.required_value(own_definition, f"{side}.converter.schemas.enable", bool),
        )

    def check_columns_ddl(self, config: PrefixedConfig) -> None:
        """Check that Spark, which must be running, can parse ``json_columns_ddl``. Does nothing unless the format is
        JSON.

        :raises ConfigError: when Spark cannot parse it; the error names the schema key of ``config``.
        """
        try:
            self.data_type()
        except PySparkException as error:
            raise config.make_config_error(f"{self.key_or_value_side}.schema", first_message_line(error)) from error

    def data_type(self) -> DataType:
        """The type of the converted column: for JSON a struct, whose fields are all nullable.

        :raises PySparkException: when Spark cannot parse ``json_columns_ddl``.
        """
        match self.format:
            case Format.JSON:
                declared_type = cast(StructType, StructType.fromDDL(self.json_columns_ddl))
                return StructType([StructField(field.name, field.dataType) for field in declared_type.fields])
            case Format.STRING:
                return StringType()
            case Format.BYTES:
                return BinaryType()

    def convert(self, records: DataFrame) -> DataFrame:
        """``records`` with the column ``key_or_value_side`` converted; a null stays null.

        Only JSON can fail to convert. If ``records`` have the column :data:`ERROR_COLUMN`, a record that does not
        convert gets a null in the converted column and an error in :data:`ERROR_COLUMN`. Otherwise such a record fails
        the batch, with a message that contains its topic, partition and offset.
        """
        match self.format:
            case Format.JSON:
                return self._convert_json(records)
            case Format.STRING:
                # As Java decodes it: bytes that are not valid UTF-8 are replaced.
                return records.withColumn(
                    self.key_or_value_side, F.make_valid_utf8(F.col(self.key_or_value_side).cast("string"))
                )
            case Format.BYTES:
                return records

    def _convert_json(self, records: DataFrame) -> DataFrame:
        """:meth:`convert` for JSON.

        Spark parses a text only up to the end of its first JSON value. It would drop the rest of the text, and an empty
        text would become a null. So the record's text is wrapped: it is parsed as the only item of an array, in an
        object that has another field after the array. One kind of text needs no wrapping: if the first closing brace is
        the last character, nothing can follow the object. Such a text is parsed unwrapped, which is faster by a
        quarter.
        """
        text = F.col(self.key_or_value_side).cast("string")
        item_type = self.data_type()
        if self.has_schema_envelope:
            item_type = StructType([StructField("schema", StringType()), StructField("payload", item_type)])
        options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT_RECORD_COLUMN}
        corrupt_field = StructField(_CORRUPT_RECORD_COLUMN, StringType())
        # Spark pushes a filter of the user below the parsing, and would parse each text again for each use in the
        # filter. Spark pushes no filter below an expression that is not deterministic.
        prevents_pushdown = F.spark_partition_id() >= 0
        is_flat = F.instr(text, "}") == F.length(text)
        flat_type = StructType([*cast(StructType, item_type).fields, corrupt_field])
        wrapped = F.concat(F.lit('{"items":['), text, F.lit('],"end":true}'))
        items_type = StructType(
            [StructField("items", ArrayType(item_type)), StructField("end", BooleanType()), corrupt_field]
        )
        # Two steps: in one step the text would be parsed again for each use of the parsed value.
        rows = records.withColumns(
            {
                _FLAT_COLUMN_PREFIX + self.key_or_value_side: F.when(
                    prevents_pushdown & is_flat, F.from_json(text, flat_type, options)
                ),
                _ITEMS_COLUMN_PREFIX + self.key_or_value_side: F.when(
                    prevents_pushdown & ~is_flat, F.from_json(wrapped, items_type, options)
                ),
            }
        )
        flat, items = (
            F.col(_FLAT_COLUMN_PREFIX + self.key_or_value_side),
            F.col(_ITEMS_COLUMN_PREFIX + self.key_or_value_side),
        )
        is_one_item = items[_CORRUPT_RECORD_COLUMN].isNull() & items["end"] & (F.size(items["items"]) == 1)
        is_good = F.when(flat.isNotNull(), flat[_CORRUPT_RECORD_COLUMN].isNull()).otherwise(
            is_one_item
        ) & F.is_valid_utf8(text)
        flat_value = F.struct(*(flat[field.name].alias(field.name) for field in cast(StructType, item_type).fields))
        value = F.when(flat.isNotNull(), flat_value).otherwise(items["items"][0])
        if self.has_schema_envelope:
            # A record without the fields schema and payload is not an envelope: it is bad, and not a null.
            is_good &= (
                value.isNull()
                | value["payload"].isNotNull()
                | _has_all_json_keys_condition(text, ("schema", "payload"))
            )
            value = value["payload"]
        is_null = F.col(self.key_or_value_side).isNull()
        if ERROR_COLUMN in records.columns:
            is_bad = ~is_null & ~F.coalesce(is_good, F.lit(False))
            error = error_column_value(
                f"{self.key_or_value_side.upper()}_CONVERTER", self.format.value, self._error_message
            ).cast(ERROR_TYPE)
            columns = {
                ERROR_COLUMN: F.coalesce(F.col(ERROR_COLUMN), F.when(is_bad, error)),
                self.key_or_value_side: F.when(~is_null & is_good, value),
            }
        else:
            converted = (
                F.when(is_null, F.lit(None))
                .when(is_good, value)
                .otherwise(F.raise_error(self._error_with_position()).cast(self.data_type()))
            )
            columns = {self.key_or_value_side: converted}
        return rows.withColumns(columns).drop(
            _FLAT_COLUMN_PREFIX + self.key_or_value_side, _ITEMS_COLUMN_PREFIX + self.key_or_value_side
        )

    def _error_with_position(self) -> Column:
        """The record's topic, partition and offset, followed by the error message for a record that does not
        convert."""
        return F.concat(
            F.lit("Topic "),
            F.col("topic"),
            F.lit(", partition "),
            F.col("partition"),
            F.lit(", offset "),
            F.col("offset"),
            F.lit(f": {self._error_message}"),
        )

    @property
    def _error_message(self) -> str:
        """The error message for a record that does not convert."""
        envelope = ' in {"schema": ..., "payload": ...}' if self.has_schema_envelope else ""
        side = self.key_or_value_side
        return f"the record's {side} is not JSON with the columns of {side}.schema{envelope}"


def _has_all_json_keys_condition(text: Column, names: tuple[str, ...]) -> Column:
    """Whether ``text`` is a JSON object with all keys ``names``; never null."""
    keys = F.json_object_keys(text)
    has_all = F.lit(True)
    for name in names:
        has_all &= F.array_contains(keys, name)
    return F.coalesce(has_all, F.lit(False))


def keys_to_infer(config: PrefixedConfig, side: str) -> list[str]:
    """A list with the schema key of ``side`` if its converter is the JsonConverter and ``config`` does not set the key;
    else empty. The key has no prefix."""
    own_definition, key = converter_definition(config, side), f"{side}.schema"
    return (
        [key]
        if any(config_key.name == key for config_key in own_definition.keys)
        and config.optional_value(own_definition, key, str) is None
        else []
    )


def infer_columns_ddl(config: PrefixedConfig, side: str, records: DataFrame) -> str:
    """The columns of the JSON in the column ``side`` of ``records``, inferred by Spark, as in CREATE TABLE.

    :raises ConfigError: when no record is a JSON object with columns, there is no record, or ``schemas.enable`` is true
        and no record has a payload.
    :raises PySparkException, Py4JJavaError: when Spark cannot read the records.
    """
    key, spark = config.user_key(f"{side}.schema"), records.sparkSession
    texts = records.select(F.col(side).cast("string")).where(F.col(side).isNotNull())
    java: Any = spark._jvm
    as_strings = getattr(texts._jdf, "as")(java.org.apache.spark.sql.Encoders.STRING())
    inferred_type = DataFrame(spark._jsparkSession.read().json(as_strings), spark).schema
    enable_key = f"{side}.converter.schemas.enable"
    if config.required_value(converter_definition(config, side), enable_key, bool):
        payload = inferred_type["payload"].dataType if "payload" in inferred_type.names else None
        if payload is None and set(inferred_type.names) - {"_corrupt_record"}:
            message = f"The {side}s of records have no payload: set {config.user_key(enable_key)}=false, or {key}"
            raise ConfigError({key: [message]})
        inferred_type = payload if isinstance(payload, StructType) else StructType()
    valid_fields = [field for field in inferred_type.fields if field.name != "_corrupt_record"]
    if not valid_fields:
        message = f"There is no record whose {side} is a JSON object with columns, to infer them from: set {key}"
        raise ConfigError({key: [message]})
    return to_ddl(spark, StructType(valid_fields))


def _schema_key_as_required(own_definition: ConfigDef, side: str) -> ConfigDef:
    """The part of ``own_definition``, a converter's own keys, that a task's config must contain: only the schema key of
    ``side`` ("key" or "value"), as a required key. A user may leave the schema key out; then the columns are inferred
    before the task's config is written, and the task's config contains them."""
    return ConfigDef((replace(own_definition[f"{side}.schema"], is_optional=False),))


def find_schema_errors(config: PrefixedConfig, side: str) -> dict[str, list[str]]:
    """Errors that only Spark detects in the columns of a converter whose keys are well-formed, by the user's key. Empty
    while the columns still have to be inferred."""
    if keys_to_infer(config, side):
        return {}
    try:
        Converter.of(config, side).check_columns_ddl(config)
    except ConfigError as error:
        return error.errors_as_new_lists
    return {}
