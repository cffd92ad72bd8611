"""How many files a source's folder holds, and a warning when they cost much to look at."""

import logging
import os

from coterie.spark.paths import as_path

log = logging.getLogger(__name__)

BIG_FOLDER_FILES = 10_000
LOOK_S = 0.26
"""What a look of one task at so many files costs Spark, in CPU."""


class FolderSize:
    """Warns of a folder with many files, once and again whenever their number has doubled."""

    def __init__(self) -> None:
        self._next = BIG_FOLDER_FILES

    def look(self, path: str) -> None:
        try:
            count = len(os.listdir(as_path(path)))
        except OSError:
            return  # A pattern, or no folder: Spark says so.
        if count >= self._next:
            self._next = 2 * count
            log.warning(
                "source.path=%s holds %d files. Every look of every task lists all of them, at %.2f s of CPU or more: "
                "move files that were read long ago to another folder",
                path,
                count,
                count / BIG_FOLDER_FILES * LOOK_S,
            )
