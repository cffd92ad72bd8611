"""DescribeGroups: a group's state and members, with their metadata and assignments."""

from typing import Any

from coterie.broker.apis.api import KafkaApi
from coterie.broker.apis.needs import GROUP, Operation, on_groups
from coterie.broker.apis.operations import allowed_operations
from coterie.broker.node import ApiRequest, Node
from coterie.broker.turns import in_turns
from coterie.groups.classic.messages import DescribeGroup, DescribeGroupResponse
from coterie.nouns.ids import GroupId
from coterie.wire.errors import ErrorCode
from coterie.wire.shapes import Values

_NOT_FOUND_SINCE = 6
"""In earlier versions the response for a missing group is state Dead without an error (KIP-1043)."""


async def handle(node: Node, request: ApiRequest) -> Values:
    return {
        "groups": [await _described(node, request, GroupId(one)) async for one in in_turns(request.body.groups)],
    }


async def _described(node: Node, request: ApiRequest, group_id: GroupId) -> dict[str, Any]:
    response = await node.groups.ask(group_id, lambda reply_to: DescribeGroup(reply_to=reply_to))
    assert isinstance(response, DescribeGroupResponse)
    error, message = response.error, None
    if error is ErrorCode.group_id_not_found and request.header.api_version < _NOT_FOUND_SINCE:
        error = ErrorCode.none
    elif error is ErrorCode.group_id_not_found:
        message = f"Group {group_id} not found."
    is_wanted = error is ErrorCode.none and request.told("include_authorized_operations", False)
    return {
        "error_code": error,
        "error_message": message,
        "group_id": group_id,
        "group_state": state_name(response.phase),
        "protocol_type": response.protocol_type,
        "protocol_data": response.protocol,
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.instance_id,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "member_metadata": member.metadata,
                "member_assignment": member.assignment,
            }
            for member in response.members
        ],
        "authorized_operations": allowed_operations(node, request, GROUP, group_id, wanted=is_wanted),
    }


def state_name(phase: str) -> str:
    """The state's name in Kafka, such as ``PreparingRebalance``."""
    return phase.title().replace("_", "")


_NEEDS = on_groups(Operation.DESCRIBE, asked="groups", answers="groups")
API = KafkaApi(key=15, versions=range(7), handle=handle, needs=_NEEDS)
