"""Static members (KIP-345): they stay members over a restart, and a client with a replaced member id is fenced.

A static member has a `group.instance.id`. It sends no LeaveGroup when it stops: only the end of its session removes it.
When it rejoins, it sends no member id and gets a new one. From then on the former id is *fenced*: a client that still
uses it gets FENCED_INSTANCE_ID, also in response to a parked request.

A static member that rejoins a STABLE group gets the current generation, and the other members are not affected, if the
vote on the protocol would have the same result. The coordinator does not compare metadata, because it changes with
every restart (a consumer sends the partitions that it owns). If the static member is the leader, its response from
JoinGroup v9 on names it as the leader, with ``skip_assignment`` (KIP-814). In older versions the response names the
former member id as the leader, so that the member computes no assignments. The new member id is written to the log
before any response contains it. In the sync phase the leader may be computing an assignment for the former id, so the
group rebalances again.
"""

from dataclasses import replace

from coterie.groups.classic.guards import check_member
from coterie.groups.classic.messages import (
    JoinGroup,
    JoinGroupResponse,
    LeavingMember,
    MemberProtocol,
    NewMemberTimer,
    SessionTimer,
    SyncGroupResponse,
)
from coterie.groups.classic.rounds import joined, new_member, park_join, rebalance, vote_of_members, written_member
from coterie.groups.classic.state import Group, Phase
from coterie.groups.classic.turn import Turn
from coterie.nouns.ids import MemberId
from coterie.wire.errors import ErrorCode


def on_return(turn: Turn, request: JoinGroup, former_id: MemberId) -> None:
    """A client joins with an instance id and without a member id. It replaces the member that has its instance id; the
    replaced member id is fenced."""
    group = turn.group
    new_id = request.fresh_member_id
    phase, former_leader = group.phase, group.leader
    former_offer = group.members[former_id].protocols
    take_over(turn, request, former_id)
    if phase is not Phase.STABLE or has_another_outcome(group, former_offer, request.protocols):
        park_join(turn, new_id, request.reply_to)
        rebalance(turn)
        return
    write_new_id(turn, former_id, new_id)
    if request.can_skip_assignment:
        answer = joined(group, new_id, skip_assignment=group.leader == new_id)
    else:
        assert former_leader is not None
        answer = joined(group, new_id, leader=former_leader)
    turn.reply(request.reply_to, answer)


def has_another_outcome(group: Group, former: tuple[MemberProtocol, ...], offered: tuple[MemberProtocol, ...]) -> bool:
    """Whether the vote on the protocol would have another result. A member that offers the same protocols in the same
    order votes as before, so no count is needed."""
    if [protocol.name for protocol in former] == [protocol.name for protocol in offered]:
        return False
    return vote_of_members(group) != group.protocol


def write_new_id(turn: Turn, former_id: MemberId, new_id: MemberId) -> None:
    """Write the current generation with ``new_id`` instead of ``former_id``."""
    group = turn.group
    assert group.written is not None
    members = dict(group.written.members)
    assignment = members.pop(former_id).assignment
    members[new_id] = written_member(group.members[new_id], group.protocol, assignment)
    turn.write(replace(group.written, leader=group.leader, members=members))


def take_over(turn: Turn, request: JoinGroup, former_id: MemberId) -> None:
    """Replace the member ``former_id`` by a member with the request's fresh id."""
    group = turn.group
    new_id = request.fresh_member_id
    assert new_id not in group.members, "a new member id is unused"
    group.remove(former_id)
    join = group.joins.pop(former_id, None)
    if join is not None:
        turn.reply(join, JoinGroupResponse(error=ErrorCode.fenced_instance_id, member_id=former_id))
    sync = group.syncs.pop(former_id, None)
    if sync is not None:
        turn.reply(sync, SyncGroupResponse(error=ErrorCode.fenced_instance_id))
    turn.cancel_timer(SessionTimer(member_id=former_id))
    turn.cancel_timer(NewMemberTimer(member_id=former_id))
    member = group.add(new_id, new_member(request, new_id))
    member.is_new = False
    turn.arm_session(member)
    if group.leader == former_id:
        group.leader = new_id
    if former_id in group.unsynced:
        group.unsynced.remove(former_id)
        group.unsynced.add(new_id)


def former_id(group: Group, request: JoinGroup) -> MemberId | None:
    """The current member id of a static member that joins without a member id; None when the static member is new."""
    if request.member_id or request.instance_id is None:
        return None
    return group.static_members.get(request.instance_id)


def leaving_id(group: Group, leaving: LeavingMember) -> MemberId:
    """The member id of ``leaving``. An operator removes a static member by its instance id alone.

    :raises KafkaRefusal: when there is no such member, or another member has the instance id.
    """
    member_id = leaving.member_id
    if not member_id and leaving.instance_id is not None:
        member_id = group.static_members.get(leaving.instance_id, member_id)
    check_member(group, member_id, leaving.instance_id)
    return member_id
