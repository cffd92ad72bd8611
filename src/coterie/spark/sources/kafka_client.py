"""``KafkaAdmin``: requests of sources and sinks to a Kafka cluster, by the admin client of Kafka's own jar in the JVM.

Spark needs the same jar to read from Kafka. Every call has a time limit.
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import IllegalArgumentException
from pyspark.sql import SparkSession

from coterie.nouns.errors import CoterieError, UnreachableError, WorldError
from coterie.spark.jars import missing
from coterie.spark.positions import Positions
from coterie.spark.sources.kafka_positions import KafkaPart
from coterie.spark.transforms import first_sentence

LIMIT_MS = 10_000
"""How long a cluster may take for one request."""


class Edge(Enum):
    """The offset at one of the two ends of a partition."""

    BEGINNING = "earliest"
    """The offset of the oldest record that retention has not deleted."""
    END = "latest"
    """The offset after the last record; with ``read_committed`` that of the first open transaction, if any."""


class TopicAbsentError(CoterieError):
    """A requested topic does not exist."""

    def __init__(self, topics: Iterable[str]) -> None:
        self.topics = tuple(sorted(topics))
        super().__init__(f"There is no topic {', '.join(self.topics)}")


def kafka_jvm() -> Any:
    """The JVM of this worker's Spark session.

    :raises WorldError: when Spark is not running in this process, or the JVM lacks a jar.
    """
    spark = SparkSession._instantiatedSession
    if spark is None:
        raise WorldError("Spark is not running in this process")
    if (sentence := missing(spark, "kafka")) is not None:
        raise WorldError(sentence)
    return spark._jvm


def unknown_properties(names: Iterable[str]) -> list[str]:
    """The elements of ``names`` that are no properties of Kafka's consumer, sorted."""
    known = kafka_jvm().org.apache.kafka.clients.consumer.ConsumerConfig.configNames()
    return sorted(name for name in names if not known.contains(name))


def unknown_producer_properties(names: Iterable[str]) -> list[str]:
    """The elements of ``names`` that are no properties of Kafka's producer, sorted."""
    known = kafka_jvm().org.apache.kafka.clients.producer.ProducerConfig.configNames()
    return sorted(name for name in names if not known.contains(name))


