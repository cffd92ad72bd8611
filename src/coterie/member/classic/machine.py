"""A worker's membership in a classic group: JoinGroup, SyncGroup, heartbeats, and the handling of missing responses.

Theory of operation; docs/states.md lists the states and their transitions. A *round* is one JoinGroup and one SyncGroup
of this member. The response to JoinGroup arrives when all members have joined, the response to SyncGroup when the
leader has sent the assignments; between the two the leader's herder computes them. Jobs keep running through a round
(KIP-415): only an assignment revokes them. But when the group's selected protocol is eager, its leader does not learn
which jobs a member runs. Then all jobs stop before the member joins. A rejoin that a heartbeat's response or the herder
requests begins the next round. If it is requested during a round, it follows that round. It is dropped if the
outstanding join already reports the current worker state.

Three causes end the membership:

- the coordinator has removed the member (UNKNOWN_MEMBER_ID): the member clears its id;
- the *lease* ends: two thirds of the session timeout have passed since the sending of the last request that got a
  response. The coordinator may still count this member, so the id is kept. The sending counts, not the arrival of the
  response: a response may have been in the socket while this process was paused;
- the worker leaves the group, for instance because its herder is stuck.

In all these cases except an ordered `Leave` the membership is *lost*: the herder stops all jobs, and the member joins
again when no job is owned any more. After any other failure (coordinator unreachable, moved or loading;
ILLEGAL_GENERATION; REBALANCE_IN_PROGRESS) the member retries with the same id while jobs keep running. So a broker that
is reachable again within the lease stops no job. But errors that a wrong setting causes (see `member.classic.refusals`)
are permanent: the member reports such an error once and sends no further join.

Heartbeats continue while a join or a sync is parked at the coordinator, which may take longer than the session timeout.
Kafka's clients pause heartbeats then, because the coordinator keeps a member whose join is parked; but a worker that
loses its connection at that time would not notice. The response to a heartbeat in a join phase is
REBALANCE_IN_PROGRESS; it renews the lease like any other.
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
    """Process one event; a member writes no records."""
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
    """Send a heartbeat at once if the previous process passed its membership on: its next heartbeat may be due."""
    if isinstance(turn.member.place, InGroup):
        turn.order(SetTimer(timer="heartbeat", at_ms=turn.now_ms))


# -- responses, failures, timers: each may be out of date -------------------------------------------------------------


def on_answer(turn: Turn, event: Answered[Response]) -> None:
    match take(turn, event.id), event.response:
        case None, _:
            pass  # The member no longer waits for this response.
        case InFlight() as heartbeat, HeartbeatResponse() as response:
            on_heartbeat(turn, heartbeat, response)
        case AsksWhetherKnown(), HeartbeatResponse() as response:
            on_known(turn, response)
        case Joins() as joins, JoinResponse() as response:
            on_joined(turn, joins, response)
        case Syncs() as syncs, SyncResponse() as response:
            on_synced(turn, syncs, response)
        case asked, response:
            raise AssertionError(f"{asked} got the response {type(response).__name__}")


def on_failure(turn: Turn, event: Unanswered) -> None:
    match take(turn, event.id):
        case None:
            pass
        case InFlight():
            turn.say_trouble(f"A heartbeat failed: {event.reason}")
            # Sooner than the heartbeat interval: the coordinator may be reachable long before the lease ends.
            backoff_ms = min(turn.member.settings.retry_backoff_max_ms, turn.member.settings.heartbeat_interval_ms)
            turn.order(SetTimer(timer="heartbeat", at_ms=turn.now_ms + backoff_ms))
        case asking:
            turn.say_trouble(f"The request to the group's coordinator failed: {event.reason}")
            on_unanswered(turn, asking)


def take(turn: Turn, id_: RequestId) -> AwaitsAnswer | InFlight[HeartbeatRequest] | None:
    """Remove and return the round's state or the heartbeat that waits for the response to this request; None when the
    member no longer waits for it. A removed state of the round is replaced by ``WaitsToJoin``, which the caller may
    change."""
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
                turn.order(Say(text="The group's coordinator did not respond in time; joining again"))
                on_unanswered(turn, asking)
        case "retry", (WaitsToJoin(until_ms=int(until_ms)) | ReleasesAll(until_ms=int(until_ms))) as waiting:
            if now_ms >= until_ms:
                member.round = replace(waiting, until_ms=None)
        case _:
            pass  # ``held``: `join_if_due` runs after every event. Other timers are out of date.
