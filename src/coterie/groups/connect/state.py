"""The state of a connect group's coordinator, hard and soft; `apply_record` writes the hard state, `check_invariants`
asserts invariants.

Hard state is what was written to the log: the group's epochs, the configured jobs, each member's metadata, target and
current assignment, and the members that have departed. Soft state is what the members' next requests restore: sessions,
held responses, and the computation in progress.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from coterie.groups.connect.assignor_choice import Offer, offered_assignor_versions
from coterie.groups.connect.messages import (
    NO_EPOCH,
    NO_LEADER_EPOCH,
    ConfigsRemoved,
    ConfigsWritten,
    ConfiguredJobsRemoved,
    ConfiguredJobsWritten,
    CurrentAssignment,
    CurrentAssignmentRemoved,
    DepartedMemberRemoved,
    GroupRecord,
    GroupRemoved,
    GroupState,
    MemberDeparted,
    MemberRecord,
    MemberRemoved,
    Record,
    TargetRemoved,
    TargetWritten,
    TimerKey,
)
from coterie.groups.connect.settings import ConnectGroupSettings
from coterie.groups.connect.soft_state import (
    Computation,
    ConnectionClosure,
    MemberChosenToCompute,
    MemberComputing,
    NewTargetReason,
    NoComputation,
    Session,
)
from coterie.nouns.connect_groups import LEAVE_BRIEFLY_EPOCH
from coterie.nouns.ids import (
    ConfigOffset,
    GroupEpoch,
    GroupId,
    InstanceId,
    LeaderEpoch,
    MemberEpoch,
    MemberId,
    WorkerUrl,
)
from coterie.nouns.jobs import NO_JOBS, Job, Jobs


class Group:
    """One connect group. Only `apply_record` writes the hard state and the indexes that follow from it. The group needs
    a target while its group epoch is greater than its assignment epoch, once a leader has reported the configured
    jobs."""

    def __init__(self, group_id: GroupId, broker_settings: ConnectGroupSettings) -> None:
        self.group_id = group_id
        self._broker_settings = broker_settings
        # hard state: written to the log
        self.metadata: GroupRecord | None = None
        """The last group record; None for a group that does not exist or has only configs."""
        self.configured: ConfiguredJobsWritten | None = None
        """None before the first leader has reported the configured jobs."""
        self.members: dict[MemberId, MemberRecord] = {}
        self.targets: dict[MemberId, TargetWritten] = {}
        self.currents: dict[MemberId, CurrentAssignment] = {}
        self.departed: dict[MemberId, MemberDeparted] = {}
        self.configs: Mapping[str, str] = {}
        self.record_count = 0
        """The number of records that have been applied since this object was created."""
        # follow from the hard state; kept because each job is looked up often
        self.holder: dict[Job, MemberId] = {}
        """The member on which a job may run: no other member may get it."""
        self.second_holders: dict[Job, set[MemberId]] = {}
        """The other holders of a job that several members hold. Only a load can find such a job."""
        self.target_owner: dict[Job, MemberId] = {}
        """The member whose target contains a job."""
        self.offers: Counter[Offer] = Counter()
        """The number of members with each offer. A join is checked against the different offers, not against all
        members."""
        self.settings = broker_settings
        """The broker's settings with the configs of this group."""
        # soft state
        self.freed: list[Job] = []
        """Jobs that have become free since `end_step` last assigned free jobs to the members that wait for them."""
        self.sessions: dict[MemberId, Session] = {}
        self.closures: dict[MemberId, ConnectionClosure] = {}
        """The last closed connection of each member, for as long as it may show that several were closed together."""
        self.announced: tuple[GroupEpoch, LeaderEpoch, WorkerUrl] | None = None
        """The assignment epoch and the leader when all held heartbeats were last checked for news."""
        self.computation: Computation = NoComputation()
        self.failed_members: set[MemberId] = set()
        """Members whose computation failed: they are not chosen until a pause, or until they join again."""
        self.failures = 0
        """The number of pauses after failed computations since the last target, or since the group had no members; the
        length of the next one depends on it."""
        self.computed_at_ms: int | None = None
        """When the last computation ended; None before the first one, and if another member must compute at once."""
        self.installed: tuple[MemberId, GroupEpoch] | None = None
        """The member that installed the last target, and the group epoch in its request: a repeated request is
        recognized by these two."""
        self.reasons: dict[MemberId, dict[str, NewTargetReason]] = {}
        """Reasons that no computation with a result has received yet, by member and assignor."""
        self.deadlines: dict[TimerKey, int] = {}
        """For each timer that is set, the point of time in ms at which it fires."""

    @property
    def group_epoch(self) -> GroupEpoch:
        return self.metadata.group_epoch if self.metadata is not None else NO_EPOCH

    @property
    def assignment_epoch(self) -> GroupEpoch:
        return self.metadata.assignment_epoch if self.metadata is not None else NO_EPOCH

    @property
    def leader(self) -> MemberId | None:
        return self.metadata.leader if self.metadata is not None else None

    @property
    def leader_epoch(self) -> LeaderEpoch:
        return self.metadata.leader_epoch if self.metadata is not None else NO_LEADER_EPOCH

    @property
    def leader_url(self) -> WorkerUrl:
        """The URL of the leader; empty if there is none."""
        leader = self.members.get(self.leader) if self.leader is not None else None
        return leader.url if leader is not None else WorkerUrl("")

    @property
    def configured_jobs(self) -> Jobs:
        """The configured jobs in the last report of a leader; empty before the first one."""
        return self.configured.configured.jobs if self.configured is not None else NO_JOBS

    @property
    def config_offset(self) -> ConfigOffset:
        """The config offset of the last report of a leader; -1 before the first one."""
        return self.configured.configured.config_offset if self.configured is not None else ConfigOffset(-1)

    @property
    def is_nonexistent(self) -> bool:
        """Whether the group does not exist: it has no group record and no configs. A shell need not keep the state of
        such a group."""
        return self.metadata is None and not self.configs

    @property
    def needs_target(self) -> bool:
        """Whether a target assignment has to be computed: the group epoch is greater than the assignment epoch, and a
        leader has reported the configured jobs."""
        return self.group_epoch > self.assignment_epoch and self.configured is not None

    @property
    def computing_member_id(self) -> MemberId | None:
        """The member that was chosen to compute the target assignment, and has not installed it yet; None if there is
        none, also while the coordinator itself computes."""
        match self.computation:
            case MemberChosenToCompute(member_id=member_id) | MemberComputing(member_id=member_id):
                return member_id
            case _:
                return None

    def members_in_joining_order(self) -> list[MemberRecord]:
        """The members, ordered by the time when they joined."""
        return sorted(self.members.values(), key=lambda member: (member.joined_epoch, member.member_id))

    def has_left_briefly(self, member_id: MemberId) -> bool:
        """Whether the member is a static member that has left for a short time and has not returned yet."""
        return self.currents[member_id].member_epoch == LEAVE_BRIEFLY_EPOCH

    def has_present_member(self) -> bool:
        """Whether the group has a member that has not left for a short time."""
        return any(current.member_epoch != LEAVE_BRIEFLY_EPOCH for current in self.currents.values())

    def assignment_epoch_to_reach(self, member_id: MemberId) -> GroupEpoch | None:
        """The assignment epoch that the member is to reach; None if no target was computed since it joined."""
        computed = self.targets[member_id].assignment_epoch > NO_EPOCH
        is_included = computed or self.assignment_epoch >= self.members[member_id].joined_epoch
        return self.assignment_epoch if is_included else None

    def static_member_id(self, instance_id: InstanceId) -> MemberId | None:
        """The member id of the static member ``instance_id``; None if there is none."""
        return next((one.member_id for one in self.members.values() if one.instance_id == instance_id), None)

    def group_state(self) -> GroupState:
        """The group's state, derived from its epochs and its members' assignments."""
        if not self.members:
            return GroupState.EMPTY
        if self.needs_target:
            return GroupState.ASSIGNING
        if all(self.has_reached_target_or_left_briefly(member_id) for member_id in self.members):
            return GroupState.STABLE
        return GroupState.RECONCILING

    def has_reached_target_or_left_briefly(self, member_id: MemberId) -> bool:
        """Whether the member is at its target epoch, with exactly the jobs of its target assignment. Also True for a
        static member that has left for a short time, and while no leader has reported the configured jobs."""
        current, epoch = self.currents[member_id], self.assignment_epoch_to_reach(member_id)
        if current.member_epoch == LEAVE_BRIEFLY_EPOCH:
            return True
        if epoch is None:
            return self.configured is None
        return (
            current.member_epoch == MemberEpoch(epoch)
            and not current.pending
            and current.assigned == self.targets[member_id].target.jobs
        )

    def jobs_held_by(self, member_id: MemberId) -> Jobs:
        """The jobs that may run on this member, or may still run on it after its departure."""
        current, departed = self.currents.get(member_id), self.departed.get(member_id)
        return (current.held_jobs if current is not None else NO_JOBS) | (
            departed.held if departed is not None else NO_JOBS
        )

    def forget_computations(self) -> None:
        """Forget all computations, and the reasons for new targets. Called when the group is removed: a group of the
        same id that begins later is another group."""
        self.computation = NoComputation()
        self.failed_members.clear()
        self.failures = 0
        self.computed_at_ms = None
        self.installed = None
        self.reasons.clear()

    def apply_group_configs(self, configs: Mapping[str, str]) -> None:
        """Replace the configs of the group, and apply them to its ``settings``."""
        self.configs = configs
        self.settings = self._broker_settings.with_configs(configs)


