"""The authorized operations of a client on a topic, a group or the cluster (KIP-430), by the access rules."""

from collections.abc import Mapping

from coterie.broker.node import ApiRequest, Node
from coterie.broker.security.authorizer import THE_CLUSTER, Operation, ResourceType

NOT_ASKED = -(2**31)

_NUMBERS: Mapping[Operation, int] = {operation: number for number, operation in enumerate(Operation, start=2)}
_NONE_OF_GROUPS = {
    Operation.WRITE, Operation.CREATE, Operation.ALTER, Operation.CLUSTER_ACTION, Operation.IDEMPOTENT_WRITE
}  # fmt: skip
_MEANT_FOR: Mapping[ResourceType, frozenset[Operation]] = {
    type_: frozenset(Operation) - {Operation.ALL} - others
    for type_, others in (
        (ResourceType.TOPIC, {Operation.CLUSTER_ACTION, Operation.IDEMPOTENT_WRITE}),
        (ResourceType.GROUP, _NONE_OF_GROUPS),
        (ResourceType.CLUSTER, {Operation.READ, Operation.WRITE, Operation.DELETE}),
    )
}
"""The operations that each resource type supports."""


def allowed_operations(
    node: Node, request: ApiRequest, type_: ResourceType, name: str = THE_CLUSTER, *, wanted: bool = True
) -> int:
    """A bit field of operations, by Kafka's codes; `NOT_ASKED` if they are not ``wanted``."""
    if not wanted:
        return NOT_ASKED
    rules = node.admission.rules
    return sum(
        1 << _NUMBERS[operation]
        for operation in _MEANT_FOR[type_]
        if rules is None or rules.may(request.principal, operation, type_, name, request.peer_host)
    )
