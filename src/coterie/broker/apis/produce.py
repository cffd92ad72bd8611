"""Produce: appends batches as they are received. The response is sent when all batches of the request are durable or
refused, for acks 1 and acks -1 alike; with acks 0 there is no response. Batches of idempotent producers are written
once and in the order of their sequence numbers. A transactional batch must belong to its producer's open transaction;
since v12 the first batch begins the transaction, and each batch adds its partition. Not supported: older message
formats, as in Kafka 4. The records of a batch are decoded only if the topic is compacted, because then each record
needs a key."""

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

from coterie.broker.apis.api import KafkaApi
from coterie.broker.apis.authorization import (
    TRANSACTIONAL_ID,
    AccessCheck,
    ApiAuthorization,
    Operation,
    make_topic_check,
    topic_authorization_with_partition_errors,
)
from coterie.broker.clock import wall_clock_ms
from coterie.broker.context import ApiRequest, BrokerContext, requested_topic
from coterie.broker.loop_yield import ELEMENTS_WITHOUT_YIELD_MAX, yielding
from coterie.broker.storage.log import Partition, Topic
from coterie.broker.storage.store import TopicGoneError
from coterie.broker.topics.configs import (
    batch_size_max,
    int_config_or_default,
    list_config_or_default,
    uses_log_append_time,
)
from coterie.broker.topics.names import is_internal_topic
from coterie.broker.transactions.writes import KeylessRecordsError, NewBatch, UnaddedPartitionRule, WriteResult
from coterie.groups.transaction_messages import TopicPartition
from coterie.nouns.errors import WireError, WorldError
from coterie.wire.batches import (
    BATCH_HEADER_SIZE,
    NO_TIMESTAMP,
    TRANSACTIONAL_BIT,
    BatchHeader,
    DamagedBatchError,
    check_produced_batch,
    with_log_append_time,
)
from coterie.wire.compression import ZSTD
from coterie.wire.errors import ErrorCode, KafkaRefusal
from coterie.wire.kio_entities import Values

_ZSTD_SINCE = 7
"""The first version whose batches may be compressed with zstd (KIP-110)."""
_ATTRIBUTES_AT = 22
"""The index of the byte with the batch's attributes, their low byte, in an encoded batch."""
_RECORD_ERRORS_MAX = 100
"""The maximum number of records without a key that the response lists for one batch."""


class _QueuedBatch(NamedTuple):
    """A batch of the request that is queued for the log. ``log_append_time_ms`` is `NO_TIMESTAMP` unless the topic
    stores the time of the append in its records."""

    write_future: "asyncio.Future[WriteResult]"
    """Gets the result when the batch is durable, or an error."""
    partition: Partition
    log_append_time_ms: int
    """The wall clock's time at which the broker received the batch, if the topic stores it as the records' timestamp;
    else `NO_TIMESTAMP`."""


async def handle(broker: BrokerContext, request: ApiRequest) -> Values | None:
    acks = request.body.acks
    # Queue all batches before the first await: the order of requests must be the order in the log.
    queued = [
        (
            topic,
            [
                (data.index, _queue_batch(broker, request, topic, data))
                async for data in yielding(topic.partition_data, yield_every=ELEMENTS_WITHOUT_YIELD_MAX)
            ],
        )
        async for topic in yielding(request.body.topic_data, yield_every=ELEMENTS_WITHOUT_YIELD_MAX)
    ]
    responses: list[Values] = []
    failed = False
    for topic, partitions in queued:
        answers = [await _await_partition_values(index, outcome) for index, outcome in partitions]
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
            raise WireError(
                "a Produce request with acks=0 failed; it has no response, so only the end of the connection reports"
                f" this to the client: {responses}"
            )
        return None
    return {"responses": responses}


