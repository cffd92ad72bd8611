"""The herder's responses as JSON, with the fields of Kafka Connect's responses."""

from collections.abc import Callable, Mapping
from typing import TypeAlias

from coterie.herder.requests.reads import (
    ConnectorInfo,
    ConnectorOffsets,
    ConnectorStatus,
    TaskConfigs,
    TaskStatus,
)
from coterie.herder.requests.views import TaskView, WorkerView
from coterie.herder.requests.writes import WrittenConnector
from coterie.herder.status_records import Status
from coterie.nouns.jobs import ConnectorTaskId, Jobs

Json = dict[str, object]
"""A JSON object."""
OFFSETS_ALTERED_MESSAGE = "The offsets for this connector have been altered successfully"
OFFSETS_RESET_MESSAGE = "The offsets for this connector have been reset successfully"
"""Connect's messages in the responses to a change and to a reset of a connector's offsets."""
ConnectorTypeOf: TypeAlias = Callable[[Mapping[str, str]], str]
"""A function that returns a connector's type for its config: ``source``, ``sink`` or ``unknown``."""


def connector_info_json(connector: ConnectorInfo, connector_type_of: ConnectorTypeOf) -> Json:
    """The JSON of ``GET /connectors/{connector}``."""
    return {
        "name": connector.connector,
        "config": dict(connector.config),
        "tasks": [_task_id_json(task) for task in connector.tasks],
        "type": connector_type_of(connector.config),
    }


def written_connector_json(written: WrittenConnector, connector_type_of: ConnectorTypeOf) -> Json:
    """The JSON of the response to a request that has created a connector or changed its config."""
    shown = connector_info_json(written.info, connector_type_of)
    return {**shown, "offsets_status": OFFSETS_ALTERED_MESSAGE} if written.has_set_offsets else shown


def offsets_json(offsets: ConnectorOffsets) -> Json:
    """The JSON of ``GET /connectors/{connector}/offsets``."""
    return {"offsets": [{"partition": offset.partition, "offset": offset.offset} for offset in offsets.offsets]}


def connector_status_json(connector: ConnectorStatus, connector_type_of: ConnectorTypeOf) -> Json:
    """The JSON of ``GET /connectors/{connector}/status``."""
    return {
        "name": connector.connector,
        "connector": _status_json(connector.status),
        "tasks": [{"id": task.task, **_status_json(status)} for task, status in connector.tasks],
        "type": connector_type_of(connector.config),
    }


def connector_json_unless_status_missing(
    info: ConnectorInfo, status: ConnectorStatus | None, expansions: frozenset[str], connector_type_of: ConnectorTypeOf
) -> Json | None:
    """The JSON of one connector in ``GET /connectors?expand=info&expand=status``; ``expansions`` contains the values of
    ``expand``. None when statuses are requested and the connector has none: it is left out, as in Connect, since
    clients expect all requested parts in every entry."""
    entry: Json = {}
    if "status" in expansions:
        if status is None:
            return None
        entry["status"] = connector_status_json(status, connector_type_of)
    if "info" in expansions:
        entry["info"] = connector_info_json(info, connector_type_of)
    return entry


def task_configs_json(configs: TaskConfigs) -> list[Json]:
    """The JSON of ``GET /connectors/{connector}/tasks``."""
    return [{"id": _task_id_json(task), "config": dict(config)} for task, config in configs.tasks]


def task_status_json(task_status: TaskStatus) -> Json:
    """The JSON of ``GET /connectors/{connector}/tasks/{task}/status``."""
    return {"id": task_status.task.task, **_status_json(task_status.status)}


def worker_json(
    view: WorkerView,
    *,
    now_ms: int,
    version: str,
    boot_id: str,
    missing_jars: Mapping[str, str],
    longest_stall_ms: float,
) -> Json:
    """The JSON of ``GET /coterie/worker``, a path of Coterie: the state of a worker and its tasks.

    ``version`` is Coterie's; ``boot_id`` is the random id of the process start; ``missing_jars`` is
    :meth:`Worker.missing_jars`; ``longest_stall_ms`` is the longest stall of the event loop so far, in ms; ``now_ms``
    is the present time on the clock of ``view.rebalance_delay_ends_ms``.
    """
    rebalance_delay_ends_ms = view.rebalance_delay_ends_ms
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
            "settled": view.has_current_assignment,
            "leader": view.leader,
            "leader_url": view.leader_url,
            "is_leader": view.has_current_assignment and view.leader == view.member_id,
            "config_offset": view.config_offset,
            "delay_left_ms": 0 if rebalance_delay_ends_ms is None else max(rebalance_delay_ends_ms - now_ms, 0),
        },
        "assigned": jobs_json(view.assigned),
        "tasks": [_task_phase_and_progress_json(task) for task in view.tasks],
        "missing_jars": dict(missing_jars),
        "plugin_threads": {"lost": view.lost_threads, "no_new_jobs": view.no_new_jobs_reason},
        "event_loop": {"longest_stall_ms": round(longest_stall_ms, 1)},
    }


def jobs_json(jobs: Jobs) -> Json:
    """The connectors and the tasks in ``jobs``, both sorted."""
    return {"connectors": sorted(jobs.connectors), "tasks": [_task_id_json(task) for task in sorted(jobs.tasks)]}


# -- helpers ----------------------------------------------------------------------------------------------------------


def _task_id_json(task: ConnectorTaskId) -> Json:
    return {"connector": task.connector, "task": task.task}


def _task_phase_and_progress_json(view: TaskView) -> Json:
    return {
        **_task_id_json(view.task),
        "phase": view.phase,
        "last_batch_id": view.batch_id,
        "input_rows": view.input_rows,
        "bad_records": view.bad_records,
        "starts": view.starts,
    }


def _status_json(status: Status) -> Mapping[str, object]:
    """The status of a connector or of a task as JSON: state and worker, and version and trace if the status has
    them."""
    status_json: Json = {"state": status.state.value, "worker_id": status.worker_id}
    if status.version is not None:
        status_json["version"] = status.version
    if status.trace:
        status_json["trace"] = status.trace
    return status_json
