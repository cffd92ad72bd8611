"""DescribeCluster: returns the cluster's only broker, which is also its controller, and the client's authorized
operations on the cluster (KIP-430). Not supported: fenced brokers (KIP-1073) and controllers as endpoints (KIP-919),
because there are none."""

from coterie.broker.apis.api import KafkaApi
from coterie.broker.apis.authorization import CLUSTER, NO_AUTHORIZATION
from coterie.broker.apis.operations import allowed_operations_bit_field
from coterie.broker.context import NODE_ID, ApiRequest, BrokerContext
from coterie.wire.errors import ErrorCode
from coterie.wire.kio_entities import Values

_BROKER, _CONTROLLER = 1, 2
"""Kafka's numbers of the endpoint types (KIP-919)."""


async def handle(broker: BrokerContext, request: ApiRequest) -> Values:
    wanted = request.field_or_default("endpoint_type", _BROKER)
    if wanted == _CONTROLLER:
        return _error_values(
            ErrorCode.mismatched_endpoint_type, "This endpoint is a broker; the cluster has no separate controllers."
        )
    if wanted != _BROKER:
        return _error_values(ErrorCode.unsupported_endpoint_type, f"Unsupported endpoint type {wanted}")
    return {
        "error_code": ErrorCode.none,
        "error_message": None,
        "endpoint_type": _BROKER,
        "cluster_id": broker.log.cluster_id,
        "controller_id": NODE_ID,
        "brokers": [{"broker_id": NODE_ID, "host": broker.host, "port": broker.port, "rack": None, "is_fenced": False}],
        "cluster_authorized_operations": allowed_operations_bit_field(
            broker, request, CLUSTER, is_requested=request.body.include_cluster_authorized_operations
        ),
    }


def _error_values(error: ErrorCode, error_message: str) -> Values:
    """The response to a request of an endpoint type that this broker does not support."""
    return {
        "error_code": error,
        "error_message": error_message,
        "endpoint_type": _BROKER,
        "cluster_id": "",
        "controller_id": -1,
        "brokers": (),
    }


API = KafkaApi(key=60, versions=range(3), handle=handle, authorization=NO_AUTHORIZATION)