def _queue_batch(broker: BrokerContext, request: ApiRequest, topic_data: Any, data: Any) -> _QueuedBatch | KafkaRefusal:
    """Check the batch in ``data``, the request's entry of one partition of the topic in ``topic_data``. Returns the
    batch after it is queued for the log, or the refusal if the batch may not be appended."""
    if request.body.acks not in (-1, 0, 1):
        return KafkaRefusal(ErrorCode.invalid_required_acks)
    topic = requested_topic(broker, topic_data)
    partition = topic.partition(data.index) if topic else None
    if topic is None and not hasattr(topic_data, "name"):
        return KafkaRefusal(ErrorCode.unknown_topic_id)
    if topic is None or partition is None:
        return KafkaRefusal(ErrorCode.unknown_topic_or_partition)
    try:
        head = check_produced_batch(data.records or b"")
    except DamagedBatchError as error:
        return KafkaRefusal(ErrorCode.corrupt_message, str(error))
    except WireError as error:
        return KafkaRefusal(ErrorCode.invalid_record, str(error))
    now_ms = wall_clock_ms()
    refused = _batch_refusal(broker, request, topic, head, now_ms)
    if refused is not None:
        return refused
    batch, log_append_time_ms = data.records, NO_TIMESTAMP
    if uses_log_append_time(topic.configs):
        batch, head = with_log_append_time(batch, head, now_ms)
        log_append_time_ms = now_ms
    written = broker.transactions.append(
        NewBatch(
            topic_partition=TopicPartition(topic.name, partition.number),
            partition_row_id=partition.row_id,
            data=batch,
            head=head,
            transactional_id=request.body.transactional_id,
            unadded_partition_rule=_unadded_partition_rule(request.header.api_version),
            needs_keys="compact" in list_config_or_default(topic.configs, "cleanup.policy"),
        )
    )
    return _QueuedBatch(written, partition, log_append_time_ms)


def _batch_refusal(
    broker: BrokerContext, request: ApiRequest, topic: Topic, head: BatchHeader, now_ms: int
) -> KafkaRefusal | None:
    """Why a well-formed batch may not be appended to ``topic``, by its header ``head``; None if it may. ``now_ms`` is
    the wall clock's time."""
    if is_internal_topic(topic.name):
        return KafkaRefusal(
            ErrorCode.invalid_topic_exception,
            f"{topic.name} is an internal topic, to which only the broker writes: send the records to another topic.",
        )
    size_max = batch_size_max(topic.configs, broker.settings)
    if head.size_bytes > size_max:
        return KafkaRefusal(
            ErrorCode.message_too_large, f"The batch has {head.size_bytes} bytes; the maximum is {size_max}."
        )
    if head.codec == ZSTD and request.header.api_version < _ZSTD_SINCE:
        return KafkaRefusal(
            ErrorCode.unsupported_compression_type,
            f"Batches that are compressed with zstd need a Produce request of v{_ZSTD_SINCE} or later.",
        )
    if head.codec > ZSTD:
        return KafkaRefusal(ErrorCode.unsupported_compression_type, f"Unknown compression type {head.codec}.")
    return _producer_refusal(request, head) or _timestamp_refusal(topic, head, now_ms)


def _producer_refusal(request: ApiRequest, head: BatchHeader) -> KafkaRefusal | None:
    """The refusal if the batch's header breaks a rule for producers or transactions; None if it breaks none."""
    if head.is_control:
        return KafkaRefusal(ErrorCode.invalid_record, "Only the broker writes control batches.")
    if head.is_transactional and request.body.transactional_id is None:
        return KafkaRefusal(
            ErrorCode.transactional_id_authorization_failed,
            "The batch is transactional, but the request has no transactional id.",
        )
    if head.is_transactional and not request.body.transactional_id:
        return KafkaRefusal(
            ErrorCode.invalid_request, "The batch is transactional, but the request's transactional id is empty."
        )
    if head.has_producer_id and head.base_sequence < 0:
        return KafkaRefusal(
            ErrorCode.invalid_record, "A batch with a producer id needs a sequence number of at least 0."
        )
    return None


def _timestamp_refusal(topic: Topic, head: BatchHeader, now_ms: int) -> KafkaRefusal | None:
    """The refusal if a timestamp of the batch is further from the broker's clock than the topic's configs allow, else
    None. Only the two timestamps in the batch's header are checked: the greatest, and that of the first record. Nothing
    is checked if the topic stores the time of the append, or if the batch has no timestamps."""
    if uses_log_append_time(topic.configs) or head.max_timestamp_ms == NO_TIMESTAMP:
        return None
    ahead_ms = head.max_timestamp_ms - now_ms
    behind_ms = now_ms - head.base_timestamp_ms
    if ahead_ms > int_config_or_default(topic.configs, "message.timestamp.after.max.ms"):
        return KafkaRefusal(
            ErrorCode.invalid_timestamp,
            f"A record's timestamp is {ahead_ms} ms ahead of the broker's clock, more than the topic's"
            " message.timestamp.after.max.ms allows.",
        )
    if behind_ms > int_config_or_default(topic.configs, "message.timestamp.before.max.ms"):
        return KafkaRefusal(
            ErrorCode.invalid_timestamp,
            f"A record's timestamp is {behind_ms} ms behind the broker's clock, more than the topic's"
            " message.timestamp.before.max.ms allows.",
        )
    return None


