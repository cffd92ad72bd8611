"""Groups of real worker processes with light tasks: workers of Coterie and of Kafka Connect, on one broker."""

import json
import re
import shutil
import subprocess
import time
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path

import httpx

from benchmarks.brokers import MeasuredBroker, pinned_to_core, print_progress
from benchmarks.http_client import http
from benchmarks.task_log import TaskLogEntry, TaskTimeline, now_ms, parse_entries
from coterie.cli.processes import Child, Children
from coterie.nouns.group_description import SCHEDULED_REBALANCE_DELAY_CONFIG
from coterie.wire.errors import ErrorCode
from tests.broker.conftest import raw_client
from tests.kafka.real_kafka import ProgramUnavailableError, fetch, java_path
from tests.ports import free_port

DEADLINE_S = 300
SESSION_MS = 10_000
HEARTBEAT_MS = 3_000
DESCRIBE_GROUPS, DESCRIBE_VERSION = 15, 5
INCREMENTAL_ALTER_CONFIGS, GROUP_RESOURCE = 44, 32
CONNECT_GROUP_DESCRIBE = 10003
INITIAL_DELAY_MS = 300
RETRY_S = 0.1

COMMON = """\
bootstrap.servers={bootstrap}
group.id={group}
connect.protocol={protocol}
config.storage.topic={group}-configs
offset.storage.topic={group}-offsets
status.storage.topic={group}-statuses
config.storage.replication.factor=1
offset.storage.replication.factor=1
status.storage.replication.factor=1
session.timeout.ms={session_ms}
heartbeat.interval.ms={heartbeat_ms}
scheduled.rebalance.max.delay.ms={delay_ms}
"""


