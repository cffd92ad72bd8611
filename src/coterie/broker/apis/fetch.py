"""Fetch: waits for min bytes or max wait, then returns whole batches as they were produced; with isolation level
read_committed only up to the last stable offset, with the aborted transactions among them. Not supported: fetch
sessions (KIP-227; every response has session id 0, and every fetch is a full fetch), followers and tiered storage."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from coterie.broker.apis.api import KafkaApi
from coterie.broker.apis.needs import Operation, Permission, each_partition, on_topic
from coterie.broker.node import LEADER_EPOCH, ApiRequest, Node, topic_of
from coterie.broker.storage.log import Partition
from coterie.broker.storage.reader import Counted
from coterie.broker.storage.transaction_store import Aborted
from coterie.broker.turns import in_turns
from coterie.nouns.errors import WorldError
from coterie.wire.batches import iter_heads
from coterie.wire.errors import ErrorCode
from coterie.wire.shapes import Values, milliseconds

READ_COMMITTED = 1
"""The isolation level; with any other value all records are returned."""
_NO_SESSION = 0
_EPOCHS_WITHOUT_SESSION = (-1, 0)
"""No session, or a new session: both are full fetches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """One partition of a fetch request: the offset to read from, or the partition's error code."""

    number: int
    error: ErrorCode
    partition: Partition | None = None
    offset: int = -1
    size_max: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """The result of one partition."""

    error: ErrorCode
    data: bytes = b""
    aborted: Sequence[Aborted] = ()


async def handle(node: Node, request: ApiRequest) -> Values:
    if refusal := _session_refusal(request):
        return {"error_code": refusal, "session_id": _NO_SESSION, "responses": ()}
    wanted = [(topic, await _wanted(node, topic)) async for topic in in_turns(request.body.topics)]
    every = [one for _, partitions in wanted for one in partitions]
    found = await _long_poll(node, request, every)
    answers = iter(found)
    return {
        "error_code": ErrorCode.none,
        "session_id": _NO_SESSION,
        "responses": [
            {
                "topic": getattr(topic, "topic", None),
                "topic_id": getattr(topic, "topic_id", None),
                "partitions": [
                    _described(one, next(answers), reads_committed=reads_committed(request))
                    async for one in in_turns(partitions)
                ],
            }
            async for topic, partitions in in_turns(wanted)
        ],
    }


def reads_committed(request: ApiRequest) -> bool:
    return bool(request.told("isolation_level", 0) == READ_COMMITTED)


def _session_refusal(request: ApiRequest) -> ErrorCode | None:
    if request.told("session_id", _NO_SESSION) != _NO_SESSION:
        return ErrorCode.fetch_session_id_not_found
    if request.told("session_epoch", -1) not in _EPOCHS_WITHOUT_SESSION:
        return ErrorCode.invalid_fetch_session_epoch
    return None


async def _wanted(node: Node, asked: Any) -> list[_Wanted]:
    topic = topic_of(node, asked, "topic")
    unknown = ErrorCode.unknown_topic_or_partition if hasattr(asked, "topic") else ErrorCode.unknown_topic_id
    wanted: list[_Wanted] = []
    async for entity in in_turns(asked.partitions):
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


async def _long_poll(node: Node, request: ApiRequest, wanted: list[_Wanted]) -> list[_Found]:
    """The data of each partition, once there is enough or the client's max wait has passed."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + max(0, milliseconds(request.body.max_wait)) / 1000
    grew = asyncio.Event()
    watched = [one.partition for one in wanted if one.partition is not None]
    for partition in watched:
        partition.watch(grew)
    gathered = _Gathered(node, request)
    try:
        while True:
            grew.clear()
            is_enough = await gathered.count(wanted)
            if not is_enough and wanted:
                try:
                    async with asyncio.timeout_at(deadline):
                        await grew.wait()
                except TimeoutError:
                    is_enough = True
            if is_enough or not wanted:
                return await gathered.read(wanted)
            # The event is also set when a topic is deleted.
            wanted = [one for topic in request.body.topics for one in await _wanted(node, topic)]
    finally:
        for partition in watched:
            partition.unwatch(grew)


class _Gathered:
    """Reads the partitions of one fetch request: counts the readable bytes until there are enough, then reads them."""

    def __init__(self, node: Node, request: ApiRequest) -> None:
        self._node = node
        self._reserve = request.reserve
        self._reads_committed = reads_committed(request)
        self._size_max = min(request.told("max_bytes", node.settings.fetch_size_max), node.settings.fetch_size_max)
        self._min_bytes = min(request.body.min_bytes, self._size_max)
        self._counted: dict[tuple[int, int], Counted] = {}
        """By index in the request and the partition's row id: a deleted topic's name may belong to a new topic."""

    async def count(self, wanted: list[_Wanted]) -> bool:
        """Count new bytes; return whether there are enough, or any partition has an error."""
        size = 0
        has_failed = False
        async for place, one in in_turns(enumerate(wanted)):
            has_failed = has_failed or one.error is not ErrorCode.none
            if one.error is not ErrorCode.none or one.partition is None or size >= self._size_max:
                continue
            size_max = max(0, min(one.size_max, self._size_max))
            before = self._counted.get((place, one.partition.id), Counted(size=0, end_offset=one.offset, is_full=False))
            if not before.is_full:
                try:
                    before = await self._node.log.count(
                        one.partition,
                        before.end_offset,
                        size_max,
                        end_offset=one.partition.stable_offset if self._reads_committed else one.partition.end_offset,
                        before=before.size,
                    )
                except WorldError:
                    # The read will fail, too, and set the error code.
                    has_failed = True
                    before = Counted(size=before.size, end_offset=one.partition.end_offset, is_full=False)
                self._counted[place, one.partition.id] = before
            size += before.size
        return has_failed or size >= self._min_bytes

    async def read(self, wanted: list[_Wanted]) -> list[_Found]:
        """Read in the order of the request; at the size limit the other partitions stay empty. The first batch is
        always returned."""
        sizes = [counted.size for counted in self._counted.values() if counted.size]
        if sizes:
            await self._reserve(min(sum(sizes), max(self._size_max, sizes[0])))
        found: list[_Found] = []
        left = self._size_max
        async for place, one in in_turns(enumerate(wanted)):
            answer = _Found(error=one.error)
            counted = None if one.partition is None else self._counted.get((place, one.partition.id))
            if one.error is ErrorCode.none and left > 0 and one.partition is not None and counted is not None:
                try:
                    answer = await self._read_one(
                        one.partition, one.offset, max(0, min(left, one.size_max)), counted.end_offset
                    )
                except WorldError:
                    answer = _Found(error=ErrorCode.kafka_storage_error)
                if len(answer.data) > left and left < self._size_max:
                    answer = _Found(error=one.error)
                left -= len(answer.data)
            found.append(answer)
        return found

    async def _read_one(self, partition: Partition, offset: int, size_max: int, end_offset: int) -> _Found:
        """:raises WorldError: the log cannot be read."""
        log = self._node.log
        data = await log.read(partition, offset, size_max, end_offset=end_offset)
        if not self._reads_committed or not data:
            return _Found(error=ErrorCode.none, data=data)
        last_offset = max(head.last_offset for _, head in iter_heads(data))
        return _Found(error=ErrorCode.none, data=data, aborted=await log.aborted(partition, offset, last_offset + 1))


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


_NEEDS = Permission(
    each=[each_partition(on_topic(Operation.READ), answers="responses", number=("partition", "partition_index"))]
)
API = KafkaApi(key=1, versions=range(4, 19), handle=handle, needs=_NEEDS)
