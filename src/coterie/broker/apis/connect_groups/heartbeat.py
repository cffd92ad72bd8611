"""ConnectGroupHeartbeat: a member joins, reports its state, and receives its assignment (K848C).

The broker may delay the response until the group has something new for the member, for at most the ``MaxWaitMs`` of the
request.
"""

from collections.abc import Awaitable
from dataclasses import replace

from coterie.broker.apis.api import KafkaApi
from coterie.broker.apis.authorization import ApiAuthorization, Operation, make_group_check
from coterie.broker.apis.connect_groups.events import NO_REPLY, heartbeat_event
from coterie.broker.apis.connect_groups.found_group import classic_group_error, require_connect_groups
from coterie.broker.apis.connect_groups.response_values import heartbeat_values
from coterie.broker.context import ApiRequest, BrokerContext
from coterie.broker.loop_yield import ELEMENTS_WITHOUT_YIELD_MAX
from coterie.groups.connect.messages import Heartbeat, Response
from coterie.nouns.connect_error_codes import ConnectErrorCode
from coterie.nouns.connect_groups import HeartbeatResponse
from coterie.nouns.ids import GroupId, MemberEpoch, ReplyTo
from coterie.wire.connect_group_jobs import InvalidFieldError
from coterie.wire.kio_entities import Values


def handle(broker: BrokerContext, request: ApiRequest) -> Values | Awaitable[Values]:
    """The response values at once if the response may be sent at once and is small, which needs no asyncio task; else
    an awaitable for them."""
    group_id = GroupId(request.body.group_id)
    if (error := classic_group_error(broker, group_id)) is not None:
        return _refusal_values(request, ConnectErrorCode.GROUP_ID_NOT_FOUND, error)

    if request.has_many_elements:
        return _convert_on_thread_and_handle(broker, request)

    def record_and_make_heartbeat_with_limited_wait(reply_to: ReplyTo) -> Heartbeat:
        return request.connection.record_heartbeat_and_limit_wait(
            request.number, group_id, _to_event(request, reply_to), may_hold=True
        )

    try:
        answer = require_connect_groups(broker).ask_nowait(group_id, record_and_make_heartbeat_with_limited_wait)
    except InvalidFieldError as error:
        return _refusal_values(request, ConnectErrorCode.INVALID_REQUEST, str(error))
    if isinstance(answer, Awaitable):
        return _await_record_and_build_values(request, answer)
    values = _record_response_and_build_values(request, answer)
    return values if _may_encode_on_event_loop(answer) else _values_as_awaitable(values)


async def _convert_on_thread_and_handle(broker: BrokerContext, request: ApiRequest) -> Values:
    """Handle a request with so many jobs that they are converted on a thread."""
    group_id = GroupId(request.body.group_id)
    try:
        event = await broker.codec_thread.run(_to_event, request, NO_REPLY)
    except InvalidFieldError as error:
        return _refusal_values(request, ConnectErrorCode.INVALID_REQUEST, str(error))
    if (group_error := classic_group_error(broker, group_id)) is not None:  # one may have been created meanwhile
        return _refusal_values(request, ConnectErrorCode.GROUP_ID_NOT_FOUND, group_error)

    def record_and_make_heartbeat_with_limited_wait(reply_to: ReplyTo) -> Heartbeat:
        return request.connection.record_heartbeat_and_limit_wait(
            request.number, group_id, replace(event, reply_to=reply_to), may_hold=False
        )

    answer = require_connect_groups(broker).ask_nowait(group_id, record_and_make_heartbeat_with_limited_wait)
    if isinstance(answer, Awaitable):
        return await _await_record_and_build_values(request, answer)
    return _record_response_and_build_values(request, answer)


def _to_event(request: ApiRequest, reply_to: ReplyTo) -> Heartbeat:
    """The event of the request.

    :raises InvalidFieldError: when a field has a value that the protocol does not allow.
    """
    return heartbeat_event(
        request.body,
        reply_to=reply_to,
        connection=request.connection.number,
        client_id=request.header.client_id or "",
        client_host=f"/{request.peer_host}",
    )


async def _await_record_and_build_values(request: ApiRequest, answer: Awaitable[Response]) -> Values:
    try:
        return _record_response_and_build_values(request, await answer)
    except InvalidFieldError as error:
        return _refusal_values(request, ConnectErrorCode.INVALID_REQUEST, str(error))
    finally:
        request.connection.record_heartbeat_end_and_membership(request.number, None)


async def _values_as_awaitable(values: Values) -> Values:
    """Return ``values``. As a coroutine, because the connection encodes awaited values on a thread if they have many
    elements."""
    return values


def _may_encode_on_event_loop(response: Response) -> bool:
    """Whether the response has no assignment, or one of so few jobs that it may be encoded on the event loop."""
    assert isinstance(response, HeartbeatResponse)
    return response.assignment is None or len(response.assignment.jobs) <= ELEMENTS_WITHOUT_YIELD_MAX // 2


def _record_response_and_build_values(request: ApiRequest, response: Response) -> Values:
    """Note in the connection that the heartbeat has its response, and return the values of ``response``."""
    assert isinstance(response, HeartbeatResponse)
    request.connection.record_heartbeat_end_and_membership(request.number, response)
    return heartbeat_values(response)


def _refusal_values(request: ApiRequest, error: ConnectErrorCode, message: str) -> Values:
    epoch = MemberEpoch(request.body.member_epoch)
    return heartbeat_values(HeartbeatResponse(error=error, message=message, member_epoch=epoch))


API = KafkaApi(
    key=10000,
    versions=range(1),
    handle=handle,
    authorization=ApiAuthorization(check_request=make_group_check(Operation.READ)),
    has_error_message=True,
)
