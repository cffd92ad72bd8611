"""Reads the positions of a source from checkpoints and writes them into new checkpoints, without Spark."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from coterie.nouns.errors import WorldError
from coterie.spark.positions import Positions
from coterie.spark.sources.file_log import read_files, seed_read_files


class PositionStore(Protocol):
    """Reads the positions of one kind of source from a checkpoint, and writes them into a new checkpoint."""

    def read(self, checkpoint: Path, parts: Sequence[str]) -> Positions:
        """The positions of a checkpoint's committed batches in the source partitions ``parts``, and perhaps in
        others."""
        ...

    def seed(self, checkpoint: Path, positions: Positions) -> None:
        """Write ``positions`` into a checkpoint without batches, so that a query resumes there."""
        ...


class NoPositions:
    """The store of a source whose positions cannot be written into another checkpoint."""

    def read(self, checkpoint: Path, parts: Sequence[str]) -> Positions:
        raise WorldError(
            f"The positions in {checkpoint} cannot be moved to another checkpoint: keep the connector's sink, or "
            "create a connector under another name"
        )

    def seed(self, checkpoint: Path, positions: Positions) -> None:
        assert not positions, "positions of such a source cannot be written into a checkpoint"


class FilePositions:
    """The store of file sources. Positions: modification time in ms, by URI, of the listed files, of any task."""

    def read(self, checkpoint: Path, parts: Sequence[str]) -> Positions:
        return read_files(checkpoint)

    def seed(self, checkpoint: Path, positions: Positions) -> None:
        if positions:
            seed_read_files(checkpoint, positions)
