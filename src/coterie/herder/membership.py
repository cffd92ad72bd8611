"""This worker's place in the group: what it is given, gives back, and says at its next join."""

from coterie.assignors.memory import Memory
from coterie.herder import bursts, statuses
from coterie.herder.messages import (
    Abandon,
    CancelTimer,
    ConfigEndFound,
    FindConfigEnd,
    Rejoin,
    Say,
    SetTimer,
    Subscribe,
)
from coterie.herder.state import Herder, Turn
from coterie.nouns.ids import ConfigOffset, Generation, MemberId, WorkerUrl
from coterie.nouns.jobs import NO_JOBS, Jobs
from coterie.nouns.membership import Assigned, Lost, MemberState
from coterie.wire.connect import AssignmentError, RoundResult


def on_round(turn: Turn, state: MemberState) -> None:
    """A round has begun."""
    herder = turn.herder
    herder.settled = False
    herder.joining = state
    herder.wanted = None


def on_must_release_all(turn: Turn) -> None:
    herder = turn.herder
    on_round(turn, MemberState.PREPARING_REBALANCE)
    if not herder.releasing:
        turn.order(Say(text="The group speaks eager and rebalances: everything here stops first"))
        herder.releasing = True
        herder.assigned = NO_JOBS
        herder.owes_rejoin = False
        herder.subscribed = None  # Said again also when it is the same: the membership waits to hear it.


def on_assignment(turn: Turn, event: Assigned) -> None:
    herder, result, generation = turn.herder, RoundResult.of(event.token), Generation(event.epoch)
    is_told_again = not herder.lost and generation == herder.generation
    herder.member_id, herder.generation, herder.protocol = event.member_id, generation, result.protocol
    herder.leader, herder.leader_url = event.leader, event.leader_url
    herder.lost = herder.releasing = herder.rejoin_asked = False
    herder.wanted = None
    herder.joining = None
    bursts.close_window(turn)
    if herder.leader != herder.member_id:
        herder.assigned_for = herder.dealt = herder.moves_at_ms = None
    turn.order(Say(text=_told(event)))
    herder.rumoured = result.error is not AssignmentError.NO_ERROR
    _expect_to_read(turn, event.config_offset)
    if result.error is not AssignmentError.NO_ERROR:
        # All keep what they have. Whoever lagged asks for another round once it has caught up; the leader did lag, even
        # if it has caught up meanwhile.
        lagged = herder.leader == herder.member_id or not herder.has_read(event.config_offset)
        herder.catch_up_to = event.config_offset if lagged else None
        return
    herder.settled = True
    herder.completed = generation
    herder.catch_up_to = None
    herder.assignment_offset = event.config_offset
    if event.is_whole:
        # Whoever worked before has stopped, or stops now: nothing of what was remembered of it can be lost any more.
        herder.memory = Memory()
        herder.owes_rejoin = has_yet_to_deal(herder.assigned_for, configured=herder.config.jobs())
    if herder.leaving is None:
        herder.assigned = kept_of(herder.assigned, event) | event.jobs
        herder.owes_rejoin = herder.owes_rejoin or _somebody_waits_for(herder, event.revoked)
    if not is_told_again:
        # A follower that joins again is answered with the generation that runs: its delay has begun long ago.
        _set_delay(turn, result.delay_ms)
    if herder.is_leader:
        if herder.moves_at_ms is not None:
            turn.order(SetTimer(timer="moves", at_ms=herder.moves_at_ms))
        statuses.forget_the_deleted(turn)
        statuses.tell_unassigned(turn)


def kept_of(before: Jobs, event: Assigned) -> Jobs:
    """What stays of what a worker had."""
    return NO_JOBS if event.is_whole else before - event.revoked


def has_yet_to_deal(dealt_for: Jobs | None, *, configured: Jobs) -> bool:
    """Whether the leader of an eager round dealt nothing out, for not everybody had stopped: it brings the real round
    about."""
    return dealt_for == NO_JOBS and bool(configured)


def on_opened(turn: Turn) -> None:
    """A delay that a former life was told of goes on."""
    if turn.herder.deferred_until_ms is not None:
        turn.order(SetTimer(timer="delay over", at_ms=turn.herder.deferred_until_ms))


def on_lost(turn: Turn, event: Lost) -> None:
    """Stop everything. The membership joins again, as a worker without work, when all has stopped."""
    herder = turn.herder
    turn.order(Say(text=f"The membership is lost, everything here stops: {event.reason}"))
    herder.settled = herder.releasing = False
    herder.lost = True
    if herder.warming:
        herder.may_join = False  # There is no place to go on in: it joins as any worker does, when it can work.
    herder.member_id = herder.leader = MemberId("")
    herder.leader_url = WorkerUrl("")
    herder.assigned = NO_JOBS
    herder.assigned_for = herder.dealt = herder.wanted = herder.catch_up_to = herder.joining = None
    herder.moves_at_ms = None
    # A group that its coordinator forgot counts its generations anew: an old memory would pass for a fresh one.
    herder.memory = Memory()
    herder.owes_rejoin = herder.rejoin_asked = False
    bursts.close_window(turn)
    herder.subscribed = None  # Said again also when it is the same: the membership waits to hear it.
    _set_delay(turn, 0)


def on_behind(turn: Turn) -> None:
    """This worker has not read for long what its group knows. What nobody has dealt out by was only said by a member:
    is there so much?"""
    herder = turn.herder
    if herder.leaving is not None or herder.has_read(herder.group_offset):
        return
    if herder.rumoured:
        herder.behind_look = herder.own_request()
        turn.order(FindConfigEnd(id=herder.behind_look))
    else:
        _give_up(turn)


