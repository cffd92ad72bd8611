"""Workers with simulated tasks, composed as ``coterie worker`` does it, that restart in the same process when ordered.

Broker, group and REST are real. A restart does not execute a new process: the next worker object of the same name gets
the encoded handover of the previous one.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from coterie.broker.server import Broker
from coterie.cli.workers import compose, relaunch
from coterie.config.worker import WorkerSettings
from coterie.herder.seams import TaskRuntime
from coterie.nouns.ids import GroupId
from coterie.nouns.membership import Handover
from coterie.rest.server import open_listeners
from coterie.worker.worker import Worker
from tests.ports import free_port
from tests.worker.simulated import SimulatedRuntime, until

CONNECTOR = {"connector.class": "SimulatedSource"}


def largest_heartbeat_gap_ms(broker: Broker, group: GroupId) -> int:
    """The longest time between two heartbeats of a member of ``group``, as the broker has measured it."""
    groups: Any = broker.stats()["groups"]
    largest: int = max(member["largest_gap_ms"] for member in groups[group].values())
    return largest


@dataclass
class WorkerProcess:
    """One worker over all of its restarts; ``runtimes`` has one runtime for each start."""

    name: str
    url: str = ""
    worker: Worker | None = None
    runtimes: list[SimulatedRuntime] = field(default_factory=list)
    handovers: list[Handover | None] = field(default_factory=list)
    """The handover of each restart."""
    before_relaunch: Callable[[], Awaitable[None]] | None = None
    """Awaited after the worker has ended and before it restarts."""
    run: "asyncio.Task[int] | None" = None

    @property
    def running(self) -> set[str]:
        return {str(task) for task in self.runtimes[-1].running} if self.runtimes else set()

    @property
    def starts(self) -> list[str]:
        return [str(task) for runtime in self.runtimes for task in runtime.starts]

    def on_started(self, worker: Worker) -> None:
        self.worker = worker


class ProcessFleet:
    """The workers of one group on one broker; as a context manager it ends them all."""

    def __init__(self, bootstrap: str, *, group: str, properties: Mapping[str, str]) -> None:
        self.group_id = GroupId(group)
        self.workers: list[WorkerProcess] = []
        self.client = httpx.AsyncClient(timeout=60)
        self.properties = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "config.storage.topic": f"{group}-configs",
            "config.storage.replication.factor": "1",
            "offset.storage.topic": f"{group}-offsets",
            "offset.storage.replication.factor": "1",
            "offset.storage.partitions": "1",
            "status.storage.topic": f"{group}-statuses",
            "status.storage.replication.factor": "1",
            "status.storage.partitions": "1",
            "checkpoint.location": "/nowhere",
            "session.timeout.ms": "60000",
            "rebalance.timeout.ms": "60000",
            "heartbeat.interval.ms": "500",
            **properties,
        }

    async def __aenter__(self) -> "ProcessFleet":
        return self

    async def __aexit__(self, *_: object) -> None:
        for process in self.workers:
            if process.worker is not None:
                process.worker.order_shutdown("the test is over")
        async with asyncio.timeout(60):
            for process in self.workers:
                assert process.run is not None
                await process.run
        await self.client.aclose()

    async def start(self, *names: str, properties: Mapping[str, str] | None = None) -> list[WorkerProcess]:
        """Start workers of these names; returns when all are in the group."""
        begun = [self.begin(name, properties) for name in names]
        await until(self.is_stable, within_s=60)
        return begun

    def begin(self, name: str, properties: Mapping[str, str] | None = None) -> WorkerProcess:
        """Start a worker of this name; returns at once."""
        process = WorkerProcess(name=name)
        process.run = asyncio.create_task(self._run(process, {**self.properties, **(properties or {})}))
        self.workers.append(process)
        return process

    async def _run(self, process: WorkerProcess, properties: Mapping[str, str]) -> int:
        port = free_port()
        handed: bytes | None = None
        while True:
            address = {"listeners": f"http://127.0.0.1:{port}", "worker.name": process.name}
            settings = WorkerSettings.from_properties({**properties, **address})
            runtime = SimulatedRuntime()
            process.runtimes.append(runtime)

            def runtime_of(_: WorkerSettings, __: str, ___: Path, runtime: TaskRuntime = runtime) -> TaskRuntime:
                return runtime

            with open_listeners(settings.rest_listeners, settings.rest_tls) as listeners:
                process.url = f"http://127.0.0.1:{port}"
                member = compose.member_settings(settings, listeners)
                place = None if handed is None else relaunch.decode_membership_if_same_member(member, handed)
                if len(process.runtimes) > 1:
                    process.handovers.append(place)
                ended = await compose.run_worker_and_serve_rest(
                    settings, listeners, runtime_of, on_created=process.on_started, membership_handover=place
                )
            if not ended.relaunches:
                return ended.exit_code
            handed = None if ended.handover is None else relaunch.encode_membership(member, ended.handover)
            if process.before_relaunch is not None:
                await process.before_relaunch()

    # -- views of the workers -----------------------------------------------------------------------------------------

    @property
    def running_workers(self) -> list[WorkerProcess]:
        return [process for process in self.workers if process.run is not None and not process.run.done()]

    async def view(self, process: WorkerProcess) -> dict[str, Any] | None:
        """``/coterie/worker``, or None if the worker does not respond (yet)."""
        return await self.ask_for(process, "/coterie/worker")

    async def group(self) -> dict[str, Any] | None:
        return await self.ask_for(self.running_workers[0], "/coterie/group")

    async def ask_for(self, process: WorkerProcess, path: str) -> dict[str, Any] | None:
        try:
            answer = await self.client.get(process.url + path)
        except httpx.HTTPError:
            return None
        shown: dict[str, Any] = answer.json()
        return shown if answer.is_success else None

    async def is_stable(self) -> bool:
        """Whether all workers are in one generation, have settled, and run exactly the tasks assigned to them."""
        views = [await self.view(process) for process in self.running_workers]
        groups = [view["group"] for view in views if view is not None]
        if len(groups) < len(views) or len({group["generation"] for group in groups}) != 1:
            return False
        return all(group["settled"] for group in groups) and all(
            len(view["assigned"]["tasks"]) == len(process.running)
            for process, view in zip(self.running_workers, views, strict=True)
            if view is not None
        )

    async def create(self, name: str, tasks: int) -> None:
        """Create a connector; returns when all its tasks run, beside all that ran before."""
        before = len(self.running())
        config = {**CONNECTOR, "tasks.max": str(tasks)}
        answer = await self.client.post(
            f"{self.running_workers[0].url}/connectors", json={"name": name, "config": config}
        )
        assert answer.status_code == 201, answer.text

        async def all_run() -> bool:
            return len(self.running()) == before + tasks and await self.is_stable()

        await until(all_run, within_s=60)

    def running(self) -> list[str]:
        return sorted(task for process in self.workers for task in process.running)

    def starts(self) -> Counter[str]:
        return Counter(task for process in self.workers for task in process.starts)
