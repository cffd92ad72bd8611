"""SyncGroup: receives the leader's assignments and returns to each member its own assignment."""

from coterie.broker.apis.api import KafkaApi
from coterie.broker.apis.needs import Operation, Permission, in_group
from coterie.broker.node import ApiRequest, Node
from coterie.groups.classic.messages import SyncGroup, SyncGroupResponse
from coterie.nouns.ids import Generation, GroupId, MemberId
from coterie.wire.errors import ErrorCode
from coterie.wire.shapes import Values

_PROTOCOL_SINCE = 5


async def handle(node: Node, request: ApiRequest) -> Values:
    body = request.body
    if request.header.api_version >= _PROTOCOL_SINCE and (body.protocol_type is None or body.protocol_name is None):
        # They are nullable in the protocol but must not be null (KIP-559); Kafka checks this first.
        return _answer(SyncGroupResponse(error=ErrorCode.inconsistent_group_protocol))
    response = await node.groups.ask(
        GroupId(body.group_id),
        lambda reply_to: SyncGroup(
            reply_to=reply_to,
            member_id=MemberId(body.member_id),
            generation=Generation(body.generation_id),
            protocol_type=request.told("protocol_type", None),
            protocol=request.told("protocol_name", None),
            assignments=tuple((MemberId(one.member_id), one.assignment) for one in body.assignments),
            instance_id=request.instance_id,
        ),
    )
    assert isinstance(response, SyncGroupResponse)
    return _answer(response)


def _answer(response: SyncGroupResponse) -> Values:
    return {
        "error_code": response.error,
        "protocol_type": response.protocol_type,
        "protocol_name": response.protocol,
        "assignment": response.assignment,
    }


API = KafkaApi(key=14, versions=range(6), handle=handle, needs=Permission(whole=in_group(Operation.READ)))
