"""DeleteGroups: deletes groups without members, with their offsets. As in Kafka, the response has one entry for a group
that the request names twice."""

from coterie.broker.apis.api import KafkaApi
from coterie.broker.apis.needs import Operation, on_groups
from coterie.broker.node import ApiRequest, Node
from coterie.broker.turns import in_turns
from coterie.groups.classic.offset_messages import DeleteGroup, DeleteGroupResponse
from coterie.nouns.ids import GroupId
from coterie.wire.shapes import Values


async def handle(node: Node, request: ApiRequest) -> Values:
    results: list[Values] = []
    async for group_id in in_turns(dict.fromkeys(request.body.groups_names)):
        response = await node.groups.ask(GroupId(group_id), lambda reply_to: DeleteGroup(reply_to=reply_to))
        assert isinstance(response, DeleteGroupResponse)
        results.append({"group_id": group_id, "error_code": response.error})
    return {"results": results}


_NEEDS = on_groups(Operation.DELETE, asked="groups_names", answers="results")
API = KafkaApi(key=42, versions=range(3), handle=handle, needs=_NEEDS)
