"""The ends of the members' connections. A killed process is found by the end of its connection, earlier than by the end
of its session.

Only an orderly end (FIN) of the connection of a member's last request counts, if the member has a grace. The member is
removed if it sends no request on another connection within its grace. It is not removed if at least half of the
members, and at least two, lost their connections within one grace: the cause may then be a proxy that has ended.
Members that have returned meanwhile count, too.
"""

from coterie.groups.connect.membership import remove_member
from coterie.groups.connect.messages import ConnectionClosed, ConnectionGraceTimer, ResponseHoldTimer
from coterie.groups.connect.soft_state import Connected, ConnectionClosure, NotConnected
from coterie.groups.connect.turn import Turn
from coterie.nouns.ids import MemberId


def on_connection_closed(turn: Turn, event: ConnectionClosed) -> None:
    """Process the end of a client's connection. Each member that sent its last heartbeat on this connection must send
    another one within its connection grace (a time of some seconds), or is removed. This does not apply to a member
    without a grace, nor to a member whose last heartbeat announced that its process is about to replace itself
    (``resumes``). A heartbeat that is held on this connection is dropped, because no response can be sent."""
    group = turn.group
    for member_id in event.member_ids:
        session = group.sessions.get(member_id)
        if session is None:
            continue
        match session.connection:
            case Connected(connection_number=number, resumes=resumes) if number == event.connection_number:
                session.held_heartbeat = None
                turn.cancel_timer(ResponseHoldTimer(member_id=member_id))
                session.connection = NotConnected()
                if not resumes:
                    begin_member_connection_grace_if_any(turn, member_id)
            case _:
                pass  # The member has sent a request on another connection since, or has left for a short time.


def begin_member_connection_grace_if_any(turn: Turn, member_id: MemberId) -> None:
    """Called when the member's connection has ended. If the member has a connection grace, the time within which it
    must send a request on another connection, store a `ConnectionClosure`, and set the timer of the grace."""
    group = turn.group
    grace_ms = group.settings.limited_connection_grace_ms(group.members[member_id].connection_grace_ms)
    if not grace_ms:
        return
    turn.set_timer(ConnectionGraceTimer(member_id=member_id), turn.now_ms + grace_ms)
    group.closures[member_id] = ConnectionClosure(
        closed_at_ms=turn.now_ms, grace_ms=grace_ms, group_size=len(group.members)
    )
    # A grace that still runs counts the connections that were closed at most one grace before its begin. After a stall
    # of the broker the begin may be long ago, so the timers tell which graces still run.
    begins_ms = [
        closure.closed_at_ms - closure.grace_ms
        for one, closure in group.closures.items()
        if ConnectionGraceTimer(member_id=one) in group.deadlines
    ]
    oldest_ms = min(begins_ms)
    group.closures = {one: closure for one, closure in group.closures.items() if closure.closed_at_ms >= oldest_ms}


def remove_member_unless_many_disconnected(turn: Turn, member_id: MemberId) -> None:
    """Called when the member has sent no request within its grace after its connection was closed. Remove the member:
    its process has ended. The member stays if at least two members, and at least half of the group, lost their
    connections within one grace: then a proxy may have ended."""
    group = turn.group
    closed = group.closures[member_id]
    together = sum(abs(one.closed_at_ms - closed.closed_at_ms) <= closed.grace_ms for one in group.closures.values())
    if together < 2 or 2 * together < closed.group_size:
        remove_member(
            turn,
            member_id,
            jobs_may_still_run=False,
            defers_jobs=True,
            reason=f"its connection was closed, and it sent no request within {closed.grace_ms} ms",
        )
