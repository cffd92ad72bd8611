"""Parses a connector's transforms and applies them to rows in the order of the config. ``smt`` implements each type."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from coterie.config.definition import ConfigDef, ConfigKey, Importance, Type, Width, split_list
from coterie.nouns.errors import ConfigError, invalid_value_message
from coterie.spark.columns import column_id_by_name
from coterie.spark.prefixed_config import PrefixedConfig
from coterie.spark.record_columns import PREDICATE_MATCHES_COLUMN, ROW_BEFORE_COLUMN, exact_column
from coterie.spark.smt.predicates import PREDICATE_TYPE_BY_NAME, PREDICATE_TYPE_VALIDATOR, PredicateType
from coterie.spark.smt.registry import TRANSFORM_TYPE_VALIDATOR, TYPE_AND_SIDE_BY_NAME
from coterie.spark.smt.transform_type import KeyOrValue, TransformType


def _alias_list_error(value: str) -> str | None:
    """A validator of a list of aliases: None if all are different and none is empty, else the error message."""
    aliases = split_list(value)
    if "" in aliases:
        return "List must not contain empty items"
    return "Duplicate alias provided." if len(set(aliases)) < len(aliases) else None


def _make_alias_list_key(name: str, documentation: str) -> ConfigKey:
    """The definition of a connector's key ``name``, whose value is a list of aliases."""
    group = name.capitalize()
    return ConfigKey(
        name=name,
        type=Type.LIST,
        documentation=documentation,
        default="",
        validator=_alias_list_error,
        group=group,
        order=0,
        width=Width.LONG,
        display_name=group,
    )


TRANSFORM_ALIASES_KEY = _make_alias_list_key(
    "transforms", "Aliases of the transforms, in the order in which they are applied."
)
"""The key ``transforms`` of a connector."""
PREDICATE_ALIASES_KEY = _make_alias_list_key("predicates", "Aliases of the predicates, which transforms name.")
"""The key ``predicates`` of a connector."""
_KEY_PREFIXES = tuple(f"{key.name}." for key in (TRANSFORM_ALIASES_KEY, PREDICATE_ALIASES_KEY))
"""The prefixes of all keys of transforms and predicates."""


def list_aliases(config: Mapping[str, str], key: ConfigKey = TRANSFORM_ALIASES_KEY) -> list[str]:
    """The aliases in the value of ``key``, which is :data:`TRANSFORM_ALIASES_KEY` or :data:`PREDICATE_ALIASES_KEY`.
    They are in the order of the value, each once. The value need not be valid."""
    return list(dict.fromkeys(split_list(config.get(key.name, key.default or ""))))


def _settings_of_alias(config: Mapping[str, str], key: ConfigKey, alias: str) -> PrefixedConfig:
    """A config with only the keys of the transform or predicate ``alias``. ``key``: the key that lists the alias."""
    prefix = f"{key.name}.{alias}."
    own_keys = {name: value for name, value in config.items() if name.startswith(prefix)}
    return PrefixedConfig(config=own_keys, prefix=prefix, is_prefix_in_messages=False)


# -- keys -------------------------------------------------------------------------------------------------------------


def transforms_and_predicates_definition(config: Mapping[str, str]) -> ConfigDef:
    """The keys of the transforms and predicates that ``config`` lists, with their prefixes. For an unknown type, only
    the key ``type``."""
    keys: list[ConfigKey] = []
    for alias in list_aliases(config):
        type_and_side = TYPE_AND_SIDE_BY_NAME.get(config.get(f"{TRANSFORM_ALIASES_KEY.name}.{alias}.type", "").strip())
        own_keys = (
            ()
            if type_and_side is None
            else (*type_and_side[0].keys, *(_PREDICATE_KEYS if type_and_side[0].accepts_predicate else ()))
        )
        keys += _keys_of_alias(TRANSFORM_ALIASES_KEY, alias, "transform", TRANSFORM_TYPE_VALIDATOR, own_keys)
    for alias in list_aliases(config, PREDICATE_ALIASES_KEY):
        predicate_type = PREDICATE_TYPE_BY_NAME.get(
            config.get(f"{PREDICATE_ALIASES_KEY.name}.{alias}.type", "").strip()
        )
        keys += _keys_of_alias(
            PREDICATE_ALIASES_KEY,
            alias,
            "predicate",
            PREDICATE_TYPE_VALIDATOR,
            () if predicate_type is None else predicate_type.keys,
        )
    return ConfigDef(tuple(keys))


