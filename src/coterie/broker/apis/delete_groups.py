"""DeleteGroups: deletes groups that have no members, with their committed offsets. As in Kafka, the response has one
entry for a group that the request contains twice."""

from coterie.broker.apis.api import KafkaApi
from coterie.broker.apis.authorization import Operation, groups_authorization
from coterie.broker.context import ApiRequest, BrokerContext
from coterie.broker.loop_yield import yielding
from coterie.groups.classic.offset_messages import DeleteGroup, DeleteGroupResponse
from coterie.nouns.ids import GroupId
from coterie.wire.kio_entities import Values


async def handle(broker: BrokerContext, request: ApiRequest) -> Values:
    results: list[Values] = []
    async for group_id in yielding(dict.fromkeys(request.body.groups_names)):
        response = await broker.groups.ask(GroupId(group_id), lambda reply_to: DeleteGroup(reply_to=reply_to))
        assert isinstance(response, DeleteGroupResponse)
        results.append({"group_id": group_id, "error_code": response.error})
    return {"results": results}


_AUTHORIZATION = groups_authorization(Operation.DELETE, request_field="groups_names", response_field="results")
API = KafkaApi(key=42, versions=range(3), handle=handle, authorization=_AUTHORIZATION)
