"""Writes the archives of Spark's classes from which the JVMs of the tests start: they halve the processor time.

``python -m tests.class_archives`` does nothing if they exist. Tests do not need them.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from tests import jars
from tests.kafka.real_kafka import ProgramUnavailableError


def print_line(line: str) -> None:
    sys.stderr.write(line + "\n")


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="no-jars-") as without_jars:
        folders = [without_jars]
        try:
            folders.append(str(jars.fetched(print_line)))
        except ProgramUnavailableError as reason:
            print_line(str(reason))
        program = Path(sys.executable).with_name("coterie")
        writers = [subprocess.Popen([program, "jars", "archive", "--in", folder]) for folder in folders]
        return max([writer.wait() for writer in writers])


if __name__ == "__main__":
    sys.exit(main())
