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

from coterie.config.definition import Definition, Importance, Key, Type, Width, not_blank, one_of
from coterie.nouns.errors import ConfigError
from coterie.spark.bad_records.hidden import ERROR, FAULT, fault
from coterie.spark.columns import ddl_of
from coterie.spark.end_config import EndConfig
from coterie.spark.paths import SOURCE_GROUP
from coterie.spark.transforms import first_sentence


class Format(Enum):
    """The format that a converter expects of the bytes; the value is Connect's class name."""

    JSON = "org.apache.kafka.connect.json.JsonConverter"
    STRING = "org.apache.kafka.connect.storage.StringConverter"
    BYTES = "org.apache.kafka.connect.converters.ByteArrayConverter"


FORMATS: Mapping[str, Format] = {
    name: format_ for format_ in Format for name in (format_.value, format_.value.rpartition(".")[2])
}
"""Each format by Connect's class name, with and without the package."""

_FLAT, _ITEMS, _CORRUPT = "coterie_flat_", "coterie_items_", "coterie_corrupt"
"""Names of columns that exist only while JSON is parsed. The first two are prefixes: ``key`` or ``value`` follows."""


def definition(config: EndConfig, side: str) -> Definition:
    """The keys of the converter of ``side``, which is ``key`` or ``value``."""
    keys = [
        Key(
            name=f"{side}.converter",
            type=Type.CLASS,
            documentation=f"Format of a record's {side}: the name of Connect's converter.",
            default=Format.BYTES.value,
            importance=Importance.HIGH,
            check=one_of(FORMATS),
            group=SOURCE_GROUP,
            width=Width.LONG,
            display_name=f"{side.capitalize()} converter",
        )
    ]
    chosen = config.config.get(config.key(keys[0].name), "").strip()
    if FORMATS.get(chosen) is Format.JSON:
        keys += _json_keys(side)
    return Definition(tuple(keys))


