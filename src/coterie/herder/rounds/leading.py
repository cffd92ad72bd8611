"""The leader's part in a round: it computes the assignment."""

from collections.abc import Collection, Mapping
from dataclasses import replace

from coterie.assignors import cooperative, eager
from coterie.assignors.claims import Places
from coterie.assignors.cooperative import RoundOutcome
from coterie.assignors.members import MemberView
from coterie.assignors.memory import Memory
from coterie.herder import group_view, place
from coterie.herder.group_view import Dealt
from coterie.herder.messages import CancelTimer, FindConfigEnd, ForRound, Say, SetTimer
from coterie.herder.requests import GroupView
from coterie.herder.rounds import bursts
from coterie.herder.rounds.state import Computing
from coterie.herder.state import Herder, Turn
from coterie.nouns.ids import ConfigOffset, Generation, MemberId
from coterie.nouns.jobs import NO_JOBS, Job, Jobs
from coterie.nouns.membership import AssignmentWanted, Computed, Install, MemberAssignment, MemberReport
from coterie.wire.connect import ConnectProtocol, RoundToken

FIRST_GENERATION = Generation(1)
"""The generation of a new group: no worker was a member before."""


def on_wanted(turn: Turn, event: AssignmentWanted) -> None:
    herder, computing = turn.herder, Computing(wanted=event)
    herder.lead.moves_at_ms = None
    if not herder.has_read(_furthest(computing)):
        herder.lead.looks += 1
        computing = replace(computing, look=herder.lead.looks)
        turn.order(FindConfigEnd(purpose=ForRound(look=herder.lead.looks)))
        turn.order(SetTimer(timer="assign", at_ms=turn.now_ms + herder.settings.sync_timeout_ms))
    herder.lead.computing = computing


def advance(turn: Turn) -> None:
    """Compute the assignment as soon as this leader has read the config log to the offsets of all members."""
    computing = turn.herder.lead.computing
    if computing is not None and turn.herder.has_read(_furthest(computing)):
        turn.order(CancelTimer(timer="assign"))
        _assign(turn, computing)


def on_end_found(turn: Turn, look: int, end: ConfigOffset | None) -> None:
    """The log's end offset was found: a member whose config offset is beyond it reads another log."""
    computing = turn.herder.lead.computing
    if computing is None or look != computing.look or end is None:
        return
    computing = turn.herder.lead.computing = replace(computing, end=end)
    members = computing.wanted.members
    if 2 * len(_strangers(computing)) > len(members):
        # More than half of the members read another log: so this worker reads another log than its group.
        place.step_aside(turn, furthest=max(one.config_offset for one in members.values()), end=end)
    else:
        advance(turn)


def on_patience_over(turn: Turn) -> None:
    """This leader has read less of the config log than a member: the round assigns no new job, and the leader requests
    another round when it has caught up."""
    herder, computing = turn.herder, turn.herder.lead.computing
    if computing is None:
        return
    wanted, furthest = computing.wanted, _furthest(computing)
    turn.order(
        Say(
            text="This rebalance assigns no new jobs: this leader has read the config topic to offset "
            f"{herder.config.offset}, a member to {furthest}. Another rebalance follows when this leader has caught up"
        )
    )
    herder.lead.computing = None
    nothing = dict.fromkeys(sorted(wanted.members), MemberAssignment())
    computed = Computed(config_offset=furthest, assignments=nothing, has_config_mismatch=True)
    turn.order(Install(token=wanted.token, computed=computed))


def last_computed(herder: Herder) -> Dealt | None:
    """The last round that this leader has computed; None if this worker is not the leader, or has computed none."""
    return herder.lead.dealt if herder.place.is_named_leader else None


