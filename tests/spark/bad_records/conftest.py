"""A broker's topics and a PostgreSQL server for the tests of bad records."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kafka.embedded_broker import EmbeddedBroker
from tests.spark.conftest import Rig
from tests.spark.sinks.postgres_server import PostgresServer, running_server
from tests.spark.sources.kafka_topics import Kafka


@pytest.fixture
def kafka(spark_jars: Path, rig: Rig, embedded_broker: EmbeddedBroker, tmp_path: Path) -> Kafka:
    return Kafka(embedded_broker.bootstrap_servers, tmp_path)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with running_server() as server:
        yield server
