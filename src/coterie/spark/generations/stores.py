"""How positions lie in the checkpoints of file and of Kafka sources: read and seeded as data, without Spark."""

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

from coterie.nouns.errors import WorldError
from coterie.spark.positions import Positions, committed_offset
from coterie.spark.sources.file_log import read_files, seed_read_files


class PositionStore(Protocol):
    """Reads the positions of one kind of source from a checkpoint, and writes them into a new one."""

    def read(self, checkpoint: Path, parts: Sequence[str]) -> Positions:
        """What the committed batches of a checkpoint have read, of ``parts`` and perhaps of others."""
        ...

    def seed(self, checkpoint: Path, positions: Positions) -> None:
        """Have a checkpoint without batches go on at ``positions``."""
        ...


class FilePositions:
    """Modification time in ms by URI: the files that were looked at, whichever task's they are."""

    def read(self, checkpoint: Path, parts: Sequence[str]) -> Positions:
        return read_files(checkpoint)

    def seed(self, checkpoint: Path, positions: Positions) -> None:
        if positions:
            seed_read_files(checkpoint, positions)


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaPart:
    """A partition of one life of a topic, written ``<topic>:<partition>@<topic id>``. A topic that was deleted and
    created again has another id, so its partitions are other parts."""

    topic: str
    partition: int
    topic_id: str

    def __str__(self) -> str:
        return f"{self.topic}:{self.partition}@{self.topic_id}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """:raises ValueError: when ``text`` is not ``<topic>:<partition>@<topic id>``."""
        place, _, topic_id = text.partition("@")
        topic, colon, partition = place.partition(":")
        if not (topic and colon and partition.isascii() and partition.isdigit()):
            raise ValueError(f"{text!r} is not <topic>:<partition>@<topic id>")
        return cls(topic=topic, partition=int(partition), topic_id=topic_id)


class KafkaPositions:
    """The next offset by :class:`KafkaPart`."""

    def read(self, checkpoint: Path, parts: Sequence[str]) -> Positions:
        line = committed_offset(checkpoint)
        if line is None:
            line = _seeded(checkpoint)
        offsets = {} if line is None else json.loads(line)
        found: dict[str, int] = {}
        for name in parts:
            part = KafkaPart.parse(name)
            if (offset := offsets.get(part.topic, {}).get(str(part.partition))) is not None:
                found[name] = int(offset)
        return found

    def seed(self, checkpoint: Path, positions: Positions) -> None:
        """Write the offsets from which batch 0 starts; Spark then looks at no ``startingOffsets``."""
        offsets: defaultdict[str, dict[str, int]] = defaultdict(dict)
        for name, offset in sorted(positions.items()):
            part = KafkaPart.parse(name)
            if str(part.partition) in offsets[part.topic]:
                raise WorldError(f"Topic {part.topic} has two ids in one task; one of them was deleted")
            offsets[part.topic][str(part.partition)] = offset
        source_log = checkpoint / "sources" / "0"
        source_log.mkdir(parents=True)
        (source_log / "0").write_bytes(b"\0" + f"v1\n{json.dumps(offsets)}".encode())


def _seeded(checkpoint: Path) -> str | None:
    """The offsets from which batch 0 starts or has started."""
    try:
        text = (checkpoint / "sources" / "0" / "0").read_bytes().decode()
    except FileNotFoundError:
        return None
    return text.removeprefix("\0").split("\n", 1)[1]
