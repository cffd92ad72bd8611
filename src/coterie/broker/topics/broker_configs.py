"""This broker's settings under the names of Kafka's broker configs, so that Kafka's tools can read them.

They are set when the broker starts and cannot be changed by a client. Kafka configs without a counterpart in this
broker are missing, so that a client does not take a default of Kafka for a setting of this broker.
"""

from collections.abc import Iterator

from coterie.broker.connect_configs import broker_config_keys, broker_config_values
from coterie.broker.settings import BrokerSettings
from coterie.broker.topics.configs import BROKER_CONFIG_NAMES, TOPIC_CONFIGS
from coterie.config.definition import ConfigDef, ConfigKey, Type

_MINUTE_MS = 60_000


def _key(name: str, type_: Type, default: str | None, documentation: str) -> ConfigKey:
    """The definition of a broker config, with Kafka's ``default``; None: Kafka has no default."""
    return ConfigKey(name=name, type=type_, default=default, documentation=documentation)


_TOPICS_DEFAULTS = tuple(
    ConfigKey(name=BROKER_CONFIG_NAMES[key.name], type=key.type, default=key.default, documentation=key.documentation)
    for key in TOPIC_CONFIGS.keys
    if key.name in BROKER_CONFIG_NAMES
)
"""The broker configs from which topic configs take their defaults."""

BROKER_CONFIGS = ConfigDef((
    _key("advertised.listeners", Type.LIST, None, "The address that clients are to connect to."),
    _key("auto.create.topics.enable", Type.BOOLEAN, "true", "Whether a Metadata request creates missing topics."),
    _key("broker.id", Type.INT, "-1", "The node id of this broker."),
    _key("connection.failed.authentication.delay.ms", Type.INT, "100", "Delay of the response to a failed login."),
    _key("connections.max.idle.ms", Type.LONG, "600000", "After how long an idle connection is closed."),
    _key("default.replication.factor", Type.INT, "1", "Number of replicas of a new topic: always 1."),
    _key("delete.topic.enable", Type.BOOLEAN, "true", "Whether topics can be deleted."),
    _key("fetch.max.bytes", Type.INT, "57671680", "Maximum size of one fetch response."),
    _key("group.initial.rebalance.delay.ms", Type.INT, "3000", "How long a new group waits for more members."),
    _key("group.max.session.timeout.ms", Type.INT, "1800000", "The longest session timeout of a member."),
    _key("group.max.size", Type.INT, "2147483647", "How many members a group may have."),
    _key("group.min.session.timeout.ms", Type.INT, "6000", "The shortest session timeout of a member."),
    _key("listeners", Type.LIST, "PLAINTEXT://:9092", "Where the broker listens."),
    _key("log.cleaner.backoff.ms", Type.LONG, "15000", "How long the broker pauses after each compaction pass."),
    _key("log.cleaner.dedupe.buffer.size", Type.LONG, "134217728", "Memory for the keys in a compaction, in bytes."),
    _key("log.dirs", Type.LIST, None, "Where the broker keeps its log."),
    _key("log.retention.check.interval.ms", Type.LONG, "300000", "How often the broker checks for expired records."),
    _key("log.retention.hours", Type.INT, "168", "How long records are kept by default."),
    _key("max.connections", Type.INT, "2147483647", "How many connections there may be at once."),
    _key("max.connections.per.ip", Type.INT, "2147483647", "How many connections one address may have at once."),
    _key("node.id", Type.INT, None, "The node id of this broker."),
    _key("num.partitions", Type.INT, "1", "How many partitions a new topic has by default."),
    _key("offset.metadata.max.bytes", Type.INT, "4096", "Maximum size of the metadata of an offset commit."),
    _key("offsets.retention.minutes", Type.INT, "10080", "How long offsets of a group without members are kept."),
    _key("producer.id.expiration.ms", Type.INT, "86400000", "How long the state of an idle producer is kept."),
    _key("socket.request.max.bytes", Type.INT, "104857600", "How large one request may be."),
    _key("transaction.max.timeout.ms", Type.INT, "900000", "The longest transaction timeout of a producer."),
    _key("transactional.id.expiration.ms", Type.INT, "604800000", "How long an unused transactional id is kept."),
    *_TOPICS_DEFAULTS,
    *broker_config_keys(),
))  # fmt: skip
"""All broker configs that clients can read, with Kafka's defaults, and those of connect groups."""


def broker_config_keys_and_values(
    settings: BrokerSettings, node_id: int, address: str
) -> Iterator[tuple[ConfigKey, str]]:
    """Each key of :data:`BROKER_CONFIGS` with its value in this broker. ``address`` is the ``host:port`` to which
    clients connect."""
    limits, transactions, maintenance = settings.group_limits, settings.transactions, settings.maintenance
    protocol = settings.security.protocol
    set_here: dict[str, object] = {
        "advertised.listeners": f"{protocol}://{address}",
        "auto.create.topics.enable": str(settings.auto_create_topics).lower(),
        "broker.id": node_id,
        "connection.failed.authentication.delay.ms": settings.failed_authentication_delay_ms,
        "connections.max.idle.ms": settings.idle_timeout_ms,
        "fetch.max.bytes": settings.fetch_size_max,
        "group.initial.rebalance.delay.ms": limits.initial_rebalance_delay_ms,
        "group.max.session.timeout.ms": limits.session_timeout_max_ms,
        "group.max.size": limits.group_size_max,
        "group.min.session.timeout.ms": limits.session_timeout_min_ms,
        "listeners": f"{protocol}://{settings.host}:{address.rpartition(':')[2]}",
        "log.dirs": settings.data_path,
        "log.cleaner.backoff.ms": maintenance.cleaner_backoff_ms,
        "log.cleaner.dedupe.buffer.size": maintenance.dedupe_buffer_bytes,
        "log.retention.check.interval.ms": maintenance.retention_check_interval_ms,
        "max.connections": settings.connections_max,
        "max.connections.per.ip": settings.connections_per_address_max or settings.connections_max,
        "message.max.bytes": settings.batch_size_max,
        "node.id": node_id,
        "num.partitions": settings.default_partitions,
        "offset.metadata.max.bytes": limits.offset_metadata_utf16_length_max,
        "offsets.retention.minutes": limits.offsets_retention_ms // _MINUTE_MS,
        "producer.id.expiration.ms": transactions.producer_id_expiration_ms,
        "socket.request.max.bytes": settings.frame_size_max,
        "transaction.max.timeout.ms": transactions.timeout_max_ms,
        "transactional.id.expiration.ms": transactions.transactional_id_expiration_ms,
        **broker_config_values(settings),
    }
    for key in BROKER_CONFIGS.keys:
        yield key, str(set_here.get(key.name, key.default))
