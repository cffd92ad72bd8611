"""Fetch: v4-18 · long poll until min bytes or max wait, whole batches as they were produced · sessions (KIP-227) are
never begun: every answer says so and every fetch is a full one; followers, tiers: one broker."""

import asyncio
from dataclasses import dataclass
from typing import Any

from coterie.broker.log import Partition
from coterie.broker.node import LEADER_EPOCH, Node, Request, topic_of
from coterie.nouns.errors import WorldError
from coterie.wire.errors import ErrorCode
from coterie.wire.shapes import Values, milliseconds

_NO_SESSION = 0
_EPOCHS_WITHOUT_SESSION = (-1, 0)
"""No session wished, or a new one: both are full fetches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """One partition of a fetch: a place to read from, or the error that it gets."""

    number: int
    error: ErrorCode
    partition: Partition | None = None
    offset: int = -1
    size_max: int = 0


async def handle(node: Node, request: Request) -> Values:
    if refusal := _session_refusal(request):
        return {"throttle_time": 0, "error_code": refusal, "session_id": _NO_SESSION, "responses": ()}
    wanted = [(topic, _wanted(node, topic)) for topic in request.body.topics]
    every = [one for _, partitions in wanted for one in partitions]
    found = await _long_poll(node, request, every)
    answers = iter(found)
    return {
        "throttle_time": 0,
        "error_code": ErrorCode.none,
        "session_id": _NO_SESSION,
        "responses": [
            {
                "topic": getattr(topic, "topic", None),
                "topic_id": getattr(topic, "topic_id", None),
                "partitions": [_described(one, *next(answers)) for one in partitions],
            }
            for topic, partitions in wanted
        ],
    }


def _session_refusal(request: Request) -> ErrorCode | None:
    if request.told("session_id", _NO_SESSION) != _NO_SESSION:
        return ErrorCode.fetch_session_id_not_found
    if request.told("session_epoch", -1) not in _EPOCHS_WITHOUT_SESSION:
        return ErrorCode.invalid_fetch_session_epoch
    return None


def _wanted(node: Node, asked: Any) -> list[_Wanted]:
    topic = topic_of(node, asked, "topic")
    unknown = ErrorCode.unknown_topic_or_partition if hasattr(asked, "topic") else ErrorCode.unknown_topic_id
    wanted: list[_Wanted] = []
    for entity in asked.partitions:
        partition = topic.partition(entity.partition) if topic else None
        if partition is None:
            error = unknown if topic is None else ErrorCode.unknown_topic_or_partition
        elif getattr(entity, "current_leader_epoch", -1) > LEADER_EPOCH:
            error = ErrorCode.unknown_leader_epoch
        elif not 0 <= entity.fetch_offset <= partition.end_offset:
            error = ErrorCode.offset_out_of_range
        else:
            error = ErrorCode.none
        wanted.append(
            _Wanted(
                number=entity.partition,
                error=error,
                partition=partition,
                offset=entity.fetch_offset,
                size_max=entity.partition_max_bytes,
            )
        )
    return wanted


async def _long_poll(node: Node, request: Request, wanted: list[_Wanted]) -> list[tuple[ErrorCode, bytes]]:
    """What each partition holds, once it is enough or the client has waited for as long as it wants to."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + max(0, milliseconds(request.body.max_wait)) / 1000
    size_max = min(request.told("max_bytes", node.settings.fetch_size_max), node.settings.fetch_size_max)
    grew = asyncio.Event()
    watched = [one.partition for one in wanted if one.partition is not None]
    for partition in watched:
        partition.watch(grew)
    try:
        while True:
            grew.clear()
            found = await _read(node, wanted, size_max)
            size = sum(len(data) for _, data in found)
            is_enough = size >= request.body.min_bytes or any(error is not ErrorCode.none for error, _ in found)
            if is_enough or not wanted:
                return found
            try:
                async with asyncio.timeout_at(deadline):
                    await grew.wait()
            except TimeoutError:
                return found
    finally:
        for partition in watched:
            partition.unwatch(grew)


async def _read(node: Node, wanted: list[_Wanted], size_max: int) -> list[tuple[ErrorCode, bytes]]:
    """In the client's order; once its limit is reached the rest is left empty. The first batch always goes."""
    found: list[tuple[ErrorCode, bytes]] = []
    left = size_max
    for one in wanted:
        error, data = one.error, b""
        if error is ErrorCode.none and left > 0 and one.partition is not None:
            try:
                data = await node.log.read(one.partition, one.offset, max(0, min(left, one.size_max)))
            except WorldError:
                error = ErrorCode.kafka_storage_error
            if len(data) > left and left < size_max:
                data = b""
            left -= len(data)
        found.append((error, data))
    return found


def _described(one: _Wanted, error: ErrorCode, data: bytes) -> Values:
    end_offset = one.partition.end_offset if one.partition else -1
    return {
        "partition_index": one.number,
        "error_code": error,
        "high_watermark": end_offset,
        "last_stable_offset": end_offset,
        "log_start_offset": 0 if one.partition else -1,
        "aborted_transactions": None,
        "preferred_read_replica": -1,
        "records": data,
    }
