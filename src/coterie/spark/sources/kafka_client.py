"""``KafkaAdmin``: requests of sources and sinks to a Kafka cluster, sent by the admin client of Kafka's own jar in the
JVM of Spark. Spark needs the same jar to read from Kafka. Every request has a time limit.
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from enum import Enum
from typing import Any

from py4j.java_gateway import get_field
from py4j.protocol import Py4JJavaError
from pyspark.errors import IllegalArgumentException
from pyspark.sql import SparkSession

from coterie.config.definition import Type, type_error
from coterie.nouns.errors import CoterieError, UnreachableError, WorldError, invalid_value_message
from coterie.spark.failures import SPARK_NOT_RUNNING_MESSAGE
from coterie.spark.jars import missing_jars_message
from coterie.spark.positions import Positions
from coterie.spark.sources.kafka_positions import TopicIdPartition
from coterie.spark.transforms import first_message_line

RESPONSE_TIMEOUT_MS = 10_000
"""How long a response of the cluster is awaited, in ms."""


class OffsetBoundary(Enum):
    """Which of the two offsets that limit a partition: the earliest or the latest."""

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
        raise WorldError(SPARK_NOT_RUNNING_MESSAGE)
    if (missing_jars := missing_jars_message(spark, "kafka")) is not None:
        raise WorldError(missing_jars)
    return spark._jvm


def unknown_consumer_properties(names: Iterable[str]) -> list[str]:
    """Those of ``names`` that are no properties of Kafka's consumer, sorted.

    :raises WorldError: when Spark is not running in this process, or the JVM lacks a jar for Kafka.
    """
    known_names = kafka_jvm().org.apache.kafka.clients.consumer.ConsumerConfig.configNames()
    return sorted(name for name in names if not known_names.contains(name))


def unknown_producer_properties(names: Iterable[str]) -> list[str]:
    """Those of ``names`` that are no properties of Kafka's producer, sorted.

    :raises WorldError: when Spark is not running in this process, or the JVM lacks a jar for Kafka.
    """
    known_names = kafka_jvm().org.apache.kafka.clients.producer.ProducerConfig.configNames()
    return sorted(name for name in names if not known_names.contains(name))


def mistyped_property_errors(client_config: Any, properties: Mapping[str, str]) -> dict[str, str]:
    """Kafka's message, by name, about each of ``properties`` whose value is not of the property's type.
    ``client_config``: the class of the client's configuration, such as ``ProducerConfig``. Only numbers and booleans
    are checked: Kafka would load the class that the value of a property of the type CLASS names."""
    keys = client_config.configDef().configKeys()
    messages: dict[str, str] = {}
    for name, value in sorted(properties.items()):
        if (key := keys.get(name)) is not None:
            reason = type_error(Type(get_field(key, "type").name()), value)
            if reason is not None:
                messages[name] = invalid_value_message(name, value, reason)
    return messages


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
    known_properties = clients.AdminClientConfig.configNames()
    admin_properties = java.java.util.Properties()
    limits = {"default.api.timeout.ms": str(RESPONSE_TIMEOUT_MS), "request.timeout.ms": str(RESPONSE_TIMEOUT_MS // 2)}
    for name, value in {**properties, **limits}.items():
        if known_properties.contains(name):
            admin_properties.setProperty(name, value)
    try:
        client = clients.AdminClient.create(admin_properties)
    except Py4JJavaError as error:
        raise make_client_creation_error(error.java_exception) from error
    try:
        yield KafkaAdmin(java, client, properties)
    finally:
        client.close(java.java.time.Duration.ZERO)


class KafkaAdmin:
    """Admin client of one cluster.

    Every method raises UnreachableError when the cluster does not respond within :data:`RESPONSE_TIMEOUT_MS` or reports
    a retriable error, and WorldError when the cluster rejects the request.
    """

    def __init__(self, java: Any, client: Any, properties: Mapping[str, str]) -> None:
        self._java = java
        self._client = client
        self._bootstrap_servers = properties.get("bootstrap.servers", "")
        self._isolation_level = properties.get("isolation.level", "read_uncommitted").upper()

    def find_topics(self, pattern: str) -> list[str]:
        """The names of the topics whose whole name ``pattern``, a Java regular expression, matches, sorted; without
        Kafka's internal topics.

        :raises ValueError: when ``pattern`` is not a valid expression.
        """
        try:
            compiled = self._java.java.util.regex.Pattern.compile(pattern)
        except IllegalArgumentException as error:
            raise ValueError(first_message_line(error)) from error
        names = self._await_result(self._client.listTopics().names())
        return sorted(name for name in names if compiled.matcher(name).matches())

    def list_partitions(self, topics: Iterable[str]) -> list[TopicIdPartition]:
        """All partitions of ``topics``, sorted.

        :raises TopicAbsentError: when some of the topics do not exist; the error contains all of these.
        """
        java_topics = self._java.java.util.ArrayList()
        for topic in topics:
            java_topics.add(topic)
        partitions: list[TopicIdPartition] = []
        absent: list[str] = []
        futures = self._client.describeTopics(java_topics).topicNameValues()
        for topic in java_topics:
            try:
                described = self._await_result(futures.get(topic))
            except _UnknownTopicError:
                absent.append(topic)
                continue
            topic_id = described.topicId().toString()
            numbers = [info.partition() for info in described.partitions()]
            partitions += [TopicIdPartition(topic=topic, partition=number, topic_id=topic_id) for number in numbers]
        if absent:
            raise TopicAbsentError(absent)
        return sorted(partitions)

    def list_offsets(self, partitions: Iterable[TopicIdPartition], boundary: OffsetBoundary) -> dict[str, int]:
        """The offset at ``boundary`` of each of ``partitions``, by the partition's text."""
        spec = self._java.org.apache.kafka.clients.admin.OffsetSpec
        return self._list_offsets_for_spec(
            partitions, spec.earliest() if boundary is OffsetBoundary.EARLIEST else spec.latest()
        )

    def offsets_for_timestamp_or_latest(self, partitions: Iterable[TopicIdPartition], timestamp_ms: int) -> Positions:
        """By the partition's text: the offset of the first record whose timestamp is ``timestamp_ms`` (since the Unix
        epoch) or later; for a partition without such a record, its :attr:`OffsetBoundary.LATEST`."""
        partitions = tuple(partitions)
        offsets = self._list_offsets_for_spec(
            partitions, self._java.org.apache.kafka.clients.admin.OffsetSpec.forTimestamp(timestamp_ms)
        )
        without_such_record = [partition for partition in partitions if offsets[str(partition)] < 0]
        return {
            **offsets,
            **(self.list_offsets(without_such_record, OffsetBoundary.LATEST) if without_such_record else {}),
        }

    def create_topic_if_absent(
        self,
        topic: str,
        partitions: int,
        replication_factor: int,
        configs: Mapping[str, str],
        *,
        validate_only: bool = False,
    ) -> None:
        """Create a topic with ``partitions`` partitions and the replication factor ``replication_factor``, unless the
        topic exists. -1 means the cluster's default for either number.

        With ``validate_only`` the cluster only validates the request. Otherwise this method returns when the cluster's
        metadata contain the topic, which they do some time after the topic's creation.

        :raises UnreachableError: also when the metadata do not contain the topic within :data:`RESPONSE_TIMEOUT_MS`.
        """
        java = self._java
        java_configs = java.java.util.HashMap()
        for name, value in configs.items():
            java_configs.put(name, value)
        admin = java.org.apache.kafka.clients.admin
        new_topics = java.java.util.Collections.singletonList(
            admin.NewTopic(topic, partitions, replication_factor).configs(java_configs)
        )
        try:
            self._await_result(
                self._client.createTopics(new_topics, admin.CreateTopicsOptions().validateOnly(validate_only)).all()
            )
        except WorldError as error:
            if "TopicExistsException" not in str(error):
                raise
        if validate_only:
            return
        deadline = time.monotonic() + RESPONSE_TIMEOUT_MS / 1000
        while not self._is_topic_in_metadata(topic):
            if time.monotonic() > deadline:
                message = (
                    f"Kafka at {self._bootstrap_servers}: topic {topic} was created, or existed before, but the "
                    f"cluster's metadata did not list the topic within {RESPONSE_TIMEOUT_MS // 1000} s"
                )
                raise UnreachableError(message)
            time.sleep(0.05)

    def _is_topic_in_metadata(self, topic: str) -> bool:
        """Whether the cluster's metadata contain the topic."""
        try:
            return bool(self.list_partitions([topic]))
        except TopicAbsentError:
            return False

    def read_topic_config(self, topic: str, name: str) -> str:
        """The value of the config ``name`` of ``topic``."""
        return str(self._describe_configs("TOPIC", topic).get(name).value())

    def read_broker_config(self, name: str) -> str | None:
        """The value of the config ``name`` of any one broker of the cluster; None when the broker does not report this
        config. The client's user needs the right DESCRIBE_CONFIGS on the cluster."""
        nodes = self._await_result(self._client.describeCluster().nodes())
        if nodes.isEmpty():
            raise UnreachableError(f"Kafka at {self._bootstrap_servers} reported no broker")
        entry = self._describe_configs("BROKER", nodes.iterator().next().idString()).get(name)
        return None if entry is None else str(entry.value())

    def _describe_configs(self, resource_type: str, resource_name: str) -> Any:
        """The configs of one config resource: a ``Config`` of Java. ``resource_type``: Kafka's name of the type."""
        resources = self._java.org.apache.kafka.common.config
        type_ = getattr(getattr(resources, "ConfigResource$Type"), resource_type)
        resource = resources.ConfigResource(type_, resource_name)
        resources_to_describe = self._java.java.util.Collections.singletonList(resource)
        return self._await_result(self._client.describeConfigs(resources_to_describe).all()).get(resource)

    def alter_group_offsets(self, group_id: str, positions: Mapping[TopicIdPartition, int]) -> None:
        """Commit ``positions``, by partition the offset of the next record to read, for the consumer group
        ``group_id``. Its offsets in other partitions stay. The cluster rejects this when the group has members."""
        partition_of = self._java.org.apache.kafka.common.TopicPartition
        offset_of = self._java.org.apache.kafka.clients.consumer.OffsetAndMetadata
        offsets = self._java.java.util.HashMap()
        for partition, offset in positions.items():
            offsets.put(partition_of(partition.topic, partition.partition), offset_of(offset))
        self._await_result(self._client.alterConsumerGroupOffsets(group_id, offsets).all())

    def replace_group_offsets(self, group_id: str, positions: Mapping[TopicIdPartition, int]) -> None:
        """Make ``positions``, by partition the offset of the next record to read, the only offsets of the consumer
        group ``group_id``. The cluster rejects this when the group has members. Empty ``positions`` delete the group.

        Not atomic: ``positions`` are committed, then the offsets in other partitions are deleted (KIP-496). After an
        error between these two steps, the group also has its earlier offsets in other partitions. Offsets in deleted
        topics stay until the cluster removes them.
        """
        if not positions:
            self._delete_group(group_id)
            return
        self.alter_group_offsets(group_id, positions)
        committed = self._await_result(self._client.listConsumerGroupOffsets(group_id).partitionsToOffsetAndMetadata())
        new_partitions = {(partition.topic, partition.partition) for partition in positions}
        other_partitions = self._java.java.util.HashSet()
        for java_partition in committed.keySet():
            if (java_partition.topic(), java_partition.partition()) not in new_partitions:
                other_partitions.add(java_partition)
        if not other_partitions:
            return
        deletion = self._client.deleteConsumerGroupOffsets(group_id, other_partitions)
        for java_partition in other_partitions:
            with suppress(_UnknownTopicError):
                self._await_result(deletion.partitionResult(java_partition))

    def _delete_group(self, group_id: str) -> None:
        """Delete the consumer group ``group_id`` with its offsets, unless there is none."""
        group_ids = self._java.java.util.Collections.singletonList(group_id)
        try:
            self._await_result(self._client.deleteConsumerGroups(group_ids).all())
        except WorldError as error:
            if "GroupIdNotFoundException" not in str(error):
                raise

    def _list_offsets_for_spec(self, partitions: Iterable[TopicIdPartition], spec: Any) -> dict[str, int]:
        """The offset that ``spec``, an ``OffsetSpec`` of Java, means in each of ``partitions``, by the partition's
        text; -1 if there is none."""
        partition_of = self._java.org.apache.kafka.common.TopicPartition
        spec_by_partition = self._java.java.util.HashMap()
        java_partitions = {str(part): partition_of(part.topic, part.partition) for part in partitions}
        for java_partition in java_partitions.values():
            spec_by_partition.put(java_partition, spec)
        isolation = getattr(self._java.org.apache.kafka.common.IsolationLevel, self._isolation_level)
        options = self._java.org.apache.kafka.clients.admin.ListOffsetsOptions(isolation)
        offset_by_partition = self._await_result(self._client.listOffsets(spec_by_partition, options).all())
        return {name: offset_by_partition.get(partition).offset() for name, partition in java_partitions.items()}

    def _await_result(self, future: Any) -> Any:
        """The result of ``future``, a Java future, which is awaited for at most :data:`RESPONSE_TIMEOUT_MS`.

        :raises _UnknownTopicError: when the response is that a topic or a partition does not exist.
        :raises UnreachableError: when there is no response in time, or the cluster reports a retriable error.
        :raises WorldError: when the cluster rejects the request.
        """
        try:
            return future.get(RESPONSE_TIMEOUT_MS, self._java.java.util.concurrent.TimeUnit.MILLISECONDS)
        except Py4JJavaError as error:
            java_message = message_with_causes(error.java_exception)
            if "UnknownTopicOrPartitionException" in java_message:
                raise _UnknownTopicError(java_message) from error
            raise make_request_error(self._bootstrap_servers, error.java_exception) from error


