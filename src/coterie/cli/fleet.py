"""A cluster on one machine: the embedded broker and some workers as monitored child processes."""

import asyncio
import fcntl
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from coterie.cli.processes import Child, Children
from coterie.config import defaults
from coterie.kafka.connection import Address
from coterie.kafka.members import count_members
from coterie.nouns.errors import WorldError
from coterie.nouns.ids import GroupId

HOST = "127.0.0.1"
GROUP = GroupId("coterie")
_START_FAILURE_WITHIN_S = 3.0
"""A broker that ends within this time after its start counts as failed to start."""
_QUICK_DEATHS_MAX = 3
"""After so many ends of the broker in succession, all but the first right after a start, it is not restarted."""
_BROKER_READY_S = 30.0
"""How long the broker may take from its first start until it accepts connections."""
_WORKER_GRACE_S = 12.0
"""How long the workers may take from SIGTERM to their end; then they are killed."""
_BROKER_GRACE_S = 5.0
"""How long the broker may take from SIGTERM to its end; then it is killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSettings:
    """The data folder and ports of a fleet, and the worker settings that differ between fleets."""

    data: Path
    broker_port: int
    rest_port: int
    worker_settings: Mapping[str, str] = field(default_factory=lambda: {"scheduled.rebalance.max.delay.ms": "10000"})
    """The workers' settings in addition to those that every fleet has. The default shortens Connect's delay of five
    minutes, which is for workers that are restarted automatically: a fleet does not restart workers."""
    initial_delay_ms: int = defaults.INITIAL_REBALANCE_DELAY_MS
    """How long the group waits for more workers before its first round."""

    def rest_url(self, number: int) -> str:
        """The REST URL of worker ``number``, counted from 0."""
        return f"http://{HOST}:{self.rest_port + number}"


class Fleet:
    """The broker and the numbered workers. :meth:`check_children` restarts a broker that has ended, but no worker."""

    def __init__(self, settings: FleetSettings, children: Children, say: Callable[[str], None]) -> None:
        """``say`` prints a line for the operator."""
        self.settings = settings
        self.workers: dict[int, Child] = {}
        self.ended_workers: list[str] = []
        """Names of workers that ended without :meth:`remove_killed_worker` or :meth:`close`, in order."""
        self._children = children
        self._say = say
        self._broker: Child | None = None
        self._quick_deaths = 0
        # One client that does not check certificates: reading the system's certificates costs 0.1 s of CPU each time,
        # and workers serve plain HTTP.
        self._client = httpx.Client(timeout=2, trust_env=False, verify=False)

    # -- starting -----------------------------------------------------------------------------------------------------

    def check_ports(self, workers: int) -> None:
        """Check that the ports of the broker and of this many ``workers`` are free.

        :raises WorldError: when a port is in use, is needed twice, or is above 65535; names the option to change.
        """
        wanted = [(self.settings.broker_port, "the broker", "--broker-port")]
        wanted += [(self.settings.rest_port + i, f"worker-{i}'s REST", "--rest-port") for i in range(workers)]
        users: dict[int, str] = {}
        for port, who, option in wanted:
            if (other := users.setdefault(port, who)) != who:
                raise WorldError(
                    f"{who} needs port {port}, which is the port of {other}: choose another with {option}."
                )
            if port > 65535:
                raise WorldError(f"{port} is not a port that {who} can use: choose a lower one with {option}.")
            if not is_free(port):
                raise WorldError(f"Port {port}, which {who} needs, is in use: choose another with {option}.")

    def check_data(self) -> None:
        """Check that no other broker uses the data folder. Without this check, this broker's failed start would be
        written to the logs of the other cluster.

        :raises WorldError: when another broker uses the data folder.
        :raises OSError: when the broker's lock file cannot be opened.
        """
        lock = self.settings.data / "broker" / "lock"
        if not lock.exists():
            return
        with lock.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                data = self.settings.data
                raise WorldError(
                    f"Another cluster uses the data folder {data}: stop it, or choose another with --data."
                ) from error

    def start_broker(self) -> None:
        """Start the broker; returns when the broker accepts connections.

        :raises WorldError: when the broker accepts no connections within ``_BROKER_READY_S``, or repeatedly ends right
            after its start; the message contains the end of the broker's log.
        """
        self._broker = self._run_broker()
        deadline = time.monotonic() + _BROKER_READY_S
        while not _accepts_connections(self.settings.broker_port):
            self.check_children()
            if time.monotonic() > deadline:
                raise WorldError(
                    f"The broker did not open its port within {_BROKER_READY_S:.0f} s.{self._broker_log_tail()}"
                )
            time.sleep(0.05)

    def start_worker(self, number: int) -> Child:
        """Start worker ``number``, or a replacement for a worker of this number that has ended.

        Does not wait until the worker is ready.
        """
        name = f"worker-{number}"
        file = self._file(name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(f"{key}={_escaped(value)}\n" for key, value in self._properties(number, name).items()))
        self.workers[number] = self._run(name, "worker", "-c", str(file))
        return self.workers[number]

    def is_ready(self, number: int) -> bool:
        """Whether worker ``number`` has started and can run tasks."""
        return not self.startup_status(number)

    def startup_status(self, number: int) -> str:
        """The current step of the startup of worker ``number``, as text; empty when the worker has started.

        A worker that does not respond counts as one whose process is starting, unless the process has ended.
        """
        try:
            answer = self._client.get(f"{self.settings.rest_url(number)}/health")
            if answer.is_success:
                return ""
            message = str(answer.json()["message"])
        except (httpx.HTTPError, ValueError, KeyError, TypeError):
            child = self.workers.get(number)
            if child is None:
                return "its process has ended"
            code = child.exit_code
            return "its process is starting" if code is None else f"its process has ended ({_exit_cause(code)})"
        return "Spark is starting" if "task runtime" in message else message

    # -- monitoring ---------------------------------------------------------------------------------------------------

    def check_children(self) -> None:
        """Check the children once: restart a broker that has ended, and report each worker that has ended.

        A worker that has ended is removed from ``workers`` and added to ``ended_workers``.

        :raises WorldError: when the broker repeatedly ended right after its start; it is not restarted then.
        """
        if self._broker is not None and (code := self._broker.exit_code) is not None:
            self._say(f"The broker ended unexpectedly ({_exit_cause(code)}); restarting it on the same port and data.")
            self._quick_deaths = self._quick_deaths + 1 if self._broker.age_s < _START_FAILURE_WITHIN_S else 1
            if self._quick_deaths >= _QUICK_DEATHS_MAX:
                raise WorldError(f"The broker repeatedly ended right after its start.{self._broker_log_tail()}")
            self._broker = self._run_broker()
        ended = {number: child for number, child in sorted(self.workers.items()) if not child.is_running}
        for number in ended:
            del self.workers[number]
        for child in ended.values():
            self.ended_workers.append(child.name)
            self._report_end(child)

    def has_members(self) -> bool:
        """Whether the group has a member. Also True while the broker does not respond.

        A killed worker is a member until its session ends.
        """
        try:
            return (
                asyncio.run(count_members(Address(HOST, self.settings.broker_port), GROUP, client_id="coterie-up")) > 0
            )
        except WorldError:
            return True

    def remove_killed_worker(self, number: int) -> None:
        """Remove worker ``number``, which was killed on purpose, from ``workers``, without a report."""
        del self.workers[number]

    def close(self) -> None:
        """End the workers first, which stop their tasks and leave the group, then the broker.

        Processes that do not end in time are killed.
        """
        self._children.end(list(self.workers.values()), grace_s=_WORKER_GRACE_S)
        self.workers.clear()
        if self._broker is not None:
            self._children.end([self._broker], grace_s=_BROKER_GRACE_S)
            self._broker = None
        self._client.close()

    # -- helpers ------------------------------------------------------------------------------------------------------

    def _report_end(self, child: Child) -> None:
        """Print how a worker ended and, after an unexpected end, the command that starts it again and its log."""
        code = child.exit_code
        assert code is not None, "the child has ended"
        if code == 0:
            self._say(f"{child.name} has ended with exit code 0.")
            return
        # The log of a killed worker contains no reason.
        why = f"Its log is {child.log}." if code < 0 else f"The end of {child.log}:\n{child.tail()}"
        advice = ""
        if self.workers:
            advice = (
                f" Its jobs wait {self._delay_s:g} s for its return (not if it led the group), then other workers run"
                f" them. To restart it: coterie worker -c {self._file(child.name)}"
            )
        self._say(f"{child.name} ended unexpectedly ({_exit_cause(code)}).{advice}\n{why}")

    def _run_broker(self) -> Child:
        """Start the broker's process; does not wait until the broker is ready."""
        listen, data = f"{HOST}:{self.settings.broker_port}", str(self.settings.data / "broker")
        delay_ms = str(self.settings.initial_delay_ms)
        return self._run("broker", "broker", "--listen", listen, "--data", data, "--initial-delay-ms", delay_ms)

    def _run(self, name: str, *arguments: str) -> Child:
        """Start ``coterie`` with ``arguments`` as the child ``name``."""
        # The temporary files that a killed child leaves are in the data folder, too.
        temporary = self.settings.data / "tmp"
        temporary.mkdir(parents=True, exist_ok=True)
        return self._children.start(name, ["-m", "coterie", *arguments], environment={"TMPDIR": str(temporary)})

    @property
    def _delay_s(self) -> float:
        """The workers' scheduled rebalance delay."""
        return int(self.settings.worker_settings["scheduled.rebalance.max.delay.ms"]) / 1000

    def _file(self, name: str) -> Path:
        """The path of the settings file of the worker ``name``."""
        return self.settings.data / "workers" / f"{name}.properties"

    def _broker_log_tail(self) -> str:
        """The end of the broker's log, as the end of an error message."""
        assert self._broker is not None
        return f" The end of {self._broker.log}:\n{self._broker.tail()}"

    def _properties(self, number: int, name: str) -> dict[str, str]:
        """The settings of worker ``number``, named ``name``."""
        return {
            "bootstrap.servers": f"{HOST}:{self.settings.broker_port}",
            "group.id": GROUP,
            "worker.name": name,
            "client.id": name,
            "listeners": self.settings.rest_url(number),
            "config.storage.topic": f"{GROUP}-configs",
            "config.storage.replication.factor": "1",
            "offset.storage.topic": f"{GROUP}-offsets",
            "offset.storage.replication.factor": "1",
            "status.storage.topic": f"{GROUP}-status",
            "status.storage.replication.factor": "1",
            "log.jvm.file": str(self.settings.data / "logs" / f"{name}.jvm.log"),
            "checkpoint.location": str(self.settings.data / "checkpoints"),
            **self.settings.worker_settings,
        }


def is_free(port: int) -> bool:
    """Whether a server could listen on ``port`` of 127.0.0.1 now."""
    try:
        socket.create_server((HOST, port)).close()
    except OSError:
        return False
    return True


def _accepts_connections(port: int) -> bool:
    """Whether a connection to ``port`` of 127.0.0.1 is accepted within 1 s."""
    try:
        socket.create_connection((HOST, port), timeout=1).close()
    except OSError:
        return False
    return True


def _exit_cause(code: int) -> str:
    """``code``, an exit code or a negative signal number, as text."""
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def _escaped(value: str) -> str:
    """``value`` as written in a properties file."""
    return value.replace("\\", "\\\\")
