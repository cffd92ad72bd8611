"""OffsetForLeaderEpoch: the end offset of a leader epoch, for clients that check whether a log was truncated (KIP-320).
Not supported: former leaders and followers; one broker leads all partitions, always in the same epoch."""

from functools import partial
from typing import Any

from coterie.broker.apis.api import KafkaApi
from coterie.broker.apis.needs import Operation, Permission, each_partition, on_topic
from coterie.broker.apis.partition_answers import partition_answers
from coterie.broker.node import LEADER_EPOCH, ApiRequest, Node
from coterie.broker.storage.log import Partition
from coterie.wire.errors import ErrorCode
from coterie.wire.shapes import Values

_NOT_TOLD = -1
_NOWHERE = (-1, -1)
"""No epoch and no offset."""


async def handle(node: Node, request: ApiRequest) -> Values:
    return {"topics": await partition_answers(request.body.topics, partial(_answer, node), name="topic")}


async def _answer(node: Node, name: str, asked: Any) -> Values:
    partition = node.log.partition(name, asked.partition)
    error, (epoch, end_offset) = ErrorCode.none, _NOWHERE
    if partition is None:
        error = ErrorCode.unknown_topic_or_partition
    elif asked.current_leader_epoch > LEADER_EPOCH:
        error = ErrorCode.unknown_leader_epoch
    elif asked.current_leader_epoch not in (_NOT_TOLD, LEADER_EPOCH):
        error = ErrorCode.fenced_leader_epoch
    else:
        epoch, end_offset = _end_of(partition, asked.leader_epoch)
    return {"error_code": error, "partition": asked.partition, "leader_epoch": epoch, "end_offset": end_offset}


def _end_of(partition: Partition, epoch: int) -> tuple[int, int]:
    """The epoch and its end offset, the offset after its last record."""
    if epoch == LEADER_EPOCH:
        return LEADER_EPOCH, partition.end_offset
    if epoch > LEADER_EPOCH or epoch == _NOT_TOLD:
        return _NOWHERE
    # No record was written in an epoch before the first.
    return epoch, partition.start_offset


_NEEDS = Permission(each=[each_partition(on_topic(Operation.DESCRIBE), number=("partition", "partition"))])
API = KafkaApi(key=23, versions=range(2, 5), handle=handle, needs=_NEEDS)
