"""Effects leave only after the records of their step, and of all before them, are durable."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.engine.output import Outbox, Output


def test_an_effect_waits_for_the_records_of_its_own_step() -> None:
    outbox = Outbox[str]()
    outbox.put(Output(records=("r1", "r2"), effects=("reply",)))
    assert outbox.release() == []
    outbox.durable(1)
    assert outbox.release() == []
    outbox.durable(1)
    assert outbox.release() == ["reply"]
    assert outbox.release() == []


def test_an_effect_without_records_waits_for_the_records_before_it() -> None:
    outbox = Outbox[str]()
    outbox.put(Output(records=("r",), effects=("first",)))
    outbox.put(Output(effects=("second",)))
    assert outbox.release() == []
    outbox.durable(1)
    assert outbox.release() == ["first", "second"]


def test_with_nothing_outstanding_an_effect_leaves_at_once() -> None:
    outbox = Outbox[str]()
    outbox.put(Output(effects=("reply",)))
    assert outbox.release() == ["reply"]


def test_more_durable_than_written_is_our_own_bug() -> None:
    outbox = Outbox[str]()
    with pytest.raises(AssertionError):
        outbox.durable(1)


@given(st.lists(st.one_of(st.tuples(st.integers(0, 3), st.integers(0, 2)), st.integers(1, 4)), max_size=60))
def test_effects_keep_their_order_and_none_leaves_early(moves: list[tuple[int, int] | int]) -> None:
    outbox = Outbox[tuple[int, int]]()
    written = durable = count = 0
    released: list[tuple[int, int]] = []
    for move in moves:
        match move:
            case (records, effects):
                written += records
                outbox.put(
                    Output(records=("r",) * records, effects=tuple((count + i, written) for i in range(effects)))
                )
                count += effects
            case int(more):
                step = min(more, written - durable)
                durable += step
                outbox.durable(step)
        for effect in outbox.release():
            assert effect[1] <= durable
            released.append(effect)
    outbox.durable(written - durable)
    released.extend(outbox.release())
    assert [number for number, _ in released] == list(range(count))
