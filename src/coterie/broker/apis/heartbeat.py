"""Heartbeat: v0-4 · keeps a member's session, tells of a rebalance · static members (KIP-345): a later issue."""

from coterie.broker.apis.static_members import is_static
from coterie.broker.node import Node, Request
from coterie.groups.messages import Heartbeat
from coterie.nouns.ids import Generation, GroupId, MemberId
from coterie.wire.errors import ErrorCode
from coterie.wire.shapes import Values


async def handle(node: Node, request: Request) -> Values:
    body = request.body
    if is_static(request):
        return {"throttle_time": 0, "error_code": ErrorCode.unsupported_version}
    response = await node.groups.ask(
        GroupId(body.group_id),
        lambda reply_to: Heartbeat(
            reply_to=reply_to, member_id=MemberId(body.member_id), generation=Generation(body.generation_id)
        ),
    )
    return {"throttle_time": 0, "error_code": response.error}
