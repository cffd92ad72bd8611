"""What a worker's process hands on to its next life, and which next lives may take it."""

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

from coterie.cli import parent
from coterie.cli.workers import compose, relaunch
from coterie.config.worker import WorkerSettings
from coterie.kafka.coordinator import KafkaCoordinator
from coterie.member.classic.messages import HeartbeatRequest, HeartbeatResponse
from coterie.member.classic.state import MemberSettings
from coterie.nouns.errors import WireError, WorldError
from coterie.nouns.ids import Generation, GroupId, InstanceId, MemberId, WorkerUrl
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId, Jobs
from coterie.rest.server import bind
from coterie.wire.connect import ConnectProtocol
from coterie.wire.errors import ErrorCode
from tests.kafka.embedded_broker import EmbeddedBroker
from tests.ports import free_port
from tests.processes.cluster import until
from tests.wire.place import PLACE

CLAIMS = Jobs(frozenset({ConnectorName("a"), ConnectorName("b")}), frozenset({ConnectorTaskId(ConnectorName("a"), 1)}))
SETTINGS = MemberSettings(group_id=GroupId("group"), url=WorkerUrl("http://here:8083/"), name="here", claims=CLAIMS)
AS_IT_WAS = replace(PLACE, must_ask_for_round=False)


def taken(settings: MemberSettings) -> object:
    return relaunch.decode(settings, relaunch.encode(SETTINGS, AS_IT_WAS))


def open_file(data: bytes) -> int:
    """The number of an open file with ``data``."""
    read, write = os.pipe()
    os.write(write, data)
    os.close(write)
    return read


def test_the_port_that_a_worker_has_is_no_obstacle_under_another_host_and_anybody_elses_is() -> None:
    def listening(host: str, port: int) -> WorkerSettings:
        needed = {f"{what}.storage.topic": what for what in ("config", "offset", "status")}
        return WorkerSettings.from_properties(
            {**needed, "group.id": "g", "checkpoint.location": "/c", "listeners": f"http://{host}:{port}"}
        )

    with bind("127.0.0.1", 0) as own, bind("127.0.0.1", 0) as other:
        running = listening("127.0.0.1", own.getsockname()[1])
        compose.check_listener(listening("", own.getsockname()[1]), running=running)
        with pytest.raises(WorldError, match="is in use"):
            compose.check_listener(listening("127.0.0.1", other.getsockname()[1]), running=running)
        with pytest.raises(WorldError, match=r"Cannot listen at 203\.0\.113\.1"):
            compose.check_listener(listening("203.0.113.1", own.getsockname()[1]), running=running)


def test_whoever_joins_as_before_goes_on_without_a_round() -> None:
    assert taken(SETTINGS) == AS_IT_WAS
    assert taken(replace(SETTINGS, heartbeat_interval_ms=1)) == AS_IT_WAS, "nobody else is told"


@pytest.mark.parametrize(
    "settings",
    [
        replace(SETTINGS, url=WorkerUrl("http://here:8084/")),
        replace(SETTINGS, name="there"),
        replace(SETTINGS, claims=None),
        replace(SETTINGS, protocols=ConnectProtocol.COMPATIBLE.offered),
        replace(SETTINGS, session_timeout_ms=11_000),
    ],
)
def test_whoever_joins_otherwise_than_before_has_to_join_once_more(settings: MemberSettings) -> None:
    assert taken(settings) == replace(AS_IT_WAS, must_ask_for_round=True)


def test_another_member_has_no_place_from_before() -> None:
    assert taken(replace(SETTINGS, group_id=GroupId("another"))) is None
    assert taken(replace(SETTINGS, instance_id=InstanceId("another"))) is None


def test_bytes_of_nobodys_are_refused() -> None:
    for data in (b"", b"{}", b"null", b'{"who": [], "said": "", "place": "x"}'):
        with pytest.raises(WireError):
            relaunch.decode(SETTINGS, data)


def test_what_another_release_has_handed_on_is_not_read() -> None:
    handed = json.loads(relaunch.encode(SETTINGS, AS_IT_WAS))
    with pytest.raises(WireError, match="has version 0; version 1 is needed"):
        relaunch.decode(SETTINGS, json.dumps({**handed, "version": 0}).encode())


