"""``KafkaWriter``: writes the batches of one start of a task to Kafka, by the clients of Kafka's own jar in the JVM.

Theory of operation. A batch is one transaction: its records, then one record in the ledger topic, whose key is the task
and whose value is the lineage and the batch::

    initTransactions            once per start: ends the open transactions of earlier starts and fences these starts
    read the task's last ledger record
    for each batch that is not in the ledger:
        beginTransaction; records; ledger record; commitTransaction

The ledger is read after ``initTransactions``, so that no earlier start can add to it. Only the producer of this start
writes a batch: when anything fails, the producer is closed, and only the next start, which reads the ledger again,
retries the batch. So it does not matter whether a commit without a response took place.

The tasks of all connectors share the partitions of the ledger. The transaction of another task may be open below the
last record of this task, and a reader with ``read_committed`` stops there. So the ledger is read to the end offset
fetched after ``initTransactions``, not to the last stable offset, unless this task has no record between the two.

The ledger has one record for each task. A new lineage counts its batches from 0, and its first batch replaces the
record of the previous lineage. No record is lost or written twice by this: all batches of the previous lineage are
complete by then, and a start that runs one of them late was fenced by the first start of the new lineage.
"""

import json
import threading
import time
import uuid
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError

from coterie.config.definition import as_list
from coterie.nouns.errors import UnreachableError, WorldError
from coterie.spark.bad_records.keys import REPLICATION as LETTERS_REPLICATION
from coterie.spark.bad_records.keys import TOPIC as LETTERS_TOPIC
from coterie.spark.fence import FencedError
from coterie.spark.seams import TaskLineage
from coterie.spark.sinks.kafka_target import CREATION, LEDGER_CONFIGS, LEDGER_PARTITIONS, OVERRIDE, TIMEOUT, KafkaTarget
from coterie.spark.sources.kafka_client import (
    KafkaAdmin,
    OffsetBoundary,
    TopicAbsentError,
    is_retriable,
    kafka_admin,
    message_with_causes,
    record_method,
)
from coterie.spark.sources.kafka_positions import TopicIdPartition

LEDGER_LIMIT_S = 60
"""How long the read of the ledger at a start may take, in seconds. The time includes a wait for the end of another
task's commit."""
POLL_MS = 500
"""How long one poll of the ledger waits for records."""
FIRST_READ_OFFSETS = 1000
"""How many offsets, back from the end of the ledger, are read first. While no record of the task is found, the next
read covers ten times as many offsets before them."""

BYTES = "org.apache.kafka.common.serialization.ByteArraySerializer"
"""Serializer of a producer for the keys and values that Spark's record writer passes to it: they are bytes."""
_FENCED = ("ProducerFencedException", "InvalidProducerEpochException", "InvalidPidMappingException")
"""Kafka's exceptions for a producer whose transactional id another producer has taken, or whose transaction has timed
out."""
TOO_LARGE = "RecordTooLargeException"
"""Kafka's exception for a record that is larger than a limit."""
HOW_LARGER = (
    f"For larger records raise {OVERRIDE}max.request.size and {OVERRIDE}buffer.memory, and the topic's "
    "max.message.bytes"
)
"""Advice after :data:`TOO_LARGE`."""
DENIED = ("AuthorizationException", "AuthenticationException")
"""Ends of the names of Kafka's exceptions for a missing right and for a failed login."""

Send = Callable[[Any, Any], None]
"""Sends the records of a batch. The arguments are a KafkaProducer, and this producer's properties (java.util.Map), by
which Spark's pool of producers finds it."""


