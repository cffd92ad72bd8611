"""SASL as peers meet it: who gets in with which mechanism, and what becomes of everybody else."""

import base64
import logging
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coterie.broker.security.denials import Denials
from coterie.broker.security.users import Users
from coterie.broker.server import running
from coterie.broker.settings import BrokerSettings, Security, SecurityProtocol
from coterie.nouns.errors import WorldError
from coterie.wire.errors import ErrorCode
from coterie.wire.frames import framed
from coterie.wire.scram import ScramClient
from tests.broker.conftest import RawClient, ThreadedBroker, raw_client
from tests.broker.secured import PASSWORD, USER, secured_broker

API_VERSIONS, METADATA, SASL_HANDSHAKE, SASL_AUTHENTICATE = 18, 3, 17, 36
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[ThreadedBroker]:
    with secured_broker(tmp_path, "SASL_PLAINTEXT", refusal_delay_ms=1, handshake_timeout_ms=20_000) as broker:
        yield broker


@pytest.fixture
def client(broker: ThreadedBroker) -> Iterator[RawClient]:
    with raw_client(broker.port) as client:
        yield client


def choose(client: RawClient, mechanism: str, version: int = 1) -> Any:
    return client.ask(SASL_HANDSHAKE, version, mechanism=mechanism)


def say(client: RawClient, token: bytes, version: int = 2) -> Any:
    return client.ask(SASL_AUTHENTICATE, version, auth_bytes=token)


def log_in(client: RawClient, mechanism: str, *, user: str = USER, password: str = PASSWORD, version: int = 2) -> Any:
    """The last answer to SaslAuthenticate."""
    assert choose(client, mechanism).error_code is ErrorCode.none
    if mechanism == "PLAIN":
        return say(client, f"\0{user}\0{password}".encode(), version)
    scram = ScramClient(mechanism, user=user, password=password, nonce="fresh")
    first = say(client, scram.first(), version)
    if first.error_code is not ErrorCode.none:
        return first
    last = say(client, scram.final(first.auth_bytes), version)
    if last.error_code is ErrorCode.none:
        scram.check(last.auth_bytes)
    return last


def asks_in_peace(client: RawClient) -> bool:
    answer = client.ask(METADATA, 4, topics=[], allow_auto_topic_creation=False)
    return bool(answer.brokers)


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("version", range(3))
def test_who_knows_the_password_gets_in(client: RawClient, mechanism: str, version: int) -> None:
    client.ask(API_VERSIONS, 3, client_software_name="t", client_software_version="1")
    last = log_in(client, mechanism, version=version)
    assert last.error_code is ErrorCode.none
    assert asks_in_peace(client)


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize(("user", "password"), [(USER, "wrong"), ("nobody", PASSWORD)])
def test_everybody_else_is_told_the_same_sentence_and_closed(
    client: RawClient, mechanism: str, user: str, password: str
) -> None:
    last = log_in(client, mechanism, user=user, password=password)
    assert last.error_code is ErrorCode.sasl_authentication_failed
    assert last.error_message == "Authentication failed: the user name or the password is wrong."
    assert client.is_closed()


def test_an_unknown_user_has_a_salt_like_everybody(broker: ThreadedBroker) -> None:
    def salt_of(user: str) -> bytes:
        with raw_client(broker.port) as client:
            choose(client, "SCRAM-SHA-512")
            answer: bytes = say(
                client, ScramClient("SCRAM-SHA-512", user=user, password="", nonce="n").first()
            ).auth_bytes
            return answer.split(b",s=")[1]

    assert salt_of("nobody") == salt_of("nobody") != salt_of("nobody else")
    assert len(salt_of("nobody")) == len(salt_of(USER))


def test_an_unknown_mechanism_is_answered_with_those_there_are(client: RawClient) -> None:
    answer = choose(client, "GSSAPI")
    assert answer.error_code is ErrorCode.unsupported_sasl_mechanism
    assert set(answer.mechanisms) == set(MECHANISMS)
    assert client.is_closed()


