"""TLS in the broker: certificates of both sides, peers without TLS, files that change or are invalid."""

import asyncio
import gc
import logging
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from coterie.broker.server import running_broker
from coterie.broker.settings import BrokerSettings, SecurityProtocol, SecuritySettings
from coterie.nouns.errors import WorldError
from tests.broker.conftest import RawClient, ThreadedBroker, raw_client, wait_until
from tests.broker.secured import secured_broker, trusting
from tests.certificates import Authority, Pair, encrypted

API_VERSIONS = 18


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@contextmanager
def tls_client(broker: ThreadedBroker, context: ssl.SSLContext) -> Iterator[RawClient]:
    with raw_client(broker.port) as client:
        client.socket = context.wrap_socket(client.socket, server_hostname="localhost")
        yield client


def is_served(client: RawClient) -> bool:
    answer = client.ask(API_VERSIONS, 3, client_software_name="t", client_software_version="1")
    return len(answer.api_keys) > 0


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The broker's log messages, without the peer's address."""
    return [
        record.getMessage().partition(" closed: ")[2]
        for record in caplog.records
        if record.name.startswith("coterie.") and record.levelno >= logging.WARNING
    ]


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_client_that_trusts_the_authority_is_served(
    tmp_path: Path, authority: Authority, version: ssl.TLSVersion
) -> None:
    context = trusting(authority)
    context.minimum_version = context.maximum_version = version
    with secured_broker(tmp_path, "SSL", authority=authority) as broker, tls_client(broker, context) as client:
        assert is_served(client)


def test_large_responses_and_pipelined_requests_work_over_tls(tmp_path: Path, authority: Authority) -> None:
    with (
        secured_broker(tmp_path, "SSL", authority=authority) as broker,
        tls_client(broker, trusting(authority)) as client,
    ):
        client.ask(3, 4, topics=[{"name": f"topic-{number}"} for number in range(200)], allow_auto_topic_creation=True)
        headers = [client.send(3, 4, topics=None, allow_auto_topic_creation=False) for _ in range(50)]
        assert {len(client.receive(header).topics) for header in headers} == {202}  # with the two of groups


@pytest.mark.parametrize("hostile", [b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\x0a" + b"x" * 10], ids=["http", "kafka"])
def test_a_peer_without_tls_is_closed_with_one_line(
    tmp_path: Path, authority: Authority, hostile: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with secured_broker(tmp_path, "SSL", authority=authority) as broker, raw_client(broker.port) as client:
        client.socket.sendall(hostile)
        wait_until(lambda: bool(lines(caplog)))
        with tls_client(broker, trusting(authority)) as bystander:
            assert is_served(bystander)
    assert len(lines(caplog)) == 1
    assert lines(caplog)[0].startswith("the TLS handshake failed: ")


def test_others_are_served_when_a_client_does_not_trust_the_certificate(tmp_path: Path, authority: Authority) -> None:
    with secured_broker(tmp_path, "SSL", authority=authority) as broker:
        with raw_client(broker.port) as client, pytest.raises(ssl.SSLCertVerificationError):
            ssl.create_default_context().wrap_socket(client.socket, server_hostname="localhost")
        with tls_client(broker, trusting(authority)) as bystander:
            assert is_served(bystander)


def test_an_unfinished_handshake_counts_as_a_connection_and_is_closed(
    tmp_path: Path, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        secured_broker(tmp_path, "SSL", authority=authority, handshake_timeout_ms=3_000, connections_max=1) as broker,
        raw_client(broker.port) as idle,
    ):
        idle.socket.sendall(bytes.fromhex("16030100c8010000c40303"))
        with raw_client(broker.port) as refused:
            assert refused.is_closed()
        assert idle.is_closed()
    assert "the peer was not authenticated within 3000 ms" in lines(caplog)


def test_a_client_certificate_is_required_if_an_authority_for_it_is_configured(
    tmp_path: Path, authority: Authority
) -> None:
    pair = authority.pair("loader", subject="/C=DE/O=Big Co/OU=Data/CN=loader")
    certified, unknown = trusting(authority), trusting(authority)
    certified.load_cert_chain(pair.certificate, pair.key)
    with secured_broker(tmp_path, "SSL", authority=authority, wants_certificates=True) as broker:
        with tls_client(broker, certified) as client:
            assert is_served(client)
        # With TLS 1.3 a client gets the error about its missing certificate only when it reads.
        with pytest.raises((ssl.SSLError, ConnectionError)):
            _ask_at_once(broker, unknown)


def _ask_at_once(broker: ThreadedBroker, context: ssl.SSLContext) -> None:
    with tls_client(broker, context) as client:
        is_served(client)


def test_a_renewed_certificate_is_served_without_a_restart(tmp_path: Path, authority: Authority) -> None:
    with secured_broker(tmp_path, "SSL", authority=authority) as broker:
        security = broker.settings.security
        assert security.certificate_path is not None
        assert security.key_path is not None

        def serial() -> object:
            with tls_client(broker, trusting(authority)) as client:
                assert isinstance(client.socket, ssl.SSLSocket)
                found = client.socket.getpeercert()
                assert found is not None
                return found["serialNumber"]

        before = serial()
        # For a moment certificate and key do not match: the broker keeps the previous ones.
        renewed = authority.pair("renewed")
        renewed.key.replace(security.key_path)
        renewed.certificate.replace(security.certificate_path)
        wait_until(lambda: serial() != before)


def test_a_certificate_that_is_deleted_while_it_is_reread_changes_nothing(
    tmp_path: Path, authority: Authority, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with secured_broker(tmp_path, "SSL", authority=authority) as broker:
        security = broker.settings.security
        assert security.certificate_path is not None
        certificate = security.certificate_path
        read_bytes = Path.read_bytes

        def read_then_gone(path: Path) -> bytes:
            data = read_bytes(path)
            if path == security.key_path:
                certificate.unlink(missing_ok=True)
            return data

        monkeypatch.setattr(Path, "read_bytes", read_then_gone)
        certificate.touch()
        wait_until(lambda: "the previous ones stay in use" in caplog.text)
        with tls_client(broker, trusting(authority)) as client:
            assert is_served(client)


@pytest.mark.parametrize("fault", ["missing", "no certificate", "of another", "encrypted", "none named"])
async def test_invalid_tls_files_are_named_at_the_start(tmp_path: Path, authority: Authority, fault: str) -> None:
    pair, other = authority.pair("one"), authority.pair("other")
    match fault:
        case "missing":
            pair = Pair(tmp_path / "none.pem", pair.key)
        case "no certificate":
            (tmp_path / "text.pem").write_text("text")
            pair = Pair(tmp_path / "text.pem", pair.key)
        case "of another":
            pair = Pair(pair.certificate, other.key)
        case "encrypted":
            pair = Pair(pair.certificate, encrypted(pair.key))
        case _:
            assert fault == "none named"
    security = SecuritySettings(protocol=SecurityProtocol.SSL, certificate_path=pair.certificate, key_path=pair.key)
    if fault == "none named":
        security = SecuritySettings(protocol=SecurityProtocol.SSL)
    with pytest.raises(WorldError, match="certificate"):
        async with running_broker(BrokerSettings(data_path=tmp_path / "broker", security=security)):
            pass


@pytest.mark.parametrize("turns", range(6))
async def test_a_broker_that_ends_during_handshakes_leaves_nothing_open(
    tmp_path: Path, authority: Authority, turns: int
) -> None:
    pair = authority.pair("broker")
    security = SecuritySettings(protocol=SecurityProtocol.SSL, certificate_path=pair.certificate, key_path=pair.key)
    peers = [socket.socket() for _ in range(3)]
    try:
        async with running_broker(BrokerSettings(data_path=tmp_path, security=security)) as broker:
            for peer in peers:
                peer.connect((broker.host, broker.port))
            peers[0].sendall(bytes.fromhex("16030100c8010000c40303"))
            for _ in range(turns):
                await asyncio.sleep(0)
        gc.collect()
    finally:
        for peer in peers:
            peer.close()
