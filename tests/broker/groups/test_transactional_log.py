"""Pending offsets in the log of groups: what a load returns before and after the end of their transaction."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from coterie.broker.groups.classic import CLASSIC_TOPIC
from coterie.broker.groups.log import GroupLog
from coterie.broker.maintenance.backup import back_up_log_and_return_size
from coterie.broker.maintenance.check import log_file_findings
from coterie.broker.maintenance.loop import run_maintenance
from coterie.broker.storage.log import open_log
from coterie.broker.transactions.coordinator import TransactionCoordinator
from coterie.broker.transactions.writes import UnaddedPartitionRule
from coterie.groups.classic.messages import Record
from coterie.groups.classic.offset_messages import CommittedOffset, OffsetWritten, PendingOffsetWritten
from coterie.groups.transaction_messages import MarkersWritten, ProducerIdAndEpoch, TransactionSettings
from coterie.nouns.ids import GroupId, TopicPartition
from coterie.wire.batches import iter_whole_batch_headers
from coterie.wire.errors import ErrorCode, KafkaRefusal
from tests.broker.storage.maintained_log import FREQUENT_MAINTENANCE
from tests.broker.transactions.transactional import BrokerUnderTest, Clock, copies_at_each_statement

G, H = GroupId("g"), GroupId("h")
T = TopicPartition("t", 0)
LAZY = UnaddedPartitionRule.ADD_PARTITION
OFFSETS = TopicPartition("__consumer_offsets", 0)


class OffsetsUnderTest(BrokerUnderTest):
    """A broker's log with the records of groups, and its transactions."""

    def __init__(
        self,
        broker: BrokerUnderTest,
        groups: GroupLog[Record],
        ends: list[tuple[MarkersWritten, Mapping[GroupId, bool]]],
    ) -> None:
        super().__init__(broker.log, broker.transactions)
        self.groups = groups
        self.ends = ends
        """The markers that were announced in this run, each with the groups that were told of them."""

    async def begin(self, name: str, producer: ProducerIdAndEpoch) -> None:
        await self.transactions.begin_transaction_in_offsets_partition(name, producer, OFFSETS, LAZY)

    async def commit(self, name: str, producer: ProducerIdAndEpoch, offset: int, *, group_id: GroupId = G) -> None:
        """Append a pending offset, as for a TxnOffsetCommit."""
        await self.begin(name, producer)
        await self.groups.append(group_id, [pending(offset, producer)], now_ms=1)

    async def loaded(self, group_id: GroupId = G) -> list[Record]:
        return list(await self.groups.load(group_id))


def written(offset: int) -> OffsetWritten:
    return OffsetWritten(partition=T, committed_offset=CommittedOffset(offset=offset, committed_at_ms=1))


def pending(offset: int, producer: ProducerIdAndEpoch) -> PendingOffsetWritten:
    committed = CommittedOffset(offset=offset, committed_at_ms=1)
    return PendingOffsetWritten(producer=producer, partition=T, committed_offset=committed)


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[OffsetsUnderTest]:
    async with open_log(folder / "log.sqlite", folder / "lock") as log:
        groups = await GroupLog.open(log, CLASSIC_TOPIC)
        if "t" not in log.topics:
            await log.create_topic("t", 1, {})
        ends: list[tuple[MarkersWritten, Mapping[GroupId, bool]]] = []

        def on_markers(markers: MarkersWritten) -> None:
            ends.append((markers, groups.end_transaction(markers.producer.producer_id)))

        transactions = await TransactionCoordinator.open(
            log, TransactionSettings(), now_ms=Clock(), on_markers=on_markers
        )
        yield OffsetsUnderTest(BrokerUnderTest(log, transactions), groups, ends)


async def wait_until_compacted(record_count: Callable[[], Awaitable[int]]) -> None:
    """Wait until three records are left."""
    while await record_count() > 3:  # noqa: ASYNC110 the compaction sets no event
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("is_commit", [True, False])
async def test_an_offset_is_pending_until_its_marker_also_after_a_restart(tmp_path: Path, is_commit: bool) -> None:
    async with running(tmp_path) as broker:
        await broker.groups.append(G, [written(1)], now_ms=1)
        producer = await broker.init("a")
        await broker.commit("a", producer, 2)
        assert await broker.loaded() == [written(1), pending(2, producer)]
        assert await broker.loaded(H) == []
    async with running(tmp_path) as broker:
        assert await broker.groups.load_all() == {G: [written(1), pending(2, producer)]}
        await broker.end("a", producer, commit=is_commit)
        assert await broker.loaded() == [written(2 if is_commit else 1)]
        ((markers, groups),) = broker.ends
        assert (markers.producer, markers.is_commit, OFFSETS in markers.partitions) == (producer, is_commit, True)
        assert groups == {G: False}
        assert broker.groups.end_transaction(producer.producer_id) == {}
    assert list(log_file_findings(tmp_path / "log.sqlite", report_progress=lambda _: None)) == []


