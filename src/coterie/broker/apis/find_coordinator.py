"""FindCoordinator: v0-6 · this broker, for every group · transactions and share groups: there are none, so their
coordinators are refused."""

from coterie.broker.node import Node, Request
from coterie.wire.errors import ErrorCode
from coterie.wire.shapes import Values

_GROUP = 0


async def handle(node: Node, request: Request) -> Values:
    key_type = request.told("key_type", _GROUP)
    # v4 and later ask for many at once (KIP-699).
    keys = request.told("coordinator_keys", None) or (request.told("key", ""),)
    answers = [_answer(node, key_type, key) for key in keys]
    return {"throttle_time": 0, "coordinators": answers} | answers[0]


def _answer(node: Node, key_type: int, key: str) -> dict[str, object]:
    if key_type == _GROUP:
        return node.address | {"key": key, "error_code": ErrorCode.none, "error_message": None}
    return {
        "key": key,
        "node_id": -1,
        "host": "",
        "port": -1,
        "error_code": ErrorCode.invalid_request,
        "error_message": "This broker coordinates groups only: it has no transactions and no share groups.",
    }
