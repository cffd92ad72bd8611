"""Samples the size of the records of a Kafka batch, so that a batch too large for memory is not collected at once.

Offsets give the number of a batch's records but not their size: 20,000 records may be 2 MB or 20 GB. So a few records
of the batch are read first, by one plain consumer: a Spark job would need a consumer for each partition.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from py4j.protocol import Py4JJavaError

from coterie.nouns.errors import UnreachableError, WorldError
from coterie.spark.sources.kafka_batch import FETCH_WAIT_MS
from coterie.spark.sources.kafka_client import LIMIT_MS, kafka_jvm, message_with_causes, record_method, request_error
from coterie.spark.sources.kafka_positions import TopicIdPartition

SAMPLED_AT_EDGE = 10
"""The most records that are sampled at each end of a partition's range of offsets. Of large records fewer are sampled:
those that one fetch returns."""
SAMPLED_PARTITIONS = 4
"""The most partitions of which records are sampled."""


def mean_bytes(consumer: Mapping[str, str], ranges: Mapping[TopicIdPartition, range]) -> int:
    """The approximate mean size of the records in ``ranges`` (offsets by partition), in bytes of key and value.

    The result is the larger of two means: over the first records in the ranges of a few partitions, and over the last
    records in these ranges. It is 0 when ``ranges`` are empty, or none of the sampled records exists any more.
    ``consumer`` are the properties of Kafka's consumer.

    :raises UnreachableError: when the cluster does not answer within :data:`LIMIT_MS`, which counts for each mean.
    :raises WorldError: when the cluster rejects a request, Spark is not running, or no client can be created.
    """
    sampled = _sampled(ranges)
    if not sampled:
        return 0
    with _sampler(consumer, sampled) as sampler:
        at_begin = sampler.mean_bytes({part: ranges[part][:SAMPLED_AT_EDGE] for part in sampled})
        at_end = sampler.mean_bytes({part: ranges[part][-SAMPLED_AT_EDGE:] for part in sampled})
    return max(at_begin, at_end)


def _sampled(ranges: Mapping[TopicIdPartition, range]) -> list[TopicIdPartition]:
    """The partitions to sample, at most :data:`SAMPLED_PARTITIONS`, without empty ranges: first the partition with most
    offsets of each topic, then the other partitions. Both are ordered by their number of offsets, largest first."""
    by_size = sorted(
        (part for part in ranges if ranges[part]), key=lambda part: (-len(ranges[part]), part.topic_partition)
    )
    first_of_topic = {part.topic: part for part in reversed(by_size)}
    by_size.sort(key=lambda part: first_of_topic[part.topic] != part)
    return by_size[:SAMPLED_PARTITIONS]


@contextmanager
def _sampler(consumer: Mapping[str, str], parts: list[TopicIdPartition]) -> Iterator["_Sampler"]:
    """A sampler of ``parts`` with the properties ``consumer``, closed at the end of the block. Java exceptions in the
    block are raised as :func:`request_error`.

    :raises WorldError: when Spark is not running, or no client can be created with the properties.
    """
    java = kafka_jvm()
    own = java.java.util.Properties()
    deserializer = "org.apache.kafka.common.serialization.ByteArrayDeserializer"
    ours = {
        "key.deserializer": deserializer,
        "value.deserializer": deserializer,
        "allow.auto.create.topics": "false",
        "enable.auto.commit": "false",
        "auto.offset.reset": "earliest",
        "max.poll.records": str(SAMPLED_AT_EDGE),
        "fetch.max.wait.ms": str(FETCH_WAIT_MS),
        "default.api.timeout.ms": str(LIMIT_MS),
    }
    for name, value in {**consumer, **ours}.items():
        own.setProperty(name, value)
    servers = consumer.get("bootstrap.servers", "")
    try:
        client = java.org.apache.kafka.clients.consumer.KafkaConsumer(own)
    except Py4JJavaError as error:
        raise WorldError(f"No Kafka client can be created: {message_with_causes(error.java_exception)}") from error
    try:
        yield _Sampler(java, client, servers, parts)
    except Py4JJavaError as error:
        raise request_error(servers, error.java_exception) from error
    finally:
        client.close(java.java.time.Duration.ZERO)


class _Sampler:
    """A consumer that reads some records of a few partitions; it joins no group."""

    def __init__(self, java: Any, client: Any, servers: str, parts: list[TopicIdPartition]) -> None:
        self._client = client
        self._servers = servers
        self._list = java.java.util.ArrayList
        self._wait = java.java.time.Duration.ofMillis(LIMIT_MS // 10)
        partition_of = java.org.apache.kafka.common.TopicPartition
        self._partitions = {part: partition_of(part.topic, part.partition) for part in parts}
        self._size_functions = [
            record_method(java, name, java.java.lang.Integer.TYPE, java.java.util.function.ToIntFunction)
            for name in ("serializedKeySize", "serializedValueSize")
        ]
        self._client.assign(self._listed(parts))

    def mean_bytes(self, ranges: Mapping[TopicIdPartition, range]) -> int:
        """The mean size, in bytes, of the records that the first fetch in each partition's range returns; 0 when no
        record in ``ranges`` exists any more.

        The size of a null is -1 in Java, so a record without a key or value counts one byte too few for each.

        :raises UnreachableError: when records of a partition were not returned within :data:`LIMIT_MS`.
        """
        for part, offsets in ranges.items():
            self._client.seek(self._partitions[part], offsets.start)
        self._client.resume(self._listed(ranges))
        count = size_bytes = 0
        left = set(ranges)
        deadline = time.monotonic() + LIMIT_MS / 1000
        while left:
            if time.monotonic() > deadline:
                raise UnreachableError(
                    f"Kafka at {self._servers} did not return records of "
                    f"{', '.join(sorted(one.topic_partition for one in left))} "
                    f"within {LIMIT_MS // 1000} s"
                )
            polled = self._client.poll(self._wait)
            for part in tuple(left):
                records = polled.records(self._partitions[part])
                found = int(records.size())
                if found and int(records.get(0).offset()) < ranges[part].stop:
                    count += found
                    size_bytes += sum(int(records.stream().mapToInt(size).sum()) for size in self._size_functions)
                # The position also advances past records that were deleted, and past transaction markers.
                if found or int(self._client.position(self._partitions[part])) >= ranges[part].stop:
                    left.discard(part)
                    self._client.pause(self._listed([part]))
        return max(size_bytes, 0) // count if count else 0

    def _listed(self, parts: Any) -> Any:
        """``parts`` as a Java list of Kafka's own class."""
        partitions = self._list()
        for part in parts:
            partitions.add(self._partitions[part])
        return partitions
