"""What the leader does for its group: it deals the jobs out in each round."""

from collections.abc import Collection, Mapping
from dataclasses import replace

from coterie.assignors import cooperative, eager
from coterie.assignors.claims import Places
from coterie.assignors.cooperative import Round
from coterie.assignors.members import MemberView
from coterie.assignors.memory import Memory
from coterie.herder import group_view, membership
from coterie.herder.messages import CancelTimer, ConfigEndFound, FindConfigEnd, Install, Say, SetTimer
from coterie.herder.state import Herder, Turn
from coterie.nouns.ids import ConfigOffset, Generation, InstanceId, MemberId, WorkerUrl
from coterie.nouns.jobs import NO_JOBS, Job, Jobs
from coterie.wire.connect import AssignmentError, ConnectProtocol, WorkerAssignment, WorkerMetadata
from coterie.wire.connect_events import AssignmentWanted
from coterie.wire.connect_opaque import name_in

FIRST_GENERATION = Generation(1)
"""Of a group that nobody was in before."""


def on_wanted(turn: Turn, event: AssignmentWanted) -> None:
    herder = turn.herder
    herder.wanted, herder.moves_at_ms = event, None
    herder.wanted_look = herder.wanted_end = None
    if not herder.has_read(_furthest(herder)):
        herder.wanted_look = herder.own_request()
        turn.order(FindConfigEnd(id=herder.wanted_look))
        turn.order(SetTimer(timer="assign", at_ms=turn.now_ms + herder.settings.sync_timeout_ms))


def advance(turn: Turn) -> None:
    """Deal out as soon as this leader knows all that its members know."""
    wanted = turn.herder.wanted
    if wanted is not None and turn.herder.has_read(_furthest(turn.herder)):
        turn.order(CancelTimer(timer="assign"))
        _assign(turn, wanted)


def on_end_found(turn: Turn, event: ConfigEndFound) -> None:
    """Whoever says that it has read beyond the log's end has read another log."""
    herder, wanted = turn.herder, turn.herder.wanted
    if wanted is None or event.id != herder.wanted_look or event.end is None:
        return
    herder.wanted_end = event.end
    if 2 * len(_strangers(herder)) > len(wanted.members):
        # Then it is this one that reads another log than its group.
        membership.step_aside(turn, furthest=max(one.config_offset for one in wanted.members.values()), end=event.end)
    else:
        advance(turn)


def on_patience_over(turn: Turn) -> None:
    """This leader knows less of the configs than a member: nobody gets anything, and it asks again when it knows."""
    herder, wanted = turn.herder, turn.herder.wanted
    if wanted is None:
        return
    furthest = _furthest(herder)
    turn.order(Say(text=f"Nothing is assigned: the config log is read to {herder.config.offset} of {furthest}"))
    none = WorkerAssignment(
        error=AssignmentError.CONFIG_MISMATCH,
        leader=wanted.member_id,
        leader_url=herder.settings.url,
        config_offset=furthest,
    )
    herder.wanted = None
    turn.order(Install(generation=wanted.generation, assignments=dict.fromkeys(sorted(wanted.members), none)))


def _assign(turn: Turn, wanted: AssignmentWanted) -> None:
    herder, strangers = turn.herder, _strangers(turn.herder)
    herder.wanted = None
    views = {
        member: view_of(metadata, wanted.instance_ids.get(member), wanted.protocol)
        for member, metadata in wanted.members.items()
    }
    for member in strangers:
        turn.order(Say(text=_stranger_words(herder, wanted.members[member]), warns=True))
        views[member] = replace(views[member], claims=NO_JOBS)
    unassigned: Mapping[Job, str] = {}
    if wanted.protocol is ConnectProtocol.EAGER:
        assignments = _deal_anew(turn, wanted, takers=wanted.members.keys() - strangers)
        places = Places.of(views, herder.config.jobs())
    else:
        assignments, round_ = _deal_on(turn, wanted, views)
        places, unassigned = round_.places, round_.unassigned
    herder.dealt = group_view.deal(
        herder.dealt,
        wanted,
        views,
        assignments,
        places=places,
        configured=herder.config.jobs(),
        unassigned=unassigned,
    )
    turn.order(Install(generation=wanted.generation, assignments=assignments))


def _deal_on(
    turn: Turn, wanted: AssignmentWanted, views: Mapping[MemberId, MemberView]
) -> tuple[Mapping[MemberId, WorkerAssignment], Round]:
    """A cooperative round: everybody keeps what it has, but for what this round takes and gives."""
    herder = turn.herder
    round_ = cooperative.assign(
        herder.memory,
        configured=herder.config.jobs(),
        members=views,
        generation=wanted.generation,
        last_completed_generation=Generation(-1) if herder.lost else herder.completed,
        now_ms=turn.now_ms,
        policy=herder.settings.policy,
        known_delay_ms=left_ms(herder.deferred_until_ms, turn.now_ms),
    )
    herder.memory = round_.memory
    herder.moves_at_ms = turn.now_ms + round_.moves_in_ms if round_.moves_in_ms else None
    herder.assigned_for = herder.config.jobs()
    told = as_told(wanted, round_, leader_url=herder.settings.url, config_offset=herder.config.offset)
    return told, round_


