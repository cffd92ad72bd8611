"""The handover of a worker's process to the next one, and which next process may use it."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from benchmarks.http_client import http
from coterie.cli import parent
from coterie.cli.workers import compose, relaunch
from coterie.config.worker import WorkerSettings
from coterie.kafka.group_admin import GroupAdmin
from coterie.member.classic.state import MemberSettings
from coterie.nouns.errors import ConfigError, WireError, WorldError
from coterie.nouns.ids import GroupId, InstanceId, WorkerUrl
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId, Jobs
from coterie.nouns.membership import GroupProtocolName
from coterie.rest.server import open_listening_socket
from coterie.wire.connect import ConnectProtocol
from tests.kafka.embedded_broker import EmbeddedBroker
from tests.ports import free_port
from tests.processes.cluster import until
from tests.wire.place import PLACE

CLAIMS = Jobs(frozenset({ConnectorName("a"), ConnectorName("b")}), frozenset({ConnectorTaskId(ConnectorName("a"), 1)}))
SETTINGS = MemberSettings(
    group_id=GroupId("group"), url=WorkerUrl("http://here:8083/"), worker_name="here", claims=CLAIMS
)
HANDOVER = replace(PLACE, must_start_rebalance=False)


def decode_handover(settings: MemberSettings) -> object:
    return relaunch.decode_membership_if_same_member(settings, relaunch.encode_membership(SETTINGS, HANDOVER))


def open_file(data: bytes) -> int:
    """The number of an open file with ``data``."""
    read, write = os.pipe()
    os.write(write, data)
    os.close(write)
    return read


def worker_settings(properties: Mapping[str, str]) -> WorkerSettings:
    needed = {f"{what}.storage.topic": what for what in ("config", "offset", "status")}
    return WorkerSettings.from_properties({**needed, "group.id": "g", "checkpoint.location": "/c", **properties})


def test_the_workers_own_port_is_available_for_its_restart_and_other_used_ports_are_not() -> None:
    def listening(host: str, port: int) -> WorkerSettings:
        return worker_settings({"listeners": f"http://{host}:{port}"})

    with open_listening_socket("127.0.0.1", 0) as own, open_listening_socket("127.0.0.1", 0) as other:
        running = listening("127.0.0.1", own.getsockname()[1])
        compose.check_listeners_for_restart(listening("", own.getsockname()[1]), running=running)
        with pytest.raises(WorldError, match="is in use"):
            compose.check_listeners_for_restart(listening("127.0.0.1", other.getsockname()[1]), running=running)
        with pytest.raises(WorldError, match=r"Cannot listen at 203\.0\.113\.1"):
            compose.check_listeners_for_restart(listening("203.0.113.1", own.getsockname()[1]), running=running)
        admin = worker_settings(
            {"admin.listeners": f"http://127.0.0.1:{other.getsockname()[1]}", "listeners": "http://:0"}
        )
        with pytest.raises(WorldError, match=r"set another port in admin\.listeners"):
            compose.check_listeners_for_restart(admin, running=running)


@pytest.mark.parametrize("own_host", ["127.0.0.1", "localhost"])
def test_the_workers_own_port_may_be_used_by_another_process_on_another_host(own_host: str) -> None:
    def listening(*hosts: str) -> WorkerSettings:
        return worker_settings({"listeners": ",".join(f"http://{host}:{port}" for host in hosts)})

    port = free_port()
    with open_listening_socket(own_host, port), open_listening_socket("127.0.0.2", port):
        running = listening(own_host)
        compose.check_listeners_for_restart(listening("127.0.0.1", "127.0.0.3"), running=running)
        with pytest.raises(WorldError, match=r"Port \d+ \(127\.0\.0\.2:\d+\) is in use"):
            compose.check_listeners_for_restart(listening("127.0.0.1", "127.0.0.2"), running=running)


@pytest.mark.parametrize("key", ["group.local.assignors", "rebalance.listeners"])
def test_a_worker_restarts_only_if_its_plugins_are_installed(key: str) -> None:
    compose.check_assignors_and_listeners_installed(
        worker_settings({"group.protocol": "connect", "group.local.assignors": "cooperative"})
    )
    # A classic group has no plug-ins.
    compose.check_assignors_and_listeners_installed(worker_settings({key: "absent"}))
    with pytest.raises(ConfigError, match=f"Invalid value absent for configuration {key}"):
        compose.check_assignors_and_listeners_installed(worker_settings({"group.protocol": "connect", key: "absent"}))


def test_a_process_with_the_same_settings_continues_without_a_rebalance() -> None:
    assert decode_handover(SETTINGS) == HANDOVER
    assert decode_handover(replace(SETTINGS, heartbeat_interval_ms=1)) == HANDOVER, (
        "other members do not receive this setting"
    )


@pytest.mark.parametrize(
    "settings",
    [
        replace(SETTINGS, url=WorkerUrl("http://here:8084/")),
        replace(SETTINGS, worker_name="there"),
        replace(SETTINGS, claims=None),
        replace(SETTINGS, protocols=ConnectProtocol.COMPATIBLE.versions_to_offer),
        replace(SETTINGS, session_timeout_ms=11_000),
    ],
)
def test_a_process_with_changed_member_settings_must_request_a_rejoin(settings: MemberSettings) -> None:
    assert decode_handover(settings) == replace(HANDOVER, must_start_rebalance=True)


def test_a_handover_of_another_member_is_not_used() -> None:
    assert decode_handover(replace(SETTINGS, group_id=GroupId("another"))) is None
    assert decode_handover(replace(SETTINGS, instance_id=InstanceId("another"))) is None


def test_malformed_handover_bytes_are_refused() -> None:
    for data in (b"", b"{}", b"null", b'{"who": [], "said": "", "place": "x"}'):
        with pytest.raises(WireError):
            relaunch.decode_membership_if_same_member(SETTINGS, data)


def test_a_handover_of_another_version_is_refused() -> None:
    fields = json.loads(relaunch.encode_membership(SETTINGS, HANDOVER))
    with pytest.raises(WireError, match="has version 0; version 1 is needed"):
        relaunch.decode_membership_if_same_member(SETTINGS, json.dumps({**fields, "version": 0}).encode())


@pytest.mark.parametrize("expected_log", ["abc", "", "-1", "4000000"])
def test_an_unreadable_handover_is_lost_and_the_worker_joins_as_a_new_member(
    expected_log: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(relaunch.HANDOVER_DESCRIPTOR_VARIABLE, expected_log)
    assert relaunch.inherited_handover(SETTINGS) is None
    assert "the worker joins as a new member" in caplog.text


def test_a_malformed_handover_is_lost_and_the_worker_joins_as_a_new_member(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(relaunch.HANDOVER_DESCRIPTOR_VARIABLE, str(open_file(b"{}")))
    assert relaunch.inherited_handover(SETTINGS) is None
    assert "the worker joins as a new member" in caplog.text


def test_a_process_without_a_handover_has_no_membership(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(relaunch.HANDOVER_DESCRIPTOR_VARIABLE, raising=False)
    assert relaunch.inherited_handover(SETTINGS) is None


def test_a_handover_is_read_once_and_its_file_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    read = open_file(relaunch.encode_membership(SETTINGS, HANDOVER))
    monkeypatch.setenv(relaunch.HANDOVER_DESCRIPTOR_VARIABLE, str(read))
    assert relaunch.inherited_handover(SETTINGS) == HANDOVER
    assert relaunch.HANDOVER_DESCRIPTOR_VARIABLE not in os.environ
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(read)


# -- a process that restarts itself -----------------------------------------------------------------------------------

WORKER = """
import functools, os, signal, sys
from coterie.cli import app
from coterie.cli.workers import compose
from tests.worker.simulated import SimulatedRuntime