class Workers(ABC):
    """The workers of one group, by name; their files and task logs are in ``folder``."""

    def __init__(
        self,
        folder: Path,
        children: Children,
        *,
        port: int,
        protocol: str,
        delay_ms: int,
        workers_port: int | None = None,
    ) -> None:
        """``port`` is the broker's, ``workers_port`` the one that the workers connect to, if it is another one."""
        self.running: dict[str, Child] = {}
        self.killed_ms: dict[str, int] = {}
        self.group_id = folder.name
        self._folder = folder
        self._children = children
        self._port = port
        self._properties = COMMON.format(
            bootstrap=f"127.0.0.1:{workers_port or port}",
            group=self.group_id,
            protocol=protocol,
            session_ms=SESSION_MS,
            heartbeat_ms=HEARTBEAT_MS,
            delay_ms=delay_ms,
        )
        self._started = 0

    # -- differs between Coterie and Kafka Connect --------------------------------------------------------------------

    @abstractmethod
    def command(self, properties: Path, task_log: Path) -> list[str]:
        """The arguments of Python that run one worker."""

    @abstractmethod
    def further_properties(self) -> str: ...

    connector_class: str
    """The class of the connector with light tasks."""
    can_drain: bool
    can_restart: bool
    """Whether a worker can restart in place and keep its membership."""
    generation_pattern: re.Pattern[str]
    """Pattern of the line in a worker's log that contains the group's generation, or the epoch of its assignment."""

    # -- the workers --------------------------------------------------------------------------------------------------

    def start(self) -> str:
        """Start one more worker, without waiting for it; returns its name."""
        self._started += 1
        name = f"worker-{self._started}"
        properties = self._folder / f"{name}.properties"
        # Each worker has its port, and keeps it when it restarts in place.
        listener = f"listeners=http://127.0.0.1:{free_port()}\n"
        properties.write_text(self._properties + listener + self.further_properties())
        diary = self._folder / f"{name}.diary"
        diary.touch()
        self.running[name] = self._children.start_python(f"{self.group_id}-{name}", self.command(properties, diary))
        return name

    def stop(self, name: str) -> None:
        """Send SIGTERM to the worker, without waiting for its end."""
        self.running.pop(name).terminate()

    def kill(self, name: str) -> None:
        """Kill the worker with SIGKILL, and note the time."""
        self.running.pop(name).kill()
        self.killed_ms[name] = now_ms()

    def drain(self, name: str) -> None:
        """Drain the worker, without waiting: its jobs move to other workers while it still runs, then it ends."""
        url = self.url(name)
        worker_id = url.removeprefix("http://").rstrip("/")
        answer = http.post(f"{url}/coterie/workers/{worker_id}/drain", timeout=DEADLINE_S)
        assert answer.is_success, f"{name} cannot be drained: {answer.status_code} {answer.text}"
        del self.running[name]

    def restart(self, name: str) -> None:
        """Let the worker restart in place, without waiting."""
        url = self.url(name)
        worker_id = url.removeprefix("http://").rstrip("/")
        answer = http.post(f"{url}/coterie/workers/{worker_id}/restart", timeout=DEADLINE_S)
        assert answer.is_success, f"{name} cannot be restarted: {answer.status_code} {answer.text}"

    def restart_all(self) -> None:
        """Restart the workers one by one; returns when the last one runs its tasks again."""
        command = ["-m", "coterie", "workers", "restart", "--rolling", "--url", self.url(next(iter(self.running)))]
        child = self._children.start_python(f"{self.group_id}-restart", command)
        assert child.wait(DEADLINE_S), child.log_tail()
        assert child.exit_code == 0, child.log_tail()

    def delete(self, name: str) -> None:
        """Delete a connector by a request to the first worker."""
        self._request("DELETE", f"/connectors/{name}", httpx.codes.NO_CONTENT)

    def end(self) -> None:
        """End all workers; those that run 30 s after SIGTERM are killed."""
        self._children.end_gracefully(list(self.running.values()), grace_s=30)
        self.running.clear()

    def timeline(self) -> TaskTimeline:
        """The starts and stops of tasks on all workers so far."""
        found: list[TaskLogEntry] = []
        for diary in self._folder.glob("*.diary"):
            found += parse_entries(diary.read_text(), diary.stem)
        return TaskTimeline(entries=found, killed_ms=self.killed_ms)

    def serves_connectors(self) -> bool:
        """Whether the first worker's REST API serves connectors. A worker of Connect listens, and joins its group,
        before its REST API serves any path."""
        url = self.url(next(iter(self.running)))
        return http.get(f"{url}/connectors", timeout=DEADLINE_S).status_code == httpx.codes.OK

    def create(self, name: str, tasks: int) -> None:
        """Create a connector with light tasks by a request to the first worker."""
        self.post(name, {"connector.class": self.connector_class, "tasks.max": str(tasks)})

    def post(self, name: str, config: Mapping[str, str]) -> None:
        """Create a connector by a request to the first worker."""
        self._request("POST", "/connectors", httpx.codes.CREATED, {"name": name, "config": config})

    def _request(self, method: str, path: str, success: int, body: Mapping[str, object] | None = None) -> None:
        """Send a request to the first worker, repeated while the response reports a rebalance."""
        url = self.url(next(iter(self.running)))
        deadline_s = time.monotonic() + DEADLINE_S
        while True:
            answer = http.request(method, f"{url}{path}", json=body, timeout=DEADLINE_S)
            if answer.status_code == success:
                return
            # Connect responds 409 during a rebalance, and 500 when it forwarded the request during a rebalance.
            if time.monotonic() > deadline_s or answer.status_code not in (409, 500, 503):
                raise AssertionError(f"{method} {path} failed: {answer.status_code} {answer.text}")
            time.sleep(RETRY_S)

    # -- state of the workers -----------------------------------------------------------------------------------------

    def generations(self) -> set[int]:
        """The generations of the group that workers have logged."""
        return {
            int(number)
            for log in self._folder.parent.glob(f"logs/{self.group_id}-*.log")
            for number in self.generation_pattern.findall(log.read_text(errors="replace"))
        }

    def longest_stall_ms(self) -> float:
        """The longest stall of an event loop, from the logs of workers that have ended; 0 for JVMs, which have none."""
        told = (
            float(number)
            for log in self._folder.parent.glob(f"logs/{self.group_id}-*.log")
            for number in re.findall(r"longest stall was (\d+) ms", log.read_text(errors="replace"))
        )
        return max(told, default=0)

    def group_state(self) -> tuple[str, int]:
        """The group's state, such as Stable, and its number of members, from its coordinator; Unknown and 0 after an
        error."""
        with raw_client(self._port) as client:
            answer = client.ask(
                DESCRIBE_GROUPS, DESCRIBE_VERSION, groups=(self.group_id,), include_authorized_operations=False
            )
        (group,) = answer.groups
        if group.error_code != ErrorCode.none:
            return "Unknown", 0
        return group.group_state, len(group.members)

    def until(self, awaited: str, condition: Callable[[], bool], *, pause_s: float = 0.02) -> None:
        """Wait until ``condition`` is true; ``awaited`` describes the condition in the error.

        :raises AssertionError: when a worker has ended, or ``condition`` is still false after ``DEADLINE_S``.
        """
        deadline_s = time.monotonic() + DEADLINE_S
        while not condition():
            for name, child in self.running.items():
                if not child.is_running:
                    raise AssertionError(f"{name} has ended: {child.log_tail()}")
            if time.monotonic() > deadline_s:
                raise AssertionError(f"{self.group_id}: timeout after {DEADLINE_S} s, waiting until {awaited}")
            time.sleep(pause_s)

    def url(self, name: str) -> str:
        """The REST URL of the worker, from its log; waits until the worker has logged it."""
        found: list[str] = []

        def has_url() -> bool:
            found.extend(
                re.findall(r"http://127\.0\.0\.1:[1-9]\d*", self.running[name].log_path.read_text(errors="replace"))
            )
            return bool(found)

        self.until(f"{name} serves REST", has_url)
        return found[0]


