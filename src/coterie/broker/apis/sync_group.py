"""SyncGroup: the leader's request contains the assignments of all members; the response to each member contains its own
assignment. The responses are sent when the leader's assignments are durable."""

from coterie.broker.apis.api import KafkaApi
from coterie.broker.apis.authorization import ApiAuthorization, Operation, make_group_check
from coterie.broker.context import ApiRequest, BrokerContext
from coterie.groups.classic.messages import SyncGroup, SyncGroupResponse
from coterie.nouns.ids import GenerationId, GroupId, MemberId
from coterie.wire.errors import ErrorCode
from coterie.wire.kio_entities import Values

_PROTOCOL_SINCE = 5
"""The first version with the group's protocol type and protocol name in the request (KIP-559)."""


async def handle(broker: BrokerContext, request: ApiRequest) -> Values:
    body = request.body
    if request.header.api_version >= _PROTOCOL_SINCE and (body.protocol_type is None or body.protocol_name is None):
        # They are nullable in the protocol but must not be null (KIP-559); Kafka checks this first.
        return _response_values(SyncGroupResponse(error=ErrorCode.inconsistent_group_protocol))
    response = await broker.groups.ask(
        GroupId(body.group_id),
        lambda reply_to: SyncGroup(
            reply_to=reply_to,
            member_id=MemberId(body.member_id),
            generation=GenerationId(body.generation_id),
            protocol_type=request.field_or_default("protocol_type", None),
            protocol=request.field_or_default("protocol_name", None),
            assignments=tuple((MemberId(one.member_id), one.assignment) for one in body.assignments),
            instance_id=request.instance_id,
        ),
    )
    assert isinstance(response, SyncGroupResponse)
    return _response_values(response)


def _response_values(response: SyncGroupResponse) -> Values:
    return {
        "error_code": response.error,
        "protocol_type": response.protocol_type,
        "protocol_name": response.protocol,
        "assignment": response.assignment,
    }


API = KafkaApi(
    key=14,
    versions=range(6),
    handle=handle,
    authorization=ApiAuthorization(check_request=make_group_check(Operation.READ)),
)
