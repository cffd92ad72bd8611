"""``TransformType``, one type of transform, and helpers for transforms of a record's key or value."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructType

from coterie.config.definition import ConfigDef, ConfigKey, Importance, Type, Validator, Width, split_list
from coterie.spark.prefixed_config import PrefixedConfig
from coterie.spark.record_columns import (
    PREDICATE_MATCHES_COLUMN,
    MetadataColumn,
    exact_column,
    is_known_metadata_column_name,
    metadata_column_names,
    required_metadata_column,
    visible_column_names,
)


class KeyOrValue(Enum):
    """The part of a record that a transform changes: the key or the value. The text of each member is the suffix of the
    Java class for this part: ``Name$Key``, ``Name$Value``."""

    KEY = "Key"
    VALUE = "Value"


ErrorsByKey = dict[str, list[str]]
"""Error messages by the key that the user must correct."""
ApplyFunction = Callable[[DataFrame, KeyOrValue, PrefixedConfig], DataFrame]
"""Applies a transform: receives the rows, the side of the records to change, and the transform's config; returns the
rows after the transform."""


def return_no_errors(settings: PrefixedConfig) -> ErrorsByKey:
    """The :attr:`TransformType.value_combination_errors` of a type whose values are valid in any combination: no
    errors."""
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformType:
    """One type of transform: what ``transforms.<alias>.type`` names."""

    short_class_name: str
    """The name of the class, without the package and without the suffix for the side (``$Key``, ``$Value``)."""
    java_package: str | None
    """The package of the Java class that has this name and these keys; None for Coterie's own transforms."""
    keys: tuple[ConfigKey, ...]
    """The config keys, without the prefix ``transforms.<alias>.``."""
    apply: ApplyFunction
    """Applies the transform. Raises PySparkException or ValueError when the columns do not fit; the error is reported
    for the first of ``keys``. Raises ConfigError when the error belongs to another key."""
    has_key_and_value_classes: bool = False
    """Whether there is one class for keys and one for values: ``Name$Key``, ``Name$Value``."""
    accepts_predicate: bool = True
    """Whether the transform can have the keys ``predicate`` and ``negate``."""
    uses_headers: Callable[[PrefixedConfig], bool] = lambda settings: False
    """Whether the transform with this config uses the headers of records."""
    value_combination_errors: Callable[[PrefixedConfig], ErrorsByKey] = return_no_errors
    """Returns the errors, by the user's key, of values that are valid alone and invalid together."""

    @property
    def definition(self) -> ConfigDef:
        return ConfigDef(self.keys)

    def class_names_by_side(self) -> Mapping[KeyOrValue, str]:
        """The complete names of the classes of this type, by side; one class if there are no sides."""
        sides = KeyOrValue if self.has_key_and_value_classes else (KeyOrValue.VALUE,)
        java_package = "" if self.java_package is None else f"{self.java_package}."
        return {
            side: f"{java_package}{self.short_class_name}{f'${side.value}' if self.has_key_and_value_classes else ''}"
            for side in sides
        }

    def side_by_accepted_name(self) -> Mapping[str, KeyOrValue]:
        """Every name of this type in configs, with the side that it means. The name without ``$`` means the value."""
        side_by_short_name = {self.short_class_name: KeyOrValue.VALUE}
        if self.has_key_and_value_classes:
            side_by_short_name |= {f"{self.short_class_name}${side.value}": side for side in KeyOrValue}
        if self.java_package is None:
            return side_by_short_name
        side_by_java_name = {
            f"{self.java_package}.{name}": side
            for name, side in side_by_short_name.items()
            if self.has_key_and_value_classes == ("$" in name)
        }
        return side_by_short_name | side_by_java_name


def make_transform_config_key(
    name: str,
    documentation: str,
    label: str,
    *,
    type_: Type = Type.STRING,
    default: str | None = None,
    is_optional: bool = False,
    validator: Validator | None = None,
) -> ConfigKey:
    """A config key of a transform or predicate, with ``label`` as the key's name in a form. The key's group and order
    in a form are set by :func:`coterie.spark.transforms.transforms_and_predicates_definition`."""
    return ConfigKey(
        name=name,
        type=type_,
        documentation=documentation,
        default=default,
        is_optional=is_optional,
        importance=Importance.HIGH if default is None and not is_optional else Importance.MEDIUM,
        validator=validator,
        width=Width.MEDIUM,
        display_name=label,
    )