class KafkaWriter:
    """Writes the batches of one start of one task. Batches come one after another; :meth:`close` may come from any
    thread."""

    def __init__(self, target: KafkaTarget, lineage: TaskLineage, java: Any, pool: Any) -> None:
        """``java``: the JVM, with the jars of the package kafka. ``pool``: Spark's pool of producers; see
        :func:`spark_pool`."""
        self._target = target
        self._lineage = lineage
        self._java = java
        self._pool = pool
        self._key = json.dumps([str(lineage.task.connector), lineage.task.task])
        """The key of the task's record in the ledger."""
        self._id = transactional_id(target, lineage)
        """The transactional id."""
        self._lock = threading.Lock()
        self._closed = False
        self._pooled: Any = None
        """Spark's CachedKafkaProducer; None before the take-over, and after it was closed."""
        self._properties: Any = None
        self._ledger: TopicIdPartition | None = None
        self._last = -1
        """The last batch of the lineage in the ledger; -1 when there is none."""

    # -- the take-over ------------------------------------------------------------------------------------------------

    def take_over(self) -> None:
        """Create missing topics and fence earlier starts, then read the task's last batch from the ledger.

        :raises FencedError: when this writer is closed, or a later start takes over, while this runs.
        :raises UnreachableError: when the cluster, or the end of the ledger, cannot be reached in time.
        :raises WorldError: when a topic or right is missing, the ledger topic does not keep its records, or a record in
            it was not written by the Kafka sink.
        :raises Py4JJavaError: when Kafka's client reports another error.
        """
        with kafka_admin(self._target.producer, self._java) as admin:
            make_topics(admin, self._target)
            ledger = find_ledger_partition(admin, self._target, self._key)
            try:
                self._open().initTransactions()
            except Py4JJavaError as error:
                raise self._failure(error, "the start of transactions", None) from error
            # Earlier starts may have committed until now; from now on they cannot.
            end = admin.list_offsets([ledger], OffsetBoundary.LATEST)[str(ledger)]
            begin = admin.list_offsets([ledger], OffsetBoundary.EARLIEST)[str(ledger)]
        try:
            found = LedgerReader(self._java, self._target, ledger).last_value_of(self._key, begin, end)
        except Py4JJavaError as error:
            raise self._failure(error, f"reading ledger topic {self._target.ledger}", None) from error
        self._ledger = ledger
        self._last = -1 if found is None else self._batch_of(found)

    def _batch_of(self, value: str) -> int:
        """The last batch of this lineage according to ``value``, the task's record in the ledger; -1 when the record is
        of another lineage.

        :raises WorldError: when the Kafka sink has not written the record.
        """
        try:
            mark = json.loads(value)
            lineage, batch_id = mark["lineage"], int(mark["batch"])
        except (ValueError, KeyError, TypeError) as error:
            raise WorldError(
                f"{self._target.where}: the record of task {self._lineage.task} in ledger topic {self._target.ledger} "
                f"was not written by the Kafka sink: {value[:200]!r}. Set ledger.topic to a topic that is used for "
                "nothing else"
            ) from error
        return batch_id if lineage == self._lineage.lineage else -1

    def _open(self) -> Any:
        """A new producer with the task's transactional id. It has a new client id, so that Spark's pool never returns a
        closed producer.

        :raises FencedError: when this writer is closed.
        """
        java = self._java
        properties = java.java.util.HashMap()
        ours = {
            "transactional.id": self._id,
            # A new client id, so that Spark's pool never returns a producer that was closed.
            "client.id": f"{self._id}-{uuid.uuid4().hex[:8]}",
            "key.serializer": BYTES,
            "value.serializer": BYTES,
        }
        for name, value in {**self._target.producer, **ours}.items():
            properties.put(name, value)
        pooled = self._pool.acquire(properties)
        with self._lock:
            if not self._closed:
                self._pooled, self._properties = pooled, properties
                return pooled.producer()
        self._give_up(pooled)
        raise FencedError

    # -- a batch ------------------------------------------------------------------------------------------------------

    def stage(self, batch_id: int, prepare: Callable[[], Send | None]) -> "StagedTransaction":
        """Send the batch in a transaction and leave the transaction open. ``prepare`` is called unless the ledger has
        the batch; it returns None when the batch has no row, and then no transaction begins.

        :raises FencedError: when another start has taken over, this writer was closed, or its producer was closed after
            an error of an earlier batch.
        :raises UnreachableError: when the cluster cannot be reached in time, or the transaction has timed out.
        :raises WorldError: when a record is too large for the cluster, or a right is missing.
        :raises PySparkException, Py4JJavaError: when Spark cannot compute the rows, or Kafka's client reports another
            error.
        """
        with self._lock:
            pooled = self._pooled
        if pooled is None:
            raise FencedError
        if self._has(batch_id) or (send := prepare()) is None:
            return StagedTransaction(self, batch_id, None, 0.0)
        began = time.monotonic()
        producer = pooled.producer()
        try:
            producer.beginTransaction()
            send(producer, self._properties)
        except Py4JJavaError as error:
            failure = self._failure(error, f"batch {batch_id} of task {self._lineage.task}", began)
            if not isinstance(failure, (FencedError, UnreachableError)):
                # The cluster can be reached. Abort, so that readers need not wait until the transaction times out.
                self.abort(producer)
            self._close_producer()
            if failure is error:
                raise
            raise failure from error
        except BaseException:
            self.abort(producer)
            raise
        return StagedTransaction(self, batch_id, producer, began)

    def _has(self, batch_id: int) -> bool:
        """Whether the batch is in the ledger: according to the record that :meth:`take_over` read, or by a commit of
        this writer."""
        return batch_id <= self._last

    def commit(self, producer: Any, batch_id: int, transaction_began_s: float) -> None:
        """Write the batch into the ledger and commit the transaction. After an error the producer is closed, and the
        next start reads from the ledger whether the batch was committed.

        :raises FencedError: when another start has taken over, or this writer was closed.
        :raises UnreachableError: when the cluster did not respond, or the transaction has timed out.
        :raises WorldError: when a right is missing.
        :raises Py4JJavaError: when Kafka's client reports another error.
        """
        assert self._ledger is not None, "a batch is staged after the take-over"
        value = json.dumps({"lineage": self._lineage.lineage, "batch": batch_id}).encode()
        record_of = self._java.org.apache.kafka.clients.producer.ProducerRecord
        number = self._java.java.lang.Integer(self._ledger.partition)
        try:
            producer.send(record_of(self._ledger.topic, number, self._key.encode(), value))
            producer.commitTransaction()
        except Py4JJavaError as error:
            self._close_producer()
            raise self._failure(
                error, f"the commit of batch {batch_id} of task {self._lineage.task}", transaction_began_s
            ) from error
        except BaseException:
            self._close_producer()
            raise
        self._last = batch_id

    def abort(self, producer: Any) -> None:
        """Abort the open transaction of ``producer``, so that readers need not wait until it times out. If this fails,
        close the producer. Raises nothing."""
        try:
            producer.abortTransaction()
        except (Py4JError, OSError):
            self._close_producer()

    def close(self) -> None:
        """Close the producer. A call of this writer that waits on another thread fails with FencedError. Raises
        nothing."""
        with self._lock:
            self._closed = True
        self._close_producer()

    def _close_producer(self) -> None:
        """Close the producer, if it is open: further batches need a new start. Raises nothing."""
        with self._lock:
            pooled, self._pooled = self._pooled, None
        if pooled is not None:
            self._give_up(pooled)

    def _give_up(self, pooled: Any) -> None:
        """Close the producer of ``pooled`` without waiting, and release it to Spark's pool, which removes its entry
        some minutes later. Raises nothing."""
        try:
            pooled.producer().close(self._java.java.time.Duration.ZERO)
            self._pool.release(pooled)
        except (Py4JError, OSError):
            pass  # The JVM has ended, and the producer with it.

    def _failure(self, error: Py4JJavaError, operation: str, transaction_began_s: float | None) -> Exception:
        """The task's error for ``error``, an exception in the JVM during ``operation``: FencedError when this writer is
        closed; an unknown exception unchanged. ``transaction_began_s``: the value of time.monotonic() when the
        transaction began; None when there is no transaction."""
        with self._lock:
            if self._closed:
                return FencedError()
        said = message_with_causes(error.java_exception)
        sentence = f"{self._target.where}: {operation} failed: {said}"
        if any(name in said for name in _FENCED):
            timeout_ms = self._target.transaction_timeout_ms
            if transaction_began_s is not None and (time.monotonic() - transaction_began_s) * 1000 >= timeout_ms:
                return UnreachableError(
                    f"{sentence}. The transaction took longer than the {timeout_ms} ms of {OVERRIDE}{TIMEOUT}: raise "
                    "this limit, or have the source read less in one batch"
                )
            return FencedError(f"Another producer uses the transactional id {self._id}: {said}")
        if "InvalidTxnTimeoutException" in said or "transaction timeout is larger" in said:
            return WorldError(f"{sentence}. Set {OVERRIDE}{TIMEOUT} to at most the broker's transaction.max.timeout.ms")
        if TOO_LARGE in said:
            return WorldError(f"{sentence}. {HOW_LARGER}")
        if any(name in said for name in DENIED):
            return WorldError(
                f"{sentence}. The sink needs WRITE on transactional id {self._id}, WRITE on the topics it writes to, "
                f"and READ and WRITE on ledger topic {self._target.ledger}"
            )
        return UnreachableError(sentence) if is_retriable(error.java_exception) else error


