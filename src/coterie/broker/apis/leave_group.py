"""LeaveGroup: v0-5 · removes one member, or several at once (v3 and later) · static members (KIP-345): a later issue;
each gets UNKNOWN_MEMBER_ID, for there is none."""

from typing import Any

from coterie.broker.node import Node, Request
from coterie.groups.messages import LeaveGroup, LeaveGroupResponse
from coterie.nouns.ids import GroupId, MemberId
from coterie.wire.errors import ErrorCode
from coterie.wire.shapes import Values

_MANY_SINCE = 3


async def handle(node: Node, request: Request) -> Values:
    body = request.body
    leaving: tuple[Any, ...] = request.told("members", ())
    member_ids = [one.member_id for one in leaving] if leaving else [request.told("member_id", "")]
    response = await node.groups.ask(
        GroupId(body.group_id),
        lambda reply_to: LeaveGroup(reply_to=reply_to, member_ids=tuple(MemberId(one) for one in member_ids)),
    )
    assert isinstance(response, LeaveGroupResponse)
    error = response.error
    if request.header.api_version < _MANY_SINCE and error is ErrorCode.none and response.members:
        error = response.members[0][1]
    return {
        "throttle_time": 0,
        "error_code": error,
        "members": [
            {"member_id": member_id, "group_instance_id": asked.group_instance_id, "error_code": member_error}
            for asked, (member_id, member_error) in zip(leaving, response.members, strict=False)
        ],
    }
