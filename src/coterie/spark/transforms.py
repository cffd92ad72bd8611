"""Transforms: what a connector does to its rows, as column expressions that run in the JVM."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from coterie.config.definition import Check, Definition, Importance, Key, Type, Width, as_list, not_blank, one_of
from coterie.nouns.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One type of transform: its one key, and what it does with the key's value."""

    key: str
    display_name: str
    documentation: str
    check: Check
    apply: Callable[[DataFrame, str], DataFrame]


def filter_rows(rows: DataFrame, condition: str) -> DataFrame:
    """Keep the rows for which the SQL ``condition`` is true; null is not true."""
    return rows.where(F.expr(condition))


def cast_columns(rows: DataFrame, spec: str) -> DataFrame:
    """``col:type,col:type``: give columns other types; their order and names stay."""
    types = parse_cast(spec)
    unknown = sorted(set(types) - set(rows.columns))
    if unknown:
        raise ValueError(f"no such column: {', '.join(unknown)}; there are {', '.join(rows.columns)}")
    return rows.withColumns({column: rows[f"`{column}`"].cast(type_) for column, type_ in types.items()})


def parse_cast(spec: str) -> dict[str, str]:
    """Type by column. A comma inside parentheses belongs to a type: ``price:decimal(10,2),distance:double``.

    :raises ValueError: with what is wrong.
    """
    items, depth = [""], 0
    for character in spec:
        depth += (character in "(<") - (character in ")>")
        if character == "," and depth == 0:
            items.append("")
        else:
            items[-1] += character
    types: dict[str, str] = {}
    for item in items:
        column, colon, type_ = (part.strip() for part in item.partition(":"))
        if not (column and colon and type_):
            raise ValueError(f"{item.strip()!r} is not column:type")
        if column in types:
            raise ValueError(f"column {column} is named twice")
        types[column] = type_
    return types


def _well_formed_cast(spec: str) -> str | None:
    try:
        parse_cast(spec)
    except ValueError as error:
        return str(error)
    return None


KINDS: Mapping[str, Kind] = {
    "Filter": Kind(
        key="condition",
        display_name="Condition",
        documentation="SQL condition; rows for which it is true are kept.",
        check=not_blank,
        apply=filter_rows,
    ),
    "Cast": Kind(
        key="spec",
        display_name="Types by column",
        documentation="Columns and the types they get: column:type,column:type.",
        check=_well_formed_cast,
        apply=cast_columns,
    ),
}


def _distinct(value: str) -> str | None:
    aliases = as_list(value)
    if "" in aliases:
        return "List must not contain empty items"
    return "Aliases must be distinct" if len(set(aliases)) < len(aliases) else None


ALIASES = Key(
    name="transforms",
    type=Type.LIST,
    documentation="Aliases of the transforms, in the order in which they are applied.",
    default="",
    check=_distinct,
    group="Transforms",
    order=0,
    width=Width.LONG,
    display_name="Transforms",
)


def definition(config: Mapping[str, str]) -> Definition:
    """The keys of the transforms that ``config`` names."""
    keys: list[Key] = []
    for alias in aliases(config):
        kind = KINDS.get(config.get(f"transforms.{alias}.type", "").strip())
        settings = () if kind is None else (_setting(alias, kind),)
        keys += [_type(alias, dependents=tuple(key.name for key in settings)), *settings]
    return Definition(tuple(keys))


def aliases(config: Mapping[str, str]) -> list[str]:
    """The transforms that ``config`` names, also where the list is not valid."""
    return as_list(config.get(ALIASES.name, ALIASES.default or ""))


def _type(alias: str, dependents: tuple[str, ...]) -> Key:
    return Key(
        name=f"transforms.{alias}.type",
        type=Type.CLASS,
        documentation=f"Type of the transform {alias}.",
        importance=Importance.HIGH,
        check=one_of(KINDS),
        group=f"Transforms: {alias}",
        order=0,
        width=Width.SHORT,
        display_name=f"Type of {alias}",
        dependents=dependents,
    )


def _setting(alias: str, kind: Kind) -> Key:
    return Key(
        name=f"transforms.{alias}.{kind.key}",
        type=Type.STRING,
        documentation=kind.documentation,
        check=kind.check,
        group=f"Transforms: {alias}",
        order=1,
        width=Width.LONG,
        display_name=kind.display_name,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Transform:
    """One transform of a connector: its kind, and the value of its key."""

    kind: Kind
    key: str
    """The full name of the key."""
    value: str


def parsed(config: Mapping[str, str]) -> tuple[Transform, ...]:
    """The transforms of ``config``, in their order.

    :raises ConfigError: when a value is not valid; names its key.
    """
    own = definition(config)
    found: list[Transform] = []
    for alias in aliases(config):
        kind = KINDS[own.read(config, f"transforms.{alias}.type", str)]
        key = f"transforms.{alias}.{kind.key}"
        found.append(Transform(kind=kind, key=key, value=own.read(config, key, str)))
    return tuple(found)


def transform(rows: DataFrame, transforms: Iterable[Transform]) -> DataFrame:
    """``rows`` through all ``transforms``, in their order.

    :raises ConfigError: when one does not fit the columns that reach it; names its key.
    """
    for one in transforms:
        try:
            rows = one.kind.apply(rows, one.value)
        except (PySparkException, ValueError) as error:
            raise refused_value(one.key, one.value, error) from error
    return rows


def refused_value(key: str, value: str, error: Exception) -> ConfigError:
    return ConfigError({key: [f"Invalid value {value} for configuration {key}: {first_sentence(error)}"]})


def first_sentence(error: Exception) -> str:
    """Spark's first line on an error, without the plan or the position that it adds on further lines."""
    return str(error).strip().splitlines()[0]
