"""Parses a connector's transforms and applies them to rows in the order of the config. ``smt`` implements each type."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from coterie.config.definition import ConfigDef, ConfigKey, Importance, Type, Width, as_list, one_of
from coterie.nouns.errors import ConfigError
from coterie.spark.columns import column_ids
from coterie.spark.prefixed_config import PrefixedConfig
from coterie.spark.record_columns import PREDICATE_MATCHES, ROW_BEFORE, column
from coterie.spark.smt.predicates import PREDICATES, PredicateType
from coterie.spark.smt.registry import TRANSFORM_TYPES, TYPE_CHECK
from coterie.spark.smt.transform_type import Side, TransformType


def _distinct(value: str) -> str | None:
    """A check of a list of aliases: None if all are different and none is empty, else the error message."""
    aliases = as_list(value)
    if "" in aliases:
        return "List must not contain empty items"
    return "Aliases must be distinct" if len(set(aliases)) < len(aliases) else None


def _aliases(name: str, documentation: str) -> ConfigKey:
    """The key ``name`` of a connector, whose value is a list of aliases."""
    label = name.capitalize()
    return ConfigKey(
        name=name,
        type=Type.LIST,
        documentation=documentation,
        default="",
        validator=_distinct,
        group=label,
        order=0,
        width=Width.LONG,
        display_name=label,
    )


ALIASES = _aliases("transforms", "Aliases of the transforms, in the order in which they are applied.")
"""The key ``transforms`` of a connector."""
PREDICATE_ALIASES = _aliases("predicates", "Aliases of the predicates, which transforms name.")
"""The key ``predicates`` of a connector."""
_PREFIXES = tuple(f"{key.name}." for key in (ALIASES, PREDICATE_ALIASES))
"""The prefixes of all keys of transforms and predicates."""


def aliases(config: Mapping[str, str], key: ConfigKey = ALIASES) -> list[str]:
    """The aliases in the value of ``key``, which is :data:`ALIASES` or :data:`PREDICATE_ALIASES`. The value need not be
    valid."""
    return as_list(config.get(key.name, key.default or ""))


def _settings(config: Mapping[str, str], key: ConfigKey, alias: str) -> PrefixedConfig:
    """A config with only the keys of the transform or predicate ``alias``. ``key``: the key that lists the alias."""
    prefix = f"{key.name}.{alias}."
    own = {name: value for name, value in config.items() if name.startswith(prefix)}
    return PrefixedConfig(config=own, prefix=prefix)


# -- keys -------------------------------------------------------------------------------------------------------------


def definition(config: Mapping[str, str]) -> ConfigDef:
    """The keys of the transforms and predicates that ``config`` lists, with their prefixes. For an unknown type, only
    the key ``type``."""
    keys: list[ConfigKey] = []
    for alias in aliases(config):
        found = TRANSFORM_TYPES.get(config.get(f"{ALIASES.name}.{alias}.type", "").strip())
        own = () if found is None else (*found[0].keys, *(_PREDICATE_KEYS if found[0].takes_predicate else ()))
        keys += _numbered(ALIASES, alias, "transform", TYPE_CHECK, own)
    for alias in aliases(config, PREDICATE_ALIASES):
        kind = PREDICATES.get(config.get(f"{PREDICATE_ALIASES.name}.{alias}.type", "").strip())
        keys += _numbered(PREDICATE_ALIASES, alias, "predicate", _PREDICATE_CHECK, () if kind is None else kind.keys)
    return ConfigDef(tuple(keys))


_PREDICATE_KEYS = (
    ConfigKey(
        name="predicate",
        type=Type.STRING,
        documentation="The transform is applied only to rows that match this predicate; other rows stay unchanged.",
        optional=True,
        width=Width.MEDIUM,
        display_name="Predicate",
    ),
    ConfigKey(
        name="negate",
        type=Type.BOOLEAN,
        documentation="Whether the transform is instead applied to the rows that do not match the predicate.",
        default="false",
        width=Width.SHORT,
        display_name="Negate the predicate",
    ),
)
"""The keys, without the prefix, of a transform to which a predicate can be added."""
_PREDICATE_CHECK = one_of(PREDICATES, "No such predicate; there are")


def _numbered(
    list_key: ConfigKey, alias: str, item_kind: str, validator: object, own: Iterable[ConfigKey]
) -> list[ConfigKey]:
    """The keys of the transform or predicate ``alias``, with their prefix: ``type``, then ``own``. Their group and
    their order in a form are set. ``validator``: the check of ``type``."""
    prefix, group = f"{list_key.name}.{alias}.", f"{list_key.display_name}: {alias}"
    assert callable(validator)
    type_ = ConfigKey(
        name="type",
        type=Type.CLASS,
        documentation=f"Type of the {item_kind} {alias}.",
        importance=Importance.HIGH,
        validator=validator,
        width=Width.LONG,
        display_name=f"Type of {alias}",
    )
    own = list(own)
    type_ = replace(type_, dependents=tuple(prefix + key.name for key in own))
    return [replace(key, name=prefix + key.name, group=group, order=order) for order, key in enumerate([type_, *own])]


def config_errors(config: Mapping[str, str]) -> dict[str, list[str]]:
    """Errors in the keys of the transforms and predicates, by key. Whether they fit the columns of the rows is not
    checked."""
    own = definition(config)
    known = {key.name for key in own.keys}
    unknown = [key for key in config if key.startswith(_PREFIXES) and key not in known]
    return _value_errors(config, own) | {key: [f"Unknown configuration {key}"] for key in unknown}


def _value_errors(config: Mapping[str, str], own: ConfigDef) -> dict[str, list[str]]:
    """Errors, by key, in the values of the keys ``own``, and of transforms whose values are valid alone and invalid
    together."""
    found = own.errors(config)
    for alias in aliases(config):
        settings = _settings(config, ALIASES, alias)
        if any(key.startswith(settings.prefix) for key in found):
            continue
        kind, _ = TRANSFORM_TYPES[config[f"{settings.prefix}type"].strip()]
        found |= kind.check_values(settings) | _predicate_errors(config, settings)
    return found


def _predicate_errors(config: Mapping[str, str], settings: PrefixedConfig) -> dict[str, list[str]]:
    """An error, by key, if the transform with the keys ``settings`` has a predicate that ``config`` does not list, or
    negates no predicate."""
    name = config.get(settings.key("predicate"))
    if name is not None and name.strip() not in (there := aliases(config, PREDICATE_ALIASES)):
        return settings.error_by_key(
            "predicate", f"There is no such predicate; predicates names {', '.join(there) or 'none'}"
        )
    if name is None and settings.key("negate") in config:
        return settings.error_by_key("negate", f"There is no predicate to negate: set {settings.key('predicate')}")
    return {}


# -- transforms -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicate:
    """A predicate of a connector, as used by one transform."""

    predicate_type: PredicateType
    settings: PrefixedConfig
    """The keys of the predicate."""
    is_negated: bool
    """Whether the transform is applied to the rows that do not match the predicate."""

    def matches(self, rows: DataFrame) -> Column:
        """Whether the transform is applied to a row, with the negation considered; never null.

        :raises ConfigError: when the predicate does not fit the rows' columns; the error names the key.
        """
        key = self.predicate_type.keys[0].name if self.predicate_type.keys else "type"
        try:
            found = F.coalesce(self.predicate_type.matches(rows, self.settings), F.lit(False))
        except (PySparkException, ValueError) as error:
            raise self.settings.config_error(key, first_line(error)) from error
        return ~found if self.is_negated else found


@dataclass(frozen=True, slots=True, kw_only=True)
class Transform:
    """One transform of a connector."""

    transform_type: TransformType
    side: Side
    settings: PrefixedConfig
    """The keys of the transform."""
    predicate: Predicate | None = None
    """The condition on the rows to which the transform is applied; None: all rows."""

    @property
    def key(self) -> str:
        """The key, with the prefix, that an error of this transform names unless the error is about another key: the
        first key of the transform's type, or ``type`` if the transform has no other keys."""
        return self.settings.key(self.transform_type.keys[0].name if self.transform_type.keys else "type")

    @property
    def type(self) -> str:
        """The value of the transform's key ``type``."""
        return self.settings.config[self.settings.key("type")].strip()

    @property
    def value(self) -> str:
        """The set value of :attr:`key`, or an empty text."""
        return self.settings.config.get(self.key, "")

    def apply(self, rows: DataFrame) -> DataFrame:
        """``rows`` after the transform. With a predicate, only rows that match are transformed.

        :raises ConfigError: when the transform does not fit the columns of ``rows``; the error names the key.
        """
        try:
            if self.predicate is None:
                return self.transform_type.apply(rows, self.side, self.settings)
            return self._where_matching(rows, self.predicate.matches(rows))
        except (PySparkException, ValueError) as error:
            sentence = f"Invalid value {self.value} for configuration {self.key}: {first_line(error)}"
            raise ConfigError({self.key: [sentence]}) from error

    def _where_matching(self, rows: DataFrame, matches: Column) -> DataFrame:
        """Apply the transform to all rows, and then select for each row the new columns if ``matches`` is true, else
        the old columns.

        A column that exists only before or only after the transform is null in the rows that do not have it. A column
        that the transform keeps is kept here too, with the same id in Spark's plan: by that id validation detects that
        no transform changes the column.

        :raises ConfigError: when a column would have two types.
        :raises PySparkException, ValueError: when the transform does not fit the columns of ``rows``.
        """
        before = rows.withColumn(PREDICATE_MATCHES, matches).withColumn(
            ROW_BEFORE, F.struct(*map(column, rows.columns))
        )
        after = self.transform_type.apply(before, self.side, self.settings)
        ids_before, ids_after = column_ids(before), column_ids(after)
        old = {field.name: field.dataType for field in rows.schema.fields}
        new = {
            field.name: field.dataType
            for field in after.schema.fields
            if field.name not in (PREDICATE_MATCHES, ROW_BEFORE)
        }
        chosen: list[Column] = []
        for name in [*new, *(name for name in old if name not in new)]:
            if name in old and ids_after.get(name) == ids_before[name]:
                chosen.append(column(name))
                continue
            if name in old and name in new and old[name].simpleString() != new[name].simpleString():
                raise self.settings.config_error(
                    "predicate",
                    f"the transform makes {new[name].simpleString()} of column {name}, and rows that do not match have "
                    f"{old[name].simpleString()}: give all rows one type",
                )
            taken = F.when(column(PREDICATE_MATCHES), column(name) if name in new else F.lit(None))
            chosen.append(taken.otherwise(column(ROW_BEFORE)[name] if name in old else F.lit(None)).alias(name))
        return after.select(*chosen)


