"""``KafkaAdmin``: requests of sources and sinks to a Kafka cluster, sent by the admin client of Kafka's own jar in the
JVM of Spark. Spark needs the same jar to read from Kafka. Every request has a time limit.
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
from coterie.spark.jars import missing_package_message
from coterie.spark.positions import Positions
from coterie.spark.sources.kafka_positions import TopicIdPartition
from coterie.spark.transforms import first_line

LIMIT_MS = 10_000
"""How long, in ms, a response of the cluster is awaited."""


class OffsetBoundary(Enum):
    """Names the offset at one of the two ends of a partition."""

    EARLIEST = "earliest"
    """The offset of the oldest record that retention has not deleted."""
    LATEST = "latest"
    """The offset after the last record. With ``isolation.level`` ``read_committed`` it is the offset of the first open
    transaction, if there is one."""


class TopicAbsentError(CoterieError):
    """Requested topics do not exist; ``topics`` contains their names, sorted."""

    def __init__(self, topics: Iterable[str]) -> None:
        self.topics = tuple(sorted(topics))
        super().__init__(f"There is no topic {', '.join(self.topics)}")


def kafka_jvm() -> Any:
    """The JVM of this worker's Spark session, as py4j's view of it.

    :raises WorldError: when Spark is not running in this process, or the JVM lacks a jar for Kafka.
    """
    spark = SparkSession._instantiatedSession
    if spark is None:
        raise WorldError("Spark is not running in this worker's process")
    if (sentence := missing_package_message(spark, "kafka")) is not None:
        raise WorldError(sentence)
    return spark._jvm


def unknown_properties(names: Iterable[str]) -> list[str]:
    """Those of ``names`` that are no properties of Kafka's consumer, sorted.

    :raises WorldError: as :func:`kafka_jvm`.
    """
    known = kafka_jvm().org.apache.kafka.clients.consumer.ConsumerConfig.configNames()
    return sorted(name for name in names if not known.contains(name))


def unknown_producer_properties(names: Iterable[str]) -> list[str]:
    """Those of ``names`` that are no properties of Kafka's producer, sorted.

    :raises WorldError: as :func:`kafka_jvm`.
    """
    known = kafka_jvm().org.apache.kafka.clients.producer.ProducerConfig.configNames()
    return sorted(name for name in names if not known.contains(name))


@contextmanager
def kafka_admin(properties: Mapping[str, str], java: Any = None) -> Iterator["KafkaAdmin"]:
    """A client for the cluster of ``properties``, which is closed at the end of the block. ``properties`` are those of
    a consumer or producer: properties that an admin client does not have are left out, and the time limits are
    replaced. ``java`` is the JVM; None means that of this worker's Spark session.

    :raises WorldError: when Spark is not running in this process, the JVM lacks a jar, or no client can be created with
        the properties, for example because a file is missing or a host name cannot be resolved.
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
        raise WorldError(f"No Kafka client can be created: {message_with_causes(error.java_exception)}") from error
    try:
        yield KafkaAdmin(java, client, properties)
    finally:
        client.close(java.java.time.Duration.ZERO)


