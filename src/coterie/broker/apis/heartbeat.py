"""Heartbeat: extends a member's session, and reports a rebalance of the group with an error code in the response."""

from collections.abc import Awaitable

from coterie.broker.apis.api import KafkaApi
from coterie.broker.apis.authorization import ApiAuthorization, Operation, make_group_check
from coterie.broker.context import ApiRequest, BrokerContext
from coterie.groups.classic.messages import Heartbeat, HeartbeatResponse, Response
from coterie.nouns.ids import GenerationId, GroupId, MemberId
from coterie.wire.kio_entities import Values


def handle(broker: BrokerContext, request: ApiRequest) -> Values | Awaitable[Values]:
    """The response values at once if the group is loaded and its earlier records are durable, which needs no asyncio
    task; else an awaitable for them."""
    body = request.body
    answer = broker.groups.ask_nowait(
        GroupId(body.group_id),
        lambda reply_to: Heartbeat(
            reply_to=reply_to,
            member_id=MemberId(body.member_id),
            generation=GenerationId(body.generation_id),
            instance_id=request.instance_id,
        ),
    )
    return _response_values(answer) if isinstance(answer, HeartbeatResponse) else _await_response_values(answer)


async def _await_response_values(answer: Response | Awaitable[Response]) -> Values:
    assert isinstance(answer, Awaitable)
    return _response_values(await answer)


def _response_values(response: Response) -> Values:
    return {"error_code": response.error}


API = KafkaApi(
    key=12,
    versions=range(5),
    handle=handle,
    authorization=ApiAuthorization(check_request=make_group_check(Operation.READ)),
)
