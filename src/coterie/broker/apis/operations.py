"""The fields that tell a client what it may do with a topic or with the cluster (KIP-430)."""

from coterie.broker.node import Node, Request

NOT_ASKED = -(2**31)

_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE, _CLUSTER_ACTION = (1 << number for number in range(3, 10))
_DESCRIBE_CONFIGS, _ALTER_CONFIGS, _IDEMPOTENT_WRITE = (1 << number for number in range(10, 13))

_ON_A_TOPIC = _READ | _WRITE | _CREATE | _DELETE | _ALTER | _DESCRIBE | _DESCRIBE_CONFIGS | _ALTER_CONFIGS
_ON_THE_CLUSTER = (
    _CREATE | _ALTER | _DESCRIBE | _CLUSTER_ACTION | _DESCRIBE_CONFIGS | _ALTER_CONFIGS | _IDEMPOTENT_WRITE
)


def topic_operations(node: Node, request: Request, name: str | None, *, wanted: bool) -> int:
    """A bit for each operation by Kafka's numbers."""
    return _ON_A_TOPIC if wanted else NOT_ASKED


def cluster_operations(node: Node, request: Request, *, wanted: bool) -> int:
    """Likewise on the cluster."""
    return _ON_THE_CLUSTER if wanted else NOT_ASKED
