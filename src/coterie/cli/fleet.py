"""A cluster on one machine: the embedded broker and some workers as monitored child processes."""

import asyncio
import fcntl
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import javaproperties

from coterie.cli.processes import Child, Children
from coterie.config import defaults
from coterie.kafka.group_admin import GroupAdmin
from coterie.nouns.errors import WorldError
from coterie.nouns.ids import GroupId
from coterie.nouns.membership import GroupProtocolName

HOST = "127.0.0.1"
GROUP_ID = GroupId("coterie")
_START_FAILURE_WITHIN_S = 3.0
"""A broker that ends within this time after its start counts as failed to start."""
_CONSECUTIVE_BROKER_ENDS_MAX = 3
"""After so many ends in succession, the broker is not restarted. An end more than ``_START_FAILURE_WITHIN_S`` after the
broker's start begins a new count."""
_BROKER_READY_TIMEOUT_S = 30.0
"""How long the broker may take from its first start until it accepts connections."""
_WORKER_GRACE_S = 12.0
"""How long the workers may take from SIGTERM to their end; then they are killed."""
_BROKER_GRACE_S = 5.0
"""How long the broker may take from SIGTERM to its end; then it is killed."""
_DESCRIBE_TIMEOUT_MS = 5_000
"""How long the broker may take to describe the group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSettings:
    """The settings in which fleets differ: data folder, ports, protocol, and some settings of workers and broker."""

    data_folder: Path
    broker_port: int
    first_rest_port: int
    extra_worker_settings: Mapping[str, str] = field(
        default_factory=lambda: {"scheduled.rebalance.max.delay.ms": "10000"}
    )
    """The workers' settings in addition to those that every fleet has. The default shortens Connect's delay of five
    minutes, which is for workers that are restarted automatically: a fleet does not restart workers."""
    initial_rebalance_delay_ms: int = defaults.INITIAL_REBALANCE_DELAY_MS
    """How long the group waits for more workers before its first round, or its first target assignment."""
    group_protocol: GroupProtocolName = GroupProtocolName.CLASSIC
    """The protocol between the workers and the broker."""
    session_timeout_ms: int | None = None
    """How long a worker stays in the group without a heartbeat. None: the default. In a classic group a setting of the
    workers, in a connect group of the broker."""
    heartbeat_interval_ms: int | None = None
    """The time between two heartbeats of a worker. None: the default. In a classic group a setting of the workers, in a
    connect group of the broker."""

    def rest_url(self, number: int) -> str:
        """The REST URL of worker ``number``, counted from 0."""
        return f"http://{HOST}:{self.first_rest_port + number}"

    @property
    def broker_timing_options(self) -> list[str]:
        """The options of the broker's command that set the delays and timeouts of groups; not its address and data."""
        options = ["--initial-delay-ms", str(self.initial_rebalance_delay_ms)]
        if self.group_protocol is GroupProtocolName.CONNECT:
            configs = {
                "initial.rebalance.delay.ms": str(self.initial_rebalance_delay_ms),
                **self._session_and_heartbeat_settings,
            }
            for name, value in configs.items():
                options += ["--config", f"group.connect.{name}={value}"]
        return options

    @property
    def protocol_and_extra_worker_properties(self) -> Mapping[str, str]:
        """The workers' settings that these fleet settings determine: the group's protocol; in a classic group, session
        timeout and heartbeat interval as far as they are set; and ``extra_worker_settings``, which override these. The
        address of the broker and the topics are not among them."""
        is_classic = self.group_protocol is GroupProtocolName.CLASSIC
        timings = self._session_and_heartbeat_settings if is_classic else {}
        return {"group.protocol": self.group_protocol.value, **timings, **self.extra_worker_settings}

    @property
    def _session_and_heartbeat_settings(self) -> dict[str, str]:
        """The session timeout and the heartbeat interval, as far as they are set: by the keys that workers of a classic
        group have for them. The broker's configs for a connect group are the same keys after ``group.connect.``."""
        timings = {"session.timeout.ms": self.session_timeout_ms, "heartbeat.interval.ms": self.heartbeat_interval_ms}
        return {name: str(value) for name, value in timings.items() if value is not None}


