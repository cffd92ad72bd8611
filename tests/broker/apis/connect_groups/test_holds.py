"""Held heartbeats, and the end of a connection, over TCP."""

import socket
import struct
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coterie.broker.context import BrokerContext
from coterie.broker.settings import BrokerSettings
from coterie.groups.connect.settings import ConnectGroupSettings
from tests.broker.apis.connect_groups.ends import connections_of, end_by_fin, has_data, member_ids, members_on
from tests.broker.apis.connect_groups.worker import COMPUTE_ASSIGNMENT, JOBS, Worker, describe
from tests.broker.conftest import Connect, RawClient, ThreadedBroker, raw_client, wait_until
from tests.broker.secured import USER, logged_in, secured_broker, trusting
from tests.certificates import Authority

HOLD_MS = 60_000
LONG_SESSIONS = ConnectGroupSettings(
    assignment_interval_ms=0, initial_rebalance_delay_ms=0, session_timeout_ms=600_000, connection_grace_ms=200
)
API_VERSIONS, METADATA = 18, 3


@pytest.fixture
def settings(settings: BrokerSettings) -> BrokerSettings:
    """Sessions that never end in a test, and responses that may be held for as long; a short grace."""
    return replace(settings, connect_groups=LONG_SESSIONS)


def settled(client: RawClient, member_id: str = "w0", **fields: Any) -> Worker:
    worker = Worker(client, member_id, **fields)
    worker.settle()
    worker.acknowledge()
    return worker


def wait_held(broker: ThreadedBroker, member_id: str = "w0") -> None:
    """Wait until a heartbeat of the member is held."""

    async def is_held(context: BrokerContext) -> bool:
        assert context.connect_groups is not None
        held = context.connect_groups.inspect_all_groups(
            lambda group: any(
                name == member_id and session.held_heartbeat is not None for name, session in group.sessions.items()
            )
        )
        return any(held)

    wait_until(lambda: broker.run(is_held))


def ask_api_versions(worker: Worker) -> Any:
    return worker.client.send(API_VERSIONS, 4, client_software_name="t", client_software_version="1")


def beat_of_another_member(worker: Worker) -> Any:
    return Worker(worker.client, "another", "another group").send()


@pytest.mark.parametrize(
    "send_later", [ask_api_versions, beat_of_another_member, lambda worker: worker.send()],
    ids=["another api", "another member", "the same member"],
)  # fmt: skip
def test_any_later_request_on_the_connection_releases_a_held_heartbeat(
    broker: ThreadedBroker, connect: Connect, send_later: Callable[[Worker], Any]
) -> None:
    worker = settled(connect())
    held = worker.send(max_wait_ms=HOLD_MS)
    wait_held(broker)
    assert not has_data(worker.client)
    later = send_later(worker)
    assert worker.client.receive(held).error_code == 0
    assert worker.client.receive(later).error_code in (0, COMPUTE_ASSIGNMENT)


def test_a_heartbeat_that_has_a_request_behind_it_is_not_held(connect: Connect) -> None:
    worker = settled(connect())
    for _ in range(20):
        headers = [worker.send(max_wait_ms=HOLD_MS), ask_api_versions(worker)]
        assert [worker.client.receive(header).error_code for header in headers] == [0, 0]


def test_a_held_heartbeat_is_answered_at_once_when_another_member_changes_the_assignment(
    broker: ThreadedBroker, connect: Connect
) -> None:
    first, second = settled(connect()), Worker(connect(), "w1")
    held = first.send(max_wait_ms=HOLD_MS)
    wait_held(broker)
    second.beat()
    asked = first.take(first.client.receive(held))
    assert asked.error_code == COMPUTE_ASSIGNMENT
    first.compute()
    held = first.send(max_wait_ms=HOLD_MS)
    revoked = first.take(first.client.receive(held))
    assert revoked.assignment is not None
    second.beat(full=True)
    waiting = second.send(max_wait_ms=HOLD_MS)
    wait_held(broker, "w1")
    first.acknowledge()
    second.take(second.client.receive(waiting))
    assert second.owned == JOBS - first.owned


def test_a_newer_heartbeat_on_another_connection_ends_the_hold(broker: ThreadedBroker, connect: Connect) -> None:
    worker = settled(connect())
    held = worker.send(max_wait_ms=HOLD_MS)
    wait_held(broker)
    before, worker.client = worker.client, connect()
    assert worker.beat().error_code == 0
    assert before.receive(held).error_code == 0


def test_the_hold_ends_after_its_time(connect: Connect) -> None:
    worker = settled(connect())
    began_s = time.monotonic()
    assert worker.beat(max_wait_ms=150).error_code == 0
    assert 0.1 < time.monotonic() - began_s < 30


def test_the_end_of_the_broker_answers_a_held_heartbeat(broker: ThreadedBroker, connect: Connect) -> None:
    worker = settled(connect())
    held = worker.send(max_wait_ms=HOLD_MS)
    wait_held(broker)
    broker.stop()
    assert worker.client.receive(held).error_code == 16
    assert worker.client.is_closed()
    broker.start()
    with raw_client(broker.port) as client:
        worker.client = client
        assert worker.beat(full=True).error_code == 0


