"""Transforms on a stream of Kafka's records: they can use all parts of a record, and files have no hidden columns."""

import json
from pathlib import Path

import pytest

from tests.kafka.embedded_broker import EmbeddedBroker
from tests.spark.conftest import Rig
from tests.spark.sources.kafka_topics import Kafka

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(300)]


@pytest.fixture
def kafka(spark_jars: Path, rig: Rig, embedded_broker: EmbeddedBroker, tmp_path: Path) -> Kafka:
    return Kafka(embedded_broker.bootstrap_servers, tmp_path)


async def test_transforms_use_topic_headers_and_tombstones_and_only_values_are_written(rig: Rig, kafka: Kafka) -> None:
    kafka.create("parts", 1)
    kafka.produce("parts", 0, [b'{"row": 1}', None, b'{"row": 2}'])
    config = kafka.config("parts", key__converter="StringConverter") | {
        "transforms": "live,named,asked,more",
        "transforms.live.type": "Filter",
        "transforms.live.predicate": "gone",
        "transforms.named.type": "InsertField$Value",
        "transforms.named.topic.field": "topic",
        "transforms.named.offset.field": "offset",
        "transforms.named.predicate": "marked",
        "transforms.asked.type": "Sql",
        "transforms.asked.query": "SELECT row, topic, offset FROM source",
        "transforms.more.type": "InsertField$Value",
        "transforms.more.partition.field": "partition",
        "predicates": "gone,marked",
        "predicates.gone.type": "RecordIsTombstone",
        "predicates.marked.type": "HasHeaderKey",
        "predicates.marked.name": "h",
    }
    assert await rig.config_errors(config, ()) == {}
    start = await rig.start(config, "parts")
    await rig.wait_until(lambda: len(kafka.rows("parts")) >= 2)
    await rig.runtime.stop(start.task, grace_ms=10_000)
    out = kafka.out / "parts"
    files = [path for path in out.rglob("*.json") if not str(path.relative_to(out)).startswith(("_", "."))]
    lines = [json.loads(line) for path in files for line in path.read_text().splitlines()]
    assert sorted(lines, key=lambda line: int(line["row"])) == [
        {"row": row, "topic": "parts", "offset": offset, "partition": 0} for row, offset in ((1, 0), (2, 2))
    ]
