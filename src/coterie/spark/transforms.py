"""Parses a connector's transforms and applies them to rows in the order of the config. ``smt`` implements each type."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from coterie.config.definition import Definition, Importance, Key, Type, Width, as_list, one_of
from coterie.nouns.errors import ConfigError
from coterie.spark.columns import column_ids
from coterie.spark.end_config import EndConfig
from coterie.spark.record import BEFORE, MATCHES, column
from coterie.spark.smt.kind import Kind, Side
from coterie.spark.smt.predicates import PREDICATES, PredicateKind
from coterie.spark.smt.table import KINDS, TYPE_CHECK


def _distinct(value: str) -> str | None:
    aliases = as_list(value)
    if "" in aliases:
        return "List must not contain empty items"
    return "Aliases must be distinct" if len(set(aliases)) < len(aliases) else None


def _aliases(name: str, documentation: str) -> Key:
    label = name.capitalize()
    return Key(
        name=name,
        type=Type.LIST,
        documentation=documentation,
        default="",
        check=_distinct,
        group=label,
        order=0,
        width=Width.LONG,
        display_name=label,
    )


ALIASES = _aliases("transforms", "Aliases of the transforms, in the order in which they are applied.")
PREDICATE_ALIASES = _aliases("predicates", "Aliases of the predicates, which transforms name.")
_PREFIXES = tuple(f"{key.name}." for key in (ALIASES, PREDICATE_ALIASES))


def aliases(config: Mapping[str, str], key: Key = ALIASES) -> list[str]:
    """The aliases of transforms or predicates that ``config`` names, also when the list is not valid."""
    return as_list(config.get(key.name, key.default or ""))


def _settings(config: Mapping[str, str], key: Key, alias: str) -> EndConfig:
    """A config with only the keys of one transform or predicate."""
    prefix = f"{key.name}.{alias}."
    own = {name: value for name, value in config.items() if name.startswith(prefix)}
    return EndConfig(config=own, prefix=prefix)


# -- keys -------------------------------------------------------------------------------------------------------------


def definition(config: Mapping[str, str]) -> Definition:
    """The keys of the transforms and predicates that ``config`` names."""
    keys: list[Key] = []
    for alias in aliases(config):
        found = KINDS.get(config.get(f"{ALIASES.name}.{alias}.type", "").strip())
        own = () if found is None else (*found[0].keys, *(_PREDICATE_KEYS if found[0].takes_predicate else ()))
        keys += _numbered(ALIASES, alias, "transform", TYPE_CHECK, own)
    for alias in aliases(config, PREDICATE_ALIASES):
        kind = PREDICATES.get(config.get(f"{PREDICATE_ALIASES.name}.{alias}.type", "").strip())
        keys += _numbered(PREDICATE_ALIASES, alias, "predicate", _PREDICATE_CHECK, () if kind is None else kind.keys)
    return Definition(tuple(keys))


_PREDICATE_KEYS = (
    Key(
        name="predicate",
        type=Type.STRING,
        documentation="The transform is applied only to rows that match this predicate; other rows stay unchanged.",
        optional=True,
        width=Width.MEDIUM,
        display_name="Predicate",
    ),
    Key(
        name="negate",
        type=Type.BOOLEAN,
        documentation="Whether the transform is instead applied to the rows that do not match the predicate.",
        default="false",
        width=Width.SHORT,
        display_name="Negate the predicate",
    ),
)
_PREDICATE_CHECK = one_of(PREDICATES, "No such predicate; there are")


def _numbered(list_key: Key, alias: str, what: str, check: object, own: Iterable[Key]) -> list[Key]:
    """The key ``type`` of one transform or predicate and its other keys, in the order of a form."""
    prefix, group = f"{list_key.name}.{alias}.", f"{list_key.display_name}: {alias}"
    assert callable(check)
    type_ = Key(
        name="type",
        type=Type.CLASS,
        documentation=f"Type of the {what} {alias}.",
        importance=Importance.HIGH,
        check=check,
        width=Width.LONG,
        display_name=f"Type of {alias}",
    )
    own = list(own)
    type_ = replace(type_, dependents=tuple(prefix + key.name for key in own))
    return [replace(key, name=prefix + key.name, group=group, order=order) for order, key in enumerate([type_, *own])]


def errors_of(config: Mapping[str, str]) -> dict[str, list[str]]:
    """Errors in the keys of the transforms and predicates, by key; columns are not checked."""
    own = definition(config)
    known = {key.name for key in own.keys}
    unknown = [key for key in config if key.startswith(_PREFIXES) and key not in known]
    return _wrong_values(config, own) | {key: [f"Unknown configuration {key}"] for key in unknown}


def _wrong_values(config: Mapping[str, str], own: Definition) -> dict[str, list[str]]:
    found = own.errors(config)
    for alias in aliases(config):
        settings = _settings(config, ALIASES, alias)
        if any(key.startswith(settings.prefix) for key in found):
            continue
        kind, _ = KINDS[config[f"{settings.prefix}type"].strip()]
        found |= kind.check(settings) | _predicate_errors(config, settings)
    return found


def _predicate_errors(config: Mapping[str, str], settings: EndConfig) -> dict[str, list[str]]:
    name = config.get(settings.key("predicate"))
    if name is not None and name.strip() not in (there := aliases(config, PREDICATE_ALIASES)):
        return settings.error("predicate", f"There is no such predicate; predicates names {', '.join(there) or 'none'}")
    if name is None and settings.key("negate") in config:
        return settings.error("negate", f"There is no predicate to negate: set {settings.key('predicate')}")
    return {}


# -- transforms -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicate:
    """A predicate of a connector, with its use in one transform."""

    kind: PredicateKind
    settings: EndConfig
    is_negated: bool

    def matches(self, rows: DataFrame) -> Column:
        """Whether the transform is applied to a row; never null.

        :raises ConfigError: when the predicate does not fit the rows' columns; the error names the key.
        """
        key = self.kind.keys[0].name if self.kind.keys else "type"
        try:
            found = F.coalesce(self.kind.matches(rows, self.settings), F.lit(False))
        except (PySparkException, ValueError) as error:
            raise self.settings.refused(key, first_sentence(error)) from error
        return ~found if self.is_negated else found


@dataclass(frozen=True, slots=True, kw_only=True)
class Transform:
    """One transform of a connector."""

    kind: Kind
    side: Side
    settings: EndConfig
    predicate: Predicate | None = None

    @property
    def key(self) -> str:
        """The user's key that errors name unless they are about another key."""
        return self.settings.key(self.kind.keys[0].name if self.kind.keys else "type")

    @property
    def type(self) -> str:
        """The value of the transform's key ``type``."""
        return self.settings.config[self.settings.key("type")].strip()

    @property
    def value(self) -> str:
        return self.settings.config.get(self.key, "")

    def apply(self, rows: DataFrame) -> DataFrame:
        """:raises ConfigError: when the transform does not fit the columns of ``rows``; the error names the key."""
        try:
            if self.predicate is None:
                return self.kind.apply(rows, self.side, self.settings)
            return self._where_matching(rows, self.predicate.matches(rows))
        except (PySparkException, ValueError) as error:
            sentence = f"Invalid value {self.value} for configuration {self.key}: {first_sentence(error)}"
            raise ConfigError({self.key: [sentence]}) from error

    def _where_matching(self, rows: DataFrame, matches: Column) -> DataFrame:
        """Apply the transform to all rows, and then select the old or the new columns for each row.

        A column that exists only before or only after the transform is null in the other rows. A column that the
        transform keeps is kept here too, with the same id in Spark's plan: by that id validation detects that no
        transform changes the column.
        """
        before = rows.withColumn(MATCHES, matches).withColumn(BEFORE, F.struct(*map(column, rows.columns)))
        after = self.kind.apply(before, self.side, self.settings)
        ids_before, ids_after = column_ids(before), column_ids(after)
        old = {field.name: field.dataType for field in rows.schema.fields}
        new = {field.name: field.dataType for field in after.schema.fields if field.name not in (MATCHES, BEFORE)}
        chosen: list[Column] = []
        for name in [*new, *(name for name in old if name not in new)]:
            if name in old and ids_after.get(name) == ids_before[name]:
                chosen.append(column(name))
                continue
            if name in old and name in new and old[name].simpleString() != new[name].simpleString():
                raise self.settings.refused(
                    "predicate",
                    f"the transform makes {new[name].simpleString()} of column {name}, and rows that do not match have "
                    f"{old[name].simpleString()}: give all rows one type",
                )
            taken = F.when(column(MATCHES), column(name) if name in new else F.lit(None))
            chosen.append(taken.otherwise(column(BEFORE)[name] if name in old else F.lit(None)).alias(name))
        return after.select(*chosen)


