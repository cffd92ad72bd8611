"""The metrics of a worker in Prometheus's text format.

Kafka Connect's metrics have the names and labels that exporters for Prometheus give them: the names of group and
attribute, joined by underscores; a text is a metric of the value 1 with the text as a label. A metric of Connect is
here only if the worker has its value and the value means the same as in Connect. ``docs/metrics.md`` lists all metrics;
tests compare that page with a worker's response.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from coterie.herder.requests.views import WorkerView
from coterie.herder.status_records import Status
from coterie.nouns.ids import GroupId
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId
from coterie.nouns.member_state import MemberState
from coterie.nouns.states import JobState

GROUP_LABEL = "kafka_connect_cluster_id"
"""The label with the id of the worker's group, which every metric has: dashboards select a Connect cluster by it."""
COUNTED_TASK_STATES = (
    JobState.DESTROYED,
    JobState.FAILED,
    JobState.PAUSED,
    JobState.RESTARTING,
    JobState.RUNNING,
    JobState.UNASSIGNED,
)
"""The states of tasks that Connect counts for each connector."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerMetricsSnapshot:
    """The values of all metrics of a worker at one time. ``lost_threads_max`` is a setting, ``longest_stall_ms`` counts
    since the worker was created, and the types and statuses are those of jobs on this worker."""

    group_id: GroupId
    connect_version: str
    """The version of Kafka Connect whose REST API this worker has."""
    coterie_version: str
    started_at_ms: int
    """When the worker was created, in milliseconds since the Unix epoch."""
    longest_stall_ms: float
    """The longest stall of the event loop so far, in ms."""
    lost_threads_max: int
    """The value of ``plugin.lost.threads.max``."""
    worker_view: WorkerView
    connector_types: Mapping[ConnectorName, str]
    """``source``, ``sink`` or ``unknown``, for each connector that is assigned to the worker and still exists."""
    connector_statuses: Mapping[ConnectorName, Status]
    """The last status of each connector in ``connector_types`` that has a status."""
    task_statuses: Mapping[ConnectorTaskId, Status]
    """The last status of each task in ``worker_view.tasks`` that has one."""


def encode_metrics(snapshot: WorkerMetricsSnapshot) -> bytes:
    """The metrics in Prometheus's text format, version 0.0.4. With thousands of tasks this takes longer than an event
    loop may stall."""
    registry = CollectorRegistry()
    registry.register(_WorkerCollector(snapshot))
    return generate_latest(registry)


class _WorkerCollector(Collector):
    """Makes Prometheus's metrics from one snapshot of a worker."""

    def __init__(self, snapshot: WorkerMetricsSnapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        """The metrics, each with its samples."""
        yield from self._app_info_metrics()
        yield from self._worker_metrics()
        yield from self._task_count_metrics()
        yield from self._rebalance_metrics()
        yield from self._connector_metrics()
        yield from self._task_metrics()
        yield from self._coterie_metrics()

    # -- Connect's metrics --------------------------------------------------------------------------------------------

    def _app_info_metrics(self) -> Iterator[Metric]:
        snapshot = self._snapshot
        yield self._gauge(
            "kafka_connect_app_info_version_info",
            "The version of Kafka Connect whose API the worker has, and the version of Coterie",
            [((snapshot.connect_version, snapshot.coterie_version), 1)],
            labels=("version", "coterie_version"),
        )
        yield self._gauge(
            "kafka_connect_app_info_start_time_ms",
            "When the worker started, in milliseconds since the Unix epoch",
            [((), snapshot.started_at_ms)],
        )

    def _worker_metrics(self) -> Iterator[Metric]:
        worker = self._snapshot.worker_view
        yield self._gauge(
            "kafka_connect_connect_worker_metrics_connector_count",
            "The number of connectors that are assigned to the worker",
            [((), len(worker.assigned.connectors))],
        )
        yield self._gauge(
            "kafka_connect_connect_worker_metrics_task_count",
            "The number of tasks that are assigned to the worker or still run on it",
            [((), len(worker.tasks))],
        )

    def _task_count_metrics(self) -> Iterator[Metric]:
        """The number of tasks of each connector on this worker, and of those in each state."""
        tasks = [view.task for view in self._snapshot.worker_view.tasks]
        totals = Counter(task.connector for task in tasks)
        statuses = self._snapshot.task_statuses
        counts = Counter((task.connector, statuses[task].state) for task in tasks if task in statuses)
        prefix = "kafka_connect_connect_worker_metrics_connector"
        yield self._gauge(
            f"{prefix}_total_task_count",
            "The number of tasks of the connector on the worker",
            (((connector,), total) for connector, total in totals.items()),
            labels=("connector",),
        )
        for state in COUNTED_TASK_STATES:
            yield self._gauge(
                f"{prefix}_{state.lower()}_task_count",
                f"The number of tasks of the connector on the worker whose status is {state}",
                (((connector,), counts[connector, state]) for connector in totals),
                labels=("connector",),
            )

    def _rebalance_metrics(self) -> Iterator[Metric]:
        worker = self._snapshot.worker_view
        prefix = "kafka_connect_connect_worker_rebalance_metrics"
        yield self._gauge(
            f"{prefix}_connect_protocol_info",
            "The protocol of the group",
            [((worker.protocol.upper(),), 1)] if worker.protocol is not None else [],
            labels=("connect_protocol",),
        )
        yield self._gauge(
            f"{prefix}_leader_name_info",
            "The URL of the group's leader",
            [((worker.leader_url,), 1)] if worker.leader_url else [],
            labels=("leader_name",),
        )
        yield self._gauge(
            f"{prefix}_epoch", "The generation of the worker's last assignment", [((), worker.generation)]
        )
        is_rebalancing = not worker.has_current_assignment or worker.state is not MemberState.STABLE
        yield self._gauge(
            f"{prefix}_rebalancing", "1 while the worker rebalances or is not a member, else 0", [((), is_rebalancing)]
        )
        if worker.completed_rebalances is not None:
            completed = CounterMetricFamily(
                f"{prefix}_completed_rebalances_total",
                "The number of rebalances that have ended with an assignment since the worker started",
                labels=(GROUP_LABEL,),
            )
            completed.add_metric((self._snapshot.group_id,), worker.completed_rebalances)
            yield completed

    def _connector_metrics(self) -> Iterator[Metric]:
        """The metrics of the connectors that are assigned to this worker."""
        types, statuses = self._snapshot.connector_types, self._snapshot.connector_statuses
        yield self._gauge(
            "kafka_connect_connector_metrics_connector_type_info",
            "The type of the connector: source or sink",
            (((name, type_), 1) for name, type_ in types.items() if type_ != "unknown"),
            labels=("connector", "connector_type"),
        )
        yield self._gauge(
            "kafka_connect_connector_metrics_connector_version_info",
            "The version of the connector's plug-in",
            (((name, status.version), 1) for name, status in statuses.items() if status.version is not None),
            labels=("connector", "connector_version"),
        )
        yield self._gauge(
            "kafka_connect_connector_metrics_status_info",
            "The status of the connector",
            (((name, status.state.lower()), 1) for name, status in statuses.items()),
            labels=("connector", "status"),
        )

    def _task_metrics(self) -> Iterator[Metric]:
        """The metrics of the tasks on this worker."""
        statuses = self._snapshot.task_statuses
        yield self._gauge(
            "kafka_connect_connector_task_metrics_status_info",
            "The status of the task",
            (((task.connector, str(task.task), status.state.lower()), 1) for task, status in statuses.items()),
            labels=("connector", "task", "status"),
        )

    # -- Coterie's own metrics ----------------------------------------------------------------------------------------

    def _coterie_metrics(self) -> Iterator[Metric]:
        snapshot, worker = self._snapshot, self._snapshot.worker_view
        yield self._gauge(
            "coterie_plugin_lost_threads",
            "The number of the worker's threads that hang in plug-ins now",
            [((), worker.lost_threads)],
        )
        yield self._gauge(
            "coterie_plugin_lost_threads_max",
            "The value of plugin.lost.threads.max: with more lost threads the worker takes no new jobs",
            [((), snapshot.lost_threads_max)],
        )
        yield self._gauge(
            "coterie_worker_takes_new_jobs",
            "0 if too many threads hung in plug-ins at the same time, until the worker is restarted, else 1",
            [((), worker.no_new_jobs_reason is None)],
        )
        yield self._gauge("coterie_worker_draining", "1 while the worker drains, else 0", [((), worker.draining)])
        yield self._gauge(
            "coterie_event_loop_longest_stall_ms",
            "The longest stall of the worker's event loop since the worker started",
            [((), snapshot.longest_stall_ms)],
        )

    def _gauge(
        self,
        name: str,
        documentation: str,
        samples: Iterable[tuple[Sequence[str], float]],
        *,
        labels: Sequence[str] = (),
    ) -> Metric:
        """The metric ``name`` with ``samples``: each is the values of ``labels``, in their order, and the value of the
        metric. Every sample also has the label :data:`GROUP_LABEL`."""
        family = GaugeMetricFamily(name, documentation, labels=(GROUP_LABEL, *labels))
        for label_values, value in samples:
            family.add_metric((self._snapshot.group_id, *label_values), value)
        return family
