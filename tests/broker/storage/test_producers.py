"""The numbers of idempotent producers, over duplicates, restarts and failures of the disk."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.broker.storage.producers import Producer, after_batch, check_batch, duplicate_of
from coterie.broker.storage.transaction_store import read_producers
from coterie.groups.transaction_messages import Identity
from coterie.nouns.errors import WorldError
from coterie.wire.batches import BatchHead, NewRecord, check_produced, encode_batch
from coterie.wire.errors import ErrorCode, KafkaRefusal
from tests.broker.full_disk import fill_disk, make_room
from tests.broker.transactions.transactional import Clock, bench

ALICE = Identity(7, 0)
DAY_MS = 86_400_000


def head(sequence: int, *, records: int = 1, epoch: int = 0) -> BatchHead:
    batch = encode_batch(
        [NewRecord(key=None, value=b"v")] * records,
        timestamp_ms=1,
        producer_id=ALICE.producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
    )
    return check_produced(batch)


def test_numbers_wrap_around() -> None:
    known = after_batch(None, head(2**31 - 2, records=3), 0)
    assert duplicate_of(known, head(2**31 - 2, records=3))
    check_batch(known, head(1), starts_at_zero=False)
    with pytest.raises(KafkaRefusal):
        check_batch(known, head(0), starts_at_zero=False)


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(1, 3), st.integers(0, 2)), max_size=60))
def test_each_number_is_written_once_and_none_is_left_out(sent: list[tuple[int, int, int]]) -> None:
    known: Producer | None = None
    written: dict[int, list[int]] = {}
    for sequence, records, epoch in sent:
        batch = head(sequence, records=records, epoch=epoch)
        if duplicate_of(known, batch):
            continue
        try:
            check_batch(known, batch, starts_at_zero=True)
        except KafkaRefusal:
            continue
        known = after_batch(known, batch, 0)
        written.setdefault(epoch, []).extend(range(sequence, sequence + records))
    for numbers in written.values():
        assert numbers == list(range(len(numbers)))


async def test_a_batch_that_comes_again_is_answered_and_not_written(tmp_path: Path) -> None:
    async with bench(tmp_path) as life:
        offsets = [(await life.send([b"%d" % i], ALICE, i)).base_offset for i in range(6)]
        assert offsets == [0, 1, 2, 3, 4, 5]
        assert (await life.send([b"3"], ALICE, 3)).base_offset == 3
        with pytest.raises(KafkaRefusal, match="out_of_order"):
            await life.send([b"0"], ALICE, 0)
        assert await life.committed() == [b"%d" % i for i in range(6)]


async def test_numbers_outlive_the_broker(tmp_path: Path) -> None:
    async with bench(tmp_path) as life:
        await life.send([b"a", b"b"], ALICE, 0)
    async with bench(tmp_path) as life:
        assert (await life.send([b"a", b"b"], ALICE, 0)).base_offset == 0
        with pytest.raises(KafkaRefusal, match="out_of_order"):
            await life.send([b"d"], ALICE, 3)
        assert (await life.send([b"c"], ALICE, 2)).base_offset == 2
        with pytest.raises(KafkaRefusal, match="invalid_producer_epoch"):
            await life.send([b"x"], Identity(ALICE.producer_id, -1), 3)


async def test_what_a_full_disk_refused_may_come_again(tmp_path: Path) -> None:
    async with bench(tmp_path) as life:
        await life.send([b"a"], ALICE, 0)
        await life.log.write(fill_disk)
        with pytest.raises(WorldError):
            await life.send([b"b" * 100_000], ALICE, 1)
        await life.log.write(make_room)
        with pytest.raises(KafkaRefusal, match="out_of_order"):
            await life.send([b"c"], ALICE, 2)
        assert (await life.send([b"b" * 100_000], ALICE, 1)).base_offset == 1


async def test_a_producer_not_heard_of_for_a_day_is_forgotten_unless_its_transaction_is_open(tmp_path: Path) -> None:
    clock = Clock()
    async with bench(tmp_path, clock=clock) as life:
        await life.send([b"a"], ALICE, 0)
        bob = await life.init("bob")
        await life.add("bob", bob, 0)
        await life.send([b"b"], bob, 0, transactional_id="bob")
        clock.now_ms += DAY_MS + 1
        await life.transactions.sweep()
        known = await life.log.write(lambda store: read_producers(store.database, life.partition().id))
        assert [row.producer_id for row in known] == [bob.producer_id]
        assert (await life.send([b"c"], ALICE, 44)).base_offset == 2, "whoever is not known begins anywhere"


async def test_a_deleted_topic_takes_its_producers_along(tmp_path: Path) -> None:
    async with bench(tmp_path) as life:
        await life.send([b"a"], ALICE, 0)
        partition_id = life.partition().id
        await life.log.delete_topic(life.log.topics["t"])
        await life.log.write(lambda store: store.database.execute("DELETE FROM batches"))
        await life.log.write(lambda store: store.database.execute("DELETE FROM partitions WHERE topic IS NULL"))
        left = await life.log.write(lambda store: read_producers(store.database, partition_id))
        assert left == []
        await life.log.create_topic("t", 1, {})
        assert (await life.send([b"a"], ALICE, 0)).base_offset == 0


def test_a_refusal_has_kafkas_code() -> None:
    known = after_batch(None, head(0, epoch=3), 0)
    with pytest.raises(KafkaRefusal) as refused:
        check_batch(known, head(1, epoch=2), starts_at_zero=False)
    assert refused.value.error is ErrorCode.invalid_producer_epoch
