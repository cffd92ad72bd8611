"""This worker's own state, for the REST API."""

from coterie.herder.group_protocol import protocol_of
from coterie.herder.requests.views import TaskView, WorkerView
from coterie.herder.state import Herder
from coterie.herder.work import (
    CheckpointClosed,
    Failed,
    FailedQueryHoldingCheckpoint,
    LocalTask,
    LocalTaskState,
    NotStarted,
    OwnershipUnconfirmed,
    Restarting,
    Running,
    Starting,
    StartRetryPending,
    Stopping,
)
from coterie.nouns.ids import GenerationId
from coterie.nouns.jobs import ConnectorTaskId


def worker_view(herder: Herder) -> WorkerView:
    """This worker's own state, as the REST API returns it."""
    protocol = protocol_of(herder)
    return WorkerView(
        worker_id=herder.settings.worker_id,
        name=herder.settings.display_name,
        url=herder.settings.url,
        state=herder.place.member_state,
        draining=herder.lifecycle.is_draining,
        drain_wait_reason=protocol.drain_unreportable_reason(herder) if herder.lifecycle.is_draining else None,
        restarting=herder.lifecycle.is_relaunching,
        protocol=protocol.protocol_name(herder),
        member_id=herder.place.member_id,
        generation=GenerationId(herder.place.epoch),
        has_current_assignment=herder.place.has_current_assignment,
        leader=herder.place.leader,
        leader_url=herder.place.leader_url,
        config_offset=herder.config.offset,
        assigned=herder.place.assigned,
        tasks=tuple(_task_view(task, herder.work.local_tasks[task]) for task in sorted(herder.work.local_tasks)),
        rebalance_delay_ends_ms=protocol.rebalance_delay_ends_ms(herder),
        completed_rebalances=protocol.completed_rebalances(herder),
        lost_threads=herder.lifecycle.lost_threads,
        no_new_jobs_reason=herder.lifecycle.no_new_jobs_reason,
    )


def _task_view(task: ConnectorTaskId, run: LocalTask) -> TaskView:
    return TaskView(
        task=task,
        phase=_task_phase(run.state),
        batch_id=run.batch_id,
        input_rows=run.input_rows,
        bad_records=run.bad_records,
        starts=run.starts,
    )


def _task_phase(state: LocalTaskState) -> str:
    """The task's state as the REST API names it (:attr:`TaskView.phase`)."""
    match state:
        case Stopping():
            return "stopping"
        case Starting() | StartRetryPending():
            return "starting"
        case Failed():
            return "failed"
        case OwnershipUnconfirmed():
            return "taken"
        case CheckpointClosed():
            return "closed"
        case (
            Running(has_progressed_since_start=has_progressed_since_start)
            | FailedQueryHoldingCheckpoint(has_progressed_since_start=has_progressed_since_start)
            | Restarting(has_progressed_since_start=has_progressed_since_start)
        ):
            return "running" if has_progressed_since_start else "started"
        case NotStarted():
            return "stopped"
