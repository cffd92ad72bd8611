"""KIP-987's nine-step rolling update over real processes, each worker with a separate Spark."""

import asyncio
import signal
from collections.abc import Callable, Mapping

import pytest

from tests.processes.cluster import Cluster, Feed, WorkerProcess
from tests.processes.rolling_update import RollingUpdate

pytestmark = [pytest.mark.soak, pytest.mark.processes, pytest.mark.spark, pytest.mark.timeout(3_600)]


class Handle:
    def __init__(self, worker: WorkerProcess) -> None:
        self._worker = worker

    @property
    def url(self) -> str:
        """:raises AssertionError: with the end of its log, if the worker has ended by itself."""
        assert self._worker.popen.poll() is None, self._worker.tail()
        return self._worker.url

    async def end(self) -> None:
        self._worker.kill_group(signal.SIGTERM)
        assert await asyncio.to_thread(self._worker.popen.wait, 60) == 0, self._worker.tail()


@pytest.mark.parametrize("protocol", ["eager", "compatible", "sessioned"])
async def test_a_rolling_update_of_processes_to_static_workers_restarts_only_jobs_that_move(
    cluster: Cluster, feed: Feed, protocol: str, print_line: Callable[[str], None]
) -> None:
    async def start(name: str, properties: Mapping[str, str]) -> Handle:
        return Handle(cluster.start_worker(name, properties=properties))

    cluster.start_broker()
    update = RollingUpdate(
        start=start, feed=feed, checkpoints=cluster.checkpoints, out=cluster.out, print_line=print_line
    )
    await update.run(protocol)
