"""Retention and compaction settings of a topic, read from its configs; None means no limit."""

from collections.abc import Mapping
from dataclasses import dataclass

from coterie.broker.topics.configs import items_of, number_of, text_of


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPolicy:
    """Retention and compaction settings. With ``cleanup.policy=compact`` alone there is no retention."""

    compacts: bool
    retention_ms: int | None
    retention_bytes: int | None
    """Limit of one partition, in bytes."""
    delete_retention_ms: int
    min_compaction_lag_ms: int
    max_compaction_lag_ms: int
    min_cleanable_ratio: float


def policy_of(configs: Mapping[str, str]) -> TopicPolicy:
    """The settings from a topic's ``configs``, which were validated when they were set."""
    policies = items_of(configs, "cleanup.policy")
    retention_ms, retention_bytes = number_of(configs, "retention.ms"), number_of(configs, "retention.bytes")
    return TopicPolicy(
        compacts="compact" in policies,
        retention_ms=retention_ms if "delete" in policies and retention_ms >= 0 else None,
        retention_bytes=retention_bytes if "delete" in policies and retention_bytes >= 0 else None,
        delete_retention_ms=number_of(configs, "delete.retention.ms"),
        min_compaction_lag_ms=number_of(configs, "min.compaction.lag.ms"),
        max_compaction_lag_ms=number_of(configs, "max.compaction.lag.ms"),
        min_cleanable_ratio=float(text_of(configs, "min.cleanable.dirty.ratio")),
    )
