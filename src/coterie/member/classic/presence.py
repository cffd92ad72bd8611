"""How a member keeps its membership, and how it ends: heartbeats, the lease, loss, leaving, the back-off."""

from dataclasses import replace

from coterie.member.classic.messages import Event, HeartbeatRequest, HeartbeatResponse, LeaveRequest, Request, Timer
from coterie.member.classic.refusals import refusal
from coterie.member.classic.state import (
    NO_MEMBER,
    Computes,
    FormerLife,
    HasLeft,
    InFlight,
    InGroup,
    Leaving,
    Member,
    NotSubscribed,
    Refused,
    ReleasesAll,
    Settled,
    WaitsToJoin,
    WasIn,
)
from coterie.member.classic.turn import Turn
from coterie.member.events import Answered, CancelTimer, Left, Say, SetTimer, TimerFired, Unanswered
from coterie.nouns.membership import Lost, MembershipRefused, ProvedUntil
from coterie.wire.errors import ErrorCode

LEAVE_PATIENCE_MS = 1_000
"""How long the response to LeaveGroup is awaited: without it, the end of the session has the same effect."""

_ALL_TIMERS: tuple[Timer, ...] = ("heartbeat", "lease", "answer", "retry", "held", "leave")


# -- heartbeats and the lease -----------------------------------------------------------------------------------------


def expect_a_round(turn: Turn) -> None:
    """Send heartbeats at the shorter interval from now on, for ``quiet_ms``.

    A member learns of a rebalance from the response to its next heartbeat, and a job that another member has released
    stays down until all members have joined the next rebalance. A member does not receive the revocations of other
    members, so every member shortens its heartbeat interval after every rebalance.
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
    patience_ms = member.settings.lease.heartbeat_patience_ms
    if place.heartbeat is not None and turn.now_ms - place.heartbeat.sent_at_ms < patience_ms:
        return  # The response may still arrive; after this time one more heartbeat fits in before the lease ends.
    heartbeat = HeartbeatRequest(
        group_id=member.settings.group_id,
        member_id=place.member_id,
        instance_id=member.settings.instance_id,
        generation=place.generation,
    )
    member.place = replace(place, heartbeat=turn.send(heartbeat))


def on_heartbeat(turn: Turn, asked: InFlight[HeartbeatRequest], response: HeartbeatResponse) -> None:
    member = turn.member
    assert isinstance(member.place, InGroup)
    match response.error:
        case ErrorCode.none:
            renew_lease(turn, asked)
        case ErrorCode.rebalance_in_progress | ErrorCode.illegal_generation as error:
            if error is ErrorCode.rebalance_in_progress:
                renew_lease(turn, asked)  # ILLEGAL_GENERATION is also sent to members only, but renews no session.
            # An outstanding join or sync will get the same error in its response, as will a heartbeat of a newer
            # generation.
            if asked.request.generation == member.place.generation and isinstance(member.round, Settled | Computes):
                if isinstance(member.round, Computes):
                    member.round = WaitsToJoin()
                member.rejoin_reason = member.rejoin_reason or f"the coordinator responded {error.name}"
        case ErrorCode.unknown_member_id:
            on_unknown(turn)
        case error if (reason := refusal(member, error)) is not None:
            expel(turn, reason)
        case error:
            turn.order(Say(text=f"The group's coordinator responded to a heartbeat with {error.name}"))


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
    """End the membership if the lease has ended; return whether it has."""
    place = turn.member.place
    proved_until_ms = place.proved_until_ms if isinstance(place, InGroup) else None
    if proved_until_ms is None or turn.now_ms < proved_until_ms:
        return False
    waited_ms = turn.now_ms - proved_until_ms + turn.member.settings.lease_ms
    lose(turn, f"the coordinator has not responded to any request sent in the last {waited_ms} ms")
    return True


def retry_later(turn: Turn) -> None:
    member = turn.member
    settings = member.settings
    backoff_ms = min(settings.retry_backoff_ms * 2 ** min(member.retries, 16), settings.retry_backoff_max_ms)
    member.retries += 1
    until_ms = turn.now_ms + backoff_ms
    if isinstance(member.round, ReleasesAll):
        member.round = ReleasesAll(until_ms=until_ms)
    else:
        member.round = WaitsToJoin(until_ms=until_ms)
    turn.order(SetTimer(timer="retry", at_ms=until_ms))


# -- endings ----------------------------------------------------------------------------------------------------------


def on_unknown(turn: Turn) -> None:
    member = turn.member
    if isinstance(member.place, InGroup):
        lose(turn, "the coordinator has removed this member (UNKNOWN_MEMBER_ID)")
    else:
        retry_later(turn)
    forget_id(member)
    member.former_life = FormerLife.UNASKED


def forget_id(member: Member) -> None:
    assert not isinstance(member.place, InGroup)
    member.place = replace(member.place, member_id=NO_MEMBER)


def lose(turn: Turn, reason: str) -> None:
    """End the membership: all jobs must stop. A late response to a request that was sent before has no effect."""
    member = turn.member
    if isinstance(member.place, InGroup):
        member.place = WasIn(member_id=member.place.member_id)
    if not isinstance(member.round, NotSubscribed):
        member.round = ReleasesAll()
    member.rejoin_reason = None
    for timer in _ALL_TIMERS:
        turn.order(CancelTimer(timer=timer))
    turn.order(Lost(reason=reason))


def expel(turn: Turn, reason: str) -> None:
    """End the membership, and send no further join, because no retry can succeed."""
    lose(turn, reason)
    if turn.member.ending is None:
        turn.member.ending = Refused(reason=reason)
        turn.order(MembershipRefused(reason=reason))


def on_abandon(turn: Turn, reason: str) -> None:
    """Leave the group, as Kafka's clients do when they are not polled, and join again when all jobs have stopped.

    A static member sends no LeaveGroup here either: it rejoins before its session ends, or its session ends.
    """
    member = turn.member
    is_lost = isinstance(member.round, ReleasesAll) and not isinstance(member.place, InGroup)
    if member.ending is not None or is_lost:
        return
    is_static = member.settings.instance_id is not None
    if member.member_id and not is_static:
        turn.send(LeaveRequest(group_id=member.settings.group_id, member_id=member.member_id, reason=reason))
    lose(turn, reason)
    if not is_static:
        forget_id(member)


def on_leave(turn: Turn, reason: str, *, for_good: bool = False) -> None:
    member = turn.member
    for timer in _ALL_TIMERS:
        turn.order(CancelTimer(timer=timer))
    instance_id = member.settings.instance_id
    if not member.member_id or (instance_id is not None and not for_good):
        # A static member is expected to return: the coordinator keeps its membership and jobs until its session ends.
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
        case Answered(id=id_) | Unanswered(id=id_) if id_ == asked.id:
            leave(turn)
        case TimerFired(timer="leave") if turn.now_ms >= asked.sent_at_ms + LEAVE_PATIENCE_MS:
            leave(turn)
        case _:
            pass


def leave(turn: Turn) -> None:
    turn.member.ending = HasLeft()
    turn.order(CancelTimer(timer="leave"))
    turn.order(Left())
