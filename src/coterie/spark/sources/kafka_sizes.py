"""Samples the size of the records of a Kafka batch, so that a batch too large for memory is not collected at once.

Offsets give the number of a batch's records but not their size: 20,000 records may be 2 MB or 20 GB. So a few records
of the batch are read first. A plain consumer reads them: a Spark job would need a consumer for each partition.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from py4j.protocol import Py4JJavaError

from coterie.nouns.errors import UnreachableError, WorldError
from coterie.spark.sources.kafka_batch import FETCH_WAIT_MS
from coterie.spark.sources.kafka_client import LIMIT_MS, causes, kafka_jvm, record_method, request_error
from coterie.spark.sources.kafka_positions import KafkaPart

SAMPLED_AT_EDGE = 10
"""How many records at most are sampled at each end of a partition's range. Of large records fewer are sampled: those
that one fetch returns."""
SAMPLED_PARTITIONS = 4
"""In how many partitions records are sampled."""


def mean_bytes(consumer: Mapping[str, str], ranges: Mapping[KafkaPart, range]) -> int:
    """The approximate size of a record of ``ranges``, in bytes of key and value.

    This is the larger of two means: over the first records of a few partitions, and over their last records. It is 0
    when retention or compaction has deleted all these records.

    :raises UnreachableError: when the cluster does not answer in time.
    :raises WorldError: when the cluster rejects the request.
    """
    sampled = _sampled(ranges)
    if not sampled:
        return 0
    with _sampler(consumer, sampled) as sampler:
        at_begin = sampler.mean_bytes({part: ranges[part][:SAMPLED_AT_EDGE] for part in sampled})
        at_end = sampler.mean_bytes({part: ranges[part][-SAMPLED_AT_EDGE:] for part in sampled})
    return max(at_begin, at_end)


def _sampled(ranges: Mapping[KafkaPart, range]) -> list[KafkaPart]:
    """The partitions to sample: of each topic the partition with most records, then the others by their size."""
    by_size = sorted((part for part in ranges if ranges[part]), key=lambda part: (-len(ranges[part]), part.name))
    first_of_topic = {part.topic: part for part in reversed(by_size)}
    by_size.sort(key=lambda part: first_of_topic[part.topic] != part)
    return by_size[:SAMPLED_PARTITIONS]


@contextmanager
def _sampler(consumer: Mapping[str, str], parts: list[KafkaPart]) -> Iterator["_Sampler"]:
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
        raise WorldError(f"No Kafka client can be created: {causes(error.java_exception)}") from error
    try:
        yield _Sampler(java, client, servers, parts)
    except Py4JJavaError as error:
        raise request_error(servers, error.java_exception) from error
    finally:
        client.close(java.java.time.Duration.ZERO)


class _Sampler:
    """A consumer of some partitions, without a group."""

    def __init__(self, java: Any, client: Any, servers: str, parts: list[KafkaPart]) -> None:
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

    def mean_bytes(self, ranges: Mapping[KafkaPart, range]) -> int:
        """The mean size of the records that each partition's first fetch returns; 0 when none of ``ranges`` is left.

        The size of a null is -1 in Java, so records without a key count one byte too few.
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
                    f"Kafka at {self._servers} did not return records of {', '.join(sorted(one.name for one in left))} "
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
        partitions = self._list()
        for part in parts:
            partitions.add(self._partitions[part])
        return partitions