class Fleet:
    """Starts, checks and ends a broker and numbered workers on this machine. :meth:`handle_ended_children`
    restarts a broker that has ended, but no worker."""

    def __init__(self, settings: FleetSettings, children: Children, print_line: Callable[[str], None]) -> None:
        """``print_line`` prints its argument as a line for the operator."""
        self.settings = settings
        self.workers: dict[int, Child] = {}
        self.ended_workers: list[str] = []
        """Names of workers that ended without :meth:`forget_killed_worker` or :meth:`close`, in order."""
        self._children = children
        self._print_line = print_line
        self._broker: Child | None = None
        self._consecutive_broker_ends = 0
        # One client that does not check certificates: reading the system's certificates costs 0.1 s of CPU each time,
        # and workers serve plain HTTP.
        self._http_client = httpx.Client(timeout=2, trust_env=False, verify=False)

    # -- starting -----------------------------------------------------------------------------------------------------

    def check_ports_are_free(self, worker_count: int) -> None:
        """Check that the ports of the broker and of ``worker_count`` workers are free.

        :raises WorldError: when a port is in use, is needed twice, or is above 65535; names the option to change.
        """
        needed_ports = [(self.settings.broker_port, "the broker", "--broker-port")]
        needed_ports += [
            (self.settings.first_rest_port + number, f"worker-{number}'s REST", "--rest-port")
            for number in range(worker_count)
        ]
        user_by_port: dict[int, str] = {}
        for port, port_user, option in needed_ports:
            if (other_user := user_by_port.setdefault(port, port_user)) != port_user:
                raise WorldError(
                    f"{port_user} needs port {port}, which is the port of {other_user}: choose another with {option}."
                )
            if port > 65535:
                raise WorldError(f"{port} is not a port that {port_user} can use: choose a lower one with {option}.")
            if not is_port_free(port):
                raise WorldError(f"Port {port}, which {port_user} needs, is in use: choose another with {option}.")

    def check_data_folder_unlocked(self) -> None:
        """Check that no running broker uses the data folder. Without this check, the failed start of this fleet's
        broker would be written to the logs of the other cluster.

        :raises WorldError: when another broker uses the data folder.
        :raises OSError: when the broker's lock file cannot be opened.
        """
        lock_path = self.settings.data_folder / "broker" / "lock"
        if not lock_path.exists():
            return
        with lock_path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                data_folder = self.settings.data_folder
                raise WorldError(
                    f"Another cluster uses the data folder {data_folder}: stop it, or choose another with --data."
                ) from error

    def start_broker_and_wait(self) -> None:
        """Start the broker; returns when the broker accepts connections.

        :raises WorldError: when the broker accepts no connections within ``_BROKER_READY_TIMEOUT_S``, or repeatedly
            ends right after its start; the message contains the end of the broker's log.
        """
        self._broker = self._start_broker_process()
        deadline = time.monotonic() + _BROKER_READY_TIMEOUT_S
        while not _accepts_connections(self.settings.broker_port):
            self.handle_ended_children()
            if time.monotonic() > deadline:
                raise WorldError(
                    f"The broker did not open its port within {_BROKER_READY_TIMEOUT_S:.0f} s.{self._broker_log_tail()}"
                )
            time.sleep(0.05)

    def start_worker(self, number: int) -> Child:
        """Start worker ``number``, or a replacement for a worker of this number that has ended.

        Does not wait until the worker is ready.
        """
        name = f"worker-{number}"
        settings_file = self._settings_file_path(name)
        settings_file.parent.mkdir(parents=True, exist_ok=True)
        settings_file.write_text(
            "".join(
                f"{javaproperties.join_key_value(key, value, ensure_ascii=False)}\n"
                for key, value in self._worker_properties(number, name).items()
            ),
            encoding="utf-8",
        )
        self.workers[number] = self._start_coterie_process(name, "worker", "-c", str(settings_file))
        return self.workers[number]

    def is_worker_ready(self, number: int) -> bool:
        """Whether worker ``number`` has started and is healthy (``GET /health``)."""
        return not self.worker_unready_reason(number)

    def worker_unready_reason(self, number: int) -> str:
        """What worker ``number`` is doing until it has started, or why it is unhealthy, as text for the user; empty
        when the worker is healthy. Normally the text is the message of the worker's ``GET /health``. If the worker does
        not respond: that its process has ended, with the cause if it is known, else that its process is starting."""
        try:
            response = self._http_client.get(f"{self.settings.rest_url(number)}/health")
            if response.is_success:
                return ""
            message = str(response.json()["message"])
        except (httpx.HTTPError, ValueError, KeyError, TypeError):
            child = self.workers.get(number)
            if child is None:
                return "its process has ended"
            exit_code = child.exit_code
            return (
                "its process is starting" if exit_code is None else f"its process has ended ({_exit_cause(exit_code)})"
            )
        return "Spark is starting" if "task runtime" in message else message

    # -- monitoring ---------------------------------------------------------------------------------------------------

    def handle_ended_children(self) -> None:
        """Check the children once: restart a broker that has ended, and report each worker that has ended.

        A worker that has ended is removed from ``workers`` and added to ``ended_workers``.

        :raises WorldError: when the broker repeatedly ended right after its start; it is not restarted then.
        """
        if self._broker is not None and (exit_code := self._broker.exit_code) is not None:
            self._print_line(
                f"The broker ended unexpectedly ({_exit_cause(exit_code)}); restarting it on the same port and data."
            )
            self._consecutive_broker_ends = (
                self._consecutive_broker_ends + 1 if self._broker.age_s < _START_FAILURE_WITHIN_S else 1
            )
            if self._consecutive_broker_ends >= _CONSECUTIVE_BROKER_ENDS_MAX:
                raise WorldError(
                    "The broker repeatedly ended right after its start, and is not started again."
                    f"{self._broker_log_tail()}"
                )
            self._broker = self._start_broker_process()
        ended_children = {number: child for number, child in sorted(self.workers.items()) if not child.is_running}
        for number in ended_children:
            del self.workers[number]
        for child in ended_children.values():
            self.ended_workers.append(child.name)
            self._report_worker_end(child)

    def may_group_have_members(self) -> bool:
        """Whether the group has a member. Also True while the broker does not respond.

        A killed worker is a member until its session ends.
        """
        admin = GroupAdmin(
            [f"{HOST}:{self.settings.broker_port}"], client_id="coterie-up", timeout_ms=_DESCRIBE_TIMEOUT_MS
        )
        try:
            group = asyncio.run(admin.describe_group(GROUP_ID))
        except WorldError:
            return True
        return group is not None and bool(group.members)

    def forget_killed_worker(self, number: int) -> None:
        """Remove worker ``number``, which was killed on purpose, from ``workers``, without a report. The worker's group
        is not changed."""
        del self.workers[number]

    def close(self) -> None:
        """End the workers first, which stop their tasks and leave the group, then the broker.

        Processes that do not end in time are killed.
        """
        self._children.end_gracefully(list(self.workers.values()), grace_s=_WORKER_GRACE_S)
        self.workers.clear()
        if self._broker is not None:
            self._children.end_gracefully([self._broker], grace_s=_BROKER_GRACE_S)
            self._broker = None
        self._http_client.close()

    # -- helpers ------------------------------------------------------------------------------------------------------

    def _report_worker_end(self, child: Child) -> None:
        """Print how a worker ended. After an unexpected end, also print its log, and, if other workers run, the command
        that starts it again."""
        exit_code = child.exit_code
        assert exit_code is not None, "the child has ended"
        if exit_code == 0:
            self._print_line(f"{child.name} has ended with exit code 0.")
            return
        # The log of a killed worker contains no reason.
        log_text = (
            f"Its log is {child.log_path}." if exit_code < 0 else f"The end of {child.log_path}:\n{child.log_tail()}"
        )
        advice = ""
        if self.workers:
            # In a connect group the coordinator defers the jobs, in a classic group the leader.
            is_classic = self.settings.group_protocol is GroupProtocolName.CLASSIC
            exception = " (not if it led the group)" if is_classic else ""
            advice = (
                f" Its jobs wait {self._rebalance_delay_s:g} s for its return{exception}, then other workers run them. "
                f"To restart it: coterie worker -c {self._settings_file_path(child.name)}"
            )
        self._print_line(f"{child.name} ended unexpectedly ({_exit_cause(exit_code)}).{advice}\n{log_text}")

    def _start_broker_process(self) -> Child:
        """Start the broker's process; does not wait until the broker is ready."""
        listen, data = f"{HOST}:{self.settings.broker_port}", str(self.settings.data_folder / "broker")
        return self._start_coterie_process(
            "broker", "broker", "--listen", listen, "--data", data, *self.settings.broker_timing_options
        )

    def _start_coterie_process(self, name: str, *arguments: str) -> Child:
        """Start ``coterie`` with ``arguments`` as the child ``name``."""
        # The temporary files that a killed child leaves are in the data folder, too.
        temporary_folder = self.settings.data_folder / "tmp"
        temporary_folder.mkdir(parents=True, exist_ok=True)
        return self._children.start_python(
            name, ["-m", "coterie", *arguments], extra_environment={"TMPDIR": str(temporary_folder)}
        )

    @property
    def _rebalance_delay_s(self) -> float:
        """The workers' scheduled rebalance delay, in seconds."""
        return int(self.settings.extra_worker_settings["scheduled.rebalance.max.delay.ms"]) / 1000

    def _settings_file_path(self, name: str) -> Path:
        """The path of the settings file of the worker ``name``."""
        return self.settings.data_folder / "workers" / f"{name}.properties"

    def _broker_log_tail(self) -> str:
        """The end of the broker's log, as the end of an error message."""
        assert self._broker is not None
        return f" The end of {self._broker.log_path}:\n{self._broker.log_tail()}"

    def _worker_properties(self, number: int, name: str) -> dict[str, str]:
        """The settings of worker ``number``, named ``name``."""
        return {
            "bootstrap.servers": f"{HOST}:{self.settings.broker_port}",
            "group.id": GROUP_ID,
            "worker.name": name,
            "client.id": name,
            "listeners": self.settings.rest_url(number),
            "config.storage.topic": f"{GROUP_ID}-configs",
            "config.storage.replication.factor": "1",
            "offset.storage.topic": f"{GROUP_ID}-offsets",
            "offset.storage.replication.factor": "1",
            "status.storage.topic": f"{GROUP_ID}-status",
            "status.storage.replication.factor": "1",
            "log.jvm.file": str(self.settings.data_folder / "logs" / f"{name}.jvm.log"),
            "checkpoint.location": str(self.settings.data_folder / "checkpoints"),
            **self.settings.protocol_and_extra_worker_properties,
        }


def is_port_free(port: int) -> bool:
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


def _exit_cause(exit_code: int) -> str:
    """How a process ended, as text: "signal 9" if ``exit_code`` is -9, as in :attr:`.Child.exit_code`; "exit code 1" if
    it is 1."""
    return f"signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}"
