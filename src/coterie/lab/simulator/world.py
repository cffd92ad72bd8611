"""The simulated world: its clock, its one source of random numbers and its trace; a machine's timers; the base class of
disks."""

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
    """The clock and the queue of callbacks. Callbacks run in the order of their times; at the same time, in the order
    in which they were planned."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.now_ms = 0
        self.events = 0
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._planned = 0
        self._trace = Trace(lines_max=5_000)
        self._digest = blake2b(digest_size=8)

    def at(self, at_ms: int, happens: Callable[[], None]) -> None:
        self._planned += 1
        heapq.heappush(self._heap, (max(at_ms, self.now_ms), self._planned, happens))

    def after(self, ms: int, happens: Callable[[], None]) -> None:
        self.at(self.now_ms + ms, happens)

    def run_until(self, until_ms: int) -> None:
        while self._heap and self._heap[0][0] <= until_ms:
            self.now_ms, _, happens = heapq.heappop(self._heap)
            self.events += 1
            happens()
        self.now_ms = until_ms

    def record(self, kind: RecordKind, *values: RecordValue) -> None:
        """Add a record to the digest and to the trace."""
        line = " ".join((kind, *map(str, values)))
        self._trace.add(self.now_ms, line)
        self._digest.update(f"{self.now_ms} {line}\n".encode())

    def say(self, text: str) -> None:
        """Add a line to the trace but not to the digest."""
        self._trace.add(self.now_ms, text)

    def story(self, last: int) -> str:
        return self._trace.story(last)

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability


class Alarms(Generic[KeyT]):
    """The timers of one machine; they end with the machine's process."""

    def __init__(self, world: World, fire: Callable[[KeyT], None]) -> None:
        self._world = world
        self._fire = fire
        self._timers = Timers[KeyT]()
        self._wakes_at_ms: int | None = None
        self._off = False

    def set(self, key: KeyT, at_ms: int) -> None:
        self._timers.set(key, at_ms)
        if self._wakes_at_ms is None or at_ms < self._wakes_at_ms:
            self._plan()

    def cancel(self, key: KeyT) -> None:
        self._timers.cancel(key)

    def off(self) -> None:
        self._off = True

    def _plan(self) -> None:
        next_ms = self._timers.next_at_ms()
        if next_ms is not None and (self._wakes_at_ms is None or next_ms < self._wakes_at_ms):
            self._wakes_at_ms = next_ms
            self._world.at(next_ms, lambda: self._wake(next_ms))

    def _wake(self, planned_ms: int) -> None:
        if self._off or planned_ms != self._wakes_at_ms:
            return
        self._wakes_at_ms = None
        while not self._off and (key := self._timers.pop_due(self._world.now_ms)) is not None:
            self._fire(key)
        if not self._off:
            self._plan()


class FaultyDisk:
    """A disk with a random duration of each write: 1 to 20 ms, 200 to 3000 ms while the disk is slow."""

    def __init__(self) -> None:
        self.slow = False

    def write_ms(self, rng: Random) -> int:
        return rng.randint(200, 3_000) if self.slow else rng.randint(1, 20)
