"""``KafkaWriter``: writes the batches of one start of a task to Kafka, by the clients of Kafka's own jar in the JVM.

Theory of operation. A batch is one transaction: its records, then one record in the ledger topic, whose key is the task
and whose value is the lineage and the batch::

    initTransactions            once per start: ends the open transactions of earlier starts and fences these starts
    read the task's last ledger record
    for each batch that is not in the ledger:
        beginTransaction; records; ledger record; commitTransaction

The broker removes a transactional id that was not used for ``transactional.id.expiration.ms``, a week by default. The
next batch then fails with InvalidPidMappingException, and this start initializes its producer again as Kafka Streams
does (KIP-360): abortTransaction sends InitProducerId with the old producer id, which the broker rejects if another
start has used the transactional id since. Then the ledger is read again, since the id of that start may have expired
too. Only if the task's record is unchanged, the batch is sent a second time.

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
import logging
import threading
import time
import uuid
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError

from coterie.config.definition import split_list
from coterie.nouns.errors import UnreachableError, WorldError
from coterie.spark.bad_records.keys import DEAD_LETTER_REPLICATION_KEY as LETTERS_REPLICATION
from coterie.spark.bad_records.keys import DEAD_LETTER_TOPIC_KEY as LETTERS_TOPIC
from coterie.spark.fence import FencedError
from coterie.spark.plugin_calls import plugin_stage
from coterie.spark.seams import TaskCheckpointLineage
from coterie.spark.sinks.kafka_target import (
    LEDGER_CONFIGS,
    LEDGER_PARTITIONS,
    PRODUCER_OVERRIDE_PREFIX,
    TOPIC_CREATION_PREFIX,
    TRANSACTION_TIMEOUT,
    KafkaTarget,
    TopicCreationSettings,
)
from coterie.spark.sources.kafka_client import (
    KafkaAdmin,
    OffsetBoundary,
    TopicAbsentError,
    java_function_of_record_method,
    kafka_admin,
    may_kafka_retry_succeed,
    message_with_causes,
)
from coterie.spark.sources.kafka_positions import TopicIdPartition

log = logging.getLogger(__name__)

LEDGER_READ_TIMEOUT_S = 45
"""How long the read of the ledger at a start may take, in seconds. The time includes a wait for the end of another
task's commit. Less than the default of ``plugin.call.timeout.ms``, so that the task is retried and does not fail."""
PRODUCER_BLOCK_MAX_MS = 45_000
"""The sink's default for the producer's ``max.block.ms``. Less than Kafka's own default, 60 s, and less than the
default of ``plugin.call.timeout.ms``, so that the task is retried and does not fail."""
CLOSE_TIMEOUT_MS = 1_000
"""The longest wait for Kafka's client when a producer is closed, in ms."""
POLL_TIMEOUT_MS = 500
"""How long one poll of the ledger waits for records, in ms."""
FIRST_READ_OFFSETS = 1000
"""How many offsets, back from the end of the ledger, are read first. While no record of the task is found, the next
read covers ten times as many offsets before them."""

BYTES_SERIALIZER = "org.apache.kafka.common.serialization.ByteArraySerializer"
"""Serializer of a producer for the keys and values that Spark's record writer passes to it: they are bytes."""
_EXPIRED_ID_EXCEPTION = "InvalidPidMappingException"
"""Kafka's exception for a producer whose producer id is not that of the transactional id: because the transactional id
has expired, or another producer has used it since it expired."""
_FENCING_EXCEPTIONS = ("ProducerFencedException", "InvalidProducerEpochException", _EXPIRED_ID_EXCEPTION)
"""Kafka's exceptions for a producer whose transactional id another producer has taken, or whose transaction has timed
out."""
RECORD_TOO_LARGE_EXCEPTION = "RecordTooLargeException"
"""Kafka's exception for a record that is larger than a limit."""
LARGER_RECORDS_ADVICE = (
    f"For larger records raise {PRODUCER_OVERRIDE_PREFIX}max.request.size and {PRODUCER_OVERRIDE_PREFIX}buffer.memory, "
    "and the topic's max.message.bytes"
)
"""Advice after :data:`RECORD_TOO_LARGE_EXCEPTION`."""
AUTO_CREATION_CONFIG = "auto.create.topics.enable"
"""The broker config that states whether the broker creates a missing topic when a producer writes to the topic."""
AUTHORIZATION_EXCEPTIONS = ("AuthorizationException", "AuthenticationException")
"""Ends of the class names of Kafka's exceptions for a missing right and for a failed login."""