def parse_transforms(config: Mapping[str, str]) -> tuple[Transform, ...]:
    """The transforms of a connector with the config ``config``, in the order in which they are applied.

    :raises ConfigError: when values are not valid; the error names each key.
    """
    if errors := _value_errors(config, definition(config)):
        raise ConfigError(errors)
    return tuple(_parse_transform(config, alias) for alias in aliases(config))


def _parse_transform(config: Mapping[str, str], alias: str) -> Transform:
    settings = _settings(config, ALIASES, alias)
    kind, side = TRANSFORM_TYPES[config[f"{settings.prefix}type"].strip()]
    predicate = None
    if (name := config.get(settings.key("predicate"))) is not None:
        own = _settings(config, PREDICATE_ALIASES, name.strip())
        predicate = Predicate(
            predicate_type=PREDICATES[config[f"{own.prefix}type"].strip()],
            settings=own,
            is_negated=settings.read(ConfigDef(_PREDICATE_KEYS), "negate", bool),
        )
    return Transform(transform_type=kind, side=side, settings=settings, predicate=predicate)


def apply_transforms(rows: DataFrame, transforms: Iterable[Transform]) -> DataFrame:
    """``rows`` after all ``transforms``, applied in their order.

    :raises ConfigError: when a transform does not fit the columns that it gets; the error names the key.
    """
    for one in transforms:
        rows = one.apply(rows)
    return rows


def use_headers(config: Mapping[str, str]) -> bool:
    """Whether a transform or a predicate that ``config`` lists uses the headers of records. Only then the source reads
    headers, because that costs CPU time."""
    for alias in aliases(config):
        settings = _settings(config, ALIASES, alias)
        found = TRANSFORM_TYPES.get(config.get(f"{settings.prefix}type", "").strip())
        if found is not None and found[0].uses_headers(settings):
            return True
    types = [config.get(f"{PREDICATE_ALIASES.name}.{alias}.type") for alias in aliases(config, PREDICATE_ALIASES)]
    return any(type_ is not None and (kind := PREDICATES.get(type_.strip())) and kind.uses_headers for type_ in types)


def first_line(error: Exception) -> str:
    """The first line of an error's message, which must not be empty; without the plan or the position that Spark adds
    on further lines."""
    return str(error).strip().splitlines()[0]
