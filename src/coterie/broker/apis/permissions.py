"""Where the access rules are applied: around each API's handler, by the `Permission` that the API declares.

What the peer may not have is taken out of the request before the API sees it, and put into the answer afterwards with
the code that Kafka gives. When nothing is left to ask for, the API is not asked at all.
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
    """What is left of the request's body, by field of the answer what is refused, and whether all of it is."""
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
    """The API's answer as far as the peer may have it.

    :raises WireError: when the client awaits no answer (a Produce with acks 0) and something of it is refused.
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
            raise WireError(f"a request without an answer was refused: {refused}")
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
        # Where nothing was left to ask for, to ask for nothing may have meant to ask for everything.
        merged[field] = [*(merged.get(field, ()) if is_left else ()), *answers]
    if not refused:
        return merged
    header = access.request.header
    return filled_response(header.api_key, header.api_version, merged)
