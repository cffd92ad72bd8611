"""Kafka's rules for topic names."""

import re
from collections.abc import Iterable

from coterie.wire.errors import ErrorCode

NAME_SIZE_MAX = 249
"""The maximum number of characters in a topic name."""
INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state", "__worker_offsets"})
"""The names of the internal topics: Kafka's, and that of connect groups. Clients may read these topics, but not write
to them, change or delete them."""
_NAME = re.compile(r"[a-zA-Z0-9._-]+")


def topic_name_error(name: str) -> str | None:
    """Kafka's error message if the topic name is invalid, else None."""
    if not name:
        return "Topic name is invalid: the empty string is not allowed"
    if name in (".", ".."):
        return f"Topic name is invalid: '{name}' is not allowed"
    if len(name) > NAME_SIZE_MAX:
        return f"Topic name is invalid: the length of '{name[:20]}...' is longer than the max allowed {NAME_SIZE_MAX}"
    if not _NAME.fullmatch(name):
        return (
            f"Topic name is invalid: '{name}' contains one or more characters other than ASCII alphanumerics,"
            " '.', '_' and '-'"
        )
    return None


def invalid_or_unknown_topic_error(name: str) -> ErrorCode:
    """Kafka's error code for a topic that does not exist: INVALID_TOPIC_EXCEPTION if its name is invalid, else
    UNKNOWN_TOPIC_OR_PARTITION."""
    return ErrorCode.invalid_topic_exception if topic_name_error(name) else ErrorCode.unknown_topic_or_partition


def colliding_name(name: str, others: Iterable[str]) -> str | None:
    """The name in ``others`` that differs from ``name`` only in dots and underscores; None if there is none. Metrics
    cannot distinguish the two names, so Kafka refuses to create a topic with such a name."""
    if not {*name} & {".", "_"}:
        return None
    alike = name.replace(".", "_")
    return next((other for other in others if other != name and other.replace(".", "_") == alike), None)


def is_internal_topic(name: str) -> bool:
    """Whether ``name`` is one of `INTERNAL_TOPICS`: clients may not write to such a topic, and may not add partitions
    to it, configure or delete it."""
    return name in INTERNAL_TOPICS
