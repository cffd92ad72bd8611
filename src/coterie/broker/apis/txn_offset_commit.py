"""TxnOffsetCommit: commits offsets of a group as a part of a transaction. The response is sent when the offsets are
durable as pending offsets; they become the group's offsets when the transaction is committed. In v5 the request itself
adds the group's offsets to the transaction (KIP-890); before, the client must have sent AddOffsetsToTxn."""

from typing import NamedTuple

from coterie.broker.apis.api import KafkaApi
from coterie.broker.apis.authorization import (
    ApiAuthorization,
    Operation,
    make_topic_check,
    topic_authorization_with_partition_errors,
    transactional_write_or_group_read_error,
)
from coterie.broker.apis.connect_offsets import offset_request_error
from coterie.broker.apis.offset_commit import commit_and_build_response
from coterie.broker.apis.transactional import OFFSETS_PARTITION
from coterie.broker.context import ApiRequest, BrokerContext
from coterie.broker.transactions.writes import UnaddedPartitionRule
from coterie.groups.classic.offset_messages import NewOffset, OffsetCommitResponse, TxnOffsetCommit
from coterie.groups.transaction_messages import ProducerIdAndEpoch
from coterie.nouns.errors import WorldError
from coterie.nouns.ids import GenerationId, GroupId, InstanceId, MemberId
from coterie.wire.errors import ErrorCode, KafkaRefusal
from coterie.wire.kio_entities import Values

_ABORTABLE_SINCE = 4
"""The first version in which the response may have the error code TRANSACTION_ABORTABLE (KIP-890)."""
_ADDS_PARTITION_SINCE = 5
"""The first version that itself adds the group's offsets to the transaction."""


class _SendingMember(NamedTuple):
    """The member that sends the request, as the request names it."""

    member_id: MemberId
    instance_id: InstanceId | None
    generation: GenerationId
    """The member epoch in a connect group."""


_NO_MEMBER = _SendingMember(MemberId(""), None, GenerationId(-1))
"""A sender that names no member. It is not checked, because the versions before v3 have no such fields."""


async def handle(broker: BrokerContext, request: ApiRequest) -> Values:
    return await commit_and_build_response(
        broker, request, _commit_offsets_in_transaction, unknown_topic=ErrorCode.unknown_topic_or_partition
    )


async def _commit_offsets_in_transaction(
    broker: BrokerContext, request: ApiRequest, new: tuple[NewOffset, ...]
) -> tuple[ErrorCode, ...]:
    """Commit the offsets ``new`` as a part of the transaction; wait until they are durable. Returns the error code of
    each offset, in the same order."""
    group_id = GroupId(request.body.group_id)
    sender = _SendingMember(
        MemberId(request.field_or_default("member_id", "")),
        request.instance_id,
        GenerationId(request.field_or_default("generation_id", -1)),
    )
    producer = ProducerIdAndEpoch(request.body.producer_id, request.body.producer_epoch)
    error = await _add_or_verify_offsets_partition(broker, request, producer)
    if error is not ErrorCode.none:
        return (error,) * len(new)
    connect_groups = broker.connect_groups_owning_id(group_id)
    if connect_groups is not None and sender != _NO_MEMBER:
        error = await offset_request_error(
            connect_groups, group_id, member_id=sender.member_id, member_epoch=sender.generation, is_commit=True
        )
        if error is ErrorCode.stale_member_epoch:
            # As in Kafka: no version of the request has member epochs, so its clients know generations only.
            error = ErrorCode.illegal_generation
        if error is not ErrorCode.none:
            return (error,) * len(new)
        # The connect group has checked its member. Its offsets are those of a classic group without members.
        sender = _NO_MEMBER
    response = await broker.groups.ask(
        group_id,
        lambda reply_to: TxnOffsetCommit(
            reply_to=reply_to,
            producer=producer,
            member_id=sender.member_id,
            instance_id=sender.instance_id,
            generation=sender.generation,
            offsets=new,
        ),
    )
    assert isinstance(response, OffsetCommitResponse)
    return response.partition_errors if response.error is ErrorCode.none else (response.error,) * len(new)


async def _add_or_verify_offsets_partition(
    broker: BrokerContext, request: ApiRequest, producer: ProducerIdAndEpoch
) -> ErrorCode:
    """Add the partition with the offsets to the producer's transaction (v5), or check that the client has added it
    (before v5). Returns NONE, or the error code of the response."""
    transactional_id = request.body.transactional_id
    if not transactional_id:
        return ErrorCode.invalid_request
    unadded_rule = _unadded_partition_rule(request.header.api_version)
    try:
        await broker.transactions.begin_transaction_in_offsets_partition(
            transactional_id, producer, OFFSETS_PARTITION, unadded_rule
        )
    except KafkaRefusal as refusal:
        return refusal.error
    except WorldError:
        # Kafka's coordinator responds so if it cannot write; clients send the request again.
        return ErrorCode.coordinator_not_available
    return ErrorCode.none


def _unadded_partition_rule(version: int) -> UnaddedPartitionRule:
    """How a request of this version is handled if the partition with the offsets is not in the transaction."""
    if version >= _ADDS_PARTITION_SINCE:
        return UnaddedPartitionRule.ADD_PARTITION
    if version >= _ABORTABLE_SINCE:
        return UnaddedPartitionRule.GENERIC_ERROR_SUPPORTED
    return UnaddedPartitionRule.DEFAULT_ERROR


_AUTHORIZATION = ApiAuthorization(
    items=[
        topic_authorization_with_partition_errors(
            make_topic_check(Operation.READ, transactional_write_or_group_read_error)
        )
    ]
)
API = KafkaApi(key=28, versions=range(6), handle=handle, authorization=_AUTHORIZATION)
