"""Workers with simulated tasks, put together as ``coterie worker`` does it, that begin anew when they are told to.

Broker, group and REST are real. What executing the process would do is done in this one: the next life of a worker gets
what the former one handed on, as bytes.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from coterie.cli.workers import compose, relaunch
from coterie.config.worker import WorkerSettings
from coterie.herder.seams import TaskRuntime
from coterie.nouns.membership import PlaceHandover
from coterie.rest.server import bind
from coterie.worker.worker import Worker
from tests.ports import free_port
from tests.worker.simulated import SimulatedRuntime, until

CONNECTOR = {"connector.class": "SimulatedSource"}


@dataclass
class Lived:
    """One worker over all of its lives; ``runtimes`` has one for each."""

    name: str
    url: str = ""
    worker: Worker | None = None
    runtimes: list[SimulatedRuntime] = field(default_factory=list)
    places: list[PlaceHandover | None] = field(default_factory=list)
    """What each life but the first began with."""
    between: Callable[[], Awaitable[None]] | None = None
    """Awaited when one life is over and the next has not begun."""
    run: "asyncio.Task[int] | None" = None

    @property
    def running(self) -> set[str]:
        return {str(task) for task in self.runtimes[-1].running} if self.runtimes else set()

    @property
    def starts(self) -> list[str]:
        return [str(task) for runtime in self.runtimes for task in runtime.starts]

    def known(self, worker: Worker) -> None:
        self.worker = worker


class Lives:
    """The workers of one group on one broker; as a context manager it leaves none behind."""

    def __init__(self, bootstrap: str, *, group: str, properties: Mapping[str, str]) -> None:
        self.workers: list[Lived] = []
        self.client = httpx.AsyncClient(timeout=60)
        self._properties = {
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

    async def __aenter__(self) -> "Lives":
        return self

    async def __aexit__(self, *_: object) -> None:
        for one in self.workers:
            if one.worker is not None:
                one.worker.order_shutdown("the test is over")
        async with asyncio.timeout(60):
            for one in self.workers:
                assert one.run is not None
                await one.run
        await self.client.aclose()

    async def start(self, *names: str, properties: Mapping[str, str] | None = None) -> list[Lived]:
        """Workers of these names; returned when all are in the group."""
        begun = []
        for name in names:
            one = Lived(name=name)
            one.run = asyncio.create_task(self._live(one, {**self._properties, **(properties or {})}))
            self.workers.append(one)
            begun.append(one)
        await until(self.is_quiet, within_s=60)
        return begun

    async def _live(self, one: Lived, properties: Mapping[str, str]) -> int:
        port = free_port()
        handed: bytes | None = None
        while True:
            address = {"listeners": f"http://127.0.0.1:{port}", "worker.name": one.name}
            settings = WorkerSettings.from_properties({**properties, **address})
            runtime = SimulatedRuntime()
            one.runtimes.append(runtime)

            def runtime_of(_: WorkerSettings, __: str, ___: Path, runtime: TaskRuntime = runtime) -> TaskRuntime:
                return runtime

            with bind(*settings.listener) as listener:
                one.url = f"http://127.0.0.1:{port}"
                member = compose.member_settings(settings, listener)
                place = None if handed is None else relaunch.decode(member, handed)
                if len(one.runtimes) > 1:
                    one.places.append(place)
                ended = await compose.serve_life(settings, listener, runtime_of, made=one.known, place=place)
            if not ended.restarts:
                return ended.code
            handed = None if ended.place is None else relaunch.encode(member, ended.place)
            if one.between is not None:
                await one.between()

    # -- what they say ------------------------------------------------------------------------------------------------

    @property
    def living(self) -> list[Lived]:
        return [one for one in self.workers if one.run is not None and not one.run.done()]

    async def view(self, one: Lived) -> dict[str, Any] | None:
        """``/coterie/worker``; None when it does not answer, or not yet."""
        return await self.ask_for(one, "/coterie/worker")

    async def group(self) -> dict[str, Any] | None:
        return await self.ask_for(self.living[0], "/coterie/group")

    async def ask_for(self, one: Lived, path: str) -> dict[str, Any] | None:
        try:
            answer = await self.client.get(one.url + path)
        except httpx.HTTPError:
            return None
        shown: dict[str, Any] = answer.json()
        return shown if answer.is_success else None

    async def is_quiet(self) -> bool:
        """All living workers are in one generation, have settled, and run exactly what they have."""
        views = [await self.view(one) for one in self.living]
        groups = [view["group"] for view in views if view is not None]
        if len(groups) < len(views) or len({group["generation"] for group in groups}) != 1:
            return False
        return all(group["settled"] for group in groups) and all(
            len(view["assigned"]["tasks"]) == len(one.running)
            for one, view in zip(self.living, views, strict=True)
            if view is not None
        )

    async def create(self, name: str, tasks: int) -> None:
        config = {**CONNECTOR, "tasks.max": str(tasks)}
        answer = await self.client.post(f"{self.living[0].url}/connectors", json={"name": name, "config": config})
        assert answer.status_code == 201, answer.text

        async def all_run() -> bool:
            return len(self.running()) == tasks and await self.is_quiet()

        await until(all_run, within_s=60)

    def running(self) -> list[str]:
        return sorted(task for one in self.workers for task in one.running)

    def starts(self) -> Counter[str]:
        return Counter(task for one in self.workers for task in one.starts)
