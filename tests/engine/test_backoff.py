"""Waits that grow with each failure."""

from coterie.engine.backoff import doubled_delay_ms


def test_a_delay_doubles_up_to_its_maximum_also_after_very_many_failures() -> None:
    assert [doubled_delay_ms(500, doublings, 2_000) for doublings in (0, 1, 2, 3, 10**9)] == [500, 1_000, *[2_000] * 3]