SendFunction = Callable[[Any, Any], None]
"""A function that sends the records of a batch. Its arguments are a KafkaProducer, and this producer's properties
(java.util.Map), by which Spark's pool of producers finds it."""


class UncreatableTopicError(WorldError):
    """The topic of all records does not exist, the config has no settings to create it, and the broker does not create
    it, or the broker's config cannot be read."""


class KafkaWriter:
    """Writes the batches of one start of one task. Batches come one after another; :meth:`close` may come from any
    thread."""

    def __init__(self, target: KafkaTarget, lineage: TaskCheckpointLineage, java: Any, producer_pool: Any) -> None:
        """``java``: the JVM, with the jars of the package kafka. ``producer_pool``: Spark's pool of producers; see
        :func:`spark_producer_pool`."""
        self._target = target
        self._lineage = lineage
        self._java = java
        self._producer_pool = producer_pool
        self._ledger_key = json.dumps([str(lineage.task.connector), lineage.task.task])
        """The key of the task's record in the ledger."""
        self._transactional_id = transactional_id_of_task(target, lineage)
        """The task's transactional id: see :func:`transactional_id_of_task`."""
        self._lock = threading.Lock()
        self._is_closed = False
        self._pooled_producer: Any = None
        """Spark's CachedKafkaProducer; None before the take-over, and after it was closed."""
        self._producer_properties: Any = None
        self._ledger_partition: TopicIdPartition | None = None
        self._last_ledger_value: str | None = None
        """The value of the task's last record in the ledger, as this writer has read or written it; None when there is
        none."""

    # -- the take-over ------------------------------------------------------------------------------------------------

    def take_over(self) -> None:
        """Create the missing topics that may be created, and fence earlier starts of the task; then read the task's
        last batch from the ledger topic.

        :raises FencedError: when this writer is closed, or a later start takes over, while this runs.
        :raises UnreachableError: when the cluster, or the end of the ledger, cannot be reached in time.
        :raises WorldError: when a topic or right is missing, the ledger topic does not keep its records, or a record in
            it was not written by the Kafka sink.
        :raises Py4JJavaError: when Kafka's client reports another error.
        """
        with kafka_admin(self._target.producer_properties, self._java) as admin:
            create_missing_topics_or_raise(admin, self._target)
            ledger_partition = check_ledger_and_find_partition(admin, self._target, self._ledger_key)
            try:
                with plugin_stage("initTransactions"):
                    self._open_producer().initTransactions()
            except Py4JJavaError as error:
                raise self._make_task_error(error, "the start of transactions", None) from error
            # Earlier starts may have committed until now; from now on they cannot.
            last_value = self._read_last_ledger_value(admin, ledger_partition)
        self._batch_id_of_own_lineage_or_minus_one(
            last_value
        )  # raises an error if another program has written the record
        self._ledger_partition, self._last_ledger_value = ledger_partition, last_value

    def _read_last_ledger_value(self, admin: KafkaAdmin, ledger_partition: TopicIdPartition) -> str | None:
        """The value of the task's last record in the ledger, read to the end that the ledger has now; None when there
        is none.

        :raises FencedError: when this writer is closed.
        :raises UnreachableError: when the cluster, or the end of the ledger, cannot be reached in time.
        :raises WorldError: when a right is missing.
        :raises Py4JJavaError: when Kafka's client reports another error.
        """
        end_offset = admin.list_offsets([ledger_partition], OffsetBoundary.LATEST)[str(ledger_partition)]
        begin_offset = admin.list_offsets([ledger_partition], OffsetBoundary.EARLIEST)[str(ledger_partition)]
        try:
            with plugin_stage("the read of the ledger topic"):
                return LedgerReader(self._java, self._target, ledger_partition).read_last_value_of_key(
                    self._ledger_key, begin_offset, end_offset
                )
        except Py4JJavaError as error:
            raise self._make_task_error(error, f"reading ledger topic {self._target.ledger_topic}", None) from error

    def _batch_id_of_own_lineage_or_minus_one(self, value: str | None) -> int:
        """The last batch of this lineage according to ``value``, the value of the task's record in the ledger; -1 when
        there is no record (None), or the record is of another lineage.

        :raises WorldError: when the Kafka sink has not written the record.
        """
        if value is None:
            return -1
        try:
            ledger_record = json.loads(value)
            lineage, batch_id = ledger_record["lineage"], int(ledger_record["batch"])
        except (ValueError, KeyError, TypeError) as error:
            raise WorldError(
                f"{self._target.cluster_description}: the record of task {self._lineage.task} in ledger topic "
                f"{self._target.ledger_topic} was not written by the Kafka sink: {value[:200]!r}. Set ledger.topic to "
                "a topic that is used for nothing else"
            ) from error
        return batch_id if lineage == self._lineage.lineage_id else -1

    def _open_producer(self) -> Any:
        """A new producer with the task's transactional id. It has a new client id, so that Spark's pool never returns a
        closed producer.

        :raises FencedError: when this writer is closed.
        """
        java = self._java
        properties = java.java.util.HashMap()
        own_properties = {
            "transactional.id": self._transactional_id,
            # A new client id, so that Spark's pool never returns a producer that was closed.
            "client.id": f"{self._transactional_id}-{uuid.uuid4().hex[:8]}",
            "key.serializer": BYTES_SERIALIZER,
            "value.serializer": BYTES_SERIALIZER,
        }
        defaults = {"max.block.ms": str(PRODUCER_BLOCK_MAX_MS)}
        for name, value in {**defaults, **self._target.producer_properties, **own_properties}.items():
            properties.put(name, value)
        pooled_producer = self._producer_pool.acquire(properties)
        with self._lock:
            if not self._is_closed:
                self._pooled_producer, self._producer_properties = pooled_producer, properties
                return pooled_producer.producer()
        self._close_and_release_producer(pooled_producer)
        raise FencedError

    # -- a batch ------------------------------------------------------------------------------------------------------

    def stage(self, batch_id: int, make_send: Callable[[], SendFunction | None]) -> "StagedTransaction":
        """Send the batch in a transaction and leave the transaction open. ``make_send`` is called unless the ledger has
        the batch; it returns the function that sends the records, or None when the batch has no row: then no
        transaction begins. If the transactional id has expired, the producer is initialized again, and ``make_send`` is
        called a second time.

        :raises FencedError: when another start has taken over, this writer was closed, or its producer was closed after
            an error of an earlier batch.
        :raises UnreachableError: when the cluster cannot be reached in time, or the transaction has timed out.
        :raises WorldError: when a record is too large for the cluster, or a right is missing.
        :raises PySparkException, Py4JJavaError: when Spark cannot compute the rows, or Kafka's client reports another
            error.
        """
        with self._lock:
            pooled_producer = self._pooled_producer
        if pooled_producer is None:
            raise FencedError
        try:
            return self._send_batch(pooled_producer.producer(), batch_id, make_send)
        except _TransactionalIdExpiredError:
            self._reinitialize_producer_or_raise_if_fenced(pooled_producer.producer())
        try:
            return self._send_batch(pooled_producer.producer(), batch_id, make_send)
        except _TransactionalIdExpiredError as error:
            self._close_producer()
            raise self._make_task_error(
                error.java_error, f"batch {batch_id} of task {self._lineage.task}", None
            ) from error

    def _send_batch(
        self, producer: Any, batch_id: int, make_send: Callable[[], SendFunction | None]
    ) -> "StagedTransaction":
        """Try once to send the batch by ``producer``: one attempt of :meth:`stage`, with its errors.

        :raises _TransactionalIdExpiredError: when the producer id is not that of the transactional id. The producer is
            not closed.
        """
        if self._is_batch_committed(batch_id) or (send := make_send()) is None:
            return StagedTransaction(self, batch_id, None, 0.0)
        transaction_began_at_s = time.monotonic()
        try:
            producer.beginTransaction()
            send(producer, self._producer_properties)
        except Py4JJavaError as error:
            failure = self._make_task_error(
                error, f"batch {batch_id} of task {self._lineage.task}", transaction_began_at_s
            )
            if isinstance(failure, FencedError) and _EXPIRED_ID_EXCEPTION in message_with_causes(error.java_exception):
                raise _TransactionalIdExpiredError(error) from error
            if not isinstance(failure, (FencedError, UnreachableError)):
                # The cluster can be reached. Abort, so that readers need not wait until the transaction times out.
                self.abort_transaction(producer)
            self._close_producer()
            if failure is error:
                raise
            raise failure from error
        except BaseException:
            self.abort_transaction(producer)
            raise
        return StagedTransaction(self, batch_id, producer, transaction_began_at_s)

    def _reinitialize_producer_or_raise_if_fenced(self, producer: Any) -> None:
        """Give ``producer``, whose transactional id has expired, a new producer id, and check that no other start has
        taken over since this start's last batch. After an error the producer is closed.

        :raises FencedError: when another start has taken over, or this writer was closed.
        :raises UnreachableError: when the cluster, or the end of the ledger, cannot be reached in time.
        :raises WorldError: when a right is missing.
        :raises Py4JJavaError: when Kafka's client reports another error.
        """
        assert self._ledger_partition is not None, "a batch is staged after the take-over"
        try:
            # Sends InitProducerId with the old producer id: rejected if another start has used the transactional id.
            producer.abortTransaction()
            with kafka_admin(self._target.producer_properties, self._java) as admin:
                last_value = self._read_last_ledger_value(admin, self._ledger_partition)
        except Py4JJavaError as error:
            self._close_producer()
            raise self._make_task_error(error, f"a new producer id for {self._transactional_id}", None) from error
        except BaseException:
            self._close_producer()
            raise
        if last_value != self._last_ledger_value:
            self._close_producer()
            raise FencedError(
                f"Another start of task {self._lineage.task} has written to ledger topic {self._target.ledger_topic}: "
                f"{last_value!r}; this start has written or read {self._last_ledger_value!r}"
            )
        log.info(
            "Task %s: its transactional id %s had expired, because the task wrote no batch for the broker's "
            "transactional.id.expiration.ms; its producer has a new producer id, and the batch is sent again",
            self._lineage.task,
            self._transactional_id,
        )

    def _is_batch_committed(self, batch_id: int) -> bool:
        """Whether the batch is committed: the ledger topic contained it or a later one when :meth:`take_over` read it,
        or this writer has committed it."""
        return batch_id <= self._batch_id_of_own_lineage_or_minus_one(self._last_ledger_value)

    def commit(self, producer: Any, batch_id: int, transaction_began_at_s: float) -> None:
        """Write the number of the batch into the ledger topic, in the transaction, and commit the transaction. After an
        error the producer is closed, and the next start reads from the ledger whether the batch was committed.

        :raises FencedError: when another start has taken over, or this writer was closed.
        :raises UnreachableError: when the cluster did not respond, or the transaction has timed out.
        :raises WorldError: when a right is missing.
        :raises Py4JJavaError: when Kafka's client reports another error.
        """
        assert self._ledger_partition is not None, "a batch is staged after the take-over"
        value = json.dumps({"lineage": self._lineage.lineage_id, "batch": batch_id})
        producer_record = self._java.org.apache.kafka.clients.producer.ProducerRecord
        partition_number = self._java.java.lang.Integer(self._ledger_partition.partition)
        try:
            producer.send(
                producer_record(
                    self._ledger_partition.topic, partition_number, self._ledger_key.encode(), value.encode()
                )
            )
            producer.commitTransaction()
        except Py4JJavaError as error:
            self._close_producer()
            raise self._make_task_error(
                error, f"the commit of batch {batch_id} of task {self._lineage.task}", transaction_began_at_s
            ) from error
        except BaseException:
            self._close_producer()
            raise
        self._last_ledger_value = value

    def abort_transaction(self, producer: Any) -> None:
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
            self._is_closed = True
        self._close_producer()

    def _close_producer(self) -> None:
        """Close the producer, if it is open: further batches need a new start. Raises nothing."""
        with self._lock:
            pooled_producer, self._pooled_producer = self._pooled_producer, None
        if pooled_producer is not None:
            self._close_and_release_producer(pooled_producer)

    def _close_and_release_producer(self, pooled_producer: Any) -> None:
        """Close the producer of ``pooled_producer``, an entry of Spark's pool, and return the entry to the pool, which
        removes it some minutes later. Kafka's client first ends a commit that has begun, or aborts the open
        transaction: an open transaction would hide later records from readers. After :data:`CLOSE_TIMEOUT_MS` the
        client gives up. Raises nothing."""
        try:
            pooled_producer.producer().close(self._java.java.time.Duration.ofMillis(CLOSE_TIMEOUT_MS))
            self._producer_pool.release(pooled_producer)
        except (Py4JError, OSError):
            pass  # The JVM has ended, and the producer with it.

    def _make_task_error(self, error: Py4JJavaError, operation: str, transaction_began_at_s: float | None) -> Exception:
        """The task's error for ``error``, an exception in the JVM during ``operation``: FencedError when this writer is
        closed; an unknown exception unchanged. ``transaction_began_at_s``: the value of time.monotonic() when the
        transaction began; None when there is no transaction."""
        with self._lock:
            if self._is_closed:
                return FencedError()
        java_message = message_with_causes(error.java_exception)
        message = f"{self._target.cluster_description}: {operation} failed: {java_message}"
        if any(name in java_message for name in _FENCING_EXCEPTIONS):
            timeout_ms = self._target.transaction_timeout_ms
            if transaction_began_at_s is not None and (time.monotonic() - transaction_began_at_s) * 1000 >= timeout_ms:
                return UnreachableError(
                    f"{message}. The transaction took longer than the {timeout_ms} ms of "
                    f"{PRODUCER_OVERRIDE_PREFIX}{TRANSACTION_TIMEOUT}: raise "
                    "this limit, or have the source read less in one batch"
                )
            return FencedError(f"Another producer uses the transactional id {self._transactional_id}: {java_message}")
        if "InvalidTxnTimeoutException" in java_message or "transaction timeout is larger" in java_message:
            return WorldError(
                f"{message}. Set {PRODUCER_OVERRIDE_PREFIX}{TRANSACTION_TIMEOUT} to at most the broker's "
                "transaction.max.timeout.ms"
            )
        if RECORD_TOO_LARGE_EXCEPTION in java_message:
            return WorldError(f"{message}. {LARGER_RECORDS_ADVICE}")
        if any(name in java_message for name in AUTHORIZATION_EXCEPTIONS):
            return WorldError(
                f"{message}. Check the sink's login; its user needs WRITE on transactional id "
                f"{self._transactional_id}, WRITE on the topics to which it writes, and READ and WRITE on ledger topic "
                f"{self._target.ledger_topic}"
            )
        return UnreachableError(message) if may_kafka_retry_succeed(error.java_exception) else error


