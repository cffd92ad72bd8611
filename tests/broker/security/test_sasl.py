"""SASL over the wire: authentication with each mechanism, and its failures."""

import base64
import logging
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from coterie.broker.security.authentication_failures import AuthenticationFailureMessages
from coterie.broker.security.users import BrokerUsersFile
from coterie.broker.server import running_broker
from coterie.broker.settings import BrokerSettings, SecurityProtocol, SecuritySettings
from coterie.nouns.errors import WorldError
from coterie.wire.errors import ErrorCode
from coterie.wire.frames import with_length
from coterie.wire.scram import ScramClient
from tests.broker.conftest import RawClient, ThreadedBroker, raw_client
from tests.broker.secured import PASSWORD, USER, secured_broker

API_VERSIONS, METADATA, SASL_HANDSHAKE, SASL_AUTHENTICATE = 18, 3, 17, 36
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[ThreadedBroker]:
    with secured_broker(
        tmp_path, "SASL_PLAINTEXT", failed_authentication_delay_ms=1, handshake_timeout_ms=20_000
    ) as broker:
        yield broker


@pytest.fixture
def client(broker: ThreadedBroker) -> Iterator[RawClient]:
    with raw_client(broker.port) as client:
        yield client


def choose(client: RawClient, mechanism: str, version: int = 1) -> Any:
    return client.ask(SASL_HANDSHAKE, version, mechanism=mechanism)


def send_token(client: RawClient, token: bytes, version: int = 2) -> Any:
    return client.ask(SASL_AUTHENTICATE, version, auth_bytes=token)


def log_in(client: RawClient, mechanism: str, *, user: str = USER, password: str = PASSWORD, version: int = 2) -> Any:
    """Authenticate; returns the last response to SaslAuthenticate."""
    assert choose(client, mechanism).error_code is ErrorCode.none
    if mechanism == "PLAIN":
        return send_token(client, f"\0{user}\0{password}".encode(), version)
    scram = ScramClient(mechanism, user=user, password=password, nonce="fresh")
    first = send_token(client, scram.first_message(), version)
    if first.error_code is not ErrorCode.none:
        return first
    last = send_token(client, scram.final_message(first.auth_bytes), version)
    if last.error_code is ErrorCode.none:
        scram.verify_server_final(last.auth_bytes)
    return last


def is_served(client: RawClient) -> bool:
    answer = client.ask(METADATA, 4, topics=[], allow_auto_topic_creation=False)
    return bool(answer.brokers)


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("version", range(3))
def test_a_user_with_the_right_password_is_authenticated(client: RawClient, mechanism: str, version: int) -> None:
    client.ask(API_VERSIONS, 3, client_software_name="t", client_software_version="1")
    last = log_in(client, mechanism, version=version)
    assert last.error_code is ErrorCode.none
    assert is_served(client)


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize(("user", "password"), [(USER, "wrong"), ("unknown", PASSWORD)])
def test_every_failed_authentication_gets_the_same_message_and_closes_the_connection(
    client: RawClient, mechanism: str, user: str, password: str
) -> None:
    last = log_in(client, mechanism, user=user, password=password)
    assert last.error_code is ErrorCode.sasl_authentication_failed
    assert last.error_message == "Authentication failed: the user name or the password is wrong."
    assert client.is_closed()


def test_an_unknown_user_gets_a_stable_salt_like_a_known_one(broker: ThreadedBroker) -> None:
    def salt_of(user: str) -> bytes:
        with raw_client(broker.port) as client:
            choose(client, "SCRAM-SHA-512")
            answer: bytes = send_token(
                client, ScramClient("SCRAM-SHA-512", user=user, password="", nonce="n").first_message()
            ).auth_bytes
            return answer.split(b",s=")[1]

    assert salt_of("unknown") == salt_of("unknown") != salt_of("unknown too")
    assert len(salt_of("unknown")) == len(salt_of(USER))


def test_the_response_to_an_unknown_mechanism_and_its_log_message_list_the_supported_ones(
    client: RawClient, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="coterie.broker"):
        answer = choose(client, "GSS\nAPI" + "x" * 500)
        assert answer.error_code is ErrorCode.unsupported_sasl_mechanism
        assert set(answer.mechanisms) == set(MECHANISMS)
        assert client.is_closed()
    (record,) = caplog.records
    assert record.getMessage().endswith(
        f"closed: authentication failed: the client requested the mechanism 'GSS\\nAPI{'x' * 57}', which is not"
        " offered; set its sasl.mechanism to one of SCRAM-SHA-512, SCRAM-SHA-256, PLAIN"
    )