@contextmanager
def kafka_admin(properties: Mapping[str, str], java: Any = None) -> Iterator["KafkaAdmin"]:
    """A client with ``properties`` of a consumer or producer, closed at the end. ``java`` is the JVM: by default that
    of this worker's Spark session.

    :raises WorldError: when the JVM lacks a jar, or no client can be created with the properties, for example because a
        file is missing or a host name cannot be resolved.
    """
    java = kafka_jvm() if java is None else java
    clients = java.org.apache.kafka.clients.admin
    known = clients.AdminClientConfig.configNames()
    own = java.java.util.Properties()
    limits = {"default.api.timeout.ms": str(LIMIT_MS), "request.timeout.ms": str(LIMIT_MS // 2)}
    for name, value in {**properties, **limits}.items():
        if known.contains(name):
            own.setProperty(name, value)
    try:
        client = clients.AdminClient.create(own)
    except Py4JJavaError as error:
        raise WorldError(f"No Kafka client can be created: {causes(error.java_exception)}") from error
    try:
        yield KafkaAdmin(java, client, properties)
    finally:
        client.close(java.java.time.Duration.ZERO)


class KafkaAdmin:
    """Admin client of one cluster.

    Methods raise UnreachableError when the cluster does not respond in time or reports a retriable error, and
    WorldError when it rejects the request.
    """

    def __init__(self, java: Any, client: Any, properties: Mapping[str, str]) -> None:
        self._java = java
        self._client = client
        self._servers = properties.get("bootstrap.servers", "")
        self._isolation = properties.get("isolation.level", "read_uncommitted").upper()

    def topics(self, pattern: str) -> list[str]:
        """The topics whose whole name matches a Java regular expression, without Kafka's internal topics.

        :raises ValueError: when ``pattern`` is not a valid expression.
        """
        try:
            compiled = self._java.java.util.regex.Pattern.compile(pattern)
        except IllegalArgumentException as error:
            raise ValueError(first_sentence(error)) from error
        names = self._answer(self._client.listTopics().names())
        return sorted(name for name in names if compiled.matcher(name).matches())

    def partitions(self, topics: Iterable[str]) -> list[KafkaPart]:
        """All partitions of ``topics``.

        :raises TopicAbsentError: when topics do not exist; contains all of them.
        """
        asked = self._java.java.util.ArrayList()
        for topic in topics:
            asked.add(topic)
        found: list[KafkaPart] = []
        absent: list[str] = []
        futures = self._client.describeTopics(asked).topicNameValues()
        for topic in asked:
            try:
                described = self._answer(futures.get(topic))
            except _UnknownTopicError:
                absent.append(topic)
                continue
            topic_id = described.topicId().toString()
            numbers = [info.partition() for info in described.partitions()]
            found += [KafkaPart(topic=topic, partition=number, topic_id=topic_id) for number in numbers]
        if absent:
            raise TopicAbsentError(absent)
        return sorted(found)

    def edges(self, parts: Iterable[KafkaPart], edge: Edge) -> dict[str, int]:
        """The first or the last offset by partition."""
        spec = self._java.org.apache.kafka.clients.admin.OffsetSpec
        return self._offsets(parts, spec.earliest() if edge is Edge.BEGINNING else spec.latest())

    def since(self, parts: Iterable[KafkaPart], timestamp_ms: int) -> Positions:
        """The offset of the first record whose timestamp is not before ``timestamp_ms``, by partition; without such a
        record, the end offset."""
        parts = tuple(parts)
        found = self._offsets(parts, self._java.org.apache.kafka.clients.admin.OffsetSpec.forTimestamp(timestamp_ms))
        later = [part for part in parts if found[str(part)] < 0]
        return {**found, **(self.edges(later, Edge.END) if later else {})}

    def create(
        self, topic: str, partitions: int, replication: int, configs: Mapping[str, str], *, is_trial: bool = False
    ) -> None:
        """Create a topic unless it exists; -1 for a number means the cluster's default.

        With ``is_trial`` the cluster only validates the request. Otherwise this returns when metadata contain the
        topic, which takes a moment after its creation.
        """
        java = self._java
        given = java.java.util.HashMap()
        for name, value in configs.items():
            given.put(name, value)
        admin = java.org.apache.kafka.clients.admin
        new = java.java.util.Collections.singletonList(admin.NewTopic(topic, partitions, replication).configs(given))
        try:
            self._answer(self._client.createTopics(new, admin.CreateTopicsOptions().validateOnly(is_trial)).all())
        except WorldError as error:
            if "TopicExistsException" not in str(error):
                raise
        if is_trial:
            return
        deadline = time.monotonic() + LIMIT_MS / 1000
        while not self._is_seen(topic):
            if time.monotonic() > deadline:
                sentence = f"Kafka at {self._servers} has created topic {topic}, and its metadata do not contain it yet"
                raise UnreachableError(sentence)
            time.sleep(0.05)

    def _is_seen(self, topic: str) -> bool:
        try:
            return bool(self.partitions([topic]))
        except TopicAbsentError:
            return False

    def config(self, topic: str, name: str) -> str:
        """The value of one config of a topic."""
        resources = self._java.org.apache.kafka.common.config
        resource = resources.ConfigResource(getattr(resources, "ConfigResource$Type").TOPIC, topic)
        asked = self._java.java.util.Collections.singletonList(resource)
        return str(self._answer(self._client.describeConfigs(asked).all()).get(resource).get(name).value())

    def commit(self, group: str, positions: Mapping[KafkaPart, int]) -> None:
        """Commit ``positions`` as the offsets of a consumer group that has no members."""
        partition_of = self._java.org.apache.kafka.common.TopicPartition
        offset_of = self._java.org.apache.kafka.clients.consumer.OffsetAndMetadata
        offsets = self._java.java.util.HashMap()
        for part, offset in positions.items():
            offsets.put(partition_of(part.topic, part.partition), offset_of(offset))
        self._answer(self._client.alterConsumerGroupOffsets(group, offsets).all())

    def _offsets(self, parts: Iterable[KafkaPart], spec: Any) -> dict[str, int]:
        partition_of = self._java.org.apache.kafka.common.TopicPartition
        asked = self._java.java.util.HashMap()
        partitions = {str(part): partition_of(part.topic, part.partition) for part in parts}
        for partition in partitions.values():
            asked.put(partition, spec)
        isolation = getattr(self._java.org.apache.kafka.common.IsolationLevel, self._isolation)
        options = self._java.org.apache.kafka.clients.admin.ListOffsetsOptions(isolation)
        answered = self._answer(self._client.listOffsets(asked, options).all())
        return {name: answered.get(partition).offset() for name, partition in partitions.items()}

    def _answer(self, future: Any) -> Any:
        try:
            return future.get(LIMIT_MS, self._java.java.util.concurrent.TimeUnit.MILLISECONDS)
        except Py4JJavaError as error:
            said = causes(error.java_exception)
            if "UnknownTopicOrPartitionException" in said:
                raise _UnknownTopicError(said) from error
            raise request_error(self._servers, error.java_exception) from error


class _UnknownTopicError(WorldError):
    pass


_LATE = "java.util.concurrent.TimeoutException"
_RETRIABLE = "org.apache.kafka.common.errors.RetriableException"
"""The exception of Kafka's clients for errors after which a retry may succeed: no connection, no response in time, no
leader yet."""


def is_away(error: Any) -> bool:
    """Whether a Java exception, or one of its causes, is retriable according to Kafka."""
    while error is not None:
        kind = error.getClass()
        while kind is not None:
            if kind.getName() == _RETRIABLE:
                return True
            kind = kind.getSuperclass()
        error = error.getCause()
    return False


def request_error(servers: str, error: Any) -> WorldError:
    """The error for a Java exception that a request to the cluster at ``servers`` raised."""
    said = causes(error)
    if said.startswith(_LATE) or is_away(error):
        return UnreachableError(f"Kafka at {servers} did not answer: {said}")
    return WorldError(f"Kafka at {servers} rejected the request: {said}")


def record_method(java: Any, name: str, returns: Any, interface: Any) -> Any:
    """The method ``name`` of a record, as a Java function of ``interface``; ``returns`` is the method's result type.

    Java applies it to many records in one call: a call from Python for each record would take much longer.
    """
    record, invoke = java.org.apache.kafka.clients.consumer.ConsumerRecord._java_lang_class, java.java.lang.invoke
    method = invoke.MethodHandles.publicLookup().findVirtual(record, name, invoke.MethodType.methodType(returns))
    return invoke.MethodHandleProxies.asInterfaceInstance(interface._java_lang_class, method)


def causes(error: Any) -> str:
    """The messages of a Java exception and its causes, in one line."""
    found: list[str] = []
    while error is not None:
        text = str(error.toString())
        if not any(text in before for before in found):
            found.append(text)
        error = error.getCause()
    return "; ".join(found)
