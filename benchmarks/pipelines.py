"""Pipelines that are measured in Coterie and in plain Spark, the processes that run them, and the processes' cost.

A :class:`Pipeline` is described once. :class:`Coterie` runs it as a connector of a real worker, :class:`PlainSpark` as
queries of `benchmarks.plain_spark`. Batches of both are counted and timed by the files of their checkpoints.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import httpx

from benchmarks import fleets
from benchmarks.brokers import print_progress
from benchmarks.fleets import DEADLINE_S, CoterieWorkers
from benchmarks.inputs import SCHEMA, Sink, Topic
from benchmarks.task_log import quantile
from coterie.cli.processes import Child, Children
from coterie.spark.checkpoint import safe_file_name
from coterie.spark.jars import jar_settings_unless_user_sets_jars
from coterie.spark.java import find_or_write_java_home
from coterie.spark.session import make_spark_settings
from tests import jars

POLL_S = 0.01
COMPILERS: Mapping[str, str] = {"c1": "-XX:TieredStopAtLevel=1", "both": "-XX:+TieredCompilation"}
"""Java's option for its first compiler only, and the option for both compilers, which is Java's default."""

ValueT = TypeVar("ValueT")


# -- pipelines --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetFiles:
    """A folder with Parquet files that have the columns of the input."""

    path: Path
    files: int


Source: TypeAlias = Topic | ParquetFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """One source, one sink, and a SELECT over each row between them."""

    name: str
    source: Source
    sink: Sink
    sql: str | None = None
    tasks: int = 1
    trigger_ms: int = 0
    batch: int | None = None
    """The most records or files of a batch; None means each system's default."""
    rotate: bool = True
    """Whether Coterie's file sink may wait for rows, as it does by default if it reads from Kafka."""

    def connector(self) -> dict[str, str]:
        """The config of a connector of Coterie."""
        config = {"tasks.max": str(self.tasks), "trigger.interval.ms": str(self.trigger_ms), **self.sink.connector()}
        match self.source:
            case Topic(name=topic):
                config |= {
                    "source.class": "KafkaSource",
                    "source.topics": topic,
                    "source.value.converter": "org.apache.kafka.connect.json.JsonConverter",
                    "source.value.converter.schemas.enable": "false",
                    "source.value.schema": SCHEMA,
                }
                bound = "source.max.offsets.per.trigger"
            case ParquetFiles(path=path):
                config |= {
                    "source.class": "FileSource",
                    "source.format": "parquet",
                    "source.path": str(path),
                    "source.schema": SCHEMA,
                }
                bound = "source.max.files.per.trigger"
        if self.batch is not None:
            config[bound] = str(self.batch)
        if self.sql is not None:
            config |= {"transforms": "select", "transforms.select.type": "Sql", "transforms.select.query": self.sql}
        can_wait = isinstance(self.source, Topic) and config["connector.class"] == "FileSink"
        if can_wait and not self.rotate:
            config["sink.rotate.interval.ms"] = "0"
        return config

    def spark_queries(self, guarantee: str, *, servers: str, checkpoints: Path) -> list[dict[str, Any]]:
        """The requests to `benchmarks.plain_spark`: one query for each task, each with a separate sink."""
        return [self._query(task, guarantee, servers=servers, checkpoints=checkpoints) for task in range(self.tasks)]

    def _query(self, task: int, guarantee: str, *, servers: str, checkpoints: Path) -> dict[str, Any]:
        name = self.query_name(task)
        match self.source:
            case Topic():
                assigned = {self.source.name: list(range(self.source.partitions))[task :: self.tasks]}
                options = {"kafka.bootstrap.servers": servers, "assign": json.dumps(assigned)}
                options["startingOffsets"] = "earliest"
                format_, bound = "kafka", "maxOffsetsPerTrigger"
            case ParquetFiles(path=path):
                options, format_, bound = {"path": str(path)}, "parquet", "maxFilesPerTrigger"
        if self.batch is not None:
            options[bound] = str(self.batch)
        sink, to = self.sink.spark_sink(guarantee, name)
        return {
            "format": format_,
            "options": options,
            "schema": SCHEMA,
            "sql": self.sql,
            "session": self.sink.spark_session_settings(guarantee),
            "sink": sink,
            "to": to,
            "trigger_ms": self.trigger_ms,
            "checkpoint": str(checkpoints / name),
        }

    def query_name(self, task: int) -> str:
        """The name of plain Spark's query that corresponds to a task."""
        return f"{self.name}-{task}"