def on_end_found(turn: Turn, event: ConfigEndFound) -> None:
    herder = turn.herder
    if event.id != herder.behind_look or herder.leaving is not None or herder.has_read(herder.group_offset):
        return
    if event.end is not None and herder.has_read(event.end):
        text = (
            f"A member of the group says that it has read {herder.group_offset} lines of configs, and the config topic "
            f"has {event.end}: its config.storage.topic is another one, or this one has lost lines"
        )
        turn.order(Say(text=text, warns=True))
        herder.group_offset = event.end
        advance(turn)
    else:
        _give_up(turn)
        _look_again(turn)


def _give_up(turn: Turn) -> None:
    """What this worker is given it cannot start, and if it leads nobody is given anything. So its place and all of its
    work are for others, until it can (KAFKA-9849)."""
    herder = turn.herder
    if not herder.lost:
        reason = (
            f"the config log is read to {max(herder.config.offset, 0)} of {herder.group_offset}, and no further within "
            f"rebalance.timeout.ms={herder.settings.rebalance_timeout_ms}"
        )
        turn.order(Abandon(reason=reason))


def step_aside(turn: Turn, *, furthest: ConfigOffset, end: ConfigOffset) -> None:
    """Most members have read what this worker's config log does not have. So it is not theirs."""
    turn.herder.group_offset, turn.herder.rumoured = furthest, False
    reason = (
        f"most members have read more of the configs, up to {furthest}, than this worker's config topic has, {end}: is "
        "its config.storage.topic another one than theirs?"
    )
    turn.order(Say(text=f"This worker gives its place up: {reason}", warns=True))
    turn.order(Abandon(reason=reason))


def on_round_due(turn: Turn) -> None:
    """The delay is over, or the leader may make the next moves: its rejoin makes a round, whatever it says."""
    herder = turn.herder
    # While a round is under way its end will say anew how long to wait.
    if herder.settled and herder.deferred_until_ms is not None and turn.now_ms >= herder.deferred_until_ms:
        herder.deferred_until_ms = None
        _rejoin(turn, "the scheduled rebalance delay is over")
    if herder.is_leader and herder.moves_at_ms is not None and turn.now_ms >= herder.moves_at_ms:
        herder.moves_at_ms = None
        _rejoin(turn, "moves are left to make")


def advance(turn: Turn) -> None:
    """Say what has changed about this worker, then ask for the rounds that it owes."""
    herder = turn.herder
    now = (herder.config.offset, herder.owned, herder.draining)
    tells = herder.releasing and bool(herder.unwritten or herder.writing)
    is_out = herder.lost and not herder.has_read(herder.group_offset)
    if herder.may_join and now != herder.subscribed and not tells and not is_out:
        herder.subscribed = now
        turn.order(Subscribe(config_offset=now[0], owned=now[1], draining=now[2]))
    # Not while a round is under way: its join may have been sent when something of what was revoked still ran, and
    # then the leader thinks that this worker keeps it. The round after it puts that right.
    if herder.owes_rejoin and herder.settled and herder.owned == herder.assigned:
        herder.owes_rejoin = False
        _rejoin(turn, "what was revoked has been released")
    if herder.catch_up_to is not None and herder.has_read(herder.catch_up_to):
        herder.catch_up_to = None
        _rejoin(turn, "the config log is read")


def _somebody_waits_for(herder: Herder, revoked: Jobs) -> bool:
    """What is configured no more goes to nobody, so that giving it back needs no round; unless it runs still: then a
    join may have said so, and should it be configured again, the leader thinks that it is here."""
    exists = not herder.caught_up or bool(revoked & herder.config.jobs())
    return bool(revoked) and (exists or bool(revoked & herder.owned))


def _expect_to_read(turn: Turn, end: ConfigOffset) -> None:
    herder = turn.herder
    was_behind = not herder.has_read(herder.group_offset)
    herder.group_offset = end
    if not was_behind and not herder.has_read(end):
        _look_again(turn)


def _look_again(turn: Turn) -> None:
    turn.order(SetTimer(timer="behind", at_ms=turn.now_ms + turn.herder.settings.rebalance_timeout_ms))


def _told(event: Assigned) -> str:
    """One round as this worker saw it, for its log."""
    result = RoundResult.of(event.token)
    given = ", ".join(map(str, event.jobs)) or "nothing"
    back = ", ".join(map(str, event.revoked)) or "nothing"
    waits = f"; another round in {result.delay_ms} ms" if result.delay_ms else ""
    wrong = f"; {result.error.name}" if result.error else ""
    return (
        f"Generation {event.epoch} ({result.protocol.setting}), led by {event.leader_url}: "
        f"new {given}; to give back {back}{waits}{wrong}"
    )


def _rejoin(turn: Turn, reason: str) -> None:
    if turn.herder.leaving is None:
        turn.herder.rejoin_asked = True
        turn.order(Rejoin(reason=reason))


def _set_delay(turn: Turn, delay_ms: int) -> None:
    herder = turn.herder
    if delay_ms > 0:
        herder.deferred_until_ms = turn.now_ms + delay_ms
        turn.order(SetTimer(timer="delay over", at_ms=herder.deferred_until_ms))
    elif herder.deferred_until_ms is not None:
        herder.deferred_until_ms = None
        turn.order(CancelTimer(timer="delay over"))
