"""``PrefixedConfig``: the keys of one end of a connector (its source or its sink) in the connector's config.

A plug-in names its keys as Kafka Connect does: ``path``, ``connection.url``. In a config the keys of the source have
the prefix ``source.`` and those of the sink ``sink.``. The end that ``connector.class`` names may leave the prefix out,
so that a config written for Kafka Connect needs another class and nothing else.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from coterie.config.definition import ConfigDef, ConfigKey
from coterie.nouns.errors import ConfigError, invalid_value_message

T = TypeVar("T")

SOURCE_PREFIX = "source."
"""Prefix of the keys of a connector's source."""
SINK_PREFIX = "sink."
"""Prefix of the keys of a connector's sink."""
OPTION_PREFIX = "option."
"""Prefix, after :data:`SOURCE_PREFIX` or :data:`SINK_PREFIX`, of the keys that are options of Spark's own reader or
writer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixedConfig:
    """The config of one end of a connector (its source or its sink), or of one transform or predicate. The methods take
    key names without the prefix. They return errors under the user's key: the one that the user has set or must set,
    with or without the prefix. The messages of :meth:`error_by_key` contain this key too or, with
    ``is_prefix_in_messages=False``, the name without prefix."""

    config: Mapping[str, str] = field(repr=False)
    """The complete config of the connector or of one of its tasks, with references to secrets resolved. For a transform
    or predicate: only its own keys."""
    prefix: str
    """:data:`SOURCE_PREFIX`, :data:`SINK_PREFIX`, or the prefix of the keys of one transform or predicate."""
    is_prefix_optional: bool = False
    """Whether a key may also be set without the prefix."""
    is_prefix_in_messages: bool = True
    """Whether the messages of :meth:`error_by_key` have the keys with their prefix. In Connect's messages, the keys of
    a transform or predicate have no prefix."""
    worker_kafka_properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The worker's own settings for Kafka, as properties of Kafka's clients: ``bootstrap.servers``, ..."""

    def user_key(self, name: str) -> str:
        """The key in ``config`` by which the user has set ``name``, with or without the prefix; if it is not set, the
        key by which the user has to set it. The other methods and the docs call it the user's key."""
        prefixed = self.prefix + name
        if not self.is_prefix_optional or prefixed in self.config:
            return prefixed
        if name in self.config:
            return name
        return prefixed if any(key.startswith(self.prefix) for key in self.config) else name

    def definition_with_user_keys(self, definition: ConfigDef) -> ConfigDef:
        """``definition`` with the user's key (:meth:`user_key`) as the name of each key."""
        return ConfigDef(tuple(self._with_user_key(key) for key in definition.keys))

    def optional_value(self, definition: ConfigDef, name: str, type_: type[T]) -> T | None:
        """The value of the key ``name`` of ``definition``, as :meth:`ConfigDef.optional_value`; errors name the user's
        key."""
        key = self._with_user_key(definition[name])
        return ConfigDef((key,)).optional_value(self.config, key.name, type_)

    def required_value(self, definition: ConfigDef, name: str, type_: type[T]) -> T:
        """The value of the key ``name`` of ``definition``, as :meth:`ConfigDef.required_value`; errors name the user's
        key."""
        key = self._with_user_key(definition[name])
        return ConfigDef((key,)).required_value(self.config, key.name, type_)

    def effective_values(self, definition: ConfigDef, names: Iterable[str]) -> dict[str, str | None]:
        """The values of the keys ``names``, by name: those that the config sets, else the defaults; None for a key
        without a value. The values are normalized: two values with the same meaning are equal."""
        value_by_name: dict[str, str | None] = {}
        for name in names:
            key = self._with_user_key(definition[name])
            text = self.config.get(key.name, key.default)
            value_by_name[name] = None if text is None else key.normalized_value(text)
        return value_by_name

    def values_under_prefix(self, prefix: str) -> dict[str, str]:
        """The values of all keys whose name starts with ``prefix``, such as :data:`OPTION_PREFIX`, by the rest of the
        name. If a key is set both with and without :attr:`prefix`, the value of the key with :attr:`prefix` is
        taken."""
        values: dict[str, str] = {}
        for full_prefix in (*((prefix,) if self.is_prefix_optional else ()), self.prefix + prefix):
            values |= {
                key.removeprefix(full_prefix): value
                for key, value in self.config.items()
                if key.startswith(full_prefix)
            }
        return values

    def values_by_user_key(self, values: Mapping[str, str]) -> dict[str, str]:
        """``values``, which are by name without the prefix, by the user's key (:meth:`user_key`)."""
        return {self.user_key(name): value for name, value in values.items()}

    def with_defaults(self, values: Mapping[str, str]) -> "PrefixedConfig":
        """A copy of this object whose config has ``values``, given by name without the prefix, for the keys that the
        config does not set."""
        return replace(self, config={**self.values_by_user_key(values), **self.config})

    def error_by_key(self, name: str, message: str) -> dict[str, list[str]]:
        """A mapping with one entry: under the user's key of ``name``, one error message about the value that the config
        sets. ``message``: what is wrong with the value and what to do."""
        key = self.user_key(name)
        shown_key = key if self.is_prefix_in_messages else name
        return {key: [invalid_value_message(shown_key, self.config.get(key), message)]}

    def make_config_error(self, name: str, message: str) -> ConfigError:
        """A ConfigError with the message of :meth:`error_by_key`; the caller raises it."""
        return ConfigError(self.error_by_key(name, message))

    def unknown_key_errors(self, definition: ConfigDef, free_key_prefixes: Iterable[str]) -> dict[str, list[str]]:
        """An error, by key, for each set key that starts with :attr:`prefix`, is not in ``definition`` and does not
        continue with one of ``free_key_prefixes``: the user must see a typo. ``definition`` has the user's keys
        (:meth:`definition_with_user_keys`); ``free_key_prefixes`` are without :attr:`prefix`.

        Keys without a prefix may belong to another program, so Connect and Coterie both ignore unknown ones.
        """
        known_keys = {key.name for key in definition.keys}
        full_free_prefixes = tuple(self.prefix + start for start in free_key_prefixes)
        return {
            key: [f"Unknown configuration {key}"]
            for key in self.config
            if key.startswith(self.prefix) and key not in known_keys and not key.startswith(full_free_prefixes)
        }

    def _with_user_key(self, key: ConfigKey) -> ConfigKey:
        """``key`` with the user's key (:meth:`user_key`) as its name, and with the user's keys of its dependents."""
        return replace(
            key, name=self.user_key(key.name), dependents=tuple(self.user_key(name) for name in key.dependents)
        )


def errors_if_any_option_is_set(config: PrefixedConfig, end_name: str) -> dict[str, list[str]]:
    """An error, by the user's key, for each set option (:data:`OPTION_PREFIX`), for a source or sink that has no
    options. ``end_name``: the name of the source or sink, with which the messages begin."""
    return {
        config.user_key(OPTION_PREFIX + option): [f"{end_name} has no options: remove this key"]
        for option in config.values_under_prefix(OPTION_PREFIX)
    }
