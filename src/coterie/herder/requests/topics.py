"""Requests about the active topics of a connector (KIP-558). Any worker serves them at any time."""

from dataclasses import dataclass
from typing import TypeAlias

from coterie.nouns.jobs import ConnectorName


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeActiveTopics:
    """Ask for the topics that a connector's tasks have read or written; answered with :class:`ActiveTopics`."""

    connector: ConnectorName


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetActiveTopics:
    """Forget the topics that a connector's tasks have read or written until now. Answered with
    :class:`SuccessWithoutContent` when this worker has read that they are deleted."""

    connector: ConnectorName


TopicRequest: TypeAlias = DescribeActiveTopics | ResetActiveTopics


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveTopics:
    """The answer to :class:`DescribeActiveTopics`: the active topics of a connector."""

    connector: ConnectorName
    topics: tuple[str, ...]
    """The topics, by name."""
