"""Builds the entries for configs in the responses of DescribeConfigs and CreateTopics: each has a config's name, value,
the source of the value, synonyms, type and documentation. A synonym is a place where the value may be set, with the
value that is set there."""

from collections.abc import Mapping
from enum import IntEnum

from coterie.broker.connect_configs import group_config_defaults
from coterie.broker.context import NODE_ID, BrokerContext
from coterie.broker.groups.configs import broker_config_giving_default_or_itself, group_config_definition
from coterie.broker.topics.broker_configs import broker_config_keys_and_values
from coterie.broker.topics.configs import BROKER_CONFIG_NAMES, TOPIC_CONFIGS, batch_size_max
from coterie.config.definition import ConfigKey, Type
from coterie.wire.kio_entities import Values


class ConfigSource(IntEnum):
    """Where the value of a config in a response comes from, with Kafka's numbers."""

    TOPIC = 1
    STATIC_BROKER = 4
    DEFAULT = 5
    GROUP = 8


_TYPES = {
    Type.BOOLEAN: 1,
    Type.STRING: 2,
    Type.INT: 3,
    Type.SHORT: 4,
    Type.LONG: 5,
    Type.DOUBLE: 6,
    Type.LIST: 7,
    Type.CLASS: 8,
    Type.PASSWORD: 9,
}
"""Kafka's number of each config type (KIP-569)."""


def topic_config_entries(broker: BrokerContext, configs: Mapping[str, str]) -> list[Values]:
    """An entry for each config that a topic can have; ``configs`` are those set on the topic."""
    batch_size = str(batch_size_max({}, broker.settings))
    return [
        _config_entry(
            key,
            configs.get(key.name),
            ConfigSource.TOPIC,
            BROKER_CONFIG_NAMES.get(key.name),
            broker_value_unless_kafka_default=batch_size
            if key.name == "max.message.bytes" and batch_size != key.default
            else None,
        )
        for key in TOPIC_CONFIGS.keys
    ]


def group_config_entries(broker: BrokerContext, configs: Mapping[str, str]) -> list[Values]:
    """An entry for each config that a group can have; ``configs`` are those set on the group."""
    on_broker = group_config_defaults(broker.settings)
    return [
        _config_entry(
            key,
            configs.get(key.name),
            ConfigSource.GROUP,
            broker_config_giving_default_or_itself(key.name),
            broker_value_unless_kafka_default=value if (value := on_broker.get(key.name)) != key.default else None,
        )
        for key in group_config_definition(broker.settings).keys
    ]


def broker_config_entries(broker: BrokerContext) -> list[Values]:
    """An entry for each config of this broker. All are read-only: they cannot be changed while the broker runs."""
    entries: list[Values] = []
    for key, value in broker_config_keys_and_values(broker.settings, NODE_ID, f"{broker.host}:{broker.port}"):
        set_here = None if value == key.default else value
        synonym_name = None if key.default is None else key.name
        entries.append({**_config_entry(key, set_here, ConfigSource.STATIC_BROKER, synonym_name), "read_only": True})
    return entries


def _config_entry(
    key: ConfigKey,
    own_value: str | None,
    source: ConfigSource,
    synonym_name: str | None,
    *,
    broker_value_unless_kafka_default: str | None = None,
) -> Values:
    """The entry of the config ``key``.

    ``own_value`` is the value that is set at ``source``, None if none is. ``synonym_name`` is the name of the broker
    config from which the default is taken, None if there is none; ``broker_value_unless_kafka_default`` is this broker
    config's value, None if it is Kafka's default.
    """
    default = key.default or "", ConfigSource.DEFAULT
    if broker_value_unless_kafka_default is not None:
        default = broker_value_unless_kafka_default, ConfigSource.STATIC_BROKER
    synonyms = [] if own_value is None else [{"name": key.name, "value": own_value, "source": source}]
    if synonym_name is not None:
        synonyms.append({"name": synonym_name, "value": default[0], "source": default[1]})
    return {
        "name": key.name,
        "value": default[0] if own_value is None else own_value,
        "read_only": False,
        "config_source": default[1] if own_value is None else source,
        "is_sensitive": key.type is Type.PASSWORD,
        "synonyms": synonyms,
        "config_type": _TYPES[key.type],
        "documentation": key.documentation,
    }
