"""Kafka's rules for topic names."""

import re
from collections.abc import Iterable

from coterie.wire.errors import ErrorCode

NAME_SIZE_MAX = 249
INTERNAL = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
"""Kafka's internal topics. Clients may read them."""
_NAME = re.compile(r"[a-zA-Z0-9._-]+")


def name_error(name: str) -> str | None:
    """An error message if the topic name is invalid, else None."""
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


def unknown_topic_error(name: str) -> ErrorCode:
    """Kafka's error code for a topic that does not exist."""
    return ErrorCode.invalid_topic_exception if name_error(name) else ErrorCode.unknown_topic_or_partition


def collision(name: str, others: Iterable[str]) -> str | None:
    """The name in ``others`` that differs from ``name`` only in dots and underscores: metrics cannot distinguish the
    two, so Kafka refuses a topic with such a name."""
    if not {*name} & {".", "_"}:
        return None
    alike = name.replace(".", "_")
    return next((other for other in others if other != name and other.replace(".", "_") == alike), None)


def is_internal(name: str) -> bool:
    """Whether only a broker may write to, extend, configure and delete the topic."""
    return name in INTERNAL
