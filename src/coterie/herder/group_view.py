"""What the leader can tell of its group: who is in it, who has what, what waits for whom, and who has nobody.

A round is told of as it was dealt out (:class:`Dealt`): what members said of themselves when they joined, what they
were told, and which members of the rounds before are gone while their jobs still wait for them.
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

IN_PORTIONS = "rebalance.max.moves.per.round lets no more go yet"


@dataclass(frozen=True, slots=True, kw_only=True)
class Departed:
    """A member that is gone, and what it had."""

    name: str
    instance_id: InstanceId | None
    jobs: Jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class Dealt:
    """The last round that this worker dealt out as its group's leader."""

    generation: Generation
    protocol: str
    """As ``connect.protocol`` names it."""
    leader: MemberId
    members: tuple[MemberInfo, ...]
    """By name, then by id."""
    unassigned: Mapping[Job, str]
    """Who gets nobody, and why; those too that wait for a member that is gone."""
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
    """Note a round, and who of the one before it is gone."""
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
    """What is dealt out, as it stands at ``now_ms``."""
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
    """Why each job that has nobody has none: in words that stay the same while the reason does."""
    told = dict(dealt.unassigned)
    for one in waiting:
        for part in _whose(one, dealt.departed, 0):
            whose = part.worker or part.instance_id or "its worker"
            reason = f"{whose} has left the group and may be back: it waits for scheduled.rebalance.max.delay.ms"
            told.update(dict.fromkeys(part.jobs, reason))
    return told


def names_of(info: MemberInfo) -> Sequence[str]:
    """By what people may call a worker."""
    return [info.name, info.worker_id, *([info.instance_id] if info.instance_id is not None else [])]


class Named(Protocol):
    """What people can call a worker by."""

    @property
    def name(self) -> str: ...
    @property
    def worker_id(self) -> str: ...
    @property
    def instance_id(self) -> str | None: ...


_Named = TypeVar("_Named", bound=Named)


def called(members: Iterable[_Named], called: str) -> list[_Named]:
    """Whom ``called`` means. ``host:port`` goes first, then names, then instance ids; two workers may have one name."""
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
    """``host:port`` of a worker's REST: what Connect calls it by. What is no address is shown as it is."""
    try:
        return WorkerId(urlsplit(url).netloc or url)
    except ValueError:  # A member says of itself what it likes, and its nonsense is not the leader's end.
        return WorkerId(url)


# -- small hands ------------------------------------------------------------------------------------------------------


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
    """``waiting``, by who had the jobs: the last one that had them."""
    left, left_ms = waiting.jobs, max(waiting.deadline_ms - now_ms, 0)
    for one in reversed(departed):
        if jobs := one.jobs & left:
            left -= jobs
            yield DeferredJobs(jobs=jobs, left_ms=left_ms, worker=one.name, instance_id=one.instance_id)
    if left:
        yield DeferredJobs(jobs=left, left_ms=left_ms, worker=None, instance_id=waiting.instance_id)
