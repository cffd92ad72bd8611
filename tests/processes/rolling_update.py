"""K987's nine-step rolling update, step by step, over workers that somebody else starts and ends.

It is told in the words of K987's test plan. After each step it looks at who has what, at how often each task has been
started (the number in its checkpoint's name), and at rows that were not there before.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import httpx

from coterie.rest.leader import open_client
from tests.processes.cluster import Feed
from tests.sink_files import batch_of, values_in, visible_files
from tests.worker.simulated import until

CONNECTORS = ("x", "y")
TASKS = 2
JOBS = frozenset({*CONNECTORS, *(f"{name}-{task}" for name in CONNECTORS for task in range(TASKS))})
"""Connectors and tasks by their names."""
STEPS = (
    "begin with a cluster of two workers",
    "create two connectors with two tasks each",
    "roll the cluster to static, one worker after the other",
    "add a static worker with a static connector assignment",
    "add a static worker with a static task assignment",
    "add a static worker with duplicate assignments",
    "remove a wildcard worker",
    "add the remaining static workers, two at once",
    "remove the last wildcard worker",
)
START_PATIENCE_S = 900
"""Until workers are in the group: one with a Spark of its own took 265 s with 0.4 cores for it and four queries."""
PATIENCE_S = 300
"""For whatever comes of it."""


class WorkerHandle(Protocol):
    """One life of a worker."""

    @property
    def url(self) -> str: ...

    async def end(self) -> None:
        """As SIGTERM does; returns when it is gone."""
        ...


Start = Callable[[str, Mapping[str, str]], Awaitable[WorkerHandle]]
"""Starts a worker of this name with these properties over all others'; returns at once."""


