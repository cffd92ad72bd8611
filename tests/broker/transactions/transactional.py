"""A broker's log and its transactions without the wire, and what a reader of committed records sees of them."""

import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from coterie.broker.storage.log import BrokerLog, Partition, open_log
from coterie.broker.transactions.coordinator import Transactions
from coterie.broker.transactions.writes import BatchAdmission, NewBatch, Written
from coterie.groups.transaction_messages import (
    AddPartitions,
    EndTransaction,
    Identity,
    InitProducerId,
    Reply,
    TopicPartition,
    TransactionLimits,
)
from coterie.wire.batches import TRANSACTIONAL, NewRecord, check_produced, decode_records, encode_batch, iter_heads

TOPIC = "t"
TIMEOUT_MS = 60_000


class Clock:
    """Goes on when it is told to."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000

    def __call__(self) -> int:
        return self.now_ms


class Bench:
    """What one life of a broker is made of."""

    def __init__(self, log: BrokerLog, transactions: Transactions) -> None:
        self.log = log
        self.transactions = transactions

    def partition(self, number: int = 0) -> Partition:
        return self.log.topics[TOPIC].partitions[number]

    async def init(self, transactional_id: str, expected: Identity | None = None) -> Identity:
        reply = await self.transactions.ask(
            transactional_id,
            lambda fresh: InitProducerId(
                timeout_ms=TIMEOUT_MS, timeout_max_ms=TIMEOUT_MS, expected=expected, fresh_producer_id=fresh
            ),
        )
        return reply.producer

    async def add(self, transactional_id: str, producer: Identity, *numbers: int) -> Reply:
        partitions = frozenset(TopicPartition(TOPIC, number) for number in numbers)
        return await self.transactions.ask(
            transactional_id, lambda _: AddPartitions(producer=producer, partitions=partitions)
        )

    async def end(self, transactional_id: str, producer: Identity, *, commit: bool, bumps: bool = False) -> Reply:
        return await self.transactions.ask(
            transactional_id,
            lambda fresh: EndTransaction(
                producer=producer, is_commit=commit, bumps_epoch=bumps, fresh_producer_id=fresh
            ),
        )

    async def send(
        self,
        values: Sequence[bytes],
        producer: Identity | None = None,
        sequence: int = -1,
        *,
        number: int = 0,
        transactional_id: str | None = None,
        admission: BatchAdmission = BatchAdmission.ADDED_OR_ABORTABLE,
    ) -> Written:
        """One batch; transactional when there is an id for that."""
        data = encode_batch(
            [NewRecord(key=None, value=value) for value in values],
            timestamp_ms=1,
            producer_id=producer.producer_id if producer else -1,
            producer_epoch=producer.epoch if producer else -1,
            base_sequence=sequence,
            attributes=TRANSACTIONAL if transactional_id is not None else 0,
        )
        return await self.transactions.append(
            NewBatch(
                to=TopicPartition(TOPIC, number),
                partition_id=self.partition(number).id,
                data=data,
                head=check_produced(data),
                transactional_id=transactional_id,
                admission=admission,
                needs_keys=False,
            )
        )

    async def committed(self, number: int = 0, *, size_max: int = 1_000_000) -> list[bytes | None]:
        """What a reader of committed records sees, as clients work it out from the answers to their fetches."""
        partition = self.partition(number)
        seen: list[bytes | None] = []
        offset = partition.start_offset
        while data := await self.log.read(partition, offset, size_max, end_offset=partition.stable_offset):
            heads = list(iter_heads(data))
            last_offset = heads[-1][1].last_offset
            aborted = await self.log.aborted(partition, offset, last_offset + 1)
            for at, head in heads:
                is_aborted = head.is_transactional and any(
                    one.producer_id == head.producer_id and one.first_offset <= head.base_offset < one.last_offset
                    for one in aborted
                )
                if not is_aborted:
                    seen += [record.value for record in decode_records(data[at : at + head.size_bytes])]
            offset = last_offset + 1
        return seen


@asynccontextmanager
async def killed_at_each_statement(life: Bench, folder: Path, into: Path) -> AsyncIterator[list[Path]]:
    """Copies of ``folder`` as kills would leave them: one before each statement that writes, and one after the last."""
    copies: list[Path] = []

    def copy(_statement: str) -> None:
        copies.append(into / f"killed-{len(copies)}")
        shutil.copytree(folder, copies[-1])

    # The end of the first of these writes and the begin of the second are copied, too.
    await life.log.write(lambda store: store.database.set_trace_callback(copy))
    yield copies
    await life.log.write(lambda store: store.database.set_trace_callback(None))
    copy("after the last")


@asynccontextmanager
async def bench(folder: Path, *, clock: Clock | None = None, partitions: int = 1) -> AsyncIterator[Bench]:
    """One life of a broker on ``folder``; its topic is made in the first."""
    async with open_log(folder / "log.sqlite", folder / "lock") as log:
        if TOPIC not in log.topics:
            await log.create_topic(TOPIC, partitions, {})
        yield Bench(log, await Transactions.open(log, TransactionLimits(), now_ms=clock or Clock()))