class KafkaAdmin:
    """Admin client of one cluster.

    Every method raises UnreachableError when the cluster does not respond within :data:`LIMIT_MS` or reports a
    retriable error, and WorldError when the cluster rejects the request.
    """

    def __init__(self, java: Any, client: Any, properties: Mapping[str, str]) -> None:
        self._java = java
        self._client = client
        self._servers = properties.get("bootstrap.servers", "")
        self._isolation = properties.get("isolation.level", "read_uncommitted").upper()

    def topics(self, pattern: str) -> list[str]:
        """The names of the topics that ``pattern``, a Java regular expression, matches as a whole, sorted; without
        Kafka's internal topics.

        :raises ValueError: when ``pattern`` is not a valid expression.
        """
        try:
            compiled = self._java.java.util.regex.Pattern.compile(pattern)
        except IllegalArgumentException as error:
            raise ValueError(first_line(error)) from error
        names = self._await(self._client.listTopics().names())
        return sorted(name for name in names if compiled.matcher(name).matches())

    def partitions(self, topics: Iterable[str]) -> list[TopicIdPartition]:
        """All partitions of ``topics``, sorted.

        :raises TopicAbsentError: when some of the topics do not exist; the error contains all of these.
        """
        asked = self._java.java.util.ArrayList()
        for topic in topics:
            asked.add(topic)
        found: list[TopicIdPartition] = []
        absent: list[str] = []
        futures = self._client.describeTopics(asked).topicNameValues()
        for topic in asked:
            try:
                described = self._await(futures.get(topic))
            except _UnknownTopicError:
                absent.append(topic)
                continue
            topic_id = described.topicId().toString()
            numbers = [info.partition() for info in described.partitions()]
            found += [TopicIdPartition(topic=topic, partition=number, topic_id=topic_id) for number in numbers]
        if absent:
            raise TopicAbsentError(absent)
        return sorted(found)

    def list_offsets(self, parts: Iterable[TopicIdPartition], boundary: OffsetBoundary) -> dict[str, int]:
        """The offset at ``boundary`` of each of ``parts``, by the partition's text."""
        spec = self._java.org.apache.kafka.clients.admin.OffsetSpec
        return self._offsets(parts, spec.earliest() if boundary is OffsetBoundary.EARLIEST else spec.latest())

    def offsets_for_timestamp(self, parts: Iterable[TopicIdPartition], timestamp_ms: int) -> Positions:
        """By the partition's text: the offset of the first record whose timestamp is ``timestamp_ms`` (since the Unix
        epoch) or later; for a partition without such a record, its :attr:`OffsetBoundary.LATEST`."""
        parts = tuple(parts)
        found = self._offsets(parts, self._java.org.apache.kafka.clients.admin.OffsetSpec.forTimestamp(timestamp_ms))
        later = [part for part in parts if found[str(part)] < 0]
        return {**found, **(self.list_offsets(later, OffsetBoundary.LATEST) if later else {})}

    def create_topic(
        self, topic: str, partitions: int, replication: int, configs: Mapping[str, str], *, validate_only: bool = False
    ) -> None:
        """Create a topic with ``partitions`` partitions and the replication factor ``replication``, unless the topic
        exists. -1 means the cluster's default for either number.

        With ``validate_only`` the cluster only validates the request. Otherwise this method returns when the cluster's
        metadata contain the topic, which they do some time after the topic's creation.

        :raises UnreachableError: also when the metadata do not contain the topic within :data:`LIMIT_MS`.
        """
        java = self._java
        given = java.java.util.HashMap()
        for name, value in configs.items():
            given.put(name, value)
        admin = java.org.apache.kafka.clients.admin
        new = java.java.util.Collections.singletonList(admin.NewTopic(topic, partitions, replication).configs(given))
        try:
            self._await(self._client.createTopics(new, admin.CreateTopicsOptions().validateOnly(validate_only)).all())
        except WorldError as error:
            if "TopicExistsException" not in str(error):
                raise
        if validate_only:
            return
        deadline = time.monotonic() + LIMIT_MS / 1000
        while not self._is_seen(topic):
            if time.monotonic() > deadline:
                sentence = (
                    f"Kafka at {self._servers} has created topic {topic}, but its metadata do not list the topic yet"
                )
                raise UnreachableError(sentence)
            time.sleep(0.05)

    def _is_seen(self, topic: str) -> bool:
        """Whether the cluster's metadata contain the topic."""
        try:
            return bool(self.partitions([topic]))
        except TopicAbsentError:
            return False

    def config(self, topic: str, name: str) -> str:
        """The value of the config ``name`` of ``topic``."""
        resources = self._java.org.apache.kafka.common.config
        resource = resources.ConfigResource(getattr(resources, "ConfigResource$Type").TOPIC, topic)
        asked = self._java.java.util.Collections.singletonList(resource)
        return str(self._await(self._client.describeConfigs(asked).all()).get(resource).get(name).value())

    def alter_group_offsets(self, group: str, positions: Mapping[TopicIdPartition, int]) -> None:
        """Commit ``positions``, the next offset by partition, as the offsets of the consumer group ``group``. The
        cluster rejects this when the group has members."""
        partition_of = self._java.org.apache.kafka.common.TopicPartition
        offset_of = self._java.org.apache.kafka.clients.consumer.OffsetAndMetadata
        offsets = self._java.java.util.HashMap()
        for part, offset in positions.items():
            offsets.put(partition_of(part.topic, part.partition), offset_of(offset))
        self._await(self._client.alterConsumerGroupOffsets(group, offsets).all())

    def _offsets(self, parts: Iterable[TopicIdPartition], spec: Any) -> dict[str, int]:
        """The offset that Java's ``OffsetSpec`` ``spec`` means in each of ``parts``, by the partition's text; -1 if
        there is none."""
        partition_of = self._java.org.apache.kafka.common.TopicPartition
        asked = self._java.java.util.HashMap()
        partitions = {str(part): partition_of(part.topic, part.partition) for part in parts}
        for partition in partitions.values():
            asked.put(partition, spec)
        isolation = getattr(self._java.org.apache.kafka.common.IsolationLevel, self._isolation)
        options = self._java.org.apache.kafka.clients.admin.ListOffsetsOptions(isolation)
        answered = self._await(self._client.listOffsets(asked, options).all())
        return {name: answered.get(partition).offset() for name, partition in partitions.items()}

    def _await(self, future: Any) -> Any:
        """The result of a Java future, which is awaited for :data:`LIMIT_MS`.

        :raises _UnknownTopicError: when the response is that a topic or a partition does not exist.
        :raises UnreachableError, WorldError: as all methods of this class.
        """
        try:
            return future.get(LIMIT_MS, self._java.java.util.concurrent.TimeUnit.MILLISECONDS)
        except Py4JJavaError as error:
            said = message_with_causes(error.java_exception)
            if "UnknownTopicOrPartitionException" in said:
                raise _UnknownTopicError(said) from error
            raise request_error(self._servers, error.java_exception) from error