def group_view_of(turn: Turn) -> GroupView | None:
    """This leader's view of its group; None as in `last_computed`."""
    herder, dealt = turn.herder, last_computed(turn.herder)
    if dealt is None:
        return None
    due = (herder.rounds.deferred_until_ms, herder.lead.moves_at_ms)
    return group_view.view(
        dealt,
        herder.lead.memory.waiting,
        configured=herder.config.jobs(),
        policy=herder.settings.policy,
        next_round_ms=min((left_ms(at_ms, turn.now_ms) for at_ms in due if at_ms is not None), default=None),
        now_ms=turn.now_ms,
    )


def unassigned_reasons(herder: Herder) -> Mapping[Job, str]:
    """Why each job without a worker is unassigned; empty unless this leader has computed the current generation."""
    dealt = herder.lead.dealt
    if dealt is None or dealt.generation != herder.place.epoch:
        return {}
    return group_view.reasons(dealt, herder.lead.memory.waiting)


def drop_round(turn: Turn) -> None:
    """The round whose assignment this leader had to compute is over."""
    turn.herder.lead.computing = None


def forget_result(turn: Turn) -> None:
    """This worker is no longer the leader."""
    turn.herder.lead.dealt = turn.herder.lead.moves_at_ms = None


def forget_memory(turn: Turn) -> None:
    turn.herder.lead.memory = Memory()


def on_settled(turn: Turn) -> None:
    """The members have their assignments: set the timer of the next moves, if jobs still have to move."""
    if turn.herder.lead.moves_at_ms is not None:
        turn.order(SetTimer(timer="moves", at_ms=turn.herder.lead.moves_at_ms))


def take_due_moves(turn: Turn) -> bool:
    """Whether the next moves are due; when they are, their deadline is cleared."""
    herder, lead = turn.herder, turn.herder.lead
    if not herder.place.is_leader or lead.moves_at_ms is None or turn.now_ms < lead.moves_at_ms:
        return False
    lead.moves_at_ms = None
    return True


