"""The leader's view of its group: the members, their jobs, the deferred jobs, and the jobs without a worker.

The view shows the last computed round (:class:`Dealt`): the metadata that members sent when they joined, their
assignments, and the members of earlier rounds that have left and whose jobs still wait for them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar
from urllib.parse import urlsplit

from coterie.assignors.claims import Places
from coterie.assignors.members import MemberView, Policy
from coterie.assignors.memory import Waiting
from coterie.herder.requests import DeferredJobs, GroupView, MemberInfo
from coterie.nouns.ids import Generation, InstanceId, MemberId, WorkerId, WorkerUrl
from coterie.nouns.jobs import Job, Jobs
from coterie.nouns.membership import AssignmentWanted, MemberAssignment, MemberReport

IN_PORTIONS = "rebalance.max.moves.per.round is reached; more jobs move later"


@dataclass(frozen=True, slots=True, kw_only=True)
class Departed:
    """A member that has left, with the jobs that it ran."""

    name: str
    instance_id: InstanceId | None
    jobs: Jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class Dealt:
    """The last round that this worker computed as its group's leader."""

    generation: Generation
    protocol: str
    """As ``connect.protocol`` names it."""
    leader: MemberId
    members: tuple[MemberInfo, ...]
    """By name, then by id."""
    unassigned: Mapping[Job, str]
    """Each job that no worker gets, with the reason; including the jobs that wait for a member that has left."""
    departed: tuple[Departed, ...]


def deal(
    former: Dealt | None,
    wanted: AssignmentWanted,
    views: Mapping[MemberId, MemberView],
    assignments: Mapping[MemberId, MemberAssignment],
    *,
    generation: Generation,
    protocol: str,
    places: Places,
    configured: Jobs,
    unassigned: Mapping[Job, str],
) -> Dealt:
    """The computed round, with the members of the round before (``former``) that have left."""
    departed: tuple[Departed, ...] = ()
    if former is not None and unassigned:
        left = Jobs.of(unassigned)
        gone = (info for info in former.members if info.member_id not in wanted.members)
        had = [*former.departed, *(Departed(name=i.name, instance_id=i.instance_id, jobs=i.owned) for i in gone)]
        departed = tuple(one for one in had if one.jobs & left)
    infos = (
        _info(member, wanted.members[member], views, one, one.revoked & configured, places)
        for member, one in assignments.items()
    )
    return Dealt(
        generation=generation,
        protocol=protocol,
        leader=wanted.member_id,
        members=tuple(sorted(infos, key=lambda info: (info.name, info.member_id))),
        unassigned=unassigned,
        departed=departed,
    )


def view(
    dealt: Dealt,
    waiting: Sequence[Waiting],
    *,
    configured: Jobs,
    policy: Policy,
    next_round_ms: int | None,
    now_ms: int,
) -> GroupView:
    """The view of the group after round ``dealt``, at ``now_ms``."""
    deferred = Jobs.of(job for one in waiting for job in one.jobs)
    return GroupView(
        generation=dealt.generation,
        protocol=dealt.protocol,
        leader=dealt.leader,
        config_offset=max(info.config_offset for info in dealt.members),
        configured=configured,
        members=dealt.members,
        deferred=tuple(part for one in waiting for part in _whose(one, dealt.departed, now_ms)),
        unassigned=tuple(
            (job, reason)
            for job, reason in sorted(dealt.unassigned.items(), key=lambda item: str(item[0]))
            if job not in deferred
        ),
        policy=policy,
        next_round_ms=next_round_ms,
    )


def reasons(dealt: Dealt, waiting: Sequence[Waiting]) -> Mapping[Job, str]:
    """Why no worker runs each unassigned job. The text stays the same as long as the reason does."""
    told = dict(dealt.unassigned)
    for one in waiting:
        for part in _whose(one, dealt.departed, 0):
            whose = part.worker or part.instance_id or "its worker"
            reason = f"{whose} has left the group and may rejoin: the job waits for scheduled.rebalance.max.delay.ms"
            told.update(dict.fromkeys(part.jobs, reason))
    return told


def names_of(info: MemberInfo) -> Sequence[str]:
    """The names with which an operator can select the worker."""
    return [info.name, info.worker_id, *([info.instance_id] if info.instance_id is not None else [])]


class Named(Protocol):
    """The names with which an operator can select a worker."""

    @property
    def name(self) -> str: ...
    @property
    def worker_id(self) -> str: ...
    @property
    def instance_id(self) -> str | None: ...


_Named = TypeVar("_Named", bound=Named)


def called(members: Iterable[_Named], called: str) -> list[_Named]:
    """The members that ``called`` selects: by ``host:port``, otherwise by name, otherwise by instance id. Several
    workers may have the same name."""
    known = list(members)
    for found in (
        [info for info in known if info.worker_id == called],
        [info for info in known if info.name == called],
        [info for info in known if info.instance_id == called],
    ):
        if found:
            return found
    return []


def worker_id_in(url: WorkerUrl) -> WorkerId:
    """``host:port`` of a worker's REST API, which is Connect's worker id. A URL without an address is returned
    unchanged."""
    try:
        return WorkerId(urlsplit(url).netloc or url)
    except ValueError:  # A member may send an invalid URL, which must not end the leader.
        return WorkerId(url)


# -- helpers ----------------------------------------------------------------------------------------------------------


def _info(
    member: MemberId,
    report: MemberReport,
    views: Mapping[MemberId, MemberView],
    assignment: MemberAssignment,
    gives_back: Jobs,
    places: Places,
) -> MemberInfo:
    seen, worker_id = views[member], worker_id_in(report.url)
    owned = (seen.owned - assignment.revoked) | assignment.assigned
    waits = None
    if seen.draining and owned and not gives_back:
        kept = next(iter(owned))
        waits = IN_PORTIONS if places.placeable(owned) else places.why_nobody(kept, views)
    return MemberInfo(
        member_id=member,
        worker_id=worker_id,
        name=report.name or worker_id,
        url=report.url,
        instance_id=seen.instance_id,
        claims=seen.claims,
        draining=seen.draining,
        config_offset=report.config_offset,
        owned=owned,
        revoked=gives_back,
        waits=waits,
    )


def _whose(waiting: Waiting, departed: Sequence[Departed], now_ms: int) -> Iterable[DeferredJobs]:
    """The jobs of ``waiting``, grouped by the last worker that ran them."""
    left, left_ms = waiting.jobs, max(waiting.deadline_ms - now_ms, 0)
    for one in reversed(departed):
        if jobs := one.jobs & left:
            left -= jobs
            yield DeferredJobs(jobs=jobs, left_ms=left_ms, worker=one.name, instance_id=one.instance_id)
    if left:
        yield DeferredJobs(jobs=left, left_ms=left_ms, worker=None, instance_id=waiting.instance_id)
