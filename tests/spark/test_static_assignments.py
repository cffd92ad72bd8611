"""KIP-987's nine-step rolling update over real Spark tasks: whole workers of one process that share one session."""

import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import pytest_asyncio

from coterie.spark import runtime as spark_runtime
from coterie.spark.runtime import SparkTaskRuntime
from coterie.spark.settings import SparkConfig
from tests.kafka.embedded_broker import EmbeddedBroker
from tests.processes.cluster import Feed
from tests.processes.rolling_update import RollingUpdate
from tests.spark.conftest import LentDriver, Rig
from tests.worker.composed import Composed, ComposedFleet

pytestmark = [
    pytest.mark.spark,
    pytest.mark.processes,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(600),
]


class Handle:
    def __init__(self, one: Composed) -> None:
        self.url = one.url
        self.end = one.stop


@pytest_asyncio.fixture(loop_scope="session")
async def update(
    rig: Rig,
    embedded_broker: EmbeddedBroker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    print_line: Callable[[str], None],
) -> AsyncIterator[RollingUpdate]:
    session = rig.spark_runtime._driver
    assert session is not None
    monkeypatch.setattr(spark_runtime, "start_driver", lambda *_, **__: LentDriver(session))
    monkeypatch.setattr(spark_runtime, "run_warm_up_queries", lambda *_: None)  # the session is warm
    group, checkpoints = f"static-{uuid.uuid4().hex[:8]}", tmp_path / "checkpoints"
    feed = Feed(tmp_path / "in")
    async with AsyncExitStack() as stack:
        fleet = ComposedFleet(
            {
                "bootstrap.servers": embedded_broker.bootstrap_servers,
                "group.id": group,
                "config.storage.topic": f"{group}-configs",
                "offset.storage.topic": f"{group}-offsets",
                "status.storage.topic": f"{group}-statuses",
                "scheduled.rebalance.max.delay.ms": "1000",
                "checkpoint.location": str(checkpoints),
            },
            stack,
        )

        async def start(name: str, properties: Mapping[str, str]) -> Handle:
            config = SparkConfig(
                checkpoint_location=checkpoints, scratch_folder=tmp_path / name, jvm_log_file=tmp_path / f"{name}.log"
            )
            return Handle(await fleet.start(name, SparkTaskRuntime(config), properties))

        feed.start()
        try:
            yield RollingUpdate(
                start=start, feed=feed, checkpoints=checkpoints, out=tmp_path / "out", print_line=print_line
            )
        finally:
            feed.stop()
            await fleet.stop()


@pytest.mark.soak
@pytest.mark.parametrize("protocol", ["eager", "compatible", "sessioned"])
async def test_a_rolling_update_to_static_workers_restarts_only_jobs_that_move(
    update: RollingUpdate, protocol: str
) -> None:
    await update.run(protocol)
