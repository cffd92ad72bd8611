"""JoinGroup: v0-9 · joins a classic group, and waits for its join phase to end · static members (KIP-345): a later
issue; they get UNSUPPORTED_VERSION."""

from coterie.broker.apis.static_members import is_static
from coterie.broker.groups import fresh_member_id
from coterie.broker.node import Node, Request
from coterie.groups.messages import JoinGroup, JoinGroupResponse, MemberProtocol
from coterie.nouns.ids import GroupId, MemberId
from coterie.wire.errors import ErrorCode
from coterie.wire.shapes import Values, milliseconds

_MEMBER_ID_REQUIRED_SINCE = 4
_NULLABLE_PROTOCOL_SINCE = 7


async def handle(node: Node, request: Request) -> Values:
    body = request.body
    if is_static(request):
        return _answer(request, JoinGroupResponse(error=ErrorCode.unsupported_version, member_id=body.member_id))
    client_id = request.header.client_id or ""
    session_timeout_ms = milliseconds(body.session_timeout)
    rebalance_timeout = request.told("rebalance_timeout", None)
    response = await node.groups.ask(
        GroupId(body.group_id),
        lambda reply_to: JoinGroup(
            reply_to=reply_to,
            member_id=MemberId(body.member_id),
            fresh_member_id=fresh_member_id(client_id),
            requires_known_member_id=request.header.api_version >= _MEMBER_ID_REQUIRED_SINCE,
            client_id=client_id,
            client_host=f"/{request.peer_host}",
            session_timeout_ms=session_timeout_ms,
            rebalance_timeout_ms=session_timeout_ms if rebalance_timeout is None else milliseconds(rebalance_timeout),
            protocol_type=body.protocol_type,
            protocols=tuple(MemberProtocol(name=one.name, metadata=one.metadata) for one in body.protocols),
        ),
    )
    assert isinstance(response, JoinGroupResponse)
    return _answer(request, response)


def _answer(request: Request, response: JoinGroupResponse) -> Values:
    protocol = response.protocol
    if protocol is None and request.header.api_version < _NULLABLE_PROTOCOL_SINCE:
        protocol = ""
    return {
        "throttle_time": 0,
        "error_code": response.error,
        "generation_id": response.generation,
        "protocol_type": response.protocol_type,
        "protocol_name": protocol,
        "leader": response.leader,
        "skip_assignment": False,
        "member_id": response.member_id,
        "members": [
            {"member_id": member_id, "group_instance_id": None, "metadata": metadata}
            for member_id, metadata in response.members
        ],
    }
