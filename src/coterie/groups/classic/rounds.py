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
    StoredMember,
    SyncGroupResponse,
    SyncTimer,
)
from coterie.groups.classic.protocols import select_protocol_by_vote
from coterie.groups.classic.state import Group, GroupPhase, JoinPhase, Member
from coterie.groups.classic.turn import Turn
from coterie.nouns.ids import GenerationId, MemberId
from coterie.wire.errors import ErrorCode

# -- the join phase -----------------------------------------------------------------------------------------------


def add_member(turn: Turn, request: JoinGroup, member_id: MemberId) -> None:
    """Add the client of ``request`` as a new member ``member_id``, park its JoinGroup until the join phase ends, and
    set its `NewMemberTimer`. The first member of an empty group opens the initial join phase; every other one starts or
    continues a rebalance."""
    group = turn.group
    assert member_id not in group.members, "a new member id is unused"
    is_first = group.phase is GroupPhase.EMPTY
    if not group.members:
        group.protocol_type = request.protocol_type
    group.add_member(member_id, member_from_join(request, member_id))
    if group.join_phase is not None and group.join_phase.is_initial:
        group.join_phase.has_new_member_in_delay_part = True
    park_join(turn, member_id, request.reply_to)
    turn.set_timer(NewMemberTimer(member_id=member_id), group.limits.first_join_response_timeout_ms)
    if is_first:
        open_initial_join_phase(turn)
    else:
        start_or_continue_rebalance(turn)


def member_from_join(request: JoinGroup, member_id: MemberId) -> Member:
    """A new `Member` with the values of ``request``. The caller adds it to the group under ``member_id``."""
    return Member(
        client_id=request.client_id,
        client_host=request.client_host,
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        protocols=request.protocols,
        session_timer_key=SessionTimer(member_id=member_id),
        instance_id=request.instance_id,
    )


def park_join(turn: Turn, member_id: MemberId, reply_to: ReplyTo) -> None:
    """Keep the JoinGroup ``reply_to`` of ``member_id`` until the join phase ends. If one is parked already, the earlier
    one gets REBALANCE_IN_PROGRESS."""
    earlier_reply_to = turn.group.parked_joins.get(member_id)
    if earlier_reply_to is not None:
        turn.reply(earlier_reply_to, JoinGroupResponse(error=ErrorCode.rebalance_in_progress, member_id=member_id))
    turn.group.parked_joins[member_id] = reply_to


def open_initial_join_phase(turn: Turn) -> None:
    """Open the join phase of an empty group: it stays open for at least the initial delay, also when all members have
    joined. If a member joins during the delay, the phase stays open longer, but in all not longer than the greater of
    the rebalance timeout and the initial delay (KIP-134)."""
    group = turn.group
    delay_ms = group.limits.initial_rebalance_delay_ms
    group.join_phase = JoinPhase(
        is_initial=True,
        current_initial_delay_part_ms=delay_ms,
        initial_delay_extensions_left_ms=max(group.rebalance_timeout_ms - delay_ms, 0),
    )
    turn.set_timer(JoinPhaseTimer(), delay_ms)


def start_or_continue_rebalance(turn: Turn) -> None:
    """Open a join phase unless one is open; the SyncGroups that wait for assignments get REBALANCE_IN_PROGRESS then. If
    all members have joined and every issued member id was used, end the join phase at once; the initial one is ended by
    its timer only."""
    group = turn.group
    if group.join_phase is None:
        reply_to_parked_syncs(turn, ErrorCode.rebalance_in_progress)
        group.pending_sync_members.clear()
        turn.cancel_timer(SyncTimer())
        group.join_phase = JoinPhase()
        if not group.has_all_members_and_pending_joined:
            turn.set_timer(JoinPhaseTimer(), group.rebalance_timeout_ms)
    if group.has_all_members_and_pending_joined and not group.join_phase.is_initial:
        complete_or_extend_join_phase(turn)


def rebalance_after_removal_if_needed(turn: Turn) -> None:
    """Start or continue a rebalance after members or issued member ids were removed. Without an open join phase a
    rebalance starts only if the group has fewer members than its last generation: an issued member id is awaited only
    by a join phase."""
    group = turn.group
    has_fewer_members_than_generation = group.generation_record is not None and len(group.members) < len(
        group.generation_record.members
    )
    if group.join_phase is not None or has_fewer_members_than_generation:
        start_or_continue_rebalance(turn)


def complete_or_extend_join_phase(turn: Turn) -> None:
    """Remove the members that have not rejoined, except static members (`Member.stays_when_join_phase_missed`); then
    write the next generation, reply to all parked JoinGroups and begin the sync phase. If no member is left, write a
    generation without members. If all remaining members are static and absent, the join phase continues instead."""
    group = turn.group
    for member_id in sorted(group.members.keys() - group.parked_joins.keys()):
        if not group.members[member_id].stays_when_join_phase_missed:
            remove_member(turn, member_id)
    if group.members and not group.parked_joins:
        # All remaining members are static and absent: they keep their assignments until their sessions end.
        turn.set_timer(JoinPhaseTimer(), max(group.rebalance_timeout_ms, group.limits.session_timeout_min_ms))
        return
    turn.cancel_timer(JoinPhaseTimer())
    group.join_phase = None
    group.is_unrebalanced_since_load = False
    generation = GenerationId(group.generation + 1)
    if not group.members:
        group.protocol = None
        write_generation(turn, generation, protocol=None, assignments={})
        return
    if group.leader not in group.parked_joins:
        group.leader = next(iter(group.parked_joins))
    group.protocol = select_protocol(group)
    write_generation(turn, generation, protocol=None, assignments={})
    # Absent static members receive this generation when they rejoin, and the sync phase does not wait for them.
    group.pending_sync_members = set(group.parked_joins)
    for member_id, reply_to in group.parked_joins.items():
        member = group.members[member_id]
        turn.reply(reply_to, join_response(group, member_id))
        turn.cancel_timer(NewMemberTimer(member_id=member_id))
        turn.renew_session(member)
        member.awaits_first_join_response = False
    group.parked_joins.clear()
    turn.set_timer(SyncTimer(), group.rebalance_timeout_ms)


