"""A worker's two Kafka clients with security: each mechanism, and errors that name the key to change."""

import asyncio
import shutil
import ssl
import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from coterie.config.security import KafkaSecurity
from coterie.engine.log import NewTopicRecord
from coterie.kafka.broker_access import check_broker_access_if_reachable
from coterie.kafka.connection import HEARTBEAT, Address, BrokerAccessError, BrokerConnection
from coterie.kafka.coordinator import KafkaClassicCoordinatorClient
from coterie.kafka.leader_log import transactional_id
from coterie.kafka.topics import TopicsClient
from coterie.member.classic.messages import HeartbeatRequest, JoinRequest
from coterie.nouns.errors import WorldError
from coterie.nouns.ids import GenerationId, GroupId, MemberId
from coterie.wire.errors import ErrorCode
from tests.broker.secured import PASSWORD, USER, secured_broker
from tests.certificates import Authority
from tests.kafka.real_kafka import RealKafka

DEADLINE_S = 60
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
REAL_PASSWORD = "a-password"
LIFETIME_MS = 1_500
"""Lifetime of a SCRAM-SHA-256 session at the real broker: the client must reauthenticate in time (KIP-368)."""

REAL_PROPERTIES = """
listeners=PLAINTEXT://127.0.0.1:{{port}},CONTROLLER://127.0.0.1:{{controller_port}},SASL_SSL://127.0.0.1:{{further_port}}
advertised.listeners=PLAINTEXT://127.0.0.1:{{port}},SASL_SSL://localhost:{{further_port}}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_SSL:SASL_SSL
sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512
listener.name.sasl_ssl.plain.sasl.jaas.config=\
org.apache.kafka.common.security.plain.PlainLoginModule required user_{user}="{password}";
listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config=\
org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config=\
org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.sasl_ssl.scram-sha-256.connections.max.reauth.ms={lifetime_ms}
ssl.keystore.type=PEM
ssl.keystore.location={keystore}
"""


