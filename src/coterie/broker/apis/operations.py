"""Finds the operations that the access rules allow a client on a topic, a group or the cluster (KIP-430)."""

from collections.abc import Mapping

from coterie.broker.context import ApiRequest, BrokerContext
from coterie.broker.security.authorizer import CLUSTER_NAME, Operation, ResourceType

AUTHORIZED_OPERATIONS_OMITTED = -(2**31)
"""The value in a response if the request does not ask for the authorized operations."""

_BIT_BY_OPERATION: Mapping[Operation, int] = {operation: number for number, operation in enumerate(Operation, start=2)}
"""Kafka's code of each operation, which is the number of its bit in the responses' bit fields."""
_UNSUPPORTED_BY_GROUPS = {
    Operation.WRITE, Operation.CREATE, Operation.ALTER, Operation.CLUSTER_ACTION, Operation.IDEMPOTENT_WRITE
}  # fmt: skip
"""The operations that Kafka does not define for groups."""
_SUPPORTED_OPERATIONS: Mapping[ResourceType, frozenset[Operation]] = {
    type_: frozenset(Operation) - {Operation.ALL} - others
    for type_, others in (
        (ResourceType.TOPIC, {Operation.CLUSTER_ACTION, Operation.IDEMPOTENT_WRITE}),
        (ResourceType.GROUP, _UNSUPPORTED_BY_GROUPS),
        (ResourceType.CLUSTER, {Operation.READ, Operation.WRITE, Operation.DELETE}),
    )
}
"""The operations that Kafka defines for each resource type; only these are in the bit fields."""


def allowed_operations_bit_field(
    broker: BrokerContext,
    request: ApiRequest,
    type_: ResourceType,
    name: str = CLUSTER_NAME,
    *,
    is_requested: bool = True,
) -> int:
    """A bit field of the operations that the client may perform on the resource ``name``; the bit of an operation is
    Kafka's code for it. `AUTHORIZED_OPERATIONS_OMITTED` if not ``is_requested``: the request did not ask for them."""
    if not is_requested:
        return AUTHORIZED_OPERATIONS_OMITTED
    rules = broker.security.acls
    return sum(
        1 << _BIT_BY_OPERATION[operation]
        for operation in _SUPPORTED_OPERATIONS[type_]
        if rules is None or rules.is_allowed(request.principal, operation, type_, name, request.peer_host)
    )
