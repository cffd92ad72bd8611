"""Topics of the broker that all tests share."""

from pathlib import Path

import pytest

from tests.kafka.embedded_broker import EmbeddedBroker
from tests.spark.conftest import Rig
from tests.spark.sources.kafka_topics import Kafka


@pytest.fixture
def kafka(spark_jars: Path, rig: Rig, embedded_broker: EmbeddedBroker, tmp_path: Path) -> Kafka:
    return Kafka(embedded_broker.bootstrap_servers, tmp_path)
