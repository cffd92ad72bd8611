"""Resources with configs, as in requests: a type with Kafka's number, and a name."""

from enum import IntEnum

from coterie.broker.node import NODE_ID


class ConfigResourceType(IntEnum):
    """Kafka's numbers; Kafka's other types (loggers, client metrics) are not supported."""

    TOPIC = 2
    BROKER = 4
    GROUP = 32


def broker_error(name: str) -> str | None:
    """An error message if ``name`` is not this broker's id, else None."""
    try:
        return None if int(name) == NODE_ID else f"Unexpected broker id, expected {NODE_ID}, but received {name}"
    except ValueError:
        return f"Node id must be an integer, but it is: {name}"
