"""DescribeGroups: returns the state and the members of classic groups, with the members' metadata and assignments."""

from typing import Any

from coterie.broker.apis.api import KafkaApi
from coterie.broker.apis.authorization import GROUP, Operation, groups_authorization
from coterie.broker.apis.operations import allowed_operations_bit_field
from coterie.broker.context import ApiRequest, BrokerContext
from coterie.broker.loop_yield import yielding
from coterie.groups.classic.messages import DescribeGroup, DescribeGroupResponse
from coterie.nouns.ids import GroupId
from coterie.wire.errors import ErrorCode
from coterie.wire.kio_entities import Values

_NOT_FOUND_SINCE = 6
"""The first version in which a group that does not exist has the error code GROUP_ID_NOT_FOUND. Before, the response
contains such a group with the state Dead and no error (KIP-1043)."""


async def handle(broker: BrokerContext, request: ApiRequest) -> Values:
    return {
        "groups": [await _group_values(broker, request, GroupId(one)) async for one in yielding(request.body.groups)],
    }


async def _group_values(broker: BrokerContext, request: ApiRequest, group_id: GroupId) -> dict[str, Any]:
    """The response entry of one group: its state and members, or an error."""
    is_connect = broker.connect_groups_owning_id(group_id) is not None
    if is_connect:  # as Kafka answers for a group of another type
        response = DescribeGroupResponse(error=ErrorCode.group_id_not_found)
    else:
        answer = await broker.groups.ask(group_id, lambda reply_to: DescribeGroup(reply_to=reply_to))
        assert isinstance(answer, DescribeGroupResponse)
        response = answer
    error, message = response.error, None
    if error is ErrorCode.group_id_not_found and request.header.api_version < _NOT_FOUND_SINCE:
        error = ErrorCode.none
    elif error is ErrorCode.group_id_not_found:
        message = f"Group {group_id} is not a classic group." if is_connect else f"Group {group_id} not found."
    is_wanted = error is ErrorCode.none and request.field_or_default("include_authorized_operations", False)
    return {
        "error_code": error,
        "error_message": message,
        "group_id": group_id,
        "group_state": group_state_name(response.phase),
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
        "authorized_operations": allowed_operations_bit_field(broker, request, GROUP, group_id, is_requested=is_wanted),
    }


def group_state_name(phase: str) -> str:
    """Kafka's name of a group state for responses: ``PreparingRebalance`` for the phase ``PREPARING_REBALANCE``."""
    return phase.title().replace("_", "")


_AUTHORIZATION = groups_authorization(Operation.DESCRIBE, request_field="groups", response_field="groups")
API = KafkaApi(key=15, versions=range(7), handle=handle, authorization=_AUTHORIZATION)