@dataclass(frozen=True)
class Secured:
    """A broker with SASL_SSL, and the settings of a client that may connect."""

    port: int
    security: KafkaSecurity

    @property
    def bootstrap(self) -> str:
        return f"localhost:{self.port}"

    def by(self, mechanism: str) -> KafkaSecurity:
        return replace(self.security, mechanism=mechanism)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def secured_embedded(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured_broker(tmp_path_factory.mktemp("embedded"), "SASL_SSL", authority=authority) as broker:
        yield Secured(broker.port, _security(authority, PASSWORD))


@pytest.fixture(scope="module")
def secured_kafka(
    kafka_jars: Path, authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Secured]:
    kafka = RealKafka(
        kafka_jars,
        tmp_path_factory.mktemp("secured-kafka"),
        properties=REAL_PROPERTIES.format(
            user=USER, password=REAL_PASSWORD, keystore=authority.pair("kafka").both, lifetime_ms=LIFETIME_MS
        ),
        format_options=[
            word
            for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512")
            for word in ("--add-scram", f"{mechanism}=[name={USER},password={REAL_PASSWORD}]")
        ],
    )
    kafka.start()
    yield Secured(kafka.further_port, _security(authority, REAL_PASSWORD))
    kafka.stop()


def _security(authority: Authority, password: str) -> KafkaSecurity:
    return KafkaSecurity(
        protocol="SASL_SSL",
        mechanism="SCRAM-SHA-512",
        username=USER,
        password=password,
        trusted_ca_location=str(authority.certificate),
    )


@pytest.fixture(params=["embedded", pytest.param("kafka", marks=pytest.mark.kafka)])
def secured(request: pytest.FixtureRequest) -> Secured:
    """Every test that uses it runs with both kinds of brokers."""
    found: Secured = request.getfixturevalue(f"secured_{request.param}")
    return found


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_a_log_and_a_group_can_be_reached(secured: Secured, mechanism: str) -> None:
    security = secured.by(mechanism)
    name = uuid.uuid4().hex
    topics = TopicsClient([secured.bootstrap], client_id="tests", security=security)
    coordinator = _coordinator(secured, security)
    try:
        async with asyncio.timeout(DEADLINE_S):
            await check_broker_access_if_reachable([secured.bootstrap], client_id="tests", security=security)
            log = await topics.open_or_create_log(
                name, partitions=1, replication_factor=1, setting_key="config.storage.topic"
            )
            assert await log.append([NewTopicRecord(key=b"k", value=b"v")]) == 1
            async for progress in log.follow():
                if progress.records:
                    assert [line.value for line in progress.records] == [b"v"]
                    break
            assert await _joined(coordinator, name) is ErrorCode.member_id_required
    finally:
        await coordinator.close()
        await topics.close()


def _coordinator(secured: Secured, security: KafkaSecurity) -> KafkaClassicCoordinatorClient:
    return KafkaClassicCoordinatorClient(
        [secured.bootstrap],
        client_id="tests",
        request_timeout_ms=20_000,
        parked_timeout_ms=20_000,
        security=security,
    )


async def _joined(coordinator: KafkaClassicCoordinatorClient, group: str) -> ErrorCode:
    """The error code of a new member's join, after the coordinator has started."""
    while True:
        response = await coordinator.ask(
            JoinRequest(
                group_id=GroupId(group),
                member_id=MemberId(""),
                session_timeout_ms=10_000,
                rebalance_timeout_ms=20_000,
                protocol_type="connect",
                protocols=(("compatible", b""),),
                reason="",
            )
        )
        if response.error not in (ErrorCode.not_coordinator, ErrorCode.coordinator_not_available):
            return response.error
        await asyncio.sleep(0.05)


WORKER_RULES = f"""
allow User:{USER}  read,write,create,describe_configs  topic:connect-*
allow User:{USER}  read                                group:workers
allow User:{USER}  write                               transactional_id:connect-cluster-workers
"""
"""All rights that a worker needs, as in docs/security.md."""


async def test_the_documented_rights_of_a_worker_are_sufficient(tmp_path: Path, authority: Authority) -> None:
    with secured_broker(tmp_path, "SASL_SSL", authority=authority, rules=WORKER_RULES) as broker:
        secured = Secured(broker.port, _security(authority, PASSWORD))
        topics = TopicsClient([secured.bootstrap], client_id="tests", security=secured.security)
        coordinator = _coordinator(secured, secured.security)
        try:
            async with asyncio.timeout(DEADLINE_S):
                log = await topics.open_or_create_log(
                    "connect-configs", partitions=1, replication_factor=1, setting_key="config.storage.topic"
                )
                assert await log.append([NewTopicRecord(key=b"k", value=b"v")]) == 1
                async for progress in log.follow():
                    if progress.records:
                        break
                leader_log = topics.new_leader_log(log, transactional_id=transactional_id(GroupId("workers")))
                await leader_log.open(transaction_timeout_ms=10_000)
                assert await leader_log.append([NewTopicRecord(key=b"k", value=b"v")]) == 2
                assert await topics.cluster_id()
                assert await _joined(coordinator, "workers") is ErrorCode.member_id_required
                assert await _joined(coordinator, "others") is ErrorCode.group_authorization_failed
        finally:
            await coordinator.close()
            await topics.close()


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_a_wrong_password_is_one_clear_error_for_both_clients(secured: Secured, mechanism: str) -> None:
    security = replace(secured.by(mechanism), password="wrong")
    with pytest.raises(BrokerAccessError, match=f"rejects the user {USER}: .*check sasl.username and sasl.password"):
        await check_broker_access_if_reachable(["localhost:1", secured.bootstrap], client_id="tests", security=security)
    with pytest.raises(WorldError, match=f"rejects the user {USER}"):
        await _joined(_coordinator(secured, security), "g")


async def test_an_untrusted_authority_is_reported(secured: Secured, tmp_path: Path) -> None:
    other_authority = Authority(tmp_path, "a stranger")
    security = replace(secured.security, trusted_ca_location=str(other_authority.certificate))
    with pytest.raises(BrokerAccessError, match=r"certificate of the broker .* is not accepted: .*check ssl\.ca"):
        await BrokerConnection.open(Address.parse(secured.bootstrap), client_id="tests", security=security)


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SASL_PLAINTEXT"])
async def test_a_broker_that_requires_tls_is_reported(secured: Secured, protocol: str) -> None:
    security = replace(secured.security, protocol=protocol)
    with pytest.raises(WorldError, match=r"security\.protocol"):
        await BrokerConnection.open(Address.parse(secured.bootstrap), client_id="tests", security=security)


async def test_a_broker_that_requires_a_password_is_reported(secured: Secured) -> None:
    security = replace(secured.security, protocol="SSL")
    connection = await BrokerConnection.open(Address.parse(secured.bootstrap), client_id="tests", security=security)
    values = {"group_id": "g", "generation_id": 1, "member_id": "m", "group_instance_id": None}
    with pytest.raises(WorldError, match="broke"):
        await connection.ask(HEARTBEAT, values)
    connection.close()


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
async def test_the_error_for_a_wrong_security_protocol_names_the_key(secured: Secured, protocol: str) -> None:
    security = replace(secured.security, protocol=protocol)
    servers = ["localhost:1", secured.bootstrap]
    with pytest.raises(BrokerAccessError, match=f"security.protocol={protocol}: set security.protocol to that of"):
        await check_broker_access_if_reachable(servers, client_id="tests", security=security, timeout_ms=1_500)


async def test_the_error_for_a_missing_login_names_the_key(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with secured_broker(tmp_path, "SASL_PLAINTEXT") as broker:
        server = f"localhost:{broker.port}"
        for _ in range(2):
            with pytest.raises(BrokerAccessError, match=r"set security\.protocol to that of the broker's listener"):
                await check_broker_access_if_reachable(
                    [server], client_id="tests", security=KafkaSecurity(), timeout_ms=1_500
                )
    lines = [record.getMessage() for record in caplog.records if record.name == "coterie.broker.connection"]
    assert [line.partition(" closed: ")[2] for line in lines] == [
        "the peer sent a request of API 15 before it was authenticated; check that the client's security.protocol is "
        "that of the broker"
    ]


async def test_a_broker_that_ends_during_the_access_check_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    async def close(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server.close()
        writer.close()

    caplog.set_level("INFO", "coterie.kafka.broker_access")
    server = await asyncio.start_server(close, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    await check_broker_access_if_reachable([address, address], client_id="tests", security=KafkaSecurity())
    first, last = caplog.messages
    assert f"cannot check whether the broker at {address} accepts this client: cannot reach the broker" in first
    assert first.endswith("; the next of bootstrap.servers is asked")
    assert last.endswith("; the worker starts without this check, and waits for a broker")


async def test_a_broker_without_tls_is_reported(tmp_path: Path, authority: Authority) -> None:
    with secured_broker(tmp_path, "SASL_PLAINTEXT") as broker:
        security = _security(authority, PASSWORD)
        with pytest.raises(WorldError, match="supports TLS"):
            await BrokerConnection.open(Address("localhost", broker.port), client_id="tests", security=security)


@pytest.mark.parametrize("is_ca", [True, False])
async def test_a_missing_file_is_named(authority: Authority, tmp_path: Path, is_ca: bool) -> None:
    missing = str(tmp_path / "none")
    security = replace(_security(authority, PASSWORD), certificate_location=missing, key_location=missing)
    if is_ca:
        security = KafkaSecurity(protocol="SSL", trusted_ca_location=missing)
    with pytest.raises(WorldError, match=missing):
        await check_broker_access_if_reachable(["localhost:1"], client_id="tests", security=security)


async def test_certificates_are_read_once_and_not_on_the_event_loop(
    secured: Secured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ca, readers, create = tmp_path / "ca.pem", list[threading.Thread](), ssl.create_default_context
    shutil.copy(secured.security.trusted_ca_location or "", ca)

    def recording_context(*args: Any, **settings: Any) -> ssl.SSLContext:
        if settings.get("cafile") == str(ca):
            readers.append(threading.current_thread())
        return create(*args, **settings)

    monkeypatch.setattr(ssl, "create_default_context", recording_context)
    security = replace(secured.security, trusted_ca_location=str(ca))
    await check_broker_access_if_reachable([secured.bootstrap], client_id="tests", security=security)
    for _ in range(2):
        connection = await BrokerConnection.open(Address.parse(secured.bootstrap), client_id="tests", security=security)
        connection.close()
    (reader,) = readers
    assert reader is not threading.current_thread()


async def test_only_the_host_that_a_certificate_names_is_trusted(authority: Authority, tmp_path: Path) -> None:
    with secured_broker(tmp_path, "SSL", pair=authority.pair("elsewhere", host="DNS:elsewhere")) as broker:
        security = KafkaSecurity(protocol="SSL", trusted_ca_location=str(authority.certificate))
        address = Address("localhost", broker.port)
        with pytest.raises(BrokerAccessError, match="Hostname mismatch"):
            await BrokerConnection.open(address, client_id="tests", security=security)
        connection = await BrokerConnection.open(
            address, client_id="tests", security=replace(security, verifies_hostname=False)
        )
        connection.close()


@pytest.mark.kafka
async def test_a_sasl_session_is_renewed_before_it_ends(secured_kafka: Secured) -> None:
    coordinator = _coordinator(secured_kafka, secured_kafka.by("SCRAM-SHA-256"))
    heartbeat = HeartbeatRequest(group_id=GroupId("unused"), member_id=MemberId("m"), generation=GenerationId(1))
    try:
        async with asyncio.timeout(DEADLINE_S):
            await _joined(coordinator, "unused")
            ends_s = asyncio.get_running_loop().time() + 2.5 * LIFETIME_MS / 1000
            while asyncio.get_running_loop().time() < ends_s:
                assert (await coordinator.ask(heartbeat)).error is ErrorCode.unknown_member_id
                await asyncio.sleep(0.05)
    finally:
        await coordinator.close()