def test_other_requests_before_authentication_close_the_connection(
    client: RawClient, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="coterie.broker"):
        client.send(METADATA, 4, topics=[], allow_auto_topic_creation=False)
        assert client.is_closed()
    assert [record.getMessage().partition(": ")[2] for record in caplog.records] == [
        "the peer sent a request of API 3 before it was authenticated; check that the client's security.protocol is "
        "that of the broker"
    ]


def test_a_token_before_its_mechanism_closes_the_connection(client: RawClient) -> None:
    client.send(SASL_AUTHENTICATE, 2, auth_bytes=b"\0a\0b")
    assert client.is_closed()


def test_a_second_handshake_during_authentication_is_refused(client: RawClient) -> None:
    choose(client, "SCRAM-SHA-256")
    assert choose(client, "PLAIN").error_code is ErrorCode.illegal_sasl_state
    assert client.is_closed()


@pytest.mark.parametrize(
    "token", [b"", b"\0\0", b"alice", b"\0alice\0", b"bob\0alice\0" + PASSWORD.encode(), b"\xff\0\0"]
)
def test_a_malformed_plain_token_is_refused(client: RawClient, token: bytes) -> None:
    choose(client, "PLAIN")
    assert send_token(client, token).error_code is ErrorCode.sasl_authentication_failed
    assert client.is_closed()


@pytest.mark.parametrize("token", [b"", b"n,,n=alice", b"p=tls,,n=alice,r=x", b"\xff"])
def test_a_malformed_scram_token_is_refused(client: RawClient, token: bytes) -> None:
    choose(client, "SCRAM-SHA-256")
    assert send_token(client, token).error_code is ErrorCode.sasl_authentication_failed
    assert client.is_closed()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_after_handshake_version_0_tokens_are_sent_without_request_headers(client: RawClient, mechanism: str) -> None:
    assert choose(client, mechanism, version=0).error_code is ErrorCode.none
    if mechanism == "PLAIN":
        client.socket.sendall(with_length(f"\0{USER}\0{PASSWORD}".encode()))
        assert client.receive_frame() == b""
    else:
        scram = ScramClient(mechanism, user=USER, password=PASSWORD, nonce="fresh")
        client.socket.sendall(with_length(scram.first_message()))
        client.socket.sendall(with_length(scram.final_message(client.receive_frame())))
        scram.verify_server_final(client.receive_frame())
    assert is_served(client)


def test_a_wrong_token_without_a_request_header_closes_the_connection(client: RawClient) -> None:
    choose(client, "PLAIN", version=0)
    client.socket.sendall(with_length(b"\0alice\0wrong"))
    assert client.is_closed()


def test_an_authenticated_client_cannot_authenticate_again(client: RawClient) -> None:
    log_in(client, "PLAIN")
    assert choose(client, "PLAIN").error_code is ErrorCode.illegal_sasl_state
    assert send_token(client, b"\0a\0b").error_code is ErrorCode.illegal_sasl_state
    assert is_served(client)


def test_a_broker_without_sasl_refuses_authentication(tmp_path: Path) -> None:
    with secured_broker(tmp_path, "PLAINTEXT") as broker, raw_client(broker.port) as client:
        assert choose(client, "PLAIN").error_code is ErrorCode.illegal_sasl_state
        assert send_token(client, b"\0a\0b").error_code is ErrorCode.illegal_sasl_state
        assert is_served(client)


def test_frames_before_authentication_have_a_small_maximum_size(client: RawClient) -> None:
    client.socket.sendall(struct.pack(">i", 524_289))
    assert client.is_closed()


def test_a_client_that_does_not_authenticate_in_time_is_closed_and_others_are_served(tmp_path: Path) -> None:
    with (
        secured_broker(tmp_path, "SASL_PLAINTEXT", handshake_timeout_ms=2_000) as broker,
        raw_client(broker.port) as idle,
        raw_client(broker.port) as client,
    ):
        log_in(client, "SCRAM-SHA-512")
        assert idle.is_closed()
        assert is_served(client)


def test_a_running_broker_rereads_its_users(broker: ThreadedBroker) -> None:
    beside = BrokerUsersFile(broker.settings.users_path)
    assert beside.add("bob", "first")
    with raw_client(broker.port) as client:
        assert log_in(client, "PLAIN", user="bob", password="first").error_code is ErrorCode.none
    assert not beside.add("bob", "second")
    with raw_client(broker.port) as client:
        assert log_in(client, "PLAIN", user="bob", password="first").error_code is ErrorCode.sasl_authentication_failed
    assert beside.read_names() == [USER, "bob"]
    assert beside.remove("bob")
    assert not beside.remove("bob")
    with raw_client(broker.port) as client:
        assert log_in(client, "PLAIN", user="bob", password="second").error_code is ErrorCode.sasl_authentication_failed


