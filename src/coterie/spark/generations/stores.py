"""How the positions of a source lie in checkpoints: read and seeded as data, without Spark."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from coterie.nouns.errors import WorldError
from coterie.spark.positions import Positions
from coterie.spark.sources.file_log import read_files, seed_read_files


class PositionStore(Protocol):
    """Reads the positions of one kind of source from a checkpoint, and writes them into a new one."""

    def read(self, checkpoint: Path, parts: Sequence[str]) -> Positions:
        """What the committed batches of a checkpoint have read, of ``parts`` and perhaps of others."""
        ...

    def seed(self, checkpoint: Path, positions: Positions) -> None:
        """Have a checkpoint without batches go on at ``positions``."""
        ...


class NoPositions:
    """Of a source whose positions only its own checkpoint can hold."""

    def read(self, checkpoint: Path, parts: Sequence[str]) -> Positions:
        raise WorldError(
            f"The positions in {checkpoint} cannot be taken to another checkpoint: the connector keeps its sink, or "
            "create one under another name"
        )

    def seed(self, checkpoint: Path, positions: Positions) -> None:
        assert not positions, "nothing to go on from"


class FilePositions:
    """Modification time in ms by URI: the files that were looked at, whichever task's they are."""

    def read(self, checkpoint: Path, parts: Sequence[str]) -> Positions:
        return read_files(checkpoint)

    def seed(self, checkpoint: Path, positions: Positions) -> None:
        if positions:
            seed_read_files(checkpoint, positions)
