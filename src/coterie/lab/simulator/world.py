"""The simulated world: its clock, its one source of random numbers and its trace. Also the timers of a machine, and the
base class of disks."""

import heapq
from collections.abc import Callable, Hashable
from hashlib import blake2b
from random import Random
from typing import Generic, TypeVar

from coterie.engine.timers import Timers
from coterie.engine.trace import Trace
from coterie.lab.simulator.records import RecordKind, RecordValue

KeyT = TypeVar("KeyT", bound=Hashable)


class World:
    """The clock and the queue of planned callbacks of one seed. Callbacks run in the order of their times; those with
    the same time in the order in which they were planned."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.now_ms = 0
        self.events = 0
        """Number of callbacks that have run."""
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._planned = 0
        self._trace = Trace(entries_max=5_000)
        self._digest = blake2b(digest_size=8)

    def at(self, at_ms: int, callback: Callable[[], None]) -> None:
        """Plan ``callback`` for the time ``at_ms``; for now, if this time has passed."""
        self._planned += 1
        heapq.heappush(self._heap, (max(at_ms, self.now_ms), self._planned, callback))

    def after(self, ms: int, callback: Callable[[], None]) -> None:
        """Plan ``callback`` for ``ms`` from now."""
        self.at(self.now_ms + ms, callback)

    def run_until(self, until_ms: int) -> None:
        """Run all callbacks that are planned up to the time ``until_ms``, those that are planned meanwhile too; then
        set the clock to ``until_ms``."""
        while self._heap and self._heap[0][0] <= until_ms:
            self.now_ms, _, happens = heapq.heappop(self._heap)
            self.events += 1
            happens()
        self.now_ms = until_ms

    def record(self, kind: RecordKind, *values: RecordValue) -> None:
        """Add a record to the digest, and to the trace as a line."""
        line = " ".join((kind, *map(str, values)))
        self._trace.add(self.now_ms, line)
        self._digest.update(f"{self.now_ms} {line}\n".encode())

    def say(self, text: str) -> None:
        """Add the line ``text`` to the trace, but not to the digest."""
        self._trace.add(self.now_ms, text)

    def story(self, last: int) -> str:
        """The last ``last`` lines of the trace as text."""
        return self._trace.recent_text(last)

    @property
    def digest(self) -> str:
        """The checksum, in hex digits, of all records so far with their times."""
        return self._digest.hexdigest()

    def chance(self, probability: float) -> bool:
        """Draw a random bool: True with this probability."""
        return self.rng.random() < probability


class SimTimers(Generic[KeyT]):
    """The timers of one machine. When a timer's time has come, ``fire`` is called with its key."""

    def __init__(self, world: World, fire: Callable[[KeyT], None]) -> None:
        self._world = world
        self._fire = fire
        self._timers = Timers[KeyT]()
        self._wakes_at_ms: int | None = None
        self._closed = False

    def set(self, key: KeyT, at_ms: int) -> None:
        """Set the timer ``key`` to ``at_ms``; if it is set already, move it."""
        self._timers.set(key, at_ms)
        if self._wakes_at_ms is None or at_ms < self._wakes_at_ms:
            self._plan()

    def cancel(self, key: KeyT) -> None:
        """Cancel the timer ``key``, if it is set."""
        self._timers.cancel(key)

    def close(self) -> None:
        """End all timers, because the machine's process has ended."""
        self._closed = True

    def _plan(self) -> None:
        """Plan the callback for the first timer, unless one is planned for this time or earlier."""
        next_ms = self._timers.next_at_ms()
        if next_ms is not None and (self._wakes_at_ms is None or next_ms < self._wakes_at_ms):
            self._wakes_at_ms = next_ms
            self._world.at(next_ms, lambda: self._wake(next_ms))

    def _wake(self, planned_ms: int) -> None:
        """Fire the timers that are due, if this callback, planned for ``planned_ms``, was not replaced by an earlier
        one."""
        if self._closed or planned_ms != self._wakes_at_ms:
            return
        self._wakes_at_ms = None
        while not self._closed and (key := self._timers.pop_due(self._world.now_ms)) is not None:
            self._fire(key)
        if not self._closed:
            self._plan()


class FaultyDisk:
    """A disk on which each write takes a random time: 1 to 20 ms, or 200 to 3000 ms while the disk is ``slow``."""

    def __init__(self) -> None:
        self.slow = False

    def write_ms(self, rng: Random) -> int:
        """Draw the duration of one write."""
        return rng.randint(200, 3_000) if self.slow else rng.randint(1, 20)
