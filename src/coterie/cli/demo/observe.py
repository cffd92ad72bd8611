"""Observes the demo's cluster: over REST, and in the folders that all workers share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pyarrow.parquet

from coterie.cli.demo.checker import written_files
from coterie.cli.demo.flights import CONNECTORS, TASKS
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId
from coterie.spark.checkpoint import LINEAGE, last_batch, safe_name, starts_of

ALL_TASKS = tuple(ConnectorTaskId(ConnectorName(name), number) for name in CONNECTORS for number in range(TASKS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The owner of each task, from the task statuses that the group reports; workers by their ``worker_id``."""

    owners: Mapping[ConnectorTaskId, str] = field(default_factory=dict)
    """The workers of the tasks that are RUNNING."""
    failed: Mapping[ConnectorTaskId, str] = field(default_factory=dict)
    """The traces of the tasks that are FAILED."""

    @property
    def is_whole(self) -> bool:
        return self.owners.keys() == set(ALL_TASKS)

    def tasks_of(self, worker_id: str) -> list[ConnectorTaskId]:
        return sorted(task for task, owner in self.owners.items() if owner == worker_id)


def placement(urls: Sequence[str]) -> Placement | None:
    """The placement that the first responding worker reports; None when no worker responds."""
    for url in urls:
        shown = _get(f"{url}/connectors?expand=status")
        if shown is None:
            continue
        owners, failed = {}, {}
        for name, expanded in shown.items():
            for status in expanded["status"]["tasks"]:
                task = ConnectorTaskId(ConnectorName(name), int(status["id"]))
                if status["state"] == "RUNNING":
                    owners[task] = status["worker_id"]
                elif status["state"] == "FAILED":
                    failed[task] = status.get("trace", "")
        return Placement(owners=owners, failed=failed)
    return None


def is_leader(url: str) -> bool:
    """Whether the worker at ``url`` reports that it leads its group."""
    shown = _get(f"{url}/coterie/worker")
    return shown is not None and bool(shown["group"]["is_leader"])


def is_settled(urls: Sequence[str]) -> bool:
    """Whether all these workers report the same generation, settled, and no scheduled rebalance delay."""
    groups = [shown["group"] if (shown := _get(f"{url}/coterie/worker")) else None for url in urls]
    return all(group is not None and group["settled"] and not group["delay_left_ms"] for group in groups) and (
        len({group["generation"] for group in groups if group is not None}) == 1
    )


class Checkpoints:
    """The tasks' checkpoints: ``LOCATION/<connector>-<incarnation>/gen-<k>/<task>/<start>-<id>/``."""

    def __init__(self, location: Path) -> None:
        self._location = location

    def holder(self, task: ConnectorTaskId) -> Path | None:
        """The directory with the task's present checkpoint; None if there is none, or a start just takes it over."""
        folders = self._location.glob(f"{safe_name(task.connector)}-*/gen-*/{task.task}/*")
        return next((path for path in folders if path.name[:1].isdigit() and (path / LINEAGE).is_file()), None)

    def starts(self) -> dict[ConnectorTaskId, int]:
        """How often each task was started, on all workers together; tasks that were never started are left out."""
        holders = {task: self.holder(task) for task in ALL_TASKS}
        return {task: starts_of(path) for task, path in holders.items() if path is not None}


class Progress:
    """Counts the rows of committed batches: batches in the output that are also in their task's ``commits``."""

    def __init__(self, checkpoints: Checkpoints, out: Path) -> None:
        self._checkpoints = checkpoints
        self._out = out
        # A committed file never changes, so its rows are counted only once.
        self._rows: dict[Path, int] = {}

    def committed(self, connector: str) -> int:
        """Rows of one connector that are committed now."""
        last: dict[str, int] = {}
        for number in range(TASKS):
            task = ConnectorTaskId(ConnectorName(connector), number)
            holder = self._checkpoints.holder(task)
            if holder is not None and (batch := last_batch(holder / "commits")) is not None:
                last[str(task)] = batch
        counted = 0
        for file in written_files(self._out, connector):
            task_name, _, batch_id, _ = file.name.rsplit("-", 3)
            if int(batch_id) <= last.get(task_name, -1):
                counted += self._count(file)
        return counted

    def _count(self, file: Path) -> int:
        if file not in self._rows:
            self._rows[file] = _rows_in(file)
        return self._rows[file]


# -- helpers ----------------------------------------------------------------------------------------------------------


def _rows_in(file: Path) -> int:
    match file.suffix:
        case ".parquet":
            rows: int = pyarrow.parquet.read_metadata(file).num_rows
            return rows
        case ".json":
            return file.read_bytes().count(b"\n")
        case _:
            return 0


def _get(url: str) -> Any:
    """The JSON at ``url``; None when there is no response, an error response, or a response that is not JSON."""
    try:
        # The URL is plain HTTP. verify=False saves reading the system's certificates: 0.1 s of CPU for each request.
        response = httpx.get(url, timeout=2, trust_env=False, verify=False)
        return response.json() if response.is_success else None
    except (httpx.HTTPError, ValueError):
        return None