async def test_the_last_record_of_the_log_counts_and_not_the_last_marker(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        a, b = await broker.init("a"), await broker.init("b")
        await broker.commit("a", a, 1)
        await broker.commit("b", b, 2)
        assert await broker.loaded() == [pending(1, a), pending(2, b)]
        await broker.end("b", b, commit=True)
        await broker.end("a", a, commit=True)
        assert await broker.loaded() == [written(2)]
        await broker.commit("a", a, 3)
        await broker.groups.append(G, [written(4)], now_ms=1)
        assert await broker.loaded() == [written(4)]
        await broker.end("a", a, commit=True)
        assert await broker.loaded() == [written(4)]


async def test_no_pending_offset_is_written_after_the_end_of_its_transaction(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        producer = await broker.init("a")
        with pytest.raises(KafkaRefusal) as refused:
            await broker.groups.append(G, [pending(1, producer)], now_ms=1)
        assert refused.value.error is ErrorCode.invalid_txn_state
        await broker.commit("a", producer, 1)
        ended = asyncio.ensure_future(broker.end("a", producer, commit=True))
        await asyncio.sleep(0)  # the end is queued for the writer thread
        late = broker.groups.append(G, [pending(2, producer)], now_ms=1)
        await ended
        with pytest.raises(KafkaRefusal):
            await late
        assert await broker.loaded() == [written(1)]


async def test_an_append_that_is_queued_behind_the_marker_makes_the_group_reload(tmp_path: Path) -> None:
    """Two connections of one producer may end a transaction and begin the next one while a commit is on its way."""
    async with running(tmp_path) as broker:
        producer = await broker.init("a")
        await broker.commit("a", producer, 1, group_id=H)
        steps: Sequence[asyncio.Future[object]] = [
            asyncio.ensure_future(broker.end("a", producer, commit=True)),
            asyncio.ensure_future(broker.begin("a", producer)),
        ]
        await asyncio.sleep(0)  # both are queued for the writer thread
        await broker.groups.append(G, [pending(2, producer)], now_ms=1)
        await asyncio.gather(*steps)
        assert [groups for _, groups in broker.ends] == [{G: True, H: False}]
        assert await broker.loaded() == [pending(2, producer)]
        assert broker.groups.end_transaction(producer.producer_id) == {G: False}


async def test_a_transaction_holds_the_last_stable_offset_from_its_first_commit_request_on(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        (partition,) = broker.log.topics["__consumer_offsets"].partitions
        await broker.groups.append(G, [written(1)], now_ms=1)
        producer = await broker.init("a")
        await broker.begin("a", producer)
        await broker.groups.append(G, [written(2)], now_ms=1)
        assert (partition.last_stable_offset, partition.end_offset) == (1, 2)
        await broker.end("a", producer, commit=False)
        assert partition.last_stable_offset == partition.end_offset == 3


async def test_a_transaction_without_its_first_offset_yet_is_no_finding_and_can_be_backed_up(tmp_path: Path) -> None:
    folder, backup = tmp_path / "broker", tmp_path / "backup"
    folder.mkdir()
    async with running(folder) as broker:
        await broker.groups.append(G, [written(1)], now_ms=1)
        await broker.begin("a", await broker.init("a"))
        assert list(log_file_findings(folder / "log.sqlite", report_progress=lambda _: None)) == []
        target, lock = backup / "log.sqlite", backup / "lock"
        back_up_log_and_return_size(folder / "log.sqlite", target, lock, force=False, report_progress=lambda _: None)
    assert list(log_file_findings(target, report_progress=lambda _: None)) == []


async def test_a_compaction_removes_aborted_offsets_and_keeps_the_state_of_groups(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        log = broker.log
        topic = log.topics["__consumer_offsets"]
        await log.replace_topic_configs(topic, {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"})
        a, b, c = [await broker.init(name) for name in "abc"]
        for number in range(10):
            await broker.commit("a", a, number)
            await broker.end("a", a, commit=True)
            await broker.commit("b", b, 100 + number)
            await broker.commit("b", b, 100 + number, group_id=H)
            await broker.end("b", b, commit=False)
        await broker.commit("c", c, 200, group_id=H)
        await broker.groups.append(GroupId("i"), [written(3)], now_ms=1)
        before = await broker.groups.load_all()
        assert before == {G: [written(9)], H: [pending(200, c)], GroupId("i"): [written(3)]}
        (partition,) = topic.partitions

        async def record_count() -> int:
            data = await log.read(partition, 0, 10**6)
            return sum(0 if head.is_control else head.record_count for _, head in iter_whole_batch_headers(data))

        assert await record_count() == 32
        async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            keeping = tasks.create_task(
                run_maintenance(log, tmp_path / "log.sqlite", FREQUENT_MAINTENANCE, now_ms=lambda: 10)
            )
            await wait_until_compacted(record_count)
            keeping.cancel()
        assert await broker.groups.load_all() == before
        await broker.end("c", c, commit=True)
        assert await broker.loaded(H) == [written(200)]
    assert list(log_file_findings(tmp_path / "log.sqlite", report_progress=lambda _: None)) == []


async def test_a_kill_at_any_write_commits_both_the_offset_and_the_record_or_none(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    async with running(folder) as broker:
        producer = await broker.init("a")
        async with copies_at_each_statement(broker, folder, tmp_path) as copies:
            await broker.send([b"r"], producer, 0, transactional_id="a", unadded_partition_rule=LAZY)
            await broker.commit("a", producer, 7)
            await broker.end("a", producer, commit=True)
    outcomes: list[tuple[bool, bool]] = []
    for copy in copies:
        async with running(copy) as killed:
            outcomes.append((await killed.committed_values() == [b"r"], await killed.loaded() == [written(7)]))
            last = await killed.transactions.read_transaction("a")
            assert last is not None
            await killed.end("a", last.producer, commit=False)
            assert all(isinstance(record, OffsetWritten) for record in await killed.loaded())
    assert outcomes[0] == (False, False)
    assert outcomes[-1] == (True, True)
    assert {*outcomes} == {(False, False), (True, True)}
