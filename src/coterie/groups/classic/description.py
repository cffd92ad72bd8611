"""DescribeGroups and ListGroups: a group's state for clients outside of the group."""

from coterie.groups.classic.guards import check_is_known
from coterie.groups.classic.messages import DescribedMember, DescribeGroup, DescribeGroupResponse
from coterie.groups.classic.state import Group, Phase
from coterie.groups.classic.turn import Turn
from coterie.nouns.ids import MemberId
from coterie.wire.errors import ErrorCode


def on_describe(turn: Turn, request: DescribeGroup) -> None:
    group = turn.group
    check_is_known(group)
    phase = group.phase
    response = DescribeGroupResponse(
        error=ErrorCode.none,
        phase=phase,
        protocol_type=group.protocol_type or "",
        protocol=(group.protocol or "") if phase is Phase.STABLE else "",
        members=tuple(described(group, member_id) for member_id in group.members) if request.with_members else (),
    )
    turn.reply(request.reply_to, response)


def described(group: Group, member_id: MemberId) -> DescribedMember:
    member = group.members[member_id]
    metadata = b""
    if group.phase is Phase.STABLE:
        assert group.protocol is not None
        metadata = member.metadata(group.protocol)
    # During a join phase the assignments of the last generation are still valid and are shown.
    written = group.written.members.get(member_id) if group.written is not None else None
    return DescribedMember(
        member_id=member_id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        metadata=metadata,
        assignment=b"" if written is None else written.assignment,
    )
