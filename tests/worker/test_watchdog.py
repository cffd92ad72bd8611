"""The watchdog's thread with a simulated lease and event loop; `test_stuck` has real ones."""

import threading
import time
from collections.abc import Callable

import pytest

from coterie.worker.watchdog import Watchdog

DEADLINE_S = 30


class Loop:
    """The worker's state as the thread reads it."""

    def __init__(self) -> None:
        self.lease_ends_ms: int | None = int(time.monotonic() * 1000) - 1
        self.stalled_ms = 1_000.0
        self.lease_reads = threading.Semaphore(0)
        """Released by each read of the lease."""
        self.stops = 0
        self.failures = 0
        """How many further stops fail."""

    def watchdog(self) -> Watchdog:
        return Watchdog(
            lease_ends_ms=self._read_lease,
            stalled_ms=lambda: self.stalled_ms,
            stall_threshold_ms=lambda: 500,
            halt_all_tasks=self._stop,
        )

    def wait_for_lease_reads(self, count: int = 3) -> None:
        for _ in range(count):
            assert self.lease_reads.acquire(timeout=DEADLINE_S)

    def _read_lease(self) -> int | None:
        self.lease_reads.release()
        return self.lease_ends_ms

    def _stop(self) -> None:
        self.stops += 1
        if self.failures:
            self.failures -= 1
            raise RuntimeError("no stop")


def stops(change: Callable[[Loop], None] = lambda loop: None) -> int:
    """How often all tasks are stopped while the watchdog reads the lease three times."""
    loop = Loop()
    change(loop)
    with loop.watchdog():
        loop.wait_for_lease_reads()
    return loop.stops


def test_tasks_of_a_blocked_loop_are_stopped_once_after_the_lease_has_ended() -> None:
    assert stops() == 1


def test_the_watchdog_stops_no_task_while_the_loop_runs() -> None:
    assert stops(lambda loop: setattr(loop, "stalled_ms", 20.0)) == 0


def test_a_stall_within_the_lease_stops_no_task() -> None:
    assert stops(lambda loop: setattr(loop, "lease_ends_ms", int(time.monotonic() * 1000) + 600_000)) == 0


def test_without_a_lease_no_task_is_stopped() -> None:
    assert stops(lambda loop: setattr(loop, "lease_ends_ms", None)) == 0


def test_the_next_lease_is_watched_after_a_stop() -> None:
    loop = Loop()
    with loop.watchdog():
        loop.wait_for_lease_reads()
        assert loop.lease_ends_ms is not None
        loop.lease_ends_ms += 1
        loop.wait_for_lease_reads()
    assert loop.stops == 2


def test_a_failed_stop_is_tried_again_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    loop = Loop()
    loop.failures = 2
    with loop.watchdog():
        loop.wait_for_lease_reads(count=6)
    assert loop.stops == 3
    assert [record.levelname for record in caplog.records] == ["CRITICAL", "ERROR", "WARNING"]
    assert "no stop" in caplog.text


def test_no_thread_is_left_behind() -> None:
    with Loop().watchdog():
        assert any(thread.name == "coterie-watchdog" for thread in threading.enumerate())
    assert not any(thread.name == "coterie-watchdog" for thread in threading.enumerate())
