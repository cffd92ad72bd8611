"""Effects leave only after the records of their step, and of all before them, are durable."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.engine.output import Outbox, Output


def test_an_effect_waits_for_the_records_of_its_own_step() -> None:
    outbox = Outbox[str]()
    outbox.put(Output(records=("r1", "r2"), effects=("reply",)))
    assert outbox.pop_durable_effects() == []
    outbox.mark_durable(1)
    assert outbox.pop_durable_effects() == []
    outbox.mark_durable(1)
    assert outbox.pop_durable_effects() == ["reply"]
    assert outbox.pop_durable_effects() == []


def test_an_effect_without_records_waits_for_the_records_before_it() -> None:
    outbox = Outbox[str]()
    outbox.put(Output(records=("r",), effects=("first",)))
    outbox.put(Output(effects=("second",)))
    assert outbox.pop_durable_effects() == []
    outbox.mark_durable(1)
    assert outbox.pop_durable_effects() == ["first", "second"]


def test_without_pending_records_an_effect_is_released_at_once() -> None:
    outbox = Outbox[str]()
    outbox.put(Output(effects=("reply",)))
    assert outbox.pop_durable_effects() == ["reply"]


def test_more_durable_records_than_written_ones_are_an_assertion_error() -> None:
    outbox = Outbox[str]()
    with pytest.raises(AssertionError):
        outbox.mark_durable(1)


@given(st.lists(st.one_of(st.tuples(st.integers(0, 3), st.integers(0, 2)), st.integers(1, 4)), max_size=60))
def test_effects_keep_their_order_and_none_is_released_early(moves: list[tuple[int, int] | int]) -> None:
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
                outbox.mark_durable(step)
        for effect in outbox.pop_durable_effects():
            assert effect[1] <= durable
            released.append(effect)
    outbox.mark_durable(written - durable)
    released.extend(outbox.pop_durable_effects())
    assert [number for number, _ in released] == list(range(count))
