"""DeleteGroups: deletes groups that have no members, with their committed offsets. As in Kafka, the response has one
entry for a group that the request contains twice."""

from coterie.broker.apis.api import KafkaApi
from coterie.broker.apis.authorization import Operation, groups_authorization
from coterie.broker.context import ApiRequest, BrokerContext
from coterie.broker.loop_yield import yielding
from coterie.groups.classic.offset_messages import DeleteGroup, DeleteGroupResponse
from coterie.groups.connect import messages as connect
from coterie.nouns.connect_error_codes import ConnectErrorCode
from coterie.nouns.ids import GroupId
from coterie.wire.errors import ErrorCode
from coterie.wire.kio_entities import Values


async def handle(broker: BrokerContext, request: ApiRequest) -> Values:
    return {
        "results": [
            {"group_id": group_id, "error_code": await _delete_group(broker, GroupId(group_id))}
            async for group_id in yielding(dict.fromkeys(request.body.groups_names))
        ]
    }


async def _delete_group(broker: BrokerContext, group_id: GroupId) -> ErrorCode:
    """Delete a connect group or a classic group, with its offsets. Returns the error code of the response."""
    connect_groups = broker.connect_groups_owning_id(group_id)
    if connect_groups is None:
        return await _delete_classic_group_or_connect_offsets(broker, group_id)
    response = await connect_groups.ask(group_id, lambda reply_to: connect.DeleteGroup(reply_to=reply_to))
    assert isinstance(response, connect.ErrorOnlyResponse)
    if response.error is not ConnectErrorCode.NONE:
        return ErrorCode(response.error)
    error = await _delete_classic_group_or_connect_offsets(broker, group_id)  # its offsets
    return ErrorCode.none if error is ErrorCode.group_id_not_found else error


async def _delete_classic_group_or_connect_offsets(broker: BrokerContext, group_id: GroupId) -> ErrorCode:
    """Delete a classic group with its offsets, or the offsets of a connect group. Returns the error code of the
    response: GROUP_ID_NOT_FOUND if there is neither a classic group with this id, nor an offset."""
    response = await broker.groups.ask(group_id, lambda reply_to: DeleteGroup(reply_to=reply_to))
    assert isinstance(response, DeleteGroupResponse)
    return response.error


_AUTHORIZATION = groups_authorization(Operation.DELETE, request_field="groups_names", response_field="results")
API = KafkaApi(key=42, versions=range(3), handle=handle, authorization=_AUTHORIZATION)
