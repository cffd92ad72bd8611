"""What the light members that run jobs have in common, whatever the protocol of their group."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable

from benchmarks.light_member import LightConnection
from coterie.nouns.connect_groups import JOIN_EPOCH
from coterie.nouns.ids import MemberEpoch
from coterie.nouns.jobs import NO_JOBS, Jobs


class JobMember(LightConnection, ABC):
    """A member whose jobs stop at once. ``on_change`` is called with the member when its jobs or its epoch have
    changed, it has its first response, or it has failed."""

    def __init__(self, number: int, on_change: Callable[["JobMember"], None]) -> None:
        super().__init__(f"light-{number}")
        self.number = number
        self.epoch: MemberEpoch = JOIN_EPOCH
        """The member epoch; in a classic group the generation."""
        self.owned = NO_JOBS
        self.responses = 0
        """The number of responses that this member has processed in :meth:`_note`."""
        self.moves = 0
        """How many jobs this member has received and given back."""
        self.stopped = NO_JOBS
        """The jobs that this member has given back since :meth:`forget_stops`."""
        self.computed = 0
        """How many assignments this member has computed."""
        self.draining = False
        self.failure: BaseException | None = None
        """Why this member has ended by itself."""
        self._on_change = on_change
        self._ends = False
        self._loop_of_heartbeats: asyncio.Task[None] | None = None

    def start(self, when_sent: Callable[[], None] | None = None) -> None:
        """Join, and send heartbeats until :meth:`stop`. ``when_sent`` is called after the join."""
        self._ends = False
        self._loop_of_heartbeats = asyncio.create_task(self._run(when_sent))
        self._loop_of_heartbeats.add_done_callback(self._note_end)

    async def stop(self) -> None:
        """Send no further heartbeat; returns when the last response has arrived."""
        self._ends = True
        if self._loop_of_heartbeats is not None:
            await self._loop_of_heartbeats

    def crash(self) -> None:
        """Close the connection without a request, as the kernel does when a process is killed."""
        self._end_heartbeats()
        self.close()

    def forget_stops(self) -> None:
        self.stopped = NO_JOBS

    @abstractmethod
    async def leave(self) -> None:
        """Leave the group permanently, and close the connection. All jobs have stopped."""

    @abstractmethod
    async def suspend(self) -> None:
        """Close the connection as a process does that replaces itself. The membership is continued by another object,
        with this one as its predecessor."""

    @abstractmethod
    def drain(self) -> None:
        """Report at once that this member's jobs are to move to others."""

    @abstractmethod
    def configure(self, jobs: Jobs) -> None:
        """Note the configured jobs, which have changed, and report that as a worker does."""

    @abstractmethod
    async def _run(self, when_sent: Callable[[], None] | None) -> None: ...

    def _end_heartbeats(self) -> None:
        """End the heartbeats at once; a response that arrives later has no effect."""
        if self._loop_of_heartbeats is not None:
            self._loop_of_heartbeats.cancel()

    def _note(self, epoch: MemberEpoch, owned: Jobs) -> None:
        """Process what a response contains."""
        before = (self.epoch, self.owned)
        self.responses += 1
        self.moves += len(self.owned - owned) + len(owned - self.owned)
        self.stopped |= self.owned - owned
        self.epoch, self.owned = epoch, owned
        if self.responses == 1 or before != (epoch, owned):
            self._on_change(self)

    def _note_end(self, loop_of_heartbeats: "asyncio.Task[None]") -> None:
        if not loop_of_heartbeats.cancelled() and (failure := loop_of_heartbeats.exception()) is not None:
            self.failure = failure
            self._on_change(self)
