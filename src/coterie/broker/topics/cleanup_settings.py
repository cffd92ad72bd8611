"""Retention and compaction settings of a topic, read from its configs."""

from collections.abc import Mapping
from dataclasses import dataclass

from coterie.broker.topics.configs import int_config_or_default, list_config_or_default, text_config_or_default


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanupSettings:
    """Retention and compaction settings of a topic. If its ``cleanup.policy`` does not contain delete, the two
    retention limits are None."""

    is_compacted: bool
    """Whether the topic's cleanup policies include compact."""
    retention_ms: int | None
    """The age at which records are deleted; None means no limit."""
    retention_bytes: int | None
    """The size of one partition, in bytes, above which its oldest records are deleted; None means no limit."""
    delete_retention_ms: int
    """How long a tombstone is kept after the compaction that first found it to be its key's newest record."""
    min_compaction_lag_ms: int
    """The age that a record must have before it is compacted."""
    max_compaction_lag_ms: int
    """The age of an uncompacted record above which the partition is compacted."""
    min_cleanable_ratio: float
    """The share of uncompacted bytes, 0 to 1, above which a partition is compacted."""


def cleanup_settings(configs: Mapping[str, str]) -> CleanupSettings:
    """The settings from a topic's ``configs``, with Kafka's defaults for those that are not set.

    :raises ValueError: a value is invalid, which an older version of the broker accepted when it was set.
    """
    policies = list_config_or_default(configs, "cleanup.policy")
    retention_ms, retention_bytes = (
        int_config_or_default(configs, "retention.ms"),
        int_config_or_default(configs, "retention.bytes"),
    )
    return CleanupSettings(
        is_compacted="compact" in policies,
        retention_ms=retention_ms if "delete" in policies and retention_ms >= 0 else None,
        retention_bytes=retention_bytes if "delete" in policies and retention_bytes >= 0 else None,
        delete_retention_ms=int_config_or_default(configs, "delete.retention.ms"),
        min_compaction_lag_ms=int_config_or_default(configs, "min.compaction.lag.ms"),
        max_compaction_lag_ms=int_config_or_default(configs, "max.compaction.lag.ms"),
        min_cleanable_ratio=float(text_config_or_default(configs, "min.cleanable.dirty.ratio")),
    )
