"""Files that an operator may change while a broker or a worker runs, such as access rules and certificates."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from coterie.nouns.errors import WorldError

logger = logging.getLogger(__name__)

T = TypeVar("T")

CHECK_INTERVAL_S = 1.0
"""The time between two checks of the files for changes."""


class ReloadedFiles(Generic[T]):
    """A value that is read from files when the object is created, and by :meth:`run` again whenever one of the files
    changes. ``description`` is the plural noun for the files in log messages."""

    def __init__(self, description: str, paths: Sequence[Path], read: Callable[[], T]) -> None:
        """Read the value. Changes are only noticed by :meth:`run`.

        :raises WorldError: raised by ``read``, because a file is missing or invalid: a process does not start with such
            a file.
        """
        self._description = description
        self._paths = paths
        self._read = read
        self._stamps = self._file_stamps()
        self.value = read()

    async def run(self) -> None:
        """Check the files every :data:`CHECK_INTERVAL_S`, without end, and read ``value`` again after a change. If a
        changed file is missing or invalid, ``value`` stays as it is, and an error is logged, once for each change."""
        while True:
            await asyncio.sleep(CHECK_INTERVAL_S)
            # On the event loop: the files are small, and no other asyncio task reads an intermediate state.
            stamps = self._file_stamps()
            if stamps == self._stamps:
                continue
            self._stamps = stamps
            try:
                self.value = self._read()
                logger.info("Reloaded the %s", self._description)
            except WorldError as error:
                logger.error(
                    "Cannot reload the %s, the previous ones stay in use until the files are changed again: %s",
                    self._description,
                    error,
                )

    def _file_stamps(self) -> list[tuple[int, int, int] | None]:
        """The present stamp of each file, in the order of the paths; None for a missing file. A file has changed if its
        stamp differs from the previous one."""
        return [_file_stamp(path) for path in self._paths]


def _file_stamp(path: Path) -> tuple[int, int, int] | None:
    """The file's inode, modification time and size; None if the file is missing."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
