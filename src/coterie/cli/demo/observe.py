"""Observes the demo's cluster: over REST, and in the folders that all workers share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pyarrow.parquet

from coterie.cli.demo.checker import written_files
from coterie.cli.demo.flights import CONNECTOR_NAMES, TASKS_PER_CONNECTOR
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId
from coterie.spark.checkpoint import LINEAGE_FILE, last_batch_id_in_log, safe_file_name, task_start_number_of

ALL_TASKS = tuple(
    ConnectorTaskId(ConnectorName(name), number) for name in CONNECTOR_NAMES for number in range(TASKS_PER_CONNECTOR)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """The worker of each running task, and the failed tasks, from the task statuses that a worker reports."""

    worker_id_by_running_task: Mapping[ConnectorTaskId, str] = field(default_factory=dict)
    """The ``worker_id`` (host:port) of each task that is RUNNING."""
    trace_by_failed_task: Mapping[ConnectorTaskId, str] = field(default_factory=dict)
    """The trace of each task that is FAILED."""

    @property
    def has_exactly_demo_tasks_running(self) -> bool:
        """Whether all tasks of the demo, and no others, are RUNNING."""
        return self.worker_id_by_running_task.keys() == set(ALL_TASKS)

    def running_tasks_of(self, worker_id: str) -> list[ConnectorTaskId]:
        """The RUNNING tasks of the worker, sorted."""
        return sorted(task for task, owner in self.worker_id_by_running_task.items() if owner == worker_id)


def read_placement(urls: Sequence[str]) -> Placement | None:
    """The placement that the first responding worker of ``urls`` reports; None when no worker responds."""
    for url in urls:
        response_json = _get_json_or_none(f"{url}/connectors?expand=status")
        if response_json is None:
            continue
        owners, failed = {}, {}
        for connector, expanded in response_json.items():
            for status in expanded["status"]["tasks"]:
                task = ConnectorTaskId(ConnectorName(connector), int(status["id"]))
                if status["state"] == "RUNNING":
                    owners[task] = status["worker_id"]
                elif status["state"] == "FAILED":
                    failed[task] = status.get("trace", "")
        return Placement(worker_id_by_running_task=owners, trace_by_failed_task=failed)
    return None


def is_leader(url: str) -> bool:
    """Whether the worker at ``url`` responds and reports that it leads its group."""
    response_json = _get_json_or_none(f"{url}/coterie/worker")
    return response_json is not None and bool(response_json["group"]["is_leader"])


def is_group_settled(urls: Sequence[str]) -> bool:
    """Whether all workers at ``urls`` respond and report the same generation, that their group is settled, and that no
    scheduled rebalance delay is left."""
    group_views = [
        response_json["group"] if (response_json := _get_json_or_none(f"{url}/coterie/worker")) else None
        for url in urls
    ]
    return all(group is not None and group["settled"] and not group["delay_left_ms"] for group in group_views) and (
        len({group["generation"] for group in group_views if group is not None}) == 1
    )


class CheckpointFinder:
    """Finds the checkpoints of the demo's tasks: ``<location>/<connector>-<incarnation>/gen-<k>/<task>/<start>-<id>/``.
    A task has none before its first start, and for a moment while a start takes its checkpoint over."""

    def __init__(self, location: Path) -> None:
        """``location`` is the folder of all checkpoints, ``checkpoint.location`` of the workers."""
        self._location = location

    def checkpoint_dir(self, task: ConnectorTaskId) -> Path | None:
        """The directory of the task's present checkpoint; None if there is none, or while a start takes it over."""
        folders = self._location.glob(f"{safe_file_name(task.connector)}-*/gen-*/{task.task}/*")
        return next((path for path in folders if path.name[:1].isdigit() and (path / LINEAGE_FILE).is_file()), None)

    def start_counts(self) -> dict[ConnectorTaskId, int]:
        """How often each task was started, on all workers together.

        Tasks that were never started, or whose checkpoint a start takes over just now, are left out.
        """
        checkpoint_dirs = {task: self.checkpoint_dir(task) for task in ALL_TASKS}
        return {task: task_start_number_of(path) for task, path in checkpoint_dirs.items() if path is not None}


class CommittedRowCounter:
    """Counts the output rows of committed batches: of each task, those up to the last batch in the folder ``commits``
    of its checkpoint."""

    def __init__(self, checkpoints: CheckpointFinder, output_folder: Path) -> None:
        self._checkpoints = checkpoints
        self._output_folder = output_folder
        # A committed file never changes, so its rows are counted only once.
        self._row_count_by_file: dict[Path, int] = {}

    def committed_row_count(self, connector: str) -> int:
        """The number of rows of ``connector`` that are committed now."""
        last_committed_batches: dict[str, int] = {}
        for number in range(TASKS_PER_CONNECTOR):
            task = ConnectorTaskId(ConnectorName(connector), number)
            checkpoint_dir = self._checkpoints.checkpoint_dir(task)
            if checkpoint_dir is not None and (batch := last_batch_id_in_log(checkpoint_dir / "commits")) is not None:
                last_committed_batches[str(task)] = batch
        row_count = 0
        for file in written_files(self._output_folder, connector):
            task_name, _, batch_id, _ = file.name.rsplit("-", 3)
            if int(batch_id) <= last_committed_batches.get(task_name, -1):
                row_count += self._count_rows_cached(file)
        return row_count

    def _count_rows_cached(self, file: Path) -> int:
        """The number of rows in ``file``, which is read once."""
        if file not in self._row_count_by_file:
            self._row_count_by_file[file] = _count_rows(file)
        return self._row_count_by_file[file]


# -- helpers ----------------------------------------------------------------------------------------------------------


def _count_rows(file: Path) -> int:
    """The number of rows in a Parquet or JSON file; 0 for another file."""
    match file.suffix:
        case ".parquet":
            rows: int = pyarrow.parquet.read_metadata(file).num_rows
            return rows
        case ".json":
            return file.read_bytes().count(b"\n")
        case _:
            return 0


def _get_json_or_none(url: str) -> Any:
    """The JSON at ``url``; None when there is no response, an error response, or a response that is not JSON."""
    try:
        # The URL is plain HTTP. verify=False saves reading the system's certificates: 0.1 s of CPU for each request.
        response = httpx.get(url, timeout=2, trust_env=False, verify=False)
        return response.json() if response.is_success else None
    except (httpx.HTTPError, ValueError):
        return None
