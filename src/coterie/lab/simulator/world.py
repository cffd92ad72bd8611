"""The simulated world: its clock, its planned callbacks, its one source of random numbers and its trace. Also the
timers of a machine, and the base class of disks."""

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
    """The clock, the planned callbacks, the random numbers and the trace of the simulation with one seed. Callbacks run
    in the order of their times; those with the same time in the order in which they were planned."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        """The only source of random numbers of the simulation."""
        self.now_ms = 0
        """The simulated time, in ms since the start of the simulation."""
        self.callback_count = 0
        """Number of callbacks that have run."""
        self._planned_callbacks: list[tuple[int, int, Callable[[], None]]] = []
        self._planned_count = 0
        self._trace = Trace(entries_max=5_000)
        self._digest = blake2b(digest_size=8)

    def call_at(self, at_ms: int, callback: Callable[[], None]) -> None:
        """Plan ``callback`` for the time ``at_ms``; for now, if this time has passed."""
        self._planned_count += 1
        heapq.heappush(self._planned_callbacks, (max(at_ms, self.now_ms), self._planned_count, callback))

    def call_after(self, in_ms: int, callback: Callable[[], None]) -> None:
        """Plan ``callback`` for ``in_ms`` from now."""
        self.call_at(self.now_ms + in_ms, callback)

    def run_until(self, until_ms: int) -> None:
        """Run all callbacks that are planned for the time ``until_ms`` or earlier, also those that these callbacks
        plan; each runs at its own time. Then set the clock to ``until_ms``."""
        while self._planned_callbacks and self._planned_callbacks[0][0] <= until_ms:
            self.now_ms, _, callback = heapq.heappop(self._planned_callbacks)
            self.callback_count += 1
            callback()
        self.now_ms = until_ms

    def add_record(self, kind: RecordKind, *values: RecordValue) -> None:
        """Add a record, with the present time, to the digest, and to the trace as a line."""
        line = " ".join((kind, *map(str, values)))
        self._trace.add(self.now_ms, line)
        self._digest.update(f"{self.now_ms} {line}\n".encode())

    def add_to_trace(self, text: str) -> None:
        """Add the line ``text`` to the trace, but not to the digest."""
        self._trace.add(self.now_ms, text)

    def trace_text(self, line_count: int) -> str:
        """The last ``line_count`` lines of the trace as text."""
        return self._trace.recent_text(line_count)

    @property
    def digest(self) -> str:
        """The checksum of all records so far and their times, in hex digits."""
        return self._digest.hexdigest()

    def draw_bool(self, probability: float) -> bool:
        """Draw a random bool: True with this probability."""
        return self.rng.random() < probability


class SimTimers(Generic[KeyT]):
    """The timers of one machine, by key. When the time of a timer has come, the timer is removed and ``on_timer`` is
    called with its key."""

    def __init__(self, world: World, on_timer: Callable[[KeyT], None]) -> None:
        self._world = world
        self._on_timer = on_timer
        self._timers = Timers[KeyT]()
        self._next_wake_up_ms: int | None = None
        self._is_closed = False

    def set(self, key: KeyT, at_ms: int) -> None:
        """Set the timer ``key`` to ``at_ms``; if it is set already, move it."""
        self._timers.set(key, at_ms)
        if self._next_wake_up_ms is None or at_ms < self._next_wake_up_ms:
            self._plan_wake_up()

    def cancel(self, key: KeyT) -> None:
        """Cancel the timer ``key``, if it is set."""
        self._timers.cancel(key)

    def close(self) -> None:
        """Never call ``on_timer`` again. Called when the machine's process has ended."""
        self._is_closed = True

    def _plan_wake_up(self) -> None:
        """Plan a call of :meth:`_fire_due_timers_unless_replaced` for the time of the earliest timer. Does nothing if
        no timer is set, or a call is planned for this time or earlier."""
        next_ms = self._timers.next_deadline_ms()
        if next_ms is not None and (self._next_wake_up_ms is None or next_ms < self._next_wake_up_ms):
            self._next_wake_up_ms = next_ms
            self._world.call_at(next_ms, lambda: self._fire_due_timers_unless_replaced(next_ms))

    def _fire_due_timers_unless_replaced(self, planned_ms: int) -> None:
        """Fire the timers that are due, and plan the next call. Does nothing if the timers are closed, or if this call,
        which was planned for ``planned_ms``, was replaced by an earlier one."""
        if self._is_closed or planned_ms != self._next_wake_up_ms:
            return
        self._next_wake_up_ms = None
        while not self._is_closed and (key := self._timers.pop_due(self._world.now_ms)) is not None:
            self._on_timer(key)
        if not self._is_closed:
            self._plan_wake_up()


class FaultyDisk:
    """The base class of simulated disks: it draws how long a write takes, 1 to 20 ms, or 200 to 3000 ms while
    ``is_slow`` is True. It writes nothing itself."""

    def __init__(self) -> None:
        self.is_slow = False

    def draw_write_duration_ms(self, rng: Random) -> int:
        """Draw the random duration of one write."""
        return rng.randint(200, 3_000) if self.is_slow else rng.randint(1, 20)
