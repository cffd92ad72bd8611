"""A rebalance: the join phase, which ends with a new generation, and the sync phase after it."""

from collections.abc import Mapping

from coterie.groups.classic.messages import (
    GenerationWritten,
    JoinedMember,
    JoinGroup,
    JoinGroupResponse,
    JoinPhaseTimer,
    NewMemberTimer,
    ReplyTo,
    SessionTimer,
    SyncGroupResponse,
    SyncTimer,
    WrittenMember,
)
from coterie.groups.classic.protocols import vote
from coterie.groups.classic.state import Group, JoinPhase, Member, Phase
from coterie.groups.classic.turn import Turn
from coterie.nouns.ids import Generation, MemberId
from coterie.wire.errors import ErrorCode

# -- the join phase -----------------------------------------------------------------------------------------------


def add_member(turn: Turn, request: JoinGroup, member_id: MemberId) -> None:
    group = turn.group
    assert member_id not in group.members, "a new member id is unused"
    is_first = group.phase is Phase.EMPTY
    if not group.members:
        group.protocol_type = request.protocol_type
    group.add(member_id, new_member(request, member_id))
    if group.join_phase is not None and group.join_phase.initial:
        group.join_phase.member_added = True
    park_join(turn, member_id, request.reply_to)
    turn.set_timer(NewMemberTimer(member_id=member_id), group.limits.new_member_join_timeout_ms)
    if is_first:
        open_initial_join_phase(turn)
    else:
        rebalance(turn)


def new_member(request: JoinGroup, member_id: MemberId) -> Member:
    return Member(
        client_id=request.client_id,
        client_host=request.client_host,
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        protocols=request.protocols,
        session_timer=SessionTimer(member_id=member_id),
        instance_id=request.instance_id,
    )


def park_join(turn: Turn, member_id: MemberId, reply_to: ReplyTo) -> None:
    replaced = turn.group.joins.get(member_id)
    if replaced is not None:
        turn.reply(replaced, JoinGroupResponse(error=ErrorCode.rebalance_in_progress, member_id=member_id))
    turn.group.joins[member_id] = reply_to


def open_initial_join_phase(turn: Turn) -> None:
    group = turn.group
    delay_ms = group.limits.initial_rebalance_delay_ms
    group.join_phase = JoinPhase(
        initial=True, delay_ms=delay_ms, remaining_ms=max(group.rebalance_timeout_ms - delay_ms, 0)
    )
    turn.set_timer(JoinPhaseTimer(), delay_ms)


def rebalance(turn: Turn) -> None:
    """Open a join phase unless one is open; end it when all members have joined."""
    group = turn.group
    if group.join_phase is None:
        answer_syncs(turn, ErrorCode.rebalance_in_progress)
        group.unsynced.clear()
        turn.cancel_timer(SyncTimer())
        group.join_phase = JoinPhase()
        if not group.has_everybody_joined:
            turn.set_timer(JoinPhaseTimer(), group.rebalance_timeout_ms)
    if group.has_everybody_joined and not group.join_phase.initial:
        complete_join_phase(turn)


def rebalance_after_removal(turn: Turn) -> None:
    """Start or continue a rebalance because members were removed. The removal of an unused member id matters only
    during a join phase, which waits for such ids."""
    group = turn.group
    left_a_generation = group.written is not None and len(group.members) < len(group.written.members)
    if group.join_phase is not None or left_a_generation:
        rebalance(turn)


def complete_join_phase(turn: Turn) -> None:
    group = turn.group
    for member_id in sorted(group.members.keys() - group.joins.keys()):
        if not group.members[member_id].stays_when_absent:
            remove_member(turn, member_id)
    if group.members and not group.joins:
        # All remaining members are static and absent: they keep their assignments until their sessions end.
        turn.set_timer(JoinPhaseTimer(), max(group.rebalance_timeout_ms, group.limits.session_timeout_min_ms))
        return
    turn.cancel_timer(JoinPhaseTimer())
    group.join_phase = None
    group.is_as_loaded = False
    generation = Generation(group.generation + 1)
    if not group.members:
        group.protocol = None
        write_generation(turn, generation, protocol=None, assignments={})
        return
    if group.leader not in group.joins:
        group.leader = next(iter(group.joins))
    group.protocol = vote_of_members(group)
    write_generation(turn, generation, protocol=None, assignments={})
    # Absent static members receive this generation when they rejoin, and the sync phase does not wait for them.
    group.unsynced = set(group.joins)
    for member_id, reply_to in group.joins.items():
        member = group.members[member_id]
        turn.reply(reply_to, joined(group, member_id))
        turn.cancel_timer(NewMemberTimer(member_id=member_id))
        turn.arm_session(member)
        member.is_new = False
    group.joins.clear()
    turn.set_timer(SyncTimer(), group.rebalance_timeout_ms)


