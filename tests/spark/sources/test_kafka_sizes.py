"""The size of a batch's records is estimated from a sample; and the settings of Spark's consumers for that."""

from collections.abc import Sequence

import pytest

from coterie.nouns.errors import UnreachableError
from coterie.spark.sources.kafka_batch import FETCH_WAIT_MAX_MS, spark_consumer_options
from coterie.spark.sources.kafka_positions import TopicIdPartition
from coterie.spark.sources.kafka_sizes import SAMPLED_PARTITIONS_MAX, sampled_mean_record_bytes
from tests.spark.conftest import Rig
from tests.spark.sources.kafka_topics import Kafka

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
SMALL, LARGE = b"x" * 9, b"x" * 49_999
"""Values; keys have one byte."""


def test_the_estimated_record_size_is_the_larger_mean_of_the_first_and_the_last_records(rig: Rig, kafka: Kafka) -> None:
    def size_in(topic: str, *partitions: Sequence[bytes]) -> int:
        kafka.create(topic, len(partitions))
        for number, values in enumerate(partitions):
            kafka.produce(topic, number, values)
        ranges = {_part(topic, number): range(len(values)) for number, values in enumerate(partitions)}
        return sampled_mean_record_bytes({"bootstrap.servers": kafka.servers}, ranges)

    assert size_in("sizes-few", [SMALL] * 3) == 10
    assert size_in("sizes-grow", [SMALL] * 30 + [LARGE] * 10) == 50_000
    assert size_in("sizes-shrink", [LARGE] * 10 + [SMALL] * 30) == 50_000
    # The partition with the most records is sampled; how many of its records one fetch returns is the broker's choice.
    assert size_in("sizes-of-full", [LARGE] * 30, *[[SMALL]] * SAMPLED_PARTITIONS_MAX) > 1_000
    assert size_in("sizes-empty", [], []) == 0


def test_one_partition_of_each_topic_is_sampled_before_further_ones(rig: Rig, kafka: Kafka) -> None:
    kafka.create("sizes-many", SAMPLED_PARTITIONS_MAX)
    kafka.create("sizes-one", 1)
    for number in range(SAMPLED_PARTITIONS_MAX):
        kafka.produce("sizes-many", number, [SMALL] * 30)
    kafka.produce("sizes-one", 0, [LARGE] * 10)
    many = {_part("sizes-many", number): range(30) for number in range(SAMPLED_PARTITIONS_MAX)}
    one = _part("sizes-one", 0)
    found = sampled_mean_record_bytes({"bootstrap.servers": kafka.servers}, {**many, one: range(10)})
    assert found > 1_000, "without the large records it is 10"


def test_records_deleted_by_retention_have_no_size(rig: Rig, kafka: Kafka) -> None:
    kafka.create("sizes-gone", 1)
    kafka.produce("sizes-gone", 0, [SMALL] * 30)
    kafka.delete_before("sizes-gone", 0, 30)
    ranges = {_part("sizes-gone", 0): range(30)}
    assert sampled_mean_record_bytes({"bootstrap.servers": kafka.servers}, ranges) == 0
    kafka.produce("sizes-gone", 0, [LARGE] * 3)
    assert sampled_mean_record_bytes({"bootstrap.servers": kafka.servers}, ranges) == 0, (
        "records after the batch do not count"
    )


def test_a_deleted_topic_is_not_created_by_sampling_it(rig: Rig, kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.spark.sources.kafka_sizes.RESPONSE_TIMEOUT_MS", 1_000)
    with pytest.raises(UnreachableError):
        sampled_mean_record_bytes({"bootstrap.servers": kafka.servers}, {_part("sizes-absent", 0): range(30)})
    assert "sizes-absent" not in kafka.admin.list_topics(timeout=30).topics


def test_the_maximum_wait_of_a_fetch_is_short_unless_the_user_sets_it() -> None:
    assert spark_consumer_options({"fetch.min.bytes": "1"}) == {
        "kafka.fetch.max.wait.ms": str(FETCH_WAIT_MAX_MS),
        "kafka.fetch.min.bytes": "1",
    }
    assert spark_consumer_options({"fetch.max.wait.ms": "500"}) == {"kafka.fetch.max.wait.ms": "500"}


def _part(topic: str, partition: int) -> TopicIdPartition:
    return TopicIdPartition(topic=topic, partition=partition, topic_id="any")
