"""Produce: stores batches as they are received; the response is sent once they are durable (acks 1 and -1 alike), or
never (acks 0). Batches of idempotent producers are written once and in order; transactional batches only into their
producer's open transaction, which they begin themselves since v12. Not supported: older message formats, as in Kafka 4.
The records of a batch are decoded only if the topic needs keys."""

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

from coterie.broker.apis.api import KafkaApi
from coterie.broker.apis.needs import TRANSACTIONAL_ID, AccessCheck, Operation, Permission, each_partition, on_topic
from coterie.broker.clock import wall_ms
from coterie.broker.node import ApiRequest, Node, topic_of
from coterie.broker.storage.log import Partition, Topic
from coterie.broker.storage.store import TopicGoneError
from coterie.broker.topics.configs import batch_size_max, has_append_time, items_of, number_of
from coterie.broker.topics.names import is_internal
from coterie.broker.transactions.writes import BatchAdmission, KeylessError, NewBatch, Written
from coterie.broker.turns import ELEMENTS_AT_ONCE, in_turns
from coterie.groups.transaction_messages import TopicPartition
from coterie.nouns.errors import WireError, WorldError
from coterie.wire.batches import (
    HEAD_SIZE,
    NO_TIMESTAMP,
    TRANSACTIONAL,
    BatchHead,
    DamagedBatchError,
    check_produced,
    with_append_time,
)
from coterie.wire.compression import ZSTD
from coterie.wire.errors import ErrorCode, KafkaRefusal
from coterie.wire.shapes import Values

_ZSTD_SINCE = 7
_ATTRIBUTES_AT = 22
"""Index of the attributes' low byte in a batch."""
_KEYLESS_TOLD_MAX = 100
"""Maximum number of records without a key that a response lists one by one."""


class _Queued(NamedTuple):
    """A batch that is queued for the log."""

    written: "asyncio.Future[Written]"
    partition: Partition
    append_time_ms: int


async def handle(node: Node, request: ApiRequest) -> Values | None:
    acks = request.body.acks
    # Queue all batches before the first await: the order of requests must be the order in the log.
    queued = [
        (
            topic,
            [
                (data.index, _queue(node, request, topic, data))
                async for data in in_turns(topic.partition_data, at_once=ELEMENTS_AT_ONCE)
            ],
        )
        async for topic in in_turns(request.body.topic_data, at_once=ELEMENTS_AT_ONCE)
    ]
    responses: list[Values] = []
    failed = False
    for topic, partitions in queued:
        answers = [await _answered(index, outcome) for index, outcome in partitions]
        failed = failed or any(answer["error_code"] is not ErrorCode.none for answer in answers)
        responses.append(
            {
                "name": getattr(topic, "name", None),
                "topic_id": getattr(topic, "topic_id", None),
                "partition_responses": answers,
            }
        )
    if acks == 0:
        if failed:
            # There is no response, so closing the connection is the only way to report it; as in Kafka.
            raise WireError(f"a produce with acks 0 failed: {responses}")
        return None
    return {"responses": responses}


def _queue(node: Node, request: ApiRequest, topic_data: Any, data: Any) -> _Queued | KafkaRefusal:
    if request.body.acks not in (-1, 0, 1):
        return KafkaRefusal(ErrorCode.invalid_required_acks)
    topic = topic_of(node, topic_data)
    partition = topic.partition(data.index) if topic else None
    if topic is None and not hasattr(topic_data, "name"):
        return KafkaRefusal(ErrorCode.unknown_topic_id)
    if topic is None or partition is None:
        return KafkaRefusal(ErrorCode.unknown_topic_or_partition)
    try:
        head = check_produced(data.records or b"")
    except DamagedBatchError as error:
        return KafkaRefusal(ErrorCode.corrupt_message, str(error))
    except WireError as error:
        return KafkaRefusal(ErrorCode.invalid_record, str(error))
    now_ms = wall_ms()
    refused = _refusal(node, request, topic, head, now_ms)
    if refused is not None:
        return refused
    batch, append_time_ms = data.records, NO_TIMESTAMP
    if has_append_time(topic.configs):
        batch, head = with_append_time(batch, head, now_ms)
        append_time_ms = now_ms
    written = node.transactions.append(
        NewBatch(
            to=TopicPartition(topic.name, partition.number),
            partition_id=partition.id,
            data=batch,
            head=head,
            transactional_id=request.body.transactional_id,
            admission=_admission(request.header.api_version),
            needs_keys="compact" in items_of(topic.configs, "cleanup.policy"),
        )
    )
    return _Queued(written, partition, append_time_ms)


def _refusal(node: Node, request: ApiRequest, topic: Topic, head: BatchHead, now_ms: int) -> KafkaRefusal | None:
    """Why a valid batch may not be appended; None if it may."""
    if is_internal(topic.name):
        return KafkaRefusal(ErrorCode.invalid_topic_exception, f"Only the broker writes to {topic.name}.")
    size_max = batch_size_max(topic.configs, node.settings)
    if head.size_bytes > size_max:
        return KafkaRefusal(
            ErrorCode.message_too_large, f"The batch has {head.size_bytes} bytes; the maximum is {size_max}."
        )
    if head.codec == ZSTD and request.header.api_version < _ZSTD_SINCE:
        return KafkaRefusal(ErrorCode.unsupported_compression_type, f"zstd needs Produce v{_ZSTD_SINCE}.")
    if head.codec > ZSTD:
        return KafkaRefusal(ErrorCode.unsupported_compression_type, f"Unknown compression type {head.codec}.")
    return _producer_refusal(request, head) or _timestamp_refusal(topic, head, now_ms)


