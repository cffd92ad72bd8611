"""Applies the access rules around each API's handler, by the `ApiAuthorization` that the API declares.

Items that the client may not access are removed from the request before the handler runs. Their entries, with Kafka's
error code, are added to the response afterwards. If items were removed and none is left, the handler is not called,
unless the API declares ``calls_handler_if_all_refused``.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

from coterie.broker.apis.authorization import AccessCheck, ApiAuthorization
from coterie.broker.context import ApiRequest, BrokerContext
from coterie.broker.loop_yield import ELEMENTS_WITHOUT_YIELD_MAX, yielding
from coterie.nouns.errors import WireError
from coterie.wire.empty_values import response_with_empty_values
from coterie.wire.errors import ErrorCode
from coterie.wire.kio_entities import Values


async def _authorize_request_and_items(
    authorization: ApiAuthorization, access: AccessCheck
) -> tuple[Any, dict[str, list[Values]], ErrorCode | None]:
    """Check the request and its items against the access rules. Returns the request's body without the refused items;
    the response entries of the refused items, by response field; and the error code if the whole request is refused,
    else None."""
    body = access.request.body
    if authorization.check_request is not None and (error := authorization.check_request(access)) is not None:
        return body, {}, error
    refused: dict[str, list[Values]] = {}
    for each in authorization.items:
        asked = getattr(body, each.request_field, None)
        if not asked:
            continue
        errors = [
            (one, each.check(access, one)) async for one in yielding(asked, yield_every=ELEMENTS_WITHOUT_YIELD_MAX)
        ]
        answers = [each.make_refused_entry(one, error) for one, error in errors if error is not None]
        if answers:
            refused.setdefault(each.response_field, []).extend(answers)
            body = replace(body, **{each.request_field: tuple(one for one, error in errors if error is None)})
    return body, refused, None


def _has_no_items(authorization: ApiAuthorization, body: Any) -> bool:
    """Whether all request fields whose items are authorized one by one are empty, missing or null."""
    return not any(getattr(body, each.request_field, None) for each in authorization.items)


async def authorized_response(
    authorization: ApiAuthorization,
    access: AccessCheck,
    handle: Callable[[BrokerContext, ApiRequest], Values | Awaitable[Values | None]],
) -> Values | None:
    """Let ``handle`` handle the request without the items that the client may not access. Returns the values of the
    response, with an error code for each refused item and without what the client may not see; None if the request has
    no response. ``handle`` is not called if the whole request is refused, or all items of an API that does not declare
    ``calls_handler_if_all_refused``.

    :raises WireError: when an item is refused, but the request has no response (Produce with acks 0). As in Kafka, the
        connection is then closed: the client would not notice the refusal otherwise.
    """
    header = access.request.header
    body, refused, error = await _authorize_request_and_items(authorization, access)
    if error is not None:
        return response_with_empty_values(header.api_key, header.api_version, {"error_code": error})
    values: Values | None = {}
    if not refused or authorization.calls_handler_if_all_refused or not _has_no_items(authorization, body):
        result = handle(access.broker, replace(access.request, body=body))
        values = await result if isinstance(result, Awaitable) else result
    if values is None or access.request.field_or_default("acks", None) == 0:
        if refused:
            raise WireError(
                "the access rules refuse a Produce request with acks=0; it has no response, so only the end of the"
                f" connection reports this to the client: {refused}"
            )
        return values
    return _filter_and_add_refused_entries(
        authorization, access, values, refused, handler_received_items=not _has_no_items(authorization, body)
    )


def _filter_and_add_refused_entries(
    authorization: ApiAuthorization,
    access: AccessCheck,
    values: Values,
    refused: Mapping[str, list[Values]],
    *,
    handler_received_items: bool,
) -> Values:
    """The handler's response ``values`` without what the client may not see, and with the entries of the ``refused``
    items. ``handler_received_items``: whether the handler's request had at least one item. If it had none, because all
    items were refused, the handler may have returned entries for all items that exist: these entries are dropped. If
    items were refused, all other fields of the response that ``values`` lack get empty values."""
    merged = dict(values)
    for field, is_shown in (authorization.visibility_check_by_response_field or {}).items():
        merged[field] = [one for one in merged.get(field, ()) if is_shown(access, one)]
    if authorization.filter_response is not None:
        merged = dict(authorization.filter_response(access, merged))
    for field, answers in refused.items():
        # If no item was left, the request's list is empty, which may mean all items: drop those of the handler.
        merged[field] = [*(merged.get(field, ()) if handler_received_items else ()), *answers]
    if not refused:
        return merged
    header = access.request.header
    return response_with_empty_values(header.api_key, header.api_version, merged)