class _TransactionalIdExpiredError(WorldError):
    """The producer id of a producer is not that of its transactional id; ``java_error`` is the exception of Kafka's
    client."""

    def __init__(self, java_error: Py4JJavaError) -> None:
        super().__init__(_EXPIRED_ID_EXCEPTION)
        self.java_error = java_error


class StagedTransaction:
    """A batch whose records were sent in a transaction that is still open; or a batch for which there is nothing to
    commit, because the ledger has the batch or the batch has no row."""

    def __init__(self, writer: KafkaWriter, batch_id: int, producer: Any, transaction_began_at_s: float) -> None:
        """``producer``: the producer with the open transaction; None when there is nothing to commit.
        ``transaction_began_at_s``: the value of time.monotonic() when the transaction began."""
        self._writer = writer
        self._batch_id = batch_id
        self._producer = producer
        self._transaction_began_s = transaction_began_at_s

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
            self._writer.abort_transaction(producer)


class LedgerReader:
    """Finds the last record of a task in one partition of the ledger topic."""

    def __init__(self, java: Any, target: KafkaTarget, partition: TopicIdPartition) -> None:
        self._java = java
        self._target = target
        self._partition = java.org.apache.kafka.common.TopicPartition(partition.topic, partition.partition)

    def read_last_value_of_key(self, key: str, begin_offset: int, end_offset: int) -> str | None:
        """The value of the last committed record with ``key`` from ``begin_offset`` to before ``end_offset``; empty
        text for a null value; None when there is no such record. Waits while a transaction of another task is open that
        hides a record with ``key``.

        :raises UnreachableError: when the partition cannot be read to ``end_offset`` within
            :data:`LEDGER_READ_TIMEOUT_S`.
        """
        deadline_s = time.monotonic() + LEDGER_READ_TIMEOUT_S
        with _LedgerConsumer(self._java, self._target, self._partition, "read_committed") as committed:
            last_stable_offset = committed.end_offset()
            if last_stable_offset < end_offset:
                # Another task's transaction is open. Wait for its end only if it hides a record of this task.
                with _LedgerConsumer(self._java, self._target, self._partition, "read_uncommitted") as uncommitted:
                    if uncommitted.read_last_value_of_key(key, last_stable_offset, end_offset, deadline_s) is None:
                        end_offset = last_stable_offset
            upper, offset_count = end_offset, FIRST_READ_OFFSETS
            while upper > begin_offset:
                lower = max(begin_offset, upper - offset_count)
                if (last_value := committed.read_last_value_of_key(key, lower, upper, deadline_s)) is not None:
                    return last_value
                upper, offset_count = lower, offset_count * 10
        return None


