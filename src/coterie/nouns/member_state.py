"""How far a worker is in its group's current rebalance, the same states for each group protocol."""

from enum import StrEnum


class MemberState(StrEnum):
    """How far a worker is in its group's current rebalance, by Connect's names."""

    UNJOINED = "UNJOINED"
    """The worker is not a member of its group."""
    PREPARING_REBALANCE = "PREPARING_REBALANCE"
    """In a classic group, the worker has sent JoinGroup and waits for the other members. In a connect group, it waits
    for its first target assignment, or has revoked jobs to give back."""
    COMPLETING_REBALANCE = "COMPLETING_REBALANCE"
    """In a classic group, all members have joined, and the worker waits for its assignment. In a connect group, the
    coordinator shows this state while the worker waits for jobs of its target assignment, and the worker itself while
    the coordinator has not acknowledged that a job has stopped."""
    STABLE = "STABLE"
    """The worker is a member of its group, and takes part in no rebalance."""