def _producer_refusal(request: ApiRequest, head: BatchHead) -> KafkaRefusal | None:
    if head.is_control:
        return KafkaRefusal(ErrorCode.invalid_record, "Only the broker writes control batches.")
    if head.is_transactional and request.body.transactional_id is None:
        return KafkaRefusal(ErrorCode.transactional_id_authorization_failed, "The request has no transactional id.")
    if head.is_transactional and not request.body.transactional_id:
        return KafkaRefusal(ErrorCode.invalid_request, "The transactional id is empty.")
    if head.is_numbered and head.base_sequence < 0:
        return KafkaRefusal(
            ErrorCode.invalid_record, "A batch with a producer id needs a sequence number of at least 0."
        )
    return None


def _timestamp_refusal(topic: Topic, head: BatchHead, now_ms: int) -> KafkaRefusal | None:
    """Check the batch header's timestamps: the first record's and the greatest."""
    if has_append_time(topic.configs) or head.max_timestamp_ms == NO_TIMESTAMP:
        return None
    ahead_ms = head.max_timestamp_ms - now_ms
    behind_ms = now_ms - head.base_timestamp_ms
    if ahead_ms > number_of(topic.configs, "message.timestamp.after.max.ms"):
        return KafkaRefusal(ErrorCode.invalid_timestamp, f"A record is {ahead_ms} ms ahead of the broker's clock.")
    if behind_ms > number_of(topic.configs, "message.timestamp.before.max.ms"):
        return KafkaRefusal(ErrorCode.invalid_timestamp, f"A record is {behind_ms} ms behind the broker's clock.")
    return None


def _admission(version: int) -> BatchAdmission:
    if version > 11:
        return BatchAdmission.BY_ITSELF
    return BatchAdmission.ADDED_OR_ABORTABLE if version == 11 else BatchAdmission.ADDED_BEFORE


async def _answered(index: int, outcome: _Queued | KafkaRefusal) -> dict[str, Any]:
    if isinstance(outcome, KafkaRefusal):
        return _answer(index, outcome.error, sentence=outcome.sentence)
    start_offset = outcome.partition.start_offset
    try:
        written = await outcome.written
    except KafkaRefusal as refusal:
        keyless = refusal.records[:_KEYLESS_TOLD_MAX] if isinstance(refusal, KeylessError) else ()
        return _answer(index, refusal.error, sentence=refusal.sentence, start_offset=start_offset, keyless=keyless)
    except WireError as error:
        return _answer(index, ErrorCode.invalid_record, sentence=str(error), start_offset=start_offset)
    except TopicGoneError as gone:
        return _answer(index, ErrorCode.unknown_topic_or_partition, sentence=str(gone))
    except WorldError as failure:
        return _answer(index, ErrorCode.kafka_storage_error, sentence=str(failure))
    return _answer(
        index,
        ErrorCode.none,
        base_offset=written.base_offset,
        start_offset=start_offset,
        append_time_ms=outcome.append_time_ms,
    )


def _answer(
    index: int,
    error: ErrorCode,
    *,
    sentence: str | None = None,
    base_offset: int = -1,
    start_offset: int = -1,
    append_time_ms: int = NO_TIMESTAMP,
    keyless: Sequence[int] = (),
) -> dict[str, Any]:
    return {
        "index": index,
        "error_code": error,
        "base_offset": base_offset,
        "log_append_time": append_time_ms,
        "log_start_offset": start_offset,
        "record_errors": [
            {"batch_index": record, "batch_index_error_message": "The record has no key."} for record in keyless
        ],
        "error_message": sentence,
    }


# -- authorization -----------------------------------------------------------------------------------------------------


def _produced(access: AccessCheck) -> ErrorCode | None:
    """The transactional id is authorized only if the request has a transactional batch."""
    body = access.request.body
    if body.transactional_id is None or not any(
        _is_transactional(data.records) for topic in body.topic_data for data in topic.partition_data
    ):
        return None
    return access.refusal(Operation.WRITE, TRANSACTIONAL_ID, body.transactional_id)


def _is_transactional(batch: bytes | None) -> bool:
    return batch is not None and len(batch) >= HEAD_SIZE and bool(batch[_ATTRIBUTES_AT] & TRANSACTIONAL)


_NEEDS = Permission(
    each=[
        each_partition(
            on_topic(Operation.WRITE, _produced),
            asked="topic_data",
            answers="responses",
            parts=("partition_data", "partition_responses"),
            number=("index", "index"),
        )
    ]
)
# Kafka 4 advertises v0-2 too and does not serve them: librdkafka before 2.11 compresses nothing for a broker that does
# not advertise them (KAFKA-18659).
API = KafkaApi(key=0, versions=range(3, 14), advertised_min=0, handle=handle, needs=_NEEDS)
