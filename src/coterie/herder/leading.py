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
from coterie.nouns.ids import ConfigOffset, Generation, MemberId
from coterie.nouns.jobs import NO_JOBS, Job, Jobs
from coterie.nouns.membership import AssignmentWanted, Computed, MemberAssignment, MemberReport
from coterie.wire.connect import ConnectProtocol, RoundToken

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
    herder.wanted = None
    nothing = dict.fromkeys(sorted(wanted.members), MemberAssignment())
    computed = Computed(config_offset=furthest, assignments=nothing, has_config_mismatch=True)
    turn.order(Install(token=wanted.token, computed=computed))


def _assign(turn: Turn, wanted: AssignmentWanted) -> None:
    herder, strangers = turn.herder, _strangers(turn.herder)
    herder.wanted = None
    token = RoundToken.of(wanted.token)
    views = {member: view_of(report) for member, report in wanted.members.items()}
    for member in strangers:
        turn.order(Say(text=_stranger_words(herder, wanted.members[member]), warns=True))
        views[member] = replace(views[member], claims=NO_JOBS)
    unassigned: Mapping[Job, str] = {}
    if token.protocol is ConnectProtocol.EAGER:
        computed = _deal_anew(turn, wanted, takers=wanted.members.keys() - strangers)
        places = Places.of(views, herder.config.jobs())
    else:
        computed, round_ = _deal_on(turn, token.generation, views)
        places, unassigned = round_.places, round_.unassigned
    herder.dealt = group_view.deal(
        herder.dealt,
        wanted,
        views,
        computed.assignments,
        generation=token.generation,
        protocol=token.protocol.setting,
        places=places,
        configured=herder.config.jobs(),
        unassigned=unassigned,
    )
    turn.order(Install(token=wanted.token, computed=computed))


def _deal_on(turn: Turn, generation: Generation, views: Mapping[MemberId, MemberView]) -> tuple[Computed, Round]:
    """A cooperative round: everybody keeps what it has, but for what this round takes and gives."""
    herder = turn.herder
    round_ = cooperative.assign(
        herder.memory,
        configured=herder.config.jobs(),
        members=views,
        generation=generation,
        last_completed_generation=Generation(-1) if herder.lost else herder.completed,
        now_ms=turn.now_ms,
        policy=herder.settings.policy,
        known_delay_ms=left_ms(herder.deferred_until_ms, turn.now_ms),
    )
    herder.memory = round_.memory
    herder.moves_at_ms = turn.now_ms + round_.moves_in_ms if round_.moves_in_ms else None
    herder.assigned_for = herder.config.jobs()
    return computed_of(round_, config_offset=herder.config.offset), round_


def left_ms(deferred_until_ms: int | None, now_ms: int) -> int:
    """What is left of the delay that this worker was told of."""
    return 0 if deferred_until_ms is None else max(deferred_until_ms - now_ms, 0)


def computed_of(round_: Round, *, config_offset: ConfigOffset) -> Computed:
    """What a cooperative round is to its members."""
    assignments = {
        member: MemberAssignment(assigned=one.assigned, revoked=one.revoked)
        for member, one in round_.assignments.items()
    }
    return Computed(config_offset=config_offset, assignments=assignments, delay_ms=round_.delay_ms)


def _deal_anew(turn: Turn, wanted: AssignmentWanted, *, takers: Collection[MemberId]) -> Computed:
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
    return dealt_anew(wanted, dealt, config_offset=herder.config.offset)


def have_all_stopped(wanted: AssignmentWanted, *, heard: Generation | None, protocol: ConnectProtocol | None) -> bool:
    """Whether nobody in an eager round runs anything; in the last round ``heard`` of, the group spoke ``protocol``."""
    token = RoundToken.of(wanted.token)
    return (
        (heard == token.generation - 1 and protocol is ConnectProtocol.EAGER)
        or token.generation == FIRST_GENERATION
        or wanted.members.keys() | token.left_out == {wanted.member_id}
    )


def dealt_anew(wanted: AssignmentWanted, dealt: Mapping[MemberId, Jobs], *, config_offset: ConfigOffset) -> Computed:
    """What an eager round is to its members."""
    assignments = {member: MemberAssignment(assigned=dealt.get(member, NO_JOBS)) for member in wanted.members}
    return Computed(config_offset=config_offset, assignments=assignments)


def view_of(report: MemberReport) -> MemberView:
    """What the assignor reads of a member."""
    return MemberView(
        owned=report.owned, claims=report.claims, draining=report.draining, instance_id=report.instance_id
    )


def _strangers(herder: Herder) -> Collection[MemberId]:
    """Whose configs are others, for they have read more of them than there is; none before the log's end is known.

    Such a member stays in the group, so that it does not come back all the time, and is given nothing.
    """
    wanted, end = herder.wanted, herder.wanted_end
    if wanted is None or end is None:
        return ()
    return [
        member for member, report in wanted.members.items() if report.config_offset > end and member != wanted.member_id
    ]


def _stranger_words(herder: Herder, report: MemberReport) -> str:
    worker_id = group_view.worker_id_in(report.url)
    name = f"{report.name} ({worker_id})" if report.name else worker_id
    return (
        f"Worker {name} has read {report.config_offset} lines of configs, "
        f"and the config topic has {herder.wanted_end}: its config.storage.topic is another one, or this one has lost "
        "lines. It is given nothing"
    )


def _furthest(herder: Herder) -> ConfigOffset:
    """How far any member has read what this leader reads."""
    assert herder.wanted is not None
    strangers = _strangers(herder)
    return max(one.config_offset for member, one in herder.wanted.members.items() if member not in strangers)
