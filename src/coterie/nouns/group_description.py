"""The description of a connect group, as its coordinator returns it for ConnectGroupDescribe.

`wire` and `kafka` build it from the response, the herder shows it as the group's view, and the command line prints it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from coterie.nouns.ids import ConfigOffset, GroupEpoch, InstanceId, LeaderEpoch, MemberEpoch, MemberId, WorkerUrl
from coterie.nouns.jobs import Jobs
from coterie.nouns.member_state import MemberState
from coterie.nouns.target_assignments import UnplaceableJobs

SCHEDULED_REBALANCE_DELAY_CONFIG = "connect.scheduled.rebalance.max.delay.ms"
"""The name of the group config that sets the scheduled rebalance delay of a connect group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberDescription:
    """One member of a connect group: its ids and its state; the jobs that are ``assigned`` to it now, those that were
    revoked and that it has not given back (``pending``), its ``target``, and the jobs of the target that other members
    still have (``awaited_jobs_by_holder``, by the members that have them). ``claims`` None: it may run any job."""

    member_id: MemberId
    member_epoch: MemberEpoch
    """0 until the member has reached a target assignment since its last join; -2 for a static member that has left for
    a short time."""
    state: MemberState
    instance_id: InstanceId | None = None
    client_id: str = ""
    client_host: str = ""
    url: WorkerUrl
    name: str = ""
    """``worker.name``; empty if the worker reports none."""
    config_offset: ConfigOffset
    """How far the worker has read the config topic."""
    claims: Jobs | None = None
    """The only jobs that the worker may run (KIP-987); None: any job."""
    draining: bool = False
    assigned: Jobs
    """The jobs that are assigned to the member now."""
    pending: Jobs
    """The jobs that were revoked from the member and that it has not given back."""
    target: Jobs
    """The member's target assignment."""
    awaited_jobs_by_holder: Mapping[MemberId, Jobs]
    """The jobs of the target that other members still have, by their holders."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DepartedMemberDescription:
    """A member that has left the group. Its jobs wait for its return for ``delay_left_ms``, and may still run on its
    worker for ``held_jobs_left_ms``."""

    member_id: MemberId
    instance_id: InstanceId | None = None
    url: WorkerUrl
    jobs: Jobs
    """The jobs that wait for the member's return."""
    delay_left_ms: int | None
    """The rest of the scheduled rebalance delay, for which ``jobs`` wait; None if no delay has begun for the member."""
    held_jobs_left_ms: int
    """How long jobs may still run on the departed member's worker; 0 if they have stopped."""
    reason: str = ""
    """Why the member has left, or was removed; empty if it is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    """The description of a connect group: its state, its members, and the members that have departed. ``config_offset``
    is how far the leader had read the config topic when it reported the configured jobs. `max_delay_ms` is None if
    no valid value is set on the group: then the setting of the worker that computes applies."""

    state: str
    """``Empty``, ``Assigning``, ``Reconciling`` or ``Stable``."""
    group_epoch: GroupEpoch
    assignment_epoch: GroupEpoch
    assignor: str
    """The name of the selected assignor."""
    computing_member: MemberId
    """The member that was chosen to compute the target assignment and has not installed it yet; empty if there is none,
    also while the coordinator itself computes."""
    assignment_error: str
    """The error of the last computation; empty if it succeeded."""
    leader: MemberId
    """Empty if the group has no leader."""
    leader_epoch: LeaderEpoch
    config_offset: ConfigOffset
    """How far the leader had read the config topic when it reported the configured jobs."""
    members: tuple[MemberDescription, ...]
    """In the order in which they joined."""
    departed: tuple[DepartedMemberDescription, ...]
    unplaceable: tuple[UnplaceableJobs, ...]
    configs: Mapping[str, str] = field(default_factory=dict)
    """The configs that apply to the group by name: its own, and otherwise the broker's defaults."""

    @property
    def max_delay_ms(self) -> int | None:
        """The group's scheduled rebalance delay; None if the group has no such config, or an invalid one: then the
        delay in the settings of the worker that computes the target applies."""
        value = self.configs.get(SCHEDULED_REBALANCE_DELAY_CONFIG)
        return int(value) if value is not None and value.isdecimal() else None
