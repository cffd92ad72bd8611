"""The fence between one run of a task and what its sink shows to readers."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from coterie.nouns.errors import CoterieError


class FencedError(CoterieError):
    """The run was stopped here, or another owner has taken over in the sink: its batch must not be shown."""


class Fence:
    """Open until the run is stopped. A closed fence stays closed. Safe on any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._closed = False

    def shut(self) -> None:
        """Let no further effect begin; one may still be under way. Never waits."""
        self._closed = True

    def close(self, *, within_s: float | None = None) -> bool:
        """Shut, and wait for the effect that is under way, at most ``within_s`` seconds: when this returns True, none
        is, and none will be."""
        self.shut()
        is_free = self._lock.acquire(timeout=-1 if within_s is None else within_s)
        if is_free:
            self._lock.release()
        return is_free

    @property
    def closed(self) -> bool:
        return self._closed

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Hold the fence open for one effect.

        :raises FencedError: when the fence is closed.
        """
        with self._lock:
            if self._closed:
                raise FencedError
            yield
