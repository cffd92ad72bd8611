"""``/metrics``: the worker's metrics for Prometheus."""

import asyncio

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from starlette.requests import Request
from starlette.responses import Response

from coterie import __version__
from coterie.herder.requests.views import DescribeWorker, WorkerView
from coterie.herder.status_records import Status
from coterie.nouns.ids import GroupId
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId
from coterie.rest.endpoints import Operation
from coterie.rest.herder_requests import HerderClient
from coterie.rest.metrics import WorkerMetricsSnapshot, encode_metrics
from coterie.rest.resources.server import CONNECT_VERSION
from coterie.rest.routing import Handlers


class MetricsResource:
    """The HTTP handlers of one worker for ``/metrics``."""

    def __init__(self, herder: HerderClient, *, group_id: GroupId) -> None:
        """``group_id`` is the id of the worker's group."""
        self._herder = herder
        self._group_id = group_id

    def handlers(self) -> Handlers:
        """The methods of this object that handle the requests, by operation of the endpoint."""
        return {Operation.DESCRIBE_METRICS: self.describe_metrics}

    async def describe_metrics(self, _: Request) -> Response:
        """The metrics of this worker, in Prometheus's text format."""
        snapshot = await self._read_metrics_snapshot()
        # On a thread: for thousands of tasks it takes longer than the event loop may stall.
        text = await asyncio.to_thread(encode_metrics, snapshot)
        return Response(text, media_type=CONTENT_TYPE_PLAIN_0_0_4)

    async def _read_metrics_snapshot(self) -> WorkerMetricsSnapshot:
        """The present values of all metrics of this worker.

        :raises HerderRefusal: when the herder refused a request: the worker is still starting, has ended, or has too
            many events to process.
        """
        worker = self._herder.worker
        view = await self._herder.ask(DescribeWorker(), WorkerView)
        tasks = frozenset(one.task for one in view.tasks)
        types: dict[ConnectorName, str] = {}
        connector_statuses: dict[ConnectorName, Status] = {}
        task_statuses: dict[ConnectorTaskId, Status] = {}
        connectors = sorted(view.assigned.connectors | {task.connector for task in tasks})
        async for piece in self._herder.describe_existing_connectors_in_pieces(connectors):
            for info, status in piece:
                if info.connector in view.assigned.connectors:
                    types[info.connector] = worker.connector_type(info.config)
                    if status is not None:
                        connector_statuses[info.connector] = status.status
                if status is not None:
                    task_statuses.update((task, one) for task, one in status.tasks if task in tasks)
        return WorkerMetricsSnapshot(
            group_id=self._group_id,
            connect_version=CONNECT_VERSION,
            coterie_version=__version__,
            started_at_ms=worker.started_at_ms,
            longest_stall_ms=worker.stall.longest_ms,
            lost_threads_max=worker.settings.lost_threads_max,
            worker_view=view,
            connector_types=types,
            connector_statuses=connector_statuses,
            task_statuses=task_statuses,
        )
