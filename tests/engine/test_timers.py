"""Deadlines: one per key, earliest first; a moved or cancelled one does not fire."""

from hypothesis import given
from hypothesis import strategies as st

from coterie.engine.timers import Timers


def due(timers: Timers[str], now_ms: int) -> list[str]:
    keys = []
    while (key := timers.pop_due(now_ms)) is not None:
        keys.append(key)
    return keys


def test_a_moved_timer_fires_once_at_its_new_time() -> None:
    timers = Timers[str]()
    timers.set("join", 10)
    timers.set("join", 20)
    assert due(timers, 15) == []
    assert timers.next_deadline_ms() == 20
    assert due(timers, 20) == ["join"]
    assert due(timers, 99) == []


def test_a_cancelled_timer_does_not_fire() -> None:
    timers = Timers[str]()
    timers.set("session", 10)
    timers.cancel("session")
    timers.cancel("never set")
    assert timers.next_deadline_ms() is None
    assert due(timers, 99) == []


def test_timers_due_at_the_same_time_fire_in_the_order_in_which_they_were_set() -> None:
    timers = Timers[str]()
    for key in ("b", "a", "c"):
        timers.set(key, 5)
    assert due(timers, 5) == ["b", "a", "c"]


@given(
    st.lists(
        st.tuples(st.sampled_from("abcdef"), st.one_of(st.none(), st.integers(0, 50))),
        max_size=400,
    ),
    st.integers(0, 60),
)
def test_a_timer_fires_at_the_time_that_was_set_last(orders: list[tuple[str, int | None]], now_ms: int) -> None:
    timers = Timers[str]()
    expected_at_ms: dict[str, int] = {}
    for key, at_ms in orders:
        if at_ms is None:
            timers.cancel(key)
            expected_at_ms.pop(key, None)
        else:
            timers.set(key, at_ms)
            expected_at_ms[key] = at_ms
    assert timers.next_deadline_ms() == min(expected_at_ms.values(), default=None)
    assert sorted(due(timers, now_ms)) == sorted(key for key, at_ms in expected_at_ms.items() if at_ms <= now_ms)


def test_a_deadline_that_is_moved_many_times_takes_no_more_memory() -> None:
    timers = Timers[str]()
    for at_ms in range(100_000):
        timers.set("session", at_ms)
    assert len(timers._heap) <= 65
    assert timers.next_deadline_ms() == 99_999
