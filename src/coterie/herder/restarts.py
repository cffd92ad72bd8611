"""Restarts that an operator orders: of a connector and its tasks (KIP-745), or of one task.

A restart of a connector is a line of the config log, which every worker reads, workers of Kafka Connect, too: each
worker restarts those jobs that are assigned to it. A restart of one task is an order to the worker that has the task.
"""

from coterie.herder import connectors, tasks
from coterie.herder.config_records import ConnectorRestartRequested
from coterie.herder.requests.orders import RestartConnectorTask
from coterie.herder.requests.refusals import RequestRefused, not_found_refusal
from coterie.herder.state import Herder, Turn


def restart_jobs_of_connector(turn: Turn, line: ConnectorRestartRequested) -> None:
    """A restart of a connector was requested: restart this worker's jobs of the connector. A line that is read while
    this worker starts is ignored, because all its jobs start anyway."""
    herder = turn.herder
    if not herder.lifecycle.is_runtime_open:
        return
    connectors.restart(turn, line.connector, only_failed=line.only_failed)
    if line.include_tasks:
        for task in herder.config.committed_tasks(line.connector):
            tasks.restart(turn, task, only_failed=line.only_failed)


def unknown_task_refusal(herder: Herder, order: RestartConnectorTask) -> RequestRefused | None:
    """The refusal of an order that names an unknown connector or task, with Connect's messages; None for a known
    task."""
    task = order.task
    if herder.config.connector(task.connector) is None:
        return not_found_refusal(f"Unknown connector: {task.connector}")
    return not_found_refusal(f"Unknown task: {task}") if herder.config.task_config(task) is None else None
