"""The last third of a session is for stopping."""

import pytest

from coterie.engine.lease import lease_ms


@pytest.mark.parametrize(("session_timeout_ms", "lease"), [(10_000, 6_666), (6_000, 4_000), (1, 0)])
def test_a_third_of_the_session_is_left_to_stop_in(session_timeout_ms: int, lease: int) -> None:
    assert lease_ms(session_timeout_ms) == lease