class _LedgerConsumer:
    """A consumer of one partition of the ledger, without a group. ``isolation_level``: its ``isolation.level``."""

    def __init__(self, java: Any, target: KafkaTarget, partition: Any, isolation_level: str) -> None:
        self._java = java
        self._target = target
        self._partition = partition
        known_properties = java.org.apache.kafka.clients.consumer.ConsumerConfig.configNames()
        properties = java.java.util.Properties()
        deserializer = "org.apache.kafka.common.serialization.StringDeserializer"
        own_properties = {
            "isolation.level": isolation_level,
            "allow.auto.create.topics": "false",
            "enable.auto.commit": "false",
            "auto.offset.reset": "earliest",
            "max.poll.records": "10000",
            "key.deserializer": deserializer,
            "value.deserializer": deserializer,
        }
        for name, value in {**target.producer_properties, **own_properties}.items():
            if known_properties.contains(name):
                properties.setProperty(name, value)
        self._client = java.org.apache.kafka.clients.consumer.KafkaConsumer(properties)
        self._key_of = java_function_of_record_method(
            java, "key", java.java.lang.Object._java_lang_class, java.java.util.function.UnaryOperator
        )
        self._client.assign(java.java.util.Collections.singletonList(partition))

    def __enter__(self) -> "_LedgerConsumer":
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close(self._java.java.time.Duration.ZERO)

    def end_offset(self) -> int:
        """The offset after the last record that this consumer can read: with ``read_committed`` the last stable
        offset."""
        ends = self._client.endOffsets(self._java.java.util.Collections.singletonList(self._partition))
        return int(ends.get(self._partition))

    def read_last_value_of_key(self, key: str, begin_offset: int, end_offset: int, deadline_s: float) -> str | None:
        """The value of the last record with ``key`` from ``begin_offset`` to ``end_offset``, or of a later record if a
        later one was read too; empty text for a null value; None when there is no such record.

        :raises UnreachableError: when ``end_offset`` is not reached before ``deadline_s``, a value of time.monotonic().
        """
        last_value: str | None = None
        self._client.seek(self._partition, begin_offset)
        poll_timeout = self._java.java.time.Duration.ofMillis(POLL_TIMEOUT_MS)
        # The position also advances past transaction markers, which are no records.
        while int(self._client.position(self._partition)) < end_offset:
            if time.monotonic() > deadline_s:
                raise UnreachableError(
                    f"{self._target.cluster_description}: ledger partition {self._partition.toString()} could not be "
                    f"read from offset {int(self._client.position(self._partition))} to {end_offset} within "
                    f"{LEDGER_READ_TIMEOUT_S} s, the limit for all reads of the ledger at one start: the cluster does "
                    "not respond, or the transaction of another task is open"
                )
            records = self._client.poll(poll_timeout).records(self._partition)
            keys = self._java.java.util.ArrayList(records)
            keys.replaceAll(self._key_of)
            if (index := int(keys.lastIndexOf(key))) >= 0:
                last_value = records.get(index).value() or ""
        return last_value


