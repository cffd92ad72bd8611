"""How far a worker is in its group's current rebalance, the same states for each group protocol."""

from enum import StrEnum


class MemberState(StrEnum):
    """How far a worker is in its group's current rebalance, by Connect's names."""

    UNJOINED = "UNJOINED"
    """The worker is not a member of its group."""
    PREPARING_REBALANCE = "PREPARING_REBALANCE"
    """The worker has sent JoinGroup and waits for the other members."""
    COMPLETING_REBALANCE = "COMPLETING_REBALANCE"
    """All members have joined, and the worker waits for its assignment."""
    STABLE = "STABLE"
    """The worker is a member of its group, and no rebalance is in progress."""
