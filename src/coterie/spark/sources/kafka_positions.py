"""The offsets of a task's Kafka partitions in the task's checkpoint: functions that read them, write the initial ones,
and move them past deleted records.

Spark writes the offsets of a batch as ``{"topic": {"0": 42}}``: 42 is the offset after the batch's last record in
partition 0. The offsets at which batch 0 starts are in ``sources/0/0``.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from coterie.nouns.connector_offsets import ConnectorOffset, OffsetsRefusedError
from coterie.nouns.errors import WorldError
from coterie.spark.checkpoint import find_batch_id_in_flight, last_batch_id_in_log
from coterie.spark.positions import Positions, commit_empty_batch, planned_source_offset

KAFKA_TOPIC, KAFKA_PARTITION, KAFKA_OFFSET = "kafka_topic", "kafka_partition", "kafka_offset"
"""The fields of a partition and of an offset in the REST API: those of Connect's sink connectors."""


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
    def topic_partition_text(self) -> str:
        """``<topic>-<partition>``, as Kafka's own tools write it."""
        return f"{self.topic}-{self.partition}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """The partition with the text ``text`` (:meth:`__str__`).

        :raises ValueError: when ``text`` is not ``<topic>:<partition>@<topic id>``.
        """
        topic_and_partition, _, topic_id = text.partition("@")
        topic, colon, partition = topic_and_partition.partition(":")
        if not (topic and colon and partition.isascii() and partition.isdigit() and topic_id):
            raise ValueError(f"{text!r} is not <topic>:<partition>@<topic id>")
        return cls(topic=topic, partition=int(partition), topic_id=topic_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOffsets:
    """Offsets to be committed for the consumer group ``group_id``."""

    group_id: str
    next_offsets: Mapping[TopicIdPartition, int]
    """By partition: the offset of the next record to read."""
    client_properties: Mapping[str, str] = field(repr=False)
    """Properties of a Kafka client for the cluster of the partitions; may contain passwords."""


def parse_topic_partition(offset: ConnectorOffset) -> tuple[str, int]:
    """Topic and partition number of an offset in the form of Connect's sink connectors.

    :raises OffsetsRefusedError: when the partition in ``offset`` has another form.
    """
    partition = offset.partition
    if partition is None:
        raise OffsetsRefusedError("The partition for a sink connector offset cannot be null or missing")
    if not {KAFKA_TOPIC, KAFKA_PARTITION} <= partition.keys():
        raise OffsetsRefusedError(
            f"The partition for a sink connector offset must contain the keys '{KAFKA_TOPIC}' and '{KAFKA_PARTITION}'"
        )
    topic = partition[KAFKA_TOPIC]
    if not isinstance(topic, str):
        raise OffsetsRefusedError(f"Kafka topic names must be strings, and {json.dumps(topic)} is none")
    number = _parse_integer_or_none(partition[KAFKA_PARTITION])
    if number is None:
        raise OffsetsRefusedError(
            "Failed to parse the following Kafka partition value in the provided offsets: "
            f"'{partition[KAFKA_PARTITION]}'. Partition values for sink connectors need to be integers."
        )
    return topic, number


def parse_kafka_offset(offset: ConnectorOffset) -> int | None:
    """The offset of the next record to read, from ``offset``, which has the form of Connect's sink connectors; None
    when the client has sent null in its place.

    :raises OffsetsRefusedError: when ``offset`` has another form, or the number is negative.
    """
    if offset.offset is None:
        return None
    if KAFKA_OFFSET not in offset.offset:
        raise OffsetsRefusedError(
            f"The offset for a sink connector should either be null or contain the key '{KAFKA_OFFSET}'"
        )
    value = _parse_integer_or_none(offset.offset[KAFKA_OFFSET])
    if value is None:
        raise OffsetsRefusedError(
            "Failed to parse the following Kafka offset value in the provided offsets: "
            f"'{offset.offset[KAFKA_OFFSET]}'. Offset values for sink connectors need to be integers."
        )
    if value < 0:
        raise OffsetsRefusedError(f"An offset cannot be negative, and '{KAFKA_OFFSET}' is {value}")
    return value


def _parse_integer_or_none(value: object) -> int | None:
    """``value`` as an integer, if it is a JSON number without a fraction, or a string with such a number, which Connect
    accepts too, of at most 18 digits; else None."""
    text = str(value)
    return int(text) if not isinstance(value, bool) and re.fullmatch("[+-]?[0-9]{1,18}", text) else None


class KafkaPositionStore:
    """Reads the positions of a Kafka source from a checkpoint, and writes them into a new one. A position is the offset
    of the next record to read, by the text of a :class:`TopicIdPartition`."""

    def read(self, checkpoint: Path, source_partitions: Sequence[str]) -> Positions:
        return offsets_of_committed_batches(
            checkpoint, [TopicIdPartition.parse(partition_text) for partition_text in source_partitions]
        )

    def write_to_new_checkpoint(self, checkpoint: Path, positions: Positions) -> None:
        create_initial_offsets_file(checkpoint, positions)


def create_initial_offsets_file(checkpoint: Path, positions: Positions) -> None:
    """Write ``positions``, offsets by the partition's text, as the offsets at which batch 0 starts. Spark then ignores
    its option ``startingOffsets``.

    :raises FileExistsError: when the checkpoint already has such offsets.
    :raises WorldError: when ``positions`` contain the same partition with two topic ids.
    """
    path = _initial_offsets_file(checkpoint)
    if path.exists():
        raise FileExistsError(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # The rename ensures that the file is complete. A temporary file that a killed process has left begins with a dot
    # and is removed by the next start.
    temporary_file = path.with_name(f".{path.name}")
    temporary_file.write_bytes(b"\0" + f"v1\n{to_spark_offsets_json(positions)}".encode())
    temporary_file.rename(path)


def offsets_of_committed_batches(checkpoint: Path, partitions: Iterable[TopicIdPartition]) -> Positions:
    """By the text of each of ``partitions``: the offset at which the last committed batch ends and the next one starts;
    before the first commit, the offset at which batch 0 starts. Partitions of which the checkpoint has no offset are
    left out."""
    return _offsets_of_partitions(
        _offsets_after_batch(checkpoint, last_batch_id_in_log(checkpoint / "commits")), partitions
    )


def first_unplanned_offsets(checkpoint: Path, partitions: Iterable[TopicIdPartition]) -> Positions:
    """By the text of each of ``partitions``: the offset of the first record that is not yet planned for a batch.
    Partitions of which the checkpoint has no offset are left out."""
    return _offsets_of_partitions(
        _offsets_after_batch(checkpoint, last_batch_id_in_log(checkpoint / "offsets")), partitions
    )


def planned_offset_ranges(
    checkpoint: Path, batch_id: int, partitions: Iterable[TopicIdPartition]
) -> Mapping[TopicIdPartition, range]:
    """By partition: the offsets that the planned batch ``batch_id`` reads. Partitions of which the batch has no offset
    are left out."""
    start_offsets, end_offsets = (
        _offsets_after_batch(checkpoint, batch_id - 1),
        _offsets_after_batch(checkpoint, batch_id),
    )
    ranges: dict[TopicIdPartition, range] = {}
    for partition in partitions:
        end_offset = end_offsets.get(partition.topic, {}).get(str(partition.partition))
        if end_offset is not None:
            ranges[partition] = range(
                start_offsets.get(partition.topic, {}).get(str(partition.partition), end_offset), end_offset
            )
    return ranges


def partitions_in_checkpoint(checkpoint: Path) -> frozenset[tuple[str, int]]:
    """Topic and number of each partition of which the last planned batch has an offset; before the first batch, of
    those at which batch 0 starts."""
    offsets = _offsets_after_batch(checkpoint, last_batch_id_in_log(checkpoint / "offsets"))
    return frozenset((topic, int(partition)) for topic, by_number in offsets.items() for partition in by_number)


def commit_empty_batch_to_positions(checkpoint: Path, positions: Positions) -> None:
    """Commit a batch without rows that ends at ``positions``, so that the next batch starts there. ``positions`` must
    contain all partitions of the checkpoint, and no batch may be in flight."""
    assert find_batch_id_in_flight(checkpoint) is None, f"{checkpoint} has a batch in flight"
    last_committed_id = last_batch_id_in_log(checkpoint / "commits")
    commit_empty_batch(
        checkpoint, to_spark_offsets_json(positions), batch_id=0 if last_committed_id is None else last_committed_id + 1
    )


def to_spark_offsets_json(positions: Positions) -> str:
    """``positions``, offsets by the partition's text, as JSON in the form that Spark writes.

    :raises WorldError: when ``positions`` contain the same partition with two topic ids.
    """
    offsets: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for name, offset in sorted(positions.items()):
        partition = TopicIdPartition.parse(name)
        if str(partition.partition) in offsets[partition.topic]:
            raise WorldError(
                f"The positions of one task contain topic {partition.topic} with two topic ids. Partitions from before "
                "and after the topic was created again must not be in one task: this is a bug in Coterie"
            )
        offsets[partition.topic][str(partition.partition)] = offset
    return json.dumps(offsets)


def _offsets_of_partitions(
    offsets: Mapping[str, Mapping[str, int]], partitions: Iterable[TopicIdPartition]
) -> Positions:
    """The entries of ``offsets``, which are by topic and partition number, for ``partitions``: by the text of the
    partition. Partitions without an entry are left out."""
    offset_by_text = {
        str(partition): offsets.get(partition.topic, {}).get(str(partition.partition)) for partition in partitions
    }
    return {name: offset for name, offset in offset_by_text.items() if offset is not None}


def _offsets_after_batch(checkpoint: Path, batch_id: int | None) -> Mapping[str, Mapping[str, int]]:
    """By topic and partition number, the offsets at which batch ``batch_id`` ends; for None or -1 those at which batch
    0 starts, or nothing if no file has these.

    :raises FileNotFoundError: when batch ``batch_id`` is not planned.
    """
    line: str | None
    if batch_id is None or batch_id < 0:
        try:
            line = _initial_offsets_file(checkpoint).read_bytes().decode().removeprefix("\0").split("\n", 1)[1]
        except FileNotFoundError:
            line = None
    else:
        line = planned_source_offset(checkpoint, batch_id)
    offsets: dict[str, dict[str, int]] = {} if line is None else json.loads(line)
    return offsets


def _initial_offsets_file(checkpoint: Path) -> Path:
    """The path of the file with the offsets at which batch 0 starts."""
    return checkpoint / "sources" / "0" / "0"