def _assign(turn: Turn, computing: Computing) -> None:
    herder, wanted, strangers = turn.herder, computing.wanted, _strangers(computing)
    herder.lead.computing = None
    token = RoundToken.of(wanted.token)
    views = {member: view_of(report) for member, report in wanted.members.items()}
    for member in strangers:
        turn.order(Say(text=_stranger_words(computing, wanted.members[member]), warns=True))
        views[member] = replace(views[member], claims=NO_JOBS)
    unassigned: Mapping[Job, str] = {}
    if token.protocol is ConnectProtocol.EAGER:
        computed = _deal_anew(turn, wanted, takers=wanted.members.keys() - strangers)
        places = Places.of(views, herder.config.jobs())
    else:
        computed, round_ = _deal_on(turn, token.generation, views)
        places, unassigned = round_.places, round_.unassigned
    herder.lead.dealt = group_view.deal(
        herder.lead.dealt,
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


def _deal_on(turn: Turn, generation: Generation, views: Mapping[MemberId, MemberView]) -> tuple[Computed, RoundOutcome]:
    """A cooperative round: all members keep their jobs, except the jobs that this round revokes or assigns."""
    herder = turn.herder
    round_ = cooperative.assign(
        herder.lead.memory,
        configured=herder.config.jobs(),
        members=views,
        generation=generation,
        last_completed_generation=Generation(-1) if herder.place.is_lost else herder.rounds.completed,
        now_ms=turn.now_ms,
        policy=herder.settings.policy,
        known_delay_ms=left_ms(herder.rounds.deferred_until_ms, turn.now_ms),
    )
    herder.lead.memory = round_.memory
    herder.lead.moves_at_ms = turn.now_ms + round_.moves_in_ms if round_.moves_in_ms else None
    bursts.on_computed(turn, herder.config.jobs())
    return computed_of(round_, config_offset=herder.config.offset), round_


def left_ms(deferred_until_ms: int | None, now_ms: int) -> int:
    """The remaining ms of the scheduled rebalance delay that this worker received."""
    return 0 if deferred_until_ms is None else max(deferred_until_ms - now_ms, 0)


def computed_of(round_: RoundOutcome, *, config_offset: ConfigOffset) -> Computed:
    """The result of a cooperative round, as its members receive it."""
    assignments = {
        member: MemberAssignment(assigned=one.assigned, revoked=one.revoked)
        for member, one in round_.assignments.items()
    }
    return Computed(config_offset=config_offset, assignments=assignments, delay_ms=round_.delay_ms)


def _deal_anew(turn: Turn, wanted: AssignmentWanted, *, takers: Collection[MemberId]) -> Computed:
    """An eager round. A member that took part in the last eager round has stopped all its jobs before it joined this
    round.

    If the last round was not eager, or this leader does not have its result, this round assigns no job: members of a
    cooperative group may still run their jobs (KIP-415: "first sending a downgraded assignment with empty assigned
    connectors and tasks"). The jobs that are still to be assigned then cause the next round.
    """
    herder = turn.herder
    heard = None if herder.place.is_lost else Generation(herder.place.epoch)
    all_stopped = have_all_stopped(wanted, heard=heard, protocol=herder.rounds.protocol)
    herder.lead.memory = Memory()
    configured = herder.config.jobs() if all_stopped else NO_JOBS
    bursts.on_computed(turn, configured)
    if not all_stopped:
        turn.order(
            Say(
                text="The group's protocol changed to eager: this rebalance assigns no jobs, so that all workers stop "
                "their tasks; the next rebalance assigns all jobs"
            )
        )
    dealt = eager.assign(configured, takers)
    return dealt_anew(wanted, dealt, config_offset=herder.config.offset)


def have_all_stopped(wanted: AssignmentWanted, *, heard: Generation | None, protocol: ConnectProtocol | None) -> bool:
    """Whether no member of an eager round runs a job. ``heard`` is the last generation whose result this leader has
    received (None: the membership was lost), and ``protocol`` is the protocol of that generation."""
    token = RoundToken.of(wanted.token)
    return (
        (heard == token.generation - 1 and protocol is ConnectProtocol.EAGER)
        or token.generation == FIRST_GENERATION
        or wanted.members.keys() | token.left_out == {wanted.member_id}
    )


def dealt_anew(wanted: AssignmentWanted, dealt: Mapping[MemberId, Jobs], *, config_offset: ConfigOffset) -> Computed:
    """The result of an eager round, as its members receive it."""
    assignments = {member: MemberAssignment(assigned=dealt.get(member, NO_JOBS)) for member in wanted.members}
    return Computed(config_offset=config_offset, assignments=assignments)


def view_of(report: MemberReport) -> MemberView:
    """A member's report, as the assignor reads it."""
    return MemberView(
        owned=report.owned, claims=report.claims, draining=report.draining, instance_id=report.instance_id
    )


def _strangers(computing: Computing) -> Collection[MemberId]:
    """The members that read another config log: they report an offset beyond the end of this leader's log. Empty before
    the end offset is found.

    Such a member is not removed from the group, because it would rejoin again and again; it is assigned no job.
    """
    wanted, end = computing.wanted, computing.end
    if end is None:
        return ()
    return [
        member for member, report in wanted.members.items() if report.config_offset > end and member != wanted.member_id
    ]


def _stranger_words(computing: Computing, report: MemberReport) -> str:
    worker_id = group_view.worker_id_in(report.url)
    name = f"{report.name} ({worker_id})" if report.name else worker_id
    return (
        f"Worker {name} reported config offset {report.config_offset}, but the config topic ends at {computing.end}. "
        "No jobs are assigned to this worker. Check that all workers have the same config.storage.topic, and whether "
        "this topic has lost records"
    )


def _furthest(computing: Computing) -> ConfigOffset:
    """The highest config offset of the members that read the same config log as this leader."""
    strangers = _strangers(computing)
    return max(one.config_offset for member, one in computing.wanted.members.items() if member not in strangers)
