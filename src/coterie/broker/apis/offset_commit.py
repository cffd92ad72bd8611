"""OffsetCommit: stores offsets of a group, sent by members or by clients that are not members, such as tools. The
response is sent when the offsets are durable. A member of a connect group commits with its member epoch (KIP-848)."""

from collections.abc import Awaitable, Callable
from typing import Any

from coterie.broker.apis.api import KafkaApi
from coterie.broker.apis.authorization import (
    ApiAuthorization,
    Operation,
    make_group_check,
    make_topic_check,
    topic_authorization_with_partition_errors,
)
from coterie.broker.apis.connect_offsets import offset_request_error
from coterie.broker.context import ApiRequest, BrokerContext, requested_topic
from coterie.broker.loop_yield import ELEMENTS_WITHOUT_YIELD_MAX, yielding
from coterie.broker.storage.log import Topic
from coterie.groups.classic.offset_messages import (
    NO_LEADER_EPOCH,
    NewOffset,
    OffsetCommit,
    OffsetCommitResponse,
    TopicId,
)
from coterie.nouns.ids import GenerationId, GroupId, MemberId, TopicPartition
from coterie.wire.errors import ErrorCode
from coterie.wire.kio_entities import Values, to_milliseconds

_UNKNOWN_GROUP_SINCE = 9
"""The first version in which the response may have the error code GROUP_ID_NOT_FOUND; before: ILLEGAL_GENERATION."""
_MEMBER_EPOCH_SINCE = 9
"""The first version in which a member of a group with member epochs may commit (KIP-848)."""
_NO_MEMBER, _NO_GENERATION = MemberId(""), GenerationId(-1)
"""The member id and the generation of a client that is not a member."""
_BY_ID_SINCE = 10
"""The first version in which topics are given by topic id instead of name."""

Commit = Callable[[BrokerContext, ApiRequest, tuple[NewOffset, ...]], Awaitable[tuple[ErrorCode, ...]]]
"""Commits the offsets of a request, and returns the error code of each when they are durable, in the same order."""


async def handle(broker: BrokerContext, request: ApiRequest) -> Values:
    is_by_id = request.header.api_version >= _BY_ID_SINCE
    unknown_topic = ErrorCode.unknown_topic_id if is_by_id else ErrorCode.unknown_topic_or_partition
    return await commit_and_build_response(broker, request, _commit_offsets, unknown_topic=unknown_topic)


async def commit_and_build_response(
    broker: BrokerContext, request: ApiRequest, commit: Commit, *, unknown_topic: ErrorCode
) -> Values:
    """Commit, with ``commit``, those offsets of the request whose partition exists, and return the response. An offset
    of a topic that does not exist gets the error code ``unknown_topic``; an offset of a partition that its topic does
    not have gets UNKNOWN_TOPIC_OR_PARTITION."""
    # Check which topics exist before the group handles the request: topics may be created or deleted meanwhile.
    checked = [
        (
            asked,
            [
                _new_offset_or_error(requested_topic(broker, asked), partition, unknown_topic)
                async for partition in yielding(asked.partitions, yield_every=ELEMENTS_WITHOUT_YIELD_MAX)
            ],
        )
        async for asked in yielding(request.body.topics, yield_every=ELEMENTS_WITHOUT_YIELD_MAX)
    ]
    new = tuple(one for _, partitions in checked for one in partitions if isinstance(one, NewOffset))
    errors = iter(await commit(broker, request, new) if new else ())
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


async def _commit_offsets(
    broker: BrokerContext, request: ApiRequest, new: tuple[NewOffset, ...]
) -> tuple[ErrorCode, ...]:
    """Commit the offsets ``new``; wait until they are durable. Returns the error code of each offset, in the same
    order."""
    body = request.body
    group_id, epoch = GroupId(body.group_id), body.generation_id_or_member_epoch
    connect_groups = broker.connect_groups_owning_id(group_id)
    is_classic = connect_groups is None
    if connect_groups is not None:
        error = await offset_request_error(
            connect_groups, group_id, member_id=body.member_id, member_epoch=epoch, is_commit=True
        )
        if epoch >= 0 and request.header.api_version < _MEMBER_EPOCH_SINCE:
            error = ErrorCode.unsupported_version
        if error is not ErrorCode.none:
            return (error,) * len(new)
    response = await broker.groups.ask(
        group_id,
        lambda reply_to: OffsetCommit(
            reply_to=reply_to,
            member_id=MemberId(body.member_id) if is_classic else _NO_MEMBER,
            instance_id=request.instance_id if is_classic else None,
            generation=GenerationId(epoch) if is_classic else _NO_GENERATION,
            retention_ms=_retention_ms(request),
            offsets=new,
        ),
    )
    assert isinstance(response, OffsetCommitResponse)
    error = response.error
    if error is ErrorCode.group_id_not_found and request.header.api_version < _UNKNOWN_GROUP_SINCE:
        error = ErrorCode.illegal_generation
    return response.partition_errors if error is ErrorCode.none else (error,) * len(new)


def _new_offset_or_error(topic: Topic | None, partition: Any, unknown_topic: ErrorCode) -> NewOffset | ErrorCode:
    """The offset in the request's entry ``partition``, or the error code if its topic or its partition does not
    exist."""
    if topic is None:
        return unknown_topic
    if topic.partition(partition.partition_index) is None:
        return ErrorCode.unknown_topic_or_partition
    return NewOffset(
        partition=TopicPartition(topic.name, partition.partition_index),
        topic_id=TopicId(topic.topic_id.bytes),
        offset=partition.committed_offset,
        leader_epoch=getattr(partition, "committed_leader_epoch", NO_LEADER_EPOCH),
        metadata=partition.committed_metadata or "",
    )


def _retention_ms(request: ApiRequest) -> int | None:
    """How long the offsets are to be kept after the commit; None: as long as the broker's setting. Only v2-4 can set
    it."""
    retention_time = request.field_or_default("retention_time", None)
    retention_ms = -1 if retention_time is None else to_milliseconds(retention_time)
    return None if retention_ms == -1 else retention_ms


_AUTHORIZATION = ApiAuthorization(
    items=[
        topic_authorization_with_partition_errors(make_topic_check(Operation.READ, make_group_check(Operation.READ)))
    ]
)
API = KafkaApi(key=8, versions=range(2, 11), handle=handle, authorization=_AUTHORIZATION)