def test_nothing_else_is_taken_before(client: RawClient, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="coterie.broker"):
        client.send(METADATA, 4, topics=[], allow_auto_topic_creation=False)
        assert client.is_closed()
    assert [record.getMessage().partition(": ")[2] for record in caplog.records] == [
        "a request of API 3 before authentication"
    ]


def test_a_token_before_its_mechanism_closes_the_connection(client: RawClient) -> None:
    client.send(SASL_AUTHENTICATE, 2, auth_bytes=b"\0a\0b")
    assert client.is_closed()


def test_nothing_but_tokens_is_taken_between(client: RawClient) -> None:
    choose(client, "SCRAM-SHA-256")
    assert choose(client, "PLAIN").error_code is ErrorCode.illegal_sasl_state
    assert client.is_closed()


@pytest.mark.parametrize(
    "token", [b"", b"\0\0", b"alice", b"\0alice\0", b"bob\0alice\0" + PASSWORD.encode(), b"\xff\0\0"]
)
def test_a_malformed_plain_token_is_refused(client: RawClient, token: bytes) -> None:
    choose(client, "PLAIN")
    assert say(client, token).error_code is ErrorCode.sasl_authentication_failed
    assert client.is_closed()


@pytest.mark.parametrize("token", [b"", b"n,,n=alice", b"p=tls,,n=alice,r=x", b"\xff"])
def test_a_malformed_scram_token_is_refused(client: RawClient, token: bytes) -> None:
    choose(client, "SCRAM-SHA-256")
    assert say(client, token).error_code is ErrorCode.sasl_authentication_failed
    assert client.is_closed()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_after_the_first_handshake_version_tokens_are_bare(client: RawClient, mechanism: str) -> None:
    assert choose(client, mechanism, version=0).error_code is ErrorCode.none
    if mechanism == "PLAIN":
        client.socket.sendall(framed(f"\0{USER}\0{PASSWORD}".encode()))
        assert client.receive_frame() == b""
    else:
        scram = ScramClient(mechanism, user=USER, password=PASSWORD, nonce="fresh")
        client.socket.sendall(framed(scram.first()))
        client.socket.sendall(framed(scram.final(client.receive_frame())))
        scram.check(client.receive_frame())
    assert asks_in_peace(client)


def test_a_wrong_bare_token_closes_the_connection(client: RawClient) -> None:
    choose(client, "PLAIN", version=0)
    client.socket.sendall(framed(b"\0alice\0wrong"))
    assert client.is_closed()


def test_who_is_in_cannot_authenticate_again(client: RawClient) -> None:
    log_in(client, "PLAIN")
    assert choose(client, "PLAIN").error_code is ErrorCode.illegal_sasl_state
    assert say(client, b"\0a\0b").error_code is ErrorCode.illegal_sasl_state
    assert asks_in_peace(client)


def test_where_nobody_must_authenticate_nobody_can(tmp_path: Path) -> None:
    with secured_broker(tmp_path, "PLAINTEXT") as broker, raw_client(broker.port) as client:
        assert choose(client, "PLAIN").error_code is ErrorCode.illegal_sasl_state
        assert say(client, b"\0a\0b").error_code is ErrorCode.illegal_sasl_state
        assert asks_in_peace(client)


def test_before_authentication_frames_are_small(client: RawClient) -> None:
    client.socket.sendall(struct.pack(">i", 524_289))
    assert client.is_closed()


def test_who_does_not_authenticate_in_time_is_closed_and_others_are_served(tmp_path: Path) -> None:
    with (
        secured_broker(tmp_path, "SASL_PLAINTEXT", handshake_timeout_ms=2_000) as broker,
        raw_client(broker.port) as idle,
        raw_client(broker.port) as client,
    ):
        log_in(client, "SCRAM-SHA-512")
        assert idle.is_closed()
        assert asks_in_peace(client)


def test_users_change_beside_a_running_broker(broker: ThreadedBroker) -> None:
    beside = Users(broker.settings.users_path)
    assert beside.add("bob", "first")
    with raw_client(broker.port) as client:
        assert log_in(client, "PLAIN", user="bob", password="first").error_code is ErrorCode.none
    assert not beside.add("bob", "second")
    with raw_client(broker.port) as client:
        assert log_in(client, "PLAIN", user="bob", password="first").error_code is ErrorCode.sasl_authentication_failed
    assert beside.names() == [USER, "bob"]
    assert beside.remove("bob")
    assert not beside.remove("bob")
    with raw_client(broker.port) as client:
        assert log_in(client, "PLAIN", user="bob", password="second").error_code is ErrorCode.sasl_authentication_failed


