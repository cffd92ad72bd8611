"""Produce: v3-13 · batches are kept as they came, answered once durable (acks 1 and -1 alike) or not at all (acks 0) ·
transactions; sequence checks of idempotent producers; older message formats, as in Kafka 4."""

import asyncio
from collections.abc import Sequence
from typing import Any

from coterie.broker.group_log import GROUPS_TOPIC
from coterie.broker.log import Topic
from coterie.broker.node import Node, Request, topic_of
from coterie.nouns.errors import WireError, WorldError
from coterie.wire.batches import BatchHead, check_produced
from coterie.wire.errors import ErrorCode
from coterie.wire.shapes import Values

_ZSTD = 4


async def handle(node: Node, request: Request) -> Values | None:
    acks = request.body.acks
    # Everything is queued before the first wait: the order of requests is the order in the log.
    queued = [
        (topic, [(data.index, _queue(node, request, topic, data)) for data in topic.partition_data])
        for topic in request.body.topic_data
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
            # Nobody awaits an answer, so a closed connection is the only way to say it; Kafka does so, too.
            raise WireError(f"a produce with acks 0 failed: {responses}")
        return None
    return {"throttle_time": 0, "responses": responses}


def _queue(
    node: Node, request: Request, topic_data: Any, data: Any
) -> "asyncio.Future[int] | tuple[ErrorCode, str | None]":
    """The append's future, or why there is none."""
    if request.body.acks not in (-1, 0, 1):
        return ErrorCode.invalid_required_acks, None
    if request.body.transactional_id is not None:
        return ErrorCode.transactional_id_authorization_failed, "This broker has no transactions."
    topic = topic_of(node, topic_data)
    partition = topic.partition(data.index) if topic else None
    if topic is None and not hasattr(topic_data, "name"):
        return ErrorCode.unknown_topic_id, None
    if topic is None or partition is None:
        return ErrorCode.unknown_topic_or_partition, None
    try:
        head = check_produced(data.records or b"")
    except WireError as error:
        return ErrorCode.corrupt_message, str(error)
    refusal = _refusal(node, request, topic, head)
    return refusal if refusal is not None else node.log.append(partition, data.records, head)


def _refusal(node: Node, request: Request, topic: Topic, head: BatchHead) -> tuple[ErrorCode, str] | None:
    """Why a sound batch may not be appended."""
    if topic.name == GROUPS_TOPIC:
        return ErrorCode.invalid_topic_exception, f"Only the coordinator writes to {GROUPS_TOPIC}."
    size_max = int(topic.configs.get("max.message.bytes", node.settings.batch_size_max))
    if head.size_bytes > size_max:
        return ErrorCode.message_too_large, f"The batch has {head.size_bytes} bytes, allowed are {size_max}."
    if head.is_transactional or head.is_control:
        return ErrorCode.invalid_record, "This broker has no transactions."
    if head.attributes & 0x07 == _ZSTD and request.header.api_version < 7:
        return ErrorCode.unsupported_compression_type, "zstd needs Produce v7."
    if head.attributes & 0x07 > _ZSTD:
        return ErrorCode.unsupported_compression_type, f"No compression has the number {head.attributes & 0x07}."
    return None


async def _answered(index: int, outcome: "asyncio.Future[int] | tuple[ErrorCode, str | None]") -> dict[str, Any]:
    error, sentence, base_offset = ErrorCode.none, None, -1
    if isinstance(outcome, tuple):
        error, sentence = outcome
    else:
        try:
            base_offset = await outcome
        except WorldError as failure:
            error, sentence = ErrorCode.kafka_storage_error, str(failure)
    no_errors: Sequence[Values] = ()
    return {
        "index": index,
        "error_code": error,
        "base_offset": base_offset,
        "log_append_time": -1,
        "log_start_offset": 0,
        "record_errors": no_errors,
        "error_message": sentence,
    }
