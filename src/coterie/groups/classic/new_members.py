"""Admits new members: the group's size limit, and member ids that are issued before the join (KIP-394)."""

from coterie.groups.classic.messages import JoinGroup, JoinGroupResponse, MemberProtocol, PendingMemberTimer, Request
from coterie.groups.classic.offset_messages import OffsetCommit, TxnOffsetCommit
from coterie.groups.classic.protocols import protocols_size_bytes
from coterie.groups.classic.rounds import rebalance_after_removal_if_needed, remove_member
from coterie.groups.classic.state import Group
from coterie.groups.classic.turn import Turn
from coterie.nouns.ids import MemberId
from coterie.wire.errors import ErrorCode, KafkaRefusal


def may_create_group(request: Request) -> bool:
    """Whether the request creates its group if there is none: a JoinGroup without a member id, an OffsetCommit, or a
    TxnOffsetCommit. Only the request is examined, not the groups. A broker that has the maximum number of groups
    (`ClassicGroupSettings.groups_max`) uses this to refuse requests for further groups."""
    match request:
        case JoinGroup(member_id=member_id):
            return not member_id
        case OffsetCommit() | TxnOffsetCommit():
            return True
        case _:
            return False


def has_room_for(group: Group, member_id: MemberId) -> bool:
    """Whether the group's size limit admits a JoinGroup of ``member_id`` (empty for a new member).

    Outside of a join phase a current member is always admitted, and another client if the group has no members or fewer
    than the limit. During a join phase a member that has rejoined is admitted, and another client if fewer slots are
    taken than the limit. Each member that has rejoined takes a slot. If the client is not a static member, each static
    member that has not rejoined takes a slot, too: it stays in the generation, so no other client gets its slot.

    Issued member ids that no client has joined with take no slot, as in Kafka: their clients may have stopped, and
    GROUP_MAX_SIZE_REACHED terminates a client.
    """
    size_max = group.limits.group_size_max
    if group.join_phase is None:
        return not group.members or member_id in group.members or len(group.members) < size_max
    if member_id in group.parked_joins:
        return True
    taken_slots = len(group.parked_joins)
    member = group.members.get(member_id)
    # Counted only when the result depends on it: otherwise each of 1,000 members that rejoin would iterate over all.
    if (member is None or member.instance_id is None) and taken_slots + len(group.static_members) >= size_max:
        taken_slots += sum(static_id not in group.parked_joins for static_id in group.static_members.values())
    return taken_slots < size_max


def check_size_of_all_offered_protocols(
    group: Group, member_id: MemberId, offered_protocols: tuple[MemberProtocol, ...]
) -> None:
    """Check the size of the protocols that all members offer, with ``offered_protocols`` in place of those of
    ``member_id``.

    :raises KafkaRefusal: GROUP_MAX_SIZE_REACHED, when the names and metadata together exceed
        ``protocols_or_assignments_size_max_bytes``.
    """
    member = group.members.get(member_id)
    size_bytes = (
        group.protocol_support.offered_size_bytes
        + protocols_size_bytes(offered_protocols)
        - (protocols_size_bytes(member.protocols) if member is not None else 0)
    )
    if size_bytes > group.limits.protocols_or_assignments_size_max_bytes:
        raise KafkaRefusal(ErrorCode.group_max_size_reached)


def refuse_as_full_and_remove_member(turn: Turn, request: JoinGroup) -> None:
    """Respond with GROUP_MAX_SIZE_REACHED, and remove the member or the issued member id of the request; an open join
    phase no longer waits for it. If the size limit was lowered below the number of members, this removes the members
    that rejoin last (KIP-389)."""
    group = turn.group
    if request.member_id in group.members:
        remove_member(turn, request.member_id)
    else:
        remove_pending_member(turn, request.member_id)
    turn.reply(request.reply_to, JoinGroupResponse(error=ErrorCode.group_max_size_reached))
    rebalance_after_removal_if_needed(turn)


def issue_member_id_or_raise(turn: Turn, request: JoinGroup) -> None:
    """Respond with MEMBER_ID_REQUIRED and a new member id, with which the client has to join again. So a client that
    gives up and joins again does not become two members. The id expires after the client's session timeout.

    :raises KafkaRefusal: COORDINATOR_LOAD_IN_PROGRESS, after which clients retry, when ``pending_members_max`` issued
        ids are unused. Kafka has no such limit.
    """
    group = turn.group
    if len(group.pending_join_members) >= group.limits.pending_members_max:
        raise KafkaRefusal(ErrorCode.coordinator_load_in_progress)
    group.pending_join_members.add(request.fresh_member_id)
    turn.set_timer(PendingMemberTimer(member_id=request.fresh_member_id), request.session_timeout_ms)
    turn.reply(
        request.reply_to,
        JoinGroupResponse(error=ErrorCode.member_id_required, member_id=request.fresh_member_id),
    )


def remove_pending_member(turn: Turn, member_id: MemberId) -> bool:
    """Remove ``member_id`` from the issued member ids that no client has joined with. Returns whether it was one of
    them."""
    if member_id not in turn.group.pending_join_members:
        return False
    turn.group.pending_join_members.discard(member_id)
    turn.cancel_timer(PendingMemberTimer(member_id=member_id))
    return True
