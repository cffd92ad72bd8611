"""One real PostgreSQL server for all tests of this process, and one JVM with Kafka's clients."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.spark.sinks.kafka_jvm import running_jvm
from tests.spark.sinks.postgres_server import PostgresServer, running_server


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with running_server() as server:
        yield server


@pytest.fixture(scope="session")
def kafka_clients(spark_jars: Path) -> Iterator[Any]:
    with running_jvm(spark_jars) as java:
        yield java
