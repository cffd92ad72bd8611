"""Fetch: returns whole batches as they are stored. Waits until the request's min bytes are readable, at most the
request's max wait. With isolation level read_committed, the response contains only batches before the last stable
offset, and the list of the aborted transactions among them. Not supported: fetch sessions (KIP-227; every response has
session id 0, and every fetch is a full fetch), followers and tiered storage."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from coterie.broker.apis.api import KafkaApi
from coterie.broker.apis.authorization import (
    ApiAuthorization,
    Operation,
    make_topic_check,
    topic_authorization_with_partition_errors,
)
from coterie.broker.context import LEADER_EPOCH, ApiRequest, BrokerContext, requested_topic
from coterie.broker.loop_yield import yielding
from coterie.broker.storage.log import Partition
from coterie.broker.storage.reader import ReadableSize
from coterie.broker.storage.transaction_store import AbortedTransaction
from coterie.nouns.errors import WorldError
from coterie.wire.batches import iter_whole_batch_headers
from coterie.wire.errors import ErrorCode
from coterie.wire.kio_entities import Values, to_milliseconds

READ_COMMITTED = 1
"""Kafka's number of this isolation level. With any other value all records are returned."""
_NO_SESSION = 0
"""The session id of a request or a response without a fetch session."""
_EPOCHS_WITHOUT_SESSION = (-1, 0)
"""The session epochs that this broker accepts: -1 requests no session, 0 a new session. Both are full fetches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _PartitionFetch:
    """One partition of a fetch request: what to read, or the error code why it cannot be read. ``partition`` is None
    only if the partition does not exist; with any other error it is set."""

    partition_index: int
    """The partition's index."""
    error: ErrorCode
    """NONE if the partition can be read."""
    partition: Partition | None = None
    """None: the partition does not exist."""
    offset: int = -1
    """The offset from which to read."""
    size_max: int = 0
    """The request's limit for this partition, in bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _PartitionData:
    """What a fetch has read from one partition."""

    error: ErrorCode
    """The error code of the partition in the response; NONE if it could be read."""
    data: bytes = b""
    """Whole batches."""
    aborted_transactions: Sequence[AbortedTransaction] = ()
    """The aborted transactions that overlap with the range from the fetch offset to the end of ``data``: at least those
    with records in ``data``. Empty unless the request reads committed records."""


async def handle(broker: BrokerContext, request: ApiRequest) -> Values:
    if refusal := _session_error(request):
        return {"error_code": refusal, "session_id": _NO_SESSION, "responses": ()}
    wanted = [
        (topic, await _partition_fetches_of_topic(broker, topic)) async for topic in yielding(request.body.topics)
    ]
    every = [one for _, partitions in wanted for one in partitions]
    found = await _long_poll_until_enough_or_error(broker, request, every)
    answers = iter(found)
    return {
        "error_code": ErrorCode.none,
        "session_id": _NO_SESSION,
        "responses": [
            {
                "topic": getattr(topic, "topic", None),
                "topic_id": getattr(topic, "topic_id", None),
                "partitions": [
                    _partition_values(one, next(answers), reads_committed=reads_committed(request))
                    async for one in yielding(partitions)
                ],
            }
            async for topic, partitions in yielding(wanted)
        ],
    }


def reads_committed(request: ApiRequest) -> bool:
    """Whether a Fetch or ListOffsets request has the isolation level read_committed."""
    return bool(request.field_or_default("isolation_level", 0) == READ_COMMITTED)


def _session_error(request: ApiRequest) -> ErrorCode | None:
    """The error code for a request that names or continues a fetch session, because this broker supports none; None for
    any other request."""
    if request.field_or_default("session_id", _NO_SESSION) != _NO_SESSION:
        return ErrorCode.fetch_session_id_not_found
    if request.field_or_default("session_epoch", -1) not in _EPOCHS_WITHOUT_SESSION:
        return ErrorCode.invalid_fetch_session_epoch
    return None


async def _partition_fetches_of_topic(broker: BrokerContext, asked: Any) -> list[_PartitionFetch]:
    """The partitions of the request's topic ``asked``, in the order of the request, each with an error code if it
    cannot be read."""
    topic = requested_topic(broker, asked, "topic")
    unknown = ErrorCode.unknown_topic_or_partition if hasattr(asked, "topic") else ErrorCode.unknown_topic_id
    wanted: list[_PartitionFetch] = []
    async for entity in yielding(asked.partitions):
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
            _PartitionFetch(
                partition_index=entity.partition,
                error=error,
                partition=partition,
                offset=entity.fetch_offset,
                size_max=entity.partition_max_bytes,
            )
        )
    return wanted


async def _long_poll_until_enough_or_error(
    broker: BrokerContext, request: ApiRequest, fetches: list[_PartitionFetch]
) -> list[_PartitionData]:
    """Read the partitions as soon as the request's min bytes are readable, a partition has an error, or the request's
    max wait has passed since this call. Returns the result of each partition, in the order of ``fetches``."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + max(0, to_milliseconds(request.body.max_wait)) / 1000
    grew = asyncio.Event()
    watched = [one.partition for one in fetches if one.partition is not None]
    for partition in watched:
        partition.watch(grew)
    gathered = _FetchReader(broker, request)
    try:
        while True:
            grew.clear()
            is_enough = await gathered.count_and_test_min_bytes(fetches)
            if not is_enough and fetches:
                try:
                    async with asyncio.timeout_at(deadline):
                        await grew.wait()
                except TimeoutError:
                    is_enough = True
            if is_enough or not fetches:
                return await gathered.read(fetches)
            # The event is also set when a topic is deleted.
            fetches = [one for topic in request.body.topics for one in await _partition_fetches_of_topic(broker, topic)]
    finally:
        for partition in watched:
            partition.unwatch(grew)


