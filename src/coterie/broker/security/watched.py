"""Files that an operator changes beside a running broker: rules, certificates."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from coterie.nouns.errors import WorldError

logger = logging.getLogger(__name__)

T = TypeVar("T")

LOOK_S = 1.0
"""How soon a change is seen."""


class Watched(Generic[T]):
    """What was read from some files, and is read again when one of them changes; no signal needed."""

    def __init__(self, what: str, paths: Sequence[Path], read: Callable[[], T]) -> None:
        """:raises WorldError: from ``read``: a broker does not start with files that are no good."""
        self._what = what
        self._paths = paths
        self._read = read
        self._stamps = self._look()
        self.value = read()

    async def watch(self) -> None:
        """Until this is cancelled. Files that are no good, or gone, change nothing: the log says so, once a change."""
        while True:
            await asyncio.sleep(LOOK_S)
            # In one turn of the loop: these files are small, and nobody sees half of a change.
            stamps = self._look()
            if stamps == self._stamps:
                continue
            self._stamps = stamps
            try:
                self.value = self._read()
                logger.info("%s: read again", self._what)
            except WorldError as error:
                logger.error("%s: those before stay in force: %s", self._what, error)

    def _look(self) -> list[tuple[int, int, int] | None]:
        return [_stamp(path) for path in self._paths]


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
