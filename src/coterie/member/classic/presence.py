"""How a member proves that it is there, and how it ends: heartbeats, the lease, loss, leaving, asking again."""

from dataclasses import replace

from coterie.member.classic.events import Answered, CancelTimer, Event, Failed, Left, Say, SetTimer, Timer, TimerFired
from coterie.member.classic.messages import HeartbeatRequest, HeartbeatResponse, LeaveRequest, Request
from coterie.member.classic.refusals import refusal
from coterie.member.classic.state import NO_MEMBER, HasLeft, InFlight, InGroup, Leaving, Member, Refused, WasIn
from coterie.member.classic.turn import Turn
from coterie.nouns.membership import Lost, MembershipRefused, ProvedUntil
from coterie.wire.errors import ErrorCode

LEAVE_PATIENCE_MS = 1_000
"""How long the farewell waits for its answer: the group learns of it by the session timeout, too."""

_ALL_TIMERS: tuple[Timer, ...] = ("heartbeat", "lease", "answer", "retry", "held", "leave")


# -- heartbeats and the lease -----------------------------------------------------------------------------------------


def expect_a_round(turn: Turn) -> None:
    """Send heartbeats at the shorter interval from now on, for ``quiet_ms``.

    A member learns of a round from the answer to its next heartbeat, and a job that another member has released stays
    down until all members have joined the next round. No member is told what others must release, so every member
    shortens its interval after every round.
    """
    member = turn.member
    assert isinstance(member.place, InGroup)
    member.place = replace(member.place, next_round_expected_until_ms=turn.now_ms + member.settings.quiet_ms)
    set_heartbeat(turn)


def set_heartbeat(turn: Turn) -> None:
    member, settings = turn.member, turn.member.settings
    interval_ms = settings.heartbeat_interval_ms
    if isinstance(member.place, InGroup) and turn.now_ms < member.place.next_round_expected_until_ms:
        interval_ms = min(interval_ms, settings.rebalance_heartbeat_interval_ms)
    turn.order(SetTimer(timer="heartbeat", at_ms=turn.now_ms + interval_ms))


def send_heartbeat(turn: Turn) -> None:
    member = turn.member
    place = member.place
    if not isinstance(place, InGroup):
        return
    set_heartbeat(turn)
    if place.heartbeat is not None and turn.now_ms - place.heartbeat.sent_at_ms < member.settings.lease_ms // 2:
        return  # It may still be answered; after that there is time for one more before the lease ends.
    heartbeat = HeartbeatRequest(
        group_id=member.settings.group_id,
        member_id=place.member_id,
        instance_id=member.settings.instance_id,
        generation=place.generation,
    )
    member.place = replace(place, heartbeat=turn.send(heartbeat))


def on_heartbeat(turn: Turn, asked: InFlight[Request], response: HeartbeatResponse) -> None:
    member = turn.member
    assert isinstance(asked.request, HeartbeatRequest)
    assert isinstance(member.place, InGroup)
    match response.error:
        case ErrorCode.none:
            renew_lease(turn, asked)
        case ErrorCode.rebalance_in_progress | ErrorCode.illegal_generation as error:
            if error is ErrorCode.rebalance_in_progress:
                renew_lease(turn, asked)  # the other is said to members only, too, but prolongs no session
            # A join or sync that is out will bring the same news. So will the answer to a newer heartbeat.
            if asked.request.generation == member.place.generation and (member.completed or member.computing):
                member.computing = False
                member.rejoin_reason = member.rejoin_reason or f"the coordinator answers {error.name}"
        case ErrorCode.unknown_member_id:
            on_unknown(turn)
        case error if (reason := refusal(member, error)) is not None:
            expel(turn, reason)
        case error:
            turn.order(Say(text=f"The group's coordinator answers a heartbeat with {error.name}"))


def renew_lease(turn: Turn, asked: InFlight[Request]) -> None:
    member = turn.member
    member.troubles.clear()
    place = member.place
    assert isinstance(place, InGroup)
    proved_until_ms = asked.sent_at_ms + member.settings.lease_ms
    if place.proved_until_ms is None or proved_until_ms > place.proved_until_ms:
        member.place = replace(place, proved_until_ms=proved_until_ms)
        turn.order(SetTimer(timer="lease", at_ms=proved_until_ms))
        turn.order(ProvedUntil(until_ms=proved_until_ms, session_timeout_ms=member.settings.session_timeout_ms))


