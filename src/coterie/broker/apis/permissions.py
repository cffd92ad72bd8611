"""Applies the access rules around each API's handler, by the `Permission` that the API declares.

Items that the client may not access are removed from the request before the handler runs, and added to the response
afterwards with Kafka's error code. If no item is left, the handler is not called.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

from coterie.broker.apis.needs import AccessCheck, Permission
from coterie.broker.node import ApiRequest, Node
from coterie.broker.turns import ELEMENTS_AT_ONCE, in_turns
from coterie.nouns.errors import WireError
from coterie.wire.blank import filled_response
from coterie.wire.errors import ErrorCode
from coterie.wire.shapes import Values


async def _sifted(permission: Permission, access: AccessCheck) -> tuple[Any, dict[str, list[Values]], ErrorCode | None]:
    """The request's body without refused items; the refused items by response field; the error code if the whole
    request is refused."""
    body = access.request.body
    if permission.whole is not None and (error := permission.whole(access)) is not None:
        return body, {}, error
    refused: dict[str, list[Values]] = {}
    for each in permission.each:
        asked = getattr(body, each.asked, None)
        if not asked:
            continue
        errors = [(one, each.needs(access, one)) async for one in in_turns(asked, at_once=ELEMENTS_AT_ONCE)]
        answers = [each.refused(one, error) for one, error in errors if error is not None]
        if answers:
            refused.setdefault(each.answers, []).extend(answers)
            body = replace(body, **{each.asked: tuple(one for one, error in errors if error is None)})
    return body, refused, None


def _is_empty(permission: Permission, body: Any) -> bool:
    return not any(getattr(body, each.asked, None) for each in permission.each)


async def answered(
    permission: Permission, access: AccessCheck, handle: Callable[[Node, ApiRequest], Values | Awaitable[Values | None]]
) -> Values | None:
    """The API's response, restricted to what the client may access.

    :raises WireError: an item is refused, but the request has no response (Produce with acks 0).
    """
    header = access.request.header
    body, refused, error = await _sifted(permission, access)
    if error is not None:
        return filled_response(header.api_key, header.api_version, {"error_code": error})
    values: Values | None = {}
    if not refused or permission.is_asked_anyway or not _is_empty(permission, body):
        told = handle(access.node, replace(access.request, body=body))
        values = await told if isinstance(told, Awaitable) else told
    if values is None or access.request.told("acks", None) == 0:
        if refused:
            raise WireError(f"a request without a response was refused: {refused}")
        return values
    return _merged(permission, access, values, refused, is_left=not _is_empty(permission, body))


def _merged(
    permission: Permission, access: AccessCheck, values: Values, refused: Mapping[str, list[Values]], *, is_left: bool
) -> Values:
    merged = dict(values)
    for field, is_shown in (permission.shown or {}).items():
        merged[field] = [one for one in merged.get(field, ()) if is_shown(access, one)]
    if permission.rewritten is not None:
        merged = dict(permission.rewritten(access, merged))
    for field, answers in refused.items():
        # If no item was left, the request's list is empty, which may mean all items: drop those of the handler.
        merged[field] = [*(merged.get(field, ()) if is_left else ()), *answers]
    if not refused:
        return merged
    header = access.request.header
    return filled_response(header.api_key, header.api_version, merged)