# -- systems ----------------------------------------------------------------------------------------------------------


class MeasuredSystem(ABC):
    """A measured system: its processes, from its start to :meth:`close`."""

    name: str

    def __init__(self, folder: Path, children: Children, *, port: int, compiler: str) -> None:
        folder.mkdir()
        self.folder = folder
        self._children = children
        self._port = port
        self._compiler = compiler

    @property
    @abstractmethod
    def processes(self) -> Sequence[Child]: ...

    @abstractmethod
    def open(self) -> None:
        """Start the processes; returns when pipelines can be started without further waiting."""

    @abstractmethod
    def run(self, pipeline: Pipeline) -> None: ...

    @abstractmethod
    def _checkpoint(self, pipeline: Pipeline, task: int) -> Path | None:
        """The checkpoint of a task; None while the task has no checkpoint."""

    @abstractmethod
    def check(self, pipeline: Pipeline) -> None:
        """:raises AssertionError: when the pipeline has failed."""

    def close(self) -> None:
        self._children.end_gracefully(self.processes, grace_s=30)

    def checkpoints(self, pipeline: Pipeline) -> list[Path]:
        """The checkpoints of all tasks, in order of their numbers. Waits until all checkpoints exist."""

        def all_there() -> list[Path] | None:
            found = [self._checkpoint(pipeline, task) for task in range(pipeline.tasks)]
            there = [path for path in found if path is not None]
            return there if len(there) == pipeline.tasks else None

        return self.until(f"{pipeline.name} has its checkpoints", all_there, pipeline)

    def wait_commit(self, pipeline: Pipeline, batch_id: int, *, within_s: float = DEADLINE_S) -> None:
        """Wait until each task has committed the batch ``batch_id``."""
        marks = [path / "commits" / str(batch_id) for path in self.checkpoints(pipeline)]
        what = f"{pipeline.name} commits batch {batch_id}"
        self.until(what, lambda: all(mark.exists() for mark in marks), pipeline, within_s=within_s)

    def wait_rows(self, pipeline: Pipeline, rows: int, *, within_s: float = DEADLINE_S) -> None:
        """Wait until a reader of the sink finds at least this many rows."""
        what, sink = f"{rows} rows of {pipeline.name} are visible", pipeline.sink
        self.until(what, lambda: sink.count() >= rows, pipeline, within_s=within_s, pause_s=0.5)

    def until(
        self,
        awaited: str,
        probe: Callable[[], ValueT | None],
        pipeline: Pipeline,
        *,
        within_s: float = DEADLINE_S,
        pause_s: float = POLL_S,
    ) -> ValueT:
        """Call ``probe`` until its result is true, and return the result; ``awaited`` describes it in the error.

        :raises AssertionError: when that takes longer than ``within_s``, a process has ended, or ``pipeline`` failed.
        """
        deadline = time.monotonic() + within_s
        checked = time.monotonic()
        while True:
            if seen := probe():
                return seen
            now = time.monotonic()
            assert now < deadline, (
                f"{self.name}: timeout after {within_s:.0f} s, waiting until {awaited}\n{self.tails()}"
            )
            if now > checked + 1:
                checked = now
                for process in self.processes:
                    assert process.is_running, f"{self.name} has ended: {process.log_tail()}"
                self.check(pipeline)
            time.sleep(pause_s)

    def tails(self) -> str:
        """The ends of all processes' logs."""
        return "\n".join(process.log_tail() for process in self.processes)

    @property
    def cpu_s(self) -> float:
        return sum(cpu_s(process.pid) for process in self.processes)

    @property
    def resident_mb(self) -> float:
        return sum(resident_mb(process.pid) for process in self.processes)


class SparkWorkers(CoterieWorkers):
    """Workers of Coterie with their Spark, as `coterie worker` starts them."""

    compiler: str = "default"

    def command(self, properties: Path, task_log: Path) -> list[str]:
        return ["-m", "coterie", "worker", "-c", str(properties)]

    def further_properties(self) -> str:
        lines = [
            f"checkpoint.location={self._folder / 'checkpoints'}",
            f"log.jvm.file={self._folder / f'jvm-{self._started}.log'}",
        ]
        if self.compiler != "default":
            lines.append(f"spark.driver.extraJavaOptions={COMPILERS[self.compiler]}")
        return "".join(f"{line}\n" for line in lines)


