"""The settings of a connect group's coordinator: those of the broker, and the configs of one group."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from coterie.nouns.group_description import SCHEDULED_REBALANCE_DELAY_CONFIG

_SESSION_TIMEOUT_HOLD_DIVISOR = 6
"""A response is held for at most the session timeout divided by this number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectGroupSettings:
    """The settings of one group. The defaults are those of the broker's keys ``group.connect.*``."""

    session_timeout_ms: int = 10_000
    """How long after its last accepted request a member stays in the group."""
    heartbeat_interval_ms: int = 3_000
    """The time between two heartbeats of a member whose heartbeats are not held."""
    assignment_interval_ms: int = 200
    """The minimum time from the end of a computation to the start of the next one."""
    initial_rebalance_delay_ms: int = 3_000
    """The time from the first join of an empty group to its first computation."""
    connection_grace_ms: int = 2_000
    """The maximum time between the end of a member's connection and its removal, if it sends no request; 0: the end of
    a connection has no effect."""
    computation_timeout_ms: int = 10_000
    """How long a chosen member may take to install a target assignment."""
    max_delay_ms: int | None = None
    """``connect.scheduled.rebalance.max.delay.ms``; None: the setting of the worker that computes applies."""
    group_size_max: int = 10_000
    """The maximum number of members of one group."""
    empty_group_retention_ms: int = 604_800_000
    """How long a group without members is kept: as long as the offsets of a group without members."""
    server_assignors: tuple[str, ...] = ()
    """The names of the coordinator's assignors."""

    def with_configs(self, configs: Mapping[str, str]) -> "ConnectGroupSettings":
        """These settings with the ``configs`` of one group, which were validated when they were set."""
        changes = {field: int(configs[key]) for key, field in _FIELD_BY_GROUP_CONFIG.items() if key in configs}
        return replace(self, **changes) if changes else self  # type: ignore[arg-type]

    def configs(self) -> Mapping[str, str]:
        """The values of all configs that can be set on a group, and that have a value here."""
        values = {key: getattr(self, field) for key, field in _FIELD_BY_GROUP_CONFIG.items()}
        return {key: str(value) for key, value in values.items() if value is not None}

    def response_hold_ms(self, max_wait_ms: int, session_timeout_ms: int, member_grace_ms: int) -> int:
        """How long the response to a heartbeat may be held while it has no news, in ms: ``max_wait_ms``, which the
        heartbeat allows, but no longer than a sixth of the session timeout and, if the member has a connection grace,
        than half of that."""
        wait_ms = min(max_wait_ms, session_timeout_ms // _SESSION_TIMEOUT_HOLD_DIVISOR)
        grace_ms = self.limited_connection_grace_ms(member_grace_ms)
        return min(wait_ms, grace_ms // 2) if grace_ms else wait_ms

    def limited_connection_grace_ms(self, member_grace_ms: int) -> int:
        """How long after the end of its connection a member may go without a request, in ms, before it is removed: the
        member's own setting, limited by the group's. 0: the end of the connection has no effect."""
        return min(self.connection_grace_ms, member_grace_ms)


_FIELD_BY_GROUP_CONFIG = {
    "connect.session.timeout.ms": "session_timeout_ms",
    "connect.heartbeat.interval.ms": "heartbeat_interval_ms",
    "connect.assignment.interval.ms": "assignment_interval_ms",
    "connect.initial.rebalance.delay.ms": "initial_rebalance_delay_ms",
    "connect.connection.grace.ms": "connection_grace_ms",
    "connect.computation.timeout.ms": "computation_timeout_ms",
    SCHEDULED_REBALANCE_DELAY_CONFIG: "max_delay_ms",
}
"""By the name of a group config: the setting that the config replaces."""
