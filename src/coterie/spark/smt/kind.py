"""``Kind``, one type of transform, and helpers for transforms of a record's key or value."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructType

from coterie.config.definition import Check, Definition, Importance, Key, Type, Width, as_list
from coterie.spark.end_config import EndConfig
from coterie.spark.record import MATCHES, Part, column, hidden_names, is_hidden, part_of, visible_names


class Side(Enum):
    """Whether a transform works on the key or on the value of a record; the suffix of Connect's class names."""

    KEY = "Key"
    VALUE = "Value"


Errors = dict[str, list[str]]
"""Error messages by the user's key."""
Apply = Callable[[DataFrame, Side, EndConfig], DataFrame]


def no_errors(settings: EndConfig) -> Errors:
    """The check of a kind whose keys do not depend on each other."""
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One type of transform."""

    name: str
    package: str | None
    """The package of the Java class that has this name and these keys; None for Coterie's own transforms."""
    keys: tuple[Key, ...]
    """The config keys, without the prefix ``transforms.<alias>.``."""
    apply: Apply
    """Raises PySparkException or ValueError when the columns do not fit; the error is reported for the first key."""
    has_sides: bool = False
    """Whether there is one class for keys and one for values: ``Name$Key``, ``Name$Value``."""
    takes_predicate: bool = True
    uses_headers: Callable[[EndConfig], bool] = lambda settings: False
    check: Callable[[EndConfig], Errors] = no_errors
    """Errors of values that are valid alone and invalid together."""

    @property
    def definition(self) -> Definition:
        return Definition(self.keys)

    def sides_by_name(self) -> Mapping[str, Side]:
        """The names of this kind in configs, each with its side. The plain name means the value."""
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
    check: Check | None = None,
) -> Key:
    """A config key of a transform; its group and its order are set by the transform."""
    return Key(
        name=name,
        type=type_,
        documentation=documentation,
        default=default,
        optional=optional,
        importance=Importance.HIGH if default is None and not optional else Importance.MEDIUM,
        check=check,
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
"""A key that many of Connect's transforms have."""


def names_given(value: str) -> str | None:
    """A check: a list that is not empty."""
    names = as_list(value)
    return None if names and all(names) else "Must be one or more names, separated by commas"


# -- the fields of one side of a record -------------------------------------------------------------------------------


def type_of(rows: DataFrame, name: str) -> DataType:
    return next(field.dataType for field in rows.schema.fields if field.name == name)


def whole(rows: DataFrame, side: Side) -> str | None:
    """The column that contains a whole key or value which is not a struct; None when that side has fields.

    A value is not a struct when ``value`` is its only column, as StringConverter and ByteArrayConverter create it.
    """
    if side is Side.KEY:
        part_of(rows, Part.KEY)
        return None if isinstance(type_of(rows, Part.KEY.value), StructType) else Part.KEY.value
    if visible_names(rows) == ["value"] and not isinstance(type_of(rows, "value"), StructType):
        return "value"
    return None


def types(rows: DataFrame, side: Side) -> dict[str, DataType]:
    """The types of the side's fields, by name.

    :raises ValueError: when the key is not a struct, or the rows have no key.
    """
    if side is Side.VALUE:
        return {field.name: field.dataType for field in rows.schema.fields if not is_hidden(field.name)}
    part_of(rows, Part.KEY)
    type_ = type_of(rows, Part.KEY.value)
    if not isinstance(type_, StructType):
        raise ValueError(
            "the key has no fields: use key.converter=JsonConverter with key.schema, or the transform ValueToKey"
        )
    return {field.name: field.dataType for field in type_.fields}


def fields(rows: DataFrame, side: Side) -> dict[str, Column]:
    """The side's fields, by name. See :func:`types`."""
    if side is Side.VALUE:
        return {name: column(name) for name in visible_names(rows)}
    return {name: column(Part.KEY.value)[name] for name in types(rows, side)}


def with_fields(rows: DataFrame, side: Side, changed: Mapping[str, Column]) -> DataFrame:
    """``rows`` with exactly the fields ``changed`` on the given side, in this order.

    :raises ValueError: when no field is left.
    """
    if not changed:
        raise ValueError("no column would be left")
    named = [made.alias(name) for name, made in changed.items()]
    if side is Side.VALUE:
        return rows.select(*map(column, hidden_names(rows)), *named)
    key_column = column(Part.KEY.value)
    return rows.withColumn(Part.KEY.value, F.when(key_column.isNotNull(), F.struct(*named)))


def known(names: list[str], there: Mapping[str, object]) -> list[str]:
    """``names``, checked to be keys of ``there``.

    :raises ValueError: when names are missing; the message contains them.
    """
    if missing := sorted(set(names) - set(there)):
        raise ValueError(f"no such column: {', '.join(missing)}; there are {', '.join(there)}")
    return names


def keep(rows: DataFrame, condition: Column) -> DataFrame:
    """The rows for which ``condition`` is true; null is not true. Rows that do not match the predicate are kept."""
    return rows.where(condition if MATCHES not in rows.columns else ~column(MATCHES) | condition)
