"""TLS and SASL sessions that end, and connections that the broker closes because they are idle: no member is removed,
and no job moves."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coterie.broker.context import BrokerContext
from coterie.broker.security.users import BrokerUsersFile
from coterie.groups.connect.settings import ConnectGroupSettings
from coterie.nouns.ids import GroupId
from coterie.wire.errors import ErrorCode
from coterie.wire.schemas import SASL_AUTHENTICATE, SASL_HANDSHAKE
from tests.broker.apis.connect_groups.ends import end_by_fin, graces_of, members_on
from tests.broker.apis.connect_groups.worker import JOBS, Worker, describe, settle
from tests.broker.conftest import RawClient, ThreadedBroker, wait_until
from tests.broker.secured import PASSWORD, USER, secured_broker, trusting
from tests.certificates import Authority

IDLE_MS = 3_000
LONG_GRACE_MS = 60_000
LONG_SESSIONS = ConnectGroupSettings(
    assignment_interval_ms=0,
    initial_rebalance_delay_ms=0,
    session_timeout_ms=600_000,
    connection_grace_ms=LONG_GRACE_MS,
)
EACH_PROTOCOL = pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"])


class SecuredBroker:
    """A broker with one of Kafka's security protocols, and clients of it."""

    def __init__(self, folder: Path, protocol: str, stack: ExitStack, **settings: Any) -> None:
        self._authority = Authority(folder / "certificates") if protocol.endswith("SSL") else None
        self._has_sasl = protocol.startswith("SASL")
        self._stack = stack
        secured = secured_broker(
            folder, protocol, authority=self._authority, connect_groups=LONG_SESSIONS,
            failed_authentication_delay_ms=1, **settings,
        )  # fmt: skip
        self.broker: ThreadedBroker = stack.enter_context(secured)

    def connect(self) -> RawClient:
        """A connection, with TLS and authenticated if the broker requires that."""
        client = RawClient(self.broker.port)
        self._stack.callback(lambda: client.socket.close())
        if self._authority is not None:
            client.socket = trusting(self._authority).wrap_socket(client.socket, server_hostname="localhost")
        if self._has_sasl:
            assert log_in(client).error_code is ErrorCode.none
        return client


def log_in(client: RawClient, password: str = PASSWORD) -> Any:
    """Authenticate; returns the last response."""
    assert client.ask(SASL_HANDSHAKE, 1, mechanism="PLAIN").error_code is ErrorCode.none
    return client.ask(SASL_AUTHENTICATE, 2, auth_bytes=f"\0{USER}\0{password}".encode())


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., SecuredBroker]]:
    """Starts a broker with a security protocol and further settings."""
    with ExitStack() as stack:
        yield lambda protocol, **settings: SecuredBroker(tmp_path, protocol, stack, **settings)


def settled_on(clients: list[RawClient]) -> list[Worker]:
    """A stable group. Each member has jobs, and uses a separate connection."""
    workers = members_on(clients, connection_grace_ms=LONG_GRACE_MS)
    settle(workers, JOBS)
    for worker in workers:
        worker.acknowledge()
        assert worker.owned
    return workers


def state_of(client: RawClient) -> Any:
    """The state of the group: epochs, leader, members and their jobs."""
    return describe(client)


def stored(broker: ThreadedBroker) -> Any:
    """What the broker's log has of the group: epochs, leader, members and their jobs."""

    async def look(context: BrokerContext) -> Any:
        assert context.connect_groups is not None
        return context.connect_groups.inspect_group(
            GroupId("workers"),
            lambda group: (group.metadata, dict(group.members), dict(group.targets), dict(group.currents)),
        )

    return broker.run(look)


@EACH_PROTOCOL
def test_the_broker_closes_idle_connections_and_their_members_stay(
    start: Callable[..., SecuredBroker], protocol: str
) -> None:
    secured = start(protocol)
    workers = settled_on([secured.connect() for _ in range(3)])
    broker = secured.broker
    broker.stop()
    broker.settings = replace(broker.settings, idle_timeout_ms=IDLE_MS)
    broker.start()
    before = stored(broker)
    for _ in range(2):
        for worker in workers:
            had = worker.owned
            worker.client.socket.close()
            worker.client = secured.connect()
            assert worker.beat(full=True).error_code == 0
            assert worker.owned == had
        for worker in workers:
            assert worker.client.is_closed()
        assert graces_of(broker) == set()
        assert stored(broker) == before


def check_same_group_without_grace(secured: SecuredBroker, observer: RawClient, before: Any) -> None:
    """The member has sent a request in its grace, and the group is as before."""
    assert graces_of(secured.broker) == set()
    assert state_of(observer) == before


@pytest.mark.parametrize("protocol", ["SSL", "SASL_SSL"])
def test_a_client_that_ends_its_tls_session_and_begins_another_one_stays(
    start: Callable[..., SecuredBroker], protocol: str
) -> None:
    secured = start(protocol)
    workers = settled_on([secured.connect() for _ in range(3)])
    observer = secured.connect()
    before, worker = state_of(observer), workers[1]
    worker.client.socket.unwrap()  # type: ignore[attr-defined]
    wait_until(lambda: graces_of(secured.broker) == {"w1"})
    assert state_of(observer) == before
    worker.client = secured.connect()
    had = worker.owned
    assert worker.beat(full=True).error_code == 0
    assert worker.owned == had
    check_same_group_without_grace(secured, observer, before)


def test_a_client_whose_first_log_in_is_refused_when_it_connects_again_stays(
    start: Callable[..., SecuredBroker],
) -> None:
    secured = start("SASL_PLAINTEXT")
    workers = settled_on([secured.connect() for _ in range(3)])
    observer = secured.connect()
    before, worker = state_of(observer), workers[1]
    end_by_fin(worker.client)
    wait_until(lambda: graces_of(secured.broker) == {"w1"})
    refused = RawClient(secured.broker.port)
    assert log_in(refused, "wrong").error_code is ErrorCode.sasl_authentication_failed
    assert refused.is_closed()
    refused.socket.close()
    assert graces_of(secured.broker) == {"w1"}, "a log-in is no request of a member"
    assert state_of(observer) == before
    worker.client = secured.connect()
    assert worker.beat(full=True).error_code == 0
    check_same_group_without_grace(secured, observer, before)


def test_a_log_in_does_not_expire_and_a_client_that_logs_in_again_keeps_connection_and_membership(
    start: Callable[..., SecuredBroker],
) -> None:
    """The broker has no connections.max.reauth.ms: it limits no session (KIP-368). A client that authenticates again is
    refused, and its connection stays. So it does when its password changes."""
    secured = start("SASL_PLAINTEXT")
    workers = settled_on([secured.connect() for _ in range(3)])
    observer = secured.connect()
    before, worker = state_of(observer), workers[1]
    extra = RawClient(secured.broker.port)
    assert log_in(extra).session_lifetime.total_seconds() == 0
    extra.socket.close()
    for _ in range(2):
        again = worker.client.ask(SASL_HANDSHAKE, 1, mechanism="PLAIN")
        assert again.error_code is ErrorCode.illegal_sasl_state
        assert worker.beat().error_code == 0
        BrokerUsersFile(secured.broker.settings.users_path).add(USER, "another password")
    check_same_group_without_grace(secured, observer, before)
