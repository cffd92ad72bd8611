"""Groups of light members, all in this process: what their heartbeats, and the formation of a group, cost a broker."""

import asyncio
import itertools
import random
import time
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Generic, Protocol, TypeVar

from benchmarks import brokers
from benchmarks.brokers import MeasuredBroker
from benchmarks.light_connect_member import HOLD_MS, LightConnectMember
from benchmarks.light_job_member import JobMember
from benchmarks.light_member import LightMember
from coterie.nouns.ids import MemberEpoch
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId, Job, Jobs
from coterie.wire.errors import ErrorCode

GROUP, CONNECT_GROUP = "bench", "bench-connect"
DEADLINE_S = 60
HEARTBEAT_INTERVAL_S = 3.0
IN_FLIGHT_MAX = 256
"""Heartbeats in flight at once while the coordinator's throughput is measured."""
CONNECTING_MAX = 200


class Member(Protocol):
    """A member whose heartbeats are measured."""

    def send_heartbeat(self, on_error: Callable[[int], None]) -> None: ...

    async def heartbeat(self) -> int: ...

    def close(self) -> None: ...


MemberT = TypeVar("MemberT", bound=Member)


class LightMembers(ABC, Generic[MemberT]):
    """The members of one group, all in this process."""

    def __init__(self, broker: MeasuredBroker) -> None:
        self._broker = broker
        self.members: list[MemberT] = []
        self._numbers = itertools.count()
        self._last_join_s = 0.0

    @abstractmethod
    async def _new_member(self, number: int) -> MemberT:
        """A member with an open connection, which has not joined."""

    async def connect(self, count: int) -> None:
        room = asyncio.Semaphore(CONNECTING_MAX)

        async def connect_one() -> None:
            async with room:
                await self._connect()

        await all_of([connect_one() for _ in range(count)])

    async def saturate(self, seconds: float) -> dict[str, float]:
        """Send heartbeats for ``seconds`` in a closed loop: after each response the next member, in cyclic order, sends
        a heartbeat."""
        loop = asyncio.get_running_loop()
        idle = deque(self.members)
        latencies_s: list[float] = []
        done: asyncio.Future[None] = loop.create_future()
        started_s = time.monotonic()
        until_s = started_s + seconds

        def send() -> None:
            member = idle.popleft()
            sent_s = time.monotonic()
            member.send_heartbeat(lambda error: on_response(member, error, sent_s))

        def on_response(member: MemberT, error: int, sent_s: float) -> None:
            now_s = time.monotonic()
            latencies_s.append(now_s - sent_s)
            idle.append(member)
            if error and not done.done():
                done.set_exception(AssertionError(f"the response to a heartbeat has error {error}"))
            elif now_s < until_s:
                send()
            elif len(idle) == len(self.members) and not done.done():
                done.set_result(None)

        cpu_s = self._broker.cpu_s
        for _ in range(min(IN_FLIGHT_MAX, len(idle))):
            send()
        await done
        took_s = time.monotonic() - started_s
        cpu_s = self._broker.cpu_s - cpu_s
        return {
            "heartbeats_per_s": round(len(latencies_s) / took_s),
            "heartbeats_p50_ms": milliseconds(latencies_s, 0.5),
            "heartbeats_p99_ms": milliseconds(latencies_s, 0.99),
            "heartbeats_per_cpu_s": brokers.per_cpu_s(len(latencies_s), cpu_s),
        }

    async def pace(self, seconds: float) -> dict[str, float]:
        """Let every member send heartbeats at the interval, for ``seconds``. Latency is measured from the time at which
        a heartbeat was due, not from the time at which this process sent the heartbeat."""
        latencies_s: list[float] = []
        cpu_s = self._broker.cpu_s
        started_s = time.monotonic()

        async def beat(member: MemberT, first_s: float) -> None:
            due_s = first_s
            while due_s < started_s + seconds:
                await asyncio.sleep(due_s - time.monotonic())
                error = await member.heartbeat()
                assert error == ErrorCode.none, f"the response to a heartbeat has error {error}"
                latencies_s.append(time.monotonic() - due_s)
                due_s += HEARTBEAT_INTERVAL_S

        spread = [started_s + HEARTBEAT_INTERVAL_S * n / len(self.members) for n in range(len(self.members))]
        await all_of([beat(member, first_s) for member, first_s in zip(self.members, spread, strict=True)])
        took_s = time.monotonic() - started_s
        return {
            "paced_p50_ms": milliseconds(latencies_s, 0.5),
            "paced_p99_ms": milliseconds(latencies_s, 0.99),
            "paced_core_share": round((self._broker.cpu_s - cpu_s) / took_s, 3),
        }

    def close(self) -> None:
        for member in self.members:
            member.close()

    async def _connect(self) -> None:
        self.members.append(await self._new_member(next(self._numbers)))

    def _note_join(self) -> None:
        self._last_join_s = time.monotonic()


