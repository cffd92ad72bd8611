"""Kafka's own command-line tools; each runs in its own JVM, from Kafka's jars.

A start takes seconds of CPU on a small machine, so a test gets as much as possible from one run of a tool.
"""

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.kafka.real_kafka import java_path

RUN_TIMEOUT_S = 100

CLASSES: Mapping[str, str] = {
    "connect-distributed": "org.apache.kafka.connect.cli.ConnectDistributed",
    "kafka-cluster": "org.apache.kafka.tools.ClusterTool",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-consumer-perf-test": "org.apache.kafka.tools.ConsumerPerformance",
    "kafka-delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "kafka-get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "kafka-groups": "org.apache.kafka.tools.GroupsCommand",
    "kafka-log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "kafka-producer-perf-test": "org.apache.kafka.tools.ProducerPerformance",
    "kafka-topics": "org.apache.kafka.tools.TopicCommand",
    "kafka-transactions": "org.apache.kafka.tools.TransactionsCommand",
}
"""By the name of the script that starts it in Kafka's own distribution."""

# One collector thread and no optimizing compiler, since a tool runs for about a second.
# Java's own log is off: it warns on standard output about classes that cannot be archived.
_OPTIONS = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xlog:disable")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessResult:
    """A tool's exit code and output."""

    code: int
    out: str
    err: str


class Tools:
    """The tools of one folder of jars."""

    def __init__(self, jars: Path, archive: Path) -> None:
        """The first run writes its loaded classes to ``archive``, which halves the CPU time of later runs."""
        self._jars = jars
        self._archive = archive

    def command(
        self,
        tool: str,
        *arguments: str,
        log_level: str = "WARN",
        java_options: Sequence[str] = (),
        further_jars: Path | None = None,
    ) -> list[str]:
        """The command that starts ``tool``, for a test that uses it while it runs. ``further_jars`` is a folder with
        jars for its class path."""
        archives = "SharedArchiveFile" if self._archive.exists() else None
        return self._command(tool, arguments, log_level, archives, java_options, further_jars)

    def _command(
        self,
        tool: str,
        arguments: Sequence[str],
        log_level: str,
        archives: str | None,
        java_options: Sequence[str] = (),
        further_jars: Path | None = None,
    ) -> list[str]:
        """``archives``: the Java option for the archive's path, if any."""
        class_path = [f"{folder}/*" for folder in (self._jars, further_jars) if folder is not None]
        return [
            java_path(),
            *_OPTIONS,
            *((f"-XX:{archives}={self._archive}",) if archives is not None else ()),
            f"-Dlog4j2.level={log_level}",
            *java_options,
            "-cp",
            ":".join(class_path),
            CLASSES[tool],
            *arguments,
        ]

    def run(self, tool: str, *arguments: str, stdin: str = "", code: int | None = 0) -> ProcessResult:
        """Run ``tool`` to its end; its exit code must be ``code``, unless that is None."""
        archives = "SharedArchiveFile" if self._archive.exists() else "ArchiveClassesAtExit"
        ended = subprocess.run(
            self._command(tool, arguments, "WARN", archives),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=RUN_TIMEOUT_S,
            check=False,
        )
        ran = ProcessResult(code=ended.returncode, out=ended.stdout, err=ended.stderr)
        assert code is None or ran.code == code, f"{tool} {arguments} ended with {ran}"
        return ran