# -- hard state --------------------------------------------------------------------------------------------------------


def apply_record(group: Group, record: Record) -> None:
    """Change the hard state according to ``record``. No other function changes hard state, neither live nor at
    replay."""
    group.record_count += 1
    match record:
        case CurrentAssignment() | CurrentAssignmentRemoved() | MemberDeparted() | DepartedMemberRemoved():
            _apply_record_of_held_jobs(group, record)
        case TargetWritten(member_id=member_id):
            _replace_target(group, member_id, record)
        case TargetRemoved(member_id=member_id):
            _replace_target(group, member_id, None)
        case MemberRecord(member_id=member_id):
            _replace_member_record(group, member_id, record)
        case MemberRemoved(member_id=member_id):
            _replace_member_record(group, member_id, None)
        case GroupRecord() | GroupRemoved():
            group.metadata = record if isinstance(record, GroupRecord) else None
        case ConfiguredJobsWritten() | ConfiguredJobsRemoved():
            group.configured = record if isinstance(record, ConfiguredJobsWritten) else None
        case ConfigsWritten() | ConfigsRemoved():
            group.apply_group_configs(record.configs if isinstance(record, ConfigsWritten) else {})


def _apply_record_of_held_jobs(
    group: Group, record: CurrentAssignment | CurrentAssignmentRemoved | MemberDeparted | DepartedMemberRemoved
) -> None:
    """Apply a record of the jobs that one member holds, and update the indexes of the jobs' holders.

    Records of a step that was not written completely may name two holders of a job: the job is free when both have
    released it."""
    member_id = record.member_id
    before = group.jobs_held_by(member_id)
    match record:
        case CurrentAssignment():
            group.currents[member_id] = record
        case CurrentAssignmentRemoved():
            group.currents.pop(member_id, None)
        case MemberDeparted():
            group.departed[member_id] = record
        case DepartedMemberRemoved():
            group.departed.pop(member_id, None)
    after = group.jobs_held_by(member_id)
    for job in after - before:
        if group.holder.setdefault(job, member_id) != member_id:
            group.second_holders.setdefault(job, set()).add(member_id)
    for job in before - after:
        _release_job(group, job, member_id)


