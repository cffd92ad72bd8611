"""Transactions on the log: what readers of committed records see after restarts, timeouts and kills."""

import asyncio
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.broker.transactions.writes import UnaddedPartitionRule
from coterie.groups.transaction_messages import ProducerIdAndEpoch, TransactionState
from coterie.wire.errors import ErrorCode, KafkaRefusal
from tests.broker.conftest import DEADLINE_S
from tests.broker.transactions.transactional import (
    TIMEOUT_MS,
    BrokerUnderTest,
    Clock,
    copies_at_each_statement,
    running_transactions,
)

LAZY = UnaddedPartitionRule.ADD_PARTITION


async def begin_transaction(broker: BrokerUnderTest, name: str, *values: bytes, number: int = 0) -> ProducerIdAndEpoch:
    """Send ``values`` in a transaction that stays open; returns its producer."""
    producer = await broker.init(name)
    for sequence, value in enumerate(values):
        await broker.send(
            [value], producer, sequence, number=number, transactional_id=name, unadded_partition_rule=LAZY
        )
    return producer


async def test_readers_of_committed_records_stop_at_the_first_open_transaction(tmp_path: Path) -> None:
    async with running_transactions(tmp_path) as broker:
        alice, bob = (
            await begin_transaction(broker, "alice", b"a0", b"a1"),
            await begin_transaction(broker, "bob", b"b0"),
        )
        await broker.send([b"plain"])
        assert (broker.partition().last_stable_offset, broker.partition().end_offset) == (0, 4)
        assert await broker.committed_values() == []
        await broker.end("alice", alice, commit=True)
        assert broker.partition().last_stable_offset == 2
        assert await broker.committed_values() == [b"a0", b"a1"]
        await broker.end("bob", bob, commit=False)
        assert broker.partition().last_stable_offset == broker.partition().end_offset == 6
        assert await broker.committed_values() == [b"a0", b"a1", b"plain"]


async def test_an_open_transaction_survives_a_restart_and_can_be_committed(tmp_path: Path) -> None:
    async with running_transactions(tmp_path) as broker:
        alice = await begin_transaction(broker, "alice", b"a0")
    async with running_transactions(tmp_path) as broker:
        assert broker.partition().last_stable_offset == 0
        await broker.send([b"a1"], alice, 1, transactional_id="alice")
        assert (await broker.end("alice", alice, commit=True)).error is ErrorCode.none
        assert await broker.committed_values() == [b"a0", b"a1"]


async def test_the_timeout_of_an_open_transaction_continues_after_a_restart(tmp_path: Path) -> None:
    clock = Clock()
    async with running_transactions(tmp_path, clock=clock) as broker:
        alice = await begin_transaction(broker, "alice", b"a0")
    clock.now_ms += TIMEOUT_MS
    async with running_transactions(tmp_path, clock=clock) as broker:
        running = asyncio.create_task(broker.transactions.run())
        aborted = asyncio.Event()
        broker.partition().watch(aborted)
        await asyncio.wait_for(aborted.wait(), DEADLINE_S)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert broker.partition().last_stable_offset == 2
        assert await broker.committed_values() == []
        assert (await broker.end("alice", alice, commit=True)).error is ErrorCode.producer_fenced


async def test_a_transaction_in_a_deleted_topic_can_be_ended(tmp_path: Path) -> None:
    async with running_transactions(tmp_path) as broker:
        alice = await begin_transaction(broker, "alice", b"a0")
        await broker.log.delete_topic(broker.log.topics["t"])
        assert (await broker.end("alice", alice, commit=True)).error is ErrorCode.none


async def test_an_aborted_transaction_is_removed_together_with_its_records(tmp_path: Path) -> None:
    async with running_transactions(tmp_path) as broker:
        alice = await begin_transaction(broker, "alice", b"a0")
        await broker.end("alice", alice, commit=False)
        assert len(await broker.log.aborted_transactions(broker.partition(), 0, 10)) == 1
        await broker.log.delete_records(broker.partition(), 2)
        await broker.transactions.delete_expired_states_or_warn()
        assert await broker.log.aborted_transactions(broker.partition(), 0, 10) == []


async def test_the_last_stable_offset_is_never_before_the_start_offset(tmp_path: Path) -> None:
    async with running_transactions(tmp_path) as broker:
        alice = await begin_transaction(broker, "alice", b"a0", b"a1", b"a2")
        await broker.log.delete_records(broker.partition(), 2)
        assert broker.partition().last_stable_offset == 2
        assert await broker.committed_values() == []
        await broker.end("alice", alice, commit=True)
        assert await broker.committed_values() == [b"a2"]