def transactional_id_of_task(target: KafkaTarget, lineage: TaskCheckpointLineage) -> str:
    """The transactional id of all starts of a task, and of no other task or ledger.

    The id is unique because a topic's name has no slash, and the last slash is before the task's number.
    """
    return f"{target.ledger_topic}/{lineage.task.connector}/{lineage.task.task}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """A missing topic that the sink may create, with its settings. A number of partitions or a replication factor of -1
    means the broker's default."""

    name_config_key: str
    """The config key that contains the topic's name."""
    replication_config_key: str
    """The config key that contains the replication factor; the key of the topic's name if no key contains it."""
    name: str
    partitions: int
    replication_factor: int
    configs: Mapping[str, str]


def create_missing_topics_or_raise(admin: KafkaAdmin, target: KafkaTarget) -> None:
    """Create the topics of ``target`` that are missing: see :func:`creatable_topics`.

    :raises UncreatableTopicError: see :func:`creatable_topics`.
    :raises WorldError: when the cluster does not respond or rejects a topic.
    """
    for new_topic in creatable_topics(admin, target, find_absent_topics(admin, target)):
        admin.create_topic_if_absent(
            new_topic.name, new_topic.partitions, new_topic.replication_factor, new_topic.configs
        )


def creatable_topics(admin: KafkaAdmin, target: KafkaTarget, absent: Sequence[str]) -> Iterator[NewTopic]:
    """The settings of each topic in ``absent``, the missing topics of ``target``. If the config has no settings for the
    topic of all records, the broker's config determines whether this topic may be created.

    :raises UncreatableTopicError: before the first topic, when the topic of all records must not be created.
    :raises UnreachableError: before the first topic, when the cluster does not respond.
    """
    creation, dead_letter_topic = target.topic_creation, target.dead_letter_topic
    if target.topic is not None and target.topic in absent:
        replication_config_key = "topic" if creation is None else TOPIC_CREATION_PREFIX + "replication.factor"
        creation = creation or _topic_creation_settings_of_broker(admin, target)
        yield NewTopic(
            name_config_key="topic",
            replication_config_key=replication_config_key,
            name=target.topic,
            partitions=creation.partitions,
            replication_factor=creation.replication_factor,
            configs=creation.configs,
        )
    if dead_letter_topic is not None and dead_letter_topic.topic in absent:
        yield NewTopic(
            name_config_key=LETTERS_TOPIC,
            replication_config_key=LETTERS_REPLICATION,
            name=dead_letter_topic.topic,
            partitions=1,
            replication_factor=dead_letter_topic.replication_factor,
            configs={},
        )
    if target.ledger_topic in absent:
        yield NewTopic(
            name_config_key="ledger.topic",
            replication_config_key="ledger.topic",
            name=target.ledger_topic,
            partitions=LEDGER_PARTITIONS,
            replication_factor=-1,
            configs=LEDGER_CONFIGS,
        )


