"""Transactions on the log: what readers of committed records see, over restarts, timeouts and a kill anywhere."""

import asyncio
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.broker.transactions.writes import BatchAdmission
from coterie.groups.transaction_messages import Identity, TransactionState
from coterie.wire.errors import ErrorCode, KafkaRefusal
from tests.broker.conftest import DEADLINE_S
from tests.broker.transactions.transactional import TIMEOUT_MS, Bench, Clock, bench, killed_at_each_statement

LAZY = BatchAdmission.BY_ITSELF


async def begun(life: Bench, name: str, *values: bytes, number: int = 0) -> Identity:
    """A producer that has sent ``values`` in an open transaction."""
    producer = await life.init(name)
    for sequence, value in enumerate(values):
        await life.send([value], producer, sequence, number=number, transactional_id=name, admission=LAZY)
    return producer


async def test_readers_of_what_is_committed_wait_for_the_first_open_transaction(tmp_path: Path) -> None:
    async with bench(tmp_path) as life:
        alice, bob = await begun(life, "alice", b"a0", b"a1"), await begun(life, "bob", b"b0")
        await life.send([b"plain"])
        assert (life.partition().stable_offset, life.partition().end_offset) == (0, 4)
        assert await life.committed() == []
        await life.end("alice", alice, commit=True)
        assert life.partition().stable_offset == 2
        assert await life.committed() == [b"a0", b"a1"]
        await life.end("bob", bob, commit=False)
        assert life.partition().stable_offset == life.partition().end_offset == 6
        assert await life.committed() == [b"a0", b"a1", b"plain"]


async def test_an_open_transaction_outlives_the_broker_and_can_be_committed(tmp_path: Path) -> None:
    async with bench(tmp_path) as life:
        alice = await begun(life, "alice", b"a0")
    async with bench(tmp_path) as life:
        assert life.partition().stable_offset == 0
        await life.send([b"a1"], alice, 1, transactional_id="alice")
        assert (await life.end("alice", alice, commit=True)).error is ErrorCode.none
        assert await life.committed() == [b"a0", b"a1"]


async def test_the_clock_of_an_open_transaction_goes_on_after_a_restart(tmp_path: Path) -> None:
    clock = Clock()
    async with bench(tmp_path, clock=clock) as life:
        alice = await begun(life, "alice", b"a0")
    clock.now_ms += TIMEOUT_MS
    async with bench(tmp_path, clock=clock) as life:
        running = asyncio.create_task(life.transactions.run())
        aborted = asyncio.Event()
        life.partition().watch(aborted)
        await asyncio.wait_for(aborted.wait(), DEADLINE_S)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert life.partition().stable_offset == 2
        assert await life.committed() == []
        assert (await life.end("alice", alice, commit=True)).error is ErrorCode.producer_fenced


async def test_a_transaction_in_a_topic_that_was_deleted_ends_all_the_same(tmp_path: Path) -> None:
    async with bench(tmp_path) as life:
        alice = await begun(life, "alice", b"a0")
        await life.log.delete_topic(life.log.topics["t"])
        assert (await life.end("alice", alice, commit=True)).error is ErrorCode.none


async def test_what_was_aborted_is_forgotten_with_the_log_that_holds_it(tmp_path: Path) -> None:
    async with bench(tmp_path) as life:
        alice = await begun(life, "alice", b"a0")
        await life.end("alice", alice, commit=False)
        assert len(await life.log.aborted(life.partition(), 0, 10)) == 1
        await life.log.delete_records(life.partition(), 2)
        await life.transactions.sweep()
        assert await life.log.aborted(life.partition(), 0, 10) == []


async def test_the_stable_offset_is_never_before_the_start(tmp_path: Path) -> None:
    async with bench(tmp_path) as life:
        alice = await begun(life, "alice", b"a0", b"a1", b"a2")
        await life.log.delete_records(life.partition(), 2)
        assert life.partition().stable_offset == 2
        assert await life.committed() == []
        await life.end("alice", alice, commit=True)
        assert await life.committed() == [b"a2"]


async def test_an_id_at_rest_for_a_week_is_forgotten(tmp_path: Path) -> None:
    clock = Clock()
    async with bench(tmp_path, clock=clock) as life:
        alice, bob = await begun(life, "alice", b"a0"), await begun(life, "bob", b"b0")
        await life.end("alice", alice, commit=True)
        clock.now_ms += 7 * 86_400_000 + 1
        await life.transactions.sweep()
        assert [name for name, _ in await life.transactions.read_all()] == ["bob"], "bob's transaction is open"
        assert (await life.init("alice")).producer_id > bob.producer_id


async def test_what_is_told_of_producers_is_read_beside_the_writer_in_short_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coterie.broker.transactions.coordinator.PAGE_ROWS", 2)
    async with bench(tmp_path) as life:
        producers = [await begun(life, name, b"x") for name in ("alice", "bob", "carol", "dave", "eve")]
        met = threading.Barrier(2)
        held = life.log.write(lambda _: (met.wait(DEADLINE_S), met.wait(DEADLINE_S)))
        await asyncio.to_thread(met.wait, DEADLINE_S)
        try:  # the writer is busy
            async with asyncio.timeout(DEADLINE_S):
                alice = await life.transactions.read("alice")
                names = [name for name, _ in await life.transactions.read_all()]
                rows = await life.transactions.producers(life.partition())
        finally:
            await asyncio.to_thread(met.wait, DEADLINE_S)
            await held
        assert alice is not None
        assert alice.producer == producers[0]
        assert names == ["alice", "bob", "carol", "dave", "eve"]
        assert [row.producer_id for row in rows] == [producer.producer_id for producer in producers]


