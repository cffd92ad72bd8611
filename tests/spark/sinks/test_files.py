"""Putting a batch in place: the first wins, a swept or fenced copy never does."""

import os
from pathlib import Path

import pytest

from coterie.nouns.jobs import ConnectorName, ConnectorTaskId
from coterie.spark.sinks.files import Fence, FencedError, FileSink, Staged


def sink_to(path: Path) -> FileSink:
    task = ConnectorTaskId(ConnectorName("my/c"), 2)
    return FileSink(format="json", path=path, options={}, task=task, lineage="l", fence=Fence())


def written(staged: Staged, text: str) -> Staged:
    staged.out.mkdir(parents=True)
    (staged.out / "part-0").write_text(text)
    return staged


def stage(sink: FileSink, name: str, text: str = "{}\n") -> Staged:
    return written(Staged(sink, sink.path / "_staging" / f"my%2Fc-2-l-{name}"), text)


def test_the_first_copy_of_a_batch_wins_and_the_other_is_dropped(tmp_path: Path) -> None:
    sink = sink_to(tmp_path)
    first, second = stage(sink, "1", "first"), stage(sink, "2", "second")
    assert first.put_in_place(7)
    assert not second.put_in_place(7)
    assert (tmp_path / "my%2Fc" / "2-l" / "7" / "part-0").read_text() == "first"
    assert os.listdir(tmp_path / "_staging") == []


def test_a_batch_without_rows_makes_no_folder(tmp_path: Path) -> None:
    assert not stage(sink_to(tmp_path), "1", "").put_in_place(0)
    assert os.listdir(tmp_path) == ["_staging"]


def test_a_closed_fence_lets_nothing_through(tmp_path: Path) -> None:
    sink = sink_to(tmp_path)
    staged = stage(sink, "1")
    sink.fence.close()
    with pytest.raises(FencedError):
        staged.put_in_place(0)
    assert not sink.folder_of(0).exists()


def test_a_copy_that_was_swept_while_it_was_written_is_never_seen_in_part(tmp_path: Path) -> None:
    old, new = sink_to(tmp_path), sink_to(tmp_path)
    staged = stage(old, "1")
    new.sweep()
    assert os.listdir(tmp_path / "_staging") == []
    # Spark's writer makes the folders anew and writes the rest of the batch.
    written(staged, "the rest")
    with pytest.raises(FencedError):
        staged.put_in_place(0)
    assert not old.folder_of(0).exists()