def _json_keys(side: str) -> list[Key]:
    return [
        Key(
            name=f"{side}.schema",
            type=Type.STRING,
            documentation=(
                f"Columns in the JSON of the {side}, as in CREATE TABLE: id BIGINT, name STRING, ... By default they "
                "are inferred from the newest records when the connector is created."
            ),
            optional=True,
            importance=Importance.HIGH,
            check=not_blank,
            group=SOURCE_GROUP,
            width=Width.LONG,
            display_name=f"Columns of the {side}",
        ),
        Key(
            name=f"{side}.converter.schemas.enable",
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
    """Converts the column ``side`` of records that also have the columns ``topic``, ``partition`` and ``offset``."""

    side: str
    """``key`` or ``value``."""
    format: Format
    columns: str = ""
    """For JSON: the columns, as in CREATE TABLE."""
    has_envelope: bool = False
    """For JSON: whether a record is an object with ``schema`` and ``payload``, and the columns are in ``payload``."""

    @classmethod
    def of(cls, config: EndConfig, side: str) -> Self:
        """:raises ConfigError: when a value is not valid; the error names the key."""
        own = definition(config, side)
        format_ = FORMATS[config.read(own, f"{side}.converter", str)]
        if format_ is not Format.JSON:
            return cls(side=side, format=format_)
        return cls(
            side=side,
            format=format_,
            columns=config.read(_stated(own, side), f"{side}.schema", str),
            has_envelope=config.read(own, f"{side}.converter.schemas.enable", bool),
        )

    def check(self, config: EndConfig) -> None:
        """Parse the columns with Spark, which must be running.

        :raises ConfigError: when Spark cannot parse them.
        """
        try:
            self.data_type()
        except PySparkException as error:
            raise config.refused(f"{self.side}.schema", first_sentence(error)) from error

    def data_type(self) -> DataType:
        """The type of the converted column: for JSON a struct, whose fields are all nullable."""
        match self.format:
            case Format.JSON:
                named = cast(StructType, StructType.fromDDL(self.columns))
                return StructType([StructField(field.name, field.dataType) for field in named.fields])
            case Format.STRING:
                return StringType()
            case Format.BYTES:
                return BinaryType()

    def convert(self, records: DataFrame) -> DataFrame:
        """``records`` with the column converted. A null becomes nulls.

        If ``records`` have the error columns, a record that does not convert gets an error. Otherwise that record fails
        the batch, with a message that contains its topic, partition and offset.
        """
        match self.format:
            case Format.JSON:
                return self._parsed(records)
            case Format.STRING:
                # As Java decodes it: bytes that are not valid UTF-8 are replaced.
                return records.withColumn(self.side, F.make_valid_utf8(F.col(self.side).cast("string")))
            case Format.BYTES:
                return records

    def _parsed(self, records: DataFrame) -> DataFrame:
        """Parse the text as the only item of an array in an object that has another field after the array.

        Parsed alone, a text is accepted up to the end of its first JSON value: Spark would drop text after that value,
        and an empty text would become a null. A text whose only closing brace is its last character has nothing after
        its object. Such a text is parsed alone, which is faster by a quarter.
        """
        text = F.col(self.side).cast("string")
        item = self.data_type()
        if self.has_envelope:
            item = StructType([StructField("schema", StringType()), StructField("payload", item)])
        options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
        corrupt = StructField(_CORRUPT, StringType())
        # Spark pushes a filter of the user below the parsing, and would parse each text again for each use in the
        # filter. Spark pushes no filter below an expression that is not deterministic.
        stays = F.spark_partition_id() >= 0
        is_flat = F.instr(text, "}") == F.length(text)
        flat_type = StructType([*cast(StructType, item).fields, corrupt])
        wrapped = F.concat(F.lit('{"items":['), text, F.lit('],"end":true}'))
        items_type = StructType([StructField("items", ArrayType(item)), StructField("end", BooleanType()), corrupt])
        # Two steps: in one step the text would be parsed again for each use of the parsed value.
        rows = records.withColumns(
            {
                _FLAT + self.side: F.when(stays & is_flat, F.from_json(text, flat_type, options)),
                _ITEMS + self.side: F.when(stays & ~is_flat, F.from_json(wrapped, items_type, options)),
            }
        )
        flat, items = F.col(_FLAT + self.side), F.col(_ITEMS + self.side)
        is_one_item = items[_CORRUPT].isNull() & items["end"] & (F.size(items["items"]) == 1)
        is_good = F.when(flat.isNotNull(), flat[_CORRUPT].isNull()).otherwise(is_one_item) & F.is_valid_utf8(text)
        flat_value = F.struct(*(flat[field.name].alias(field.name) for field in cast(StructType, item).fields))
        value = F.when(flat.isNotNull(), flat_value).otherwise(items["items"][0])
        if self.has_envelope:
            # A record without the fields schema and payload is not an envelope: it is bad, and not a null.
            is_good &= value.isNull() | value["payload"].isNotNull() | _has_keys(text, ("schema", "payload"))
            value = value["payload"]
        is_null = F.col(self.side).isNull()
        if ERROR in records.columns:
            is_bad = ~is_null & ~F.coalesce(is_good, F.lit(False))
            error = fault(f"{self.side.upper()}_CONVERTER", self.format.value, self._fault).cast(FAULT)
            columns = {
                ERROR: F.coalesce(F.col(ERROR), F.when(is_bad, error)),
                self.side: F.when(~is_null & is_good, value),
            }
        else:
            converted = (
                F.when(is_null, F.lit(None))
                .when(is_good, value)
                .otherwise(F.raise_error(self._refusal()).cast(self.data_type()))
            )
            columns = {self.side: converted}
        return rows.withColumns(columns).drop(_FLAT + self.side, _ITEMS + self.side)

    def _refusal(self) -> Column:
        return F.concat(
            F.lit("Topic "),
            F.col("topic"),
            F.lit(", partition "),
            F.col("partition"),
            F.lit(", offset "),
            F.col("offset"),
            F.lit(f": {self._fault}"),
        )

    @property
    def _fault(self) -> str:
        """The error message for a record that does not convert."""
        envelope = ' in {"schema": ..., "payload": ...}' if self.has_envelope else ""
        return f"the record's {self.side} is not JSON with the columns of {self.side}.schema{envelope}"


def _has_keys(text: Column, names: tuple[str, ...]) -> Column:
    keys = F.json_object_keys(text)
    has = F.lit(True)
    for name in names:
        has &= F.array_contains(keys, name)
    return F.coalesce(has, F.lit(False))


def open_keys(config: EndConfig, side: str) -> list[str]:
    """The schema key of ``side`` if its converter needs columns and the config does not set the key, else empty."""
    own, key = definition(config, side), f"{side}.schema"
    return [key] if any(one.name == key for one in own.keys) and config.find(own, key, str) is None else []


def inferred_columns(config: EndConfig, side: str, records: DataFrame) -> str:
    """The columns of the JSON in the column ``side`` of ``records``, inferred by Spark, as in CREATE TABLE.

    :raises ConfigError: when there is no record, or no record is a JSON object with columns.
    :raises PySparkException, Py4JJavaError: when Spark cannot read the records.
    """
    key, spark = config.key(f"{side}.schema"), records.sparkSession
    texts = records.select(F.col(side).cast("string")).where(F.col(side).isNotNull())
    java: Any = spark._jvm
    as_strings = getattr(texts._jdf, "as")(java.org.apache.spark.sql.Encoders.STRING())
    found = DataFrame(spark._jsparkSession.read().json(as_strings), spark).schema
    enable = f"{side}.converter.schemas.enable"
    if config.read(definition(config, side), enable, bool):
        payload = found["payload"].dataType if "payload" in found.names else None
        if payload is None and set(found.names) - {"_corrupt_record"}:
            sentence = f"The {side}s of records have no payload: set {config.key(enable)}=false, or {key}"
            raise ConfigError({key: [sentence]})
        found = payload if isinstance(payload, StructType) else StructType()
    kept = [field for field in found.fields if field.name != "_corrupt_record"]
    if not kept:
        sentence = f"There is no record whose {side} is a JSON object with columns, to infer them from: set {key}"
        raise ConfigError({key: [sentence]})
    return ddl_of(spark, StructType(kept))


def _stated(own: Definition, side: str) -> Definition:
    """The schema key as required: if the user did not set it, its columns were inferred before."""
    return Definition((replace(own[f"{side}.schema"], optional=False),))


def checked(config: EndConfig, side: str) -> dict[str, list[str]]:
    """Errors, by key, that only Spark detects in a converter whose keys are well-formed. Empty while the columns still
    have to be inferred."""
    if open_keys(config, side):
        return {}
    try:
        Converter.of(config, side).check(config)
    except ConfigError as error:
        return error.listed
    return {}