def _release_job(group: Group, job: Job, member_id: MemberId) -> None:
    """Remove the member from the holders of the job. If no other member holds the job, it is free."""
    others = group.second_holders.get(job, set())
    if group.holder[job] != member_id:
        others.discard(member_id)
    elif others:
        group.holder[job] = min(others)
        others.discard(min(others))
    else:
        del group.holder[job]
        group.freed.append(job)
    if not others:
        group.second_holders.pop(job, None)


def _replace_member_record(group: Group, member_id: MemberId, record: MemberRecord | None) -> None:
    """Replace the member's record by ``record``; None: remove the member. Also updates the counts of the offered
    assignors."""
    former = group.members.get(member_id)
    if former is not None:
        offer = offered_assignor_versions(former)
        group.offers[offer] -= 1
        if not group.offers[offer]:
            del group.offers[offer]
    if record is None:
        group.members.pop(member_id, None)
    else:
        group.members[member_id] = record
        group.offers[offered_assignor_versions(record)] += 1


def _replace_target(group: Group, member_id: MemberId, record: TargetWritten | None) -> None:
    """Replace the target of the member by ``record``, or remove it."""
    former = group.targets.pop(member_id, None)
    before = former.target.jobs if former is not None else NO_JOBS
    after = record.target.jobs if record is not None else NO_JOBS
    for job in before - after:
        if group.target_owner.get(job) == member_id:
            del group.target_owner[job]
    for job in after - before:
        group.target_owner[job] = member_id
    if record is not None:
        group.targets[member_id] = record