class LightGroup(LightMembers[LightMember]):
    """A classic group."""

    async def _new_member(self, number: int) -> LightMember:
        loop = asyncio.get_running_loop()
        _, member = await loop.create_connection(lambda: LightMember(GROUP, number), "127.0.0.1", self._broker.port)
        return member

    async def form(self) -> dict[str, float]:
        """Let all members join at once; the returned figures include the initial rebalance delay."""
        await self.members[0].find_coordinator()
        started_s = time.monotonic()
        cpu_s = self._broker.cpu_s
        await all_of([member.join_and_sync(self._note_join) for member in self.members])
        ended_s = time.monotonic()
        return {
            "form_s": round(ended_s - started_s, 3),
            "form_after_last_join_s": round(ended_s - self._last_join_s, 3),
            "form_cpu_s": round(self._broker.cpu_s - cpu_s, 3),
        }

    async def measure_join(self) -> dict[str, float]:
        """Let one more member join while the others send heartbeats at their interval. Returns when all members are in
        the same generation."""
        cpu_s = self._broker.cpu_s
        await self._connect()
        *others, newcomer = self.members
        started_s = time.monotonic()
        await all_of([newcomer.join_and_sync(), *(self._rejoin_on_rebalance(member) for member in others)])
        ended_s = time.monotonic()
        generations = {member.generation for member in self.members}
        assert len(generations) == 1, f"the group has not settled: generations {generations}"
        return {
            "one_more_s": round(ended_s - started_s, 3),
            "one_more_after_last_join_s": round(ended_s - self._last_join_s, 3),
            "one_more_cpu_s": round(self._broker.cpu_s - cpu_s, 3),
        }

    async def _rejoin_on_rebalance(self, member: LightMember) -> None:
        # Heartbeats of members are spread over the interval, as if the members had joined at different times.
        pause_s = random.uniform(0, HEARTBEAT_INTERVAL_S)
        error: int = ErrorCode.none
        while error != ErrorCode.rebalance_in_progress:
            await asyncio.sleep(pause_s)
            pause_s = HEARTBEAT_INTERVAL_S
            error = await member.heartbeat()
        await member.join_and_sync(self._note_join)


JobMemberT = TypeVar("JobMemberT", bound=JobMember)