def vote_of_members(group: Group) -> str:
    """The result of the members' vote, absent static members included. The member that rejoined first breaks a tie."""
    absent = group.members.keys() - group.joins.keys()
    order = [*group.joins, *(member_id for member_id in group.members if member_id in absent)]
    return vote([group.members[member_id].protocols for member_id in order if group.members[member_id].protocols])


def remove_member(turn: Turn, member_id: MemberId) -> None:
    """Remove a member; its parked requests get UNKNOWN_MEMBER_ID."""
    group = turn.group
    group.remove(member_id)
    join = group.joins.pop(member_id, None)
    if join is not None:
        turn.reply(join, JoinGroupResponse(error=ErrorCode.unknown_member_id))
    sync = group.syncs.pop(member_id, None)
    if sync is not None:
        turn.reply(sync, SyncGroupResponse(error=ErrorCode.unknown_member_id))
    group.unsynced.discard(member_id)
    turn.cancel_timer(SessionTimer(member_id=member_id))
    turn.cancel_timer(NewMemberTimer(member_id=member_id))
    if group.leader == member_id:
        group.leader = None


def on_join_phase_over(turn: Turn) -> None:
    phase = turn.group.join_phase
    assert phase is not None, "the timer of a join phase runs only during the join phase"
    if phase.initial and phase.member_added and phase.remaining_ms > 0:
        # Members are still joining: wait for more of them, but never longer than the rebalance timeout (KIP-134).
        extended_ms = min(turn.group.limits.initial_rebalance_delay_ms, phase.remaining_ms)
        phase.remaining_ms = max(phase.remaining_ms - phase.delay_ms, 0)
        phase.delay_ms = extended_ms
        phase.member_added = False
        turn.set_timer(JoinPhaseTimer(), extended_ms)
    else:
        complete_join_phase(turn)


# -- the sync phase -----------------------------------------------------------------------------------------------


def answer_syncs(turn: Turn, error: ErrorCode) -> None:
    group = turn.group
    for member_id, reply_to in group.syncs.items():
        turn.reply(reply_to, synced(group, member_id) if error is ErrorCode.none else SyncGroupResponse(error=error))
        turn.arm_session(group.members[member_id])
    group.syncs.clear()


def write_generation(
    turn: Turn, generation: Generation, *, protocol: str | None, assignments: Mapping[MemberId, bytes]
) -> None:
    group = turn.group
    assert group.protocol_type is not None, "the first member sets the protocol type"
    turn.write(
        GenerationWritten(
            protocol_type=group.protocol_type,
            generation=generation,
            protocol=protocol,
            leader=group.leader,
            written_at_ms=turn.now_ms,
            members={
                member_id: written_member(member, protocol, assignments.get(member_id, b""))
                for member_id, member in group.members.items()
            },
        )
    )


def written_member(member: Member, protocol: str | None, assignment: bytes) -> WrittenMember:
    return WrittenMember(
        client_id=member.client_id,
        client_host=member.client_host,
        session_timeout_ms=member.session_timeout_ms,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        subscription=member.metadata(protocol) if protocol is not None else b"",
        assignment=assignment,
        instance_id=member.instance_id,
    )


# -- responses ----------------------------------------------------------------------------------------------------


def joined(
    group: Group, member_id: MemberId, *, leader: MemberId | None = None, skip_assignment: bool = False
) -> JoinGroupResponse:
    """The response with the current generation for ``member_id``. With a ``leader`` other than the group's leader,
    ``member_id`` becomes a follower."""
    leader = leader or group.leader
    assert group.protocol is not None
    assert leader is not None
    members: tuple[JoinedMember, ...] = ()
    if member_id == leader:
        members = tuple(
            JoinedMember(member_id=other_id, metadata=other.metadata(group.protocol), instance_id=other.instance_id)
            for other_id, other in group.members.items()
        )
    return JoinGroupResponse(
        error=ErrorCode.none,
        generation=group.generation,
        protocol_type=group.protocol_type,
        protocol=group.protocol,
        leader=leader,
        member_id=member_id,
        members=members,
        skip_assignment=skip_assignment,
    )


def synced(group: Group, member_id: MemberId) -> SyncGroupResponse:
    assert group.written is not None
    return SyncGroupResponse(
        error=ErrorCode.none,
        protocol_type=group.protocol_type,
        protocol=group.protocol,
        assignment=group.written.members[member_id].assignment,
    )
