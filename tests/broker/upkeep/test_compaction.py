"""What a compaction keeps: the last value of every key, every tombstone for its delay, whatever is killed and when."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.broker.storage.transaction_store import Aborted
from coterie.broker.upkeep.compaction import Compaction, SiftedBatch, SlicedBatch
from coterie.wire.sifting import Slice

DELAY_MS = 100


def batch(
    base_offset: int,
    *records: tuple[str | None, bool],
    producer_id: int = -1,
    is_transactional: bool = False,
    is_control: bool = False,
    is_readable: bool = True,
    horizon_ms: int | None = None,
) -> SlicedBatch:
    """Records are told as (key, is it a tombstone)."""
    return SlicedBatch(
        base_offset=base_offset,
        last_offset=base_offset + max(1, len(records)) - 1,
        producer_id=producer_id,
        is_transactional=is_transactional,
        is_control=is_control,
        horizon_ms=horizon_ms,
        records=tuple(
            Slice(base_offset + n, 0, None if key is None else key.encode(), is_tombstone, b"")
            for n, (key, is_tombstone) in enumerate(records)
        )
        if is_readable
        else None,
    )


def judged(
    batches: Sequence[SlicedBatch],
    *,
    now_ms: int = 0,
    keys_max: int = 100,
    aborted: Sequence[Aborted] = (),
    seen_from: int = 0,
) -> list[SiftedBatch]:
    compaction = Compaction(now_ms=now_ms, delete_retention_ms=DELAY_MS, keys_max=keys_max, aborted=aborted)
    for each in batches:
        if each.base_offset >= seen_from:
            assert compaction.see(each)
    return [compaction.sift(each) for each in batches]


def offsets(sifted: SiftedBatch) -> list[int] | None:
    return None if sifted.records is None else [record.offset for record in sifted.records]


def test_a_record_goes_when_a_newer_one_of_its_key_stands_behind_it() -> None:
    results = judged([batch(0, ("a", False), ("b", False)), batch(2, ("a", False)), batch(3, ("c", False))])
    assert [offsets(sifted) for sifted in results] == [[1], None, None]


def test_a_batch_with_nothing_left_is_removed() -> None:
    assert [sifted.is_removed for sifted in judged([batch(0, ("a", False)), batch(1, ("a", False))])] == [True, False]


def test_a_record_without_a_key_goes_as_in_kafka() -> None:
    assert offsets(judged([batch(0, (None, False), ("a", False))])[0]) == [1]


def test_a_tombstone_stays_for_its_delay_after_the_pass_that_found_it() -> None:
    first = judged([batch(0, ("a", False)), batch(1, ("a", True))], now_ms=1_000)
    assert (offsets(first[1]), first[1].horizon_ms) == (None, 1_000 + DELAY_MS)
    kept = batch(1, ("a", True), horizon_ms=first[1].horizon_ms)
    assert judged([kept], now_ms=1_099, seen_from=9) == [SiftedBatch(records=None, horizon_ms=1_100)]
    assert judged([kept], now_ms=1_100, seen_from=9)[0].is_removed


def test_a_tombstone_behind_what_cannot_be_read_never_goes() -> None:
    unreadable = batch(0, is_readable=False)
    for horizon_ms in (None, 5):
        results = judged([unreadable, batch(1, ("a", True), horizon_ms=horizon_ms)], now_ms=10_000)
        assert results == [SiftedBatch(records=None), SiftedBatch(records=None)]


def test_what_can_no_longer_be_read_has_no_horizon_that_calls_for_passes() -> None:
    assert judged([batch(0, is_readable=False, horizon_ms=5)], now_ms=10_000) == [SiftedBatch(records=None)]


def test_a_pass_ends_before_the_batch_whose_keys_have_no_room() -> None:
    compaction = Compaction(now_ms=0, delete_retention_ms=DELAY_MS, keys_max=3)
    assert compaction.see(batch(0, *((f"k{n}", False) for n in range(5)))), "the first one always has room"
    assert not compaction.see(batch(5, ("a", False)))


def test_an_aborted_transaction_leaves_nothing_but_its_marker_for_a_while() -> None:
    aborted = [Aborted(producer_id=7, first_offset=1, last_offset=3)]
    log = [
        batch(0, ("a", False)),
        batch(1, ("a", False), ("b", False), producer_id=7, is_transactional=True),
        batch(3, producer_id=7, is_transactional=True, is_control=True),
        batch(4, ("c", False), producer_id=7, is_transactional=True),
        batch(5, producer_id=7, is_transactional=True, is_control=True),
    ]
    results = judged(log, now_ms=50, aborted=aborted)
    assert results[0].records is None, "what an aborted transaction wrote replaces nothing"
    assert results[1].is_removed
    assert results[2] == SiftedBatch(records=None, horizon_ms=50 + DELAY_MS)
    assert results[3].records is None
    assert results[4] == SiftedBatch(records=None), "a marker stays as long as its transaction has records"
    assert judged([replace(log[2], horizon_ms=150)], now_ms=150)[0].is_removed


# -- any log, any number of passes, any of them cut short ---------------------------------------------------------


@dataclass
class Log:
    """Batches as a compaction left them, and all records as they were written."""

    batches: list[SlicedBatch]
    written: list[Slice]
    cleaned_offset: int = 0
    end_offset: int = 0

    def append(self, records: Sequence[tuple[str | None, bool]]) -> None:
        new = batch(self.end_offset, *records)
        assert new.records is not None
        self.batches.append(new)
        self.written.extend(new.records)
        self.end_offset += len(records)

    def compact(self, *, now_ms: int, keys_max: int, steps: int) -> None:
        """A pass that is killed after it has changed ``steps`` batches."""
        compaction = Compaction(now_ms=now_ms, delete_retention_ms=DELAY_MS, keys_max=keys_max)
        settled = self.batches[-1].base_offset if self.batches else 0
        for each in [each for each in self.batches if self.cleaned_offset <= each.last_offset < settled]:
            if not compaction.see(each):
                settled = each.base_offset
                break
        for each in [each for each in self.batches if each.last_offset < settled]:
            if not steps:
                return
            steps -= 1
            sifted = compaction.sift(each)
            at = self.batches.index(each)
            kept = each.records if sifted.records is None else sifted.records
            self.batches[at : at + 1] = (
                [] if sifted.is_removed else [replace(each, records=kept, horizon_ms=sifted.horizon_ms)]
            )
        self.cleaned_offset = settled

    def records(self, offset: int = 0) -> list[Slice]:
        return [record for each in self.batches for record in each.records or () if record.offset >= offset]


def last_values(records: Sequence[Slice]) -> dict[bytes, int]:
    """Where the value of each key stands that has one."""
    last = {record.key: record for record in records if record.key is not None}
    return {key: record.offset for key, record in last.items() if not record.is_tombstone}


keys = st.sampled_from([None, "a", "a", "b", "k" * 40, "k" * 41])
appends = st.lists(st.tuples(keys, st.booleans()), min_size=1, max_size=3)
passes = st.tuples(st.integers(0, 60), st.sampled_from([1, 2, 99]), st.sampled_from([0, 1, 2, 5, 99, 99, 99, 99]))
histories = st.lists(appends | passes, max_size=25)


@given(histories)
@settings(max_examples=300)
def test_no_history_of_passes_and_kills_changes_what_a_key_means(history: list[object]) -> None:
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
def test_a_reader_that_keeps_up_with_the_delay_hears_of_every_deletion(
    history: list[object], start: int, pace: int
) -> None:
    """It begins at any point of the history, reads some records whenever something happens, and reaches the end within
    the delay."""
    log = Log([], [])
    now_ms, offset = 0, 0
    heard: list[Slice] = []
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
            heard += read
            offset = read[-1].offset + 1 if read else offset
    heard += log.records(offset)
    assert last_values(heard) == last_values(log.written)
