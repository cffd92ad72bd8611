"""DescribeCluster: this broker, the only one and the controller; the client's authorized operations on the cluster. Not
supported: fenced brokers (KIP-1073) and controllers as endpoints (KIP-919), because there are none."""

from coterie.broker.apis.api import KafkaApi
from coterie.broker.apis.needs import CLUSTER, NOTHING
from coterie.broker.apis.operations import allowed_operations
from coterie.broker.node import NODE_ID, ApiRequest, Node
from coterie.wire.errors import ErrorCode
from coterie.wire.shapes import Values

_BROKER, _CONTROLLER = 1, 2


async def handle(node: Node, request: ApiRequest) -> Values:
    wanted = request.told("endpoint_type", _BROKER)
    if wanted == _CONTROLLER:
        return _refusal(
            ErrorCode.mismatched_endpoint_type, "This endpoint is a broker; the cluster has no separate controllers."
        )
    if wanted != _BROKER:
        return _refusal(ErrorCode.unsupported_endpoint_type, f"Unsupported endpoint type {wanted}")
    return {
        "error_code": ErrorCode.none,
        "error_message": None,
        "endpoint_type": _BROKER,
        "cluster_id": node.log.cluster_id,
        "controller_id": NODE_ID,
        "brokers": [{"broker_id": NODE_ID, "host": node.host, "port": node.port, "rack": None, "is_fenced": False}],
        "cluster_authorized_operations": allowed_operations(
            node, request, CLUSTER, wanted=request.body.include_cluster_authorized_operations
        ),
    }


def _refusal(error: ErrorCode, sentence: str) -> Values:
    return {
        "error_code": error,
        "error_message": sentence,
        "endpoint_type": _BROKER,
        "cluster_id": "",
        "controller_id": -1,
        "brokers": (),
    }


API = KafkaApi(key=60, versions=range(3), handle=handle, needs=NOTHING)
