"""A compaction keeps the last value of every key and every tombstone for its delay, also if it is killed."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.broker.maintenance.compaction import BatchWithRecords, CleanedBatch, Compaction
from coterie.broker.storage.transaction_store import AbortedTransaction
from coterie.wire.batch_filter import RawRecord

DELAY_MS = 100


def batch(
    base_offset: int,
    *records: tuple[str | None, bool],
    producer_id: int = -1,
    is_transactional: bool = False,
    is_control: bool = False,
    is_readable: bool = True,
    has_valid_crc: bool = True,
    horizon_ms: int | None = None,
) -> BatchWithRecords:
    """A batch of ``records``, each given as (key, whether it is a tombstone)."""
    return BatchWithRecords(
        base_offset=base_offset,
        last_offset=base_offset + max(1, len(records)) - 1,
        producer_id=producer_id,
        is_transactional=is_transactional,
        is_control=is_control,
        has_valid_crc=has_valid_crc,
        delete_horizon_ms=horizon_ms,
        records=tuple(
            RawRecord(base_offset + n, 0, None if key is None else key.encode(), is_tombstone, b"")
            for n, (key, is_tombstone) in enumerate(records)
        )
        if is_readable
        else None,
    )


def compacted(
    batches: Sequence[BatchWithRecords],
    *,
    now_ms: int = 0,
    keys_max: int = 100,
    aborted: Sequence[AbortedTransaction] = (),
    seen_from: int = 0,
) -> list[CleanedBatch]:
    compaction = Compaction(
        now_ms=now_ms, delete_retention_ms=DELAY_MS, keys_max=keys_max, aborted_transactions=aborted
    )
    for each in batches:
        if each.base_offset >= seen_from:
            assert compaction.index_keys(each)
    return [compaction.clean_batch(each) for each in batches]


def offsets(cleaned: CleanedBatch) -> list[int] | None:
    return None if cleaned.records is None else [record.offset for record in cleaned.records]


def test_a_record_is_removed_when_a_newer_one_has_its_key() -> None:
    results = compacted([batch(0, ("a", False), ("b", False)), batch(2, ("a", False)), batch(3, ("c", False))])
    assert [offsets(cleaned) for cleaned in results] == [[1], None, None]


def test_a_batch_with_nothing_left_is_removed() -> None:
    assert [cleaned.is_removed for cleaned in compacted([batch(0, ("a", False)), batch(1, ("a", False))])] == [
        True,
        False,
    ]


def test_a_record_without_a_key_is_removed_as_in_kafka() -> None:
    assert offsets(compacted([batch(0, (None, False), ("a", False))])[0]) == [1]


def test_a_tombstone_is_kept_for_its_delay_after_its_first_pass() -> None:
    first = compacted([batch(0, ("a", False)), batch(1, ("a", True))], now_ms=1_000)
    assert (offsets(first[1]), first[1].delete_horizon_ms) == (None, 1_000 + DELAY_MS)
    kept = batch(1, ("a", True), horizon_ms=first[1].delete_horizon_ms)
    assert compacted([kept], now_ms=1_099, seen_from=9) == [CleanedBatch(records=None, delete_horizon_ms=1_100)]
    assert compacted([kept], now_ms=1_100, seen_from=9)[0].is_removed


def test_a_tombstone_after_an_unreadable_batch_is_never_removed() -> None:
    unreadable = batch(0, is_readable=False)
    for horizon_ms in (None, 5):
        results = compacted([unreadable, batch(1, ("a", True), horizon_ms=horizon_ms)], now_ms=10_000)
        assert results == [CleanedBatch(records=None), CleanedBatch(records=None)]


def test_an_unreadable_batch_has_no_delete_horizon() -> None:
    assert compacted([batch(0, is_readable=False, horizon_ms=5)], now_ms=10_000) == [CleanedBatch(records=None)]


def test_a_pass_ends_before_the_batch_whose_keys_exceed_the_maximum() -> None:
    compaction = Compaction(now_ms=0, delete_retention_ms=DELAY_MS, keys_max=3)
    assert compaction.index_keys(batch(0, *((f"k{n}", False) for n in range(5)))), "the first batch is always indexed"
    assert not compaction.index_keys(batch(5, ("a", False)))


def test_a_batch_of_an_aborted_transaction_is_kept_with_its_marker_if_its_crc_is_wrong() -> None:
    aborted = [AbortedTransaction(producer_id=7, first_offset=0, marker_offset=1)]
    marker = batch(1, producer_id=7, is_transactional=True, is_control=True, horizon_ms=5)
    unreadable = batch(0, producer_id=7, is_transactional=True, is_readable=False)
    corrupt = replace(unreadable, has_valid_crc=False)
    assert [each.is_removed for each in compacted([corrupt, marker], now_ms=10, aborted=aborted)] == [False, False]
    assert [each.is_removed for each in compacted([unreadable, marker], now_ms=10, aborted=aborted)] == [True, True]


def test_only_the_marker_of_an_aborted_transaction_is_kept_for_its_delay() -> None:
    aborted = [AbortedTransaction(producer_id=7, first_offset=1, marker_offset=3)]
    log = [
        batch(0, ("a", False)),
        batch(1, ("a", False), ("b", False), producer_id=7, is_transactional=True),
        batch(3, producer_id=7, is_transactional=True, is_control=True),
        batch(4, ("c", False), producer_id=7, is_transactional=True),
        batch(5, producer_id=7, is_transactional=True, is_control=True),
    ]
    results = compacted(log, now_ms=50, aborted=aborted)
    assert results[0].records is None, "a record of an aborted transaction must not replace another"
    assert results[1].is_removed
    assert results[2] == CleanedBatch(records=None, delete_horizon_ms=50 + DELAY_MS)
    assert results[3].records is None
    assert results[4] == CleanedBatch(records=None), "a marker is kept as long as its transaction has records"
    assert compacted([replace(log[2], delete_horizon_ms=150)], now_ms=150)[0].is_removed


# -- any log, any number of passes, any of them interrupted -----------------------------------------------------------


@dataclass
class Log:
    """The batches after the last compaction, and all records that were written."""

    batches: list[BatchWithRecords]
    written: list[RawRecord]
    cleaned_offset: int = 0
    end_offset: int = 0

    def append(self, records: Sequence[tuple[str | None, bool]]) -> None:
        new = batch(self.end_offset, *records)
        assert new.records is not None
        self.batches.append(new)
        self.written.extend(new.records)
        self.end_offset += len(records)

    def compact(self, *, now_ms: int, keys_max: int, steps: int) -> None:
        """Run a pass that is killed after it has changed ``steps`` batches."""
        compaction = Compaction(now_ms=now_ms, delete_retention_ms=DELAY_MS, keys_max=keys_max)
        settled = self.batches[-1].base_offset if self.batches else 0
        for each in [each for each in self.batches if self.cleaned_offset <= each.last_offset < settled]:
            if not compaction.index_keys(each):
                settled = each.base_offset
                break
        for each in [each for each in self.batches if each.last_offset < settled]:
            if not steps:
                return
            steps -= 1
            cleaned = compaction.clean_batch(each)
            at = self.batches.index(each)
            kept = each.records if cleaned.records is None else cleaned.records
            self.batches[at : at + 1] = (
                [] if cleaned.is_removed else [replace(each, records=kept, delete_horizon_ms=cleaned.delete_horizon_ms)]
            )
        self.cleaned_offset = settled

    def records(self, offset: int = 0) -> list[RawRecord]:
        return [record for each in self.batches for record in each.records or () if record.offset >= offset]


def last_values(records: Sequence[RawRecord]) -> dict[bytes, int]:
    """The offset of the last value of each key that has one."""
    last = {record.key: record for record in records if record.key is not None}
    return {key: record.offset for key, record in last.items() if not record.is_tombstone}


keys = st.sampled_from([None, "a", "a", "b", "k" * 40, "k" * 41])
appends = st.lists(st.tuples(keys, st.booleans()), min_size=1, max_size=3)
passes = st.tuples(st.integers(0, 60), st.sampled_from([1, 2, 99]), st.sampled_from([0, 1, 2, 5, 99, 99, 99, 99]))
histories = st.lists(appends | passes, max_size=25)


@given(histories)
@settings(max_examples=300)
def test_no_sequence_of_passes_and_kills_changes_the_last_value_of_a_key(history: list[object]) -> None:
    log = Log([], [])
    now_ms = 0
    for event in history:
        if isinstance(event, tuple):
            now_ms += event[0]
            log.compact(now_ms=now_ms, keys_max=event[1], steps=event[2])
        else:
            assert isinstance(event, list)
            log.append(event)
        assert last_values(log.records()) == last_values(log.written)
        assert all(each.records for each in log.batches)


@given(histories, st.integers(0, 5), st.integers(1, 4))
@settings(max_examples=300)
def test_a_reader_that_lags_less_than_the_delay_reads_every_deletion(
    history: list[object], start: int, pace: int
) -> None:
    """The reader starts at any point of the history, reads some records at each step, and reaches the end within the
    delay."""
    log = Log([], [])
    now_ms, offset = 0, 0
    read_records: list[RawRecord] = []
    began_ms: int | None = None
    for number, event in enumerate(history):
        if isinstance(event, tuple):
            if began_ms is None or now_ms + event[0] - began_ms < DELAY_MS:
                now_ms += event[0]
            log.compact(now_ms=now_ms, keys_max=event[1], steps=event[2])
        else:
            assert isinstance(event, list)
            log.append(event)
        if number >= start:
            began_ms = now_ms if began_ms is None else began_ms
            read = log.records(offset)[:pace]
            read_records += read
            offset = read[-1].offset + 1 if read else offset
    read_records += log.records(offset)
    assert last_values(read_records) == last_values(log.written)
