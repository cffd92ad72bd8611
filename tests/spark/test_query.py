"""One run of a task: all connections of its sinks are closed, however the run ends."""

from collections.abc import Callable
from pathlib import Path

import pytest

from coterie.herder.seams import TaskSpec
from coterie.nouns.errors import UnreachableError
from coterie.spark.checkpoint import take_over_checkpoint
from coterie.spark.fence import Fence, FencedError
from coterie.spark.pipeline import Pipeline
from coterie.spark.query import TaskQuery
from coterie.spark.sinks.files import FileSink
from coterie.spark.sources.files import FileSource
from tests.spark.conftest import Rig, rows_of, write_file

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(180)]


class Connections:
    """Connections as a file sink could have them; :attr:`then` is called after the sink's take-over."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened = 0
        self.is_open = False
        self.then: Callable[[], None] = do_nothing
        monkeypatch.setattr(FileSink, "take_over", self.open)
        monkeypatch.setattr(FileSink, "close", self.close)

    def open(self, *_: object) -> None:
        self.opened += 1
        self.is_open = True
        self.then()

    def close(self, *_: object) -> None:
        self.is_open = False


def do_nothing() -> None:
    pass


def raise_unreachable() -> None:
    raise UnreachableError("the server cannot be reached")


async def stopped_task(rig: Rig, folder: Path, name: str) -> TaskSpec:
    """A stopped task, with a file that it has not read yet."""
    write_file(folder / "in", "a.csv", [(1, 1.0, 1)])
    start = await rig.start(rig.config(folder), name)
    await rig.wait_until(lambda: rows_of(folder / "out") == [1])
    await rig.runtime.stop(start.task, grace_ms=10_000)
    write_file(folder / "in", "b.csv", [(2, 1.0, 1)])
    return start


def query_of(rig: Rig, start: TaskSpec) -> TaskQuery:
    checkpoints = rig.spark_runtime._config.checkpoint_location
    held = take_over_checkpoint(checkpoints / f"{start.task.connector}-i" / "gen-1" / str(start.task.task))
    return TaskQuery(rig.session, start.task, Pipeline.of(start.config, {}), held, Fence())


async def test_an_interrupted_start_leaves_no_connection_open(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = await stopped_task(rig, tmp_path, "half-started")
    connections = Connections(monkeypatch)
    query = query_of(rig, start)
    connections.then = raise_unreachable
    for run in (query.start, query.run_batch_in_flight):
        with pytest.raises(UnreachableError, match="the server cannot be reached"):
            run()
        assert not connections.is_open
        assert query.is_server_unreachable
    assert connections.opened == 2

    # All tasks are halted while the sinks take over.
    query = query_of(rig, start)
    connections.then = query.fence.close_nowait
    with pytest.raises(FencedError):
        query.start()
    assert (connections.opened, connections.is_open) == (3, False)

    # The task is stopped while its source is read: another owner may have it now.
    query = query_of(rig, start)
    read = FileSource.read

    def slow(*arguments: object) -> object:
        query.stop(grace_ms=0)
        return read(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(FileSource, "read", slow)
    with pytest.raises(FencedError):
        query.start()
    assert connections.opened == 3, "a sink took over after the stop"
    assert rows_of(tmp_path / "out") == [1]


async def test_a_stop_closes_connections_even_if_the_last_batch_cannot_be_finished(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = await stopped_task(rig, tmp_path, "half-stopped")
    connections = Connections(monkeypatch)
    query = query_of(rig, start)
    query.start()
    await rig.wait_until(lambda: rows_of(tmp_path / "out") == [1, 2])
    assert connections.is_open
    # As if Spark had planned one more batch during the stop.
    monkeypatch.setattr("coterie.spark.query.find_batch_id_in_flight", lambda _: 2)
    connections.then = raise_unreachable
    query.stop(grace_ms=10_000)
    assert (connections.opened, connections.is_open) == (2, False)
    assert not query.is_active()
