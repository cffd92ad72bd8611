"""The log file of Spark's JVM, without the values of references to secrets.

The JVM writes to a pipe, and a thread of this process copies the pipe to the file. So an exception of a plug-in or of a
Java library that quotes a config brings no secret into the file. If this process is killed, the JVM ends too, and what
is in the pipe then is lost.
"""

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from coterie.config.secrets import hide_secrets

log = logging.getLogger(__name__)

_LINE_SIZE_MAX_BYTES = 1_048_576
"""The longest part of a line, in bytes, that is copied at once: the part is written although the line has not ended."""


@contextmanager
def open_redacted_jvm_log(file: Path) -> Iterator[int]:
    """Context manager: a file descriptor for the output of a process. The output is appended to ``file`` line by line,
    with secrets hidden. The copying continues after the block, until that process and its children have closed the
    descriptor.

    :raises OSError: when ``file`` cannot be opened.
    """
    output = file.open("ab", buffering=0)
    read_end, write_end = os.pipe()
    threading.Thread(
        target=_copy_lines_hiding_secrets, args=(os.fdopen(read_end, "rb"), output), name="coterie-jvm-log", daemon=True
    ).start()
    try:
        yield write_end
    finally:
        os.close(write_end)


def _copy_lines_hiding_secrets(pipe: BinaryIO, output: BinaryIO) -> None:
    """Copy the lines of ``pipe`` to ``output``, with secrets hidden, until the end of ``pipe``. A line that cannot be
    written, for example to a full disk, is dropped: if the copying stopped, the pipe would become full, and the JVM
    would stop."""
    with pipe, output:
        has_failed = False
        while line := pipe.readline(_LINE_SIZE_MAX_BYTES):
            try:
                output.write(hide_secrets(line.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape"))
            except OSError as error:
                if not has_failed:
                    log.warning(
                        "Lines of the log %s of Spark's JVM cannot be written and are lost; this is logged once: %s",
                        output.name,
                        error,
                    )
                has_failed = True
