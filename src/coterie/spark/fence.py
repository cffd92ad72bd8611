"""The fence of one run of a task, or of one split: after it is closed, the run or split commits nothing more."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from coterie.nouns.errors import CoterieError


class FencedError(CoterieError):
    """The run of a task, or a split, may commit nothing more. It was stopped on this worker; or the call of a plug-in
    that performs it was abandoned after a time limit; or another start of the task has taken over in the sink."""


class Fence:
    """Open while a run (one start of a task, or one split) may commit batches or checkpoint generations. A closed fence
    stays closed. Safe on any thread."""

    def __init__(self) -> None:
        self._commit_lock = threading.Lock()
        self._is_closed = False

    def close_nowait(self) -> None:
        """Close the fence: no further commit begins. Does not wait: a commit that has begun may still be running."""
        self._is_closed = True

    def close_and_wait(self, *, timeout_s: float | None = None) -> bool:
        """Close the fence, then wait at most ``timeout_s`` seconds for a running commit to end (None: without limit).

        Returns True when no commit is running; none will begin. Returns False when a commit is still running.
        """
        self.close_nowait()
        is_no_commit_running = self._commit_lock.acquire(timeout=-1 if timeout_s is None else timeout_s)
        if is_no_commit_running:
            self._commit_lock.release()
        return is_no_commit_running

    @property
    def is_closed(self) -> bool:
        """Whether no further commit begins. A commit that began before may still be running."""
        return self._is_closed

    @contextmanager
    def commit_or_raise_if_closed(self) -> Iterator[None]:
        """Context manager: the block is one commit. :meth:`close_and_wait` and another ``commit_or_raise_if_closed``
        wait until the block ends.

        :raises FencedError: when the fence was closed before; the block then does not run.
        """
        with self._commit_lock:
            if self._is_closed:
                raise FencedError
            yield