class CoterieWorkers(Workers):
    connector_class = "LightSource"
    can_drain = True
    can_restart = True
    generation_pattern = re.compile(r"Generation (\d+)\b[^\n]* led by")

    def command(self, properties: Path, task_log: Path) -> list[str]:
        return ["-m", "benchmarks.light_worker", str(properties), str(task_log)]

    def further_properties(self) -> str:
        return f"checkpoint.location={self._folder}\n"


class ConnectGroupWorkers(CoterieWorkers):
    """Workers of Coterie in a connect group. Their protocol is the place where the target assignment is computed:
    ``client`` or ``server``."""

    generation_pattern = re.compile(r"\(assignment epoch (\d+)\), led by")

    def __init__(
        self,
        folder: Path,
        children: Children,
        *,
        port: int,
        protocol: str,
        delay_ms: int,
        workers_port: int | None = None,
    ) -> None:
        super().__init__(folder, children, port=port, protocol="static", delay_ms=delay_ms, workers_port=workers_port)
        self._assignor_key = {"client": "group.local.assignors", "server": "group.remote.assignor"}[protocol]
        # The coordinator's assignor does not know the setting of the workers.
        set_group_config(port, self.group_id, SCHEDULED_REBALANCE_DELAY_CONFIG, str(delay_ms))

    def further_properties(self) -> str:
        return f"{super().further_properties()}group.protocol=connect\n{self._assignor_key}=cooperative\n"

    def group_state(self) -> tuple[str, int]:
        with raw_client(self._port) as client:
            answer = client.ask(
                CONNECT_GROUP_DESCRIBE, 0, group_ids=(self.group_id,), include_authorized_operations=False
            )
        (group,) = answer.groups
        if group.error_code != ErrorCode.none:
            return "Unknown", 0
        return group.group_state, len(group.members)


