"""Whole workers in this process, put together as ``coterie worker`` does it: broker, group and REST are real.

Each test chooses the task runtime. The events that each worker receives from its group, and all bytes of the embedded
protocol that it sends and receives, are recorded.
"""

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from coterie.cli.workers.compose import run_worker_and_serve_rest
from coterie.cli.workers.memberships import MembershipSpec, make_classic_coordinator_client
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
from coterie.member.classic.state import Member
from coterie.member.seams import CoordinatorClient, Step
from coterie.nouns.ids import MemberId
from coterie.nouns.membership import MembershipEvent, MembershipLost
from coterie.rest.leader import open_http_client
from coterie.rest.server import open_listeners
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
class CapturedBytes:
    """One member's bytes that a worker of ours sent or received."""

    what: str
    """``metadata`` or ``assignment``."""
    protocol: str
    """The protocol's name in the request or response."""
    member: MemberId
    data: bytes


class CapturingCoordinator:
    """`CoordinatorClient` that forwards requests and records the bytes of the embedded protocol."""

    def __init__(self, coordinator: CoordinatorClient[Request, Response], captured: list[CapturedBytes]) -> None:
        self._coordinator = coordinator
        self._captured = captured

    async def ask(self, request: Request) -> Response:
        response = await self._coordinator.ask(request)
        match request, response:
            case JoinRequest(), JoinResponse(protocol=protocol, metadata_by_member=members) if members is not None:
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
        self._captured += [
            CapturedBytes(what=what, protocol=protocol, member=member, data=data)
            for member, data in by_member.items()
            if data
        ]


class RecordingMembership(GroupMembership[Member, Request, Response, Timer]):
    """Records the events that the herder reads."""

    def __init__(
        self,
        step: Step[Member, Request, Response, Timer],
        member: Member,
        coordinator: CoordinatorClient[Request, Response],
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
    admin_urls: list[str] = field(default_factory=list)
    captured: list[CapturedBytes] = field(default_factory=list)
    events: list[MembershipEvent] = field(default_factory=list)

    def on_started(self, worker: Worker) -> None:
        self.worker = worker

    def membership_of(self, spec: MembershipSpec) -> Membership:
        """The membership that every worker has, with the embedded protocol and the events recorded."""
        assert spec.inherited_handover is None, "no worker of these tests relaunches"
        coordinator = CapturingCoordinator(make_classic_coordinator_client(spec), self.captured)
        return RecordingMembership(step, Member(spec.member_settings), coordinator, events=self.events)

    @property
    def losses(self) -> list[MembershipEvent]:
        """One event for each time that the worker lost its membership."""
        return [event for event in self.events if isinstance(event, MembershipLost)]

    async def view(self) -> Mapping[str, Any] | None:
        """``/coterie/worker``, or None as long as the worker does not respond."""
        try:
            answer = await self.client.get(f"{self.url}/coterie/worker")
        except httpx.HTTPError:
            return None
        body: Mapping[str, Any] = answer.json()
        return body if answer.status_code == 200 else None

    async def stop(self) -> None:
        """Shut the worker down as SIGTERM does; returns when it has ended."""
        assert self.worker is not None, f"{self.name} has not started"
        assert self.run is not None
        self.worker.order_shutdown("the test stops it")
        async with asyncio.timeout(60):
            assert (await self.run).exit_code == 0


class ComposedFleet:
    """Workers of one group; ``stack`` closes what they leave open."""

    def __init__(self, properties: Mapping[str, str], stack: AsyncExitStack) -> None:
        """``properties`` apply to all workers; they override the short intervals of tests."""
        self.properties = {**_PROPERTIES, **properties}
        self.workers: list[Composed] = []
        self._stack = stack

    async def start(self, name: str, runtime: TaskRuntime, properties: Mapping[str, str]) -> Composed:
        """Start a worker; returns at once."""
        client = open_http_client()
        self._stack.push_async_callback(client.aclose)
        settings = WorkerSettings.from_properties({**self.properties, **properties, "worker.name": name})
        listeners = self._stack.enter_context(open_listeners(settings.rest_listeners, settings.rest_tls))
        admin = self._stack.enter_context(open_listeners(settings.rest_admin_listeners, settings.rest_tls))
        composed = Composed(name=name, url=f"http://127.0.0.1:{listeners[0].port}", runtime=runtime, client=client)
        composed.admin_urls = [f"http://127.0.0.1:{listener.port}" for listener in admin]

        def runtime_of(settings: WorkerSettings, name: str, scratch: Path) -> TaskRuntime:
            return runtime

        composed.run = asyncio.create_task(
            run_worker_and_serve_rest(
                settings,
                listeners,
                runtime_of,
                admin_listeners=admin,
                on_created=composed.on_started,
                membership_factory=composed.membership_of,
            )
        )
        self.workers.append(composed)
        return composed

    async def stop(self) -> None:
        for composed in self.workers:
            if composed.worker is not None:
                composed.worker.order_shutdown("the test is over")
        async with asyncio.timeout(60):
            for composed in self.workers:
                assert composed.run is not None
                await composed.run
