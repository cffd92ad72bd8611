"""The leader's view of its group: the members, their jobs, the deferred jobs, and the jobs without a worker.

The view shows the last computed round (:class:`RoundSnapshot`): the metadata that members sent when they joined, their
assignments, and the members of earlier rounds that have left and whose jobs still wait for them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar
from urllib.parse import urlsplit

from coterie.assignors.assignor_state import Deferral
from coterie.assignors.claims import Eligibility
from coterie.assignors.members import MemberSpec, RebalancePolicy
from coterie.herder.requests.views import DeferredJobs, GroupView, MemberInfo
from coterie.nouns.ids import GenerationId, InstanceId, MemberId, WorkerId, WorkerUrl
from coterie.nouns.jobs import Job, Jobs
from coterie.nouns.membership import AssignmentChange, AssignmentsRequested, MemberReport

MOVES_LIMITED_REASON = "rebalance.max.moves.per.round is reached; more jobs move later"
"""Why a drain waits although other workers may run the jobs; only with a limit of moves per round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DepartedMember:
    """A member that has left the group, with the jobs that it owned after its last round."""

    name: str
    """``worker.name``, else ``host:port``."""
    instance_id: InstanceId | None
    jobs: Jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundSnapshot:
    """The result of the last round that this worker computed as its group's leader, with the metadata that the members
    sent."""

    generation: GenerationId
    protocol: str
    """The group's protocol, as a value of ``connect.protocol``."""
    leader: MemberId
    members: tuple[MemberInfo, ...]
    """The members, sorted by name, then by id."""
    reason_by_unassigned_job: Mapping[Job, str]
    """Each configured job that this round assigns to no worker, with the reason; also the jobs that wait for a member
    that has left."""
    departed: tuple[DepartedMember, ...]
    """The members of earlier rounds that have left and whose jobs are still unassigned; the one that left last comes
    last."""


def snapshot_round(
    previous: RoundSnapshot | None,
    request: AssignmentsRequested,
    views: Mapping[MemberId, MemberSpec],
    assignments: Mapping[MemberId, AssignmentChange],
    *,
    generation: GenerationId,
    protocol: str,
    eligibility: Eligibility,
    configured: Jobs,
    unassigned: Mapping[Job, str],
    policy: RebalancePolicy,
) -> RoundSnapshot:
    """The snapshot of a computed round. ``request`` contains the members' reports, ``views`` the same reports as the
    assignor's input, ``assignments`` the computed result; ``unassigned`` are the configured jobs that the round assigns
    to no worker, each with the reason. The snapshot also contains the departed members of the ``previous`` round, and
    the members of that round that have left since then, as far as their jobs are still unassigned."""
    departed: tuple[DepartedMember, ...] = ()
    if previous is not None and unassigned:
        left = Jobs.of(unassigned)
        gone = (info for info in previous.members if info.member_id not in request.members)
        had = [
            *previous.departed,
            *(DepartedMember(name=i.name, instance_id=i.instance_id, jobs=i.owned) for i in gone),
        ]
        departed = tuple(one for one in had if one.jobs & left)
    infos = (
        _member_info(member, request.members[member], views, one, one.revoked & configured, eligibility, policy)
        for member, one in assignments.items()
    )
    return RoundSnapshot(
        generation=generation,
        protocol=protocol,
        leader=request.member_id,
        members=tuple(sorted(infos, key=lambda info: (info.name, info.member_id))),
        reason_by_unassigned_job=unassigned,
        departed=departed,
    )


def build_group_view(
    last_round: RoundSnapshot,
    deferrals: Sequence[Deferral],
    *,
    configured: Jobs,
    policy: RebalancePolicy,
    next_round_in_ms: int | None,
    now_ms: int,
) -> GroupView:
    """The view of the group at ``now_ms``, after ``last_round``. ``deferrals`` are the jobs that wait for departed
    members."""
    deferred = Jobs.of(job for one in deferrals for job in one.jobs)
    return GroupView(
        generation=last_round.generation,
        protocol=last_round.protocol,
        assignor=None,
        leader=last_round.leader,
        config_offset=max(info.config_offset for info in last_round.members),
        configured=configured,
        members=last_round.members,
        deferred=tuple(part for one in deferrals for part in _deferred_by_member(one, last_round.departed, now_ms)),
        unassigned=tuple(
            (job, reason)
            for job, reason in sorted(last_round.reason_by_unassigned_job.items(), key=lambda item: str(item[0]))
            if job not in deferred
        ),
        policy=policy,
        next_round_in_ms=next_round_in_ms,
    )


