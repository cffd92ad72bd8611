"""FindCoordinator: returns this broker's address for every group id and every transactional id. Not supported: share
groups (KIP-932); a request for the coordinator of a share group is refused like a request with an unknown key type."""

from coterie.broker.apis.api import KafkaApi
from coterie.broker.apis.authorization import (
    GROUP,
    TRANSACTIONAL_ID,
    AccessCheck,
    ApiAuthorization,
    Operation,
    name_items_authorization,
)
from coterie.broker.context import ApiRequest, BrokerContext
from coterie.broker.loop_yield import yielding
from coterie.wire.errors import ErrorCode
from coterie.wire.kio_entities import Values

_GROUP, _TRANSACTION = 0, 1
"""Kafka's numbers of the key types: the key is a group id, or a transactional id."""
_BATCHED_SINCE = 4
"""The first version with several keys in one request (KIP-699)."""


async def handle(broker: BrokerContext, request: ApiRequest) -> Values:
    key_type = request.field_or_default("key_type", _GROUP)
    if request.header.api_version < _BATCHED_SINCE:
        return _coordinator_values(broker, key_type, request.body.key)
    keys = request.body.coordinator_keys
    return {"coordinators": [_coordinator_values(broker, key_type, key) async for key in yielding(keys)]}


def _coordinator_values(broker: BrokerContext, key_type: int, key: str) -> dict[str, object]:
    """The response entry of one key: this broker's address, or an error for an unsupported key type."""
    if key_type in (_GROUP, _TRANSACTION):
        return broker.address_fields | {"key": key, "error_code": ErrorCode.none, "error_message": None}
    return {
        "key": key,
        "node_id": -1,
        "host": "",
        "port": -1,
        "error_code": ErrorCode.invalid_request,
        "error_message": "This broker coordinates groups and transactions only; it has no share groups.",
    }


# -- authorization -----------------------------------------------------------------------------------------------------


def _coordinator_authorization_error(access: AccessCheck, key: str) -> ErrorCode | None:
    """The error code if the client may not describe the group or the transactional id ``key``, else None."""
    type_ = TRANSACTIONAL_ID if access.request.field_or_default("key_type", 0) == _TRANSACTION else GROUP
    return access.error_code(Operation.DESCRIBE, type_, key)


def _single_coordinator_authorization_error(access: AccessCheck) -> ErrorCode | None:
    """The error code if the client may not describe the only key of a request before v4; None for later versions, whose
    keys are authorized one by one."""
    key = access.request.field_or_default("key", None)
    return None if key is None else _coordinator_authorization_error(access, key)


_AUTHORIZATION = ApiAuthorization(
    check_request=_single_coordinator_authorization_error,
    items=[
        name_items_authorization(
            _coordinator_authorization_error,
            request_field="coordinator_keys",
            response_field="coordinators",
            name_field="key",
        )
    ],
)
API = KafkaApi(key=10, versions=range(7), handle=handle, authorization=_AUTHORIZATION)
