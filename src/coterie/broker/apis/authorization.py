"""Declarations of the authorization that an API requires: the operation, the resource, and where the error code of a
refusal is in the response.

Each API requires the same as in Kafka. A check that only one API uses is in that API's module. If a response has no
top-level error code, the check of the whole request is an argument of `make_topic_check`: if it fails, its error code
is that of each item.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coterie.broker.apis.config_resources import ConfigResourceType
from coterie.broker.context import ApiRequest, BrokerContext, requested_topic
from coterie.broker.security.authorizer import CLUSTER_NAME, Acls, ResourceType
from coterie.broker.security.authorizer import Operation as Operation
from coterie.wire.errors import ErrorCode
from coterie.wire.kio_entities import Values

UNAUTHORIZED = "Authorization failed."
"""The error message of each item that the access rules refuse, in responses with an error message for each item."""
_RESOURCE_TYPE_BY_CONFIG_RESOURCE_TYPE = {
    ConfigResourceType.TOPIC: ResourceType.TOPIC,
    ConfigResourceType.GROUP: ResourceType.GROUP,
}
"""The resource type for authorization, by config resource type. For every other config resource type, the operation on
the cluster is authorized."""

CLUSTER, GROUP, TOPIC, TRANSACTIONAL_ID = (
    ResourceType.CLUSTER,
    ResourceType.GROUP,
    ResourceType.TOPIC,
    ResourceType.TRANSACTIONAL_ID,
)
_REFUSAL_CODE_BY_RESOURCE_TYPE = {
    CLUSTER: ErrorCode.cluster_authorization_failed,
    GROUP: ErrorCode.group_authorization_failed,
    TOPIC: ErrorCode.topic_authorization_failed,
    TRANSACTIONAL_ID: ErrorCode.transactional_id_authorization_failed,
}
"""The error code of a refusal, by resource type."""


@dataclass(frozen=True, slots=True)
class AccessCheck:
    """Checks one request's principal and host against the broker's access rules."""

    broker: BrokerContext
    request: ApiRequest
    acls: Acls

    def is_allowed(self, operation: Operation, type_: ResourceType, name: str = CLUSTER_NAME) -> bool:
        """Whether the client may perform ``operation`` on the resource ``name`` of this type."""
        return self.acls.is_allowed(self.request.principal, operation, type_, name, self.request.peer_host)

    def error_code(self, operation: Operation, type_: ResourceType, name: str = CLUSTER_NAME) -> ErrorCode | None:
        """None if the client may perform ``operation`` on the resource ``name``, else the error code for its type."""
        return None if self.is_allowed(operation, type_, name) else _REFUSAL_CODE_BY_RESOURCE_TYPE[type_]

    def is_allowed_on_any(self, operation: Operation, type_: ResourceType) -> bool:
        """Whether the client may perform ``operation`` on at least one resource of this type."""
        return self.acls.is_allowed_on_any(self.request.principal, operation, type_, self.request.peer_host)

    def topic_authorization_error_code(
        self, operation: Operation, entry: Any, name_field: str = "name"
    ) -> ErrorCode | None:
        """TOPIC_AUTHORIZATION_FAILED if ``operation`` is not allowed on the topic that the request's ``entry`` names in
        ``name_field`` or ``topic_id``, else None. None also for an unknown topic id, for which the API itself returns
        an error."""
        name = getattr(entry, name_field, None)
        if name is None:
            topic = requested_topic(self.broker, entry, name_field) if getattr(entry, "topic_id", None) else None
            name = None if topic is None else topic.name
        return None if name is None else self.error_code(operation, TOPIC, name)


ItemCheck = Callable[[AccessCheck, Any], ErrorCode | None]
"""Returns the error code if the client may not access this item of the request, else None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemAuthorization:
    """A request field with a list whose items are authorized one by one."""

    request_field: str
    """The name of the list in the request; the list may be missing in some versions."""
    response_field: str
    """The name of the list in the response to which the entries of refused items are added."""
    check: ItemCheck
    """The check of one item."""
    make_refused_entry: Callable[[Any, ErrorCode], Values]
    """Builds the response entry of a refused item from the request's item and the error code of ``check``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiAuthorization:
    """The authorization that one API requires. If no field is set, every client may send the request."""

    check_request: Callable[[AccessCheck], ErrorCode | None] | None = None
    """Check of the whole request, before all others. If it returns an error code, the handler is not called, and the
    response has this code as top-level ``error_code`` and otherwise empty values."""
    items: Sequence[ItemAuthorization] = ()
    """The request fields whose items are authorized one by one."""
    visibility_check_by_response_field: Mapping[str, Callable[[AccessCheck, Values], bool]] | None = None
    """By the name of a list in the response: a function that returns whether the client may see an item of the list.
    Items that the client may not see are removed from the response without an error code."""
    filter_response: Callable[[AccessCheck, Values], Values] | None = None
    """Returns the response without what the client may not see, for responses with more than the items that the request
    names."""
    calls_handler_if_all_refused: bool = False
    """Whether the handler is called even if all items of the request are refused, because the response has fields that
    do not depend on the items."""


NO_AUTHORIZATION = ApiAuthorization()
"""Every client may send the request."""


# -- checks that several APIs share ------------------------------------------------------------------------------------


def make_group_check(operation: Operation) -> Callable[[AccessCheck], ErrorCode | None]:
    """A function that returns GROUP_AUTHORIZATION_FAILED if the client may not perform ``operation`` on the group in
    the request's field ``group_id``, else None."""
    return lambda access: access.error_code(operation, GROUP, access.request.body.group_id)