def end_lease_if_over(turn: Turn) -> bool:
    """Lose the place if no answer proves any more that the coordinator counts this member in; return whether so."""
    place = turn.member.place
    proved_until_ms = place.proved_until_ms if isinstance(place, InGroup) else None
    if proved_until_ms is None or turn.now_ms < proved_until_ms:
        return False
    waited_ms = turn.now_ms - proved_until_ms + turn.member.settings.lease_ms
    lose(turn, f"the coordinator has answered nothing that was sent in the last {waited_ms} ms")
    return True


def retry_later(turn: Turn) -> None:
    member = turn.member
    settings = member.settings
    backoff_ms = min(settings.retry_backoff_ms * 2 ** min(member.retries, 16), settings.retry_backoff_max_ms)
    member.retries += 1
    member.retry_at_ms = turn.now_ms + backoff_ms
    turn.order(SetTimer(timer="retry", at_ms=member.retry_at_ms))


# -- endings ----------------------------------------------------------------------------------------------------------


def on_unknown(turn: Turn) -> None:
    member = turn.member
    if isinstance(member.place, InGroup):
        lose(turn, "the coordinator does not know this member any more")
    else:
        retry_later(turn)
    forget_id(member)
    member.known = None


def forget_id(member: Member) -> None:
    assert not isinstance(member.place, InGroup)
    member.place = replace(member.place, member_id=NO_MEMBER)


def lose(turn: Turn, reason: str) -> None:
    """Everything must stop; a late answer to any request that was sent before has no effect."""
    member = turn.member
    if isinstance(member.place, InGroup):
        member.place = WasIn(member_id=member.place.member_id)
    member.completed = member.computing = member.releasing = False
    member.asking = member.rejoin_reason = member.retry_at_ms = None
    member.stopping = True
    for timer in _ALL_TIMERS:
        turn.order(CancelTimer(timer=timer))
    turn.order(Lost(reason=reason))


def expel(turn: Turn, reason: str) -> None:
    """The place is lost, and no asking will bring it back."""
    lose(turn, reason)
    if turn.member.ending is None:
        turn.member.ending = Refused(reason=reason)
        turn.order(MembershipRefused(reason=reason))


def on_abandon(turn: Turn, reason: str) -> None:
    """Leave the group, as Kafka's clients do that are not polled, and come back when all has stopped.

    A static member says no farewell here either: it is back within its session, or its session ends.
    """
    member = turn.member
    if member.ending is not None or member.stopping:
        return
    is_static = member.settings.instance_id is not None
    if member.member_id and not is_static:
        turn.send(LeaveRequest(group_id=member.settings.group_id, member_id=member.member_id, reason=reason))
    lose(turn, reason)
    if not is_static:
        forget_id(member)


def on_leave(turn: Turn, reason: str, *, for_good: bool = False) -> None:
    member = turn.member
    member.computing = False
    member.asking = None
    for timer in _ALL_TIMERS:
        turn.order(CancelTimer(timer=timer))
    instance_id = member.settings.instance_id
    if not member.member_id or (instance_id is not None and not for_good):
        # A static member is expected back: its place, and with it its work, waits as long as its session.
        leave(turn)
        return
    request = LeaveRequest(
        group_id=member.settings.group_id, member_id=member.member_id, instance_id=instance_id, reason=reason
    )
    member.ending = Leaving(asked=turn.send(request))
    turn.order(SetTimer(timer="leave", at_ms=turn.now_ms + LEAVE_PATIENCE_MS))


def on_event_while_leaving(turn: Turn, leaving: Leaving, event: Event) -> None:
    asked = leaving.asked
    match event:
        case Answered(id=id_) | Failed(id=id_) if id_ == asked.id:
            leave(turn)
        case TimerFired(timer="leave") if turn.now_ms >= asked.sent_at_ms + LEAVE_PATIENCE_MS:
            leave(turn)
        case _:
            pass


def leave(turn: Turn) -> None:
    turn.member.ending = HasLeft()
    turn.order(CancelTimer(timer="leave"))
    turn.order(Left())
