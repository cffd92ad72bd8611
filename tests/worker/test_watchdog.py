"""The thread, with a lease and a loop that are only said; `test_stuck` has real ones."""

import threading
import time
from collections.abc import Callable

from coterie.worker.watchdog import Watchdog

DEADLINE_S = 30


class Loop:
    """What the thread is told of a worker."""

    def __init__(self) -> None:
        self.lease_ends_ms: int | None = int(time.monotonic() * 1000) - 1
        self.silent_ms = 1_000.0
        self.looks = threading.Semaphore(0)
        """Released by each look at the lease."""
        self.stops = 0
        self.fails = False

    def watchdog(self) -> Watchdog:
        return Watchdog(
            lease_ends_ms=self._look, silent_ms=lambda: self.silent_ms, silent_max_ms=500, stop_everything=self._stop
        )

    def wait_for_looks(self, count: int = 3) -> None:
        for _ in range(count):
            assert self.looks.acquire(timeout=DEADLINE_S)

    def _look(self) -> int | None:
        self.looks.release()
        return self.lease_ends_ms

    def _stop(self) -> None:
        self.stops += 1
        if self.fails:
            raise RuntimeError("no stop")


def stops(change: Callable[[Loop], None] = lambda loop: None) -> int:
    """How often everything is stopped in some looks."""
    loop = Loop()
    change(loop)
    with loop.watchdog():
        loop.wait_for_looks()
    return loop.stops


def test_a_silent_loop_whose_lease_is_over_is_stopped_once() -> None:
    assert stops() == 1


def test_a_loop_that_gives_signs_looks_after_its_lease_itself() -> None:
    assert stops(lambda loop: setattr(loop, "silent_ms", 20.0)) == 0


def test_a_stall_within_the_lease_stops_nothing() -> None:
    assert stops(lambda loop: setattr(loop, "lease_ends_ms", int(time.monotonic() * 1000) + 600_000)) == 0


def test_without_a_lease_there_is_nothing_to_stop() -> None:
    assert stops(lambda loop: setattr(loop, "lease_ends_ms", None)) == 0


def test_the_next_lease_is_watched_too_also_after_a_stop_that_failed() -> None:
    loop = Loop()
    loop.fails = True
    with loop.watchdog():
        loop.wait_for_looks()
        assert loop.lease_ends_ms is not None
        loop.lease_ends_ms += 1
        loop.wait_for_looks()
    assert loop.stops == 2


def test_no_thread_is_left_behind() -> None:
    with Loop().watchdog():
        assert any(thread.name == "coterie-watchdog" for thread in threading.enumerate())
    assert not any(thread.name == "coterie-watchdog" for thread in threading.enumerate())