def make_cluster_check(operation: Operation) -> Callable[[AccessCheck], ErrorCode | None]:
    """A function that returns CLUSTER_AUTHORIZATION_FAILED if the client may not perform ``operation`` on the cluster,
    else None."""
    return lambda access: access.error_code(operation, CLUSTER)


def make_transactional_id_write_check(field: str = "transactional_id") -> Callable[[AccessCheck], ErrorCode | None]:
    """A function that returns TRANSACTIONAL_ID_AUTHORIZATION_FAILED if the client may not write with the transactional
    id in the request's field ``field``, else None."""
    return lambda access: access.error_code(Operation.WRITE, TRANSACTIONAL_ID, getattr(access.request.body, field))


def transactional_write_or_group_read_error(access: AccessCheck) -> ErrorCode | None:
    """The error code if the client may not write with the request's transactional id, or not read its group; else
    None."""
    return make_transactional_id_write_check()(access) or make_group_check(Operation.READ)(access)


def make_topic_check(
    operation: Operation, check_request: Callable[[AccessCheck], ErrorCode | None] | None = None
) -> ItemCheck:
    """A function that returns TOPIC_AUTHORIZATION_FAILED if the client may not perform ``operation`` on the topic of
    one entry of the request, else None.

    For APIs whose response has no top-level error code, ``check_request`` is a check of the whole request. If it fails,
    its error code is that of each topic.
    """

    def check(access: AccessCheck, asked: Any) -> ErrorCode | None:
        error = check_request(access) if check_request is not None else None
        if error is not None:
            return error
        return access.topic_authorization_error_code(operation, asked, _field_with_topic_name(asked))

    return check


def create_topic_authorization_error(access: AccessCheck, topic: Any) -> ErrorCode | None:
    """TOPIC_AUTHORIZATION_FAILED if the client may create neither all topics (CREATE on the cluster) nor the topic
    named ``topic.name``, else None."""
    if access.is_allowed(Operation.CREATE, CLUSTER):
        return None
    return access.error_code(Operation.CREATE, TOPIC, topic.name)