class _UnknownTopicError(WorldError):
    pass


_TIMEOUT_EXCEPTION = "java.util.concurrent.TimeoutException"
"""The exception of a Java future that has no result in time."""
_RETRIABLE_EXCEPTION = "org.apache.kafka.common.errors.RetriableException"
"""The exception of Kafka's clients for errors after which a retry may succeed: no connection, no response in time, no
leader yet."""
_DAMAGED_EXCEPTION = "org.apache.kafka.common.errors.CorruptRecordException"
"""The one retriable exception of Kafka's clients that a server which responds does not cure: a stored record is
damaged."""
_SPARK_FETCH_TIMEOUT = f"{_TIMEOUT_EXCEPTION}: Cannot fetch record for offset "
"""How the text of Spark's exception begins when a consumer of Spark's Kafka source received no record in time."""


def may_kafka_retry_succeed(error: Any) -> bool:
    """Whether a Java exception, or one of its causes, means that a Kafka cluster does not respond now: Kafka's client
    marks it as retriable (except a damaged record), or Spark's Kafka source received no record in time.

    Also True when a topic is absent, because the metadata of a broker that has just started may lack it: the caller's
    next attempt must check whether the topic was deleted. None as ``error`` is not retriable.
    """
    while error is not None:
        java_class = error.getClass()
        is_damaged = java_class.getName() == _DAMAGED_EXCEPTION
        while java_class is not None and not is_damaged:
            if java_class.getName() == _RETRIABLE_EXCEPTION:
                return True
            java_class = java_class.getSuperclass()
        if str(error.toString()).startswith(_SPARK_FETCH_TIMEOUT):
            return True
        error = error.getCause()
    return False