class StagedTransaction:
    """A batch in an open transaction, or a batch for which there is nothing to commit."""

    def __init__(self, writer: KafkaWriter, batch_id: int, producer: Any, transaction_began_s: float) -> None:
        """``producer``: the producer with the open transaction; None when there is nothing to commit.
        ``transaction_began_s``: the value of time.monotonic() when the transaction began."""
        self._writer = writer
        self._batch_id = batch_id
        self._producer = producer
        self._transaction_began_s = transaction_began_s

    def commit(self) -> None:
        """Commit the transaction. Does nothing when the ledger has the batch already, or the batch has no row.

        :raises FencedError, WorldError, Py4JJavaError: see :meth:`KafkaWriter.commit`.
        """
        producer, self._producer = self._producer, None
        if producer is not None:
            self._writer.commit(producer, self._batch_id, self._transaction_began_s)

    def clean_up(self) -> None:
        """Abort the transaction, unless :meth:`commit` was called. Raises nothing."""
        producer, self._producer = self._producer, None
        if producer is not None:
            self._writer.abort(producer)


class LedgerReader:
    """Reads one partition of the ledger topic."""

    def __init__(self, java: Any, target: KafkaTarget, partition: TopicIdPartition) -> None:
        self._java = java
        self._target = target
        self._partition = java.org.apache.kafka.common.TopicPartition(partition.topic, partition.partition)

    def last_value_of(self, key: str, begin: int, end: int) -> str | None:
        """The value of the last committed record with ``key`` from offset ``begin`` to before ``end``; None when there
        is none. Waits while a transaction of another task is open that hides a record with ``key``.

        :raises UnreachableError: when the partition cannot be read to ``end`` within :data:`LEDGER_LIMIT_S`.
        """
        deadline = time.monotonic() + LEDGER_LIMIT_S
        with _Consumer(self._java, self._target, self._partition, "read_committed") as committed:
            stable = committed.end()
            if stable < end:
                # Another task's transaction is open. Wait for its end only if it hides a record of this task.
                with _Consumer(self._java, self._target, self._partition, "read_uncommitted") as uncommitted:
                    if uncommitted.last_value_of(key, stable, end, deadline) is None:
                        end = stable
            upper, look = end, FIRST_READ_OFFSETS
            while upper > begin:
                lower = max(begin, upper - look)
                if (found := committed.last_value_of(key, lower, upper, deadline)) is not None:
                    return found
                upper, look = lower, look * 10
        return None


