"""OffsetCommit: stores the offsets that a group has consumed, for members and for consumers that are not members; the
response waits until they are durable. Not supported: member epochs (KIP-848); classic groups only have generations."""

from typing import Any

from coterie.broker.apis.api import KafkaApi
from coterie.broker.apis.needs import Operation, Permission, each_partition, in_group, on_topic
from coterie.broker.node import ApiRequest, Node, topic_of
from coterie.broker.storage.log import Topic
from coterie.broker.turns import ELEMENTS_AT_ONCE, in_turns
from coterie.groups.classic.offset_messages import (
    NO_LEADER_EPOCH,
    NewOffset,
    OffsetCommit,
    OffsetCommitResponse,
    TopicId,
)
from coterie.nouns.ids import Generation, GroupId, MemberId, TopicPartition
from coterie.wire.errors import ErrorCode
from coterie.wire.shapes import Values, milliseconds

_UNKNOWN_GROUP_SINCE = 9
_BY_ID_SINCE = 10


async def handle(node: Node, request: ApiRequest) -> Values:
    # Check which topics exist before the group handles the request: topics may be created or deleted meanwhile.
    checked = [
        (
            asked,
            [
                _checked(request, topic_of(node, asked), partition)
                async for partition in in_turns(asked.partitions, at_once=ELEMENTS_AT_ONCE)
            ],
        )
        async for asked in in_turns(request.body.topics, at_once=ELEMENTS_AT_ONCE)
    ]
    new = tuple(one for _, partitions in checked for one in partitions if isinstance(one, NewOffset))
    errors = iter(await _commit(node, request, new) if new else ())
    return {
        "topics": [
            {
                "name": getattr(asked, "name", None),
                "topic_id": getattr(asked, "topic_id", None),
                "partitions": [
                    {
                        "partition_index": partition.partition_index,
                        "error_code": next(errors) if isinstance(one, NewOffset) else one,
                    }
                    for partition, one in zip(asked.partitions, partitions, strict=True)
                ],
            }
            for asked, partitions in checked
            if partitions
        ],
    }


async def _commit(node: Node, request: ApiRequest, new: tuple[NewOffset, ...]) -> tuple[ErrorCode, ...]:
    """An error code for each of the offsets."""
    body = request.body
    response = await node.groups.ask(
        GroupId(body.group_id),
        lambda reply_to: OffsetCommit(
            reply_to=reply_to,
            member_id=MemberId(body.member_id),
            instance_id=request.instance_id,
            generation=Generation(body.generation_id_or_member_epoch),
            retention_ms=_retention_ms(request),
            offsets=new,
        ),
    )
    assert isinstance(response, OffsetCommitResponse)
    error = response.error
    if error is ErrorCode.group_id_not_found and request.header.api_version < _UNKNOWN_GROUP_SINCE:
        error = ErrorCode.illegal_generation
    return response.errors if error is ErrorCode.none else (error,) * len(new)


def _checked(request: ApiRequest, topic: Topic | None, partition: Any) -> NewOffset | ErrorCode:
    if topic is None and request.header.api_version >= _BY_ID_SINCE:
        return ErrorCode.unknown_topic_id
    if topic is None or topic.partition(partition.partition_index) is None:
        return ErrorCode.unknown_topic_or_partition
    return NewOffset(
        partition=TopicPartition(topic.name, partition.partition_index),
        topic_id=TopicId(topic.topic_id.bytes),
        offset=partition.committed_offset,
        leader_epoch=getattr(partition, "committed_leader_epoch", NO_LEADER_EPOCH),
        metadata=partition.committed_metadata or "",
    )


def _retention_ms(request: ApiRequest) -> int | None:
    """The retention time is set in v2-4 only, where -1 means the broker's setting."""
    told = request.told("retention_time", None)
    retention_ms = -1 if told is None else milliseconds(told)
    return None if retention_ms == -1 else retention_ms


_NEEDS = Permission(each=[each_partition(on_topic(Operation.READ, in_group(Operation.READ)))])
API = KafkaApi(key=8, versions=range(2, 11), handle=handle, needs=_NEEDS)
