"""The offsets of a task's Kafka partitions in its checkpoint: read, initialized, and advanced past deleted records.

Spark writes the offsets of a batch as ``{"topic": {"0": 42}}``: the offset after the last record of the batch. The
offsets at which batch 0 starts are in ``sources/0/0``.
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
class KafkaPart:
    """A topic partition with the topic's id, written ``<topic>:<partition>@<topic id>``.

    A topic that was deleted and created again has another id, so its partitions are not equal to the previous ones.
    """

    topic: str
    partition: int
    topic_id: str

    def __str__(self) -> str:
        return f"{self.topic}:{self.partition}@{self.topic_id}"

    @property
    def name(self) -> str:
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
    """The next offsets of partitions, to be committed to a consumer group."""

    group: str
    offsets: Mapping[KafkaPart, int]
    client: Mapping[str, str] = field(repr=False)
    """Properties of a Kafka client for the cluster; may contain passwords."""


class KafkaPositions:
    """Reads and initializes positions that are the next offset by :class:`KafkaPart`."""

    def read(self, checkpoint: Path, parts: Sequence[str]) -> Positions:
        return committed_offsets(checkpoint, [KafkaPart.parse(part) for part in parts])

    def seed(self, checkpoint: Path, positions: Positions) -> None:
        seed_offsets(checkpoint, positions)


def seed_offsets(checkpoint: Path, positions: Positions) -> None:
    """Write ``positions``, by partition, as the offsets at which batch 0 starts. Spark then ignores its option
    ``startingOffsets``.

    :raises FileExistsError: when the checkpoint already has such offsets.
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


def committed_offsets(checkpoint: Path, parts: Iterable[KafkaPart]) -> Positions:
    """By partition: the offset at which the batch after the last committed batch starts."""
    return _of_parts(_offsets_after(checkpoint, last_batch(checkpoint / "commits")), parts)


def next_offsets(checkpoint: Path, parts: Iterable[KafkaPart]) -> Positions:
    """By partition: the offset of the first record that is not yet planned for a batch."""
    return _of_parts(_offsets_after(checkpoint, last_batch(checkpoint / "offsets")), parts)


def planned_ranges(checkpoint: Path, batch_id: int, parts: Iterable[KafkaPart]) -> Mapping[KafkaPart, range]:
    """By partition: the offsets that a planned batch reads."""
    starts, ends = _offsets_after(checkpoint, batch_id - 1), _offsets_after(checkpoint, batch_id)
    found: dict[KafkaPart, range] = {}
    for part in parts:
        end = ends.get(part.topic, {}).get(str(part.partition))
        if end is not None:
            found[part] = range(starts.get(part.topic, {}).get(str(part.partition), end), end)
    return found


def partitions_of(checkpoint: Path) -> frozenset[tuple[str, int]]:
    """The topics and partitions of which the checkpoint has offsets."""
    offsets = _offsets_after(checkpoint, last_batch(checkpoint / "offsets"))
    return frozenset((topic, int(partition)) for topic, by_number in offsets.items() for partition in by_number)


def move_on(checkpoint: Path, positions: Positions) -> None:
    """Commit a batch without rows that ends at ``positions``. Precondition: no batch is in flight."""
    assert batch_in_flight(checkpoint) is None, f"{checkpoint} has a batch in flight"
    last = last_batch(checkpoint / "commits")
    commit_empty_batch(checkpoint, spark_offsets(positions), batch_id=0 if last is None else last + 1)


def spark_offsets(positions: Positions) -> str:
    """``positions`` as Spark writes offsets.

    :raises WorldError: when ``positions`` contain the same partition with two topic ids.
    """
    offsets: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for name, offset in sorted(positions.items()):
        part = KafkaPart.parse(name)
        if str(part.partition) in offsets[part.topic]:
            raise WorldError(f"Topic {part.topic} has two ids among the positions of one task")
        offsets[part.topic][str(part.partition)] = offset
    return json.dumps(offsets)


def _of_parts(offsets: Mapping[str, Mapping[str, int]], parts: Iterable[KafkaPart]) -> Positions:
    found = {str(part): offsets.get(part.topic, {}).get(str(part.partition)) for part in parts}
    return {name: offset for name, offset in found.items() if offset is not None}


def _offsets_after(checkpoint: Path, batch_id: int | None) -> Mapping[str, Mapping[str, int]]:
    """The offsets at which a batch ends; for None or -1 those at which batch 0 starts."""
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
    return checkpoint / "sources" / "0" / "0"