def select_protocol(group: Group) -> str:
    """The protocol that the members' vote selects; absent static members vote, too. When two protocols have equally
    many votes, the preference of the first voter decides: the member that rejoined first, of those with protocols."""
    absent_members = group.members.keys() - group.parked_joins.keys()
    voting_order = [*group.parked_joins, *(member_id for member_id in group.members if member_id in absent_members)]
    return select_protocol_by_vote(
        [group.members[member_id].protocols for member_id in voting_order if group.members[member_id].protocols]
    )


def remove_member(turn: Turn, member_id: MemberId) -> None:
    """Remove a member, its timers and its requests that wait for a response, which get UNKNOWN_MEMBER_ID. If the member
    was the leader, the group has no leader until the next join phase ends. The caller starts the rebalance."""
    group = turn.group
    group.remove_from_members(member_id)
    parked_join = group.parked_joins.pop(member_id, None)
    if parked_join is not None:
        turn.reply(parked_join, JoinGroupResponse(error=ErrorCode.unknown_member_id))
    parked_sync = group.parked_syncs.pop(member_id, None)
    if parked_sync is not None:
        turn.reply(parked_sync, SyncGroupResponse(error=ErrorCode.unknown_member_id))
    group.pending_sync_members.discard(member_id)
    turn.cancel_timer(SessionTimer(member_id=member_id))
    turn.cancel_timer(NewMemberTimer(member_id=member_id))
    if group.leader == member_id:
        group.leader = None


def on_join_phase_timer(turn: Turn) -> None:
    """End the join phase; or extend it, if it is the initial one, members have joined since its last extension, and
    time for extensions is left."""
    join_phase = turn.group.join_phase
    assert join_phase is not None, "the timer of a join phase runs only during the join phase"
    if (
        join_phase.is_initial
        and join_phase.has_new_member_in_delay_part
        and join_phase.initial_delay_extensions_left_ms > 0
    ):
        # Members are still joining: wait for more of them, but never longer than the rebalance timeout (KIP-134).
        extension_ms = min(turn.group.limits.initial_rebalance_delay_ms, join_phase.initial_delay_extensions_left_ms)
        join_phase.initial_delay_extensions_left_ms = max(
            join_phase.initial_delay_extensions_left_ms - join_phase.current_initial_delay_part_ms, 0
        )
        join_phase.current_initial_delay_part_ms = extension_ms
        join_phase.has_new_member_in_delay_part = False
        turn.set_timer(JoinPhaseTimer(), extension_ms)
    else:
        complete_or_extend_join_phase(turn)


# -- the sync phase -----------------------------------------------------------------------------------------------


def reply_to_parked_syncs(turn: Turn, error: ErrorCode) -> None:
    """Reply to all parked SyncGroups, which wait for the leader's assignments, with the member's assignment if
    ``error`` is NONE and with ``error`` otherwise, and renew the sessions of their members."""
    group = turn.group
    for member_id, reply_to in group.parked_syncs.items():
        turn.reply(
            reply_to, sync_response(group, member_id) if error is ErrorCode.none else SyncGroupResponse(error=error)
        )
        turn.renew_session(group.members[member_id])
    group.parked_syncs.clear()


def write_generation(
    turn: Turn, generation: GenerationId, *, protocol: str | None, assignments: Mapping[MemberId, bytes]
) -> None:
    """Write the group's present members as ``generation``. ``protocol`` None: no member has an assignment yet. A member
    that is not in ``assignments`` has an empty one."""
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
                member_id: to_stored_member(member, protocol, assignments.get(member_id, b""))
                for member_id, member in group.members.items()
            },
        )
    )


def to_stored_member(member: Member, protocol: str | None, assignment: bytes) -> StoredMember:
    """``member`` as it is stored in a generation with ``protocol`` and ``assignment``; without a protocol, its
    subscription is empty."""
    return StoredMember(
        client_id=member.client_id,
        client_host=member.client_host,
        session_timeout_ms=member.session_timeout_ms,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        subscription=member.metadata(protocol) if protocol is not None else b"",
        assignment=assignment,
        instance_id=member.instance_id,
    )


# -- responses ----------------------------------------------------------------------------------------------------


def join_response(
    group: Group, member_id: MemberId, *, leader: MemberId | None = None, skip_assignment: bool = False
) -> JoinGroupResponse:
    """The successful response to a JoinGroup of ``member_id``, with the current generation. ``leader`` is the member id
    that the response names as the leader (None: the group's leader); only the leader's own response lists the
    members."""
    leader = leader or group.leader
    assert group.protocol is not None
    assert leader is not None
    members: tuple[JoinedMember, ...] = ()
    if member_id == leader:
        members = tuple(
            JoinedMember(
                member_id=other_id, metadata=other_member.metadata(group.protocol), instance_id=other_member.instance_id
            )
            for other_id, other_member in group.members.items()
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


def sync_response(group: Group, member_id: MemberId) -> SyncGroupResponse:
    """The successful response to a SyncGroup of ``member_id``, with its assignment in the current generation."""
    assert group.generation_record is not None
    return SyncGroupResponse(
        error=ErrorCode.none,
        protocol_type=group.protocol_type,
        protocol=group.protocol,
        assignment=group.generation_record.members[member_id].assignment,
    )
