"""Heartbeat: v0-4 · keeps a member's session, tells of a rebalance · leaves nothing out."""

from coterie.broker.apis.static_members import instance_id_of
from coterie.broker.node import Node, Request
from coterie.groups.messages import Heartbeat
from coterie.nouns.ids import Generation, GroupId, MemberId
from coterie.wire.shapes import Values


async def handle(node: Node, request: Request) -> Values:
    body = request.body
    response = await node.groups.ask(
        GroupId(body.group_id),
        lambda reply_to: Heartbeat(
            reply_to=reply_to,
            member_id=MemberId(body.member_id),
            generation=Generation(body.generation_id),
            instance_id=instance_id_of(request),
        ),
    )
    return {"throttle_time": 0, "error_code": response.error}
