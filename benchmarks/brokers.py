"""The measured brokers, each in a separate process that is pinned to one core, and the brokers' cost."""

import contextlib
import os
import resource
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from coterie.nouns.errors import WorldError
from tests.kafka.embedded_broker import EmbeddedBroker
from tests.kafka.real_kafka import RealKafka, fetch

JAVA_OPTIONS = ("-Xmx1g", "-Xms1g")
"""The heap of Kafka's own start script, with both of Java's compilers. The tests' broker uses only one compiler, to
start sooner."""

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PAGE_SIZE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredBroker:
    """A broker that listens at ``port``, and the process whose cost is measured."""

    port: int
    pid: int

    @property
    def cpu_s(self) -> float:
        """Processor time of the process so far, user and system."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND

    @property
    def resident_mb(self) -> float:
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * _PAGE_SIZE / 1e6


@contextlib.contextmanager
def embedded(folder: Path, *, core: int, connections_max: int) -> Iterator[MeasuredBroker]:
    """Run Coterie's own broker on one core in the block."""
    broker = EmbeddedBroker(folder / "data", connections_max=connections_max)
    with pinned_to_core(core):
        broker.start()
    try:
        yield MeasuredBroker(port=broker.port, pid=broker.pid)
    finally:
        broker.kill()


@contextlib.contextmanager
def kafka(folder: Path, *, core: int, properties: str = "") -> Iterator[MeasuredBroker]:
    """Run Apache Kafka on one core in the block.

    :raises ProgramUnavailableError: when Kafka cannot run on this machine.
    """
    broker = RealKafka(fetch(print_progress), folder, properties=properties, java_options=JAVA_OPTIONS)
    with pinned_to_core(core):
        broker.start()
    try:
        yield MeasuredBroker(port=broker.port, pid=broker.pid)
    finally:
        broker.stop()


@contextlib.contextmanager
def pinned_to_core(core: int) -> Iterator[None]:
    """Processes and threads that start in the block run on ``core`` only, and stay there."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def allow_files(count: int) -> None:
    """Raise the limit of open files of this process, and of the brokers that it starts, to at least ``count``.

    :raises WorldError: when the hard limit is lower.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < count:
        raise WorldError(
            f"{count} open files are needed, one for each member's connection, and the hard limit is {hard};"
            " raise this limit (ulimit -Hn), or measure fewer members"
        )
    if soft != resource.RLIM_INFINITY and soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


def other_core(core: int) -> int:
    """The core for the clients: another core than ``core``, the broker's, if this process may use another."""
    return min(os.sched_getaffinity(0) - {core}, default=core)


def per_cpu_s(count: int, cpu_s: float) -> int:
    """``count`` per second of processor time, which is taken as at least one tick: the system counts in ticks."""
    return round(count / max(cpu_s, 1 / _TICKS_PER_SECOND))


def ratios(ours: Mapping[str, float], theirs: Mapping[str, float]) -> dict[str, float]:
    """The ratio of each figure of ours to theirs; figures that are 0 there, or that ours lack, are left out."""
    return {key: round(ours[key] / theirs[key], 2) for key in theirs if theirs[key] and key in ours}


def print_progress(line: str) -> None:
    """Print progress to standard error, since standard output is for the result."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