class Coterie(MeasuredSystem):
    """Workers with default settings; ``workers`` is their number."""

    name = "ours"

    def __init__(self, folder: Path, children: Children, *, port: int, compiler: str, workers: int = 1) -> None:
        super().__init__(folder, children, port=port, compiler=compiler)
        self.workers = SparkWorkers(folder, children, port=port, protocol="static", delay_ms=300_000)
        self.workers.compiler = compiler
        self._count = workers
        # Created once, since each new client reads the system's certificates.
        self._client = httpx.Client(trust_env=False, verify=False, timeout=DEADLINE_S)

    @property
    def processes(self) -> Sequence[Child]:
        return list(self.workers.running.values())

    def open(self) -> None:
        for _ in range(self._count):
            self.workers.start()
        for name in self.workers.running:
            self.workers.until(f"{name} is ready", partial(self._is_healthy, self.workers.url(name)), pause_s=0.1)
        joined = ("Stable", self._count)
        self.workers.until("the group is stable", lambda: self.workers.group_state() == joined, pause_s=0.1)

    def run(self, pipeline: Pipeline) -> None:
        self.workers.post(pipeline.name, pipeline.connector())

    def logs(self) -> list[Path]:
        """The logs of all workers, including those that have ended."""
        return sorted((self.folder.parent / "logs").glob(f"{self.folder.name}-worker-*.log"))

    def request(self, method: str, path: str, **more: Any) -> httpx.Response:
        """Send a request to the first worker."""
        return self._client.request(method, f"{self.workers.url(next(iter(self.workers.running)))}{path}", **more)

    def check(self, pipeline: Pipeline) -> None:
        status = self.request("GET", f"/connectors/{pipeline.name}/status")
        if status.is_success:
            told = status.json()
            failed = [one["trace"] for one in (told["connector"], *told["tasks"]) if one["state"] == "FAILED"]
            assert not failed, f"{pipeline.name} has failed: {failed[0]}"

    def close(self) -> None:
        super().close()
        self.workers.running.clear()
        self._client.close()

    def _is_healthy(self, url: str) -> bool:
        return self._client.get(f"{url}/health").is_success

    def _checkpoint(self, pipeline: Pipeline, task: int) -> Path | None:
        pattern = f"checkpoints/{safe_file_name(pipeline.name)}-*/gen-*/{task}/*"
        held = [path for path in self.folder.glob(pattern) if (path / "offsets").is_dir()]
        return held[-1] if held else None


class PlainSpark(MeasuredSystem):
    """One driver of plain Spark. ``guarantee`` selects how it writes (:meth:`.Sink.spark_sink`)."""

    def __init__(self, folder: Path, children: Children, *, port: int, compiler: str, guarantee: str = "stock") -> None:
        super().__init__(folder, children, port=port, compiler=compiler)
        self.name = guarantee
        self._guarantee = guarantee
        self._driver: Child | None = None

    @property
    def processes(self) -> Sequence[Child]:
        return [] if self._driver is None else [self._driver]

    def open(self) -> None:
        (self.folder / "queries").mkdir()
        (self.folder / "session.json").write_text(json.dumps(plain_spark_settings(self.folder, self._compiler)))
        java = str(find_or_write_java_home(self.folder, os.environ))
        arguments = ["-m", "benchmarks.plain_spark", str(self.folder)]
        self._driver = self._children.start_python(
            f"{self.folder.name}-driver", arguments, extra_environment={"JAVA_HOME": java}
        )
        deadline = time.monotonic() + DEADLINE_S
        while not (self.folder / "ready").exists():
            assert self._driver.is_running, self._driver.log_tail()
            assert time.monotonic() < deadline, f"Spark does not start: {self._driver.log_tail()}"
            time.sleep(POLL_S)

    def run(self, pipeline: Pipeline) -> None:
        servers = f"127.0.0.1:{self._port}"
        asked = pipeline.spark_queries(self._guarantee, servers=servers, checkpoints=self.folder / "checkpoints")
        for task, query in enumerate(asked):
            aside = self.folder / "query.aside"
            aside.write_text(json.dumps(query))
            aside.rename(self.folder / "queries" / f"{pipeline.query_name(task)}.json")

    def check(self, pipeline: Pipeline) -> None:
        """Does nothing: a driver whose query has failed ends, which :meth:`until` detects."""

    def _checkpoint(self, pipeline: Pipeline, task: int) -> Path | None:
        path = self.folder / "checkpoints" / pipeline.query_name(task)
        return path if path.is_dir() else None


