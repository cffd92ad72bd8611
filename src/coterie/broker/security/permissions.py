"""Where the authorizer is asked: around each API, whose own module knows nothing of it (`needs` says what each needs).

What the peer may not have is taken out of the request before the API sees it, and put into the answer afterwards with
the code that Kafka gives. When nothing is left to ask for, the API is not asked at all.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from coterie.broker.node import Node, Request, topic_of
from coterie.broker.security.authorizer import THE_CLUSTER, Authorizer, Operation, ResourceType
from coterie.broker.turns import ELEMENTS_AT_ONCE, in_turns
from coterie.nouns.errors import WireError
from coterie.wire.blank import filled_response
from coterie.wire.errors import ErrorCode
from coterie.wire.shapes import Values

CLUSTER, GROUP, TOPIC, TRANSACTIONAL_ID = (
    ResourceType.CLUSTER,
    ResourceType.GROUP,
    ResourceType.TOPIC,
    ResourceType.TRANSACTIONAL_ID,
)
_CODES = {
    CLUSTER: ErrorCode.cluster_authorization_failed,
    GROUP: ErrorCode.group_authorization_failed,
    TOPIC: ErrorCode.topic_authorization_failed,
    TRANSACTIONAL_ID: ErrorCode.transactional_id_authorization_failed,
}


@dataclass(frozen=True, slots=True)
class Asking:
    """One request, and who may say no to it."""

    node: Node
    request: Request
    authorizer: Authorizer

    def may(self, operation: Operation, type_: ResourceType, name: str = THE_CLUSTER) -> bool:
        return self.authorizer.may(self.request.principal, operation, type_, name, self.request.peer_host)

    def refusal(self, operation: Operation, type_: ResourceType, name: str = THE_CLUSTER) -> ErrorCode | None:
        return None if self.may(operation, type_, name) else _CODES[type_]

    def may_anywhere(self, operation: Operation, type_: ResourceType) -> bool:
        return self.authorizer.may_anywhere(self.request.principal, operation, type_, self.request.peer_host)

    def topic(self, operation: Operation, asked: Any, name_field: str = "name") -> ErrorCode | None:
        """Of a topic by name or by id; an id that is nobody's is not refused: its API says so."""
        name = getattr(asked, name_field, None)
        if name is None:
            topic = topic_of(self.node, asked, name_field) if getattr(asked, "topic_id", None) else None
            name = None if topic is None else topic.name
        return None if name is None else self.refusal(operation, TOPIC, name)


Needs = Callable[[Asking, Any], ErrorCode | None]
"""With which code one of the things that are asked for is refused, if it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Each:
    """A field of the request with things that are answered one by one."""

    asked: str
    answers: str
    needs: Needs
    refused: Callable[[Any, ErrorCode], Values]


@dataclass(frozen=True, slots=True, kw_only=True)
class Permission:
    """Of one API. All that is empty needs nothing."""

    whole: Callable[[Asking], ErrorCode | None] | None = None
    """A refusal of the whole request, told in ``error_code`` at the top of the answer."""
    each: Sequence[Each] = ()
    shown: Mapping[str, Callable[[Asking, Values], bool]] | None = None
    """By field of the answer, which of its things are for the peer's eyes."""
    rewritten: Callable[[Asking, Values], Values] | None = None
    """What the peer sees of an answer that tells of things which were not asked for by name."""
    is_asked_anyway: bool = False
    """Also when nothing is left of what was asked for: the answer says more."""


async def _sifted(permission: Permission, asking: Asking) -> tuple[Any, dict[str, list[Values]], ErrorCode | None]:
    """What is left of the request's body, by field of the answer what is refused, and whether all of it is."""
    body = asking.request.body
    if permission.whole is not None and (error := permission.whole(asking)) is not None:
        return body, {}, error
    refused: dict[str, list[Values]] = {}
    for each in permission.each:
        asked = getattr(body, each.asked, None)
        if not asked:
            continue
        errors = [(one, each.needs(asking, one)) async for one in in_turns(asked, at_once=ELEMENTS_AT_ONCE)]
        answers = [each.refused(one, error) for one, error in errors if error is not None]
        if answers:
            refused.setdefault(each.answers, []).extend(answers)
            body = replace(body, **{each.asked: tuple(one for one, error in errors if error is None)})
    return body, refused, None


def _is_empty(permission: Permission, body: Any) -> bool:
    return not any(getattr(body, each.asked, None) for each in permission.each)


async def answered(
    permission: Permission | None, asking: Asking, handle: Callable[[Node, Request], Values | Awaitable[Values | None]]
) -> Values | None:
    """The API's answer as far as the peer may have it.

    :raises WireError: when there is no entry for the API, or nobody awaits the answer that would tell of a refusal.
    """
    header = asking.request.header
    if permission is None:
        # A new API that nobody has thought about yet is closed, not open.
        raise WireError(f"API {header.api_key} is not served where there are rules: nobody has said what it needs")
    body, refused, error = await _sifted(permission, asking)
    if error is not None:
        return filled_response(header.api_key, header.api_version, {"error_code": error})
    values: Values | None = {}
    if not refused or permission.is_asked_anyway or not _is_empty(permission, body):
        told = handle(asking.node, replace(asking.request, body=body))
        values = await told if isinstance(told, Awaitable) else told
    if values is None or (header.api_key == _PRODUCE and body.acks == 0):
        if refused:
            raise WireError(f"a request that nobody awaits an answer to was refused: {refused}")
        return values
    return _merged(permission, asking, values, refused, is_left=not _is_empty(permission, body))


def _merged(
    permission: Permission, asking: Asking, values: Values, refused: Mapping[str, list[Values]], *, is_left: bool
) -> Values:
    merged = dict(values)
    for field, is_shown in (permission.shown or {}).items():
        merged[field] = [one for one in merged.get(field, ()) if is_shown(asking, one)]
    if permission.rewritten is not None:
        merged = dict(permission.rewritten(asking, merged))
    for field, answers in refused.items():
        # Where nothing was left to ask for, to ask for nothing may have meant to ask for everything.
        merged[field] = [*(merged.get(field, ()) if is_left else ()), *answers]
    if not refused:
        return merged
    header = asking.request.header
    return filled_response(header.api_key, header.api_version, merged)


_PRODUCE = 0
