"""OffsetForLeaderEpoch: returns the end offset of a leader epoch, with which a client checks whether a partition was
truncated (KIP-320). Not supported: former leaders and followers, because one broker leads all partitions, always in the
same leader epoch."""

from functools import partial
from typing import Any

from coterie.broker.apis.api import KafkaApi
from coterie.broker.apis.authorization import (
    ApiAuthorization,
    Operation,
    make_topic_check,
    topic_authorization_with_partition_errors,
)
from coterie.broker.apis.partition_entries import partition_entries
from coterie.broker.context import LEADER_EPOCH, ApiRequest, BrokerContext
from coterie.broker.storage.log import Partition
from coterie.wire.errors import ErrorCode
from coterie.wire.kio_entities import Values

_NO_EPOCH = -1
"""The leader epoch in a request that has none."""
_UNKNOWN_OFFSET = (-1, -1)
"""The leader epoch and the end offset in a response if the requested leader epoch is unknown."""


async def handle(broker: BrokerContext, request: ApiRequest) -> Values:
    return {
        "topics": await partition_entries(request.body.topics, partial(_partition_values, broker), name_field="topic")
    }


async def _partition_values(broker: BrokerContext, name: str, asked: Any) -> Values:
    """The response entry of one partition of the topic ``name``: the end offset of the requested leader epoch, or an
    error code."""
    partition = broker.log.partition(name, asked.partition)
    error, (epoch, end_offset) = ErrorCode.none, _UNKNOWN_OFFSET
    if partition is None:
        error = ErrorCode.unknown_topic_or_partition
    elif asked.current_leader_epoch > LEADER_EPOCH:
        error = ErrorCode.unknown_leader_epoch
    elif asked.current_leader_epoch not in (_NO_EPOCH, LEADER_EPOCH):
        error = ErrorCode.fenced_leader_epoch
    else:
        epoch, end_offset = _epoch_and_end_offset(partition, asked.leader_epoch)
    return {"error_code": error, "partition": asked.partition, "leader_epoch": epoch, "end_offset": end_offset}


def _epoch_and_end_offset(partition: Partition, epoch: int) -> tuple[int, int]:
    """``epoch`` and its end offset, the offset after the last record of this leader epoch. Both are -1 if ``epoch`` is
    later than this broker's only leader epoch, or is -1, which requests no epoch. An earlier epoch has no records: it
    ends at the start offset."""
    if epoch == LEADER_EPOCH:
        return LEADER_EPOCH, partition.end_offset
    if epoch > LEADER_EPOCH or epoch == _NO_EPOCH:
        return _UNKNOWN_OFFSET
    # No record was written in an epoch before the first.
    return epoch, partition.start_offset


_AUTHORIZATION = ApiAuthorization(
    items=[
        topic_authorization_with_partition_errors(
            make_topic_check(Operation.DESCRIBE), index_fields=("partition", "partition")
        )
    ]
)
API = KafkaApi(key=23, versions=range(2, 5), handle=handle, authorization=_AUTHORIZATION)
