"""The last third of a session is for stopping."""

import pytest

from coterie.engine.lease import Lease


@pytest.mark.parametrize(
    ("session_timeout_ms", "proved_ms", "stop_grace_ms", "silence_ms"),
    [(10_000, 6_666, 2_000, 833), (6_000, 4_000, 1_200, 500), (1, 0, 0, 0)],
)
def test_a_third_of_the_session_is_left_to_stop_in(
    session_timeout_ms: int, proved_ms: int, stop_grace_ms: int, silence_ms: int
) -> None:
    lease = Lease(session_timeout_ms)
    assert (lease.proved_ms, lease.stop_grace_ms, lease.silence_ms) == (proved_ms, stop_grace_ms, silence_ms)
    assert lease.stop_grace_ms + lease.silence_ms <= session_timeout_ms - lease.proved_ms


@pytest.mark.parametrize("session_timeout_ms", [10_000, 6_000, 45_000, 1])
def test_a_second_request_fits_into_the_lease(session_timeout_ms: int) -> None:
    lease = Lease(session_timeout_ms)
    assert lease.request_timeout_ms == session_timeout_ms // 3
    assert 2 * lease.request_timeout_ms <= lease.proved_ms
    assert 2 * lease.heartbeat_patience_ms <= lease.proved_ms
