"""Time limits of a task: retries while a server cannot be reached, restarts after other failures, duration of a batch,
age of source metadata."""

from collections.abc import Mapping
from dataclasses import dataclass

from coterie.config.definition import ConfigDef, ConfigKey, Type, Width, at_least
from coterie.engine.backoff import doubled_delay_ms
from coterie.herder.restart_policy import RestartPolicy
from coterie.spark.bad_records import keys as bad_records

FIRST_RETRY_DELAY_MS = 300
"""Delay, in ms, before the first restart after a server could not be reached. As in Connect, the delay doubles with
each restart, up to ``errors.retry.delay.max.ms``."""

BATCH_TIMEOUT_KEY = ConfigKey(
    name="task.batch.timeout.ms",
    type=Type.LONG,
    documentation="How long one batch may take before its task fails, in milliseconds; 0 means without limit.",
    default="3600000",
    validator=at_least(0),
    group="Common",
    order=5,
    width=Width.SHORT,
    display_name="Batch timeout (ms)",
)
"""The key for the time limit of a batch. A batch is bounded in rows or files: a batch that takes an hour, the default,
most likely hangs in user code."""

METADATA_MAX_AGE_KEY = ConfigKey(
    name="metadata.max.age.ms",
    type=Type.LONG,
    documentation=(
        "How often the source is checked for new or removed partitions, in milliseconds; when they changed, the "
        "connector's input is split over its tasks again. 0 checks twice a second."
    ),
    default="60000",
    validator=at_least(0),
    group="Common",
    order=6,
    width=Width.SHORT,
    display_name="Metadata maximum age (ms)",
)
"""The key for the interval at which the partitions of a connector's source are listed again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """An outage for one task: since when a server cannot be reached, and how many restarts of the task were planned
    since then."""

    began_at_s: float
    """The monotonic second of the first failure."""
    planned_restart_count: int
    """How many restarts of the task's query were planned since the first failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskTimeoutsAndRestarts:
    """The time limits, the retry delay and the restart policy in a task's config."""

    retry_timeout_ms: int
    """How long, from the first failure, a task is restarted while a server cannot be reached; -1 means without
    limit."""
    retry_delay_max_ms: int
    """Maximum delay, while a server cannot be reached, between a failure and the restart."""
    batch_timeout_ms: int | None
    """Time limit of one batch; None means without limit."""
    restart_policy: RestartPolicy
    """The restarts after a failure that is not an outage."""

    @classmethod
    def of(cls, config: Mapping[str, str]) -> "TaskTimeoutsAndRestarts":
        """The time limits, the retry delay and the restart policy that a task's config defines.

        :raises ConfigError: when a value is not valid; the error names the key.
        """
        limit_ms = ConfigDef((BATCH_TIMEOUT_KEY,)).required_value(config, BATCH_TIMEOUT_KEY.name, int)
        return cls(
            retry_timeout_ms=bad_records.DEFINITION.required_value(config, "errors.retry.timeout", int),
            retry_delay_max_ms=bad_records.DEFINITION.required_value(config, "errors.retry.delay.max.ms", int),
            batch_timeout_ms=limit_ms or None,
            restart_policy=RestartPolicy(
                restarts_max=bad_records.DEFINITION.required_value(config, "errors.restart.max", int),
                delay_max_ms=bad_records.DEFINITION.required_value(config, "errors.restart.delay.max.ms", int),
            ),
        )

    def next_restart_at_s(self, outage: Outage, now_s: float) -> float | None:
        """The monotonic second of the next restart, after a failure in the monotonic second ``now_s``. None when that
        restart would be more than ``retry_timeout_ms`` after the outage's first failure."""
        delay_ms = doubled_delay_ms(FIRST_RETRY_DELAY_MS, outage.planned_restart_count, self.retry_delay_max_ms)
        restart_at_s = now_s + delay_ms / 1000
        is_in_time = self.retry_timeout_ms < 0 or restart_at_s - outage.began_at_s <= self.retry_timeout_ms / 1000
        return restart_at_s if is_in_time else None
