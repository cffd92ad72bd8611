"""Requests at the wrong time of an authentication: our broker responds as Apache Kafka does."""

import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from coterie.wire.frames import with_length
from tests.broker.conftest import RawClient, raw_client
from tests.broker.secured import PASSWORD, USER, secured_broker
from tests.kafka.real_kafka import RealKafka

pytestmark = pytest.mark.kafka

REAL_PROPERTIES = f"""
listeners=PLAINTEXT://127.0.0.1:{{port}},CONTROLLER://127.0.0.1:{{controller_port}},SASL_PLAINTEXT://127.0.0.1:{{further_port}}
advertised.listeners=PLAINTEXT://127.0.0.1:{{port}},SASL_PLAINTEXT://localhost:{{further_port}}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT
sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256
listener.name.sasl_plaintext.plain.sasl.jaas.config=\
org.apache.kafka.common.security.plain.PlainLoginModule required user_{USER}="secret";
listener.name.sasl_plaintext.scram-sha-256.sasl.jaas.config=\
org.apache.kafka.common.security.scram.ScramLoginModule required;
"""

Story = Callable[[RawClient, str], list[object]]
"""Sends the requests of a peer with this password; returns the responses, "closed" for a closed connection."""


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with secured_broker(tmp_path_factory.mktemp("ours"), "SASL_PLAINTEXT") as broker:
        yield broker.port


@pytest.fixture(scope="module")
def theirs(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealKafka]:
    kafka = RealKafka(kafka_jars, tmp_path_factory.mktemp("theirs"), properties=REAL_PROPERTIES)
    kafka.start()
    yield kafka
    kafka.stop()


def error_code(client: RawClient, api_key: int, version: int, **values: object) -> object:
    """The top-level error code of the response; "closed" if there is none."""
    try:
        return client.ask(api_key, version, **values).error_code.name
    except ConnectionError:
        return "closed"


def versions(client: RawClient) -> object:
    return error_code(client, 18, 3, client_software_name="t", client_software_version="1")


def choice(client: RawClient, mechanism: str = "PLAIN", version: int = 1) -> object:
    return error_code(client, 17, version, mechanism=mechanism)


def token(client: RawClient, data: bytes, version: int = 2) -> object:
    return error_code(client, 36, version, auth_bytes=data)


def metadata(client: RawClient) -> object:
    try:
        return len(client.ask(3, 4, topics=[], allow_auto_topic_creation=False).brokers)
    except ConnectionError:
        return "closed"


def bare(client: RawClient, data: bytes) -> object:
    try:
        client.socket.sendall(with_length(data))
        return client.receive_frame()
    except ConnectionError:
        return "closed"


def plain(password: str) -> bytes:
    return f"\0{USER}\0{password}".encode()


STORIES: dict[str, Story] = {
    "all in order": lambda c, p: [versions(c), choice(c), token(c, plain(p)), metadata(c)],
    "without asking for versions": lambda c, p: [choice(c), token(c, plain(p)), metadata(c)],
    "versions twice": lambda c, p: [versions(c), versions(c)],
    "versions after the choice": lambda c, p: [choice(c), versions(c)],
    "a request before": lambda c, p: [metadata(c)],
    "a request after versions": lambda c, p: [versions(c), metadata(c)],
    "a request after the choice": lambda c, p: [choice(c), metadata(c)],
    "a token before the choice": lambda c, p: [token(c, plain(p))],
    "an unknown mechanism": lambda c, p: [choice(c, "GSSAPI"), choice(c)],
    "a choice twice": lambda c, p: [choice(c), choice(c)],
    "a wrong password": lambda c, p: [choice(c), token(c, plain(p + "x")), metadata(c)],
    "a malformed token": lambda c, p: [choice(c), token(c, b"nonsense"), metadata(c)],
    "for another user": lambda c, p: [choice(c), token(c, b"other" + plain(p)), metadata(c)],
    "a malformed scram token": lambda c, p: [choice(c, "SCRAM-SHA-256"), token(c, b"nonsense"), metadata(c)],
    "channel binding": lambda c, p: [choice(c, "SCRAM-SHA-256"), token(c, b"p=tls-unique,,n=a,r=x"), metadata(c)],
    "again when in": lambda c, p: [choice(c), token(c, plain(p)), choice(c), token(c, plain(p)), metadata(c)],
    "bare tokens": lambda c, p: [choice(c, version=0), bare(c, plain(p)), metadata(c)],
    "a wrong bare token": lambda c, p: [choice(c, version=0), bare(c, plain(p + "x"))],
    "too large": lambda c, p: [_too_large(c)],
}


def _too_large(client: RawClient) -> object:
    client.socket.sendall(struct.pack(">i", 524_289))
    return "closed" if client.is_closed() else "answered"


@pytest.mark.parametrize("story", sorted(STORIES))
def test_authentication_requests_in_any_order_get_kafkas_responses(ours: int, theirs: RealKafka, story: str) -> None:
    with raw_client(ours) as client:
        from_us = STORIES[story](client, PASSWORD)
    with raw_client(theirs.further_port) as client:
        from_kafka = STORIES[story](client, "secret")
    assert from_us == from_kafka


def test_authentication_at_a_plain_listener_ends_as_with_kafka(theirs: RealKafka, tmp_path: Path) -> None:
    def responses(port: int) -> list[object]:
        with raw_client(port) as client:
            return [choice(client), token(client, plain("p")), metadata(client)]

    with secured_broker(tmp_path, "PLAINTEXT") as broker:
        assert responses(broker.port) == responses(theirs.port)
