"""What has configs, as requests name it: a type by Kafka's number, and a name."""

from enum import IntEnum

from coterie.broker.node import NODE_ID


class ConfigResourceType(IntEnum):
    """Kafka's numbers; its others (loggers, client metrics) do not exist here."""

    TOPIC = 2
    BROKER = 4
    GROUP = 32


def broker_error(name: str) -> str | None:
    """One sentence when ``name`` is not this broker."""
    try:
        return None if int(name) == NODE_ID else f"Unexpected broker id, expected {NODE_ID}, but received {name}"
    except ValueError:
        return f"Node id must be an integer, but it is: {name}"
