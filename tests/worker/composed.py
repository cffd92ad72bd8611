"""Whole workers in this process, put together as ``coterie worker`` does it: broker, group and REST are real.

What they run their tasks with is the test's to say. What each hears of its group, and every byte of the embedded
protocol that passes it, is kept.
"""

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from coterie.cli.workers.compose import kafka_coordinator, serve_life
from coterie.config.worker import WorkerSettings
from coterie.herder.messages import Exit
from coterie.herder.seams import Membership, TaskRuntime
from coterie.member.classic.machine import step
from coterie.member.classic.messages import (
    JoinRequest,
    JoinResponse,
    Request,
    Response,
    SyncRequest,
    SyncResponse,
    Timer,
)
from coterie.member.classic.state import Member, MemberSettings
from coterie.member.seams import Coordinator, Step
from coterie.nouns.ids import MemberId
from coterie.nouns.membership import Lost, MembershipEvent, PlaceHandover
from coterie.rest.leader import open_client
from coterie.rest.server import bind
from coterie.worker.membership import GroupMembership
from coterie.worker.worker import Worker

SESSION_MS = 6_000

_PROPERTIES: Mapping[str, str] = {
    "config.storage.replication.factor": "1",
    "offset.storage.replication.factor": "1",
    "offset.storage.partitions": "1",
    "status.storage.replication.factor": "1",
    "status.storage.partitions": "1",
    "listeners": "http://127.0.0.1:0",
    "session.timeout.ms": str(SESSION_MS),
    "heartbeat.interval.ms": "500",
    "rebalance.timeout.ms": "20000",
    "task.shutdown.graceful.timeout.ms": "2000",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """One member's bytes that passed a worker of ours."""

    what: str
    """``metadata`` or ``assignment``."""
    protocol: str
    """The name under which it was sent."""
    member: MemberId
    data: bytes


class Listening:
    """`Coordinator` that hands on, and keeps the bytes of the embedded protocol."""

    def __init__(self, coordinator: Coordinator[Request, Response], heard: list[Heard]) -> None:
        self._coordinator = coordinator
        self._heard = heard

    async def ask(self, request: Request) -> Response:
        response = await self._coordinator.ask(request)
        match request, response:
            case JoinRequest(), JoinResponse(protocol=protocol, members=members) if members is not None:
                self._keep("metadata", protocol, members)
            case JoinRequest(protocols=offered), JoinResponse(protocol=protocol, member_id=member) if protocol:
                self._keep("metadata", protocol, {member: dict(offered)[protocol]})
            case SyncRequest(protocol=protocol, assignments=assignments, member_id=member), SyncResponse(
                assignment=own
            ):
                self._keep("assignment", protocol, dict(assignments) or {member: own})
            case _:
                pass
        return response

    async def close(self) -> None:
        await self._coordinator.close()

    def _keep(self, what: str, protocol: str, by_member: Mapping[MemberId, bytes]) -> None:
        self._heard += [
            Heard(what=what, protocol=protocol, member=member, data=data) for member, data in by_member.items() if data
        ]


class KeptMembership(GroupMembership[Member, Request, Response, Timer]):
    """Keeps the events that the herder takes."""

    def __init__(
        self,
        step: Step[Member, Request, Response, Timer],
        member: Member,
        coordinator: Coordinator[Request, Response],
        *,
        events: list[MembershipEvent],
    ) -> None:
        super().__init__(step, member, coordinator)
        self._taken = events

    async def next_event(self) -> MembershipEvent:
        event = await super().next_event()
        self._taken.append(event)
        return event


@dataclass
class Composed:
    """One worker."""

    name: str
    url: str
    runtime: TaskRuntime
    client: httpx.AsyncClient
    worker: Worker | None = None
    run: "asyncio.Task[Exit] | None" = None
    heard: list[Heard] = field(default_factory=list)
    events: list[MembershipEvent] = field(default_factory=list)

    def known(self, worker: Worker) -> None:
        self.worker = worker

    def membership_of(
        self, settings: WorkerSettings, member: MemberSettings, client_id: str, place: PlaceHandover | None
    ) -> Membership:
        """The membership of every worker, except that the embedded protocol and the events are kept."""
        coordinator = Listening(kafka_coordinator(settings, member, client_id), self.heard)
        return KeptMembership(step, Member(member, place), coordinator, events=self.events)

    @property
    def losses(self) -> list[MembershipEvent]:
        """How often it was thrown out of its group."""
        return [event for event in self.events if isinstance(event, Lost)]

    async def view(self) -> Mapping[str, Any] | None:
        """``/coterie/worker``, or None when it does not answer yet."""
        try:
            answer = await self.client.get(f"{self.url}/coterie/worker")
        except httpx.HTTPError:
            return None
        body: Mapping[str, Any] = answer.json()
        return body if answer.status_code == 200 else None

    async def stop(self) -> None:
        """As SIGTERM does; returns when it has ended."""
        assert self.worker is not None, f"{self.name} has not begun"
        assert self.run is not None
        self.worker.order_shutdown("the test says so")
        async with asyncio.timeout(60):
            assert (await self.run).code == 0


class ComposedFleet:
    """Workers of one group; what they leave open is closed with ``stack``."""

    def __init__(self, properties: Mapping[str, str], stack: AsyncExitStack) -> None:
        """``properties`` are for all of them, over what is quick in a test."""
        self.properties = {**_PROPERTIES, **properties}
        self.workers: list[Composed] = []
        self._stack = stack

    async def start(self, name: str, runtime: TaskRuntime, properties: Mapping[str, str]) -> Composed:
        """One more worker; returns at once."""
        client = open_client()
        self._stack.push_async_callback(client.aclose)
        settings = WorkerSettings.from_properties({**self.properties, **properties, "worker.name": name})
        listener = self._stack.enter_context(bind(*settings.listener))
        one = Composed(name=name, url=f"http://127.0.0.1:{listener.getsockname()[1]}", runtime=runtime, client=client)

        def runtime_of(settings: WorkerSettings, name: str, scratch: Path) -> TaskRuntime:
            return runtime

        one.run = asyncio.create_task(
            serve_life(settings, listener, runtime_of, made=one.known, membership_of=one.membership_of)
        )
        self.workers.append(one)
        return one

    async def stop(self) -> None:
        for one in self.workers:
            if one.worker is not None:
                one.worker.order_shutdown("the test is over")
        async with asyncio.timeout(60):
            for one in self.workers:
                assert one.run is not None
                await one.run
