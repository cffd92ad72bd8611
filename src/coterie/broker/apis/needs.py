"""Declarations of the authorization that an API requires: operation, resource and the error code of a refusal.

The requirements are Kafka's. A check that only one API uses is in that API's module.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coterie.broker.apis.resources import ConfigResourceType
from coterie.broker.node import ApiRequest, Node, topic_of
from coterie.broker.security.authorizer import THE_CLUSTER, ResourceType, Rules
from coterie.broker.security.authorizer import Operation as Operation
from coterie.wire.errors import ErrorCode
from coterie.wire.shapes import Values

UNAUTHORIZED = "Authorization failed."
_RESOURCES = {ConfigResourceType.TOPIC: ResourceType.TOPIC, ConfigResourceType.GROUP: ResourceType.GROUP}
"""The resource type for authorization, by config resource type; all others are resources of the cluster."""

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
class AccessCheck:
    """One request, and the access rules that are applied to it."""

    node: Node
    request: ApiRequest
    rules: Rules

    def may(self, operation: Operation, type_: ResourceType, name: str = THE_CLUSTER) -> bool:
        return self.rules.may(self.request.principal, operation, type_, name, self.request.peer_host)

    def refusal(self, operation: Operation, type_: ResourceType, name: str = THE_CLUSTER) -> ErrorCode | None:
        return None if self.may(operation, type_, name) else _CODES[type_]

    def may_anywhere(self, operation: Operation, type_: ResourceType) -> bool:
        return self.rules.may_anywhere(self.request.principal, operation, type_, self.request.peer_host)

    def topic(self, operation: Operation, asked: Any, name_field: str = "name") -> ErrorCode | None:
        """The error code if ``operation`` on the topic, given by name or id, is not allowed, else None; None also for
        an unknown id, for which the API itself returns an error."""
        name = getattr(asked, name_field, None)
        if name is None:
            topic = topic_of(self.node, asked, name_field) if getattr(asked, "topic_id", None) else None
            name = None if topic is None else topic.name
        return None if name is None else self.refusal(operation, TOPIC, name)


Needs = Callable[[AccessCheck, Any], ErrorCode | None]
"""Returns the error code if one item of the request is refused, else None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Each:
    """A request field whose items are authorized one by one: ``asked`` is the request field, ``answers`` the response
    field, ``needs`` the check, and ``refused`` builds the response entry of a refused item."""

    asked: str
    answers: str
    needs: Needs
    refused: Callable[[Any, ErrorCode], Values]


@dataclass(frozen=True, slots=True, kw_only=True)
class Permission:
    """The authorization that one API requires. Without any field set, the API is allowed to all clients."""

    whole: Callable[[AccessCheck], ErrorCode | None] | None = None
    """Check of the whole request; its error code is the top-level ``error_code`` of the response."""
    each: Sequence[Each] = ()
    shown: Mapping[str, Callable[[AccessCheck, Values], bool]] | None = None
    """By response field, whether the client may see an item of that field."""
    rewritten: Callable[[AccessCheck, Values], Values] | None = None
    """Filter of a response that contains things that the request did not name."""
    is_asked_anyway: bool = False
    """Whether to call the handler even if all items are refused, because the response has other fields."""


NOTHING = Permission()


# -- checks that several APIs share ------------------------------------------------------------------------------------


def in_group(operation: Operation) -> Callable[[AccessCheck], ErrorCode | None]:
    return lambda access: access.refusal(operation, GROUP, access.request.body.group_id)


def in_cluster(operation: Operation) -> Callable[[AccessCheck], ErrorCode | None]:
    return lambda access: access.refusal(operation, CLUSTER)


def in_transaction(field: str = "transactional_id") -> Callable[[AccessCheck], ErrorCode | None]:
    return lambda access: access.refusal(Operation.WRITE, TRANSACTIONAL_ID, getattr(access.request.body, field))


def on_topic(operation: Operation, first: Callable[[AccessCheck], ErrorCode | None] | None = None) -> Needs:
    """Check ``operation`` on the topic, after the check ``first`` of the whole request, for APIs whose response has
    the error code of ``first`` for each topic."""

    def needs(access: AccessCheck, asked: Any) -> ErrorCode | None:
        error = first(access) if first is not None else None
        return error if error is not None else access.topic(operation, asked, _name_field(asked))

    return needs


def creation(access: AccessCheck, asked: Any) -> ErrorCode | None:
    if access.may(Operation.CREATE, CLUSTER):
        return None
    return access.refusal(Operation.CREATE, TOPIC, asked.name)


def each_partition(
    needs: Needs,
    *,
    asked: str = "topics",
    answers: str = "topics",
    parts: tuple[str, str] = ("partitions", "partitions"),
    number: tuple[str | None, str] = ("partition_index", "partition_index"),
    error_field: str = "error_code",
) -> Each:
    """Topics with partitions that have an entry each in the response; the pairs are field names of request and
    response. ``number[0]`` None: the request has a list of partition indexes."""

    def refused(topic: Any, error: ErrorCode) -> Values:
        field = _name_field(topic)
        numbers = [one if number[0] is None else getattr(one, number[0]) for one in getattr(topic, parts[0])]
        return {
            field: getattr(topic, field, None),
            "topic_id": getattr(topic, "topic_id", None),
            parts[1]: [{number[1]: one, error_field: error} for one in numbers],
        }

    return Each(asked=asked, answers=answers, needs=needs, refused=refused)


def each_topic(needs: Needs, *, answers: str) -> Each:
    return Each(
        asked="topics",
        answers=answers,
        needs=needs,
        refused=lambda topic, error: {
            "name": getattr(topic, "name", None),
            "topic_id": getattr(topic, "topic_id", None),
            "error_code": error,
            "error_message": UNAUTHORIZED,
        },
    )


def each_name(needs: Needs, *, asked: str, answers: str, name: str) -> Each:
    """A list of names."""
    return Each(asked=asked, answers=answers, needs=needs, refused=lambda one, error: {name: one, "error_code": error})


def on_groups(operation: Operation, *, asked: str, answers: str) -> Permission:
    def needs(access: AccessCheck, group_id: str) -> ErrorCode | None:
        return access.refusal(operation, GROUP, group_id)

    return Permission(each=[each_name(needs, asked=asked, answers=answers, name="group_id")])


def on_resources(operation: Operation, *, answers: str) -> Permission:
    def needs(access: AccessCheck, asked: Any) -> ErrorCode | None:
        type_ = _RESOURCES.get(asked.resource_type)
        if type_ is None:
            return access.refusal(operation, CLUSTER)
        return access.refusal(operation, type_, asked.resource_name)

    def refused(asked: Any, error: ErrorCode) -> Values:
        return {
            "error_code": error,
            "error_message": UNAUTHORIZED,
            "resource_type": asked.resource_type,
            "resource_name": asked.resource_name,
        }

    return Permission(each=[Each(asked="resources", answers=answers, needs=needs, refused=refused)])


def is_topic_shown(access: AccessCheck, topic: Values) -> bool:
    return topic["name"] is None or access.may(Operation.DESCRIBE, TOPIC, topic["name"])


def _name_field(asked: Any) -> str:
    return "topic" if hasattr(asked, "topic") else "name"