@pytest.mark.parametrize("said", ["abc", "", "-1", "4000000"])
def test_a_place_that_cannot_be_read_is_lost_and_the_worker_joins_as_a_new_member(
    said: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(relaunch.PLACE_VARIABLE, said)
    assert relaunch.handed_on(SETTINGS) is None
    assert "the worker joins as a new member" in caplog.text


def test_a_place_of_bytes_that_mean_nothing_is_lost_as_well(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(relaunch.PLACE_VARIABLE, str(open_file(b"{}")))
    assert relaunch.handed_on(SETTINGS) is None
    assert "the worker joins as a new member" in caplog.text


def test_a_process_that_nobody_handed_anything_on_to_has_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(relaunch.PLACE_VARIABLE, raising=False)
    assert relaunch.handed_on(SETTINGS) is None


def test_what_is_handed_on_is_read_once_and_its_file_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    read = open_file(relaunch.encode(SETTINGS, AS_IT_WAS))
    monkeypatch.setenv(relaunch.PLACE_VARIABLE, str(read))
    assert relaunch.handed_on(SETTINGS) == AS_IT_WAS
    assert relaunch.PLACE_VARIABLE not in os.environ
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(read)


# -- a process that does it -------------------------------------------------------------------------------------------

WORKER = """
import functools, os, signal, sys
from coterie.cli import app
from coterie.cli.workers import compose
from tests.worker.simulated import SimulatedRuntime

mode, file = sys.argv[1:]

class Runtime(SimulatedRuntime):
    async def close(self):
        if self.closed and mode == "told to end too late":
            os.kill(os.getpid(), signal.SIGTERM)
        await super().close()

if mode == "no interpreter":
    sys.executable = "/nowhere/python"
compose.run_worker = functools.partial(compose.run_worker, runtime_of=lambda *_: Runtime())
sys.argv = ["coterie", "worker", "-c", file]
app.main()
"""


@dataclass
class Process:
    """``coterie worker`` with simulated tasks; ``parent`` is the end of a pipe that whoever looks after it holds."""

    url: str
    group_id: GroupId
    popen: "subprocess.Popen[bytes]"
    file: Path
    log: Path
    parent: int

    def ask(self, path: str) -> Any:
        """What it answers; None while it does not."""
        try:
            answer = httpx.get(self.url + path, timeout=60)
        except httpx.TransportError:
            return None
        return answer.json() if answer.is_success else None

    def members(self) -> list[Mapping[str, Any]]:
        """Of its group, as its leader knows them: itself."""
        shown = self.ask("/coterie/group")
        return [] if shown is None else [{**member, "generation": shown["generation"]} for member in shown["members"]]

    def order(self) -> httpx.Response:
        """To begin anew."""
        return httpx.post(f"{self.url}/coterie/workers/{self.url.removeprefix('http://')}/restart", timeout=60)

    def begin_anew(self) -> Mapping[str, Any]:
        """Order it; returns what it was in its group."""
        (member,) = until(lambda: self.members() or None, within_s=90, what="it is in its group")
        assert self.order().status_code == 202
        return member

    async def is_member(self, bootstrap: str, member: Mapping[str, Any]) -> bool:
        """Whether the group still has ``member``, whose session lasts longer than any test."""
        coordinator = KafkaCoordinator(
            [bootstrap], client_id="test", request_timeout_ms=60_000, parked_timeout_ms=60_000
        )
        generation = Generation(member["generation"])
        request = HeartbeatRequest(
            group_id=self.group_id, member_id=MemberId(member["member_id"]), generation=generation
        )
        answer = await coordinator.ask(request)
        await coordinator.close()
        assert isinstance(answer, HeartbeatResponse)
        assert answer.error in (ErrorCode.none, ErrorCode.unknown_member_id)
        return answer.error == ErrorCode.none


@pytest.fixture
def start(embedded_broker: EmbeddedBroker, tmp_path: Path) -> Iterator[Callable[[str], Process]]:
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
            )
            watched, held = os.pipe()
            stack.callback(os.close, watched)
            with log.open("wb") as printed:
                popen = subprocess.Popen(
                    [sys.executable, "-c", WORKER, mode, str(file)],
                    cwd=Path(__file__).parents[3],
                    env={**os.environ, parent.PIPE_VARIABLE: str(watched)},
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
def test_a_process_begins_anew_only_if_it_can_and_keeps_its_number_its_place_and_its_parent(
    start: Callable[[str], Process],
) -> None:
    process = start("as usual")
    until(lambda: process.members() or None, within_s=90, what="it is in its group")
    settings = process.file.read_text()
    process.file.write_text(settings + "session.timeout.ms=soon\n")
    refused = process.order()
    assert refused.status_code == 409
    assert "Its settings are invalid (session.timeout.ms); its log contains the errors" in refused.text
    assert "soon" not in refused.text, "what is set is not for everybody who can ask"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process.file.write_text(settings + f"listeners=http://127.0.0.1:{port}\n")
        assert f"Port {port} (127.0.0.1:{port}) is in use" in process.order().text
    process.file.unlink()
    assert f"{process.file} cannot be read" in process.order().text
    process.file.write_text(settings)
    before = process.begin_anew()

    def again() -> list[Mapping[str, Any]]:
        return [member for member in process.members() if member["life"] not in (None, before["life"])]

    (member,) = until(lambda: again() or None, within_s=90, what="its next life leads the group")
    assert member["member_id"] == before["member_id"]
    os.close(process.parent)
    assert process.popen.wait(90) == -signal.SIGKILL, "it ends with its parent, as before"


@pytest.mark.processes
@pytest.mark.parametrize(
    ("mode", "code", "said"),
    [
        ("told to end too late", 0, "This worker was ordered to restart, but ends instead: SIGTERM"),
        ("no interpreter", 1, "coterie: /nowhere/python could not be executed to restart the worker"),
    ],
)
def test_a_process_that_does_not_begin_anew_says_why_and_leaves_its_group(
    embedded_broker: EmbeddedBroker, start: Callable[[str], Process], mode: str, code: int, said: str
) -> None:
    process = start(mode)
    before = process.begin_anew()
    assert process.popen.wait(90) == code
    os.close(process.parent)
    assert said in process.log.read_text()
    assert "Traceback" not in process.log.read_text()
    assert not asyncio.run(process.is_member(embedded_broker.bootstrap_servers, before))
