"""KIP-987's nine-step rolling update, step by step, on workers that the caller starts and ends.

The steps have the names of KIP-987's test plan. After each step it checks the owner of each job, how often each task
was started (the number in its checkpoint's name), and that new rows arrive.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import httpx

from coterie.rest.leader import open_http_client
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
"""Limit for joining the group: a worker with its own Spark and four queries took 265 s on 0.4 cores."""
PATIENCE_S = 300
"""Limit for everything after that."""


class WorkerHandle(Protocol):
    """One running process of a worker."""

    @property
    def url(self) -> str: ...

    async def end(self) -> None:
        """End the process as SIGTERM does; returns when it has ended."""
        ...


Start = Callable[[str, Mapping[str, str]], Awaitable[WorkerHandle]]
"""Starts a worker of this name with these properties over those of all workers; returns at once."""


@dataclass
class RollingUpdate:
    """The cluster under test: its running workers by name, and the files that they write."""

    start: Start
    feed: Feed
    checkpoints: Path
    out: Path
    print_line: Callable[[str], None]
    """Called with the title of each step as it begins."""
    workers: dict[str, WorkerHandle] = field(default_factory=dict)
    start_counts: Counter[str] = field(default_factory=Counter)
    """How often each worker was started."""

    async def run(self, protocol: str) -> None:
        """Run all nine steps, beginning with a cluster that uses ``protocol``."""
        async with open_http_client() as self.client:
            self._step(1)
            await self._begin(protocol)
            self._step(2)
            await self._create()
            self._step(3)
            await self._roll("w0", keeps_unmoved=protocol != "eager")
            await self._roll("w1", keeps_unmoved=protocol != "eager")
            assert (await self._views())["w1"]["group"]["protocol"] == "static"
            self._step(4)
            owners = await self._change(add={"s0": {"static.connectors": "x"}})
            assert jobs_of_worker("s0", owners) == {"x"}
            self._step(5)
            owners = await self._change(add={"s1": {"static.tasks": "x-0"}})
            assert jobs_of_worker("s1", owners) == {"x-0"}
            self._step(6)
            before = owners
            owners = await self._change(add={"s2": {"static.connectors": "x", "static.tasks": "x-0"}})
            assert owners == before, "a job moved although its owner claims it"
            self._step(7)
            owners = await self._change(remove="w0")
            assert jobs_of_worker("w1", owners) == JOBS - {"x", "x-0"}, "w1 has all jobs without a claim"
            self._step(8)
            rest = {
                "s3": {"static.connectors": "y", "static.tasks": "x-1,y-0"},
                "s4": {"static.tasks": "y-1"},
            }
            before = owners = await self._change(add=rest)
            assert [jobs_of_worker(name, owners) for name in ("w1", "s3", "s4")] == [
                set(),
                {"y", "x-1", "y-0"},
                {"y-1"},
            ]
            self._step(9)
            owners = await self._change(remove="w1")
            assert owners == before
            self.print_line("  all nine are done; comparing all rows")
            await self._check_rows()

    def _step(self, number: int) -> None:
        self.print_line(f"  step {number} of {len(STEPS)}: {STEPS[number - 1]}")

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

    async def _roll(self, name: str, *, keeps_unmoved: bool) -> None:
        """Restart one worker as a static one. In an eager group every rebalance stops all tasks."""
        before, starts = await self._owners_once_all_run(), self._starts()
        await self.workers.pop(name).end()
        await self._add(name, {"connect.protocol": "static"})
        await self._compare(before, starts, keeps_unmoved=keeps_unmoved)

    async def _change(self, *, add: Mapping[str, Mapping[str, str]] | None = None, remove: str = "") -> dict[str, str]:
        """Add workers or remove one; returns the owner of each job when the group has settled."""
        before, starts = await self._owners_once_all_run(), self._starts()
        for name, claims in (add or {}).items():
            await self._add(name, claims)
        if remove:
            await self.workers.pop(remove).end()
        return await self._compare(before, starts)

    async def _compare(
        self, before: Mapping[str, str], starts: Mapping[str, int], *, keeps_unmoved: bool = True
    ) -> dict[str, str]:
        owners = await self._owners_once_all_run()
        now = self._starts()
        stayed = {job for job in starts if owners[job] == before[job]}
        if keeps_unmoved:
            assert {job: now[job] for job in stayed} == {job: starts[job] for job in stayed}, (
                "a task was stopped although it did not move"
            )
        assert all(now[job] > starts[job] for job in starts.keys() - stayed)
        await self._flow()
        return owners

    # -- observations -------------------------------------------------------------------------------------------------

    async def _add(self, name: str, properties: Mapping[str, str]) -> None:
        self.workers[name] = await self.start(name, properties)
        self.start_counts[name] += 1

    async def _views(self) -> dict[str, Mapping[str, Any]]:
        """The views of the running workers that respond."""
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
        """The owner of each job (worker and its start count), as soon as all have settled and every task runs once."""
        owners: dict[str, str] = {}

        async def is_so() -> bool:
            if not await self._is_settled():
                return False
            views = await self._views()
            has = [
                (job, f"{name} in start {self.start_counts[name]}")
                for name, view in views.items()
                for job in jobs_of(view)
            ]
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
        """How often each task was started."""
        return {
            f"{name}-{folder.name}": max(int(held.name.partition("-")[0]) for held in folder.iterdir() if held.is_dir())
            for name in CONNECTORS
            for folder in self.checkpoints.glob(f"{name}-*/gen-*/[0-9]*")
        }

    def _batches(self, name: str) -> dict[tuple[str, int], list[int]]:
        """The rows of each batch that a reader of the folder sees, by task and batch number."""
        found: dict[tuple[str, int], list[int]] = {}
        for path in visible_files(self.out / name):
            found.setdefault(batch_of(path), []).extend(values_in(path, "row"))
        return found

    def _batch_counts(self) -> dict[str, Counter[str]]:
        """How many batches of each connector and task are in place; reading their rows would take seconds."""
        batches = {name: {batch_of(path) for path in visible_files(self.out / name)} for name in CONNECTORS}
        return {name: Counter(task for task, _ in batches[name]) for name in CONNECTORS}

    async def _flow(self) -> None:
        """Wait until each task has put a new batch in place."""
        before = self._batch_counts()

        def flows() -> bool:
            now = self._batch_counts()
            return all(
                len(now[name]) == TASKS and all(now[name][task] > before[name][task] for task in now[name])
                for name in CONNECTORS
            )

        await until(flows, within_s=PATIENCE_S)

    async def _check_rows(self) -> None:
        """Check that no row is lost or doubled, and that each batch of a task has later rows than the one before it."""
        rows = await asyncio.to_thread(self.feed.stop)

        async def all_there() -> bool:
            # On a thread: the workers may run on this event loop, too.
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


def jobs_of_worker(worker: str, owners: Mapping[str, str]) -> set[str]:
    """The jobs of ``worker``, whatever its start count is."""
    return {job for job, owner in owners.items() if owner.startswith(f"{worker} ")}


def jobs_of(view: Mapping[str, Any]) -> list[str]:
    assigned = view["assigned"]
    return [*assigned["connectors"], *(f"{task['connector']}-{task['task']}" for task in assigned["tasks"])]


def running(view: Mapping[str, Any]) -> list[str]:
    return [f"{task['connector']}-{task['task']}" for task in view["tasks"] if task["phase"] == "running"]
