"""What happens to a group of light members with jobs at each kind of event, and what it costs on the wire."""

import asyncio
import itertools
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks import brokers, fleets
from benchmarks.bench_assignor import count_level, fewest_possible_moves
from benchmarks.brokers import MeasuredBroker, print_progress
from benchmarks.light_classic_member import LightClassicMember
from benchmarks.light_connect_member import LightConnectMember
from benchmarks.light_groups import CONNECT_GROUP, LightJobGroup, light_jobs
from benchmarks.light_job_member import JobMember
from coterie.assignors.assignor_state import union_of_jobs
from coterie.cli.processes import Children
from coterie.nouns.connect_groups import JOIN_EPOCH
from coterie.nouns.group_description import SCHEDULED_REBALANCE_DELAY_CONFIG
from coterie.nouns.ids import MemberEpoch
from coterie.nouns.jobs import NO_JOBS, Job, Jobs

EVENTS = ("join", "leave", "crash", "bounce", "roll", "drain", "add", "remove")
SYSTEMS = ("classic", "connect", "connect_server")
"""A classic group; connect groups whose leader computes, and whose coordinator does."""
CONNECTION_GRACE_MS = 2_000
JOBS_ADDED = 10
"""One connector with nine tasks."""
IDLE_S = 7.0
"""Pause between two events: longer than a hold, and than members of a classic group send more heartbeats after an
assignment."""


def measure(members: int, jobs: int, *, core: int) -> Mapping[str, Mapping[str, dict[str, Any]]]:
    """The figures of all events, by system. Each system is measured on a separate broker."""
    return {system: measure_system(system, members, jobs, core=core) for system in SYSTEMS}


def measure_system(
    system: str, members: int, jobs: int, *, core: int, idle_s: float = IDLE_S
) -> Mapping[str, dict[str, Any]]:
    """The figures of all events of a group of ``members`` members with ``jobs`` jobs."""
    with tempfile.TemporaryDirectory(prefix="bench-events-") as name, Children(Path(name) / "logs") as children:
        running = fleets.broker(Path(name) / "broker", children, core=core)
        with running as broker, brokers.pinned_to_core(brokers.other_core(core)):
            # No delay: jobs of a member that is gone go to other members at once.
            if system != "classic":
                fleets.set_group_config(broker.port, CONNECT_GROUP, SCHEDULED_REBALANCE_DELAY_CONFIG, "0")
            return asyncio.run(play(system, broker, members, jobs, idle_s))


async def play(
    system: str, broker: MeasuredBroker, members: int, jobs: int, idle_s: float
) -> Mapping[str, dict[str, Any]]:
    group = EventfulGroup(system, broker.port, jobs, idle_s=idle_s)
    figures: dict[str, dict[str, Any]] = {}
    try:
        print_progress(f"{system}: {members} members form a group with {jobs} jobs ...")
        await group.form(members)
        for event in EVENTS:
            if event in ("crash", "drain"):
                await group.measure(
                    "join"
                )  # Only the first join is reported: the others restore the number of members.
            figures[event] = await group.measure(event)
            print_progress(f"{system}: {event}: balanced after {figures[event]['to_balanced_s']} s")
    finally:
        group.close()
    return figures