def _unadded_partition_rule(version: int) -> UnaddedPartitionRule:
    """How a Produce request of this version is handled if the partition of its batch is not in the transaction
    (KIP-890)."""
    if version > 11:
        return UnaddedPartitionRule.ADD_PARTITION
    return UnaddedPartitionRule.GENERIC_ERROR_SUPPORTED if version == 11 else UnaddedPartitionRule.DEFAULT_ERROR


async def _await_partition_values(index: int, queued: _QueuedBatch | KafkaRefusal) -> dict[str, Any]:
    """Wait until the batch is durable or refused; return the response entry of its partition, whose index is
    ``index``."""
    if isinstance(queued, KafkaRefusal):
        return _partition_values(index, queued.error, error_message=queued.message)
    start_offset = queued.partition.start_offset
    try:
        written = await queued.write_future
    except KafkaRefusal as refusal:
        keyless_record_indexes = (
            refusal.records[:_RECORD_ERRORS_MAX] if isinstance(refusal, KeylessRecordsError) else ()
        )
        return _partition_values(
            index,
            refusal.error,
            error_message=refusal.message,
            start_offset=start_offset,
            keyless_record_indexes=keyless_record_indexes,
        )
    except WireError as error:
        return _partition_values(index, ErrorCode.invalid_record, error_message=str(error), start_offset=start_offset)
    except TopicGoneError as gone:
        return _partition_values(index, ErrorCode.unknown_topic_or_partition, error_message=str(gone))
    except WorldError as failure:
        return _partition_values(index, ErrorCode.kafka_storage_error, error_message=str(failure))
    return _partition_values(
        index,
        ErrorCode.none,
        base_offset=written.base_offset,
        start_offset=start_offset,
        log_append_time_ms=queued.log_append_time_ms,
    )


def _partition_values(
    index: int,
    error: ErrorCode,
    *,
    error_message: str | None = None,
    base_offset: int = -1,
    start_offset: int = -1,
    log_append_time_ms: int = NO_TIMESTAMP,
    keyless_record_indexes: Sequence[int] = (),
) -> dict[str, Any]:
    """The response entry of the partition ``index``; ``keyless_record_indexes`` are the indexes, in the batch, of
    records without a key."""
    return {
        "index": index,
        "error_code": error,
        "base_offset": base_offset,
        "log_append_time": log_append_time_ms,
        "log_start_offset": start_offset,
        "record_errors": [
            {"batch_index": record, "batch_index_error_message": "The record has no key, and the topic is compacted."}
            for record in keyless_record_indexes
        ],
        "error_message": error_message,
    }


# -- authorization -----------------------------------------------------------------------------------------------------


def _transactional_batches_authorization_error(access: AccessCheck) -> ErrorCode | None:
    """The error code if the client may not write with the request's transactional id, else None. None also if no batch
    of the request is transactional: then the transactional id is not checked."""
    body = access.request.body
    if body.transactional_id is None or not any(
        _is_transactional_batch(data.records) for topic in body.topic_data for data in topic.partition_data
    ):
        return None
    return access.error_code(Operation.WRITE, TRANSACTIONAL_ID, body.transactional_id)


def _is_transactional_batch(batch: bytes | None) -> bool:
    """Whether the batch is transactional, by the attributes in its header; False if it has no complete header."""
    return batch is not None and len(batch) >= BATCH_HEADER_SIZE and bool(batch[_ATTRIBUTES_AT] & TRANSACTIONAL_BIT)


_AUTHORIZATION = ApiAuthorization(
    items=[
        topic_authorization_with_partition_errors(
            make_topic_check(Operation.WRITE, _transactional_batches_authorization_error),
            request_field="topic_data",
            response_field="responses",
            partition_fields=("partition_data", "partition_responses"),
            index_fields=("index", "index"),
        )
    ]
)
# Kafka 4 advertises v0-2 too and does not serve them: librdkafka before 2.11 compresses nothing for a broker that does
# not advertise them (KAFKA-18659).
API = KafkaApi(key=0, versions=range(3, 14), advertised_version_min=0, handle=handle, authorization=_AUTHORIZATION)