REPLACE_NULL_WITH_DEFAULT_KEY = make_transform_config_key(
    "replace.null.with.default",
    "Without effect: columns have no default values.",
    "Nulls by default values",
    type_=Type.BOOLEAN,
    default="true",
)
"""The key ``replace.null.with.default``, which many of Connect's transforms have and which has no effect here."""


def name_list_error(value: str) -> str | None:
    """A validator: None for a list of at least one name without empty names, else the error message."""
    names = split_list(value)
    return None if names and all(names) else "Must be one or more names, separated by commas"


# -- the fields of one side of a record -------------------------------------------------------------------------------


def column_type(rows: DataFrame, name: str) -> DataType:
    """The type of the column ``name`` of ``rows``, which must exist. Dots in ``name`` are part of the name, no path."""
    return next(field.dataType for field in rows.schema.fields if field.name == name)


def non_struct_column_name_or_none(rows: DataFrame, side: KeyOrValue) -> str | None:
    """The name of the column that contains a whole key or value which is not a struct; None when that side has fields.

    A value is not a struct when ``value`` is the only visible column and its type is not a struct, as StringConverter
    and ByteArrayConverter create it.

    :raises ValueError: when ``side`` is the key and the rows have no key.
    """
    if side is KeyOrValue.KEY:
        required_metadata_column(rows, MetadataColumn.KEY)
        return None if isinstance(column_type(rows, MetadataColumn.KEY.value), StructType) else MetadataColumn.KEY.value
    if visible_column_names(rows) == ["value"] and not isinstance(column_type(rows, "value"), StructType):
        return "value"
    return None


def field_types(rows: DataFrame, side: KeyOrValue) -> dict[str, DataType]:
    """The types of the fields of the key or of the value, by field name.

    :raises ValueError: when ``side`` is the key, and the key is not a struct or the rows have no key.
    """
    if side is KeyOrValue.VALUE:
        return {
            field.name: field.dataType for field in rows.schema.fields if not is_known_metadata_column_name(field.name)
        }
    required_metadata_column(rows, MetadataColumn.KEY)
    type_ = column_type(rows, MetadataColumn.KEY.value)
    if not isinstance(type_, StructType):
        raise ValueError(
            "the key has no fields: use key.converter=JsonConverter with key.schema, or the transform ValueToKey"
        )
    return {field.name: field.dataType for field in type_.fields}


def field_columns(rows: DataFrame, side: KeyOrValue) -> dict[str, Column]:
    """The fields of the key or of the value as columns, by field name.

    :raises ValueError: when ``side`` is the key, and the key is not a struct or the rows have no key.
    """
    if side is KeyOrValue.VALUE:
        return {name: exact_column(name) for name in visible_column_names(rows)}
    return {name: exact_column(MetadataColumn.KEY.value)[name] for name in field_types(rows, side)}


def replace_all_fields(rows: DataFrame, side: KeyOrValue, new_fields: Mapping[str, Column]) -> DataFrame:
    """``rows`` with exactly the fields ``new_fields``, in this order, as the key or the value; other fields of that
    side are dropped, and the other side stays. A null key stays null.

    :raises ValueError: when ``new_fields`` is empty.
    """
    if not new_fields:
        raise ValueError("no column would be left")
    aliased = [new_column.alias(name) for name, new_column in new_fields.items()]
    if side is KeyOrValue.VALUE:
        return rows.select(*map(exact_column, metadata_column_names(rows)), *aliased)
    key_column = exact_column(MetadataColumn.KEY.value)
    return rows.withColumn(MetadataColumn.KEY.value, F.when(key_column.isNotNull(), F.struct(*aliased)))


def require_columns(names: list[str], existing: Mapping[str, object]) -> list[str]:
    """Return ``names``, after a check that each name is a key of ``existing``.

    :raises ValueError: when names are missing; the message contains the missing names and those of ``existing``.
    """
    if missing_names := sorted(set(names) - set(existing)):
        raise ValueError(f"no such column: {', '.join(missing_names)}; there are {', '.join(existing)}")
    return names


def filter_rows_to_which_transform_applies(rows: DataFrame, condition: Column) -> DataFrame:
    """The rows for which ``condition`` is true; null is not true. In a transform with a predicate, the rows to which
    the transform is not applied are kept too."""
    return rows.where(
        condition
        if PREDICATE_MATCHES_COLUMN not in rows.columns
        else ~exact_column(PREDICATE_MATCHES_COLUMN) | condition
    )
