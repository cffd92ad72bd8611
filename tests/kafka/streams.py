"""Runs the word count, an example of Kafka Streams that Kafka contains, unmodified in a separate JVM that a test can
kill."""

import os
import signal
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.kafka.real_kafka import java_path

INPUT, OUTPUT = "streams-plaintext-input", "streams-wordcount-output"
"""The topics that the example reads and writes."""
_OPTIONS = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Dlog4j2.level=WARN")
END_TIMEOUT_S = 60


class WordCount:
    """The application; all its runs have one state folder."""

    def __init__(self, jars: Path, folder: Path, properties: Mapping[str, object]) -> None:
        self._jars = jars
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._properties_path = folder / "streams.properties"
        text = "".join(f"{name}={value}\n" for name, value in properties.items())
        self._properties_path.write_text(f"{text}state.dir={folder / 'state'}\n")

    def start(self) -> None:
        main = "org.apache.kafka.streams.examples.wordcount.WordCountDemo"
        command = [java_path(), *_OPTIONS, "-cp", f"{self._jars}/*", main, str(self._properties_path)]
        with (self._folder / "streams.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def kill(self) -> None:
        """Kill the process, if it runs, at any point of a transaction."""
        if self._process is not None:
            os.kill(self._process.pid, signal.SIGKILL)
            self._process.wait(END_TIMEOUT_S)
            self._process = None

    def check_runs(self) -> None:
        """Assert that the process has not ended."""
        assert self._process is not None
        assert self._process.poll() is None, (self._folder / "streams.log").read_text()[-3000:]


def counts_in_order(outputs: Iterable[tuple[str, int]]) -> dict[str, list[int]]:
    """The counts of each word in the order of the output. Each is greater by one than the one before, if every line of
    the input has been counted exactly once."""
    counts: dict[str, list[int]] = {}
    for word, count in outputs:
        counts.setdefault(word, []).append(count)
    return counts
