"""Config resources: topics, groups and brokers, whose configs requests describe and change. A request identifies a
config resource by its type, one of Kafka's numbers, and its name."""

from enum import IntEnum

from coterie.broker.context import NODE_ID


class ConfigResourceType(IntEnum):
    """The supported types of config resources, with Kafka's numbers. Kafka's other types (loggers, client metrics) are
    not supported."""

    TOPIC = 2
    BROKER = 4
    GROUP = 32


def broker_id_error(name: str) -> str | None:
    """An error message if ``name``, the name of a config resource of type BROKER, is not this broker's id, else
    None."""
    try:
        return None if int(name) == NODE_ID else f"Unexpected broker id, expected {NODE_ID}, but received {name}"
    except ValueError:
        return f"Node id must be an integer, but it is: {name}"
