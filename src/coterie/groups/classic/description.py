"""DescribeGroups and ListGroups: a group's state for clients that are not members of the group."""

from coterie.groups.classic.messages import DescribedMember, DescribeGroup, DescribeGroupResponse
from coterie.groups.classic.request_checks import check_group_exists
from coterie.groups.classic.state import Group, GroupPhase
from coterie.groups.classic.turn import Turn
from coterie.nouns.ids import MemberId
from coterie.wire.errors import ErrorCode


def on_describe_group(turn: Turn, request: DescribeGroup) -> None:
    """Reply with the group's state, and with its members if the request asks for them.

    :raises KafkaRefusal: GROUP_ID_NOT_FOUND, when the group does not exist.
    """
    group = turn.group
    check_group_exists(group)
    phase = group.phase
    response = DescribeGroupResponse(
        error=ErrorCode.none,
        phase=phase,
        protocol_type=group.protocol_type or "",
        protocol=(group.protocol or "") if phase is GroupPhase.STABLE else "",
        members=tuple(describe_member(group, member_id) for member_id in group.members)
        if request.includes_members
        else (),
    )
    turn.reply(request.reply_to, response)


def describe_member(group: Group, member_id: MemberId) -> DescribedMember:
    """The description of the member ``member_id``. Its assignment is that of the last generation, empty before the
    leader has sent one; its metadata is empty unless the group is STABLE."""
    member = group.members[member_id]
    metadata = b""
    if group.phase is GroupPhase.STABLE:
        assert group.protocol is not None
        metadata = member.metadata(group.protocol)
    # During a join phase the assignments of the last generation are still valid and are shown.
    stored_member = group.generation_record.members.get(member_id) if group.generation_record is not None else None
    return DescribedMember(
        member_id=member_id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        metadata=metadata,
        assignment=b"" if stored_member is None else stored_member.assignment,
    )