def _topic_creation_settings_of_broker(admin: KafkaAdmin, target: KafkaTarget) -> TopicCreationSettings:
    """The settings with which the broker creates the missing topic of ``target`` when a producer writes to it: the
    broker's defaults. Kafka Connect leaves the creation to the broker in this way if the config has no settings.

    :raises UncreatableTopicError: when the broker does not create topics, or its config cannot be read.
    :raises UnreachableError: when the cluster does not respond.
    """
    try:
        value = admin.read_broker_config(AUTO_CREATION_CONFIG)
    except UnreachableError:
        raise
    except WorldError as error:
        reason = (
            f"The sink cannot read the broker's config {AUTO_CREATION_CONFIG}, for which its user needs "
            f"DESCRIBE_CONFIGS on the cluster: {error}"
        )
        raise UncreatableTopicError(missing_topic_message(target, reason)) from error
    if value != "true":
        reason = f"The broker does not create the topic: its config {AUTO_CREATION_CONFIG} is {value or 'missing'}"
        raise UncreatableTopicError(missing_topic_message(target, reason))
    return TopicCreationSettings(partitions=-1, replication_factor=-1, configs={})


def find_absent_topics(admin: KafkaAdmin, target: KafkaTarget) -> tuple[str, ...]:
    """The topics of ``target`` that do not exist, sorted."""
    try:
        admin.list_partitions(sorted(target.required_topics))
    except TopicAbsentError as error:
        return error.topics
    return ()


