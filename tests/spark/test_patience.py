"""Time limits of a task: for a server, and for a batch that does not end."""

import asyncio
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from coterie.herder.requests.reads import ConnectorStatus, DescribeConnectorStatus
from coterie.herder.restart_policy import DEFAULT_RESTART_POLICY, RestartPolicy
from coterie.herder.seams import TaskHaltedWithoutOrder
from coterie.nouns.errors import ConfigError, UnreachableError, WorldError
from coterie.nouns.jobs import ConnectorName
from coterie.spark.checkpoint import take_over_checkpoint
from coterie.spark.fence import Fence, FencedError
from coterie.spark.pipeline import Pipeline
from coterie.spark.prefixed_config import PrefixedConfig
from coterie.spark.query import TakenOverInSinkError, TaskQuery
from coterie.spark.runtime import SparkTaskRuntime
from coterie.spark.sinks.files import FileSink
from coterie.spark.smt.registry import TYPE_AND_SIDE_BY_NAME
from coterie.spark.smt.transform_type import KeyOrValue, TransformType, make_transform_config_key
from coterie.spark.task_timeouts import Outage, TaskTimeoutsAndRestarts
from tests.spark.conftest import Rig, rows_of, write_file
from tests.worker.fleet import Fleet
from tests.worker.simulated import until


def delays(timeout_ms: int, delay_max_ms: int, attempts: int) -> list[float | None]:
    """The pauses in milliseconds before attempts that all fail at once."""
    patience = TaskTimeoutsAndRestarts(
        retry_timeout_ms=timeout_ms,
        retry_delay_max_ms=delay_max_ms,
        batch_timeout_ms=None,
        restart_policy=DEFAULT_RESTART_POLICY,
    )
    now, found = 100.0, list[float | None]()
    for attempt in range(attempts):
        at = patience.next_restart_at_s(Outage(began_at_s=100.0, planned_restart_count=attempt), now)
        found.append(None if at is None else round((at - now) * 1000))
        now = now if at is None else at
    return found


def test_pauses_double_from_300_ms_to_the_maximum_and_end_at_the_time_limit() -> None:
    assert delays(0, 60_000, 2) == [None, None]
    assert delays(5_000, 60_000, 5) == [300, 600, 1200, 2400, None]
    assert delays(5_000, 1_000, 7) == [300, 600, 1000, 1000, 1000, 1000, None]
    assert delays(-1, 60_000, 100)[-1] == 60_000


def test_retry_keys_are_connects_and_the_default_batch_timeout_is_an_hour() -> None:
    assert TaskTimeoutsAndRestarts.of({}) == TaskTimeoutsAndRestarts(
        retry_timeout_ms=0,
        retry_delay_max_ms=60_000,
        batch_timeout_ms=3_600_000,
        restart_policy=RestartPolicy(restarts_max=3, delay_max_ms=60_000),
    )
    keys = {
        "errors.retry.timeout": "-1",
        "errors.retry.delay.max.ms": "7",
        "task.batch.timeout.ms": "0",
        "errors.restart.max": "-1",
        "errors.restart.delay.max.ms": "8",
    }
    assert TaskTimeoutsAndRestarts.of(keys) == TaskTimeoutsAndRestarts(
        retry_timeout_ms=-1,
        retry_delay_max_ms=7,
        batch_timeout_ms=None,
        restart_policy=RestartPolicy(restarts_max=-1, delay_max_ms=8),
    )
    wrong = (
        ("errors.retry.timeout", "-2"),
        ("errors.retry.delay.max.ms", "0"),
        ("task.batch.timeout.ms", "-1"),
        ("errors.restart.max", "-2"),
        ("errors.restart.delay.max.ms", "0"),
    )
    for name, value in wrong:
        with pytest.raises(ConfigError, match=name):
            TaskTimeoutsAndRestarts.of({name: value})


def endless(pids: Path) -> TransformType:
    """A transform with a Python function that never returns."""

    def never(row: int) -> int:
        with pids.open("a") as file:
            file.write(f"{os.getpid()}\n")
        while True:
            pass
        return row

    def apply(rows: DataFrame, side: KeyOrValue, settings: PrefixedConfig) -> DataFrame:
        return rows.withColumn("row", F.udf(never, "bigint", useArrow=False)("row"))

    return TransformType(
        short_class_name="Endless",
        java_package=None,
        keys=(make_transform_config_key("any", "", "", is_optional=True),),
        apply=apply,
    )


