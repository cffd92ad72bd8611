"""The fence of one run of a task: a closed fence prevents that the run commits another batch in its sink."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from coterie.nouns.errors import CoterieError


class FencedError(CoterieError):
    """The run was stopped here, or another owner has taken over in the sink: its batch must not be committed."""


class Fence:
    """Open until the run is stopped. A closed fence stays closed. Safe on any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._closed = False

    def shut(self) -> None:
        """Reject further commits. A commit that has begun may still be running. Never waits."""
        self._closed = True

    def close(self, *, within_s: float | None = None) -> bool:
        """Shut, and wait at most ``within_s`` seconds for a commit that is running (None: without limit).

        True means: no commit is running, and none will begin.
        """
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
        """Keep the fence open during one commit.

        :raises FencedError: when the fence is closed.
        """
        with self._lock:
            if self._closed:
                raise FencedError
            yield
