"""The types of ids and numbers. Each kind of id has its own type, so that mypy reports an id that is used as another
kind."""

from typing import NamedTuple, NewType

GroupId = NewType("GroupId", str)
MemberId = NewType("MemberId", str)
"""Identifies a member of a group. In a classic group the coordinator issues it, and it is empty for a worker that has
none yet; in a connect group the worker creates it."""
InstanceId = NewType("InstanceId", str)
"""``group.instance.id``: identifies a static member across restarts (KIP-345)."""
GenerationId = NewType("GenerationId", int)
"""Number of a classic group's membership; it increases with each rebalance. -1 in requests of a worker without a
generation."""
GroupEpoch = NewType("GroupEpoch", int)
"""Connect groups (KIP-848): number of a group's metadata; each change that requires a new target assignment increases
it. The assignment epoch of a target assignment is the group epoch for which it was computed; the job epoch of a job is
the assignment epoch in which the job was assigned to its owner."""
MemberEpoch = NewType("MemberEpoch", int)
"""Connect groups (KIP-848): the assignment epoch that a member has reached, because it has given back all jobs that the
target assignment of this epoch takes from it. 0 and negative numbers: see `connect_groups.JOIN_EPOCH`,
`LEAVE_EPOCH` and `LEAVE_BRIEFLY_EPOCH`."""
LeaderEpoch = NewType("LeaderEpoch", int)
"""Connect groups: number of the leader's appointment; it increases with each change of the leader."""
ReplyTo = NewType("ReplyTo", int)
"""Identifies one outstanding request at a coordinator; the coordinator's shell assigns the number."""
WorkerId = NewType("WorkerId", str)
"""``host:port`` of a worker's REST listener; ``worker_id`` in Connect's REST responses."""
WorkerUrl = NewType("WorkerUrl", str)
"""The URL of a worker's REST listener; empty when it is not known."""
Incarnation = NewType("Incarnation", str)
"""Distinguishes connectors that had the same name: a connector that is deleted and created again gets a new
incarnation."""
ConfigOffset = NewType("ConfigOffset", int)
"""How far a worker has read the config log, as the group protocols report it: the offset of the last record read, plus
one; -1 before the first read."""
LogPosition = NewType("LogPosition", int)
"""The offset that a reader of a log reads next, or the end offset of a log, with which a reader's position is compared.
These offsets also count what a reader does not receive: the markers of transactions, and the records of aborted
transactions."""


class TopicPartition(NamedTuple):
    topic: str
    partition: int
