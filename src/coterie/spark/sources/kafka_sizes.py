"""Samples the size of the records of a Kafka batch, so that a batch too large for memory is not collected at once.

Offsets give the number of a batch's records but not their size: 20,000 records may be 2 MB or 20 GB. So a few records
of the batch are read first, by one plain consumer: a Spark job would need a consumer for each partition.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from py4j.protocol import Py4JJavaError

from coterie.nouns.errors import UnreachableError
from coterie.spark.sources.kafka_batch import FETCH_WAIT_MAX_MS
from coterie.spark.sources.kafka_client import (
    RESPONSE_TIMEOUT_MS,
    java_function_of_record_method,
    kafka_jvm,
    make_client_creation_error,
    make_request_error,
)
from coterie.spark.sources.kafka_positions import TopicIdPartition

SAMPLED_RECORDS_PER_END_MAX = 10
"""The most records that are sampled at each end of a partition's range of offsets. Of large records fewer are sampled:
those that one fetch returns."""
SAMPLED_PARTITIONS_MAX = 4
"""The most partitions of which records are sampled."""


def sampled_mean_record_bytes(consumer_properties: Mapping[str, str], ranges: Mapping[TopicIdPartition, range]) -> int:
    """The approximate mean size of the records in ``ranges`` (offsets by partition), in bytes of key and value.

    The result is the larger of two means: over the first records in the ranges of a few partitions, and over the last
    records in these ranges. It is 0 when ``ranges`` are empty, or none of the sampled records exists any more.
    ``consumer_properties`` are the properties of Kafka's consumer.

    :raises UnreachableError: when the cluster does not answer within :data:`RESPONSE_TIMEOUT_MS`, which counts for each
        mean.
    :raises WorldError: when the cluster rejects a request, Spark is not running, or no client can be created.
    """
    sampled = _largest_partitions_to_sample(ranges)
    if not sampled:
        return 0
    with _open_sampler(consumer_properties, sampled) as sampler:
        first_records_mean_bytes = sampler.sampled_mean_record_bytes(
            {part: ranges[part][:SAMPLED_RECORDS_PER_END_MAX] for part in sampled}
        )
        last_records_mean_bytes = sampler.sampled_mean_record_bytes(
            {part: ranges[part][-SAMPLED_RECORDS_PER_END_MAX:] for part in sampled}
        )
    return max(first_records_mean_bytes, last_records_mean_bytes)


def _largest_partitions_to_sample(ranges: Mapping[TopicIdPartition, range]) -> list[TopicIdPartition]:
    """The partitions to sample, at most :data:`SAMPLED_PARTITIONS_MAX`, without those whose range is empty: first the
    partition with the most offsets of each topic, then the other partitions. Both groups are ordered by their number of
    offsets, largest first."""
    by_size = sorted(
        (partition for partition in ranges if ranges[partition]),
        key=lambda partition: (-len(ranges[partition]), partition.topic_partition_text),
    )
    first_of_topic = {partition.topic: partition for partition in reversed(by_size)}
    by_size.sort(key=lambda partition: first_of_topic[partition.topic] != partition)
    return by_size[:SAMPLED_PARTITIONS_MAX]


@contextmanager
def _open_sampler(
    consumer_properties: Mapping[str, str], partitions: list[TopicIdPartition]
) -> Iterator["_RecordSizeSampler"]:
    """Context manager: a sampler of ``partitions`` with the properties ``consumer_properties``, closed at the end of
    the block. A Java exception in the block is replaced by the error that :func:`make_request_error` returns for it.

    :raises WorldError: when Spark is not running, or no client can be created with the properties.
    """
    java = kafka_jvm()
    java_properties = java.java.util.Properties()
    deserializer = "org.apache.kafka.common.serialization.ByteArrayDeserializer"
    own_properties = {
        "key.deserializer": deserializer,
        "value.deserializer": deserializer,
        "allow.auto.create.topics": "false",
        "enable.auto.commit": "false",
        "auto.offset.reset": "earliest",
        "max.poll.records": str(SAMPLED_RECORDS_PER_END_MAX),
        "fetch.max.wait.ms": str(FETCH_WAIT_MAX_MS),
        "default.api.timeout.ms": str(RESPONSE_TIMEOUT_MS),
    }
    for name, value in {**consumer_properties, **own_properties}.items():
        java_properties.setProperty(name, value)
    servers = consumer_properties.get("bootstrap.servers", "")
    try:
        client = java.org.apache.kafka.clients.consumer.KafkaConsumer(java_properties)
    except Py4JJavaError as error:
        raise make_client_creation_error(error.java_exception) from error
    try:
        yield _RecordSizeSampler(java, client, servers, partitions)
    except Py4JJavaError as error:
        raise make_request_error(servers, error.java_exception) from error
    finally:
        client.close(java.java.time.Duration.ZERO)


class _RecordSizeSampler:
    """A consumer that reads some records of a few partitions, to compute their mean size (0 if none of them exists any
    more); it joins no group."""

    def __init__(self, java: Any, client: Any, servers: str, partitions: list[TopicIdPartition]) -> None:
        self._client = client
        self._servers = servers
        self._java_list_class = java.java.util.ArrayList
        self._poll_timeout = java.java.time.Duration.ofMillis(RESPONSE_TIMEOUT_MS // 10)
        partition_of = java.org.apache.kafka.common.TopicPartition
        self._java_partition_by_partition = {
            partition: partition_of(partition.topic, partition.partition) for partition in partitions
        }
        self._size_functions = [
            java_function_of_record_method(
                java, name, java.java.lang.Integer.TYPE, java.java.util.function.ToIntFunction
            )
            for name in ("serializedKeySize", "serializedValueSize")
        ]
        self._client.assign(self._to_java_partition_list(partitions))

    def sampled_mean_record_bytes(self, ranges: Mapping[TopicIdPartition, range]) -> int:
        """The mean size, in bytes, of the records that the first fetch in each partition's range returns; 0 when no
        record in ``ranges`` exists any more.

        The size of a null is -1 in Java, so a record without a key or value counts one byte too few for each.

        :raises UnreachableError: when records of a partition were not returned within :data:`RESPONSE_TIMEOUT_MS`.
        """
        for part, offsets in ranges.items():
            self._client.seek(self._java_partition_by_partition[part], offsets.start)
        self._client.resume(self._to_java_partition_list(ranges))
        count = size_bytes = 0
        unread_partitions = set(ranges)
        deadline_s = time.monotonic() + RESPONSE_TIMEOUT_MS / 1000
        while unread_partitions:
            if time.monotonic() > deadline_s:
                raise UnreachableError(
                    f"Kafka at {self._servers} did not return records of "
                    f"{', '.join(sorted(one.topic_partition_text for one in unread_partitions))} "
                    f"within {RESPONSE_TIMEOUT_MS // 1000} s"
                )
            polled = self._client.poll(self._poll_timeout)
            for part in tuple(unread_partitions):
                records = polled.records(self._java_partition_by_partition[part])
                record_count = int(records.size())
                if record_count and int(records.get(0).offset()) < ranges[part].stop:
                    count += record_count
                    size_bytes += sum(int(records.stream().mapToInt(size).sum()) for size in self._size_functions)
                # The position also advances past records that were deleted, and past transaction markers.
                if (
                    record_count
                    or int(self._client.position(self._java_partition_by_partition[part])) >= ranges[part].stop
                ):
                    unread_partitions.discard(part)
                    self._client.pause(self._to_java_partition_list([part]))
        return max(size_bytes, 0) // count if count else 0

    def _to_java_partition_list(self, partitions: Any) -> Any:
        """``partitions`` as a Java list of Kafka's TopicPartition objects."""
        java_partitions = self._java_list_class()
        for partition in partitions:
            java_partitions.add(self._java_partition_by_partition[partition])
        return java_partitions
