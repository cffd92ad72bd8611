"""The offsets of a task's Kafka partitions in the task's checkpoint: functions that read them, write the initial ones,
and move them past deleted records.

Spark writes the offsets of a batch as ``{"topic": {"0": 42}}``: 42 is the offset after the batch's last record in
partition 0. The offsets at which batch 0 starts are in ``sources/0/0``.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from coterie.nouns.errors import WorldError
from coterie.spark.checkpoint import batch_in_flight, last_batch
from coterie.spark.positions import Positions, commit_empty_batch, planned_offset


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class TopicIdPartition:
    """A topic partition with the topic's id. Its text is ``<topic>:<partition>@<topic id>``.

    A topic that was deleted and created again has another id, so its partitions are not equal to those of the deleted
    topic.
    """

    topic: str
    partition: int
    topic_id: str

    def __str__(self) -> str:
        return f"{self.topic}:{self.partition}@{self.topic_id}"

    @property
    def topic_partition(self) -> str:
        """``<topic>-<partition>``, as Kafka's own tools write it."""
        return f"{self.topic}-{self.partition}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """:raises ValueError: when ``text`` is not ``<topic>:<partition>@<topic id>``."""
        place, _, topic_id = text.partition("@")
        topic, colon, partition = place.partition(":")
        if not (topic and colon and partition.isascii() and partition.isdigit()):
            raise ValueError(f"{text!r} is not <topic>:<partition>@<topic id>")
        return cls(topic=topic, partition=int(partition), topic_id=topic_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOffsets:
    """Offsets to be committed for the consumer group ``group``."""

    group: str
    offsets: Mapping[TopicIdPartition, int]
    """By partition: the offset of the next record to read."""
    client: Mapping[str, str] = field(repr=False)
    """Properties of a Kafka client for the cluster of the partitions; may contain passwords."""


class KafkaPositions:
    """The position store of Kafka's source. A position is the offset of the next record to read, by the text of a
    :class:`TopicIdPartition`."""

    def read(self, checkpoint: Path, parts: Sequence[str]) -> Positions:
        return committed_offsets(checkpoint, [TopicIdPartition.parse(part) for part in parts])

    def initialize(self, checkpoint: Path, positions: Positions) -> None:
        write_initial_offsets(checkpoint, positions)


def write_initial_offsets(checkpoint: Path, positions: Positions) -> None:
    """Write ``positions``, offsets by the partition's text, as the offsets at which batch 0 starts. Spark then ignores
    its option ``startingOffsets``.

    :raises FileExistsError: when the checkpoint already has such offsets.
    :raises WorldError: when ``positions`` contain the same partition with two topic ids.
    """
    path = _source_log(checkpoint)
    if path.exists():
        raise FileExistsError(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # The rename ensures that the file is complete. A temporary file that a killed process has left begins with a dot
    # and is removed by the next start.
    aside = path.with_name(f".{path.name}")
    aside.write_bytes(b"\0" + f"v1\n{spark_offsets(positions)}".encode())
    aside.rename(path)


def committed_offsets(checkpoint: Path, parts: Iterable[TopicIdPartition]) -> Positions:
    """By the text of each of ``parts``: the offset at which the batch after the last committed batch starts. Partitions
    of which the checkpoint has no offset are left out."""
    return _of_parts(_offsets_after(checkpoint, last_batch(checkpoint / "commits")), parts)


def next_offsets(checkpoint: Path, parts: Iterable[TopicIdPartition]) -> Positions:
    """By the text of each of ``parts``: the offset of the first record that is not yet planned for a batch. Partitions
    of which the checkpoint has no offset are left out."""
    return _of_parts(_offsets_after(checkpoint, last_batch(checkpoint / "offsets")), parts)


def planned_ranges(
    checkpoint: Path, batch_id: int, parts: Iterable[TopicIdPartition]
) -> Mapping[TopicIdPartition, range]:
    """By partition: the offsets that the planned batch ``batch_id`` reads. Partitions of which the batch has no offset
    are left out."""
    starts, ends = _offsets_after(checkpoint, batch_id - 1), _offsets_after(checkpoint, batch_id)
    found: dict[TopicIdPartition, range] = {}
    for part in parts:
        end = ends.get(part.topic, {}).get(str(part.partition))
        if end is not None:
            found[part] = range(starts.get(part.topic, {}).get(str(part.partition), end), end)
    return found


def partitions_of(checkpoint: Path) -> frozenset[tuple[str, int]]:
    """Topic and number of each partition of which the last planned batch has an offset; before the first batch, of
    those at which batch 0 starts."""
    offsets = _offsets_after(checkpoint, last_batch(checkpoint / "offsets"))
    return frozenset((topic, int(partition)) for topic, by_number in offsets.items() for partition in by_number)


def skip_to(checkpoint: Path, positions: Positions) -> None:
    """Commit a batch without rows that ends at ``positions``, so that the next batch starts there. ``positions`` must
    contain all partitions of the checkpoint, and no batch may be in flight."""
    assert batch_in_flight(checkpoint) is None, f"{checkpoint} has a batch in flight"
    last = last_batch(checkpoint / "commits")
    commit_empty_batch(checkpoint, spark_offsets(positions), batch_id=0 if last is None else last + 1)


def spark_offsets(positions: Positions) -> str:
    """``positions``, offsets by the partition's text, as JSON in the form that Spark writes.

    :raises WorldError: when ``positions`` contain the same partition with two topic ids.
    """
    offsets: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for name, offset in sorted(positions.items()):
        part = TopicIdPartition.parse(name)
        if str(part.partition) in offsets[part.topic]:
            raise WorldError(f"The positions of one task contain topic {part.topic} with two topic ids")
        offsets[part.topic][str(part.partition)] = offset
    return json.dumps(offsets)


def _of_parts(offsets: Mapping[str, Mapping[str, int]], parts: Iterable[TopicIdPartition]) -> Positions:
    """The entries of ``offsets``, by topic and partition number, for ``parts``: by the partition's text."""
    found = {str(part): offsets.get(part.topic, {}).get(str(part.partition)) for part in parts}
    return {name: offset for name, offset in found.items() if offset is not None}


def _offsets_after(checkpoint: Path, batch_id: int | None) -> Mapping[str, Mapping[str, int]]:
    """By topic and partition number, the offsets at which batch ``batch_id`` ends; for None or -1 those at which batch
    0 starts. Empty when the checkpoint has none."""
    line: str | None
    if batch_id is None or batch_id < 0:
        try:
            line = _source_log(checkpoint).read_bytes().decode().removeprefix("\0").split("\n", 1)[1]
        except FileNotFoundError:
            line = None
    else:
        line = planned_offset(checkpoint, batch_id)
    found: dict[str, dict[str, int]] = {} if line is None else json.loads(line)
    return found


def _source_log(checkpoint: Path) -> Path:
    """The file with the offsets at which batch 0 starts."""
    return checkpoint / "sources" / "0" / "0"
