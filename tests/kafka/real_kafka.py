"""A real Apache Kafka broker for tests: its jars are fetched once into the user's cache folder; it uses free ports.

PySpark contains Apache Ivy, so only a Java runtime is needed. Java reads proxies and mirrors from its own settings (the
environment's ``JAVA_TOOL_OPTIONS``, Ivy's ``~/.ivy2``), not from the environment's ``https_proxy``.
"""

import fcntl
import importlib.util
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias
from xml.sax.saxutils import quoteattr

from tests.ports import free_ports

VERSION = "4.3.1"
Modules: TypeAlias = tuple[tuple[str, str, str], ...]
MODULES: Modules = (
    ("org.apache.kafka", "kafka_2.13", VERSION),
    ("org.apache.kafka", "kafka-tools", VERSION),
    ("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.3"),
)
PLUGINS: Modules = (
    ("org.apache.kafka", "connect-file", VERSION),
    ("org.apache.kafka", "connect-basic-auth-extension", VERSION),
)
"""Kafka's own plug-ins of a Connect worker, which need no further jars: connectors, and the extension with which users
must log in."""
STREAMS: Modules = (
    ("org.apache.kafka", "kafka-streams-examples", VERSION),
    ("org.apache.kafka", "kafka-streams", VERSION),
    ("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.3"),
)
"""Kafka Streams with its own examples, and all that these need."""
FETCH_TIMEOUT_S = 900
START_TIMEOUT_S = 90
QUICK_START = ("-Xmx512m", "-XX:TieredStopAtLevel=1")
"""Java's options for a broker that starts fast, at the expense of throughput."""

# Ends the broker when the pipe at its standard input closes, so that it never outlives the process that started it. The
# broker's process id is written to the file given as $0. A signal to the whole group ends the waiting `cat`; the shell
# ignores it until it has killed the broker.
TIED_TO_ITS_PARENT = (
    'trap : TERM INT; exec 3<&0 </dev/null; "$@" 3<&- & broker=$!; echo $broker >"$0"; '
    "cat <&3 >/dev/null; kill -9 $broker"
)

PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller_port}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
controller.listener.names=CONTROLLER
log.dirs={data}
auto.create.topics.enable=false
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=300
group.min.session.timeout.ms=1000
"""


_JARS, _PLUGIN_JARS = f"kafka-{VERSION}-with-tools", f"connect-plugins-{VERSION}-with-basic-auth"
_STREAMS_JARS = f"kafka-streams-{VERSION}"


class ProgramUnavailableError(Exception):
    """Real Kafka cannot run here; the message is one sentence with the reason."""


def fetch(print_line: Callable[[str], None]) -> Path:
    """The folder with Kafka's jars; the first call on a machine fetches them and reports it through ``print_line``.

    :raises ProgramUnavailableError: if there is no Java, or the jars cannot be fetched.
    """
    return _fetched(_JARS, MODULES, print_line)


def fetch_plugins(print_line: Callable[[str], None]) -> Path:
    """The folder with the jars of ``PLUGINS`` only.

    :raises ProgramUnavailableError: as :func:`fetch`.
    """
    return _fetched(_PLUGIN_JARS, PLUGINS, print_line, transitive=False)


def fetch_streams(print_line: Callable[[str], None]) -> Path:
    """The folder with the jars of ``STREAMS``.

    :raises ProgramUnavailableError: as :func:`fetch`.
    """
    return _fetched(_STREAMS_JARS, STREAMS, print_line)


def is_fetched() -> bool:
    """Whether :func:`fetch`, :func:`fetch_plugins` and :func:`fetch_streams` return at once."""
    return all((_cache() / name).is_dir() for name in (_JARS, _PLUGIN_JARS, _STREAMS_JARS))


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "coterie"


def _fetched(name: str, modules: Modules, print_line: Callable[[str], None], *, transitive: bool = True) -> Path:
    java = java_path()
    folder = _cache()
    jars = folder / name
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{jars.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if jars.is_dir():
            return jars
        print_line(
            f"Fetching {modules[0][1]} {VERSION} (once, with all of Kafka 55 MB and a minute or two) into {jars} ..."
        )
        started_s = time.monotonic()
        with tempfile.TemporaryDirectory(dir=folder) as partial:
            resolve(java, Path(partial), modules, transitive=transitive)
            # Renamed only when complete: an interrupted fetch leaves no folder with this name.
            (Path(partial) / "jars").rename(jars)
        print_line(f"Fetched {len(list(jars.iterdir()))} jars in {time.monotonic() - started_s:.0f} s.")
    return jars


class RealKafka:
    """One broker (KRaft, combined mode) with its data in ``folder``."""

    def __init__(
        self,
        jars: Path,
        folder: Path,
        *,
        properties: str = "",
        format_options: Sequence[str] = (),
        java_options: Sequence[str] = QUICK_START,
    ) -> None:
        """``properties``: further lines of its ``server.properties``; ``{port}``, ``{controller_port}`` and
        ``{further_port}`` in them become its ports. ``format_options``: options of the tool that formats its folder."""
        self._jars = jars
        self._folder = folder
        self._properties = properties
        self._format_options = format_options
        self._java_options = java_options
        self._pid_path = folder / "pid"
        self._process: subprocess.Popen[bytes] | None = None
        self.port, self._controller_port, self.further_port = free_ports(3)
        """The last port is for a second listener, if ``properties`` configure one."""

    @property
    def pid(self) -> int:
        return int(self._pid_path.read_text())

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """:raises ProgramUnavailableError: if it does not respond in time; the message has its log's last lines."""
        properties = self._folder / "server.properties"
        text = f"{PROPERTIES}{self._properties}\n"
        properties.write_text(
            text.format(
                port=self.port,
                controller_port=self._controller_port,
                further_port=self.further_port,
                data=self._folder / "data",
            )
        )
        storage_tool = self._java(
            "kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c", str(properties), *self._format_options
        )
        subprocess.run(storage_tool, check=True, capture_output=True, timeout=START_TIMEOUT_S)
        with (self._folder / "broker.log").open("wb") as log:
            command = ["sh", "-c", TIED_TO_ITS_PARENT, str(self._pid_path), *self._java("kafka.Kafka", str(properties))]
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log)
        if not self._answers():
            self.stop()
            raise ProgramUnavailableError(f"Apache Kafka {VERSION} did not start: {self._log()[-2000:]}")

    def stop(self) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait(timeout=START_TIMEOUT_S)
            self._process = None

    def _answers(self) -> bool:
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline_s:
            log = self._log()
            if "Kafka Server started" in log:
                return True
            if "Address already in use" in log or "Exiting Kafka" in log:
                return False
            time.sleep(0.1)
        return False

    def _log(self) -> str:
        return (self._folder / "broker.log").read_text(errors="replace")

    def _java(self, *arguments: str) -> list[str]:
        return [java_path(), *self._java_options, *_LOGGING, "-cp", f"{self._jars}/*", *arguments]


