"""Files that an operator may change while the broker runs, such as access rules and certificates."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from coterie.nouns.errors import WorldError

logger = logging.getLogger(__name__)

T = TypeVar("T")

LOOK_S = 1.0
"""How often the files are checked for changes."""


class Watched(Generic[T]):
    """A value read from files, and read again when one of them changes; no signal is needed."""

    def __init__(self, what: str, paths: Sequence[Path], read: Callable[[], T]) -> None:
        """:raises WorldError: from ``read``: a broker does not start with invalid files."""
        self._what = what
        self._paths = paths
        self._read = read
        self._stamps = self._look()
        self.value = read()

    async def watch(self) -> None:
        """Check the files until this is cancelled. If a changed file is missing or invalid, the value stays; an error
        is logged once for each change."""
        while True:
            await asyncio.sleep(LOOK_S)
            # On the event loop: the files are small, and no other asyncio task reads an intermediate state.
            stamps = self._look()
            if stamps == self._stamps:
                continue
            self._stamps = stamps
            try:
                self.value = self._read()
                logger.info("Reloaded the %s", self._what)
            except WorldError as error:
                logger.error("Cannot reload the %s, the previous ones stay in use: %s", self._what, error)

    def _look(self) -> list[tuple[int, int, int] | None]:
        return [_stamp(path) for path in self._paths]


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
