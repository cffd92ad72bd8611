"""A member's part in a round: the round begins, it ends with an assignment, or the membership is lost during it."""

from coterie.herder import place, statuses
from coterie.herder.messages import CancelTimer, Say, SetTimer
from coterie.herder.rounds import asking, bursts, leading, spoken
from coterie.herder.rounds.state import AfterReading, AfterRelease
from coterie.herder.state import Herder, Turn
from coterie.nouns.ids import Generation
from coterie.nouns.jobs import NO_JOBS, Jobs
from coterie.nouns.membership import Assigned, Lost, MemberState, PlaceHandover
from coterie.wire.connect import AssignmentError, RoundResult


def on_round(turn: Turn, state: MemberState) -> None:
    """A round has begun."""
    place.begin_round(turn, state)
    leading.drop_round(turn)


def on_must_release_all(turn: Turn) -> None:
    """A round has begun, which this worker joins after all its tasks have stopped."""
    leading.drop_round(turn)
    if place.release_all(turn):
        turn.order(Say(text="Rebalance with protocol eager: this worker stops all its tasks before it rejoins"))
        asking.drop_reasons(turn, AfterRelease)


def on_assigned(turn: Turn, event: Assigned) -> None:
    herder, result = turn.herder, RoundResult.of(event.token)
    is_told_again = not herder.place.is_lost and event.epoch == herder.place.epoch
    has_failed = result.error is not AssignmentError.NO_ERROR
    herder.rounds.protocol = result.protocol
    asking.on_end(turn)
    bursts.close_window(turn)
    leading.drop_round(turn)
    if event.leader != event.member_id:
        bursts.forget(turn)
        leading.forget_result(turn)
    turn.order(Say(text=_told(event)))
    place.take(turn, event, has_failed=has_failed)
    asking.drop_reasons(turn, AfterReading)
    if has_failed:
        # All members keep their jobs. A worker whose config log lagged requests another round when it has caught up;
        # the leader's config log lagged in this round, even if it has caught up since then.
        if event.leader == event.member_id or not herder.has_read(event.config_offset):
            asking.add_reason(turn, AfterReading(end=event.config_offset))
        return
    herder.rounds.completed = Generation(event.epoch)
    if event.is_whole:
        # Each member has stopped all its jobs before, or stops them now: no job can be lost by dropping the memory.
        leading.forget_memory(turn)
        asking.drop_reasons(turn, AfterRelease)
        if has_yet_to_deal(herder.rounds.assigned_for, configured=herder.config.jobs()):
            asking.add_reason(turn, AfterRelease())
    if not herder.life.is_leaving and _is_wanted(herder, event.revoked):
        asking.add_reason(turn, AfterRelease())
    if not is_told_again:
        # A follower that rejoins may receive the current generation again, whose delay started earlier.
        _set_delay(turn, result.delay_ms)
    if herder.place.is_leader:
        leading.on_settled(turn)
        statuses.forget_the_deleted(turn)
        statuses.tell_unassigned(turn)


def has_yet_to_deal(dealt_for: Jobs | None, *, configured: Jobs) -> bool:
    """Whether the leader of an eager round assigned no job, because not all members had stopped their tasks: it must
    request the round that assigns the jobs."""
    return dealt_for == NO_JOBS and bool(configured)


def on_opened(turn: Turn) -> None:
    """Continue the scheduled rebalance delay that the previous process received."""
    if turn.herder.rounds.deferred_until_ms is not None:
        turn.order(SetTimer(timer="delay over", at_ms=turn.herder.rounds.deferred_until_ms))


def on_lost(turn: Turn, event: Lost) -> None:
    """Stop all tasks. The member rejoins, with no owned jobs, when all tasks have stopped."""
    turn.order(Say(text=f"The group membership is lost; this worker stops all its tasks: {event.reason}"))
    place.lose(turn)
    asking.on_end(turn)
    asking.drop_reasons(turn, AfterReading, AfterRelease)
    bursts.close_window(turn)
    bursts.forget(turn)
    leading.drop_round(turn)
    leading.forget_result(turn)
    # A group that its coordinator has lost starts its generations at 1 again: an old memory could pass for a new one.
    leading.forget_memory(turn)
    _set_delay(turn, 0)


def on_due(turn: Turn) -> None:
    """The scheduled rebalance delay is over, or the leader may make the next moves: request a round."""
    rounds = turn.herder.rounds
    # Not while a round is running: its end brings a new delay.
    if (
        turn.herder.place.is_settled
        and rounds.deferred_until_ms is not None
        and turn.now_ms >= rounds.deferred_until_ms
    ):
        rounds.deferred_until_ms = None
        asking.ask_for_round(turn, "the scheduled rebalance delay is over")
    if leading.take_due_moves(turn):
        asking.ask_for_round(turn, "moves are left to make")


def handover_of(herder: Herder) -> PlaceHandover | None:
    """The membership that the relaunched process continues; None when this worker is not a member."""
    here, protocol = herder.place, spoken.setting(herder)
    if protocol is None or not here.member_id:
        return None
    return PlaceHandover(
        member_id=here.member_id,
        generation=Generation(here.epoch),
        protocol=protocol,
        leader=here.leader,
        leader_url=here.leader_url,
        config_offset=here.assignment_offset,
        jobs=here.assigned,
        deferred_until_ms=herder.rounds.deferred_until_ms,
        may_have_missed_vote=not here.is_settled,
        must_ask_for_round=here.is_named_leader or asking.has_reason(herder, AfterRelease) or not here.is_settled,
    )


def _is_wanted(herder: Herder, revoked: Jobs) -> bool:
    """Whether another worker waits for the revoked jobs. Deleted jobs are assigned to no worker, so their release needs
    no round, unless they still run here: a join may have reported them, and if they are created again, the leader would
    count them as running here."""
    exists = not herder.caught_up or bool(revoked & herder.config.jobs())
    return bool(revoked) and (exists or bool(revoked & herder.owned))


def _told(event: Assigned) -> str:
    """The result of a round for this worker, as a log message."""
    result = RoundResult.of(event.token)
    given = ", ".join(map(str, event.jobs)) or "nothing"
    back = ", ".join(map(str, event.revoked)) or "nothing"
    waits = f"; the next rebalance is in {result.delay_ms} ms" if result.delay_ms else ""
    wrong = f"; {result.error.name}" if result.error else ""
    return (
        f"Generation {event.epoch} (protocol {result.protocol.setting}), led by {event.leader_url}: "
        f"assigned {given}; revoked {back}{waits}{wrong}"
    )


def _set_delay(turn: Turn, delay_ms: int) -> None:
    rounds = turn.herder.rounds
    if delay_ms > 0:
        rounds.deferred_until_ms = turn.now_ms + delay_ms
        turn.order(SetTimer(timer="delay over", at_ms=rounds.deferred_until_ms))
    elif rounds.deferred_until_ms is not None:
        rounds.deferred_until_ms = None
        turn.order(CancelTimer(timer="delay over"))
