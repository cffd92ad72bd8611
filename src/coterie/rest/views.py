"""The herder's responses as JSON, with the fields of Kafka Connect's responses."""

from collections.abc import Callable, Mapping
from typing import TypeAlias

from coterie.herder.requests import (
    ConnectorInfo,
    ConnectorList,
    ConnectorStatus,
    TaskConfigs,
    TaskStatus,
    TaskView,
    WorkerView,
)
from coterie.herder.status_records import Status
from coterie.nouns.jobs import ConnectorTaskId, Jobs

Json = dict[str, object]
"""A JSON object."""
TypeOf: TypeAlias = Callable[[Mapping[str, str]], str]
"""A function that returns a connector's type for its config: ``source``, ``sink`` or ``unknown``."""


def info(connector: ConnectorInfo, type_of: TypeOf) -> Json:
    """The JSON of ``GET /connectors/{connector}``."""
    return {
        "name": connector.connector,
        "config": dict(connector.config),
        "tasks": [_task_id(task) for task in connector.tasks],
        "type": type_of(connector.config),
    }


def status(connector: ConnectorStatus, type_of: TypeOf) -> Json:
    """The JSON of ``GET /connectors/{connector}/status``."""
    return {
        "name": connector.connector,
        "connector": _status(connector.status),
        "tasks": [{"id": task.task, **_status(status)} for task, status in connector.tasks],
        "type": type_of(connector.config),
    }


def expanded(connectors: ConnectorList, expansions: frozenset[str], type_of: TypeOf) -> Json:
    """The JSON of ``GET /connectors?expand=info&expand=status``, by connector name; ``expansions`` contains the values
    of ``expand``. When statuses are requested, a connector without a status is left out, as in Connect: clients expect
    all requested parts in every entry."""
    shown: Json = {}
    for connector, its_status in connectors.connectors:
        entry: Json = {}
        if "status" in expansions:
            if its_status is None:
                continue
            entry["status"] = status(its_status, type_of)
        if "info" in expansions:
            entry["info"] = info(connector, type_of)
        shown[connector.connector] = entry
    return shown


def tasks(configs: TaskConfigs) -> list[Json]:
    """The JSON of ``GET /connectors/{connector}/tasks``."""
    return [{"id": _task_id(task), "config": dict(config)} for task, config in configs.tasks]


def task_status(one: TaskStatus) -> Json:
    """The JSON of ``GET /connectors/{connector}/tasks/{task}/status``."""
    return {"id": one.task.task, **_status(one.status)}


def worker(
    view: WorkerView, *, now_ms: int, version: str, boot_id: str, missing_jars: Mapping[str, str], stall_ms: float
) -> Json:
    """The JSON of ``GET /coterie/worker``, a path of Coterie: the state of a worker and its tasks.

    ``version`` is Coterie's; ``boot_id`` is the random id of the process start; ``missing_jars`` is
    :meth:`Worker.missing_jars`; ``stall_ms`` is the longest stall of the event loop so far, in ms; ``now_ms`` is the
    present time on the clock of ``view.deferred_until_ms``.
    """
    deferred = view.deferred_until_ms
    return {
        "worker_id": view.worker_id,
        "name": view.name,
        "url": view.url,
        "coterie_version": version,
        "life": boot_id,
        "draining": view.draining,
        "drain_waits": view.drain_wait_reason,
        "restarting": view.restarting,
        "group": {
            "member_id": view.member_id,
            "state": view.state.value,
            "protocol": view.protocol,
            "generation": view.generation,
            "settled": view.settled,
            "leader": view.leader,
            "leader_url": view.leader_url,
            "is_leader": view.settled and view.leader == view.member_id,
            "config_offset": view.config_offset,
            "delay_left_ms": 0 if deferred is None else max(deferred - now_ms, 0),
        },
        "assigned": jobs(view.assigned),
        "tasks": [_task_view(task) for task in view.tasks],
        "missing_jars": dict(missing_jars),
        "event_loop": {"longest_stall_ms": round(stall_ms, 1)},
    }


def jobs(some: Jobs) -> Json:
    """``some`` connectors and tasks, both sorted."""
    return {"connectors": sorted(some.connectors), "tasks": [_task_id(task) for task in sorted(some.tasks)]}


# -- helpers ----------------------------------------------------------------------------------------------------------


def _task_id(task: ConnectorTaskId) -> Json:
    return {"connector": task.connector, "task": task.task}


def _task_view(view: TaskView) -> Json:
    return {
        **_task_id(view.task),
        "phase": view.phase,
        "last_batch_id": view.batch_id,
        "input_rows": view.input_rows,
        "bad_records": view.bad_records,
        "starts": view.starts,
    }


def _status(status: Status) -> Mapping[str, object]:
    """State, worker, and, where there are any, version and trace of a connector or a task."""
    shown: Json = {"state": status.state.value, "worker_id": status.worker_id}
    if status.version is not None:
        shown["version"] = status.version
    if status.trace:
        shown["trace"] = status.trace
    return shown
