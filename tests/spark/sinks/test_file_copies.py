"""Putting a batch in place: the first wins, a swept copy never does."""

import os
from pathlib import Path

import pytest

from coterie.nouns.jobs import ConnectorName, ConnectorTaskId
from coterie.spark.fence import FencedError
from coterie.spark.seams import TaskLineage
from coterie.spark.sinks.files import FileSink, StagedFiles

TASK = ConnectorTaskId(ConnectorName("my/c"), 2)
LINEAGE = TaskLineage(task=TASK, lineage="l")


def sink_to(path: Path) -> FileSink:
    return FileSink(format="json", path=path, options={})


def written(staged: StagedFiles, text: str) -> StagedFiles:
    staged.out.mkdir(parents=True)
    (staged.out / "part-0").write_text(text)
    return staged


def stage(sink: FileSink, text: str, batch_id: int = 0) -> StagedFiles:
    return written(StagedFiles(sink, LINEAGE, batch_id), text)


def test_the_first_copy_of_a_batch_wins_and_the_other_is_dropped(tmp_path: Path) -> None:
    sink = sink_to(tmp_path)
    first, second = stage(sink, "first", 7), stage(sink, "second", 7)
    for staged in (first, second):
        staged.put_in_place()
        staged.drop()
    assert (tmp_path / "my%2Fc" / "2-l" / "7" / "part-0").read_text() == "first"
    assert os.listdir(tmp_path / "_staging") == []


def test_a_batch_without_rows_makes_no_folder(tmp_path: Path) -> None:
    stage(sink_to(tmp_path), "").put_in_place()
    assert os.listdir(tmp_path) == ["_staging"]


def test_a_copy_that_was_swept_while_it_was_written_is_never_seen_in_part(tmp_path: Path) -> None:
    old, new = sink_to(tmp_path), sink_to(tmp_path)
    staged = stage(old, "{}\n")
    new.take_over(LINEAGE, 1)
    assert os.listdir(tmp_path / "_staging") == []
    # Spark's writer makes the folders anew and writes the rest of the batch.
    written(staged, "the rest")
    with pytest.raises(FencedError):
        staged.put_in_place()
    assert not old.folder_of(LINEAGE, 0).exists()


def test_a_copy_that_was_swept_after_it_was_written_is_not_taken_for_a_batch_without_rows(tmp_path: Path) -> None:
    """Else the batch would be committed, and its rows lost."""
    sink = sink_to(tmp_path)
    staged = stage(sink, "{}\n")
    sink_to(tmp_path).take_over(LINEAGE, 1)
    with pytest.raises(FencedError):
        staged.put_in_place()


def test_taking_over_leaves_the_copies_of_other_tasks_and_lives(tmp_path: Path) -> None:
    sink = sink_to(tmp_path)
    staged = stage(sink, "{}\n")
    sink.take_over(TaskLineage(task=ConnectorTaskId(TASK.connector, 1), lineage="l"), 1)
    sink.take_over(TaskLineage(task=TASK, lineage="m"), 1)
    staged.put_in_place()
    assert sink.folder_of(LINEAGE, 0).is_dir()
