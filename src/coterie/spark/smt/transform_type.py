"""``TransformType``, one type of transform, and helpers for transforms of a record's key or value."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructType

from coterie.config.definition import ConfigDef, ConfigKey, Importance, Type, Validator, Width, as_list
from coterie.spark.prefixed_config import PrefixedConfig
from coterie.spark.record_columns import (
    PREDICATE_MATCHES,
    MetadataColumn,
    column,
    is_metadata,
    metadata_column,
    metadata_names,
    visible_names,
)


class Side(Enum):
    """Whether a transform changes the key or the value of a record. A member's value is the suffix of Connect's class
    names: ``Name$Key``."""

    KEY = "Key"
    VALUE = "Value"


Errors = dict[str, list[str]]
"""Error messages by the user's key."""
Apply = Callable[[DataFrame, Side, PrefixedConfig], DataFrame]
"""Returns the rows after a transform of one side of the records, with the transform's config."""


def no_errors(settings: PrefixedConfig) -> Errors:
    """The :attr:`TransformType.check_values` of a type whose keys do not depend on each other: no error."""
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformType:
    """One type of transform: what ``transforms.<alias>.type`` names."""

    name: str
    """The name of the class, without the package and the side."""
    package: str | None
    """The package of the Java class that has this name and these keys; None for Coterie's own transforms."""
    keys: tuple[ConfigKey, ...]
    """The config keys, without the prefix ``transforms.<alias>.``."""
    apply: Apply
    """Applies the transform. Raises PySparkException or ValueError when the columns do not fit; the error is reported
    for the first of ``keys``. Raises ConfigError when the error belongs to another key."""
    has_sides: bool = False
    """Whether there is one class for keys and one for values: ``Name$Key``, ``Name$Value``."""
    takes_predicate: bool = True
    """Whether the transform can have the keys ``predicate`` and ``negate``."""
    uses_headers: Callable[[PrefixedConfig], bool] = lambda settings: False
    """Whether the transform with this config uses the headers of records."""
    check_values: Callable[[PrefixedConfig], Errors] = no_errors
    """Errors, by the user's key, of values that are valid alone and invalid together."""

    @property
    def definition(self) -> ConfigDef:
        return ConfigDef(self.keys)

    def sides_by_name(self) -> Mapping[str, Side]:
        """Every name of this type in configs, with the side that it means. The name without ``$`` means the value."""
        plain = {self.name: Side.VALUE}
        if self.has_sides:
            plain |= {f"{self.name}${side.value}": side for side in Side}
        if self.package is None:
            return plain
        full = {f"{self.package}.{name}": side for name, side in plain.items() if self.has_sides == ("$" in name)}
        return plain | full


def key(
    name: str,
    documentation: str,
    label: str,
    *,
    type_: Type = Type.STRING,
    default: str | None = None,
    optional: bool = False,
    validator: Validator | None = None,
) -> ConfigKey:
    """A config key of a transform or predicate, with ``label`` as the key's name in a form. The key's group and order
    in a form are set by :func:`coterie.spark.transforms.definition`."""
    return ConfigKey(
        name=name,
        type=type_,
        documentation=documentation,
        default=default,
        optional=optional,
        importance=Importance.HIGH if default is None and not optional else Importance.MEDIUM,
        validator=validator,
        width=Width.MEDIUM,
        display_name=label,
    )


DEFAULTS = key(
    "replace.null.with.default",
    "Without effect: columns have no default values.",
    "Nulls by default values",
    type_=Type.BOOLEAN,
    default="true",
)
"""The key ``replace.null.with.default``, which many of Connect's transforms have."""


def not_empty_list(value: str) -> str | None:
    """A check of a config value: None for a list of at least one name without empty names, else the error message."""
    names = as_list(value)
    return None if names and all(names) else "Must be one or more names, separated by commas"


# -- the fields of one side of a record -------------------------------------------------------------------------------


def type_of(rows: DataFrame, name: str) -> DataType:
    """The type of the column ``name``, which may contain dots, of ``rows``."""
    return next(field.dataType for field in rows.schema.fields if field.name == name)


def primitive_column(rows: DataFrame, side: Side) -> str | None:
    """The name of the column that contains a whole key or value which is not a struct; None when that side has fields.

    A value is not a struct when ``value`` is the only visible column and its type is not a struct, as StringConverter
    and ByteArrayConverter create it.

    :raises ValueError: when ``side`` is the key and the rows have no key.
    """
    if side is Side.KEY:
        metadata_column(rows, MetadataColumn.KEY)
        return None if isinstance(type_of(rows, MetadataColumn.KEY.value), StructType) else MetadataColumn.KEY.value
    if visible_names(rows) == ["value"] and not isinstance(type_of(rows, "value"), StructType):
        return "value"
    return None


def types(rows: DataFrame, side: Side) -> dict[str, DataType]:
    """The types of the fields of the key or of the value, by name.

    :raises ValueError: when the key is not a struct, or the rows have no key.
    """
    if side is Side.VALUE:
        return {field.name: field.dataType for field in rows.schema.fields if not is_metadata(field.name)}
    metadata_column(rows, MetadataColumn.KEY)
    type_ = type_of(rows, MetadataColumn.KEY.value)
    if not isinstance(type_, StructType):
        raise ValueError(
            "the key has no fields: use key.converter=JsonConverter with key.schema, or the transform ValueToKey"
        )
    return {field.name: field.dataType for field in type_.fields}


def fields(rows: DataFrame, side: Side) -> dict[str, Column]:
    """The fields of the key or of the value as columns, by name.

    :raises ValueError: see :func:`types`.
    """
    if side is Side.VALUE:
        return {name: column(name) for name in visible_names(rows)}
    return {name: column(MetadataColumn.KEY.value)[name] for name in types(rows, side)}


def with_fields(rows: DataFrame, side: Side, changed: Mapping[str, Column]) -> DataFrame:
    """``rows`` with exactly the fields ``changed``, in this order, as the key or the value; other fields of that side
    are dropped. A null key stays null.

    :raises ValueError: when ``changed`` is empty.
    """
    if not changed:
        raise ValueError("no column would be left")
    named = [made.alias(name) for name, made in changed.items()]
    if side is Side.VALUE:
        return rows.select(*map(column, metadata_names(rows)), *named)
    key_column = column(MetadataColumn.KEY.value)
    return rows.withColumn(MetadataColumn.KEY.value, F.when(key_column.isNotNull(), F.struct(*named)))


def check_columns_exist(names: list[str], there: Mapping[str, object]) -> list[str]:
    """Return ``names``, after a check that each name is a key of ``there``.

    :raises ValueError: when names are missing; the message contains the missing names and those of ``there``.
    """
    if missing := sorted(set(names) - set(there)):
        raise ValueError(f"no such column: {', '.join(missing)}; there are {', '.join(there)}")
    return names


def filter_rows(rows: DataFrame, condition: Column) -> DataFrame:
    """The rows for which ``condition`` is true; null is not true. In a transform with a predicate, the rows to which
    the transform is not applied are kept too."""
    return rows.where(condition if PREDICATE_MATCHES not in rows.columns else ~column(PREDICATE_MATCHES) | condition)
