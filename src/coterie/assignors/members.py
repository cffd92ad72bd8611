"""What an assignor is told: one member as it joined, and what the operator allows."""

from dataclasses import dataclass

from coterie.config import defaults
from coterie.nouns.ids import InstanceId
from coterie.nouns.jobs import NO_JOBS, Jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberView:
    """One member, as it presents itself at a join."""

    owned: Jobs = NO_JOBS
    """What it says that it runs."""
    claims: Jobs | None = None
    """The only jobs that it takes (KIP-987), were it none; None takes any."""
    draining: bool = False
    """It is to go for good: its jobs move away while it still runs them, and it takes no others."""
    instance_id: InstanceId | None = None
    """Who it is over all of its lives, if it is a static member (KIP-345)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How patient the leader is; three of ARTICLE's designs are three of these."""

    max_delay_ms: int = defaults.SCHEDULED_REBALANCE_MAX_DELAY_MS
    """``scheduled.rebalance.max.delay.ms``: how long a departed member's jobs wait for it; 0 is design I."""
    moves_per_round_max: int | None = None
    """``rebalance.max.moves.per.round``: how many jobs may be revoked in one round for drains and for
    balance; None is design II."""
    round_interval_ms: int = defaults.REBALANCE_ROUND_INTERVAL_MS
    """``rebalance.round.interval.ms``: how long after such a round the next one follows (design III)."""
