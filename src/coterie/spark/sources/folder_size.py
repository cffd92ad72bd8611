"""A warning when a source's folder contains so many files that listing them is expensive."""

import logging
import os

from coterie.spark.paths import as_path

log = logging.getLogger(__name__)

BIG_FOLDER_FILES = 10_000
LOOK_S = 0.26
"""The CPU time that Spark needs, for one task, to list this many files once."""


class FolderSize:
    """Logs a warning for a folder with many files, and again each time their number has doubled."""

    def __init__(self) -> None:
        self._next = BIG_FOLDER_FILES

    def look(self, path: str) -> None:
        try:
            count = len(os.listdir(as_path(path)))
        except OSError:
            return  # A pattern, or no folder: Spark reports the latter.
        if count >= self._next:
            self._next = 2 * count
            log.warning(
                "source.path=%s contains %d files. Each task lists all of them per trigger, at %.2f s of CPU or more: "
                "move files that were read long ago to another folder",
                path,
                count,
                count / BIG_FOLDER_FILES * LOOK_S,
            )