class _FetchReader:
    """Reads the partitions of one fetch request: `count_and_test_min_bytes` counts the readable bytes, as often as
    needed; then `read` waits until the response fits into the byte budgets, and reads the counted bytes."""

    def __init__(self, broker: BrokerContext, request: ApiRequest) -> None:
        self._broker = broker
        self._reserve_response_bytes = request.reserve_response_bytes
        self._reads_committed = reads_committed(request)
        self._size_max = min(
            request.field_or_default("max_bytes", broker.settings.fetch_size_max), broker.settings.fetch_size_max
        )
        self._min_bytes = min(request.body.min_bytes, self._size_max)
        self._readable_sizes: dict[tuple[int, int], ReadableSize] = {}
        """The bytes counted so far, by the partition's index in the request and its row id. The row id is needed
        because a topic may be deleted and created again while the fetch waits."""

    async def count_and_test_min_bytes(self, fetches: list[_PartitionFetch]) -> bool:
        """Add the bytes that became readable since the last call to those counted before. Returns whether these are at
        least the request's min bytes, or any partition has an error or cannot be read."""
        size = 0
        has_failed = False
        async for place, one in yielding(enumerate(fetches)):
            has_failed = has_failed or one.error is not ErrorCode.none
            if one.error is not ErrorCode.none or one.partition is None or size >= self._size_max:
                continue
            size_max = max(0, min(one.size_max, self._size_max))
            before = self._readable_sizes.get(
                (place, one.partition.row_id), ReadableSize(size=0, end_offset=one.offset, is_size_limit_reached=False)
            )
            if not before.is_size_limit_reached:
                try:
                    before = await self._broker.log.readable_size(
                        one.partition,
                        before.end_offset,
                        size_max,
                        end_offset=one.partition.last_stable_offset
                        if self._reads_committed
                        else one.partition.end_offset,
                        included_earlier_bytes=before.size,
                    )
                except WorldError:
                    # The read will fail, too, and set the error code.
                    has_failed = True
                    before = ReadableSize(
                        size=before.size, end_offset=one.partition.end_offset, is_size_limit_reached=False
                    )
                self._readable_sizes[place, one.partition.row_id] = before
            size += before.size
        return has_failed or size >= self._min_bytes

    async def read(self, fetches: list[_PartitionFetch]) -> list[_PartitionData]:
        """Read the counted batches, in the order of the request. Waits first until the response fits into the byte
        budgets of the connection and its principal.

        When the size limit of the response is reached, the remaining partitions stay empty. The first batch of the
        response is returned even if it exceeds the limits. A partition that cannot be read has the error code
        KAFKA_STORAGE_ERROR.
        """
        sizes = [counted.size for counted in self._readable_sizes.values() if counted.size]
        if sizes:
            await self._reserve_response_bytes(min(sum(sizes), max(self._size_max, sizes[0])))
        found: list[_PartitionData] = []
        left = self._size_max
        async for place, one in yielding(enumerate(fetches)):
            answer = _PartitionData(error=one.error)
            counted = None if one.partition is None else self._readable_sizes.get((place, one.partition.row_id))
            if one.error is ErrorCode.none and left > 0 and one.partition is not None and counted is not None:
                try:
                    answer = await self._read_batches_and_aborted_transactions(
                        one.partition, one.offset, max(0, min(left, one.size_max)), counted.end_offset
                    )
                except WorldError:
                    answer = _PartitionData(error=ErrorCode.kafka_storage_error)
                if len(answer.data) > left and left < self._size_max:
                    answer = _PartitionData(error=one.error)
                left -= len(answer.data)
            found.append(answer)
        return found

    async def _read_batches_and_aborted_transactions(
        self, partition: Partition, offset: int, size_max: int, end_offset: int
    ) -> _PartitionData:
        """Read whole batches of at most ``size_max`` bytes together, but at least one batch, from ``offset`` to before
        ``end_offset``; and the aborted transactions among them if the request reads committed records.

        :raises WorldError: when the log cannot be read.
        """
        log = self._broker.log
        data = await log.read(partition, offset, size_max, end_offset=end_offset)
        if not self._reads_committed or not data:
            return _PartitionData(error=ErrorCode.none, data=data)
        last_offset = max(head.last_offset for _, head in iter_whole_batch_headers(data))
        return _PartitionData(
            error=ErrorCode.none,
            data=data,
            aborted_transactions=await log.aborted_transactions(partition, offset, last_offset + 1),
        )


def _partition_values(fetch: _PartitionFetch, result: _PartitionData, *, reads_committed: bool) -> Values:
    """The response entry of the partition of ``fetch``: the batches in ``result``, or its error code."""
    partition = fetch.partition if result.error is ErrorCode.none else None
    return {
        "partition_index": fetch.partition_index,
        "error_code": result.error,
        "high_watermark": partition.end_offset if partition else -1,
        "last_stable_offset": partition.last_stable_offset if partition else -1,
        "log_start_offset": partition.start_offset if partition else -1,
        "aborted_transactions": [
            {"producer_id": aborted.producer_id, "first_offset": aborted.first_offset}
            for aborted in result.aborted_transactions
        ]
        if reads_committed and partition
        else None,
        "preferred_read_replica": -1,
        "records": result.data,
    }


_AUTHORIZATION = ApiAuthorization(
    items=[
        topic_authorization_with_partition_errors(
            make_topic_check(Operation.READ), response_field="responses", index_fields=("partition", "partition_index")
        )
    ]
)
API = KafkaApi(key=1, versions=range(4, 19), handle=handle, authorization=_AUTHORIZATION)
