"""One real PostgreSQL server for all tests of this process, and the JVM with Kafka's clients."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

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
