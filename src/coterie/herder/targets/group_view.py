"""The view of a connect group, from the description that its coordinator returns."""

from collections.abc import Mapping
from dataclasses import replace

from coterie.assignors.claims import Eligibility
from coterie.assignors.members import MemberSpec, RebalancePolicy
from coterie.herder.group_view import departed_owner_reason, reason_to_keep_jobs, worker_id_of_url
from coterie.herder.requests.views import DeferredJobs, GroupView, MemberInfo
from coterie.nouns.group_description import DepartedMemberDescription, GroupDescription, MemberDescription
from coterie.nouns.ids import GenerationId
from coterie.nouns.jobs import Job, Jobs
from coterie.nouns.membership import GroupProtocolName


def build_group_view(description: GroupDescription, *, configured: Jobs, policy: RebalancePolicy) -> GroupView:
    """The view of the group. ``configured`` are the jobs that this worker has read from the config log; ``policy`` is
    this worker's. The group's own scheduled rebalance delay takes precedence over the worker's."""
    if description.max_delay_ms is not None:
        policy = replace(policy, max_delay_ms=description.max_delay_ms)
    specs = {member.member_id: _member_spec(member) for member in description.members}
    eligibility = Eligibility.from_members(specs, configured)
    is_target_current = description.assignment_epoch == description.group_epoch
    members = (
        _member_info(
            member,
            configured,
            reason_to_keep_jobs(member.target, specs, eligibility, policy)
            if is_target_current and member.draining and member.target and not member.pending
            else None,
        )
        for member in description.members
    )
    deferred = tuple(
        _deferred_jobs(one, one.delay_left_ms) for one in description.departed if one.delay_left_ms is not None
    )
    return GroupView(
        generation=GenerationId(description.group_epoch),
        protocol=GroupProtocolName.CONNECT.value,
        assignor=description.assignor,
        leader=description.leader,
        config_offset=description.config_offset,
        configured=configured,
        members=tuple(sorted(members, key=lambda info: (info.name, info.member_id))),
        deferred=deferred,
        unassigned=tuple((job, one.reason) for one in description.unplaceable for job in sorted(one.jobs, key=str)),
        policy=policy,
        next_round_in_ms=min((one.time_left_ms for one in deferred), default=None),
    )


def unassigned_reasons(description: GroupDescription) -> Mapping[Job, str]:
    """The reason why each unassigned job has no worker, by job. The text contains no times, so that it stays the same
    while the reason does."""
    reason_by_job: dict[Job, str] = {}
    for unplaceable in description.unplaceable:
        reason_by_job.update(dict.fromkeys(unplaceable.jobs, unplaceable.reason))
    for departed in description.departed:
        if departed.delay_left_ms is not None:
            reason_by_job.update(dict.fromkeys(departed.jobs, departed_owner_reason(_departed_worker_id(departed))))
    return reason_by_job


def _member_spec(member: MemberDescription) -> MemberSpec:
    return MemberSpec(
        owned=member.assigned, claims=member.claims, is_draining=member.draining, instance_id=member.instance_id
    )


def _member_info(member: MemberDescription, configured: Jobs, drain_wait_reason: str | None) -> MemberInfo:
    worker_id = worker_id_of_url(member.url)
    return MemberInfo(
        member_id=member.member_id,
        worker_id=worker_id,
        name=member.name or worker_id,
        url=member.url,
        instance_id=member.instance_id,
        claims=member.claims,
        draining=member.draining,
        config_offset=member.config_offset,
        owned=member.assigned,
        revoked=member.pending & configured,
        drain_wait_reason=drain_wait_reason,
    )


def _deferred_jobs(departed: DepartedMemberDescription, time_left_ms: int) -> DeferredJobs:
    return DeferredJobs(
        jobs=departed.jobs,
        time_left_ms=time_left_ms,
        worker=_departed_worker_id(departed),
        instance_id=departed.instance_id,
    )


def _departed_worker_id(departed: DepartedMemberDescription) -> str:
    """The name of a departed worker: its ``host:port``."""
    return worker_id_of_url(departed.url)
