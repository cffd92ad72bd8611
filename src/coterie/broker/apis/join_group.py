"""JoinGroup: joins a classic group and waits for the end of its join phase; a static member (KIP-345) that rejoins need
not wait. The reason (v8, KIP-800) is ignored: Kafka only logs it. Client and instance ids of more than 1,000 characters
are refused, because every member id contains one and is stored (Kafka fails at 32,731 characters)."""

from coterie.broker.apis.api import KafkaApi
from coterie.broker.apis.needs import Operation, Permission, in_group
from coterie.broker.groups.classic import fresh_member_id
from coterie.broker.node import ApiRequest, Node
from coterie.groups.classic.messages import JoinGroup, JoinGroupResponse, MemberProtocol
from coterie.nouns.ids import GroupId, MemberId
from coterie.wire.errors import ErrorCode
from coterie.wire.shapes import Values, milliseconds

_MEMBER_ID_REQUIRED_SINCE = 4
_NULLABLE_PROTOCOL_SINCE = 7
_SKIP_ASSIGNMENT_SINCE = 9
_ID_LENGTH_MAX = 1_000


async def handle(node: Node, request: ApiRequest) -> Values:
    body = request.body
    client_id = request.header.client_id or ""
    instance_id = request.instance_id
    if max(len(client_id), len(instance_id or "")) > _ID_LENGTH_MAX:
        return _answer(request, JoinGroupResponse(error=ErrorCode.invalid_request, member_id=body.member_id))
    session_timeout_ms = milliseconds(body.session_timeout)
    rebalance_timeout = request.told("rebalance_timeout", None)
    response = await node.groups.ask(
        GroupId(body.group_id),
        lambda reply_to: JoinGroup(
            reply_to=reply_to,
            member_id=MemberId(body.member_id),
            fresh_member_id=fresh_member_id(client_id if instance_id is None else instance_id),
            requires_known_member_id=request.header.api_version >= _MEMBER_ID_REQUIRED_SINCE,
            client_id=client_id,
            client_host=f"/{request.peer_host}",
            session_timeout_ms=session_timeout_ms,
            rebalance_timeout_ms=session_timeout_ms if rebalance_timeout is None else milliseconds(rebalance_timeout),
            protocol_type=body.protocol_type,
            protocols=tuple(MemberProtocol(name=one.name, metadata=one.metadata) for one in body.protocols),
            instance_id=instance_id,
            can_skip_assignment=request.header.api_version >= _SKIP_ASSIGNMENT_SINCE,
        ),
    )
    assert isinstance(response, JoinGroupResponse)
    return _answer(request, response)


def _answer(request: ApiRequest, response: JoinGroupResponse) -> Values:
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


API = KafkaApi(key=11, versions=range(10), handle=handle, needs=Permission(whole=in_group(Operation.READ)))
