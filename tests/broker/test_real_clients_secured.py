"""Unmodified Kafka clients against a secured broker: each client with each mechanism, over TLS and without."""

import ssl
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import aiokafka
import pytest
from confluent_kafka import Consumer, Producer

from tests.broker.conftest import ThreadedBroker
from tests.broker.secured import PASSWORD, USER, secured_broker, trusting
from tests.certificates import Authority
from tests.clients import kafka_python

pytestmark = pytest.mark.interop

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
TOPIC = "said"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module", params=["SASL_SSL", "SASL_PLAINTEXT"])
def broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, authority: Authority
) -> Iterator[ThreadedBroker]:
    secured = authority if request.param == "SASL_SSL" else None
    with secured_broker(tmp_path_factory.mktemp("broker"), request.param, authority=secured) as broker:
        yield broker


def protocol(broker: ThreadedBroker) -> str:
    return broker.settings.security.protocol.value


def context(broker: ThreadedBroker, authority: Authority) -> ssl.SSLContext | None:
    return trusting(authority) if broker.settings.security.protocol.has_tls else None


def of_confluent(
    broker: ThreadedBroker, authority: Authority, mechanism: str, password: str = PASSWORD
) -> dict[str, str]:
    return {
        "bootstrap.servers": f"localhost:{broker.port}",
        "security.protocol": protocol(broker),
        "sasl.mechanism": mechanism,
        "sasl.username": USER,
        "sasl.password": password,
        "ssl.ca.location": str(authority.certificate),
    }


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_confluent_kafka_connects_and_reads_what_it_wrote(
    broker: ThreadedBroker, authority: Authority, mechanism: str
) -> None:
    settings = of_confluent(broker, authority, mechanism)
    sent_value = uuid.uuid4().bytes
    producer = Producer(settings)
    producer.produce(TOPIC, sent_value)
    assert producer.flush(60) == 0
    consumer = Consumer({**settings, "group.id": f"readers-{sent_value.hex()}", "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe([TOPIC])
        found = None
        while found != sent_value:
            message = consumer.poll(60)
            assert message is not None
            found = message.value() if message.error() is None else None
    finally:
        consumer.close()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_python_connects_and_reads_what_it_wrote(
    broker: ThreadedBroker, authority: Authority, mechanism: str
) -> None:
    kafka_python.ask(
        "write_and_read",
        bootstrap=f"localhost:{broker.port}",
        protocol=protocol(broker),
        mechanism=mechanism,
        user=USER,
        password=PASSWORD,
        cafile=str(authority.certificate) if broker.settings.security.protocol.has_tls else None,
        topic=TOPIC,
        sent_value=uuid.uuid4().hex,
    )


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_aiokafka_connects_and_reads_what_it_wrote(
    broker: ThreadedBroker, authority: Authority, mechanism: str
) -> None:
    settings = {
        "bootstrap_servers": f"localhost:{broker.port}",
        "security_protocol": protocol(broker),
        "sasl_mechanism": mechanism,
        "sasl_plain_username": USER,
        "sasl_plain_password": PASSWORD,
        "ssl_context": context(broker, authority),
    }
    sent_value = uuid.uuid4().bytes
    async with aiokafka.AIOKafkaProducer(**settings) as producer:
        await producer.send_and_wait(TOPIC, sent_value)
    group = f"readers-{sent_value.hex()}"
    async with aiokafka.AIOKafkaConsumer(TOPIC, group_id=group, auto_offset_reset="earliest", **settings) as consumer:
        async for message in consumer:
            if message.value == sent_value:
                break


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_wrong_password_is_reported_to_the_client_in_one_sentence(
    broker: ThreadedBroker, authority: Authority, mechanism: str
) -> None:
    errors: list[str] = []
    settings = of_confluent(broker, authority, mechanism, password="wrong")
    producer = Producer({**settings, "error_cb": lambda error: errors.append(error.str())})
    deadline_s = time.monotonic() + 60
    while not any("the user name or the password is wrong" in one for one in errors):
        producer.poll(0.1)
        assert time.monotonic() < deadline_s, errors


def test_a_client_certificate_authenticates_its_client(tmp_path: Path, authority: Authority) -> None:
    pair = authority.pair("client", subject="/CN=loader")
    with secured_broker(tmp_path, "SSL", authority=authority, wants_certificates=True) as broker:
        settings = {
            "bootstrap.servers": f"localhost:{broker.port}",
            "security.protocol": "SSL",
            "ssl.ca.location": str(authority.certificate),
            "ssl.certificate.location": str(pair.certificate),
            "ssl.key.location": str(pair.key),
        }
        assert Producer(settings).list_topics(timeout=60).brokers
