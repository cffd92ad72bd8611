"""Checks whether a client may join: the group's size limit, and member ids issued before the join (KIP-394)."""

from coterie.groups.classic.messages import JoinGroup, JoinGroupResponse, MemberProtocol, PendingMemberTimer, Request
from coterie.groups.classic.offset_messages import OffsetCommit
from coterie.groups.classic.protocols import offer_size
from coterie.groups.classic.rounds import rebalance_after_removal, remove_member
from coterie.groups.classic.state import Group
from coterie.groups.classic.turn import Turn
from coterie.nouns.ids import MemberId
from coterie.wire.errors import ErrorCode, KafkaRefusal


def founds(request: Request) -> bool:
    """Whether the request would create a group that does not exist. A broker with too many groups refuses it."""
    match request:
        case JoinGroup(member_id=member_id):
            return not member_id
        case OffsetCommit():
            return True
        case _:
            return False


def has_room_for(group: Group, member_id: MemberId) -> bool:
    """Whether the group's size limit lets this member join. During a join phase the members that have rejoined count;
    otherwise all members count. Issued member ids that no client has joined with do not count, as in Kafka: their
    clients may have stopped, and GROUP_MAX_SIZE_REACHED terminates a client. Absent static members do count, because
    they stay in the generation: no other client gets their slots."""
    size_max = group.limits.group_size_max
    if group.join_phase is None:
        return not group.members or member_id in group.members or len(group.members) < size_max
    if member_id in group.joins:
        return True
    taken = len(group.joins)
    member = group.members.get(member_id)
    # Counted only when the result depends on it: otherwise each of 1,000 members that rejoin would iterate over all.
    if (member is None or member.instance_id is None) and taken + len(group.static_members) >= size_max:
        taken += sum(static_id not in group.joins for static_id in group.static_members.values())
    return taken < size_max


def check_size(group: Group, member_id: MemberId, offered: tuple[MemberProtocol, ...]) -> None:
    """:raises KafkaRefusal: when the members' metadata would exceed the size limit of one group."""
    member = group.members.get(member_id)
    size = group.offers.size + offer_size(offered) - (offer_size(member.protocols) if member is not None else 0)
    if size > group.limits.generation_size_max:
        raise KafkaRefusal(ErrorCode.group_max_size_reached)


def on_no_room(turn: Turn, request: JoinGroup) -> None:
    """Refuse a join because the group is full. If the size limit was lowered below the number of members, the members
    that rejoin last are removed (KIP-389)."""
    group = turn.group
    if request.member_id in group.members:
        remove_member(turn, request.member_id)
    else:
        take_pending(turn, request.member_id)
    turn.reply(request.reply_to, JoinGroupResponse(error=ErrorCode.group_max_size_reached))
    rebalance_after_removal(turn)


def hand_out_member_id(turn: Turn, request: JoinGroup) -> None:
    """Respond with a new member id, with which the client has to join again. So a client that gives up and joins again
    does not become two members.

    :raises KafkaRefusal: when too many issued ids are unused, with an error after which clients retry. Kafka has no
        limit.
    """
    group = turn.group
    if len(group.pending) >= group.limits.pending_members_max:
        raise KafkaRefusal(ErrorCode.coordinator_load_in_progress)
    group.pending.add(request.fresh_member_id)
    turn.set_timer(PendingMemberTimer(member_id=request.fresh_member_id), request.session_timeout_ms)
    turn.reply(
        request.reply_to,
        JoinGroupResponse(error=ErrorCode.member_id_required, member_id=request.fresh_member_id),
    )


def take_pending(turn: Turn, member_id: MemberId) -> bool:
    """Remove an issued member id that no client has joined with; return whether there was one."""
    if member_id not in turn.group.pending:
        return False
    turn.group.pending.discard(member_id)
    turn.cancel_timer(PendingMemberTimer(member_id=member_id))
    return True