def share_equal_job_sets(group: Group) -> None:
    """Let the target and the current assignment of a member be one object if they are equal. Records are read as
    separate objects, and each heartbeat compares the two: for one object this takes the same time for any number of
    jobs."""
    for member_id, current in group.currents.items():
        target = group.targets[member_id].target.jobs
        if current.assigned == target:
            group.currents[member_id] = replace(current, assigned=target)


def rebuild_target_owners(group: Group) -> None:
    """Compute the index of target owners (job to member id) from all targets again. Needed when a group is loaded: a
    target that was written only in part may have left a job in the targets of two members. The index then names the one
    whose target comes later."""
    group.target_owner = {job: member_id for member_id, written in group.targets.items() for job in written.target.jobs}


# -- invariants --------------------------------------------------------------------------------------------------------


def check_invariants(group: Group) -> None:
    """Assert the invariants whose check takes the same time for every size of the group. Called after each step."""
    assert group.assignment_epoch <= group.group_epoch, "no target is newer than the metadata"
    assert len(group.members) == len(group.targets) == len(group.currents), (
        "each member has metadata, a target and a current assignment"
    )
    assert group.leader is None or group.leader in group.members, "the leader is a member"
    chosen = group.computing_member_id
    assert chosen is None or chosen in group.members, "the member that was chosen to compute is in the group"


def check_all_invariants(group: Group) -> None:
    """Assert all invariants, with a walk over members and jobs. Called by tests and by the simulator."""
    check_invariants(group)
    assert group.members.keys() == group.targets.keys() == group.currents.keys() == group.sessions.keys()
    assert not group.members.keys() & group.departed.keys(), "a member has not departed"
    holders: dict[Job, MemberId] = {}
    for member_id in sorted(group.currents.keys() | group.departed.keys()):
        for job in group.jobs_held_by(member_id):
            assert job not in holders, f"{job} is held by {holders[job]} and by {member_id}"
            holders[job] = member_id
    assert holders == group.holder, "the index of holders matches the records"
    owners: dict[Job, MemberId] = {}
    for member_id, written in group.targets.items():
        for job in written.target.jobs:
            assert job not in owners, f"{job} is in two targets"
            owners[job] = member_id
    assert owners == group.target_owner, "the index of target owners matches the records"
    assert Counter(map(offered_assignor_versions, group.members.values())) == group.offers, (
        "the index of offers matches the records"
    )
    for member_id, current in group.currents.items():
        assert not current.assigned & current.pending, "a job is assigned or pending"
        in_epochs = [job for jobs in current.job_epochs.values() for job in jobs]
        assert len(in_epochs) == len(set(in_epochs)), "a job has one job epoch"
        assert set(in_epochs) == set(current.held_jobs), "each held job has a job epoch"
        session = group.sessions[member_id]
        assert session.held_heartbeat is None or session.held_heartbeat.member_id == member_id
    for departed in group.departed.values():
        assert departed.held or departed.jobs, "a departed member is kept for its jobs"
