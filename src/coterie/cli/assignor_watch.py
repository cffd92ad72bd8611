"""Watches the metadata of a worker's assignors: at its start, after each new assignment, and at intervals.

`ConnectAssignor.metadata` is the code of a plug-in and may block for ever, so it is called on separate threads.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress

from coterie.assignors.connect.interface import ConnectAssignor
from coterie.cli.assignors import make_unusable_assignor_error, read_and_check_offered_assignor
from coterie.cli.daemon_thread import PluginCaller
from coterie.groups.connect import request_checks
from coterie.member.connect.state import OfferedAssignor
from coterie.nouns.errors import WorldError
from coterie.nouns.membership import UpdateAssignor

WATCH_INTERVAL_MS = 5_000
"""The time from one call of `ConnectAssignor.metadata` to the next, if the worker has no new jobs meanwhile."""
METADATA_TIMEOUT_MS = 5_000
"""The time limit of a call of `ConnectAssignor.metadata`."""
METADATA_SIZE_MAX = request_checks.METADATA_SIZE_MAX // 2
"""The greatest size in bytes of the metadata of all assignors of one worker. The coordinator refuses a worker whose
metadata, URL, name and ids are together greater than its own limit."""

logger = logging.getLogger(__name__)


class AssignorMetadataWatch:
    """Calls `ConnectAssignor.metadata` of each assignor of a worker: when the worker starts, when
    :meth:`read_metadata_soon` requests it, and at intervals. Reports changes of the metadata, and each new reason for
    which an assignor wants a new computation. Call :meth:`read_offered_assignors` first, on the event loop of
    :meth:`run`: a request of :meth:`read_metadata_soon` before that call is ignored.

    A call that fails, blocks or returns invalid metadata at the start of the worker is an error. Later such a call
    changes nothing: the coordinator keeps the metadata that it has. The first of several such calls in succession is
    logged as a warning."""

    def __init__(
        self,
        assignors: Sequence[ConnectAssignor],
        *,
        interval_ms: int = WATCH_INTERVAL_MS,
        timeout_ms: int = METADATA_TIMEOUT_MS,
    ) -> None:
        self._assignors = [
            _WatchedAssignor(assignor, PluginCaller(f"metadata of assignor {assignor.name}")) for assignor in assignors
        ]
        self._interval_s = interval_ms / 1000
        self._timeout_ms = timeout_ms
        self._loop: asyncio.AbstractEventLoop | None = None

    async def read_offered_assignors(self) -> tuple[OfferedAssignor, ...]:
        """The name, versions and metadata of each assignor, which the worker sends when it joins its group; in the
        order of the assignors. Also binds this object to the running event loop: before this call,
        :meth:`read_metadata_soon` does nothing.

        :raises ConfigError: when the versions or the metadata of an assignor cannot be used, or the assignor does not
            return the metadata in time.
        """
        self._loop = asyncio.get_running_loop()
        for watched in self._assignors:
            try:
                watched.offered = await self._read_and_check_offer(watched)
            except Exception as error:
                raise make_unusable_assignor_error(watched.name, str(error)) from error
        return tuple(watched.offered for watched in self._assignors if watched.offered is not None)

    async def run(self, report: Callable[[UpdateAssignor], None]) -> None:
        """Call ``report`` with each change of an assignor's metadata since `read_offered_assignors`, and with each new
        reason for which an assignor wants a new computation. Runs until it is cancelled, or returns at once if the
        worker has no assignors."""
        async with asyncio.TaskGroup() as tasks:
            for watched in self._assignors:
                tasks.create_task(self._watch_assignor(watched, report))

    def read_metadata_soon(self, name: str) -> None:
        """Let :meth:`run` read the metadata of the assignor ``name`` now instead of at the end of the interval. Does
        not wait for that. May be called on any thread."""
        for watched in self._assignors:
            if watched.name == name and self._loop is not None:
                with suppress(RuntimeError):  # the event loop is closed: the worker has ended
                    self._loop.call_soon_threadsafe(watched.is_due.set)

    async def _watch_assignor(self, watched: "_WatchedAssignor", report: Callable[[UpdateAssignor], None]) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._interval_s):
                    await watched.is_due.wait()
            watched.is_due.clear()
            try:
                offered = await self._read_and_check_offer(watched)
            except Exception as error:  # noqa: BLE001 - a plug-in may raise any exception
                watched.log_failure_if_first(error)
                continue
            update = watched.store_offer_and_make_update(offered)
            if update is not None:
                report(update)

    async def _read_and_check_offer(self, watched: "_WatchedAssignor") -> OfferedAssignor:
        """Read the assignor's name, versions and metadata, on the assignor's thread.

        :raises WorldError: when the plug-in raises an exception or does not return in time, the versions or the
            metadata are invalid, the metadata of all assignors together are too large, or the name or the range of
            versions has changed.
        :raises RuntimeError: when the plug-in raises an exception that is no :class:`Exception`, such as SystemExit.
        """
        offered = await watched.thread.call(
            lambda: read_and_check_offered_assignor(watched.assignor), timeout_ms=self._timeout_ms
        )
        before = watched.offered
        if before is not None and _name_and_version_range(offered) != _name_and_version_range(before):
            raise WorldError("its name, minimum_version and maximum_version must not change while the worker runs")
        others = [one.offered for one in self._assignors if one is not watched and one.offered is not None]
        size = sum(len(one.metadata) for one in (offered, *others))
        if size > METADATA_SIZE_MAX:
            raise WorldError(
                f"the metadata of this worker's assignors together have {size} bytes; at most {METADATA_SIZE_MAX} "
                "are allowed"
            )
        return offered


class _WatchedAssignor:
    """One assignor of the worker, with the metadata that it last returned."""

    def __init__(self, assignor: ConnectAssignor, thread: PluginCaller) -> None:
        self.assignor = assignor
        self.name = assignor.name
        self.thread = thread
        self.offered: OfferedAssignor | None = None
        """The result of the last call that was valid; None before the first."""
        self.is_due = asyncio.Event()
        """Set when the metadata must be read again before the end of the interval."""
        self._has_failed = False
        """Whether the last call has failed, which was logged."""

    def store_offer_and_make_update(self, offered: OfferedAssignor) -> UpdateAssignor | None:
        """Store ``offered``, the result of a call that succeeded, and return the update that the worker's membership
        must send to the coordinator. None if there is nothing to send: the metadata and their version are unchanged,
        and ``offered.reason`` requests no new computation (0) or is the same as in the call before."""
        before = self.offered
        assert before is not None, "the first offers were read"
        self.offered, self._has_failed = offered, False
        has_changed = (offered.metadata_version, offered.metadata) != (before.metadata_version, before.metadata)
        if not has_changed and offered.reason in (0, before.reason):
            return None
        return UpdateAssignor(
            name=self.name, metadata_version=offered.metadata_version, metadata=offered.metadata, reason=offered.reason
        )

    def log_failure_if_first(self, error: Exception) -> None:
        """Log that a call has failed with ``error``, unless the call before has failed too."""
        if not self._has_failed:
            self._has_failed = True
            logger.warning(
                "Assignor %s has returned no valid metadata, so the coordinator keeps those reported before, and the "
                "assignor is called again at intervals (further failures are logged only after a success): %s",
                self.name,
                error,
            )


def _name_and_version_range(offered: OfferedAssignor) -> tuple[str, int, int]:
    """The name and the range of versions, which must not change while the worker runs."""
    return offered.name, offered.minimum_version, offered.maximum_version