def plain_spark_settings(scratch: Path, compiler: str) -> dict[str, str]:
    """Spark's own defaults, with the JVM's options, the memory and the jars of a worker."""
    ours = make_spark_settings({}, scratch)
    options = [option for option in ours["spark.driver.extraJavaOptions"].split() if option.startswith("-XX:")]
    return {
        **jar_settings_unless_user_sets_jars(jars.fetched(print_progress), {}),
        "spark.master": ours["spark.master"],
        "spark.driver.memory": ours["spark.driver.memory"],
        "spark.driver.extraJavaOptions": " ".join(options) if compiler == "default" else COMPILERS[compiler],
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
    }


# -- one run ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class Rig:
    """A broker with which one system after another runs. Each run uses a new instance of the system."""

    folder: Path
    children: Children
    port: int
    compiler: str
    _made: list[str] = field(default_factory=list)

    @property
    def servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    @contextmanager
    def running_system(self, name: str, *, guarantee: str | None = None, workers: int = 1) -> Iterator[MeasuredSystem]:
        """Run a system in the block: ``ours`` is Coterie with this number of ``workers``, every other ``name`` is plain
        Spark. The default of ``guarantee``, which only plain Spark uses, is ``name``."""
        self._made.append(name)
        folder = self.folder / f"{name}-{len(self._made)}"
        system: MeasuredSystem
        if name == "ours":
            system = Coterie(folder, self.children, port=self.port, compiler=self.compiler, workers=workers)
        else:
            system = PlainSpark(
                folder, self.children, port=self.port, compiler=self.compiler, guarantee=guarantee or name
            )
        try:
            system.open()
            yield system
        finally:
            system.close()

    def new_path(self, name: str) -> Path:
        """The path of a new folder, which does not exist yet, beside the folders of the systems."""
        return self.folder / f"{name}-{len(self._made)}-{time.monotonic_ns()}"


@contextmanager
def rig(folder: Path, compiler: str) -> Iterator[Rig]:
    """Run a broker in the block, then end all processes; ``compiler`` is ``default`` or in :data:`COMPILERS`."""
    with ExitStack() as stack:
        children = stack.enter_context(Children(folder / "logs"))
        broker = stack.enter_context(fleets.broker(folder / "broker", children))
        yield Rig(folder=folder, children=children, port=broker.port, compiler=compiler)


# -- cost -------------------------------------------------------------------------------------------------------------


def cpu_s(pid: int) -> float:
    """Processor time of a process and its descendants, including ended descendants for which their parent waited."""
    ticks = os.sysconf("SC_CLK_TCK")
    stats = _stats()
    return sum(sum(map(int, stats[one][11:15])) for one in _process_tree(pid, stats)) / ticks


def resident_mb(pid: int) -> float:
    """Resident memory of a process and all its descendants; memory that several of them share counts several times."""
    stats = _stats()
    return sum(int(stats[one][21]) for one in _process_tree(pid, stats)) * os.sysconf("SC_PAGE_SIZE") / 1e6


def _process_tree(pid: int, stats: Mapping[int, Sequence[str]]) -> list[int]:
    """The process ``pid`` and all its descendants in ``stats``; empty if the process has ended."""
    found, added = [], [pid] if pid in stats else []
    while added:
        found += added
        added = [one for one, stat in stats.items() if int(stat[1]) in added]
    return found


