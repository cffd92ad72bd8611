"""ListConfigResources: topics, this broker, and the groups with configs (KIP-1142). Not supported: client metrics, the
only type in v0; there are none."""

from coterie.broker.apis.api import KafkaApi
from coterie.broker.apis.needs import Operation, Permission, in_cluster
from coterie.broker.apis.resources import ConfigResourceType
from coterie.broker.node import NODE_ID, ApiRequest, Node
from coterie.wire.errors import ErrorCode
from coterie.wire.shapes import Values

_LOGGER, _CLIENT_METRICS = 8, 16
"""Types that are valid in Kafka; this broker has no such resources."""


async def handle(node: Node, request: ApiRequest) -> Values:
    names = {
        ConfigResourceType.TOPIC: sorted(node.log.topics),
        ConfigResourceType.BROKER: [str(NODE_ID)],
        ConfigResourceType.GROUP: sorted(node.log.group_configs),
    }
    # Requests of v0 are for client metrics only.
    wanted = request.told("resource_types", (_CLIENT_METRICS,)) or tuple(names)
    if {*wanted} - {*ConfigResourceType, _LOGGER, _CLIENT_METRICS}:
        return _answer(ErrorCode.unsupported_version, {})
    return _answer(ErrorCode.none, {type_: names for type_, names in names.items() if type_ in wanted})


def _answer(error: ErrorCode, names: dict[ConfigResourceType, list[str]]) -> Values:
    return {
        "error_code": error,
        "config_resources": [
            {"resource_type": type_, "resource_name": name} for type_, some in names.items() for name in some
        ],
    }


API = KafkaApi(key=74, versions=range(2), handle=handle, needs=Permission(whole=in_cluster(Operation.DESCRIBE_CONFIGS)))
