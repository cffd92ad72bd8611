"""A worker's membership in a classic group: JoinGroup, SyncGroup, heartbeats, and what follows when no answer arrives.

Theory of operation; the states and their transitions stand in docs/states.md. A round is one join, answered
when all members have joined, and one sync, answered when the leader has sent the assignments; between the two the
leader's herder computes them. Jobs run on through all of it (K415): only an assignment revokes. But where the group's
last vote was for eager, its leader does not learn which jobs a member runs, so there everything stops first, and the
join waits for that. A rejoin that is wanted (by a heartbeat's answer, by the herder) begins the next round. If it is
wanted during a round, it follows that round, or that round fulfils it while its join is out and reports all there is
to report.

Three things can end a place:

- the coordinator does not know the member id any more (UNKNOWN_MEMBER_ID): the id is forgotten;
- the *lease* runs out: two thirds of the session timeout have passed since the sending of the last request that was
  answered. The coordinator may still count this member in, so the id is kept. The sending counts, not the arrival of
  the answer: an answer may have lain in the socket while this process was paused;
- the worker leaves, or gives its place up because its herder is stuck.

All but the leaving are a loss: the herder stops everything, and the member joins again when no job is owned any more.
After any other failure (coordinator gone, moving or loading; ILLEGAL_GENERATION; REBALANCE_IN_PROGRESS) the member asks
again with the same id while jobs run on. So a broker that is back within the lease stops no job. But errors that a
wrong setting causes (see `member.classic.refusals`) last: the member reports such an error once and sends no further
join.

Heartbeats go on while a join or a sync is parked at the coordinator, which may take longer than the session. There
Kafka's clients pause them, as the coordinator keeps a member whose join is parked; but then a worker that was cut off
in that moment would not learn of it. The answer to a heartbeat in a join phase is REBALANCE_IN_PROGRESS, and proves the
place like any other.
"""

from dataclasses import replace

from coterie.engine.output import Output
from coterie.member.classic.messages import (
    Effect,
    Event,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinResponse,
    Response,
    SyncResponse,
    Timer,
)
from coterie.member.classic.presence import (
    end_lease_if_over,
    on_abandon,
    on_event_while_leaving,
    on_heartbeat,
    on_leave,
    send_heartbeat,
)
from coterie.member.classic.rounds import (
    is_reported,
    join_if_due,
    on_install,
    on_joined,
    on_known,
    on_subscribe,
    on_synced,
    on_unanswered,
)
from coterie.member.classic.state import (
    AsksWhetherKnown,
    AwaitsAnswer,
    HasLeft,
    InFlight,
    InGroup,
    Joins,
    Leaving,
    Member,
    Refused,
    ReleasesAll,
    Syncs,
    WaitsToJoin,
    check,
)
from coterie.member.classic.turn import Turn
from coterie.member.events import (
    Answered,
    Began,
    CancelTimer,
    RequestId,
    Say,
    SetTimer,
    TimerFired,
    Unanswered,
)
from coterie.nouns.membership import Abandon, Install, Leave, Rejoin, Subscribe


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
        case Began():
            on_began(turn)
        case Subscribe():
            on_subscribe(member, event)
        case Rejoin(reason=reason):
            if not is_reported(member):
                member.rejoin_reason = member.rejoin_reason or reason
        case Install():
            on_install(turn, event)
        case Unanswered():
            on_failure(turn, event)
        case Abandon(reason=reason):
            on_abandon(turn, reason)
        case Leave(reason=reason, for_good=for_good):
            on_leave(turn, reason, for_good=for_good)


def on_began(turn: Turn) -> None:
    """In a place that was handed on, the next heartbeat of the former process may be due."""
    if isinstance(turn.member.place, InGroup):
        turn.order(SetTimer(timer="heartbeat", at_ms=turn.now_ms))


# -- answers, failures, timers: claims to check -----------------------------------------------------------------------


def on_answer(turn: Turn, event: Answered[Response]) -> None:
    match take(turn, event.id), event.response:
        case None, _:
            pass  # The request was given up.
        case InFlight() as heartbeat, HeartbeatResponse() as response:
            on_heartbeat(turn, heartbeat, response)
        case AsksWhetherKnown(), HeartbeatResponse() as response:
            on_known(turn, response)
        case Joins() as joins, JoinResponse() as response:
            on_joined(turn, joins, response)
        case Syncs() as syncs, SyncResponse() as response:
            on_synced(turn, syncs, response)
        case asked, response:
            raise AssertionError(f"{asked} was answered by {type(response).__name__}")


def on_failure(turn: Turn, event: Unanswered) -> None:
    match take(turn, event.id):
        case None:
            pass
        case InFlight():
            turn.say_trouble(f"A heartbeat failed: {event.reason}")
            # Sooner than the interval: the coordinator may be back long before the lease is over.
            backoff_ms = min(turn.member.settings.retry_backoff_max_ms, turn.member.settings.heartbeat_interval_ms)
            turn.order(SetTimer(timer="heartbeat", at_ms=turn.now_ms + backoff_ms))
        case asking:
            turn.say_trouble(f"The group's coordinator cannot be asked: {event.reason}")
            on_unanswered(turn, asking)


def take(turn: Turn, id_: RequestId) -> AwaitsAnswer | InFlight[HeartbeatRequest] | None:
    """The round or the heartbeat that waits for the answer to this request, which it does no longer; None for a
    request that was given up. The round is ``WaitsToJoin`` until the caller knows better."""
    member = turn.member
    match member.round, member.place:
        case (AsksWhetherKnown() | Joins() | Syncs()) as asking, _ if asking.asked.id == id_:
            member.round = WaitsToJoin()
            turn.order(CancelTimer(timer="answer"))
            return asking
        case _, InGroup(heartbeat=InFlight() as heartbeat) as place if heartbeat.id == id_:
            member.place = replace(place, heartbeat=None)
            return heartbeat
        case _:
            return None


def on_timer(turn: Turn, timer: Timer) -> None:
    member, now_ms = turn.member, turn.now_ms
    match timer, member.round:
        case "heartbeat", _:
            send_heartbeat(turn)
        case "lease", _:
            end_lease_if_over(turn)
        case "answer", (AsksWhetherKnown() | Joins() | Syncs()) as asking:
            if now_ms >= asking.asked.sent_at_ms + member.settings.answer_timeout_ms:
                turn.order(Say(text="The group's coordinator has not answered in time; joining again"))
                on_unanswered(turn, asking)
        case "retry", (WaitsToJoin(until_ms=int(until_ms)) | ReleasesAll(until_ms=int(until_ms))) as waiting:
            if now_ms >= until_ms:
                member.round = replace(waiting, until_ms=None)
        case _:
            pass  # ``held``: whether the member may join now is decided after every event. Others came too late.