def topic_authorization_with_partition_errors(
    check: ItemCheck,
    *,
    request_field: str = "topics",
    response_field: str = "topics",
    partition_fields: tuple[str, str] = ("partitions", "partitions"),
    index_fields: tuple[str | None, str] = ("partition_index", "partition_index"),
    error_field: str = "error_code",
) -> ItemAuthorization:
    """The declaration that each topic of a request is authorized with ``check``, for a response that has an entry, with
    an error code, for each partition. Each partition of a refused topic gets the error code, in ``error_field``.

    ``partition_fields`` and ``index_fields`` are pairs of field names, in the request and in the response: the list of
    a topic's partitions, and a partition's index. ``index_fields[0]`` is None if the request's list contains the
    indexes themselves.
    """

    def make_topic_entry_with_partition_errors(topic: Any, error: ErrorCode) -> Values:
        field = _field_with_topic_name(topic)
        numbers = [
            one if index_fields[0] is None else getattr(one, index_fields[0])
            for one in getattr(topic, partition_fields[0])
        ]
        return {
            field: getattr(topic, field, None),
            "topic_id": getattr(topic, "topic_id", None),
            partition_fields[1]: [{index_fields[1]: one, error_field: error} for one in numbers],
        }

    return ItemAuthorization(
        request_field=request_field,
        response_field=response_field,
        check=check,
        make_refused_entry=make_topic_entry_with_partition_errors,
    )


def topic_authorization_with_topic_errors(check: ItemCheck, *, response_field: str) -> ItemAuthorization:
    """The declaration that each topic in the request's list ``topics`` is authorized with ``check``, for a response
    that has one entry with an error code for a topic."""
    return ItemAuthorization(
        request_field="topics",
        response_field=response_field,
        check=check,
        make_refused_entry=lambda topic, error: {
            "name": getattr(topic, "name", None),
            "topic_id": getattr(topic, "topic_id", None),
            "error_code": error,
            "error_message": UNAUTHORIZED,
        },
    )


def name_items_authorization(
    check: ItemCheck, *, request_field: str, response_field: str, name_field: str
) -> ItemAuthorization:
    """The declaration that each name in the request's list ``request_field`` is authorized with ``check``. The response
    entry of a refused name has the name in ``name_field``, and the error code."""
    return ItemAuthorization(
        request_field=request_field,
        response_field=response_field,
        check=check,
        make_refused_entry=lambda one, error: {name_field: one, "error_code": error},
    )


def groups_authorization(operation: Operation, *, request_field: str, response_field: str) -> ApiAuthorization:
    """The declaration that ``operation`` is authorized on each group id in the request's list ``request_field``."""

    def check(access: AccessCheck, group_id: str) -> ErrorCode | None:
        return access.error_code(operation, GROUP, group_id)

    return ApiAuthorization(
        items=[
            name_items_authorization(
                check, request_field=request_field, response_field=response_field, name_field="group_id"
            )
        ]
    )


def config_resources_authorization(operation: Operation, *, response_field: str) -> ApiAuthorization:
    """The declaration that ``operation`` is authorized on each config resource in the request's list ``resources``: on
    the topic or the group, or on the cluster for every other type."""

    def check(access: AccessCheck, resource: Any) -> ErrorCode | None:
        type_ = _RESOURCE_TYPE_BY_CONFIG_RESOURCE_TYPE.get(resource.resource_type)
        if type_ is None:
            return access.error_code(operation, CLUSTER)
        return access.error_code(operation, type_, resource.resource_name)

    def make_refused_entry(resource: Any, error: ErrorCode) -> Values:
        return {
            "error_code": error,
            "error_message": UNAUTHORIZED,
            "resource_type": resource.resource_type,
            "resource_name": resource.resource_name,
        }

    return ApiAuthorization(
        items=[
            ItemAuthorization(
                request_field="resources",
                response_field=response_field,
                check=check,
                make_refused_entry=make_refused_entry,
            )
        ]
    )


def is_topic_visible_or_unnamed(access: AccessCheck, topic: Values) -> bool:
    """Whether the client may describe the topic of a response entry. True for an entry without a topic name, which has
    only the topic id of the request and an error code."""
    return topic["name"] is None or access.is_allowed(Operation.DESCRIBE, TOPIC, topic["name"])


def _field_with_topic_name(topic: Any) -> str:
    """The name of the field with the topic's name in ``topic``, a request's entry: ``topic`` or ``name``, depending on
    the API."""
    return "topic" if hasattr(topic, "topic") else "name"
