"""What Kafka shows of connectors, where one of their clusters does not answer."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from coterie.nouns.jobs import ConnectorName, ConnectorTaskId
from coterie.spark.lag import LagReports
from coterie.spark.plugins import source_end
from coterie.spark.query import TaskQuery
from coterie.spark.seams import Share
from coterie.spark.sources.kafka import KafkaSource
from coterie.spark.sources.kafka_client import KafkaAdmin, kafka_admin
from tests.kafka.embedded_broker import EmbeddedBroker
from tests.ports import free_port
from tests.spark.conftest import Rig
from tests.spark.sources.kafka_topics import Kafka

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(120)]


@pytest.fixture
def kafka(spark_jars: Path, rig: Rig, embedded_broker: EmbeddedBroker, tmp_path: Path) -> Kafka:
    return Kafka(embedded_broker.bootstrap_servers, tmp_path)


async def test_a_cluster_is_asked_by_one_client_a_report_and_not_again_when_it_does_not_answer(
    kafka: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kafka.create("shown", 1)
    parts = tuple(KafkaSource.parts(source_end(kafka.config("shown"), {}).config))
    share = Share(index=0, count=1, parts=parts, function=KafkaSource.split_function)

    def query(name: str, **keys: str) -> TaskQuery:
        """What a report looks at of a query that has read three records."""
        own = source_end({**kafka.config("shown", **keys), "name": name}, {}).config
        KafkaSource.store.seed(tmp_path / name, dict.fromkeys(parts, 3))
        task, held = ConnectorTaskId(ConnectorName(name), 0), SimpleNamespace(path=tmp_path / name)
        source = KafkaSource.of(own, share)
        return cast(TaskQuery, SimpleNamespace(task=task, source=source, held=held, taken=False))

    opened: list[str] = []

    @contextmanager
    def seen(properties: Mapping[str, str]) -> Iterator[KafkaAdmin]:
        opened.append(properties["bootstrap.servers"])
        with kafka_admin(properties) as admin:
            yield admin

    monkeypatch.setattr("coterie.spark.lag.kafka_admin", seen)
    monkeypatch.setattr("coterie.spark.sources.kafka_client.LIMIT_MS", 1000)
    dead = f"127.0.0.1:{free_port()}"
    away = {"consumer__override__bootstrap__servers": dead}
    queries = [
        query("dead-1", **away),
        query("dead-2", **away),
        query("dead-3", **away, consumer__override__fetch__min__bytes="2"),
        query("live-1"),
        query("live-2"),
    ]
    reports, closing = LagReports(lambda: queries, 1000), threading.Event()
    closing.set()
    reports.report(closing)
    assert opened == []
    closing.clear()
    reports.report(closing)
    assert opened == [dead, kafka.servers]
    for name in ("live-1", "live-2"):
        assert kafka.group_offsets(f"connect-{name}") == {("shown", 0): 3}
    # A connector that has failed lets the others of its cluster go first.
    reports.report(closing)
    assert opened == [dead, kafka.servers, dead]
    said = [record.getMessage() for record in caplog.records if record.name == "coterie.spark.lag"]
    assert [line.partition(": committing")[0].rpartition(" ")[2] for line in said] == ["dead-1", "dead-2"]
