"""The check that a replay of a group's records gives the same group."""

from collections.abc import Iterable

from coterie.groups.classic.machine import step
from coterie.groups.classic.messages import GroupLoaded, Heartbeat, HeartbeatResponse, ReplyTo, SessionTimer
from coterie.groups.classic.state import Group, GroupPhase
from coterie.groups.effects import Reply
from coterie.lab.simulator.durable import EncodedRecord, replay_group
from coterie.lab.simulator.invariants import Invariant, Violation
from coterie.wire.errors import ErrorCode


def check_replay(group: Group, lines: Iterable[EncodedRecord]) -> None:
    """Check that a replay of ``lines``, all records that ``group`` has written, gives the last generation and the
    offsets of ``group``. If ``group`` is STABLE, check also that a group that is loaded from ``lines`` has the same
    leader, static members and members in the same order, a session timer for each member, and accepts the heartbeat of
    each member.

    :raises Violation: REPLAY_IS_LIVE.
    """
    replica = replay_group(group.group_id, group.limits, lines)
    if (replica.generation_record, replica.offsets) != (group.generation_record, group.offsets):
        raise Violation(
            Invariant.REPLAY_IS_LIVE,
            "the last generation or the offsets of the live group are not those after a replay of its records",
        )
    if group.phase is not GroupPhase.STABLE:
        return
    step(replica, GroupLoaded(), now_ms=0)
    for attribute in ("phase", "leader", "static_members", "generation"):
        live, replayed = getattr(group, attribute), getattr(replica, attribute)
        if live != replayed:
            raise Violation(Invariant.REPLAY_IS_LIVE, f"{attribute} is {live} live and {replayed} after a replay")
    if list(replica.members) != list(group.members):
        raise Violation(
            Invariant.REPLAY_IS_LIVE,
            f"members are {list(group.members)} live and {list(replica.members)} after a replay",
        )
    accepting_reply = Reply(to=ReplyTo(0), response=HeartbeatResponse(error=ErrorCode.none))
    for member_id, member in group.members.items():
        heartbeat = Heartbeat(
            reply_to=ReplyTo(0), member_id=member_id, generation=group.generation, instance_id=member.instance_id
        )
        has_session_timer = SessionTimer(member_id=member_id) in replica.deadlines
        if not has_session_timer or accepting_reply not in step(replica, heartbeat, now_ms=0).effects:
            raise Violation(
                Invariant.REPLAY_IS_LIVE,
                f"after a replay {member_id} has no session timer, or its heartbeat is refused",
            )
