"""ListConfigResources: returns the names of all topics, this broker's id, and the ids of the groups on which configs
are set (KIP-1142); or only those of the requested types. Not supported: client metrics, of which there are none; v0 can
only request these, so its response is empty."""

from coterie.broker.apis.api import KafkaApi
from coterie.broker.apis.authorization import ApiAuthorization, Operation, make_cluster_check
from coterie.broker.apis.config_resources import ConfigResourceType
from coterie.broker.context import NODE_ID, ApiRequest, BrokerContext
from coterie.wire.errors import ErrorCode
from coterie.wire.kio_entities import Values

_LOGGER, _CLIENT_METRICS = 8, 16
"""Kafka's numbers of resource types that a request may contain, but of which this broker has no resources."""


async def handle(broker: BrokerContext, request: ApiRequest) -> Values:
    names = {
        ConfigResourceType.TOPIC: sorted(broker.log.topics),
        ConfigResourceType.BROKER: [str(NODE_ID)],
        ConfigResourceType.GROUP: broker.group_ids_with_configs(),
    }
    # Requests of v0 are for client metrics only.
    wanted = request.field_or_default("resource_types", (_CLIENT_METRICS,)) or tuple(names)
    if {*wanted} - {*ConfigResourceType, _LOGGER, _CLIENT_METRICS}:
        return _response_values(ErrorCode.unsupported_version, {})
    return _response_values(ErrorCode.none, {type_: names for type_, names in names.items() if type_ in wanted})


def _response_values(error: ErrorCode, names: dict[ConfigResourceType, list[str]]) -> Values:
    """The response, with the resources' ``names`` by type."""
    return {
        "error_code": error,
        "config_resources": [
            {"resource_type": type_, "resource_name": name} for type_, some in names.items() for name in some
        ],
    }


API = KafkaApi(
    key=74,
    versions=range(2),
    handle=handle,
    authorization=ApiAuthorization(check_request=make_cluster_check(Operation.DESCRIBE_CONFIGS)),
)