def parsed(config: Mapping[str, str]) -> tuple[Transform, ...]:
    """The transforms of ``config``, in their order.

    :raises ConfigError: when values are not valid; the error names each key.
    """
    if errors := _wrong_values(config, definition(config)):
        raise ConfigError(errors)
    return tuple(_parsed(config, alias) for alias in aliases(config))


def _parsed(config: Mapping[str, str], alias: str) -> Transform:
    settings = _settings(config, ALIASES, alias)
    kind, side = KINDS[config[f"{settings.prefix}type"].strip()]
    predicate = None
    if (name := config.get(settings.key("predicate"))) is not None:
        own = _settings(config, PREDICATE_ALIASES, name.strip())
        predicate = Predicate(
            kind=PREDICATES[config[f"{own.prefix}type"].strip()],
            settings=own,
            is_negated=settings.read(Definition(_PREDICATE_KEYS), "negate", bool),
        )
    return Transform(kind=kind, side=side, settings=settings, predicate=predicate)


def transform(rows: DataFrame, transforms: Iterable[Transform]) -> DataFrame:
    """Apply all ``transforms`` to ``rows``, in their order.

    :raises ConfigError: when a transform does not fit its input columns; the error names the key.
    """
    for one in transforms:
        rows = one.apply(rows)
    return rows


def use_headers(config: Mapping[str, str]) -> bool:
    """Whether a transform or a predicate of a connector uses the headers of records. Reading headers costs CPU time."""
    for alias in aliases(config):
        settings = _settings(config, ALIASES, alias)
        found = KINDS.get(config.get(f"{settings.prefix}type", "").strip())
        if found is not None and found[0].uses_headers(settings):
            return True
    types = [config.get(f"{PREDICATE_ALIASES.name}.{alias}.type") for alias in aliases(config, PREDICATE_ALIASES)]
    return any(type_ is not None and (kind := PREDICATES.get(type_.strip())) and kind.uses_headers for type_ in types)


def first_sentence(error: Exception) -> str:
    """The first line of an error's message, without the plan or the position that Spark adds on further lines."""
    return str(error).strip().splitlines()[0]