async def test_a_transactional_id_that_is_unused_for_a_week_is_removed(tmp_path: Path) -> None:
    clock = Clock()
    async with running_transactions(tmp_path, clock=clock) as broker:
        alice, bob = await begin_transaction(broker, "alice", b"a0"), await begin_transaction(broker, "bob", b"b0")
        await broker.end("alice", alice, commit=True)
        clock.now_ms += 7 * 86_400_000 + 1
        await broker.transactions.delete_expired_states_or_warn()
        open_transactions = await broker.transactions.read_all_transactions()
        assert [name for name, _ in open_transactions] == ["bob"], "bob's transaction is open"
        assert (await broker.init("alice")).producer_id > bob.producer_id


async def test_producers_are_read_in_pages_while_the_writer_is_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coterie.broker.transactions.coordinator.PAGE_ROWS", 2)
    async with running_transactions(tmp_path) as broker:
        producers = [await begin_transaction(broker, name, b"x") for name in ("alice", "bob", "carol", "dave", "eve")]
        met = threading.Barrier(2)
        held = broker.log.run_write(lambda _: (met.wait(DEADLINE_S), met.wait(DEADLINE_S)))
        await asyncio.to_thread(met.wait, DEADLINE_S)
        try:  # the writer is busy
            async with asyncio.timeout(DEADLINE_S):
                alice = await broker.transactions.read_transaction("alice")
                names = [name for name, _ in await broker.transactions.read_all_transactions()]
                rows = await broker.transactions.producers(broker.partition())
        finally:
            await asyncio.to_thread(met.wait, DEADLINE_S)
            await held
        assert alice is not None
        assert alice.producer == producers[0]
        assert names == ["alice", "bob", "carol", "dave", "eve"]
        assert [row.producer_id for row in rows] == [producer.producer_id for producer in producers]


async def test_a_kill_at_any_statement_ends_a_transaction_in_all_partitions_or_in_none(tmp_path: Path) -> None:
    """The files are copied before each statement, as a kill would leave them, and a broker opens each copy."""
    async with running_transactions(tmp_path / "life", partitions=3) as broker:
        alice = await begin_transaction(broker, "alice", b"a0")
        for number in (1, 2):
            await broker.send([b"a"], alice, 0, number=number, transactional_id="alice", unadded_partition_rule=LAZY)
        async with copies_at_each_statement(broker, tmp_path / "life", tmp_path) as killed:
            await broker.end("alice", alice, commit=True)
    ended: list[bool] = []
    for folder in killed:
        async with running_transactions(folder) as broker:
            written = await broker.transactions.read_transaction("alice")
            assert written is not None
            ended.append(written.state is TransactionState.COMPLETE_COMMIT)
            for number in range(3):
                partition = broker.partition(number)
                assert (partition.last_stable_offset == partition.end_offset) is ended[-1]
            # The producer repeats its request, and all readers see the same records.
            assert (await broker.end("alice", alice, commit=True)).error is ErrorCode.none
            assert [await broker.committed_values(number) for number in range(3)] == [[b"a0"], [b"a"], [b"a"]]
    assert len(killed) > 12
    assert ended == sorted(ended)
    assert (ended[0], ended[-1]) == (False, True)


async def test_a_batch_interrupted_by_a_kill_is_written_with_its_sequence_number_or_not_at_all(tmp_path: Path) -> None:
    async with running_transactions(tmp_path / "life") as broker:
        alice = await broker.init("alice")
        async with copies_at_each_statement(broker, tmp_path / "life", tmp_path) as killed:
            await broker.send([b"a0"], alice, 0, transactional_id="alice", unadded_partition_rule=LAZY)
    assert len(killed) > 7
    for folder in killed:
        async with running_transactions(folder) as broker:
            # The producer got no response and sends the batch again.
            await broker.send([b"a0"], alice, 0, transactional_id="alice", unadded_partition_rule=LAZY)
            await broker.send([b"a1"], alice, 1, transactional_id="alice", unadded_partition_rule=LAZY)
            assert (await broker.end("alice", alice, commit=True)).error is ErrorCode.none
            assert await broker.committed_values() == [b"a0", b"a1"]


# -- random histories -------------------------------------------------------------------------------------------------

