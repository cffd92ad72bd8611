"""Sequence numbers of idempotent producers, with duplicates, restarts and disk failures."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.broker.storage.producers import (
    ProducerState,
    check_batch_sequence_epoch_and_transaction,
    find_duplicate,
    state_after_batch,
)
from coterie.broker.storage.transaction_store import read_partition_producer_rows
from coterie.groups.transaction_messages import ProducerIdAndEpoch
from coterie.nouns.errors import WorldError
from coterie.wire.batches import BatchHeader, NewRecord, check_produced_batch, encode_batch
from coterie.wire.errors import ErrorCode, KafkaRefusal
from tests.broker.full_disk import fill_disk, lift_limit
from tests.broker.transactions.transactional import Clock, running_transactions

ALICE = ProducerIdAndEpoch(7, 0)
DAY_MS = 86_400_000


def head(sequence: int, *, records: int = 1, epoch: int = 0) -> BatchHeader:
    batch = encode_batch(
        [NewRecord(key=None, value=b"v")] * records,
        timestamp_ms=1,
        producer_id=ALICE.producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
    )
    return check_produced_batch(batch)


def test_sequence_numbers_wrap_around() -> None:
    state = state_after_batch(None, head(2**31 - 2, records=3), 0)
    assert find_duplicate(state, head(2**31 - 2, records=3))
    check_batch_sequence_epoch_and_transaction(state, head(1), unknown_producer_starts_at_zero=False)
    with pytest.raises(KafkaRefusal):
        check_batch_sequence_epoch_and_transaction(state, head(0), unknown_producer_starts_at_zero=False)


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(1, 3), st.integers(0, 2)), max_size=60))
def test_each_sequence_number_is_written_once_and_without_gaps(sent: list[tuple[int, int, int]]) -> None:
    state: ProducerState | None = None
    written: dict[int, list[int]] = {}
    for sequence, records, epoch in sent:
        batch = head(sequence, records=records, epoch=epoch)
        if find_duplicate(state, batch):
            continue
        try:
            check_batch_sequence_epoch_and_transaction(state, batch, unknown_producer_starts_at_zero=True)
        except KafkaRefusal:
            continue
        state = state_after_batch(state, batch, 0)
        written.setdefault(epoch, []).extend(range(sequence, sequence + records))
    for numbers in written.values():
        assert numbers == list(range(len(numbers)))


async def test_a_duplicate_batch_is_acknowledged_and_not_written(tmp_path: Path) -> None:
    async with running_transactions(tmp_path) as broker:
        offsets = [(await broker.send([b"%d" % i], ALICE, i)).base_offset for i in range(6)]
        assert offsets == [0, 1, 2, 3, 4, 5]
        assert (await broker.send([b"3"], ALICE, 3)).base_offset == 3
        with pytest.raises(KafkaRefusal, match="out_of_order"):
            await broker.send([b"0"], ALICE, 0)
        assert await broker.committed_values() == [b"%d" % i for i in range(6)]


async def test_sequence_numbers_survive_a_restart(tmp_path: Path) -> None:
    async with running_transactions(tmp_path) as broker:
        await broker.send([b"a", b"b"], ALICE, 0)
    async with running_transactions(tmp_path) as broker:
        assert (await broker.send([b"a", b"b"], ALICE, 0)).base_offset == 0
        with pytest.raises(KafkaRefusal, match="out_of_order"):
            await broker.send([b"d"], ALICE, 3)
        assert (await broker.send([b"c"], ALICE, 2)).base_offset == 2
        with pytest.raises(KafkaRefusal, match="invalid_producer_epoch"):
            await broker.send([b"x"], ProducerIdAndEpoch(ALICE.producer_id, -1), 3)


async def test_a_batch_that_a_full_disk_refused_can_be_sent_again(tmp_path: Path) -> None:
    async with running_transactions(tmp_path) as broker:
        await broker.send([b"a"], ALICE, 0)
        await broker.log.run_write(fill_disk)
        with pytest.raises(WorldError):
            await broker.send([b"b" * 100_000], ALICE, 1)
        await broker.log.run_write(lift_limit)
        with pytest.raises(KafkaRefusal, match="out_of_order"):
            await broker.send([b"c"], ALICE, 2)
        assert (await broker.send([b"b" * 100_000], ALICE, 1)).base_offset == 1


async def test_a_producer_that_was_inactive_for_a_day_is_removed_unless_its_transaction_is_open(tmp_path: Path) -> None:
    clock = Clock()
    async with running_transactions(tmp_path, clock=clock) as broker:
        await broker.send([b"a"], ALICE, 0)
        bob = await broker.init("bob")
        await broker.add("bob", bob, 0)
        await broker.send([b"b"], bob, 0, transactional_id="bob")
        clock.now_ms += DAY_MS + 1
        await broker.transactions.delete_expired_states_or_warn()
        state = await broker.log.run_write(
            lambda store: read_partition_producer_rows(store.database, broker.partition().row_id)
        )
        assert [row.producer_id for row in state] == [bob.producer_id]
        assert (await broker.send([b"c"], ALICE, 44)).base_offset == 2, (
            "an unknown producer may start at any sequence number"
        )


async def test_deleting_a_topic_deletes_its_producers(tmp_path: Path) -> None:
    async with running_transactions(tmp_path) as broker:
        await broker.send([b"a"], ALICE, 0)
        partition_id = broker.partition().row_id
        await broker.log.delete_topic(broker.log.topics["t"])
        await broker.log.run_write(lambda store: store.database.execute("DELETE FROM batches"))
        await broker.log.run_write(lambda store: store.database.execute("DELETE FROM partitions WHERE topic IS NULL"))
        left = await broker.log.run_write(lambda store: read_partition_producer_rows(store.database, partition_id))
        assert left == []
        await broker.log.create_topic("t", 1, {})
        assert (await broker.send([b"a"], ALICE, 0)).base_offset == 0


def test_a_refusal_has_kafkas_error_code() -> None:
    state = state_after_batch(None, head(0, epoch=3), 0)
    with pytest.raises(KafkaRefusal) as refused:
        check_batch_sequence_epoch_and_transaction(state, head(1, epoch=2), unknown_producer_starts_at_zero=False)
    assert refused.value.error is ErrorCode.invalid_producer_epoch