def test_the_users_file_is_readable_by_its_owner_only_and_contains_no_password(tmp_path: Path) -> None:
    path = tmp_path / "data" / "users.json"
    BrokerUsersFile(path).add("alice", "a rare password")
    assert os.stat(path).st_mode & 0o777 == 0o600
    text = path.read_text()
    assert "rare" not in text
    assert base64.b64encode(b"a rare password").decode() not in text
    assert [entry.name for entry in path.parent.iterdir()] == ["users.json"]


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"version": 2, "users": {}}', '{"version": 1, "users": {"a": {}}}'])
def test_an_invalid_users_file_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "users.json"
    path.write_text(text)
    with pytest.raises(WorldError, match=r"users\.json"):
        BrokerUsersFile(path).read_names()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.write_text("no users"), "users.json is not a users file; move it away"),
        (Path.unlink, "users.json is missing; restore it, or add the users again"),
    ],
    ids=["invalid", "deleted"],
)
def test_an_unusable_users_file_is_logged_once_and_the_previous_users_stay_in_use(
    broker: ThreadedBroker, caplog: pytest.LogCaptureFixture, damage: Callable[[Path], object], message: str
) -> None:
    damage(broker.settings.users_path)
    with caplog.at_level(logging.WARNING, logger="coterie.broker"):
        for _ in range(3):
            with raw_client(broker.port) as client:
                assert log_in(client, "PLAIN").error_code is ErrorCode.none
    (record,) = caplog.records
    assert "the previous users stay in use" in record.message
    assert message in record.message


def test_users_that_are_added_after_the_users_file_was_deleted_are_the_only_ones(broker: ThreadedBroker) -> None:
    broker.settings.users_path.unlink()
    with raw_client(broker.port) as client:
        assert log_in(client, "PLAIN").error_code is ErrorCode.none, "the previous users stay in use"
    BrokerUsersFile(broker.settings.users_path).add("bob", PASSWORD)
    with raw_client(broker.port) as client:
        assert log_in(client, "PLAIN").error_code is ErrorCode.sasl_authentication_failed
    with raw_client(broker.port) as client:
        assert log_in(client, "PLAIN", user="bob").error_code is ErrorCode.none


@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "PLAINTEXT"])
async def test_a_broker_with_sasl_does_not_start_with_an_invalid_users_file(tmp_path: Path, protocol: str) -> None:
    settings = BrokerSettings(data_path=tmp_path, security=SecuritySettings(protocol=SecurityProtocol(protocol)))
    settings.users_path.write_text("no users")
    if not settings.security.protocol.has_sasl:
        async with running_broker(settings):
            return
    with pytest.raises(WorldError, match=r"users.json is not a users file; move it away and add the users again"):
        async with running_broker(settings):
            raise AssertionError("the broker has started")


@pytest.mark.parametrize(("mechanism", "version"), [("PLAIN", 1), ("PLAIN", 0), ("SCRAM-SHA-256", 1)])
def test_failed_authentication_is_logged_once_a_minute_for_each_address(
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
                    client.socket.sendall(with_length(f"\0{user}\0x".encode()))
                assert client.is_closed()
    (record,) = caplog.records
    assert record.message.endswith(f"closed: authentication failed for 'mal\\nlory{'x' * 56}' with {mechanism}")


def test_suppressed_messages_of_an_address_are_counted_in_its_next_message() -> None:
    denials = AuthenticationFailureMessages()
    assert denials.message_to_log("a", "", "GSSAPI", now_s=1000)
    assert (
        denials.message_to_log("b", "", "PLAIN", now_s=1000) == "authentication failed for an unnamed user with PLAIN"
    )
    assert [denials.message_to_log("a", "eve", "PLAIN", now_s=1000 + n) for n in range(1, 60)] == [None] * 59
    assert denials.message_to_log("a", "eve", "PLAIN", now_s=1060) == (
        "authentication failed for 'eve' with PLAIN; 59 more failed from a since the last such message"
    )
    for n in range(2_000):
        assert denials.message_to_log(f"h{n}", "eve", "PLAIN", now_s=1061)
    assert denials.message_to_log("h1000", "eve", "PLAIN", now_s=1061) is None, (
        "an address among the last 1,000 was not limited"
    )
    assert denials.message_to_log("h999", "eve", "PLAIN", now_s=1061)


def test_the_default_limits_before_authentication_are_kafkas() -> None:
    settings = BrokerSettings(data_path=Path("x"))
    assert (settings.failed_authentication_delay_ms, settings.handshake_timeout_ms) == (100, 10_000)