class _Consumer:
    """A consumer of one partition, without a group. ``isolation`` is its ``isolation.level``."""

    def __init__(self, java: Any, target: KafkaTarget, partition: Any, isolation: str) -> None:
        self._java = java
        self._target = target
        self._partition = partition
        known = java.org.apache.kafka.clients.consumer.ConsumerConfig.configNames()
        properties = java.java.util.Properties()
        deserializer = "org.apache.kafka.common.serialization.StringDeserializer"
        ours = {
            "isolation.level": isolation,
            "allow.auto.create.topics": "false",
            "enable.auto.commit": "false",
            "auto.offset.reset": "earliest",
            "max.poll.records": "10000",
            "key.deserializer": deserializer,
            "value.deserializer": deserializer,
        }
        for name, value in {**target.producer, **ours}.items():
            if known.contains(name):
                properties.setProperty(name, value)
        self._client = java.org.apache.kafka.clients.consumer.KafkaConsumer(properties)
        self._key_of = record_method(
            java, "key", java.java.lang.Object._java_lang_class, java.java.util.function.UnaryOperator
        )
        self._client.assign(java.java.util.Collections.singletonList(partition))

    def __enter__(self) -> "_Consumer":
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close(self._java.java.time.Duration.ZERO)

    def end(self) -> int:
        """The offset after the last record that this consumer can read: with ``read_committed`` the last stable
        offset."""
        ends = self._client.endOffsets(self._java.java.util.Collections.singletonList(self._partition))
        return int(ends.get(self._partition))

    def last_value_of(self, key: str, lower: int, upper: int, deadline: float) -> str | None:
        """The value of the last record with ``key`` from offset ``lower`` to ``upper``, or of a later one that was read
        too; empty text for a null value; None when there is no such record.

        :raises UnreachableError: when ``upper`` is not reached before ``deadline``, a value of time.monotonic().
        """
        found: str | None = None
        self._client.seek(self._partition, lower)
        wait = self._java.java.time.Duration.ofMillis(POLL_MS)
        # The position also advances past transaction markers, which are no records.
        while int(self._client.position(self._partition)) < upper:
            if time.monotonic() > deadline:
                raise UnreachableError(
                    f"{self._target.where}: ledger partition {self._partition.toString()} could not be read from "
                    f"offset {int(self._client.position(self._partition))} to {upper} within {LEDGER_LIMIT_S} s: the "
                    "cluster does not respond, or the transaction of another task is open"
                )
            records = self._client.poll(wait).records(self._partition)
            keys = self._java.java.util.ArrayList(records)
            keys.replaceAll(self._key_of)
            if (at := int(keys.lastIndexOf(key))) >= 0:
                found = records.get(at).value() or ""
        return found


