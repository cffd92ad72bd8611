"""What a topic may be called and configured with: Kafka's rules."""

import re
from collections.abc import Mapping

from coterie.config.definition import Type, mistyped

NAME_SIZE_MAX = 249
_NAME = re.compile(r"[a-zA-Z0-9._-]+")

_CONFIGS = frozenset({
    "cleanup.policy", "compression.gzip.level", "compression.lz4.level", "compression.type", "compression.zstd.level",
    "delete.retention.ms", "file.delete.delay.ms", "flush.messages", "flush.ms",
    "follower.replication.throttled.replicas", "index.interval.bytes", "leader.replication.throttled.replicas",
    "local.retention.bytes", "local.retention.ms", "max.compaction.lag.ms", "max.message.bytes",
    "message.timestamp.after.max.ms", "message.timestamp.before.max.ms", "message.timestamp.type",
    "min.cleanable.dirty.ratio", "min.compaction.lag.ms", "min.insync.replicas", "preallocate",
    "remote.log.copy.disable", "remote.log.delete.on.disable", "remote.storage.enable", "retention.bytes",
    "retention.ms", "segment.bytes", "segment.index.bytes", "segment.jitter.ms", "segment.ms",
    "unclean.leader.election.enable",
})  # fmt: skip

_WHOLE_NUMBERS = (".ms", ".bytes", ".messages", ".level", "min.insync.replicas")
"""How the names of configs end whose values are whole numbers."""


def name_error(name: str) -> str | None:
    """One sentence when a topic cannot have this name."""
    if not name:
        return "Topic name is invalid: the empty string is not allowed"
    if name in (".", ".."):
        return f"Topic name is invalid: '{name}' is not allowed"
    if len(name) > NAME_SIZE_MAX:
        return f"Topic name is invalid: the length of '{name[:20]}...' is longer than the max allowed {NAME_SIZE_MAX}"
    if not _NAME.fullmatch(name):
        return (
            f"Topic name is invalid: '{name}' contains one or more characters other than ASCII alphanumerics,"
            " '.', '_' and '-'"
        )
    return None


def config_error(configs: Mapping[str, str | None]) -> str | None:
    """One sentence when a topic cannot be configured so. Known configs are kept; retention, compaction and the
    like are not done yet, so their values are only told back."""
    for name, value in configs.items():
        if name not in _CONFIGS:
            return f"Unknown topic config name: {name}"
        if value is None:
            return f"Null value not supported for topic configs: {name}"
        if name == "cleanup.policy" and not {item.strip() for item in value.split(",")} <= {"compact", "delete"}:
            return f"Invalid value {value} for configuration cleanup.policy: must be one of [compact, delete]"
        if name.endswith(_WHOLE_NUMBERS) and mistyped(Type.LONG, value):
            return f"Invalid value {value} for configuration {name}: Not a number of type LONG"
    return None