def test_the_users_file_is_its_owners_alone_and_tells_no_password(tmp_path: Path) -> None:
    path = tmp_path / "data" / "users.json"
    Users(path).add("alice", "a rare password")
    assert os.stat(path).st_mode & 0o777 == 0o600
    text = path.read_text()
    assert "rare" not in text
    assert base64.b64encode(b"a rare password").decode() not in text
    assert [entry.name for entry in path.parent.iterdir()] == ["users.json"]


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"version": 2, "users": {}}', '{"version": 1, "users": {"a": {}}}'])
def test_a_users_file_that_is_none_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "users.json"
    path.write_text(text)
    with pytest.raises(WorldError, match=r"users\.json"):
        Users(path).names()


def test_beside_a_broken_users_file_those_before_stay_in_force_and_one_line_says_so(
    broker: ThreadedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    broker.settings.users_path.write_text("no users")
    with caplog.at_level(logging.WARNING, logger="coterie.broker"):
        for _ in range(3):
            with raw_client(broker.port) as client:
                assert log_in(client, "PLAIN").error_code is ErrorCode.none
    (record,) = caplog.records
    assert "the previous users stay in use" in record.message
    assert "users.json is not a users file; move it away" in record.message


@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "PLAINTEXT"])
async def test_a_broker_that_could_let_nobody_in_does_not_start(tmp_path: Path, protocol: str) -> None:
    settings = BrokerSettings(data_path=tmp_path, security=Security(protocol=SecurityProtocol(protocol)))
    settings.users_path.write_text("no users")
    if not settings.security.protocol.has_sasl:
        async with running(settings):
            return
    with pytest.raises(WorldError, match=r"users.json is not a users file; move it away and add the users again"):
        async with running(settings):
            raise AssertionError("it has started")


@pytest.mark.parametrize(("mechanism", "version"), [("PLAIN", 1), ("PLAIN", 0), ("SCRAM-SHA-256", 1)])
def test_the_log_tells_who_failed_to_log_in_once_a_minute_and_address(
    broker: ThreadedBroker, caplog: pytest.LogCaptureFixture, mechanism: str, version: int
) -> None:
    user = "mal\nlory" + "x" * 500
    with caplog.at_level(logging.WARNING, logger="coterie.broker"):
        for _ in range(5):
            with raw_client(broker.port) as client:
                if version:
                    log_in(client, mechanism, user=user)
                else:
                    choose(client, mechanism, 0)
                    client.socket.sendall(framed(f"\0{user}\0x".encode()))
                assert client.is_closed()
    (record,) = caplog.records
    assert record.message.endswith(f"closed: authentication failed for 'mal\\nlory{'x' * 56}' with {mechanism}")


def test_what_was_not_said_of_an_address_is_counted_in_its_next_line() -> None:
    denials = Denials()
    assert denials.line("a", "", None, now_s=1000) == "authentication failed"
    assert denials.line("b", "", "PLAIN", now_s=1000) == "authentication failed for an unnamed user with PLAIN"
    assert [denials.line("a", "eve", "PLAIN", now_s=1000 + n) for n in range(1, 60)] == [None] * 59
    assert denials.line("a", "eve", "PLAIN", now_s=1060) == (
        "authentication failed for 'eve' with PLAIN; 59 more failed from a since the last such message"
    )
    for n in range(2_000):
        assert denials.line(f"h{n}", "eve", "PLAIN", now_s=1061)
    assert denials.line("h1000", "eve", "PLAIN", now_s=1061) is None, "of the last 1,000 addresses it is known"
    assert denials.line("h999", "eve", "PLAIN", now_s=1061)


def test_the_default_limits_before_authentication_are_kafkas() -> None:
    settings = BrokerSettings(data_path=Path("x"))
    assert (settings.refusal_delay_ms, settings.handshake_timeout_ms) == (100, 10_000)