def _stats() -> dict[int, list[str]]:
    """The fields of each process after its name: state, parent, group, …"""
    found: dict[int, list[str]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                found[int(entry)] = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has ended
    return found


def busy_s() -> float:
    """Processor time that all cores of the machine have spent since its start, without idle and waiting time."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    user, nice, system, _idle, _waiting, *further = map(int, fields[:8])
    return (user + nice + system + sum(further)) / os.sysconf("SC_CLK_TCK")


def batches(checkpoint: Path) -> dict[int, float]:
    """When each batch was planned, in seconds since 1970, for the batches that are still in the checkpoint."""
    found: dict[int, float] = {}
    for path in (checkpoint / "offsets").iterdir():
        if path.name.isdigit():
            with suppress(FileNotFoundError):  # Spark has removed it since
                found[int(path.name)] = json.loads(path.read_text().split("\n")[1])["batchTimestampMs"] / 1000
    return found


def committed_s(checkpoint: Path, batch_id: int) -> float:
    """When the batch was committed, in seconds since 1970."""
    return (checkpoint / "commits" / str(batch_id)).stat().st_mtime


def end_offsets(checkpoint: Path, batch_id: int) -> int:
    """The sum of the offsets at which a batch ends, over all partitions of the task."""
    planned = json.loads((checkpoint / "offsets" / str(batch_id)).read_text().rsplit("\n", 1)[1])
    return sum(offset for partitions in planned.values() for offset in partitions.values())


# -- output -----------------------------------------------------------------------------------------------------------


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of every benchmark of pipelines."""
    parser.add_argument(
        "--compiler",
        choices=("default", *COMPILERS),
        default="default",
        help="Java's compilers in both: the worker's default, the first alone, or both (default: %(default)s)",
    )
    parser.add_argument("--case", action="append", help="measure only this (default: all)")
    parser.add_argument("--no-stock", action="store_true", help="leave plain Spark out")
    parser.add_argument(
        "--runs", type=int, default=1, help="number of runs, of which the medians are printed (default: %(default)s)"
    )
    parser.add_argument("--folder", type=Path, help="folder for all files (default: the system's temporary folder)")


def result_line(
    benchmark: str, case: str, options: argparse.Namespace, load_before: float, **more: Any
) -> dict[str, Any]:
    return {
        "benchmark": benchmark,
        "case": case,
        **more,
        "compiler": options.compiler,
        "runs": options.runs,
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "load_before": load_before,
        "load_after": os.getloadavg()[0],
    }


def error_line(
    benchmark: str, case: str, options: argparse.Namespace, load_before: float, reason: BaseException, **more: Any
) -> dict[str, Any]:
    """The line of a case that could not be measured, with the error instead of figures."""
    print_progress(f"{case}: {reason}")
    return result_line(benchmark, case, options, load_before, **more, error=str(reason))


def print_lines(lines: Iterable[Mapping[str, Any]]) -> int:
    """Print each line as soon as it is measured; returns the exit code: 1 if a line contains an error, else 0."""
    wrong = False
    for one in lines:
        wrong |= "error" in one
        sys.stdout.write(json.dumps(one) + "\n")
        sys.stdout.flush()
    return int(wrong)


def systems(options: argparse.Namespace, *guarantees: str) -> list[str]:
    """The names of the measured systems: Coterie (``ours``) and, unless ``--no-stock`` is given, plain Spark with each
    of ``guarantees`` (default: ``stock``)."""
    return ["ours"] if options.no_stock else ["ours", *(guarantees or ("stock",))]


def medians_of_interleaved_runs(
    systems: Sequence[str], runs: int, measure_system: Callable[[str], Mapping[str, float]]
) -> dict[str, dict[str, float]]:
    """Measure each of ``systems`` ``runs`` times; returns the median of each figure, by system.

    Runs of the systems alternate, so that other load on the machine affects all systems alike.
    """
    told = [(name, measure_system(name)) for _ in range(runs) for name in systems]
    return {name: medians([one for of, one in told if of == name]) for name in systems}


def with_ratios(figures: Mapping[str, Mapping[str, float]], key: str, *, prefix: str = "") -> dict[str, Any]:
    """The figure ``key`` of each system, and the ratio of Coterie's figure to the figure of each other system.

    A ratio is None if the other system's figure is 0.
    """
    told: dict[str, Any] = {f"{prefix}{name}": one[key] for name, one in figures.items()}
    for name, one in figures.items():
        if name != "ours":
            suffix = "" if name == "stock" else f"_{name}"
            told[f"{prefix}ratio{suffix}"] = round(figures["ours"][key] / one[key], 3) if one[key] else None
    return told


def medians(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The median of each figure; every run has the figures of the first."""
    return {key: statistics.median(run[key] for run in runs) for key in runs[0]}


def p50_p99(values: Sequence[float]) -> tuple[float, float]:
    """The median and the 99th percentile; 0 and 0 without values."""
    return quantile(values, 0.5), quantile(values, 0.99)


def cores() -> int:
    return os.cpu_count() or 1
