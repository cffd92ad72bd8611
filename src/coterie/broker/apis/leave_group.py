"""LeaveGroup: removes one member, or several (v3 and later), by member id or instance id (KIP-345). The reason (v5,
KIP-800) is ignored: Kafka only logs it."""

from coterie.broker.apis.api import KafkaApi
from coterie.broker.apis.needs import Operation, Permission, in_group
from coterie.broker.node import ApiRequest, Node
from coterie.groups.classic.messages import LeaveGroup, LeaveGroupResponse, LeavingMember
from coterie.nouns.ids import GroupId, InstanceId, MemberId
from coterie.wire.errors import ErrorCode
from coterie.wire.shapes import Values

_MANY_SINCE = 3


async def handle(node: Node, request: ApiRequest) -> Values:
    body = request.body
    is_one = request.header.api_version < _MANY_SINCE
    leaving = (
        (_leaving(body.member_id, None),)
        if is_one
        else tuple(_leaving(one.member_id, one.group_instance_id) for one in body.members)
    )
    response = await node.groups.ask(
        GroupId(body.group_id), lambda reply_to: LeaveGroup(reply_to=reply_to, members=leaving)
    )
    assert isinstance(response, LeaveGroupResponse)
    error = response.error
    if is_one and error is ErrorCode.none:
        error = response.members[0][1]
    return {
        "error_code": error,
        "members": [
            {"member_id": member_id, "group_instance_id": asked.instance_id, "error_code": member_error}
            for asked, (member_id, member_error) in zip(leaving, response.members, strict=False)
        ],
    }


def _leaving(member_id: str, instance_id: str | None) -> LeavingMember:
    return LeavingMember(
        member_id=MemberId(member_id), instance_id=None if instance_id is None else InstanceId(instance_id)
    )


API = KafkaApi(key=13, versions=range(6), handle=handle, needs=Permission(whole=in_group(Operation.READ)))