class _UnknownTopicError(WorldError):
    pass


_LATE = "java.util.concurrent.TimeoutException"
"""The exception of a Java future that has no result in time."""
_RETRIABLE = "org.apache.kafka.common.errors.RetriableException"
"""The exception of Kafka's clients for errors after which a retry may succeed: no connection, no response in time, no
leader yet."""


def is_retriable(error: Any) -> bool:
    """Whether Kafka's client marks a Java exception, or one of its causes, as retriable."""
    while error is not None:
        kind = error.getClass()
        while kind is not None:
            if kind.getName() == _RETRIABLE:
                return True
            kind = kind.getSuperclass()
        error = error.getCause()
    return False


def request_error(servers: str, error: Any) -> WorldError:
    """The error to raise for a Java exception that a request to the cluster at ``servers`` raised: an UnreachableError
    if a retry may succeed, because the response is late or the exception is retriable; otherwise a WorldError."""
    said = message_with_causes(error)
    if said.startswith(_LATE) or is_retriable(error):
        return UnreachableError(f"Kafka at {servers} did not answer: {said}")
    return WorldError(f"Kafka at {servers} rejected the request: {said}")


def record_method(java: Any, name: str, returns: Any, interface: Any) -> Any:
    """The method ``name`` of Kafka's ``ConsumerRecord`` as a Java object that implements the functional interface
    ``interface``; ``returns`` is the Java type of the method's result.

    Java applies this function to many records in one call: a call from Python for each record would take much longer.
    """
    record, invoke = java.org.apache.kafka.clients.consumer.ConsumerRecord._java_lang_class, java.java.lang.invoke
    method = invoke.MethodHandles.publicLookup().findVirtual(record, name, invoke.MethodType.methodType(returns))
    return invoke.MethodHandleProxies.asInterfaceInstance(interface._java_lang_class, method)


def message_with_causes(error: Any) -> str:
    """Class and message of a Java exception and of each of its causes, in one line, without repetitions."""
    found: list[str] = []
    while error is not None:
        text = str(error.toString())
        if not any(text in before for before in found):
            found.append(text)
        error = error.getCause()
    return "; ".join(found)
