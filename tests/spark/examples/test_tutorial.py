"""docs/tutorial.md, command by command, on a real cluster with a real PostgreSQL; rows are counted without Spark."""

import pytest
from deltalake import DeltaTable

from benchmarks.http_client import http
from tests.cli.waiting import wait_until
from tests.spark.examples.cluster import TUTORIAL, Cluster, scripts
from tests.spark.sinks.postgres_server import PASSWORD, PostgresServer

pytestmark = [pytest.mark.spark, pytest.mark.timeout(500)]


def test_the_tutorial_works_as_described_and_no_log_contains_the_password(
    cluster: Cluster, postgres: PostgresServer
) -> None:
    _, produce, create, look, clean_up = scripts(TUTORIAL)
    table = cluster.folder / "orders"

    def in_delta() -> int:
        return int(DeltaTable(table).count()) if DeltaTable.is_deltatable(str(table)) else 0

    def in_postgres() -> object:
        if not postgres.rows("SELECT 1 WHERE to_regclass('orders') IS NOT NULL"):
            return 0
        return postgres.rows("SELECT count(*) FROM orders")[0][0]

    cluster.run(produce)
    cluster.run(create)
    wait_until(lambda: in_delta() == 1000, "1000 rows in the Delta table", within_s=120)
    wait_until(lambda: in_postgres() == 1000, "1000 rows in the table of PostgreSQL", within_s=120)
    shown = cluster.run(look)
    assert "orders-to-delta" in shown
    assert "\n1000\n" in shown
    assert "1000 | 124875" in shown
    cluster.run(produce)
    wait_until(lambda: in_delta() == 2000, "the records that were produced again", within_s=120)
    assert in_postgres() == 1000
    config = http.get(f"{cluster.url}/connectors/orders-to-postgres/config", timeout=30).json()
    assert config["connection.password"] == PASSWORD, "the config must contain the password"
    cluster.run(clean_up)
    logged = cluster.everything_logged()
    assert "orders-to-postgres" in logged
    assert PASSWORD not in logged
