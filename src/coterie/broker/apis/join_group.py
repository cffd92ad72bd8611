"""JoinGroup: joins a classic group. The response is sent at the end of the group's join phase; a static member
(KIP-345) that rejoins may get it at once. The reason for the join (v8, KIP-800) is ignored: Kafka only logs it. A
client id or instance id of more than 1,000 characters is refused, because each member id contains one of them and is
stored (Kafka fails at 32,731 characters). A join of a connect group is refused with INCONSISTENT_GROUP_PROTOCOL."""

from coterie.broker.apis.api import KafkaApi
from coterie.broker.apis.authorization import ApiAuthorization, Operation, make_group_check
from coterie.broker.context import ApiRequest, BrokerContext
from coterie.broker.groups.classic import fresh_member_id
from coterie.groups.classic.messages import JoinGroup, JoinGroupResponse, MemberProtocol
from coterie.nouns.ids import GroupId, MemberId
from coterie.wire.errors import ErrorCode
from coterie.wire.kio_entities import Values, to_milliseconds

_MEMBER_ID_REQUIRED_SINCE = 4
"""The first version in which a new dynamic member first receives its member id and then joins with it (KIP-394)."""
_NULLABLE_PROTOCOL_SINCE = 7
"""The first version in which the response's protocol name may be null."""
_SKIP_ASSIGNMENT_SINCE = 9
"""The first version whose response can order the leader to compute no assignments (KIP-814)."""
_ID_LENGTH_MAX = 1_000
"""The maximum number of characters of a client id and of an instance id."""


async def handle(broker: BrokerContext, request: ApiRequest) -> Values:
    body = request.body
    client_id = request.header.client_id or ""
    instance_id = request.instance_id
    if max(len(client_id), len(instance_id or "")) > _ID_LENGTH_MAX:
        return _response_values(request, JoinGroupResponse(error=ErrorCode.invalid_request, member_id=body.member_id))
    if broker.connect_groups_owning_id(body.group_id) is not None:
        refusal = JoinGroupResponse(error=ErrorCode.inconsistent_group_protocol, member_id=body.member_id)
        return _response_values(request, refusal)
    session_timeout_ms = to_milliseconds(body.session_timeout)
    rebalance_timeout = request.field_or_default("rebalance_timeout", None)
    response = await broker.groups.ask(
        GroupId(body.group_id),
        lambda reply_to: JoinGroup(
            reply_to=reply_to,
            member_id=MemberId(body.member_id),
            fresh_member_id=fresh_member_id(client_id if instance_id is None else instance_id),
            requires_known_member_id=request.header.api_version >= _MEMBER_ID_REQUIRED_SINCE,
            client_id=client_id,
            client_host=f"/{request.peer_host}",
            session_timeout_ms=session_timeout_ms,
            rebalance_timeout_ms=session_timeout_ms
            if rebalance_timeout is None
            else to_milliseconds(rebalance_timeout),
            protocol_type=body.protocol_type,
            protocols=tuple(MemberProtocol(name=one.name, metadata=one.metadata) for one in body.protocols),
            instance_id=instance_id,
            supports_skip_assignment=request.header.api_version >= _SKIP_ASSIGNMENT_SINCE,
        ),
    )
    assert isinstance(response, JoinGroupResponse)
    return _response_values(request, response)


def _response_values(request: ApiRequest, response: JoinGroupResponse) -> Values:
    protocol = response.protocol
    if protocol is None and request.header.api_version < _NULLABLE_PROTOCOL_SINCE:
        protocol = ""
    return {
        "error_code": response.error,
        "generation_id": response.generation,
        "protocol_type": response.protocol_type,
        "protocol_name": protocol,
        "leader": response.leader,
        "skip_assignment": response.skip_assignment,
        "member_id": response.member_id,
        "members": [
            {"member_id": one.member_id, "group_instance_id": one.instance_id, "metadata": one.metadata}
            for one in response.members
        ],
    }


API = KafkaApi(
    key=11,
    versions=range(10),
    handle=handle,
    authorization=ApiAuthorization(check_request=make_group_check(Operation.READ)),
)