def missing_topic_message(target: KafkaTarget, reason: str) -> str:
    """Error message: the topic of ``target`` does not exist, what the user can do, and ``reason``, a sentence without a
    full stop: why the topic is not created."""
    return (
        f"{target.cluster_description} has no topic {target.topic}; create it, or set "
        f"topic.creation.default.partitions and topic.creation.default.replication.factor. {reason}"
    )


def check_ledger_and_find_partition(admin: KafkaAdmin, target: KafkaTarget, key: str) -> TopicIdPartition:
    """The partition of the ledger topic that contains the records of the task with the key ``key``: it follows from a
    hash of the key.

    :raises WorldError: when the ledger topic is not compacted, or its records would be deleted by age.
    :raises UnreachableError: when the topic was deleted since :func:`create_missing_topics_or_raise`.
    """
    try:
        partitions = admin.list_partitions([target.ledger_topic])
    except TopicAbsentError as error:
        raise UnreachableError(
            f"{target.cluster_description}: {error}; the ledger topic was deleted just now, and the next attempt "
            "creates it again"
        ) from error
    if (policy_error := ledger_policy_error(admin, target)) is not None:
        raise WorldError(policy_error)
    return partitions[zlib.crc32(key.encode()) % len(partitions)]


def ledger_policy_error(admin: KafkaAdmin, target: KafkaTarget) -> str | None:
    """None if the only item of the ledger topic's cleanup.policy is compact. Else the error message: with this policy
    the topic cannot be a ledger, and what the user can do."""
    policy = admin.read_topic_config(target.ledger_topic, "cleanup.policy")
    if {*split_list(policy)} == {"compact"}:
        return None
    return (
        f"{target.cluster_description}: topic {target.ledger_topic} has cleanup.policy={policy} and must have compact "
        "to be a ledger. Change this policy, or set ledger.topic to another topic"
    )


def spark_producer_pool(java: Any) -> Any:
    """Spark's pool of Kafka producers in the JVM, from which Spark's row writers take their producer."""
    return getattr(getattr(java.org.apache.spark.sql.kafka010.producer, "InternalKafkaProducerPool$"), "MODULE$")