def left_ms(deferred_until_ms: int | None, now_ms: int) -> int:
    """What is left of the delay that this worker was told of."""
    return 0 if deferred_until_ms is None else max(deferred_until_ms - now_ms, 0)


def as_told(
    wanted: AssignmentWanted, round_: Round, *, leader_url: WorkerUrl, config_offset: ConfigOffset
) -> Mapping[MemberId, WorkerAssignment]:
    """What a round is to its members."""
    return {
        member: WorkerAssignment(
            leader=wanted.member_id,
            leader_url=leader_url,
            config_offset=config_offset,
            assigned=one.assigned,
            revoked=one.revoked,
            delay_ms=round_.delay_ms,
        )
        for member, one in round_.assignments.items()
    }


def _deal_anew(
    turn: Turn, wanted: AssignmentWanted, *, takers: Collection[MemberId]
) -> Mapping[MemberId, WorkerAssignment]:
    """An eager round. Who was in the last one and heard of it has stopped everything before it joined this one.

    If that was no eager one, or this leader does not know, nobody is told to run anything yet: members of a
    cooperative group may still run what they had (K415: "first sending a downgraded assignment with empty assigned
    connectors and tasks"). That there is more to deal out then brings about the next round.
    """
    herder = turn.herder
    all_stopped = have_all_stopped(wanted, heard=None if herder.lost else herder.generation, protocol=herder.protocol)
    herder.memory = Memory()
    herder.assigned_for = herder.config.jobs() if all_stopped else NO_JOBS
    if not all_stopped:
        turn.order(Say(text="The group has come to speak eager: before anything is dealt out, everybody stops"))
    dealt = eager.assign(herder.assigned_for, takers)
    return as_dealt(wanted, dealt, leader_url=herder.settings.url, config_offset=herder.config.offset)


def have_all_stopped(wanted: AssignmentWanted, *, heard: Generation | None, protocol: ConnectProtocol | None) -> bool:
    """Whether nobody in an eager round runs anything; in the last round ``heard`` of, the group spoke ``protocol``."""
    return (
        (heard == wanted.generation - 1 and protocol is ConnectProtocol.EAGER)
        or wanted.generation == FIRST_GENERATION
        or wanted.members.keys() | wanted.left_out == {wanted.member_id}
    )


def as_dealt(
    wanted: AssignmentWanted, dealt: Mapping[MemberId, Jobs], *, leader_url: WorkerUrl, config_offset: ConfigOffset
) -> Mapping[MemberId, WorkerAssignment]:
    """What an eager round is to its members."""
    return {
        member: WorkerAssignment(
            leader=wanted.member_id,
            leader_url=leader_url,
            config_offset=config_offset,
            assigned=dealt.get(member, NO_JOBS),
        )
        for member in wanted.members
    }


def view_of(metadata: WorkerMetadata, instance_id: InstanceId | None, protocol: ConnectProtocol) -> MemberView:
    """What the assignor is told of a member: what all members' protocol has a place for."""
    owned = metadata.allocation.assigned if metadata.allocation is not None else NO_JOBS
    if protocol < ConnectProtocol.STATIC:
        return MemberView(owned=owned, instance_id=instance_id)
    claims = None
    if metadata.static_connectors is not None or metadata.static_tasks is not None:
        claims = Jobs(metadata.static_connectors or frozenset(), metadata.static_tasks or frozenset())
    return MemberView(owned=owned, claims=claims, draining=metadata.draining, instance_id=instance_id)


def _strangers(herder: Herder) -> Collection[MemberId]:
    """Whose configs are others, for they have read more of them than there is; none before the log's end is known.

    Such a member stays in the group, so that it does not come back all the time, and is given nothing.
    """
    wanted, end = herder.wanted, herder.wanted_end
    if wanted is None or end is None:
        return ()
    return [
        member
        for member, metadata in wanted.members.items()
        if metadata.config_offset > end and member != wanted.member_id
    ]


def _stranger_words(herder: Herder, metadata: WorkerMetadata) -> str:
    worker_id = group_view.worker_id_in(metadata.url)
    name = name_in(metadata.opaque)
    return (
        f"Worker {f'{name} ({worker_id})' if name else worker_id} has read {metadata.config_offset} lines of configs, "
        f"and the config topic has {herder.wanted_end}: its config.storage.topic is another one, or this one has lost "
        "lines. It is given nothing"
    )


def _furthest(herder: Herder) -> ConfigOffset:
    """How far any member has read what this leader reads."""
    assert herder.wanted is not None
    strangers = _strangers(herder)
    return max(one.config_offset for member, one in herder.wanted.members.items() if member not in strangers)
