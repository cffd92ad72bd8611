"""Fields that tell a client what it may do with a topic, a group or the cluster (KIP-430): by the access rules."""

from collections.abc import Mapping

from coterie.broker.node import ApiRequest, Node
from coterie.broker.security.authorizer import THE_CLUSTER, Operation, ResourceType

NOT_ASKED = -(2**31)

_NUMBERS: Mapping[Operation, int] = {
    Operation.READ: 3,
    Operation.WRITE: 4,
    Operation.CREATE: 5,
    Operation.DELETE: 6,
    Operation.ALTER: 7,
    Operation.DESCRIBE: 8,
    Operation.CLUSTER_ACTION: 9,
    Operation.DESCRIBE_CONFIGS: 10,
    Operation.ALTER_CONFIGS: 11,
    Operation.IDEMPOTENT_WRITE: 12,
}
"""Kafka's."""
_MEANT_FOR: Mapping[ResourceType, tuple[Operation, ...]] = {
    ResourceType.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (
        Operation.READ,
        Operation.DELETE,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        Operation.CREATE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
    ),
}
"""What can be done with each at all."""


def allowed_operations(
    node: Node, request: ApiRequest, type_: ResourceType, name: str = THE_CLUSTER, *, wanted: bool = True
) -> int:
    """A bit for each operation by Kafka's numbers; `NOT_ASKED` where they are not ``wanted``."""
    if not wanted:
        return NOT_ASKED
    rules = node.admission.rules
    return sum(
        1 << _NUMBERS[operation]
        for operation in _MEANT_FOR[type_]
        if rules is None or rules.may(request.principal, operation, type_, name, request.peer_host)
    )
