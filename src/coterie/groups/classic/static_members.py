"""Static members (KIP-345): who keeps its place over a restart, and who is fenced when two claim one place.

A static member has a `group.instance.id`. It leaves nothing behind when it stops: its session alone ends it. When it is
back it knows no member id and gets a new one; from then on the former id is *fenced*: whoever still uses it is told
FENCED_INSTANCE_ID, also where it waits for an answer already.

Back in a STABLE group it gets the generation as it stands, and nobody else notices. The only question is whether the
vote on the protocol would have the same outcome; what its metadata say is no matter of the coordinator's, and they
change with every restart (a consumer tells there which partitions it owns). A leader is told from v9 of JoinGroup on
that it leads and need not assign (KIP-814); before, that somebody else leads, namely its former self. The new member
id is in the log before anybody hears of it. In the sync phase the leader may be about to assign to the former id, so
there the group joins once more.
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
    """A static member is back, or another that goes by its name: the one who came last is the one."""
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
    """Of the vote. A member that offers the same, in the same order, votes as before: nobody needs to be counted."""
    if [protocol.name for protocol in former] == [protocol.name for protocol in offered]:
        return False
    return vote_of_members(group) != group.protocol


def write_new_id(turn: Turn, former_id: MemberId, new_id: MemberId) -> None:
    """The generation as it stands, with another id in one place."""
    group = turn.group
    assert group.written is not None
    members = dict(group.written.members)
    assignment = members.pop(former_id).assignment
    members[new_id] = written_member(group.members[new_id], group.protocol, assignment)
    turn.write(replace(group.written, leader=group.leader, members=members))


def take_over(turn: Turn, request: JoinGroup, former_id: MemberId) -> None:
    """Give the place of ``former_id`` to the request's fresh id."""
    group = turn.group
    new_id = request.fresh_member_id
    assert new_id not in group.members, "fresh ids are fresh"
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
    """The member id under which a static member that joins without one is known; None when it is new."""
    if request.member_id or request.instance_id is None:
        return None
    return group.static_members.get(request.instance_id)


def leaving_id(group: Group, leaving: LeavingMember) -> MemberId:
    """The member that is meant: an instance id alone is how an operator removes a static member.

    :raises KafkaRefusal: when there is no such member, or another one holds its instance id.
    """
    member_id = leaving.member_id
    if not member_id and leaving.instance_id is not None:
        member_id = group.static_members.get(leaving.instance_id, member_id)
    check_member(group, member_id, leaving.instance_id)
    return member_id
