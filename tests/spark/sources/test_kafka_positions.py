"""Positions of Kafka partitions in a checkpoint, read and written as Spark does, without Spark."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from coterie.nouns.errors import WorldError
from coterie.spark.sources.kafka_positions import (
    TopicIdPartition,
    commit_empty_batch_to_positions,
    create_initial_offsets_file,
    first_unplanned_offsets,
    offsets_of_committed_batches,
    partitions_in_checkpoint,
    planned_offset_ranges,
    to_spark_offsets_json,
)

PARTS = tuple(TopicIdPartition(topic="a.b-c", partition=number, topic_id="x_-1") for number in range(2))
ZERO, ONE = map(str, PARTS)


def plan(checkpoint: Path, batch_id: int, positions: dict[str, int], *, commit: bool) -> None:
    for folder in ("offsets", "commits") if commit else ("offsets",):
        (checkpoint / folder).mkdir(exist_ok=True)
        (checkpoint / folder / str(batch_id)).write_text(f"v1\n{{}}\n{to_spark_offsets_json(positions)}")


@contextmanager
def full_disk() -> Iterator[None]:
    """As on a full disk, no file of this process can grow."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_part_is_parsed_back_as_it_was_written() -> None:
    assert ZERO == "a.b-c:0@x_-1"
    assert tuple(map(TopicIdPartition.parse, (ZERO, ONE))) == PARTS
    for text in ("", "a", "a:x@y", "a:²@y", ":1@x", "a:0", "a:0@"):
        with pytest.raises(ValueError, match="is not <topic>:<partition>@<topic id>"):
            TopicIdPartition.parse(text)


def test_a_seed_begins_with_a_zero_byte_and_is_never_overwritten(tmp_path: Path) -> None:
    assert offsets_of_committed_batches(tmp_path, PARTS) == {}
    create_initial_offsets_file(tmp_path, {ZERO: 3, ONE: 0})
    assert (tmp_path / "sources" / "0" / "0").read_bytes() == b'\0v1\n{"a.b-c": {"0": 3, "1": 0}}'
    assert offsets_of_committed_batches(tmp_path, PARTS) == {ZERO: 3, ONE: 0}
    with pytest.raises(FileExistsError):
        create_initial_offsets_file(tmp_path, {ZERO: 4})


def test_a_planned_batch_counts_as_next_and_not_as_committed(tmp_path: Path) -> None:
    create_initial_offsets_file(tmp_path, {ZERO: 3, ONE: 0})
    plan(tmp_path, 0, {ZERO: 5, ONE: 4}, commit=True)
    plan(tmp_path, 1, {ZERO: 6, ONE: 4}, commit=False)
    assert offsets_of_committed_batches(tmp_path, PARTS) == {ZERO: 5, ONE: 4}
    assert first_unplanned_offsets(tmp_path, PARTS) == {ZERO: 6, ONE: 4}
    assert planned_offset_ranges(tmp_path, 0, PARTS) == {PARTS[0]: range(3, 5), PARTS[1]: range(4)}
    assert planned_offset_ranges(tmp_path, 1, PARTS) == {PARTS[0]: range(5, 6), PARTS[1]: range(4, 4)}
    assert partitions_in_checkpoint(tmp_path) == {("a.b-c", 0), ("a.b-c", 1)}


def test_advancing_a_checkpoint_can_be_repeated_after_a_failure_on_a_full_disk(tmp_path: Path) -> None:
    create_initial_offsets_file(tmp_path, {ZERO: 3, ONE: 0})
    commit_empty_batch_to_positions(tmp_path, {ZERO: 9, ONE: 0})
    with pytest.raises(OSError, match="File too large"), full_disk():
        commit_empty_batch_to_positions(tmp_path, {ZERO: 11, ONE: 0})
    assert first_unplanned_offsets(tmp_path, PARTS) == {ZERO: 9, ONE: 0}
    commit_empty_batch_to_positions(tmp_path, {ZERO: 11, ONE: 0})
    assert offsets_of_committed_batches(tmp_path, PARTS) == {ZERO: 11, ONE: 0}


def test_advancing_a_checkpoint_commits_a_batch_after_the_last_one_even_before_the_first(tmp_path: Path) -> None:
    create_initial_offsets_file(tmp_path, {ZERO: 3, ONE: 0})
    for batch_id, offset in enumerate((9, 11)):
        commit_empty_batch_to_positions(tmp_path, {ZERO: offset, ONE: 0})
        assert (
            offsets_of_committed_batches(tmp_path, PARTS)
            == first_unplanned_offsets(tmp_path, PARTS)
            == {ZERO: offset, ONE: 0}
        )
        assert (tmp_path / "commits" / str(batch_id)).exists()
    assert (tmp_path / "metadata").exists()


def test_positions_of_a_topic_and_of_its_recreation_are_not_written_together(tmp_path: Path) -> None:
    with pytest.raises(WorldError, match=r"contain topic a\.b-c with two topic ids"):
        to_spark_offsets_json({ZERO: 3, ZERO + "2": 4})
