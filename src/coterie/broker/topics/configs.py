"""The configs of a topic: Kafka 4.3's keys, types, defaults and bounds, and functions that read their values.

A topic stores only the configs that were set. `text_config_or_default`, `int_config_or_default` and
`list_config_or_default` apply the default at every read, so that a change takes effect at the next request."""

import re
from collections.abc import Mapping

from coterie.broker.settings import BrokerSettings
from coterie.config.definition import ConfigDef, ConfigKey, Type, Validator, at_least, between, one_of, split_list

_FOR_EVER = str(2**63 - 1)


def _gzip_level_error(value: str) -> str | None:
    """An error if ``value`` is not a valid level of gzip, else None."""
    return None if value == "-1" or 1 <= int(value) <= 9 else "Value must be between 1 and 9 or equal to -1"


def _cleanup_policy_error(value: str) -> str | None:
    """An error if ``value`` is not a valid list of cleanup policies, else None."""
    items = split_list(value)
    if "" in items:
        return "values must not be empty"
    return None if {*items} <= {"compact", "delete"} else "String must be one of: compact, delete"


def _throttled_replicas_error(value: str) -> str | None:
    """An error if ``value`` is not a valid list of replicas, else None."""
    if value == "*" or all(re.fullmatch(r"[0-9]+:[0-9]+", item) for item in split_list(value)):
        return None
    return "must be '*' or replicas, each as [partition]:[broker], between commas"


def _remote_storage_error(value: str) -> str | None:
    """An error if ``value`` enables remote storage, else None."""
    return None if value.lower() == "false" else "this broker keeps no log in remote storage"


def _key(
    name: str,
    type_: Type,
    default: str,
    documentation: str,
    validator: Validator | None = None,
    broker: str | None = None,
) -> tuple[ConfigKey, str | None]:
    """The definition of a topic config, and unchanged ``broker``: the name of the broker config from which the topic
    config takes its default; None if there is no such broker config."""
    return ConfigKey(name=name, type=type_, default=default, documentation=documentation, validator=validator), broker


_TABLE = (
    _key("cleanup.policy", Type.LIST, "delete", "What happens to old records: `delete` deletes them by age and size,"
         " `compact` keeps the last record of each key. Both, comma-separated, do both; an empty list keeps all.",
         _cleanup_policy_error,
         broker="log.cleanup.policy"),
    _key("compression.gzip.level", Type.INT, "-1", "gzip's level where a broker compresses batches; this broker does"
         " not.", _gzip_level_error, broker="compression.gzip.level"),
    _key("compression.lz4.level", Type.INT, "9", "lz4's level where a broker compresses batches; this broker does"
         " not.", between(1, 17), broker="compression.lz4.level"),
    _key("compression.type", Type.STRING, "producer", "How a broker compresses batches; this broker keeps them as the"
         " producer compressed them, whatever the value is.",
         one_of(("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")), broker="compression.type"),
    _key("compression.zstd.level", Type.INT, "3", "zstd's level where a broker compresses batches; this broker does"
         " not.",
         between(-131072, 22), broker="compression.zstd.level"),
    _key("delete.retention.ms", Type.LONG, "86400000", "How long a compacted topic keeps a tombstone, so that slow"
         " readers receive it.", at_least(0), broker="log.cleaner.delete.retention.ms"),
    _key("file.delete.delay.ms", Type.LONG, "60000", "How long a file that is deleted stays on the disk; this broker"
         " has no files of that kind.", at_least(0), broker="log.segment.delete.delay.ms"),
    _key("flush.messages", Type.LONG, _FOR_EVER, "After how many records the log is forced to the disk; this broker"
         " does so before every response.", at_least(1), broker="log.flush.interval.messages"),
    _key("flush.ms", Type.LONG, _FOR_EVER, "After how long the log is forced to the disk; this broker does so before"
         " every response.", at_least(0)),
    _key("follower.replication.throttled.replicas", Type.LIST, "", "Replicas whose followers are throttled; there are"
         " none on one broker.", _throttled_replicas_error),
    _key("index.interval.bytes", Type.INT, "4096", "How dense the index of offsets is; this broker has every batch in"
         " its index.", at_least(0), broker="log.index.interval.bytes"),
    _key("leader.replication.throttled.replicas", Type.LIST, "", "Replicas whose leaders are throttled; there are"
         " none on one broker.", _throttled_replicas_error),
    _key("local.retention.bytes", Type.LONG, "-2", "Local size limit with tiered storage, which is not supported.",
         at_least(-2), broker="log.local.retention.bytes"),
    _key("local.retention.ms", Type.LONG, "-2", "Local age limit with tiered storage, which is not supported.",
         at_least(-2), broker="log.local.retention.ms"),
    _key("max.compaction.lag.ms", Type.LONG, _FOR_EVER, "The age of an uncompacted record above which its partition is"
         " compacted.",
         at_least(1), broker="log.cleaner.max.compaction.lag.ms"),
    _key("max.message.bytes", Type.INT, "1048588", "Maximum size of a batch, after compression.", at_least(0),
         broker="message.max.bytes"),
    _key("message.timestamp.after.max.ms", Type.LONG, "3600000", "How far a record's timestamp may be ahead of the"
         " broker's clock.", at_least(0), broker="log.message.timestamp.after.max.ms"),
    _key("message.timestamp.before.max.ms", Type.LONG, _FOR_EVER, "How far a record's timestamp may be behind the"
         " broker's clock.", at_least(0), broker="log.message.timestamp.before.max.ms"),
    _key("message.timestamp.type", Type.STRING, "CreateTime", "Whether a record has its producer's timestamp or the"
         " time of its arrival.", one_of(("CreateTime", "LogAppendTime")), broker="log.message.timestamp.type"),
    _key("min.cleanable.dirty.ratio", Type.DOUBLE, "0.5", "The share of uncompacted bytes, 0 to 1, above which a"
         " partition is compacted.", between(0, 1), broker="log.cleaner.min.cleanable.ratio"),
    _key("min.compaction.lag.ms", Type.LONG, "0", "The age that a record must have before it is compacted.",
         at_least(0), broker="log.cleaner.min.compaction.lag.ms"),
    _key("min.insync.replicas", Type.INT, "1", "How many replicas must have a record before the response to"
         " `acks=all`; there is one.", at_least(1), broker="min.insync.replicas"),
    _key("preallocate", Type.BOOLEAN, "false", "Whether a segment's file is given its full size at once; this broker"
         " has no such files.", broker="log.preallocate"),
    _key("remote.log.copy.disable", Type.BOOLEAN, "false", "Whether copying to remote storage is disabled; it is"
         " not supported."),
    _key("remote.log.delete.on.disable", Type.BOOLEAN, "false", "Whether remote data is deleted when tiered storage is"
         " disabled; it is not supported."),
    _key("remote.storage.enable", Type.BOOLEAN, "false", "Tiered storage; not supported.", _remote_storage_error),
    _key("retention.bytes", Type.LONG, "-1", "How large a partition may become before its oldest records are dropped;"
         " -1 for no limit.", broker="log.retention.bytes"),
    _key("retention.ms", Type.LONG, "604800000", "How old a record may become before it is dropped; -1 for no limit.",
         at_least(-1)),
    _key("segment.bytes", Type.INT, "1073741824", "How large a segment becomes; this broker has no segments, and drops"
         " records batch by batch.",
         at_least(1_048_576), broker="log.segment.bytes"),
    _key("segment.index.bytes", Type.INT, "10485760", "How large a segment's index is; this broker has one index for"
         " all.", at_least(4), broker="log.index.size.max.bytes"),
    _key("segment.jitter.ms", Type.LONG, "0", "The random variation of the age at which a segment ends; this"
         " broker has no segments.",
         at_least(0)),
    _key("segment.ms", Type.LONG, "604800000", "After how long a segment ends though it is not full; this broker has no"
         " segments.", at_least(1)),
    _key("unclean.leader.election.enable", Type.BOOLEAN, "false", "Whether a replica that lags may become leader; there"
         " is only one replica.", broker="unclean.leader.election.enable"),
)  # fmt: skip
"""Each topic config, with the name of the broker config from which it takes its default (None: there is none)."""

