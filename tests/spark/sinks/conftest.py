"""One real PostgreSQL server for all tests of this process, the JVM with Kafka's clients, and brokers that remove idle
transactional ids soon."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kafka.embedded_broker import EmbeddedBroker
from tests.kafka.real_kafka import RealKafka
from tests.spark.conftest import Rig
from tests.spark.sinks.postgres_server import PostgresServer, running_server


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with running_server() as server:
        yield server


@pytest.fixture
def kafka_clients(spark_jars: Path, rig: Rig) -> Any:
    """Spark's own JVM: when Spark runs in a process, PySpark treats every JVM exception as one of that JVM."""
    return rig.session._jvm


@pytest.fixture(scope="session")
def broker_without_auto_creation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """Coterie's own broker with ``auto.create.topics.enable=false``: no test may kill it."""
    broker = EmbeddedBroker(tmp_path_factory.mktemp("without-auto-creation") / "data", auto_create_topics=False)
    broker.start()
    yield broker
    broker.kill()


@pytest.fixture(scope="session")
def kafka_with_auto_creation(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealKafka]:
    """A real Apache Kafka broker that creates missing topics, with three partitions: no test may kill it."""
    properties = "auto.create.topics.enable=true\nnum.partitions=3\n"
    kafka = RealKafka(kafka_jars, tmp_path_factory.mktemp("auto-creation"), properties=properties)
    kafka.start()
    yield kafka
    kafka.stop()


EXPIRATION_MS = 3_000
"""``transactional.id.expiration.ms`` of brokers that remove idle transactional ids soon."""


@pytest.fixture(scope="module", params=["embedded", pytest.param("kafka", marks=pytest.mark.kafka)])
def expiring_servers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker that removes a transactional id that is not used for :data:`EXPIRATION_MS`."""
    folder = tmp_path_factory.mktemp("expiring")
    if request.param == "embedded":
        embedded = EmbeddedBroker(folder / "data", transactional_id_expiration_ms=EXPIRATION_MS)
        embedded.start()
        yield embedded.bootstrap_servers
        embedded.kill()
        return
    properties = (
        f"transactional.id.expiration.ms={EXPIRATION_MS}\n"
        "transaction.remove.expired.transaction.cleanup.interval.ms=500\n"
    )
    kafka = RealKafka(request.getfixturevalue("kafka_jars"), folder, properties=properties)
    kafka.start()
    yield kafka.bootstrap_servers
    kafka.stop()