def unassigned_reasons(last_round: RoundSnapshot, deferrals: Sequence[Deferral]) -> Mapping[Job, str]:
    """Why no worker runs each unassigned job, by job. The text contains no times: it stays the same as long as the
    reason does."""
    reason_by_job = dict(last_round.reason_by_unassigned_job)
    for one in deferrals:
        for part in _deferred_by_member(one, last_round.departed, 0):
            whose = part.worker or part.instance_id or "its worker"
            reason_by_job.update(dict.fromkeys(part.jobs, departed_owner_reason(whose)))
    return reason_by_job


def departed_owner_reason(worker: str) -> str:
    """Why no worker runs a job of ``worker``, which has left the group."""
    return f"{worker} has left the group and may rejoin: the job waits for scheduled.rebalance.max.delay.ms"


def reason_to_keep_jobs(
    jobs: Jobs, members: Mapping[MemberId, MemberSpec], eligibility: Eligibility, policy: RebalancePolicy
) -> str | None:
    """Why a draining member keeps ``jobs``, none of which is revoked: the limit of moves per round, or that no other
    member may run them. None if neither is the case: then the next assignment revokes them."""
    if not eligibility.assignable_jobs(jobs):
        return eligibility.unassignable_reason(next(iter(jobs)), members)
    return MOVES_LIMITED_REASON if policy.moves_per_round_max is not None else None


def names_of_member(info: MemberInfo) -> Sequence[str]:
    """The names by which an operator can select the worker: name, ``host:port``, and instance id if there is one."""
    return [info.name, info.worker_id, *([info.instance_id] if info.instance_id is not None else [])]


class NamedWorker(Protocol):
    """A worker that an operator can select by its name, by its ``host:port`` (``worker_id``) or by its instance id."""

    @property
    def name(self) -> str: ...
    @property
    def worker_id(self) -> str: ...
    @property
    def instance_id(self) -> str | None: ...


_NamedWorkerT = TypeVar("_NamedWorkerT", bound=NamedWorker)


def find_members_by_first_matching_name(members: Iterable[_NamedWorkerT], name: str) -> list[_NamedWorkerT]:
    """The members that ``name`` selects: those with this ``host:port``, else those with this worker name, else those
    with this instance id. Empty when there is none; several workers may have the same name."""
    known = list(members)
    for found in (
        [info for info in known if info.worker_id == name],
        [info for info in known if info.name == name],
        [info for info in known if info.instance_id == name],
    ):
        if found:
            return found
    return []


def worker_id_of_url(url: WorkerUrl) -> WorkerId:
    """``host:port`` of the URL of a worker's REST API, which is Connect's worker id. A URL without a host is returned
    unchanged."""
    try:
        return WorkerId(urlsplit(url).netloc or url)
    except ValueError:  # A member may send an invalid URL, which must not end the leader.
        return WorkerId(url)


# -- helpers ----------------------------------------------------------------------------------------------------------


def _member_info(
    member: MemberId,
    report: MemberReport,
    views: Mapping[MemberId, MemberSpec],
    assignment: AssignmentChange,
    revoked: Jobs,
    eligibility: Eligibility,
    policy: RebalancePolicy,
) -> MemberInfo:
    """A member's metadata, and the result of the round for it. ``revoked`` are its revoked jobs that are still
    configured."""
    seen, worker_id = views[member], worker_id_of_url(report.url)
    owned = (seen.owned - assignment.revoked) | assignment.assigned
    wait_reason = None
    if seen.is_draining and owned and not revoked:
        wait_reason = reason_to_keep_jobs(owned, views, eligibility, policy)
    return MemberInfo(
        member_id=member,
        worker_id=worker_id,
        name=report.name or worker_id,
        url=report.url,
        instance_id=seen.instance_id,
        claims=seen.claims,
        draining=seen.is_draining,
        config_offset=report.config_offset,
        owned=owned,
        revoked=revoked,
        drain_wait_reason=wait_reason,
    )


def _deferred_by_member(deferral: Deferral, departed: Sequence[DepartedMember], now_ms: int) -> Iterable[DeferredJobs]:
    """The jobs of one deferral, grouped by the member that ran them last. Jobs without a known member come last."""
    left, time_left_ms = deferral.jobs, max(deferral.deadline_ms - now_ms, 0)
    for one in reversed(departed):
        if jobs := one.jobs & left:
            left -= jobs
            yield DeferredJobs(jobs=jobs, time_left_ms=time_left_ms, worker=one.name, instance_id=one.instance_id)
    if left:
        yield DeferredJobs(jobs=left, time_left_ms=time_left_ms, worker=None, instance_id=deferral.instance_id)