def make_client_creation_error(error: Any) -> WorldError:
    """The error to raise for a Java exception that Kafka's client raised when it was created, for example because a
    property is not valid or no host name can be resolved."""
    return WorldError(
        f"No Kafka client can be created: {message_with_causes(error)}. Check bootstrap.servers and the other "
        "properties of Kafka's client, in the connector's config or else in the worker's"
    )


def make_request_error(bootstrap_servers: str, error: Any) -> WorldError:
    """The error to raise for a Java exception that a request to the cluster at ``bootstrap_servers`` raised: an
    UnreachableError if a retry may succeed, because the response is late or the exception is retriable; otherwise a
    WorldError."""
    java_message = message_with_causes(error)
    if java_message.startswith(_TIMEOUT_EXCEPTION) or may_kafka_retry_succeed(error):
        return UnreachableError(
            f"Kafka at {bootstrap_servers} did not answer, or cannot serve the request now: {java_message}"
        )
    return WorldError(f"Kafka at {bootstrap_servers} rejected the request: {java_message}")


def java_function_of_record_method(java: Any, name: str, return_type: Any, interface: Any) -> Any:
    """The method ``name`` of Kafka's ``ConsumerRecord`` as a Java object that implements the functional interface
    ``interface``; ``return_type`` is the Java type of the method's result.

    Java applies this function to many records in one call: a call from Python for each record would take much longer.
    """
    record, invoke = java.org.apache.kafka.clients.consumer.ConsumerRecord._java_lang_class, java.java.lang.invoke
    method = invoke.MethodHandles.publicLookup().findVirtual(record, name, invoke.MethodType.methodType(return_type))
    return invoke.MethodHandleProxies.asInterfaceInstance(interface._java_lang_class, method)


def message_with_causes(error: Any) -> str:
    """Class and message of a Java exception and of each of its causes, in one line, without repetitions."""
    texts: list[str] = []
    while error is not None:
        text = str(error.toString())
        if not any(text in earlier for earlier in texts):
            texts.append(text)
        error = error.getCause()
    return "; ".join(texts)