ENDLESS = {"transforms": "t", "transforms.t.type": "Endless", "transforms.t.any": "x"}


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def pids(rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file to which the processes of the function that never returns write their ids."""
    # The first function of a session must wait for its interpreter to start.
    rig.session.range(1).select(F.udf(abs, "bigint", useArrow=False)("id")).collect()
    path = tmp_path / "pids"
    monkeypatch.setattr(
        "coterie.spark.transforms.TYPE_AND_SIDE_BY_NAME",
        {**TYPE_AND_SIDE_BY_NAME, "Endless": (endless(path), KeyOrValue.VALUE)},
    )
    monkeypatch.setattr("coterie.spark.transforms.TRANSFORM_TYPE_VALIDATOR", lambda _: None)
    yield path
    for pid in ids(path):
        assert not is_alive(pid), "the function still runs"


def ids(path: Path) -> list[int]:
    return [int(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.spark
@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.timeout(300)
async def test_a_batch_whose_function_never_returns_fails_only_its_task_and_ends_the_function(
    rig: Rig, tmp_path: Path, pids: Path
) -> None:
    neighbour = await rig.start(rig.config(tmp_path / "neighbour"), "neighbour")
    config = rig.config(tmp_path / "own", task__batch__timeout__ms="4000") | ENDLESS
    write_file(tmp_path / "own" / "in", "a.csv", [(1, 1.0, 1)])
    start = await rig.start(config, "endless")
    began = time.monotonic()
    died = await rig.end_of(start.task)
    assert time.monotonic() - began > 2
    assert (died.holds_checkpoint, died.can_restart) == (True, False)
    assert died.trace.startswith(
        "Batch 0 has not ended within task.batch.timeout.ms=4000. A function of a user may not"
    )
    assert ids(pids), "the function was never called"
    await rig.runtime.stop(start.task, grace_ms=0)
    await rig.wait_until(lambda: not any(is_alive(pid) for pid in ids(pids)))
    write_file(tmp_path / "neighbour" / "in", "a.csv", [(7, 1.0, 1)])
    await rig.wait_until(lambda: rows_of(tmp_path / "neighbour" / "out") == [7])
    await rig.runtime.stop(neighbour.task, grace_ms=10_000)
    assert not (tmp_path / "own" / "out" / "endless").exists()


@pytest.mark.spark
@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.timeout(300)
async def test_finishing_a_batch_fails_at_its_time_limit_or_a_shut_fence_with_the_reason(
    rig: Rig, tmp_path: Path, pids: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = rig.config(tmp_path, task__batch__timeout__ms="0") | ENDLESS
    write_file(tmp_path / "in", "a.csv", [(1, 1.0, 1)])
    start = await rig.start(config, "unfinished")
    folder = rig.spark_runtime.held_checkpoint(start.task)
    assert folder is not None
    await rig.wait_until(lambda: len(ids(pids)) == 1)
    await rig.runtime.stop(start.task, grace_ms=0)
    held = take_over_checkpoint(folder.path.parent)
    assert held.batch_id_in_flight == 0

    def query(fence: Fence, limit_ms: int) -> TaskQuery:
        limited = {**start.config, "task.batch.timeout.ms": str(limit_ms)}
        return TaskQuery(rig.session, start.task, Pipeline.of(limited, {}), held, fence)

    with pytest.raises(WorldError, match="Batch 0 has not ended within task"):
        await asyncio.to_thread(query(Fence(), 4000).run_batch_in_flight)
    assert len(ids(pids)) == 2, "the function was not called"
    fence = Fence()
    finishing = asyncio.create_task(asyncio.to_thread(query(fence, 0).run_batch_in_flight))
    await rig.wait_until(lambda: len(ids(pids)) == 3)
    fence.close_nowait()
    with pytest.raises(FencedError):
        await asyncio.wait_for(finishing, 30)
    await rig.wait_until(lambda: not any(is_alive(pid) for pid in ids(pids)))

    def raise_unreachable(*_: object) -> None:
        raise UnreachableError("the server cannot be reached")

    def later(*_: object) -> None:
        raise FencedError

    monkeypatch.setattr(FileSink, "stage", raise_unreachable)
    with pytest.raises(UnreachableError, match="the server cannot be reached"):
        await asyncio.to_thread(query(Fence(), 0).run_batch_in_flight)
    take_over = FileSink.take_over
    monkeypatch.setattr(FileSink, "take_over", raise_unreachable)
    with pytest.raises(UnreachableError, match="the server cannot be reached"):
        await asyncio.to_thread(query(Fence(), 0).run_batch_in_flight)
    monkeypatch.setattr(FileSink, "take_over", later)
    with pytest.raises(TakenOverInSinkError, match="A later start of the task has taken over in the sink"):
        await asyncio.to_thread(query(Fence(), 0).run_batch_in_flight)
    monkeypatch.setattr(FileSink, "take_over", take_over)
    monkeypatch.setattr(FileSink, "stage", later)
    with pytest.raises(TakenOverInSinkError, match="A later start of the task has taken over in the sink"):
        await asyncio.to_thread(query(Fence(), 0).run_batch_in_flight)
    assert rows_of(tmp_path / "out") == []


CONSOLE = {"sink.class": "SparkSink", "sink.format": "console"}
KAFKA = {
    "topic": "endless",
    "value.converter": "org.apache.kafka.connect.json.JsonConverter",
    "value.converter.schemas.enable": "false",
    "delivery.guarantee": "at-least-once",
    "topic.creation.default.partitions": "1",
    "topic.creation.default.replication.factor": "1",
}


def endless_config(rig: Rig, folder: Path, sink: Mapping[str, str], limit_ms: int) -> dict[str, str]:
    config = {key: value for key, value in rig.config(folder).items() if not key.startswith("sink.")}
    return {**config, **sink, **ENDLESS, "task.batch.timeout.ms": str(limit_ms)}


@pytest.mark.spark
@pytest.mark.processes
@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("sink", [CONSOLE, KAFKA], ids=["console", "kafka"])
async def test_a_batch_that_never_ends_fails_its_task_also_if_the_sink_computes_rows_at_the_commit(
    rig: Rig, lent: SparkTaskRuntime, fleet: Fleet, spark_jars: Path, tmp_path: Path, pids: Path, sink: dict[str, str]
) -> None:
    """These sinks compute the rows of a batch in the step that makes them visible."""
    servers = {"producer.override.bootstrap.servers": fleet.bootstrap} if sink is KAFKA else {}
    # Long enough for a busy machine to start the function's process within the limit.
    config = endless_config(rig, tmp_path / "own", sink | servers, 12_000)
    write_file(tmp_path / "own" / "in", "a.csv", [(1, 1.0, 1)])
    worker, _ = await fleet.start_on(lent)
    await until(lambda: worker.phase == "running", within_s=120)
    endless, neighbour = ConnectorName("endless"), ConnectorName("neighbour")
    await fleet.create(neighbour, 1, rig.config(tmp_path / "neighbour"))
    await fleet.create(endless, 1, config)
    traces: list[str] = []

    async def has_failed() -> bool:
        answer = await worker.ask(DescribeConnectorStatus(connector=endless))
        if isinstance(answer, ConnectorStatus):
            traces[:] = [str(status.trace) for _, status in answer.tasks if status.state == "FAILED"]
        return bool(traces)

    await until(has_failed, within_s=60)
    assert traces[0].startswith(
        "Batch 0 has not ended within task.batch.timeout.ms=12000. A function of a user may not"
    )
    assert ids(pids), "the function was never called"
    await rig.wait_until(lambda: not any(is_alive(pid) for pid in ids(pids)))
    write_file(tmp_path / "neighbour" / "in", "a.csv", [(7, 1.0, 1)])
    await rig.wait_until(lambda: rows_of(tmp_path / "neighbour" / "out") == [7])


@pytest.mark.spark
@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.timeout(300)
async def test_a_stop_and_a_halt_of_all_tasks_end_while_a_function_does_not_return(
    rig: Rig, tmp_path: Path, pids: Path
) -> None:
    write_file(tmp_path / "in", "a.csv", [(1, 1.0, 1)])
    start = await rig.start(endless_config(rig, tmp_path, CONSOLE, 0), "stuck")
    await rig.wait_until(lambda: len(ids(pids)) == 1)
    began = time.monotonic()
    await asyncio.wait_for(rig.runtime.stop(start.task, grace_ms=2000), 30)
    assert time.monotonic() - began >= 2, "the stop did not wait for the batch's grace period"
    await rig.runtime.start(start)
    await rig.wait_until(lambda: len(ids(pids)) == 2)
    stopping = asyncio.create_task(rig.runtime.stop(start.task, grace_ms=600_000))
    await rig.wait_until(lambda: rig.spark_runtime.held_checkpoint(start.task) is None)
    await asyncio.wait_for(asyncio.to_thread(rig.runtime.halt_all_tasks), 30)
    await asyncio.wait_for(stopping, 30)
    await rig.runtime.start(start)
    await rig.wait_until(lambda: len(ids(pids)) == 3)
    await asyncio.wait_for(asyncio.to_thread(rig.runtime.halt_all_tasks), 30)
    async with asyncio.timeout(30):
        while await rig.runtime.next_event() != TaskHaltedWithoutOrder(task=start.task):
            pass
    await rig.wait_until(lambda: not any(is_alive(pid) for pid in ids(pids)))
