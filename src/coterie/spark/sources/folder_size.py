"""A warning when a source's folder contains so many files that listing them is expensive."""

import logging
import os

from coterie.spark.paths import path_of_config_value

log = logging.getLogger(__name__)

LARGE_FOLDER_FILES_MIN = 10_000
"""The number of files from which on a folder is reported."""
LIST_CPU_TIME_S = 0.26
"""The CPU time, in seconds, that Spark needs for one task to list a folder of :data:`LARGE_FOLDER_FILES_MIN` files
once."""


class FolderSizeReporter:
    """Logs a warning when a folder contains :data:`LARGE_FOLDER_FILES_MIN` files or more, and again each time the
    number of files has doubled since the last warning."""

    def __init__(self) -> None:
        self._next_warning_count = LARGE_FOLDER_FILES_MIN

    def warn_if_many_files(self, path: str) -> None:
        """Count the entries of the folder ``path``, the value of ``source.path``, and log the warning if there are too
        many. Does nothing when the folder cannot be listed."""
        try:
            count = len(os.listdir(path_of_config_value(path)))
        except OSError:
            return  # The path is a pattern, or the folder does not exist. Spark reports a missing folder.
        if count >= self._next_warning_count:
            self._next_warning_count = 2 * count
            log.warning(
                "The folder source.path=%s contains %d files and folders. Each task lists all of them whenever it "
                "checks for new files, which takes about %.2f s of CPU time or more: move files that were read long "
                "ago to another folder",
                path,
                count,
                count / LARGE_FOLDER_FILES_MIN * LIST_CPU_TIME_S,
            )
