"""A worker's place in a classic group: JoinGroup, SyncGroup, heartbeats, and what happens when nobody answers.

Theory of operation. A round is one join, answered when everybody has joined, and one sync, answered when the leader has
sent the assignments; between the two the leader's herder computes them. The work goes on through all of it (K415):
only an assignment revokes. But where the group's last vote was for eager its leader is not told what anybody runs, so
there everything stops first, and the join waits for that. Whoever is told to rejoin (by a heartbeat, by its herder)
begins the next round; a wish that comes during a round is granted after it, or by it, as long as its join is out and
says all that there is to say.

Three things can end a place:

- the coordinator knows the id no longer (UNKNOWN_MEMBER_ID): the id is forgotten;
- the *lease* runs out: two thirds of the session timeout have passed since the sending of the last request that was
  answered. The coordinator may still count this worker in, so the id is kept. What is counted is the sending: an
  answer may have lain in the socket while this process was paused;
- the worker leaves, or gives its place up because its herder is stuck.

All but the leaving are a loss: the herder stops everything, and the member joins again when it says that nothing is
owned. All else (coordinator gone, moving or loading; ILLEGAL_GENERATION; REBALANCE_IN_PROGRESS) is asked again, with
the same id, while the work goes on. So a broker that is back within the lease stops nothing. But what a wrong setting
brought about (see `member.refusals`) no asking cures: the member says so, once, and asks for nothing more until it is
to leave.

Heartbeats go on while a join or a sync is parked at the coordinator, which may be for longer than the session. There
Kafka's clients pause them, since the coordinator spares whoever waits for it; but then a worker that was cut off
in that moment would not learn of it. The answer to a heartbeat in a join phase is REBALANCE_IN_PROGRESS, and proves the
place as well as any.
"""

from dataclasses import replace

from coterie.engine.output import Output
from coterie.member.classic.events import (
    AbandonWanted,
    Answered,
    CancelTimer,
    Effect,
    Event,
    Failed,
    Installed,
    LeaveWanted,
    RejoinWanted,
    Say,
    SetTimer,
    Subscribed,
    Timer,
    TimerFired,
)
from coterie.member.classic.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinRequest,
    JoinResponse,
    Request,
    SyncRequest,
    SyncResponse,
)
from coterie.member.classic.presence import (
    end_lease_if_over,
    on_abandon,
    on_event_while_leaving,
    on_heartbeat,
    on_leave,
    retry_later,
    send_heartbeat,
)
from coterie.member.classic.rounds import (
    is_being_said,
    join_if_due,
    on_installed,
    on_joined,
    on_known,
    on_subscribed,
    on_synced,
    on_unanswered,
)
from coterie.member.classic.state import HasLeft, InFlight, InGroup, Leaving, Member, Refused, check
from coterie.member.classic.turn import Turn


def step(member: Member, event: Event, *, now_ms: int) -> Output[None, Effect]:
    """Take one event; a member writes no records."""
    turn = Turn(member, now_ms)
    match member.ending:
        case HasLeft():
            pass
        case Leaving() as leaving:
            on_event_while_leaving(turn, leaving, event)
        case None | Refused():
            on_event(turn, event)
            join_if_due(turn)
    check(member)
    return Output(effects=tuple(turn.effects))


def on_event(turn: Turn, event: Event) -> None:
    member = turn.member
    match event:
        case Answered():
            on_answer(turn, event)
        case TimerFired(timer=timer):
            on_timer(turn, timer)
        case Subscribed():
            on_subscribed(member, event)
        case RejoinWanted(reason=reason):
            if not is_being_said(member):
                member.rejoin_reason = member.rejoin_reason or reason
        case Installed():
            on_installed(turn, event)
        case Failed():
            on_failure(turn, event)
        case AbandonWanted(reason=reason):
            on_abandon(turn, reason)
        case LeaveWanted(reason=reason, for_good=for_good):
            on_leave(turn, reason, for_good=for_good)


# -- answers, failures, timers: claims to check -----------------------------------------------------------------------


def on_answer(turn: Turn, event: Answered) -> None:
    asked = take(turn, event.id)
    if asked is None:
        return  # it was given up, or is of a former life
    match asked.request, event.response:
        case HeartbeatRequest(generation=-1), HeartbeatResponse() as response:
            on_known(turn, response)
        case HeartbeatRequest(), HeartbeatResponse() as response:
            on_heartbeat(turn, asked, response)
        case JoinRequest(), JoinResponse() as response:
            on_joined(turn, asked, response)
        case SyncRequest(), SyncResponse() as response:
            on_synced(turn, asked, response)
        case request, response:
            raise AssertionError(f"{type(request).__name__} was answered by {type(response).__name__}")


def on_failure(turn: Turn, event: Failed) -> None:
    asked = take(turn, event.id)
    if asked is None:
        return
    match asked.request:
        case HeartbeatRequest(generation=generation) if generation >= 0:
            turn.say_trouble(f"A heartbeat failed: {event.reason}")
            # Sooner than the interval: the coordinator may be back long before the lease is over.
            backoff_ms = min(turn.member.settings.retry_backoff_max_ms, turn.member.settings.heartbeat_interval_ms)
            turn.order(SetTimer(timer="heartbeat", at_ms=turn.now_ms + backoff_ms))
        case request:
            on_unanswered(turn.member, request)
            turn.say_trouble(f"The group's coordinator cannot be asked: {event.reason}")
            retry_later(turn)


def take(turn: Turn, id_: int) -> InFlight[Request] | None:
    """The request of that id, if it is still waited for; from now on it is not."""
    member = turn.member
    asking, place = member.asking, member.place
    if asking is not None and asking.id == id_:
        member.asking = None
        turn.order(CancelTimer(timer="answer"))
        return asking
    if isinstance(place, InGroup) and place.heartbeat is not None and place.heartbeat.id == id_:
        member.place = replace(place, heartbeat=None)
        return place.heartbeat
    return None


def on_timer(turn: Turn, timer: Timer) -> None:
    member, now_ms = turn.member, turn.now_ms
    match timer:
        case "heartbeat":
            send_heartbeat(turn)
        case "lease":
            end_lease_if_over(turn)
        case "answer":
            asked = member.asking
            if asked is not None and now_ms >= asked.sent_at_ms + member.settings.answer_timeout_ms:
                turn.order(Say(text="The group's coordinator has not answered in time; joining again"))
                member.asking = None
                on_unanswered(member, asked.request)
                retry_later(turn)
        case "retry":
            if member.retry_at_ms is not None and now_ms >= member.retry_at_ms:
                member.retry_at_ms = None
        case "held" | "leave":
            pass  # Whether it may join now is looked at below, as after any event.
