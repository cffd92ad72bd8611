"""Fetch: v4-18 · long poll until min bytes or max wait, whole batches as they were produced; with isolation level
read_committed only up to the last stable offset, told which of the transactions in them were aborted · sessions
(KIP-227) are never begun: every answer says so and every fetch is a full one; followers, tiers: one broker."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from coterie.broker.log import Partition
from coterie.broker.node import LEADER_EPOCH, Node, Request, topic_of
from coterie.broker.transaction_store import Aborted
from coterie.nouns.errors import WorldError
from coterie.wire.batches import iter_heads
from coterie.wire.errors import ErrorCode
from coterie.wire.shapes import Values, milliseconds

READ_COMMITTED = 1
"""The isolation level; any other reads what is there."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """What one partition gave."""

    error: ErrorCode
    data: bytes = b""
    aborted: Sequence[Aborted] = ()


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
                "partitions": [
                    _described(one, next(answers), reads_committed=reads_committed(request)) for one in partitions
                ],
            }
            for topic, partitions in wanted
        ],
    }


def reads_committed(request: Request) -> bool:
    return bool(request.told("isolation_level", 0) == READ_COMMITTED)


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
        elif not partition.start_offset <= entity.fetch_offset <= partition.end_offset:
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


async def _long_poll(node: Node, request: Request, wanted: list[_Wanted]) -> list[_Found]:
    """What each partition holds, once it is enough or the client has waited for as long as it wants to."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + max(0, milliseconds(request.body.max_wait)) / 1000
    grew = asyncio.Event()
    watched = [one.partition for one in wanted if one.partition is not None]
    for partition in watched:
        partition.watch(grew)
    try:
        while True:
            grew.clear()
            found = await _read(node, request, wanted)
            size = sum(len(one.data) for one in found)
            is_enough = size >= request.body.min_bytes or any(one.error is not ErrorCode.none for one in found)
            if is_enough or not wanted:
                return found
            try:
                async with asyncio.timeout_at(deadline):
                    await grew.wait()
            except TimeoutError:
                return found
            # What has woken us may be the end of a topic.
            wanted = [one for topic in request.body.topics for one in _wanted(node, topic)]
    finally:
        for partition in watched:
            partition.unwatch(grew)


async def _read(node: Node, request: Request, wanted: list[_Wanted]) -> list[_Found]:
    """In the client's order; once its limit is reached the rest is left empty. The first batch always goes."""
    found: list[_Found] = []
    left = size_max = min(request.told("max_bytes", node.settings.fetch_size_max), node.settings.fetch_size_max)
    for one in wanted:
        answer = _Found(error=one.error)
        if one.error is ErrorCode.none and left > 0 and one.partition is not None:
            try:
                answer = await _read_one(
                    node, one.partition, one.offset, max(0, min(left, one.size_max)), committed=reads_committed(request)
                )
            except WorldError:
                answer = _Found(error=ErrorCode.kafka_storage_error)
            if len(answer.data) > left and left < size_max:
                answer = _Found(error=one.error)
            left -= len(answer.data)
        found.append(answer)
    return found


async def _read_one(node: Node, partition: Partition, offset: int, size_max: int, *, committed: bool) -> _Found:
    """:raises WorldError: when the log cannot be read."""
    if not committed:
        return _Found(error=ErrorCode.none, data=await node.log.read(partition, offset, size_max))
    data = await node.log.read(partition, offset, size_max, end_offset=partition.stable_offset)
    if not data:
        return _Found(error=ErrorCode.none)
    last_offset = max(head.last_offset for _, head in iter_heads(data))
    return _Found(error=ErrorCode.none, data=data, aborted=await node.log.aborted(partition, offset, last_offset + 1))


def _described(one: _Wanted, found: _Found, *, reads_committed: bool) -> Values:
    partition = one.partition if found.error is ErrorCode.none else None
    return {
        "partition_index": one.number,
        "error_code": found.error,
        "high_watermark": partition.end_offset if partition else -1,
        "last_stable_offset": partition.stable_offset if partition else -1,
        "log_start_offset": partition.start_offset if partition else -1,
        "aborted_transactions": [
            {"producer_id": aborted.producer_id, "first_offset": aborted.first_offset} for aborted in found.aborted
        ]
        if reads_committed and partition
        else None,
        "preferred_read_replica": -1,
        "records": found.data,
    }
