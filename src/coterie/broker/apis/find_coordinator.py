"""FindCoordinator: this broker, for every group and every transactional id. Not supported: share groups (KIP-932); a
request for their coordinator is refused, as for an unknown key type."""

from coterie.broker.apis.api import KafkaApi
from coterie.broker.apis.needs import GROUP, TRANSACTIONAL_ID, AccessCheck, Operation, Permission, each_name
from coterie.broker.node import ApiRequest, Node
from coterie.broker.turns import in_turns
from coterie.wire.errors import ErrorCode
from coterie.wire.shapes import Values

_GROUP, _TRANSACTION = 0, 1
_MANY_SINCE = 4
"""Several keys in one request: KIP-699."""


async def handle(node: Node, request: ApiRequest) -> Values:
    key_type = request.told("key_type", _GROUP)
    if request.header.api_version < _MANY_SINCE:
        return _answer(node, key_type, request.body.key)
    keys = request.body.coordinator_keys
    return {"coordinators": [_answer(node, key_type, key) async for key in in_turns(keys)]}


def _answer(node: Node, key_type: int, key: str) -> dict[str, object]:
    if key_type in (_GROUP, _TRANSACTION):
        return node.address | {"key": key, "error_code": ErrorCode.none, "error_message": None}
    return {
        "key": key,
        "node_id": -1,
        "host": "",
        "port": -1,
        "error_code": ErrorCode.invalid_request,
        "error_message": "This broker coordinates groups and transactions only; it has no share groups.",
    }


# -- authorization -----------------------------------------------------------------------------------------------------


def _coordinator(access: AccessCheck, key: str) -> ErrorCode | None:
    type_ = TRANSACTIONAL_ID if access.request.told("key_type", 0) == _TRANSACTION else GROUP
    return access.refusal(Operation.DESCRIBE, type_, key)


def _one_coordinator(access: AccessCheck) -> ErrorCode | None:
    """Before v4 a request has one key."""
    key = access.request.told("key", None)
    return None if key is None else _coordinator(access, key)


_NEEDS = Permission(
    whole=_one_coordinator,
    each=[each_name(_coordinator, asked="coordinator_keys", answers="coordinators", name="key")],
)
API = KafkaApi(key=10, versions=range(7), handle=handle, needs=_NEEDS)