NAMES = ("alice", "bob", "carol")
PARTITIONS = 2
names = st.sampled_from(NAMES)
acts = st.one_of(
    st.tuples(st.just("send"), names, st.integers(0, PARTITIONS - 1)),
    st.tuples(st.just("send"), names, st.integers(0, PARTITIONS - 1)),
    st.tuples(st.just("plain"), st.just(""), st.integers(0, PARTITIONS - 1)),
    st.tuples(st.just("commit"), names, st.booleans()),
    st.tuples(st.just("abort"), names, st.booleans()),
    st.tuples(st.just("init"), names, st.booleans()),
    st.tuples(st.just("time out"), names, st.just(0)),
    st.tuples(st.just("zombie"), names, st.integers(0, PARTITIONS - 1)),
    st.tuples(st.just("restart"), st.just(""), st.just(0)),
)


class Model:
    """The expected state: each partition's records in order, each with its transaction."""

    def __init__(self) -> None:
        self.records: list[list[tuple[bytes, int | None]]] = [[] for _ in range(PARTITIONS)]
        self.committed: dict[int, bool | None] = {}
        """Whether each transaction was committed, or None while it is open."""
        self.open: dict[str, int] = {}
        self.identity: dict[str, ProducerIdAndEpoch] = {}
        self.former: dict[str, ProducerIdAndEpoch] = {}
        self.sequences: dict[tuple[ProducerIdAndEpoch, int], int] = {}

    def end(self, name: str, committed: bool) -> None:
        if name in self.open:
            self.committed[self.open.pop(name)] = committed

    def visible(self, number: int) -> list[bytes]:
        """The records of committed transactions before the first open transaction."""
        seen: list[bytes] = []
        for value, transaction in self.records[number]:
            committed = True if transaction is None else self.committed[transaction]
            if committed is None:
                break
            if committed:
                seen.append(value)
        return seen


@settings(max_examples=60)
@given(st.lists(acts, max_size=40))
def test_readers_see_exactly_what_was_committed_in_order(
    tmp_path_factory: pytest.TempPathFactory, history: list[tuple[str, str, int]]
) -> None:
    asyncio.run(run_history(tmp_path_factory.mktemp("lives"), history))


async def run_history(folder: Path, history: list[tuple[str, str, int]]) -> None:
    model, clock = Model(), Clock()
    left = list(enumerate(history))
    while True:
        async with running_transactions(folder, clock=clock, partitions=PARTITIONS) as broker:
            while left:
                count, (act, name, what) = left.pop(0)
                if act == "restart":
                    break
                await run_action(broker, model, clock, act, name, what, b"%d" % count)
                for number in range(PARTITIONS):
                    assert await broker.committed_values(number, size_max=150) == model.visible(number)
            else:
                return


async def run_action(
    broker: BrokerUnderTest, model: Model, clock: Clock, act: str, name: str, what: int, value: bytes
) -> None:
    if act == "plain":
        await broker.send([value], number=what)
        model.records[what].append((value, None))
        return
    if act == "init" or name not in model.identity:
        if name in model.identity:
            model.former[name] = model.identity[name]
        expected = model.identity.get(name) if what else None
        model.identity[name] = await broker.init(name, expected)
        model.end(name, committed=False)
        return
    producer = model.identity[name]
    if act == "send":
        sequence = model.sequences.get((producer, what), 0)
        await broker.send([value], producer, sequence, number=what, transactional_id=name, unadded_partition_rule=LAZY)
        model.sequences[producer, what] = sequence + 1
        transaction = model.open.setdefault(name, len(model.committed))
        model.committed.setdefault(transaction, None)
        model.records[what].append((value, transaction))
    elif act in ("commit", "abort"):
        commit = act == "commit"
        reply = await broker.end(name, producer, commit=commit, bumps=bool(what))
        if name in model.open:
            assert reply.error is ErrorCode.none
            model.end(name, committed=commit)
        if what and reply.error is ErrorCode.none:
            model.former[name], model.identity[name] = producer, reply.producer
    elif act == "time out":
        clock.now_ms += TIMEOUT_MS
        await broker.transactions.abort_overdue_transactions()
        for late in tuple(model.open):
            model.end(late, committed=False)
            model.former[late] = model.identity[late]
            model.identity[late] = await broker.init(late)
    elif name in model.former:
        # A fenced producer is refused, whatever it sends.
        with pytest.raises(KafkaRefusal):
            await broker.send(
                [value], model.former[name], 99, number=what, transactional_id=name, unadded_partition_rule=LAZY
            )
        assert (await broker.add(name, model.former[name], what)).error is not ErrorCode.none