def test_holds_and_ends_of_connections_work_with_access_rules(tmp_path: Path) -> None:
    """With access rules each request is handled in its own asyncio task, after the next one may have been read."""
    rules = """
        allow User:alice read,describe group:*
    """
    with ExitStack() as stack:
        secured = secured_broker(tmp_path, "SASL_PLAINTEXT", rules=rules, connect_groups=LONG_SESSIONS)
        broker = stack.enter_context(secured)
        clients = [stack.enter_context(logged_in(broker, USER)) for _ in range(4)]
        workers = members_on(clients[:3], connection_grace_ms=100)
        for worker in (workers[0], workers[2], workers[1]):
            worker.settle()
        for _ in range(10):
            headers = [workers[0].send(max_wait_ms=HOLD_MS), ask_api_versions(workers[0])]
            assert [workers[0].client.receive(header).error_code for header in headers] == [0, 0]
        held = workers[0].send(max_wait_ms=HOLD_MS)
        wait_held(broker)
        later = ask_api_versions(workers[0])
        assert [workers[0].client.receive(header).error_code for header in (held, later)] == [0, 0]
        workers[2].acknowledge()
        workers[2].send(max_wait_ms=HOLD_MS)
        end_by_fin(workers[2].client)
        wait_until(lambda: member_ids(clients[3]) == ["w0", "w1"])


# -- the end of a connection ------------------------------------------------------------------------------------------


def end_by_reset(client: RawClient) -> None:
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.socket.close()


def end_in_a_frame(client: RawClient) -> None:
    client.socket.sendall(struct.pack(">i", 1_000) + b"half")
    client.socket.close()


@pytest.mark.parametrize("is_held", [False, True])
def test_a_member_whose_client_closes_the_connection_is_removed_after_the_grace(
    broker: ThreadedBroker, connect: Connect, is_held: bool
) -> None:
    workers = members_on([connect() for _ in range(3)], connection_grace_ms=100)
    if is_held:
        workers[2].beat(full=True)
        workers[0].settle()
        workers[2].settle()
        workers[2].acknowledge()
        workers[2].send(max_wait_ms=HOLD_MS)
        wait_held(broker, "w2")
    end_by_fin(workers[2].client)
    observer = connect()
    wait_until(lambda: member_ids(observer) == ["w0", "w1"])
    held = [one.held_left_ms for one in describe(observer).departed]
    assert not any(held), "its jobs have stopped"


def test_a_member_that_sends_requests_on_another_connection_stays(broker: ThreadedBroker, connect: Connect) -> None:
    # With five members, two ends of connections within one grace are not taken for the end of a proxy.
    workers = members_on([connect() for _ in range(5)], connection_grace_ms=100)
    end_by_fin(workers[2].client)
    workers[2].client = connect()
    workers[2].beat()
    end_by_fin(workers[1].client)
    observer = connect()
    wait_until(lambda: member_ids(observer) == ["w0", "w2", "w3", "w4"])


def test_the_end_of_a_killed_process_with_tls_counts_too(tmp_path: Path) -> None:
    """Its socket is closed without the closing message of TLS, which only the process itself could send."""
    authority = Authority(tmp_path / "certificates")
    with ExitStack() as stack:
        secured = secured_broker(tmp_path, "SSL", authority=authority, connect_groups=LONG_SESSIONS)
        broker = stack.enter_context(secured)
        clients = [stack.enter_context(raw_client(broker.port)) for _ in range(4)]
        for client in clients:
            client.socket = trusting(authority).wrap_socket(client.socket, server_hostname="localhost")
        workers = members_on(clients[:3], connection_grace_ms=100)
        end_by_fin(workers[2].client)
        wait_until(lambda: member_ids(clients[3]) == ["w0", "w1"])


@pytest.mark.parametrize(
    ("end", "fields"),
    [
        (end_by_reset, {}),
        (end_in_a_frame, {}),
        (end_by_fin, {"connection_grace_ms": 0}),
        (end_by_fin, {"resumes": True}),
    ],
    ids=["reset", "in a frame", "without grace", "resumes"],
)
def test_no_other_end_of_a_connection_removes_a_member(
    broker: ThreadedBroker, connect: Connect, end: Callable[[RawClient], None], fields: dict[str, Any]
) -> None:
    workers = members_on([connect() for _ in range(4)], connection_grace_ms=100)
    workers[1].beat(full=True, **fields)
    end(workers[1].client)
    # Its grace would end before that of another member, whose connection ends later.
    observer = connect()
    wait_until(lambda: connections_of(broker) == 4)
    end_by_fin(workers[3].client)
    wait_until(lambda: "w3" not in member_ids(observer))
    assert member_ids(observer) == ["w0", "w1", "w2"]


def test_an_end_with_an_unanswered_request_removes_no_member(broker: ThreadedBroker, connect: Connect) -> None:
    """A client that gives up waiting closes its connection, too, and its process lives."""
    workers = members_on([connect() for _ in range(4)], connection_grace_ms=100)
    client = workers[1].client
    client.ask(METADATA, 4, topics=[{"name": "t"}], allow_auto_topic_creation=True)
    partition = {"partition": 0, "fetch_offset": 0, "log_start_offset": -1, "partition_max_bytes": 1}
    client.send(
        1, 4, replica_id=-1, max_wait=60_000, min_bytes=1, max_bytes=1, isolation_level=0,
        topics=[{"topic": "t", "partitions": [partition]}],
    )  # fmt: skip
    end_by_fin(client)
    observer = connect()
    wait_until(lambda: connections_of(broker) == 4)
    end_by_fin(workers[3].client)
    wait_until(lambda: "w3" not in member_ids(observer))
    assert member_ids(observer) == ["w0", "w1", "w2"]