async def test_a_broker_killed_at_any_statement_of_an_end_has_ended_it_everywhere_or_nowhere(tmp_path: Path) -> None:
    """The files are copied before each statement of the end, as a kill would leave them, and brought up again."""
    async with bench(tmp_path / "life", partitions=3) as life:
        alice = await begun(life, "alice", b"a0")
        for number in (1, 2):
            await life.send([b"a"], alice, 0, number=number, transactional_id="alice", admission=LAZY)
        async with killed_at_each_statement(life, tmp_path / "life", tmp_path) as killed:
            await life.end("alice", alice, commit=True)
    ended: list[bool] = []
    for folder in killed:
        async with bench(folder) as life:
            written = await life.transactions.read("alice")
            assert written is not None
            ended.append(written.state is TransactionState.COMPLETE_COMMIT)
            for number in range(3):
                partition = life.partition(number)
                assert (partition.stable_offset == partition.end_offset) is ended[-1]
            # Its producer asks again, whatever it has heard, and everybody sees the same.
            assert (await life.end("alice", alice, commit=True)).error is ErrorCode.none
            assert [await life.committed(number) for number in range(3)] == [[b"a0"], [b"a"], [b"a"]]
    assert len(killed) > 12
    assert ended == sorted(ended)
    assert (ended[0], ended[-1]) == (False, True)


async def test_a_batch_that_a_broker_was_killed_in_is_written_with_its_number_or_not_at_all(tmp_path: Path) -> None:
    async with bench(tmp_path / "life") as life:
        alice = await life.init("alice")
        async with killed_at_each_statement(life, tmp_path / "life", tmp_path) as killed:
            await life.send([b"a0"], alice, 0, transactional_id="alice", admission=LAZY)
    assert len(killed) > 7
    for folder in killed:
        async with bench(folder) as life:
            # Its producer has not heard, and sends it again.
            await life.send([b"a0"], alice, 0, transactional_id="alice", admission=LAZY)
            await life.send([b"a1"], alice, 1, transactional_id="alice", admission=LAZY)
            assert (await life.end("alice", alice, commit=True)).error is ErrorCode.none
            assert await life.committed() == [b"a0", b"a1"]


# -- random lives -----------------------------------------------------------------------------------------------------

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
    """What should be so: each partition's records in order, and of which transaction each is."""

    def __init__(self) -> None:
        self.records: list[list[tuple[bytes, int | None]]] = [[] for _ in range(PARTITIONS)]
        self.fate: dict[int, bool | None] = {}
        """Of each transaction: committed, aborted, or None while it is open."""
        self.open: dict[str, int] = {}
        self.identity: dict[str, Identity] = {}
        self.former: dict[str, Identity] = {}
        self.sequences: dict[tuple[Identity, int], int] = {}

    def end(self, name: str, fate: bool) -> None:
        if name in self.open:
            self.fate[self.open.pop(name)] = fate

    def visible(self, number: int) -> list[bytes]:
        """Up to the first record of a transaction that is open."""
        seen: list[bytes] = []
        for value, transaction in self.records[number]:
            fate = True if transaction is None else self.fate[transaction]
            if fate is None:
                break
            if fate:
                seen.append(value)
        return seen


@settings(max_examples=60)
@given(st.lists(acts, max_size=40))
def test_readers_see_exactly_what_was_committed_in_order(
    tmp_path_factory: pytest.TempPathFactory, history: list[tuple[str, str, int]]
) -> None:
    asyncio.run(lived(tmp_path_factory.mktemp("lives"), history))


async def lived(folder: Path, history: list[tuple[str, str, int]]) -> None:
    model, clock = Model(), Clock()
    left = list(enumerate(history))
    while True:
        async with bench(folder, clock=clock, partitions=PARTITIONS) as life:
            while left:
                count, (act, name, what) = left.pop(0)
                if act == "restart":
                    break
                await play(life, model, clock, act, name, what, b"%d" % count)
                for number in range(PARTITIONS):
                    assert await life.committed(number, size_max=150) == model.visible(number)
            else:
                return


async def play(life: Bench, model: Model, clock: Clock, act: str, name: str, what: int, value: bytes) -> None:
    if act == "plain":
        await life.send([value], number=what)
        model.records[what].append((value, None))
        return
    if act == "init" or name not in model.identity:
        if name in model.identity:
            model.former[name] = model.identity[name]
        expected = model.identity.get(name) if what else None
        model.identity[name] = await life.init(name, expected)
        model.end(name, fate=False)
        return
    producer = model.identity[name]
    if act == "send":
        sequence = model.sequences.get((producer, what), 0)
        await life.send([value], producer, sequence, number=what, transactional_id=name, admission=LAZY)
        model.sequences[producer, what] = sequence + 1
        transaction = model.open.setdefault(name, len(model.fate))
        model.fate.setdefault(transaction, None)
        model.records[what].append((value, transaction))
    elif act in ("commit", "abort"):
        commit = act == "commit"
        reply = await life.end(name, producer, commit=commit, bumps=bool(what))
        if name in model.open:
            assert reply.error is ErrorCode.none
            model.end(name, fate=commit)
        if what and reply.error is ErrorCode.none:
            model.former[name], model.identity[name] = producer, reply.producer
    elif act == "time out":
        clock.now_ms += TIMEOUT_MS
        await life.transactions.abort_overdue()
        for late in tuple(model.open):
            model.end(late, fate=False)
            model.former[late] = model.identity[late]
            model.identity[late] = await life.init(late)
    elif name in model.former:
        # Whoever was fenced is refused, whatever it tries.
        with pytest.raises(KafkaRefusal):
            await life.send([value], model.former[name], 99, number=what, transactional_id=name, admission=LAZY)
        assert (await life.add(name, model.former[name], what)).error is not ErrorCode.none