# -- helpers ----------------------------------------------------------------------------------------------------------

_CLUSTER_ID = "Y290ZXJpZS10ZXN0cy0wMQ"
_LOGGING = ("-Dlog4j2.level=INFO", "-Dlog4j2.statusLoggerLevel=OFF")


def java_path() -> str:
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin" if home else None)
    if java is None:
        raise ProgramUnavailableError("a real Kafka broker needs Java 17 or newer: install it or set JAVA_HOME")
    return java


def resolve(java: str, folder: Path, modules: Modules, *, transitive: bool = True) -> None:
    """Put the jars of ``modules``, and if ``transitive`` their dependencies, into ``folder``/jars.

    :raises ProgramUnavailableError: if they cannot be fetched.
    """
    names = ", ".join(name for _, name, _ in modules)
    pyspark = importlib.util.find_spec("pyspark")
    assert pyspark is not None
    assert pyspark.origin is not None
    (ivy,) = (Path(pyspark.origin).parent / "jars").glob("ivy-*.jar")
    dependencies = "".join(
        f"<dependency org={quoteattr(org)} name={quoteattr(name)} rev={quoteattr(rev)} "
        f"transitive='{str(transitive).lower()}' conf='default->default'/>"
        for org, name, rev in modules
    )
    (folder / "ivy.xml").write_text(
        "<ivy-module version='2.0'><info organisation='coterie' module='real-kafka'/>"
        "<configurations><conf name='default'/></configurations>"
        f"<dependencies>{dependencies}</dependencies></ivy-module>"
    )
    command = [java, "-jar", str(ivy), "-cache", str(folder / "cache"), "-ivy", str(folder / "ivy.xml")]
    command += ["-retrieve", f"{folder}/jars/[artifact]-[revision](-[classifier]).[ext]"]
    # Some jars have the type bundle; Ivy would omit them without an error if the type were not named.
    command += ["-types", "jar", "bundle", "-confs", "default"]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise ProgramUnavailableError(f"The jars of {names} did not arrive within {FETCH_TIMEOUT_S} s") from None
    if ended.returncode != 0 or "unresolved dependencies" in ended.stdout.lower():
        raise ProgramUnavailableError(
            f"The jars of {names} cannot be fetched from Maven Central: {ended.stdout[-500:]}"
        )