TOPIC_CONFIGS = ConfigDef(tuple(key for key, _ in _TABLE))
"""The definition of all topic configs."""

BROKER_CONFIG_NAMES: Mapping[str, str] = {key.name: name for key, name in _TABLE if name is not None}
"""By topic config: the broker config from which it takes its default. For the other topic configs Kafka reports none:
their broker configs have several units, or are unset by default."""

_KEY_BY_CONFIG_NAME = {key.name: key for key in TOPIC_CONFIGS.keys}
"""The topic configs by name."""


# -- reading ----------------------------------------------------------------------------------------------------------


def text_config_or_default(configs: Mapping[str, str], name: str) -> str:
    """The text of key ``name``, from the topic's ``configs``, or Kafka's default; without white space at its ends."""
    value = configs.get(name)
    if value is None:
        value = _KEY_BY_CONFIG_NAME[name].default
        assert value is not None
    return value.strip()


def int_config_or_default(configs: Mapping[str, str], name: str) -> int:
    """The value of the integer key ``name``: from the topic's ``configs``, or Kafka's default.

    :raises ValueError: the text is not an integer, which an older version of the broker accepted.
    """
    return int(text_config_or_default(configs, name))


def list_config_or_default(configs: Mapping[str, str], name: str) -> list[str]:
    """The items of the list key ``name``: from the topic's ``configs``, or Kafka's default."""
    return split_list(text_config_or_default(configs, name))


def batch_size_max(configs: Mapping[str, str], settings: BrokerSettings) -> int:
    """The value of `max.message.bytes`, in bytes: from the topic's ``configs``, or the setting of this broker. It is
    the only topic config whose default is a setting of this broker."""
    return (
        int_config_or_default(configs, "max.message.bytes")
        if "max.message.bytes" in configs
        else settings.batch_size_max
    )


def uses_log_append_time(configs: Mapping[str, str]) -> bool:
    """Whether the topic's records get the time of their arrival (LogAppendTime) instead of their producer's
    timestamp."""
    return text_config_or_default(configs, "message.timestamp.type") == "LogAppendTime"


# -- checking ---------------------------------------------------------------------------------------------------------


def topic_configs_error(configs: Mapping[str, str | None]) -> str | None:
    """An error message, worded as Kafka's, if a topic cannot have these configs: a name is unknown, or a value is null
    or not valid. Else None."""
    given: dict[str, str] = {}
    for name, value in configs.items():
        if name not in _KEY_BY_CONFIG_NAME:
            return f"Unknown topic config name: {name}"
        if value is None:
            return f"Null value not supported for topic configs: {name}"
        given[name] = value
    errors = TOPIC_CONFIGS.errors(given)
    if errors:
        return next(iter(errors.values()))[0]
    shortest, longest = (int_config_or_default(given, f"{end}.compaction.lag.ms") for end in ("min", "max"))
    if shortest > longest:
        return f"conflict topic config setting min.compaction.lag.ms ({shortest}) > max.compaction.lag.ms ({longest})"
    return None
