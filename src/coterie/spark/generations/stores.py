"""Position stores: they read a source's positions from a checkpoint and write positions into a new checkpoint, without
Spark.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from coterie.nouns.errors import WorldError
from coterie.spark.positions import Positions
from coterie.spark.sources.file_log import files_of_committed_batches, record_files_as_read


class PositionStore(Protocol):
    """Reads the positions of one source plug-in from a checkpoint, and writes positions into a new checkpoint."""

    def read(self, checkpoint: Path, source_partitions: Sequence[str]) -> Positions:
        """The positions that the committed batches of ``checkpoint`` have reached in the source partitions
        ``source_partitions``. The result may contain other source partitions too.

        :raises OSError: when a file of the checkpoint cannot be read, for example after a take-over.
        :raises WorldError: when the positions cannot be used in another checkpoint.
        """
        ...

    def write_to_new_checkpoint(self, checkpoint: Path, positions: Positions) -> None:
        """Write ``positions`` into a checkpoint without batches, so that a query on the checkpoint begins there."""
        ...


class UnmovablePositionStore:
    """The store of a source whose positions cannot be written into another checkpoint: :meth:`read` always raises
    WorldError, and :meth:`write_to_new_checkpoint` asserts that there are no positions to write."""

    def read(self, checkpoint: Path, source_partitions: Sequence[str]) -> Positions:
        """:raises WorldError: always."""
        raise WorldError(
            f"The positions in {checkpoint} cannot be moved to another checkpoint: keep the connector's sink, or "
            "create a connector under another name"
        )

    def write_to_new_checkpoint(self, checkpoint: Path, positions: Positions) -> None:
        """Write nothing. ``positions`` must be empty: :meth:`read` returns none that could be written.

        :raises AssertionError: when ``positions`` is not empty, which is a bug in Coterie.
        """
        assert not positions, "positions of such a source cannot be written into a checkpoint"


class FileSourcePositionStore:
    """The store of file sources. The positions are the modification times, in ms since the Unix epoch, of all files
    that the checkpoint contains as read, by URI. They include the files that other tasks have read."""

    def read(self, checkpoint: Path, source_partitions: Sequence[str]) -> Positions:
        """The modification time of each file in a committed batch of ``checkpoint``, by URI; ``source_partitions`` is
        not used."""
        return files_of_committed_batches(checkpoint)

    def write_to_new_checkpoint(self, checkpoint: Path, positions: Positions) -> None:
        if positions:
            record_files_as_read(checkpoint, positions)
