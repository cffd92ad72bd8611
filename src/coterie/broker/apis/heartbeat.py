"""Heartbeat: extends a member's session and reports a rebalance."""

from collections.abc import Awaitable

from coterie.broker.apis.api import KafkaApi
from coterie.broker.apis.needs import Operation, Permission, in_group
from coterie.broker.node import ApiRequest, Node
from coterie.groups.classic.messages import Heartbeat, HeartbeatResponse, Response
from coterie.nouns.ids import Generation, GroupId, MemberId
from coterie.wire.shapes import Values


def handle(node: Node, request: ApiRequest) -> Values | Awaitable[Values]:
    body = request.body
    answer = node.groups.ask_now(
        GroupId(body.group_id),
        lambda reply_to: Heartbeat(
            reply_to=reply_to,
            member_id=MemberId(body.member_id),
            generation=Generation(body.generation_id),
            instance_id=request.instance_id,
        ),
    )
    return _told(answer) if isinstance(answer, HeartbeatResponse) else _told_later(answer)


async def _told_later(answer: Response | Awaitable[Response]) -> Values:
    assert isinstance(answer, Awaitable)
    return _told(await answer)


def _told(response: Response) -> Values:
    return {"error_code": response.error}


API = KafkaApi(key=12, versions=range(5), handle=handle, needs=Permission(whole=in_group(Operation.READ)))