_PREDICATE_KEYS = (
    ConfigKey(
        name="predicate",
        type=Type.STRING,
        documentation="The transform is applied only to rows that match this predicate; other rows stay unchanged.",
        is_optional=True,
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


def _keys_of_alias(
    list_key: ConfigKey, alias: str, item_kind: str, validator: object, own_keys: Iterable[ConfigKey]
) -> list[ConfigKey]:
    """The keys of the transform or predicate ``alias``, with their prefix, and with the group and order in which a form
    shows them: ``type``, then ``own_keys``. ``validator``: the validator of ``type``. ``item_kind``: ``transform`` or
    ``predicate``."""
    prefix, group = f"{list_key.name}.{alias}.", f"{list_key.display_name}: {alias}"
    assert callable(validator)
    type_key = ConfigKey(
        name="type",
        type=Type.CLASS,
        documentation=f"Type of the {item_kind} {alias}.",
        importance=Importance.HIGH,
        validator=validator,
        width=Width.LONG,
        display_name=f"Type of {alias}",
    )
    own_keys = [replace(key, name_in_validator_errors=key.name) for key in own_keys]
    type_key = replace(type_key, dependents=tuple(prefix + key.name for key in own_keys))
    return [
        replace(key, name=prefix + key.name, group=group, order=order)
        for order, key in enumerate([type_key, *own_keys])
    ]


def config_errors(config: Mapping[str, str]) -> dict[str, list[str]]:
    """Errors in the keys of the transforms and predicates, by key. Not checked: whether the transforms and predicates
    fit the columns of the rows."""
    own_definition = transforms_and_predicates_definition(config)
    known_keys = {key.name for key in own_definition.keys}
    unknown_keys = [key for key in config if key.startswith(_KEY_PREFIXES) and key not in known_keys]
    return _value_errors(config, own_definition) | {key: [f"Unknown configuration {key}"] for key in unknown_keys}


def _value_errors(config: Mapping[str, str], own_definition: ConfigDef) -> dict[str, list[str]]:
    """Errors, by key, in the values of the keys ``own_definition``, and of transforms whose values are valid alone and
    invalid together."""
    errors = own_definition.errors(config)
    for alias in list_aliases(config):
        settings = _settings_of_alias(config, TRANSFORM_ALIASES_KEY, alias)
        if any(key.startswith(settings.prefix) for key in errors):
            continue
        transform_type, _ = TYPE_AND_SIDE_BY_NAME[config[f"{settings.prefix}type"].strip()]
        errors |= transform_type.value_combination_errors(settings) | _predicate_errors(config, settings)
    return errors


def _predicate_errors(config: Mapping[str, str], settings: PrefixedConfig) -> dict[str, list[str]]:
    """An error, by key, if the transform with the keys ``settings`` has a predicate that ``config`` does not list, or
    negates no predicate."""
    name = config.get(settings.user_key("predicate"))
    if name is not None and name.strip() not in (listed_predicates := list_aliases(config, PREDICATE_ALIASES_KEY)):
        return settings.error_by_key(
            "predicate",
            f"There is no such predicate; the key predicates lists {', '.join(listed_predicates) or 'none'}",
        )
    if name is None and settings.user_key("negate") in config:
        return settings.error_by_key("negate", f"There is no predicate to negate: set {settings.user_key('predicate')}")
    return {}


# -- transforms -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicate:
    """A predicate of a connector, with the way in which one transform uses it."""

    predicate_type: PredicateType
    settings: PrefixedConfig
    """The keys of the predicate."""
    is_negated: bool
    """Whether the transform is applied to the rows that do not match the predicate."""

    def condition_column(self, rows: DataFrame) -> Column:
        """A boolean column, never null: whether the transform is applied to the row, with the negation considered.

        :raises ConfigError: when the predicate does not fit the rows' columns; the error names the key.
        """
        key = self.predicate_type.keys[0].name if self.predicate_type.keys else "type"
        try:
            matches = F.coalesce(self.predicate_type.make_match_column(rows, self.settings), F.lit(False))
        except (PySparkException, ValueError) as error:
            raise self.settings.make_config_error(key, first_message_line(error)) from error
        return ~matches if self.is_negated else matches


@dataclass(frozen=True, slots=True, kw_only=True)
class Transform:
    """One transform of a connector: its type, its keys, and the rows to which it is applied."""

    transform_type: TransformType
    key_or_value_side: KeyOrValue
    settings: PrefixedConfig
    """The keys of the transform."""
    predicate: Predicate | None = None
    """The condition on the rows to which the transform is applied; None: all rows."""

    @property
    def config_key_in_errors(self) -> str:
        """The key, with the prefix, that an error of this transform names unless the error is about another key: the
        first key of the transform's type, or ``type`` if the transform has no other keys."""
        return self.settings.user_key(self.transform_type.keys[0].name if self.transform_type.keys else "type")

    @property
    def configured_type_name(self) -> str:
        """The value of the transform's key ``type``."""
        return self.settings.config[self.settings.user_key("type")].strip()

    @property
    def value_of_key_in_errors(self) -> str:
        """The value that the config sets for :attr:`config_key_in_errors`; empty text if it sets none."""
        return self.settings.config.get(self.config_key_in_errors, "")

    def apply(self, rows: DataFrame) -> DataFrame:
        """``rows`` after the transform. With a predicate, only rows that match are transformed.

        :raises ConfigError: when the transform does not fit the columns of ``rows``; the error names the key.
        """
        try:
            if self.predicate is None:
                return self.transform_type.apply(rows, self.key_or_value_side, self.settings)
            return self._apply_to_matching_rows(rows, self.predicate.condition_column(rows))
        except (PySparkException, ValueError) as error:
            message = invalid_value_message(
                self.config_key_in_errors, self.value_of_key_in_errors, first_message_line(error)
            )
            raise ConfigError({self.config_key_in_errors: [message]}) from error

    def _apply_to_matching_rows(self, rows: DataFrame, matches: Column) -> DataFrame:
        """Apply the transform to all rows, and then select for each row the new columns if ``matches`` is true, else
        the old columns.

        A column that exists only before or only after the transform is null in the rows that do not have it. A column
        that the transform keeps is kept here too, with the same id in Spark's plan: by that id validation detects that
        no transform changes the column.

        :raises ConfigError: when a column would have two types.
        :raises PySparkException, ValueError: when the transform does not fit the columns of ``rows``.
        """
        marked_rows = rows.withColumn(PREDICATE_MATCHES_COLUMN, matches).withColumn(
            ROW_BEFORE_COLUMN, F.struct(*map(exact_column, rows.columns))
        )
        transformed_rows = self.transform_type.apply(marked_rows, self.key_or_value_side, self.settings)
        ids_before, ids_after = column_id_by_name(marked_rows), column_id_by_name(transformed_rows)
        old_types = {field.name: field.dataType for field in rows.schema.fields}
        new_types = {
            field.name: field.dataType
            for field in transformed_rows.schema.fields
            if field.name not in (PREDICATE_MATCHES_COLUMN, ROW_BEFORE_COLUMN)
        }
        selected: list[Column] = []
        for name in [*new_types, *(name for name in old_types if name not in new_types)]:
            if name in old_types and ids_after.get(name) == ids_before[name]:
                selected.append(exact_column(name))
                continue
            if (
                name in old_types
                and name in new_types
                and old_types[name].simpleString() != new_types[name].simpleString()
            ):
                raise self.settings.make_config_error(
                    "predicate",
                    f"the transform makes {new_types[name].simpleString()} of column {name}, and rows that do not "
                    f"match have {old_types[name].simpleString()}: give all rows one type",
                )
            new_value = F.when(
                exact_column(PREDICATE_MATCHES_COLUMN), exact_column(name) if name in new_types else F.lit(None)
            )
            selected.append(
                new_value.otherwise(exact_column(ROW_BEFORE_COLUMN)[name] if name in old_types else F.lit(None)).alias(
                    name
                )
            )
        return transformed_rows.select(*selected)


def parse_transforms(config: Mapping[str, str]) -> tuple[Transform, ...]:
    """The transforms of a connector with the config ``config``, in the order in which they are applied.

    :raises ConfigError: when values are not valid; the error names each key.
    """
    if errors := _value_errors(config, transforms_and_predicates_definition(config)):
        raise ConfigError(errors)
    return tuple(_parse_transform(config, alias) for alias in list_aliases(config))


def _parse_transform(config: Mapping[str, str], alias: str) -> Transform:
    settings = _settings_of_alias(config, TRANSFORM_ALIASES_KEY, alias)
    transform_type, side = TYPE_AND_SIDE_BY_NAME[config[f"{settings.prefix}type"].strip()]
    predicate = None
    if (name := config.get(settings.user_key("predicate"))) is not None:
        predicate_settings = _settings_of_alias(config, PREDICATE_ALIASES_KEY, name.strip())
        predicate = Predicate(
            predicate_type=PREDICATE_TYPE_BY_NAME[config[f"{predicate_settings.prefix}type"].strip()],
            settings=predicate_settings,
            is_negated=settings.required_value(ConfigDef(_PREDICATE_KEYS), "negate", bool),
        )
    return Transform(transform_type=transform_type, key_or_value_side=side, settings=settings, predicate=predicate)


def apply_transforms(rows: DataFrame, transforms: Iterable[Transform]) -> DataFrame:
    """``rows`` after all ``transforms``, applied in their order.

    :raises ConfigError: when a transform does not fit the columns that it gets; the error names the key.
    """
    for transform in transforms:
        rows = transform.apply(rows)
    return rows


def uses_headers(config: Mapping[str, str]) -> bool:
    """Whether a transform or a predicate that ``config`` lists uses the headers of records. Only then the source reads
    headers, because that costs CPU time."""
    for alias in list_aliases(config):
        settings = _settings_of_alias(config, TRANSFORM_ALIASES_KEY, alias)
        type_and_side = TYPE_AND_SIDE_BY_NAME.get(config.get(f"{settings.prefix}type", "").strip())
        if type_and_side is not None and type_and_side[0].uses_headers(settings):
            return True
    type_names = [
        config.get(f"{PREDICATE_ALIASES_KEY.name}.{alias}.type")
        for alias in list_aliases(config, PREDICATE_ALIASES_KEY)
    ]
    return any(
        type_ is not None
        and (predicate_type := PREDICATE_TYPE_BY_NAME.get(type_.strip()))
        and predicate_type.uses_headers
        for type_ in type_names
    )


def first_message_line(error: Exception) -> str:
    """The first line of the message of ``error``, without the plan or the position that Spark adds on further lines.
    The message must not be empty."""
    return str(error).strip().splitlines()[0]