mode, file = sys.argv[1:]

class Runtime(SimulatedRuntime):
    async def close(self):
        if self.closed and mode == "SIGTERM too late":
            os.kill(os.getpid(), signal.SIGTERM)
        await super().close()

if mode == "no interpreter":
    sys.executable = "/nowhere/python"
compose.run_worker = functools.partial(compose.run_worker, runtime_factory=lambda *_: Runtime())
sys.argv = ["coterie", "worker", "-c", file]
app.main()
"""


@dataclass
class Process:
    """``coterie worker`` with simulated tasks; ``parent`` is the end of the pipe that the parent process holds."""

    url: str
    group_id: GroupId
    popen: "subprocess.Popen[bytes]"
    file: Path
    log: Path
    parent: int

    def ask(self, path: str) -> Any:
        """The JSON response to GET ``path``; None without a successful response."""
        try:
            answer = http.get(self.url + path, timeout=60)
        except httpx.TransportError:
            return None
        return answer.json() if answer.is_success else None

    def members(self) -> list[Mapping[str, Any]]:
        """The members in the leader's view of the group: only this worker."""
        shown = self.ask("/coterie/group")
        return [] if shown is None else [{**member, "generation": shown["generation"]} for member in shown["members"]]

    def order_restart(self) -> httpx.Response:
        """Order the worker to restart."""
        return http.post(f"{self.url}/coterie/workers/{self.url.removeprefix('http://')}/restart", timeout=60)

    def restart(self) -> Mapping[str, Any]:
        """Order a restart; returns the member before it."""
        (member,) = until(lambda: self.members() or None, within_s=90, what="the worker has joined its group")
        assert self.order_restart().status_code == 202
        return member

    async def is_member(self, bootstrap: str, member: Mapping[str, Any]) -> bool:
        """Whether the group still contains ``member``, whose session lasts longer than the test."""
        group = await GroupAdmin([bootstrap], client_id="test", timeout_ms=60_000).describe_group(self.group_id)
        assert group is not None
        return member["member_id"] in [one.member_id for one in group.members]


