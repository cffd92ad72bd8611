"""The input of an assignor: the members as they joined, and the operator's policy."""

from dataclasses import dataclass

from coterie.config import defaults
from coterie.nouns.ids import InstanceId
from coterie.nouns.jobs import NO_JOBS, Jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSpec:
    """One member, as described by the metadata in its JoinGroup request or, in a connect group, by the snapshot of the
    group."""

    owned: Jobs = NO_JOBS
    """The jobs that the member reports as running."""
    claims: Jobs | None = None
    """The only jobs that the member may run (KIP-987), possibly none; None allows any unclaimed job."""
    is_draining: bool = False
    """The member will leave permanently: it runs its jobs until they move to other members, and receives no others."""
    instance_id: InstanceId | None = None
    """The ``group.instance.id`` of a static member (KIP-345), which stays the same when its process restarts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RebalancePolicy:
    """The settings that delay or limit the leader's assignments. The maximum of moves, and the interval between rounds,
    limit only revocations for drains and for balance; without the maximum, the interval has no effect."""

    max_delay_ms: int = defaults.SCHEDULED_REBALANCE_MAX_DELAY_MS
    """``scheduled.rebalance.max.delay.ms``: how long a departed member's jobs stay unassigned in case the member
    returns; 0 means that they are assigned at once."""
    moves_per_round_max: int | None = None
    """``rebalance.max.moves.per.round``: how many jobs may be revoked in one round for drains and for
    balance; None means no limit."""
    round_interval_ms: int = defaults.REBALANCE_ROUND_INTERVAL_MS
    """``rebalance.round.interval.ms``: time from a round that revokes jobs for drains or for balance to the next round
    that may revoke jobs for these reasons. No effect without ``moves_per_round_max``."""
