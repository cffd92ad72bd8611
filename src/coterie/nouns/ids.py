"""Ids: strings and numbers that must not be taken for one another."""

from typing import NamedTuple, NewType

GroupId = NewType("GroupId", str)
MemberId = NewType("MemberId", str)
InstanceId = NewType("InstanceId", str)
"""``group.instance.id``: who a static member is, across restarts (KIP-345)."""
Generation = NewType("Generation", int)
ReplyTo = NewType("ReplyTo", int)
"""Whom a coordinator answers: its shell's own number for one outstanding request."""
WorkerId = NewType("WorkerId", str)
"""``host:port`` of a worker's REST listener: what Connect shows as ``worker_id``."""
WorkerUrl = NewType("WorkerUrl", str)
Incarnation = NewType("Incarnation", str)
"""Which life of a connector's name this is: deleting and creating again gives a new one."""
ConfigOffset = NewType("ConfigOffset", int)
"""How far a worker has read the config log: the offset of the last record read, plus one; -1 when it is unread."""


class TopicPartition(NamedTuple):
    topic: str
    partition: int
