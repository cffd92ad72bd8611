"""Static members (KIP-345) have no place in this coordinator yet: whoever asks for one is told so."""

from coterie.broker.node import Request


def is_static(request: Request) -> bool:
    """Whether the member has a `group.instance.id`. It is answered UNSUPPORTED_VERSION, as by a Kafka broker whose
    protocol is older than static membership: taking it for a dynamic member would give it less than it asked for."""
    return request.told("group_instance_id", None) is not None