def transactional_id(target: KafkaTarget, lineage: TaskLineage) -> str:
    """The transactional id of all starts of a task, and of no other task or ledger.

    The id is unique because a topic's name has no slash, and the last slash is before the task's number.
    """
    return f"{target.ledger}/{lineage.task.connector}/{lineage.task.task}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """A missing topic that the sink may create, with its settings. -1 means the broker's default."""

    key: str
    """The config key that contains the topic's name."""
    replication_key: str
    """The config key that contains the replication factor; for the ledger, which has none, the key of its name."""
    name: str
    partitions: int
    replication: int
    configs: Mapping[str, str]


def make_topics(admin: KafkaAdmin, target: KafkaTarget) -> None:
    """Create the topics of ``target`` that are missing and may be created.

    :raises WorldError: when the cluster does not respond or rejects a topic, or a topic is missing that may not be
        created.
    """
    absent = absent_topics(admin, target)
    if target.topic in absent and target.creation is None:
        raise WorldError(missing_topic_message(target))
    for new in new_topics(target, absent):
        admin.create_topic(new.name, new.partitions, new.replication, new.configs)


def new_topics(target: KafkaTarget, absent: Sequence[str]) -> Iterator[NewTopic]:
    """The settings of each topic in ``absent`` that may be created."""
    creation, letters = target.creation, target.dead_letter_topic
    if target.topic is not None and target.topic in absent and creation is not None:
        yield NewTopic(
            key="topic",
            replication_key=CREATION + "replication.factor",
            name=target.topic,
            partitions=creation.partitions,
            replication=creation.replication,
            configs=creation.configs,
        )
    if letters is not None and letters.topic in absent:
        yield NewTopic(
            key=LETTERS_TOPIC,
            replication_key=LETTERS_REPLICATION,
            name=letters.topic,
            partitions=1,
            replication=letters.replication_factor,
            configs={},
        )
    if target.ledger in absent:
        yield NewTopic(
            key="ledger.topic",
            replication_key="ledger.topic",
            name=target.ledger,
            partitions=LEDGER_PARTITIONS,
            replication=-1,
            configs=LEDGER_CONFIGS,
        )


def absent_topics(admin: KafkaAdmin, target: KafkaTarget) -> tuple[str, ...]:
    """The topics of ``target`` that do not exist, sorted."""
    try:
        admin.partitions(sorted(target.topics))
    except TopicAbsentError as error:
        return error.topics
    return ()


def missing_topic_message(target: KafkaTarget) -> str:
    """Error message: the topic of ``target`` does not exist, and what the user can do."""
    return (
        f"{target.where} has no topic {target.topic}; create it, or set topic.creation.default.partitions and "
        "topic.creation.default.replication.factor"
    )


def find_ledger_partition(admin: KafkaAdmin, target: KafkaTarget, key: str) -> TopicIdPartition:
    """The partition of the ledger that contains the records of the task with this ``key``.

    :raises WorldError: when the ledger topic is not compacted, or its records would be deleted by age.
    :raises UnreachableError: when the topic was deleted since :func:`make_topics`.
    """
    try:
        parts = admin.partitions([target.ledger])
    except TopicAbsentError as error:
        raise UnreachableError(f"{target.where}: {error}; the topic was deleted just now") from error
    if (invalid := ledger_policy_error(admin, target)) is not None:
        raise WorldError(invalid)
    return parts[zlib.crc32(key.encode()) % len(parts)]


def ledger_policy_error(admin: KafkaAdmin, target: KafkaTarget) -> str | None:
    """None if the only item of the ledger topic's cleanup.policy is compact. Else the error message: with this policy
    the topic cannot be a ledger, and what the user can do."""
    policy = admin.config(target.ledger, "cleanup.policy")
    if {*as_list(policy)} == {"compact"}:
        return None
    return (
        f"{target.where}: topic {target.ledger} has cleanup.policy={policy} and must have compact to be a ledger. "
        "Change this policy, or set ledger.topic to another topic"
    )


def spark_pool(java: Any) -> Any:
    """Spark's pool of Kafka producers in the JVM, from which Spark's row writers take their producer."""
    return getattr(getattr(java.org.apache.spark.sql.kafka010.producer, "InternalKafkaProducerPool$"), "MODULE$")