class ConnectWorkers(Workers):
    """Unmodified Kafka Connect workers, with a heap of 512 MB each."""

    connector_class = "peers.LightSource"
    can_drain = False
    can_restart = False
    generation_pattern = re.compile(r"generationId=(\d+)")

    def __init__(self, *arguments: Path | Children, jars: Path, plugins: Path, **options: object) -> None:
        super().__init__(*arguments, **options)  # type: ignore[arg-type]
        self._jars, self._plugins = jars, plugins

    def command(self, properties: Path, task_log: Path) -> list[str]:
        run = "import os, sys; os.execv(sys.argv[1], sys.argv[1:])"
        options = ["-Xmx512m", "-Dlog4j2.level=INFO", "-Dlog4j2.statusLoggerLevel=OFF", f"-Dlight.diary={task_log}"]
        main = ["-cp", f"{self._jars}/*", "org.apache.kafka.connect.cli.ConnectDistributed", str(properties)]
        return ["-c", run, java_path(), *options, *main]

    def further_properties(self) -> str:
        converters = "".join(
            f"{kind}.converter=org.apache.kafka.connect.json.JsonConverter\n" for kind in ("key", "value")
        )
        return f"{converters}plugin.path={self._plugins}\nplugin.discovery=service_load\n"


def set_group_config(port: int, group_id: str, name: str, value: str) -> None:
    """Set a config of a connect group on the broker at ``port``."""
    change = {"name": name, "config_operation": 0, "value": value}
    resource = {"resource_type": GROUP_RESOURCE, "resource_name": group_id, "configs": [change]}
    with raw_client(port) as client:
        answer = client.ask(INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource], validate_only=False)
    (changed,) = answer.responses
    assert changed.error_code == ErrorCode.none, changed


def light_source(folder: Path) -> tuple[Path, Path]:
    """Kafka's jars, and a plug-in path with the light connector of `peers`.

    :raises ProgramUnavailableError: when there is no Java, no compiler, or no jars.
    """
    jars = fetch(print_progress)
    compiler = shutil.which("javac", path=str(Path(java_path()).resolve().parent)) or shutil.which("javac")
    if compiler is None:
        raise ProgramUnavailableError(
            "Kafka Connect's light tasks need a Java compiler: install a JDK, or measure with --no-peer"
        )
    classes = folder / "classes"
    source = Path(__file__).parent / "peers" / "LightSource.java"
    subprocess.run([compiler, "-cp", f"{jars}/*", "-d", str(classes), str(source)], check=True)
    plugins = folder / "plugins"
    (plugins / "light").mkdir(parents=True)
    with zipfile.ZipFile(plugins / "light" / "light.jar", "w") as jar:
        for path in classes.rglob("*.class"):
            jar.write(path, str(path.relative_to(classes)))
        jar.writestr("META-INF/services/org.apache.kafka.connect.source.SourceConnector", "peers.LightSource\n")
    return jars, plugins


@contextmanager
def broker(folder: Path, children: Children, *, core: int | None = None) -> Iterator[MeasuredBroker]:
    """Run an embedded broker in the block, on one core if ``core`` is given. At its end the broker writes the gaps
    between each member's requests to ``stats.json`` in ``folder``."""
    listen = [
        *("--listen", "127.0.0.1:0", "--initial-delay-ms", str(INITIAL_DELAY_MS)),
        *("--config", f"group.connect.initial.rebalance.delay.ms={INITIAL_DELAY_MS}"),
        *("--config", f"group.connect.session.timeout.ms={SESSION_MS}"),
    ]
    command = ["-m", "coterie", "broker", "--data", str(folder), *listen]
    with nullcontext() if core is None else pinned_to_core(core):
        child = children.start_python(f"{folder.name}-broker", command)
    deadline_s = time.monotonic() + DEADLINE_S
    while not (told := re.findall(r"listens at 127\.0\.0\.1:(\d+)", child.log_path.read_text())):
        if not child.is_running or time.monotonic() > deadline_s:
            raise AssertionError(f"the broker does not start: {child.log_tail()}")
        time.sleep(0.05)
    try:
        yield MeasuredBroker(port=int(told[0]), pid=child.pid)
    finally:
        child.terminate()
        child.wait(DEADLINE_S)


def heartbeat_gap_ms(folder: Path, group_id: str) -> int:
    """The longest time without a request from a member of the group, in ms, from the statistics in ``folder``, which
    the broker wrote when it ended."""
    stats = json.loads((folder / "stats.json").read_text())
    return max(int(member["largest_gap_ms"]) for member in stats["groups"][group_id].values())
