"""Deadlines by key, which shells and the simulator keep for a machine."""

import heapq
from collections.abc import Hashable
from typing import Generic, TypeVar

KeyT = TypeVar("KeyT", bound=Hashable)


class Timers(Generic[KeyT]):
    """Deadlines in ms on the caller's clock, at most one for each key. :meth:`set` replaces the former deadline of its
    key."""

    def __init__(self) -> None:
        self._deadline_by_key: dict[KeyT, tuple[int, int]] = {}
        self._heap: list[tuple[int, int, KeyT]] = []
        self._set_calls_count = 0

    def set(self, key: KeyT, at_ms: int) -> None:
        """Set the deadline of ``key``, or move it to ``at_ms``."""
        self._set_calls_count += 1
        self._deadline_by_key[key] = (at_ms, self._set_calls_count)
        heapq.heappush(self._heap, (at_ms, self._set_calls_count, key))
        if len(self._heap) > 64 and len(self._heap) > 4 * len(self._deadline_by_key):
            # Each heartbeat moves its member's deadline and leaves an outdated entry in the heap: remove those entries.
            self._heap = [(deadline_ms, count, other) for other, (deadline_ms, count) in self._deadline_by_key.items()]
            heapq.heapify(self._heap)

    def cancel(self, key: KeyT) -> None:
        """Remove the deadline of ``key``, if there is one."""
        self._deadline_by_key.pop(key, None)

    def next_deadline_ms(self) -> int | None:
        """The earliest deadline, which may already have passed; None when no deadline is set."""
        while self._heap:
            at_ms, count, key = self._heap[0]
            if self._deadline_by_key.get(key) == (at_ms, count):
                return at_ms
            heapq.heappop(self._heap)
        return None

    def pop_due(self, now_ms: int) -> KeyT | None:
        """Remove the earliest deadline that is ``now_ms`` or earlier, and return its key; among equal deadlines, the
        one that was set first. None when there is no such deadline."""
        at_ms = self.next_deadline_ms()
        if at_ms is None or at_ms > now_ms:
            return None
        _, _, key = heapq.heappop(self._heap)
        del self._deadline_by_key[key]
        return key
