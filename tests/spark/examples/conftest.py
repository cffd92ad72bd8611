"""One cluster and one PostgreSQL server for the tutorial and all examples."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spark.examples.cluster import TUTORIAL, Cluster, scripts
from tests.spark.sinks.postgres_server import PASSWORD, USER, PostgresServer, running_server


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with running_server() as server:
        yield server


@pytest.fixture(scope="session")
def cluster(spark_jars: Path, postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster, started by the commands of the tutorial."""
    variables = {
        "PGHOST": "127.0.0.1",
        "PGPORT": str(postgres.port),
        "PGDATABASE": "postgres",
        "PGUSER": USER,
        "PGPASSWORD": PASSWORD,
    }
    cluster = Cluster(tmp_path_factory.mktemp("examples"), variables)
    try:
        cluster.start(scripts(TUTORIAL)[0])
        yield cluster
    finally:
        cluster.interrupt()