@pytest.fixture(params=list(GroupProtocolName))
def start(
    embedded_broker: EmbeddedBroker, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Callable[[str], Process]]:
    """Starts a worker with each group protocol."""
    with ExitStack() as stack:

        def started(mode: str) -> Process:
            port, group = free_port(), f"relaunch-{uuid.uuid4().hex[:8]}"
            file, log = tmp_path / "worker.properties", tmp_path / "worker.log"
            topics = "\n".join(
                f"{what}.storage.topic={group}-{what}\n{what}.storage.replication.factor=1"
                for what in ("config", "offset", "status")
            )
            file.write_text(
                f"bootstrap.servers={embedded_broker.bootstrap_servers}\ngroup.id={group}\n{topics}\n"
                f"listeners=http://127.0.0.1:{port}\ncheckpoint.location={tmp_path}\nsession.timeout.ms=300000\n"
                f"group.protocol={request.param}\n"
            )
            watched, held = os.pipe()
            stack.callback(os.close, watched)
            with log.open("wb") as printed:
                popen = subprocess.Popen(
                    [sys.executable, "-c", WORKER, mode, str(file)],
                    cwd=Path(__file__).parents[3],
                    env={**os.environ, parent.PIPE_DESCRIPTOR_VARIABLE: str(watched)},
                    pass_fds=[watched],
                    stdout=printed,
                    stderr=printed,
                    process_group=0,
                )
            stack.callback(popen.wait, 60)
            stack.callback(popen.kill)
            return Process(f"http://127.0.0.1:{port}", GroupId(group), popen, file, log, held)

        yield started


@pytest.mark.processes
def test_a_process_restarts_only_with_valid_settings_and_keeps_its_pid_membership_and_parent(
    start: Callable[[str], Process],
) -> None:
    process = start("as usual")
    until(lambda: process.members() or None, within_s=90, what="the worker has joined its group")
    settings = process.file.read_text()
    process.file.write_text(settings + "session.timeout.ms=soon\n")
    refused = process.order_restart()
    assert refused.status_code == 409
    assert (
        "The worker's settings are invalid (session.timeout.ms); the worker's log contains the errors" in refused.text
    )
    assert "soon" not in refused.text, "the response must not contain the value of a setting"
    with socket.create_server(("127.0.0.1", 0)) as decode_handover:
        port = decode_handover.getsockname()[1]
        process.file.write_text(settings + f"listeners=http://127.0.0.1:{port}\n")
        assert f"Port {port} (127.0.0.1:{port}) is in use" in process.order_restart().text
    process.file.unlink()
    assert f"{process.file} cannot be read" in process.order_restart().text
    process.file.write_text(settings)
    before = process.restart()

    def restarted_members() -> list[Mapping[str, Any]]:
        return [member for member in process.members() if member["life"] not in (None, before["life"])]

    (member,) = until(lambda: restarted_members() or None, within_s=90, what="the next process leads the group")
    assert member["member_id"] == before["member_id"]
    os.close(process.parent)
    assert process.popen.wait(90) == -signal.SIGKILL, "the next process ends with its parent, too"


@pytest.mark.processes
@pytest.mark.parametrize(
    ("mode", "code", "expected_log"),
    [
        ("SIGTERM too late", 0, "This worker was ordered to restart, but ends instead: SIGTERM"),
        ("no interpreter", 1, "coterie: the worker's process could not be replaced by a new /nowhere/python"),
    ],
)
def test_a_process_that_cannot_restart_logs_the_reason_and_leaves_its_group(
    embedded_broker: EmbeddedBroker, start: Callable[[str], Process], mode: str, code: int, expected_log: str
) -> None:
    process = start(mode)
    before = process.restart()
    assert process.popen.wait(90) == code
    os.close(process.parent)
    assert expected_log in process.log.read_text()
    assert "Traceback" not in process.log.read_text()
    assert not asyncio.run(process.is_member(embedded_broker.bootstrap_servers, before))
