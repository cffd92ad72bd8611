"""One run of a task: the connections that its sinks open are closed, however the run ends."""

from collections.abc import Callable
from pathlib import Path

import pytest

from coterie.herder.seams import TaskStart
from coterie.nouns.errors import UnreachableError
from coterie.spark.checkpoint import take_over
from coterie.spark.fence import Fence, FencedError
from coterie.spark.pipeline import Pipeline
from coterie.spark.query import TaskQuery
from coterie.spark.sinks.files import FileSink
from coterie.spark.sources.files import FileSource
from tests.spark.conftest import Rig, rows_of, write_file

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(180)]


class Connections:
    """What a file sink would have open if it had connections; :attr:`then` is called once it has taken over."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened = 0
        self.is_open = False
        self.then: Callable[[], None] = nothing
        monkeypatch.setattr(FileSink, "take_over", self.open)
        monkeypatch.setattr(FileSink, "close", self.close)

    def open(self, *_: object) -> None:
        self.opened += 1
        self.is_open = True
        self.then()

    def close(self, *_: object) -> None:
        self.is_open = False


def nothing() -> None:
    pass


def away() -> None:
    raise UnreachableError("the server is away")


async def stopped(rig: Rig, folder: Path, name: str) -> TaskStart:
    """A task that has run, with a file that it has not read yet."""
    write_file(folder / "in", "a.csv", [(1, 1.0, 1)])
    start = await rig.start(rig.config(folder), name)
    await rig.wait_until(lambda: rows_of(folder / "out") == [1])
    await rig.runtime.stop(start.task, grace_ms=10_000)
    write_file(folder / "in", "b.csv", [(2, 1.0, 1)])
    return start


def query_of(rig: Rig, start: TaskStart) -> TaskQuery:
    checkpoints = rig.spark_runtime._config.checkpoint_location
    held = take_over(checkpoints / f"{start.task.connector}-i" / "gen-1" / str(start.task.task))
    return TaskQuery(rig.session, start.task, Pipeline.of(start.config, {}), held, Fence())


async def test_a_start_that_does_not_come_to_its_end_leaves_no_connection_open(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = await stopped(rig, tmp_path, "half-started")
    connections = Connections(monkeypatch)
    query = query_of(rig, start)
    connections.then = away
    for run in (query.start, query.finish_batch):
        with pytest.raises(UnreachableError, match="the server is away"):
            run()
        assert not connections.is_open
        assert query.is_server_away
    assert connections.opened == 2

    # Everything is halted while the sinks take over.
    query = query_of(rig, start)
    connections.then = query.fence.shut
    with pytest.raises(FencedError):
        query.start()
    assert (connections.opened, connections.is_open) == (3, False)

    # The task is stopped while its source is looked at: another owner may have it by now.
    query = query_of(rig, start)
    read = FileSource.read

    def slow(*arguments: object) -> object:
        query.stop(grace_ms=0)
        return read(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(FileSource, "read", slow)
    with pytest.raises(FencedError):
        query.start()
    assert connections.opened == 3, "nothing was taken over any more"
    assert rows_of(tmp_path / "out") == [1]


async def test_a_stop_closes_connections_also_when_the_last_batch_cannot_be_finished(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = await stopped(rig, tmp_path, "half-stopped")
    connections = Connections(monkeypatch)
    query = query_of(rig, start)
    query.start()
    await rig.wait_until(lambda: rows_of(tmp_path / "out") == [1, 2])
    assert connections.is_open
    # As if Spark had planned one more batch while it was told to end.
    monkeypatch.setattr("coterie.spark.query.batch_in_flight", lambda _: 2)
    connections.then = away
    query.stop(grace_ms=10_000)
    assert (connections.opened, connections.is_open) == (2, False)
    assert not query.active()
