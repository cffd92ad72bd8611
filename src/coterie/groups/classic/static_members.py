"""Static members (KIP-345): they stay members over a restart, and a client with a replaced member id is fenced.

A static member has a `group.instance.id`. It sends no LeaveGroup when it stops, so it stays a member until its session
ends. When it joins again after a restart, it sends no member id and gets a new one. From then on its former member id
is *fenced*: a client that still uses this id gets FENCED_INSTANCE_ID, also in response to a parked request.

A static member that rejoins a STABLE group gets the current generation, and the other members are not affected, if the
vote on the protocol would have the same result. The coordinator does not compare metadata, which changes with every
restart (a consumer sends the partitions that it owns). If the static member is the leader, the response to JoinGroup v9
and later names it as the leader, with ``skip_assignment`` (KIP-814). In older versions the response names the former
member id as the leader, so that the member computes no assignments. The new member id is written to the log before any
response contains it. In the sync phase the leader may be computing an assignment for the former id, so a static member
that rejoins then starts another rebalance.
"""

from dataclasses import replace

from coterie.groups.classic.messages import (
    JoinGroup,
    JoinGroupResponse,
    LeavingMember,
    MemberProtocol,
    NewMemberTimer,
    SessionTimer,
    SyncGroupResponse,
)
from coterie.groups.classic.request_checks import check_member
from coterie.groups.classic.rounds import (
    join_response,
    member_from_join,
    park_join,
    select_protocol,
    start_or_continue_rebalance,
    to_stored_member,
)
from coterie.groups.classic.state import Group, GroupPhase
from coterie.groups.classic.turn import Turn
from coterie.nouns.ids import MemberId
from coterie.wire.errors import ErrorCode


def on_static_rejoin(turn: Turn, request: JoinGroup, former_id: MemberId) -> None:
    """Process a JoinGroup without a member id, whose instance id belongs to the member ``former_id``. The client
    becomes a member under a new id in place of ``former_id``: requests with ``former_id`` get FENCED_INSTANCE_ID from
    now on. If the group is STABLE and the vote selects the same protocol, the client gets the current generation at
    once; otherwise the JoinGroup is parked and a rebalance starts or continues."""
    group = turn.group
    new_id = request.fresh_member_id
    phase, former_leader = group.phase, group.leader
    former_protocols = group.members[former_id].protocols
    replace_static_member(turn, request, former_id)
    if phase is not GroupPhase.STABLE or would_change_protocol(group, former_protocols, request.protocols):
        park_join(turn, new_id, request.reply_to)
        start_or_continue_rebalance(turn)
        return
    rewrite_generation_with_new_id(turn, former_id, new_id)
    if request.supports_skip_assignment:
        response = join_response(group, new_id, skip_assignment=group.leader == new_id)
    else:
        assert former_leader is not None
        response = join_response(group, new_id, leader=former_leader)
    turn.reply(request.reply_to, response)


def would_change_protocol(
    group: Group, former_protocols: tuple[MemberProtocol, ...], new_protocols: tuple[MemberProtocol, ...]
) -> bool:
    """Whether the vote on the protocol now selects another protocol than the group's, after one member has changed what
    it offers from ``former_protocols`` to ``new_protocols``. The votes are counted only if the names or their order
    differ."""
    if [protocol.name for protocol in former_protocols] == [protocol.name for protocol in new_protocols]:
        return False
    return select_protocol(group) != group.protocol


def rewrite_generation_with_new_id(turn: Turn, former_id: MemberId, new_id: MemberId) -> None:
    """Write the current generation again, with ``new_id`` in place of ``former_id``; the assignment stays."""
    group = turn.group
    assert group.generation_record is not None
    members = dict(group.generation_record.members)
    assignment = members.pop(former_id).assignment
    members[new_id] = to_stored_member(group.members[new_id], group.protocol, assignment)
    turn.write(replace(group.generation_record, leader=group.leader, members=members))


def replace_static_member(turn: Turn, request: JoinGroup, former_id: MemberId) -> None:
    """Replace the member ``former_id`` by a new member with the request's ``fresh_member_id`` and values. Requests of
    ``former_id`` that wait for a response get FENCED_INSTANCE_ID. If ``former_id`` was the leader, the new member is
    the leader."""
    group = turn.group
    new_id = request.fresh_member_id
    assert new_id not in group.members, "a new member id is unused"
    group.remove_from_members(former_id)
    parked_join = group.parked_joins.pop(former_id, None)
    if parked_join is not None:
        turn.reply(parked_join, JoinGroupResponse(error=ErrorCode.fenced_instance_id, member_id=former_id))
    parked_sync = group.parked_syncs.pop(former_id, None)
    if parked_sync is not None:
        turn.reply(parked_sync, SyncGroupResponse(error=ErrorCode.fenced_instance_id))
    turn.cancel_timer(SessionTimer(member_id=former_id))
    turn.cancel_timer(NewMemberTimer(member_id=former_id))
    member = group.add_member(new_id, member_from_join(request, new_id))
    member.awaits_first_join_response = False
    turn.renew_session(member)
    if group.leader == former_id:
        group.leader = new_id
    if former_id in group.pending_sync_members:
        group.pending_sync_members.remove(former_id)
        group.pending_sync_members.add(new_id)


def former_id_if_static_rejoin(group: Group, request: JoinGroup) -> MemberId | None:
    """The member id of the present member with the request's instance id, which the request replaces. None when there
    is no such member, or when the request has a member id."""
    if request.member_id or request.instance_id is None:
        return None
    return group.static_members.get(request.instance_id)


def leaving_member_id(group: Group, leaving_member: LeavingMember) -> MemberId:
    """The id of the member that ``leaving_member`` means: its member id; if that is empty (an operator removes a static
    member), the id of the current member with its instance id.

    :raises KafkaRefusal: UNKNOWN_MEMBER_ID, when there is no such member; FENCED_INSTANCE_ID, when another member has
        the instance id.
    """
    member_id = leaving_member.member_id
    if not member_id and leaving_member.instance_id is not None:
        member_id = group.static_members.get(leaving_member.instance_id, member_id)
    check_member(group, member_id, leaving_member.instance_id)
    return member_id
