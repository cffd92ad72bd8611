"""Ids: strings and numbers. Each kind has its own type, so that mypy reports an id that is used as another kind."""

from typing import NamedTuple, NewType

GroupId = NewType("GroupId", str)
MemberId = NewType("MemberId", str)
InstanceId = NewType("InstanceId", str)
"""``group.instance.id``: identifies a static member across restarts (KIP-345)."""
Generation = NewType("Generation", int)
ReplyTo = NewType("ReplyTo", int)
"""Identifies one outstanding request at a coordinator; the coordinator's shell assigns the number."""
WorkerId = NewType("WorkerId", str)
"""``host:port`` of a worker's REST listener; ``worker_id`` in Connect's REST responses."""
WorkerUrl = NewType("WorkerUrl", str)
Incarnation = NewType("Incarnation", str)
"""Distinguishes connectors that had the same name: a connector that is deleted and created again gets a new one."""
ConfigOffset = NewType("ConfigOffset", int)
"""How far a worker has read the config log: the offset of the last record read, plus one; -1 before the first read."""


class TopicPartition(NamedTuple):
    topic: str
    partition: int
