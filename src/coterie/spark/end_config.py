"""``EndConfig``: the keys of one end of a connector (its source or its sink) in the connector's config.

A plug-in names its keys as Kafka Connect does: ``path``, ``connection.url``. In a config the keys of the source have
the prefix ``source.`` and those of the sink ``sink.``. The end that ``connector.class`` names may leave the prefix out,
so that a config written for Kafka Connect needs another class and nothing else.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from coterie.config.definition import Definition, Key
from coterie.nouns.errors import ConfigError

T = TypeVar("T")

SOURCE = "source."
SINK = "sink."
OPTIONS = "option."
"""Keys that start with this are options of Spark's own reader or writer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndConfig:
    """The config of one end of a connector; methods take key names without the prefix."""

    config: Mapping[str, str] = field(repr=False)
    """The complete config of the connector or of one of its tasks, with references to secrets resolved."""
    prefix: str
    """:data:`SOURCE`, :data:`SINK`, or the prefix of the keys of one transform or predicate."""
    is_prefix_optional: bool = False
    worker: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The worker's own settings for Kafka, as properties of Kafka's clients: ``bootstrap.servers``, ..."""

    def key(self, name: str) -> str:
        """The key with which the user has set ``name``, or has to set it."""
        prefixed = self.prefix + name
        if not self.is_prefix_optional or prefixed in self.config:
            return prefixed
        if name in self.config:
            return name
        return prefixed if any(key.startswith(self.prefix) for key in self.config) else name

    def shown(self, definition: Definition) -> Definition:
        """``definition`` with the names of keys that the user has to set."""
        return Definition(tuple(self._shown(key) for key in definition.keys))

    def find(self, definition: Definition, name: str, type_: type[T]) -> T | None:
        """See :meth:`Definition.find`; errors name the user's key."""
        key = self._shown(definition[name])
        return Definition((key,)).find(self.config, key.name, type_)

    def read(self, definition: Definition, name: str, type_: type[T]) -> T:
        """See :meth:`Definition.read`; errors name the user's key."""
        key = self._shown(definition[name])
        return Definition((key,)).read(self.config, key.name, type_)

    def stated(self, definition: Definition, names: Iterable[str]) -> dict[str, str | None]:
        """The values of keys, set or default, by name, normalized: equal when their meaning is equal."""
        found: dict[str, str | None] = {}
        for name in names:
            key = self._shown(definition[name])
            text = self.config.get(key.name, key.default)
            found[name] = None if text is None else key.essential(text)
        return found

    def under(self, prefix: str) -> dict[str, str]:
        """The values of all keys that start with ``prefix``, by the rest of the name. If a name is set with and without
        the end's prefix, the key with the end's prefix wins."""
        found: dict[str, str] = {}
        for start in (*((prefix,) if self.is_prefix_optional else ()), self.prefix + prefix):
            found |= {key.removeprefix(start): value for key, value in self.config.items() if key.startswith(start)}
        return found

    def named(self, values: Mapping[str, str]) -> dict[str, str]:
        """``values``, given by name without prefix, by the keys that the user has to set."""
        return {self.key(name): value for name, value in values.items()}

    def filled(self, values: Mapping[str, str]) -> "EndConfig":
        """This end with ``values``, by name without prefix, for the keys that the config does not set."""
        return replace(self, config={**self.named(values), **self.config})

    def error(self, name: str, sentence: str) -> dict[str, list[str]]:
        """An error about a set value, by the user's key. ``sentence``: what is wrong with the value and what to do."""
        key = self.key(name)
        return {key: [f"Invalid value {self.config.get(key)} for configuration {key}: {sentence}"]}

    def refused(self, name: str, sentence: str) -> ConfigError:
        """:meth:`error` as an exception."""
        return ConfigError(self.error(name, sentence))

    def unknown(self, shown: Definition, free_prefixes: Iterable[str]) -> dict[str, list[str]]:
        """An error for each key with the end's prefix that is not in ``shown``: the user must see a typo.

        Keys without a prefix may belong to another program, so Connect and Coterie both ignore unknown ones.
        """
        known = {key.name for key in shown.keys}
        free = tuple(self.prefix + start for start in free_prefixes)
        return {
            key: [f"Unknown configuration {key}"]
            for key in self.config
            if key.startswith(self.prefix) and key not in known and not key.startswith(free)
        }

    def _shown(self, key: Key) -> Key:
        return replace(key, name=self.key(key.name), dependents=tuple(self.key(name) for name in key.dependents))


def refused_options(config: EndConfig, where: str) -> dict[str, list[str]]:
    """Errors by key, for a source or sink without options."""
    return {config.key(OPTIONS + option): [f"{where} has no options"] for option in config.under(OPTIONS)}