class LightJobGroup(ABC, Generic[JobMemberT]):
    """The members of a group that run jobs."""

    def __init__(self, jobs: int) -> None:
        self.members: list[JobMemberT] = []
        self._jobs = Jobs.of(light_jobs(jobs))
        self._has_changed = asyncio.Event()
        self._seen: dict[int, tuple[MemberEpoch, int]] = {}
        """Epoch and number of jobs by the number of a member."""
        self._owned = 0
        """The number of jobs of all members."""
        self._epochs: Counter[MemberEpoch] = Counter()
        self._failure: BaseException | None = None
        """Why a member has ended."""

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until ``condition`` is true; it is checked when the jobs or the epoch of a member have changed.

        :raises TimeoutError: when it is still false after ``DEADLINE_S``.
        """
        async with asyncio.timeout(DEADLINE_S):
            while not condition():
                self._has_changed.clear()
                await self._has_changed.wait()
                if self._failure is not None:
                    raise self._failure

    def _on_change(self, member: JobMember) -> None:
        self._count(member)
        if member.failure is not None:
            self._failure = member.failure
        self._has_changed.set()

    def _count(self, member: JobMember) -> None:
        self._forget(member)
        self._seen[member.number] = member.epoch, len(member.owned)
        self._epochs[member.epoch] += 1
        self._owned += len(member.owned)

    def _forget(self, member: JobMember) -> None:
        """Take the member out of the counts."""
        epoch, owned = self._seen.pop(member.number, (None, 0))
        if epoch is not None:
            self._epochs[epoch] -= 1
            self._epochs += Counter()  # without zeros
        self._owned -= owned

    def _computed(self) -> int:
        return sum(member.computed for member in self.members)

    def _is_settled(self) -> bool:
        return len(self._epochs) == 1 and self._owned == len(self._jobs)


class LightConnectGroup(LightJobGroup[LightConnectMember], LightMembers[LightConnectMember]):
    """A connect group. Its leader computes the target assignments, in this process."""

    def __init__(self, broker: MeasuredBroker, jobs: int, *, group_id: str = CONNECT_GROUP) -> None:
        LightMembers.__init__(self, broker)
        LightJobGroup.__init__(self, jobs)
        self._group_id = group_id

    async def _new_member(self, number: int) -> LightConnectMember:
        _, member = await asyncio.get_running_loop().create_connection(
            lambda: LightConnectMember(self._group_id, number, configured=self._jobs, on_change=self._on_change),
            "127.0.0.1",
            self._broker.port,
        )
        self._count(member)
        return member

    async def form(self) -> dict[str, float]:
        """Let all members join at once; returns when each has its jobs and the newest epoch."""
        started_s = time.monotonic()
        cpu_s = self._broker.cpu_s
        for member in self.members:
            member.start(self._note_join)
        await self.until(self._is_settled)
        ended_s = time.monotonic()
        return {
            "form_s": round(ended_s - started_s, 3),
            "form_after_last_join_s": round(ended_s - self._last_join_s, 3),
            "form_cpu_s": round(self._broker.cpu_s - cpu_s, 3),
            "computations": self._computed(),
        }

    async def measure_settled(self, seconds: float) -> dict[str, float]:
        """Let all members send held heartbeats for some seconds; returns what one costs."""
        before = [(member.requests, member.sent_bytes + member.received_bytes) for member in self.members]
        cpu_s = self._broker.cpu_s
        await asyncio.sleep(seconds)
        after = [(member.requests, member.sent_bytes + member.received_bytes) for member in self.members]
        requests = [last - first for (first, _), (last, _) in zip(before, after, strict=True)]
        sizes = [
            (last - first) / max(1, count) for (_, first), (_, last), count in zip(before, after, requests, strict=True)
        ]
        return {
            "settled_requests_per_hold": round(max(requests) / (seconds * 1000 / HOLD_MS), 2),
            "settled_bytes": round(max(sizes)),
            "settled_core_share": round((self._broker.cpu_s - cpu_s) / seconds, 3),
        }

    async def measure_join(self) -> dict[str, float]:
        """Let one more member join. Returns when all members have the new epoch."""
        computed = self._computed()
        beats = {member: (member.heartbeats, member.moves) for member in self.members}
        bytes_before = sum(member.sent_bytes + member.received_bytes for member in self.members)
        cpu_s = self._broker.cpu_s
        await self._connect()
        newcomer = self.members[-1]
        started_s = time.monotonic()
        newcomer.start(self._note_join)
        share = len(self._jobs) // len(self.members)
        await self.until(lambda: len(newcomer.owned) >= share and self._owned == len(self._jobs))
        placed_s = time.monotonic() - started_s
        await self.until(self._is_settled)
        took_s = time.monotonic() - started_s
        held = took_s * 1000 / HOLD_MS
        moved: list[float] = [0.0]
        others: list[float] = [0.0]
        for member, (heartbeats, moves) in beats.items():
            own_moves = member.moves - moves
            further = member.heartbeats - heartbeats - own_moves - held
            (moved if own_moves else others).append(further)
        return {
            "one_more_placed_s": round(placed_s, 3),
            "one_more_s": round(took_s, 3),
            "one_more_cpu_s": round(self._broker.cpu_s - cpu_s, 3),
            "one_more_computations": self._computed() - computed,
            "one_more_bytes": sum(member.sent_bytes + member.received_bytes for member in self.members) - bytes_before,
            "one_more_further_heartbeats": round(max(moved), 1),
            "one_more_further_heartbeats_of_others": round(max(others), 1),
        }

    async def stop(self) -> None:
        """Stop the heartbeats that members send by themselves."""
        await all_of([member.stop() for member in self.members])

    async def hold(self, seconds: float) -> dict[str, float]:
        """Let every member send heartbeats that are held, for ``seconds``. Measured is how much later than at the end
        of the hold a response arrives."""
        late_s: list[float] = []
        cpu_s = self._broker.cpu_s
        started_s = time.monotonic()
        hold_s = HEARTBEAT_INTERVAL_S

        async def beat(member: LightConnectMember, first_s: float) -> None:
            await asyncio.sleep(first_s - time.monotonic())
            while (sent_s := time.monotonic()) < started_s + seconds:
                error = await member.heartbeat(max_wait_ms=round(1000 * hold_s))
                assert error == ErrorCode.none, f"the response to a heartbeat has error {error}"
                late_s.append(time.monotonic() - sent_s - hold_s)

        spread = [started_s + hold_s * n / len(self.members) for n in range(len(self.members))]
        await all_of([beat(member, first_s) for member, first_s in zip(self.members, spread, strict=True)])
        took_s = time.monotonic() - started_s
        return {
            "held_p50_ms": milliseconds(late_s, 0.5),
            "held_p99_ms": milliseconds(late_s, 0.99),
            "held_core_share": round((self._broker.cpu_s - cpu_s) / took_s, 3),
        }


def light_jobs(count: int) -> Iterator[Job]:
    """``count`` jobs: connectors of nine tasks each."""
    for number in range(count):
        connector = ConnectorName(f"c{number // 10:04}")
        yield ConnectorTaskId(connector, number % 10 - 1) if number % 10 else connector


async def all_of(doing: Sequence[Awaitable[None]]) -> None:
    async def run(one: Awaitable[None]) -> None:
        await one

    async with asyncio.TaskGroup() as tasks:
        for one in doing:
            tasks.create_task(run(one))


def milliseconds(latencies_s: Sequence[float], quantile: float) -> float:
    ordered = sorted(latencies_s)
    return round(1000 * ordered[min(len(ordered) - 1, int(quantile * len(ordered)))], 2)
