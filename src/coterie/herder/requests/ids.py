"""The ids of requests and of writes."""

from dataclasses import dataclass
from typing import NewType, TypeAlias

RequestId = NewType("RequestId", int)
"""Identifies a request, and its response. A number that the worker's shell counts up within one process."""

ClientRequestId = NewType("ClientRequestId", str)
"""Identifies a client's request on all workers that it reaches, and in the config log: a random text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderWriteId:
    """The id of a write that the leader has submitted itself, without a client's request."""

    number: int
    """Counts from 1."""


WriteId: TypeAlias = RequestId | LeaderWriteId