@dataclass
class RollingUpdate:
    """The cluster under test: its living workers by name, and what they write."""

    start: Start
    feed: Feed
    checkpoints: Path
    out: Path
    tell: Callable[[str], None]
    """Is told each step as it begins."""
    workers: dict[str, WorkerHandle] = field(default_factory=dict)
    lives: Counter[str] = field(default_factory=Counter)
    """How often each worker was started."""

    async def run(self, protocol: str) -> None:
        """All nine steps from a cluster that speaks ``protocol``."""
        async with open_client() as self.client:
            self._step(1)
            await self._begin(protocol)
            self._step(2)
            await self._create()
            self._step(3)
            await self._roll("w0", spares=protocol != "eager")
            await self._roll("w1", spares=protocol != "eager")
            assert (await self._views())["w1"]["group"]["protocol"] == "static"
            self._step(4)
            owners = await self._change(add={"s0": {"static.connectors": "x"}})
            assert of("s0", owners) == {"x"}
            self._step(5)
            owners = await self._change(add={"s1": {"static.tasks": "x-0"}})
            assert of("s1", owners) == {"x-0"}
            self._step(6)
            before = owners
            owners = await self._change(add={"s2": {"static.connectors": "x", "static.tasks": "x-0"}})
            assert owners == before, "whoever has a job and claims it keeps it"
            self._step(7)
            owners = await self._change(remove="w0")
            assert of("w1", owners) == JOBS - {"x", "x-0"}, "all that nobody claims"
            self._step(8)
            rest = {
                "s3": {"static.connectors": "y", "static.tasks": "x-1,y-0"},
                "s4": {"static.tasks": "y-1"},
            }
            before = owners = await self._change(add=rest)
            assert [of(name, owners) for name in ("w1", "s3", "s4")] == [set(), {"y", "x-1", "y-0"}, {"y-1"}]
            self._step(9)
            owners = await self._change(remove="w1")
            assert owners == before
            self.tell("  all nine are done; comparing all rows")
            await self._check_rows()

    def _step(self, number: int) -> None:
        self.tell(f"  step {number} of {len(STEPS)}: {STEPS[number - 1]}")

    async def _begin(self, protocol: str) -> None:
        for name in ("w0", "w1"):
            await self._add(name, {"connect.protocol": protocol})
        await until(self._all_are_members, within_s=START_PATIENCE_S)
        await until(self._is_settled, within_s=PATIENCE_S)

    async def _create(self) -> None:
        for name in CONNECTORS:
            config = {
                "connector.class": "FileSource",
                "tasks.max": str(TASKS),
                "trigger.interval.ms": "500",
                "source.format": "csv",
                "source.path": str(self.feed.folder),
                "source.schema": "row BIGINT, half DOUBLE",
                "source.option.header": "true",
                "sink.format": "json",
                "sink.path": str(self.out / name),
            }
            body = {"name": name, "config": config}
            answer = await self.client.post(f"{self.workers['w1'].url}/connectors", json=body)
            assert answer.status_code == 201, answer.text
        await self._owners_once_all_run()
        await self._flow()

    async def _roll(self, name: str, *, spares: bool) -> None:
        """Restart one worker as a static one. In a group that speaks eager every round stops everything."""
        before, starts = await self._owners_once_all_run(), self._starts()
        await self.workers.pop(name).end()
        await self._add(name, {"connect.protocol": "static"})
        await self._compare(before, starts, spares=spares)

    async def _change(self, *, add: Mapping[str, Mapping[str, str]] | None = None, remove: str = "") -> dict[str, str]:
        """Have workers come or one go; who has which job when all has settled."""
        before, starts = await self._owners_once_all_run(), self._starts()
        for name, claims in (add or {}).items():
            await self._add(name, claims)
        if remove:
            await self.workers.pop(remove).end()
        return await self._compare(before, starts)

    async def _compare(
        self, before: Mapping[str, str], starts: Mapping[str, int], *, spares: bool = True
    ) -> dict[str, str]:
        owners = await self._owners_once_all_run()
        now = self._starts()
        stayed = {job for job in starts if owners[job] == before[job]}
        if spares:
            assert {job: now[job] for job in stayed} == {job: starts[job] for job in stayed}, (
                "stopped, and did not move"
            )
        assert all(now[job] > starts[job] for job in starts.keys() - stayed)
        await self._flow()
        return owners

    # -- what is seen -------------------------------------------------------------------------------------------------

    async def _add(self, name: str, properties: Mapping[str, str]) -> None:
        self.workers[name] = await self.start(name, properties)
        self.lives[name] += 1

    async def _views(self) -> dict[str, Mapping[str, Any]]:
        """What the living workers that answer say of themselves."""
        views = {}
        for name, worker in self.workers.items():
            try:
                answer = await self.client.get(f"{worker.url}/coterie/worker")
            except httpx.HTTPError:
                continue
            if answer.status_code == 200:
                views[name] = answer.json()
        return views

    async def _all_are_members(self) -> bool:
        views = await self._views()
        return views.keys() == self.workers.keys() and all(
            view["group"]["state"] != "UNJOINED" for view in views.values()
        )

    async def _is_settled(self) -> bool:
        groups = [view["group"] for view in (await self._views()).values()]
        generations = {group["generation"] for group in groups if group["settled"] and group["delay_left_ms"] == 0}
        return len(groups) == len(self.workers) and len(generations) == 1 and all(group["settled"] for group in groups)

    async def _owners_once_all_run(self) -> dict[str, str]:
        """Which life of which worker has each job, as soon as all have settled and every task runs once."""
        owners: dict[str, str] = {}

        async def is_so() -> bool:
            if not await self._is_settled():
                return False
            views = await self._views()
            has = [(job, f"{name} in life {self.lives[name]}") for name, view in views.items() for job in jobs_of(view)]
            runs = [task for view in views.values() for task in running(view)]
            owners.clear()
            owners.update(has)
            return len(has) == len(JOBS) and owners.keys() == JOBS and sorted(runs) == sorted(JOBS - {*CONNECTORS})

        try:
            await until(self._all_are_members, within_s=START_PATIENCE_S)
            await until(is_so, within_s=PATIENCE_S)
        except TimeoutError:
            raise AssertionError(await self._views()) from None
        return dict(owners)

    def _starts(self) -> dict[str, int]:
        """How often each task has been started."""
        return {
            f"{name}-{folder.name}": max(int(held.name.partition("-")[0]) for held in folder.iterdir() if held.is_dir())
            for name in CONNECTORS
            for folder in self.checkpoints.glob(f"{name}-*/gen-*/[0-9]*")
        }

    def _batches(self, name: str) -> dict[tuple[str, int], list[int]]:
        """The rows of each batch that a reader is told to read, by task and number."""
        found: dict[tuple[str, int], list[int]] = {}
        for path in visible_files(self.out / name):
            found.setdefault(batch_of(path), []).extend(values_in(path, "row"))
        return found

    def _batch_counts(self) -> dict[str, Counter[str]]:
        """How many batches of each connector and task are in place. To read them all takes seconds in the end."""
        batches = {name: {batch_of(path) for path in visible_files(self.out / name)} for name in CONNECTORS}
        return {name: Counter(task for task, _ in batches[name]) for name in CONNECTORS}

    async def _flow(self) -> None:
        """Until each task has put a batch in place that was not there yet."""
        before = self._batch_counts()

        def flows() -> bool:
            now = self._batch_counts()
            return all(
                len(now[name]) == TASKS and all(now[name][task] > before[name][task] for task in now[name])
                for name in CONNECTORS
            )

        await until(flows, within_s=PATIENCE_S)

    async def _check_rows(self) -> None:
        """None lost, none doubled, and of each task every batch has later rows than the one before it."""
        rows = await asyncio.to_thread(self.feed.stop)

        async def all_there() -> bool:
            # On a thread: the loop may be that of the workers, too.
            found = [await asyncio.to_thread(self._batches, name) for name in CONNECTORS]
            return all(sum(map(len, batches.values())) >= rows for batches in found)

        await until(all_there, within_s=PATIENCE_S)
        for name in CONNECTORS:
            batches = self._batches(name)
            assert sorted(row for batch in batches.values() for row in batch) == list(range(rows))
            last: dict[str, int] = {}
            for (task, number), batch in sorted(batches.items()):
                if batch:
                    assert min(batch) > last.get(task, -1), f"batch {number} of {name}'s task {task}"
                    last[task] = max(batch)


def of(worker: str, owners: Mapping[str, str]) -> set[str]:
    """The jobs of ``worker``, whichever life of it has them."""
    return {job for job, owner in owners.items() if owner.startswith(f"{worker} ")}


def jobs_of(view: Mapping[str, Any]) -> list[str]:
    assigned = view["assigned"]
    return [*assigned["connectors"], *(f"{task['connector']}-{task['task']}" for task in assigned["tasks"])]


def running(view: Mapping[str, Any]) -> list[str]:
    return [f"{task['connector']}-{task['task']}" for task in view["tasks"] if task["phase"] == "running"]
