"""Configs in the responses of DescribeConfigs and CreateTopics: value, source, synonyms, type."""

from collections.abc import Mapping
from enum import IntEnum

from coterie.broker.groups.configs import GROUP, broker_name
from coterie.broker.node import NODE_ID, Node
from coterie.broker.topics.broker_configs import broker_values
from coterie.broker.topics.configs import BROKER_NAMES, TOPIC, batch_size_max
from coterie.config.definition import Key, Type
from coterie.wire.shapes import Values


class ConfigSource(IntEnum):
    """The source of a value, with Kafka's numbers."""

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
"""Kafka's numbers of the types (KIP-569)."""


def topic_entries(node: Node, configs: Mapping[str, str]) -> list[Values]:
    """All configs of a topic; ``configs`` are those set on the topic."""
    batch_size = str(batch_size_max({}, node.settings))
    return [
        _entry(
            key,
            configs.get(key.name),
            ConfigSource.TOPIC,
            BROKER_NAMES.get(key.name),
            set_on_broker=batch_size if key.name == "max.message.bytes" and batch_size != key.default else None,
        )
        for key in TOPIC.keys
    ]


def group_entries(configs: Mapping[str, str]) -> list[Values]:
    """All configs of a group; ``configs`` are those set on the group."""
    return [_entry(key, configs.get(key.name), ConfigSource.GROUP, broker_name(key.name)) for key in GROUP.keys]


def broker_entries(node: Node) -> list[Values]:
    """All configs of this broker; they cannot be changed while it runs."""
    entries: list[Values] = []
    for key, value in broker_values(node.settings, NODE_ID, f"{node.host}:{node.port}"):
        set_here = None if value == key.default else value
        synonym = None if key.default is None else key.name
        entries.append({**_entry(key, set_here, ConfigSource.STATIC_BROKER, synonym), "read_only": True})
    return entries


def _entry(
    key: Key, own: str | None, source: ConfigSource, synonym: str | None, *, set_on_broker: str | None = None
) -> Values:
    """``own`` is the value that was set, by ``source``; ``synonym`` is the broker config with the default:
    ``set_on_broker``, or Kafka's default."""
    default = key.default or "", ConfigSource.DEFAULT
    if set_on_broker is not None:
        default = set_on_broker, ConfigSource.STATIC_BROKER
    synonyms = [] if own is None else [{"name": key.name, "value": own, "source": source}]
    if synonym is not None:
        synonyms.append({"name": synonym, "value": default[0], "source": default[1]})
    return {
        "name": key.name,
        "value": default[0] if own is None else own,
        "read_only": False,
        "config_source": default[1] if own is None else source,
        "is_sensitive": key.type is Type.PASSWORD,
        "synonyms": synonyms,
        "config_type": _TYPES[key.type],
        "documentation": key.documentation,
    }
