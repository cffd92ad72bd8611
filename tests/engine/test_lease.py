"""The lease leaves the last third of a session for stops."""

import pytest

from coterie.engine.lease import LeaseDurations


@pytest.mark.parametrize(
    ("session_timeout_ms", "duration_ms", "stop_grace_ms", "stall_threshold_ms"),
    [(10_000, 6_666, 2_000, 833), (6_000, 4_000, 1_200, 500), (1, 0, 0, 0)],
)
def test_a_third_of_the_session_remains_for_stops(
    session_timeout_ms: int, duration_ms: int, stop_grace_ms: int, stall_threshold_ms: int
) -> None:
    lease = LeaseDurations(session_timeout_ms)
    assert (lease.duration_ms, lease.stop_grace_ms, lease.stall_threshold_ms) == (
        duration_ms,
        stop_grace_ms,
        stall_threshold_ms,
    )
    assert lease.stop_grace_ms + lease.stall_threshold_ms <= session_timeout_ms - lease.duration_ms


@pytest.mark.parametrize("session_timeout_ms", [10_000, 6_000, 45_000, 1])
def test_a_second_request_fits_into_the_lease(session_timeout_ms: int) -> None:
    lease = LeaseDurations(session_timeout_ms)
    assert lease.request_timeout_ms == session_timeout_ms // 3
    assert 2 * lease.request_timeout_ms <= lease.duration_ms
    assert 2 * lease.heartbeat_timeout_ms <= lease.duration_ms
