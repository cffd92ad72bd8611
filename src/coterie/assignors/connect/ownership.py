"""Which member has which job when a target assignment is computed.

Each configured job is in one of these situations:

- *owned*: it runs on a member; or a member has stopped it and will start it again. The second case are the jobs in the
  target of a static member that has left for a short time or of a member that has joined again, and the jobs that were
  deferred for a member that has returned. Giving an owned job to another member is a move.
- *in motion*: it was revoked from a member, or it is in the target of a member that has not received it. It has stopped
  or will stop in any case, so any member may get it without a further stop.
- *waiting* for a departed member (`waiting`).
- *new*, or released since: no member has it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from coterie.assignors.assignor_state import AssignorState, choose_kept_jobs_and_duplicates, union_of_jobs
from coterie.assignors.members import MemberSpec
from coterie.nouns.ids import MemberId
from coterie.nouns.jobs import NO_JOBS, Job, Jobs
from coterie.nouns.target_assignments import GroupSnapshot, SnapshotDeparted, SnapshotMember


@dataclass(frozen=True, slots=True, kw_only=True)
class Ownership:
    """The owners of the configured jobs: the members that run them, or that have stopped them and will start them
    again. Each job has at most one owner. A job that was revoked and not given back has none. A static member that has
    left for a short time has *briefly left*."""

    owned_jobs_by_member: Mapping[MemberId, Jobs]
    """The jobs of every member that it runs, or that it has stopped and will start again; a member without jobs has an
    empty value."""
    unowned: Jobs
    """The configured jobs without an owner: revoked or not received yet, waiting for a departed member, or new."""
    present_targets: Mapping[MemberId, Jobs]
    """The configured jobs in the present target of every member; each job is with one member only."""
    unreleased_jobs_by_member: Mapping[MemberId, Jobs]
    """The configured jobs of every member that were revoked from it and that it has not given back."""
    briefly_left_members: frozenset[MemberId]
    """The static members that have left for a short time: they receive no job, and keep the jobs that they own."""

    @property
    def owned_jobs_targeted_elsewhere(self) -> Jobs:
        """The owned jobs that are in the present target of another member than their owner: moves that an earlier
        target has ordered. If the assignor may choose which jobs move, it chooses these, so that the target does not
        change."""
        return union_of_jobs(self.present_targets.values()) & union_of_jobs(
            jobs - self.present_targets[member] for member, jobs in self.owned_jobs_by_member.items()
        )


def compute_ownership(snapshot: GroupSnapshot, is_eligible: Callable[[MemberId, Job], bool]) -> Ownership:
    """The owners of the configured jobs in ``snapshot``.

    ``is_eligible`` returns whether a member may run a job. If two members run the same job, a member that may run it
    keeps the job. Two members can run the same job only after a failure of the coordinator.
    """
    configured = snapshot.configured
    members = sorted(snapshot.members, key=lambda member: member.member_id)
    running: Mapping[MemberId, Jobs] = {one.member_id: one.current & configured for one in members}
    taken = union_of_jobs(running.values())
    if sum(map(len, running.values())) > len(taken):
        running, _ = choose_kept_jobs_and_duplicates(running, AssignorState(), is_eligible)
    pending = {one.member_id: one.pending & configured for one in members}
    started = union_of_jobs([taken, *pending.values()])
    standing = _with_first_owner_only({one.member_id: one.target & configured for one in members})
    owned = {
        one.member_id: running[one.member_id] | (standing[one.member_id] - started)
        if one.member_epoch <= 0
        else running[one.member_id]
        for one in members
    }
    targeted = union_of_jobs([started, *standing.values()])
    given_back = NO_JOBS
    for one in snapshot.members:
        again = (_jobs_deferred_for_return_of(one, snapshot) & configured) - targeted - given_back
        if again:
            owned[one.member_id] |= again
            given_back |= again
    taken = union_of_jobs(owned.values())
    return Ownership(
        owned_jobs_by_member=owned,
        unowned=configured - taken,
        present_targets=standing,
        unreleased_jobs_by_member=pending,
        briefly_left_members=frozenset(one.member_id for one in members if one.member_epoch < 0),
    )


def member_specs(snapshot: GroupSnapshot) -> Mapping[MemberId, MemberSpec]:
    """The members of ``snapshot`` as `MemberSpec`, for the rules for claims and drains."""
    return {
        one.member_id: MemberSpec(
            owned=one.current, claims=one.claims, is_draining=one.draining, instance_id=one.instance_id
        )
        for one in snapshot.members
    }


def _with_first_owner_only(jobs_by_member: Mapping[MemberId, Jobs]) -> Mapping[MemberId, Jobs]:
    """The same jobs, but each job only with the first of the members that have it."""
    seen = union_of_jobs(jobs_by_member.values())
    if sum(map(len, jobs_by_member.values())) == len(seen):
        return jobs_by_member
    found: dict[MemberId, Jobs] = {}
    for member, jobs in jobs_by_member.items():
        found[member] = jobs & seen
        seen -= jobs
    return found


def _jobs_deferred_for_return_of(member: SnapshotMember, snapshot: GroupSnapshot) -> Jobs:
    """The jobs that are deferred for ``member`` as a departed member that has returned. The snapshot contains them in
    ``former_jobs``, or with a departed member that is the same worker: while jobs may still run on a departed member,
    the coordinator does not match the departed member with a new member by URL or instance id."""
    return union_of_jobs([member.former_jobs, *(one.jobs for one in snapshot.departed if _is_same_worker(one, member))])


def _is_same_worker(departed: SnapshotDeparted, member: SnapshotMember) -> bool:
    """Whether ``member`` and the departed member are the same worker: they have the same instance id or, if the
    departed member has none, the same URL."""
    if departed.instance_id is not None:
        return departed.instance_id == member.instance_id
    return bool(departed.url) and departed.url == member.url