class EventfulGroup(LightJobGroup[JobMember]):
    """A group of one of the :data:`SYSTEMS`, through one event after another; its jobs are balanced before and after
    each event."""

    def __init__(self, system: str, port: int, jobs: int, *, idle_s: float = IDLE_S) -> None:
        super().__init__(jobs)
        self._system = system
        self._port = port
        self._numbers = itertools.count()
        self._idle_s = idle_s
        self._gone: list[JobMember] = []
        """Members that have left, and those before a restart in place. Their requests and bytes count."""
        self._epochs_seen: set[MemberEpoch] = set()
        """The epochs that members have received since the begin of the event."""

    async def form(self, count: int) -> None:
        """Let ``count`` members join, and wait until each has its jobs and the newest epoch."""
        for _ in range(count):
            await self._join()
        await self.until(self._is_settled)

    def close(self) -> None:
        for member in [*self.members, *self._gone]:
            member.close()

    async def measure(self, event: str) -> dict[str, Any]:
        """Let ``event`` happen; returns its figures when all jobs are balanced and all members have the newest epoch.
        `docs/benchmarks.md` explains the keys."""
        happenings: Mapping[str, Callable[[], Awaitable[None]]] = {
            "join": self._join,
            "leave": self._leave,
            "crash": self._crash,
            "bounce": self._bounce,
            "roll": self._roll,
            "drain": self._drain,
            "add": self._add,
            "remove": self._remove,
        }
        await asyncio.sleep(self._idle_s)
        before = self._owner_by_job()
        owned_before = {member.number: member.owned for member in self.members}
        for member in self.members:
            member.forget_stops()
        self._epochs_seen = set(self._epochs)
        epochs, computed, traffic = set(self._epochs), self._computed(), self._traffic()
        since_s = time.monotonic()
        await happenings[event]()
        await self.until(self._is_balanced)
        balanced_s, balanced_traffic = time.monotonic() - since_s, self._traffic()
        for member in [member for member in self.members if member.draining]:
            await self._leave(member)
        is_unchanged = event in ("bounce", "roll")
        await self.until(lambda: self._is_settled() and (is_unchanged or set(self._epochs).isdisjoint(epochs)))
        all_at_epoch_s = time.monotonic() - since_s
        stopped, others_stopped = self._stops()
        loads, free = count_level(self._jobs, [owned_before.get(member.number, NO_JOBS) for member in self.members])
        after = self._owner_by_job()
        return {
            # The coordinator's own computations are seen by the epochs that they cause.
            "computations": self._computed() - computed or len(self._epochs_seen - epochs - {JOIN_EPOCH}),
            "to_balanced_s": round(balanced_s, 3),
            "all_at_epoch_s": round(all_at_epoch_s, 3),
            "requests": balanced_traffic[0] - traffic[0],
            "bytes": balanced_traffic[1] - traffic[1],
            "moved": sum(after[job] != owner for job, owner in before.items() if job in after),
            "stopped": stopped,
            "optimum": fewest_possible_moves(loads, free, stopped),
            "others_stopped": others_stopped,
        }

    async def _new_member(self, number: int, predecessor: JobMember | None = None) -> JobMember:
        """A member with an open connection, which has not joined; or the next process of ``predecessor``."""

        def member() -> JobMember:
            if self._system == "classic":
                assert predecessor is None or isinstance(predecessor, LightClassicMember)
                return LightClassicMember(
                    CONNECT_GROUP, number, configured=self._jobs, on_change=self._on_change, predecessor=predecessor
                )
            assert predecessor is None or isinstance(predecessor, LightConnectMember)
            return LightConnectMember(
                CONNECT_GROUP,
                number,
                configured=self._jobs,
                on_change=self._on_change,
                server_assignor="cooperative" if self._system == "connect_server" else None,
                connection_grace_ms=CONNECTION_GRACE_MS,
                predecessor=predecessor,
            )

        _, new = await asyncio.get_running_loop().create_connection(member, "127.0.0.1", self._port)
        self._count(new)
        return new

    # -- events -------------------------------------------------------------------------------------------------------

    async def _join(self) -> None:
        self.members.append(await self._new_member(next(self._numbers)))
        self.members[-1].start()

    async def _leave(self, member: JobMember | None = None) -> None:
        """Let a member leave, the newest one if none is given."""
        member = member or self.members[-1]
        self._remove_member(member)
        await member.leave()

    async def _crash(self) -> None:
        member = self.members[-1]
        self._remove_member(member)
        member.crash()

    async def _bounce(self) -> None:
        await self._restart(len(self.members) - 1)

    async def _roll(self) -> None:
        for place in range(len(self.members)):
            await self._restart(place)

    async def _drain(self) -> None:
        self.members[-1].drain()

    async def _add(self) -> None:
        self._configure(Jobs.of(light_jobs(len(self._jobs) + JOBS_ADDED)))

    async def _remove(self) -> None:
        self._configure(Jobs.of(light_jobs(len(self._jobs) - JOBS_ADDED)))

    async def _restart(self, place: int) -> None:
        """Let the member at ``place`` restart in place: the next process continues the membership."""
        member = self.members[place]
        await member.suspend()
        self._gone.append(member)
        self.members[place] = successor = await self._new_member(member.number, member)
        successor.start()
        await self.until(lambda: successor.responses > 0)

    def _configure(self, jobs: Jobs) -> None:
        self._jobs = jobs
        for member in self.members:
            member.configure(jobs)

    # -- helpers ------------------------------------------------------------------------------------------------------

    def _remove_member(self, member: JobMember) -> None:
        self.members.remove(member)
        self._gone.append(member)
        self._forget(member)

    def _count(self, member: JobMember) -> None:
        super()._count(member)
        self._epochs_seen.add(member.epoch)

    def _computed(self) -> int:
        return super()._computed() + sum(member.computed for member in self._gone)

    def _owner_by_job(self) -> Mapping[Job, int]:
        return {job: member.number for member in self.members for job in member.owned}

    def _traffic(self) -> tuple[int, int]:
        """The requests of all members so far, and the bytes of all requests and responses."""
        members = [*self.members, *self._gone]
        return (
            sum(member.requests for member in members),
            sum(member.sent_bytes + member.received_bytes for member in members),
        )

    def _stops(self) -> tuple[int, int]:
        """The number of configured jobs that stopped on members that are still in the group since the begin of the
        event, and how many of these are on the same member again."""
        stops = [(member.owned, member.stopped & self._jobs) for member in self.members]
        return sum(len(stopped) for _, stopped in stops), sum(len(stopped & owned) for owned, stopped in stops)

    def _is_balanced(self) -> bool:
        """Whether every configured job has one owner, no other job has one, members that drain have none, and the
        others have as many connectors, tasks and jobs as each other, or one more."""
        if self._owned != len(self._jobs) or any(member.owned for member in self.members if member.draining):
            return False
        owned = [member.owned for member in self.members if not member.draining]
        numbers = [(len(jobs), len(jobs.connectors), len(jobs.tasks)) for jobs in owned]
        if any(max(counts) - min(counts) > 1 for counts in zip(*numbers, strict=True)):
            return False
        return union_of_jobs(owned) == self._jobs
