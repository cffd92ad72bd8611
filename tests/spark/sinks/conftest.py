"""One real PostgreSQL server for all tests of this process."""

from collections.abc import Iterator

import pytest

from tests.spark.sinks.postgres_server import PostgresServer, running_server


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with running_server() as server:
        yield server
