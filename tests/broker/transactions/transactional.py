"""A broker's log and its transactions without the wire, and a reader of committed records."""

import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from coterie.broker.storage.log import BrokerLog, Partition, open_log
from coterie.broker.transactions.coordinator import TransactionCoordinator
from coterie.broker.transactions.writes import NewBatch, UnaddedPartitionRule, WriteResult
from coterie.groups.transaction_messages import (
    AddPartitions,
    EndTransaction,
    InitProducerId,
    ProducerIdAndEpoch,
    Reply,
    TopicPartition,
    TransactionSettings,
)
from coterie.wire.batches import (
    TRANSACTIONAL_BIT,
    NewRecord,
    check_produced_batch,
    decode_uncompressed_records_without_control,
    encode_batch,
    iter_whole_batch_headers,
)

TOPIC = "t"
TIMEOUT_MS = 60_000


class Clock:
    """A clock that advances only when a test changes ``now_ms``."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000

    def __call__(self) -> int:
        return self.now_ms


class BrokerUnderTest:
    """The log and the transactions of one run of a broker."""

    def __init__(self, log: BrokerLog, transactions: TransactionCoordinator) -> None:
        self.log = log
        self.transactions = transactions

    def partition(self, number: int = 0) -> Partition:
        return self.log.topics[TOPIC].partitions[number]

    async def init(self, transactional_id: str, expected: ProducerIdAndEpoch | None = None) -> ProducerIdAndEpoch:
        reply = await self.transactions.ask(
            transactional_id,
            lambda fresh: InitProducerId(
                transaction_timeout_ms=TIMEOUT_MS,
                transaction_timeout_max_ms=TIMEOUT_MS,
                expected_producer=expected,
                fresh_producer_id=fresh,
            ),
        )
        return reply.producer

    async def add(self, transactional_id: str, producer: ProducerIdAndEpoch, *numbers: int) -> Reply:
        partitions = frozenset(TopicPartition(TOPIC, number) for number in numbers)
        return await self.transactions.ask(
            transactional_id, lambda _: AddPartitions(producer=producer, partitions=partitions)
        )

    async def end(
        self, transactional_id: str, producer: ProducerIdAndEpoch, *, commit: bool, bumps: bool = False
    ) -> Reply:
        return await self.transactions.ask(
            transactional_id,
            lambda fresh: EndTransaction(
                producer=producer, is_commit=commit, bumps_epoch=bumps, fresh_producer_id=fresh
            ),
        )

    async def send(
        self,
        values: Sequence[bytes],
        producer: ProducerIdAndEpoch | None = None,
        sequence: int = -1,
        *,
        number: int = 0,
        transactional_id: str | None = None,
        unadded_partition_rule: UnaddedPartitionRule = UnaddedPartitionRule.GENERIC_ERROR_SUPPORTED,
    ) -> WriteResult:
        """Send one batch, in a transaction if ``transactional_id`` is given."""
        data = encode_batch(
            [NewRecord(key=None, value=value) for value in values],
            timestamp_ms=1,
            producer_id=producer.producer_id if producer else -1,
            producer_epoch=producer.epoch if producer else -1,
            base_sequence=sequence,
            attributes=TRANSACTIONAL_BIT if transactional_id is not None else 0,
        )
        return await self.transactions.append(
            NewBatch(
                topic_partition=TopicPartition(TOPIC, number),
                partition_row_id=self.partition(number).row_id,
                data=data,
                head=check_produced_batch(data),
                transactional_id=transactional_id,
                unadded_partition_rule=unadded_partition_rule,
                needs_keys=False,
            )
        )

    async def committed_values(self, number: int = 0, *, size_max: int = 1_000_000) -> list[bytes | None]:
        """What a reader of committed records sees, computed from fetch responses as clients do it."""
        partition = self.partition(number)
        seen: list[bytes | None] = []
        offset = partition.start_offset
        while data := await self.log.read(partition, offset, size_max, end_offset=partition.last_stable_offset):
            heads = list(iter_whole_batch_headers(data))
            last_offset = heads[-1][1].last_offset
            aborted = await self.log.aborted_transactions(partition, offset, last_offset + 1)
            for at, head in heads:
                is_aborted = head.is_transactional and any(
                    one.producer_id == head.producer_id and one.first_offset <= head.base_offset < one.marker_offset
                    for one in aborted
                )
                if not is_aborted:
                    seen += [
                        record.value
                        for record in decode_uncompressed_records_without_control(data[at : at + head.size_bytes])
                    ]
            offset = last_offset + 1
        return seen


@asynccontextmanager
async def copies_at_each_statement(broker: BrokerUnderTest, folder: Path, into: Path) -> AsyncIterator[list[Path]]:
    """Copies of ``folder`` as kills would leave them: one before each statement that writes, and one after the last."""
    copies: list[Path] = []

    def copy(_statement: str) -> None:
        copies.append(into / f"killed-{len(copies)}")
        shutil.copytree(folder, copies[-1])

    # The end of the first of these writes and the start of the second are copied, too.
    await broker.log.run_write(lambda store: store.database.set_trace_callback(copy))
    yield copies
    await broker.log.run_write(lambda store: store.database.set_trace_callback(None))
    copy("after the last")


@asynccontextmanager
async def running_transactions(
    folder: Path, *, clock: Clock | None = None, partitions: int = 1
) -> AsyncIterator[BrokerUnderTest]:
    """Run a broker's transactions on ``folder``; the first run creates the topic."""
    async with open_log(folder / "log.sqlite", folder / "lock") as log:
        if TOPIC not in log.topics:
            await log.create_topic(TOPIC, partitions, {})
        yield BrokerUnderTest(
            log, await TransactionCoordinator.open(log, TransactionSettings(), now_ms=clock or Clock())
        )
