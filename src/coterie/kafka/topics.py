"""Compacted topics as logs, over librdkafka: one producer for all topics, and one consumer for each reader of a topic.

librdkafka has its own threads and returns results through blocking calls. These calls are made on Python threads, which
pass the results to the event loop: one thread for each reader, one for the producer, and one for the admin client. The
event loop itself only makes calls that return immediately.
"""

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from confluent_kafka import (
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    ConfigEntry,
    ConfigResource,
    ListOffsetsResultInfo,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from coterie.config.security import KafkaSecurity
from coterie.engine.log import LogProgress, NewTopicRecord
from coterie.kafka.client_log import ClientFailureLogger, logger
from coterie.kafka.leader_log import LeaderTopicLog
from coterie.kafka.security import PLAINTEXT, librdkafka_settings
from coterie.kafka.topic_reader import TopicReader
from coterie.nouns.errors import WorldError
from coterie.nouns.ids import LogPosition

ResultT = TypeVar("ResultT")

DELIVERY_TIMEOUT_MS = 30_000
"""The time limit for the delivery of one record, from when the producer accepts it. The same as Kafka Connect's for a
write to its config topic."""
RECORDS_IN_FLIGHT_MAX = 10_000
"""The maximum number of records of one log without a delivery report; further appends wait."""
_NEW_LEADER_RETRY_S = 0.05
"""The pause before the end offsets are requested again after one of ``_NEW_LEADER_ERRORS``."""
PRODUCER_POLL_S = 0.2
"""How long the producer's thread waits inside librdkafka before it checks whether it must end."""


class TopicsClient:
    """A worker's client of the topics in one Kafka cluster: creates topics, and opens them as logs. Must be closed
    after use, which also closes the logs. Failed calls of librdkafka raise WorldError. The end of a partition is its
    last stable offset: open transactions and all records after them are not counted."""

    def __init__(
        self,
        bootstrap_servers: Sequence[str],
        *,
        client_id: str,
        request_timeout_ms: int = 30_000,
        security: KafkaSecurity = PLAINTEXT,
    ) -> None:
        """``request_timeout_ms`` is the time limit of each admin request, and of the wait for a new topic's leaders."""
        self._client_config: dict[str, Any] = {
            **librdkafka_settings(security),
            "bootstrap.servers": ",".join(bootstrap_servers),
            "client.id": client_id,
            # A short back-off, so that a broker that is reachable again is found before sessions end.
            "reconnect.backoff.ms": 50,
            "reconnect.backoff.max.ms": 500,
            "socket.nagle.disable": True,
            "log.connection.close": False,
            # librdkafka's producers and admin clients create a missing topic by default, by their requests for
            # metadata, with the broker's cleanup.policy. After the loss of all data of a broker no worker could start.
            "allow.auto.create.topics": False,
        }
        self._servers = ",".join(bootstrap_servers)
        self._request_timeout_s = request_timeout_ms / 1000
        self._log = ClientFailureLogger(self._servers)
        # The producer logs the failures of both handles: they have the same brokers, and one thread serves both.
        self._admin = AdminClient(dict[str, Any](self._client_config, logger=self._log, error_cb=_ignore_error))
        self._producer = Producer(
            {
                **self._client_config,
                **self._log.callback_settings(),
                "acks": "all",
                # As in Connect. One request in flight keeps the order of the records when one has to be sent again.
                "enable.idempotence": False,
                "max.in.flight.requests.per.connection": 1,
                "delivery.timeout.ms": DELIVERY_TIMEOUT_MS,
                "linger.ms": 0,
                # Each key gets the same partition as from Kafka's own clients, so that these may also write the topic.
                "partitioner": "murmur2_random",
            }
        )
        self._admin_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="coterie-kafka-admin")
        self._producer_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="coterie-kafka-producer")
        self._closing = threading.Event()
        self._callbacks_served = self._producer_thread.submit(self._serve_callbacks_then_close_producer)
        self._logs: list[TopicLog | LeaderTopicLog] = []

    async def open_or_create_log(
        self,
        topic: str,
        *,
        partitions: int,
        replication_factor: int,
        setting_key: str,
        needs_one_partition: bool = False,
    ) -> "TopicLog":
        """The topic as a log. A topic that does not exist is created, with ``cleanup.policy=compact``.

        ``partitions`` and ``replication_factor`` are for a new topic; -1 is the broker's default. ``setting_key`` is
        the worker's setting that contains the topic's name; error messages contain it. An existing topic may have any
        number of partitions, unless ``needs_one_partition``: then the order of all its records matters, and it must
        have exactly one.

        :raises WorldError: when the topic cannot be created or described, has another cleanup.policy, has no leader for
            a partition within ``request_timeout_ms``, or has more than one partition although ``needs_one_partition``.
        """
        await self._create_topic_if_missing_and_allowed(topic, partitions, replication_factor, setting_key)
        partition_count = await self._wait_for_leaders_and_count_partitions(topic)
        if needs_one_partition and partition_count != 1:
            raise WorldError(
                f"topic {topic} has {partition_count} partitions, but the order of its records matters: "
                f"delete it and create it again with 1 partition, or name another topic as {setting_key}"
            )
        await self._check_cleanup_policy_if_describable(topic, setting_key)
        log = TopicLog(self, topic, partition_count)
        self._logs.append(log)
        return log

    def new_leader_log(self, log: "TopicLog", *, transactional_id: str) -> LeaderTopicLog:
        """A new log through which the leader of the group writes the topic of ``log``, with this transactional id.
        Nothing is opened at the broker yet; :meth:`close` closes the new log, too. The topic must have one
        partition."""
        leader_log = LeaderTopicLog(
            self._client_config, log.topic, transactional_id, before_commit=log.store_last_own_transaction_offset
        )
        self._logs.append(leader_log)
        return leader_log

    async def cluster_id(self) -> str:
        """The id of the Kafka cluster.

        :raises WorldError: when no broker responds within ``request_timeout_ms``.
        """
        try:
            return await self._run_on_admin_thread(lambda: self._admin.cluster_id(self._request_timeout_s))
        except KafkaException as error:
            raise self.to_world_error("cannot request the cluster's id", error) from None

    async def topic_id(self, topic: str) -> bytes:
        """The topic id of ``topic``, 16 bytes: a topic that is deleted and created again gets a new one.

        :raises WorldError: when the topic cannot be described.
        """
        try:
            described = self._admin.describe_topics(TopicCollection([topic]), request_timeout=self._request_timeout_s)
            description = await asyncio.wrap_future(described[topic])
        except KafkaException as error:
            raise self.to_world_error(f"cannot describe topic {topic}", error) from None
        id_ = description.topic_id
        halves = (id_.get_most_significant_bits(), id_.get_least_significant_bits())
        return b"".join(half.to_bytes(8, "big", signed=True) for half in halves)

    async def close(self) -> None:
        """Close all logs, and end all handles and their threads; unfinished appends raise WorldError. Safe to call
        twice."""
        for log in self._logs:
            await log.close()
        if self._closing.is_set():
            return
        self._closing.set()
        # A request may still run on the admin thread. Wait for a no-op that ends after it, so that the shutdown does
        # not block the event loop.
        await self._run_on_admin_thread(lambda: None)
        await asyncio.wrap_future(self._callbacks_served)
        self._producer_thread.shutdown()
        self._admin_thread.shutdown()

    # -- for the logs -------------------------------------------------------------------------------------------------

    def to_world_error(self, action: str, error: KafkaException | KafkaError | BufferError) -> WorldError:
        """The WorldError for a failed call of librdkafka; ``action`` is what failed, the start of its message."""
        reason = error.args[0] if isinstance(error, KafkaException) else error
        text = reason.str() if isinstance(reason, KafkaError) else str(reason)
        return WorldError(f"{action}: {text}; check that the brokers of bootstrap.servers={self._servers} run")

    def produce(
        self, topic: str, record: NewTopicRecord, on_delivery: Callable[[KafkaError | None, Message], None]
    ) -> None:
        """Pass one record to the producer. ``on_delivery`` is called once, on the producer's thread, when the record is
        durable or could not be written.

        :raises WorldError: when the producer is closed, or refuses the record, for example because its queue is full;
            then ``on_delivery`` is not called.
        """
        if self._closing.is_set():
            raise WorldError(f"the Kafka client of topic {topic} is closed, because this worker is shutting down")
        try:
            self._producer.produce(topic, value=record.value, key=record.key, on_delivery=on_delivery)
        except (KafkaException, BufferError) as error:
            raise self.to_world_error(f"cannot write to topic {topic}", error) from None

    async def end_offsets(self, topic: str, partitions: int) -> Mapping[int, int]:
        """By partition, the position of a reader that has read all records of the topic that are durable and committed:
        the last stable offset. ``partitions`` is the topic's number of partitions. While the leader of a partition is
        new (``_NEW_LEADER_ERRORS``), the offsets are requested again, for ``request_timeout_ms``.

        :raises WorldError: when a leader of the partitions does not respond within ``request_timeout_ms``, or refuses
            the request; or after :meth:`close`.
        """
        deadline_s = time.monotonic() + self._request_timeout_s
        while True:
            try:
                return await self._request_end_offsets(topic, partitions)
            except KafkaException as error:
                if error.args[0].code() not in _NEW_LEADER_ERRORS or time.monotonic() > deadline_s:
                    raise self.to_world_error(f"cannot find the end of topic {topic}", error) from None
            await asyncio.sleep(_NEW_LEADER_RETRY_S)

    async def _request_end_offsets(self, topic: str, partitions: int) -> Mapping[int, int]:
        """The result of :meth:`end_offsets`, by one request.

        :raises KafkaException: when a leader of the partitions does not respond in time, or refuses the request.
        :raises WorldError: after :meth:`close`.
        """
        if self._closing.is_set():
            raise WorldError(f"the Kafka client of topic {topic} is closed, because this worker is shutting down")
        futures: Mapping[TopicPartition, Future[ListOffsetsResultInfo]] = self._admin.list_offsets(
            {TopicPartition(topic, number): OffsetSpec.latest() for number in range(partitions)},
            isolation_level=IsolationLevel.READ_COMMITTED,
            request_timeout=self._request_timeout_s,
        )
        return {
            topic_partition.partition: (await asyncio.wrap_future(end_future)).offset
            for topic_partition, end_future in futures.items()
        }

    def log_recovery_if_failure_was_logged(self) -> None:
        """Log that the brokers can be reached again, if a failure to reach them was logged before; else do nothing.
        To be called on the producer's thread for each record that is durable."""
        self._log.on_response()

    def open_reader(self, topic: str, partition_count: int) -> TopicReader:
        """A new reader of the topic from its beginning; the caller must close it."""
        return TopicReader(self._client_config, topic, partition_count)

    # -- helpers ------------------------------------------------------------------------------------------------------

    def _serve_callbacks_then_close_producer(self) -> None:
        """Runs on the producer's thread: calls the callbacks of producer and admin client until :meth:`close`, then
        fails the records that are not durable yet, and closes the producer."""
        while not self._closing.is_set():
            self._producer.poll(PRODUCER_POLL_S)
            self._admin.poll(0)
        # Fail the outstanding records now, because no later delivery report can reach their callers.
        self._producer.purge()
        self._producer.flush(PRODUCER_POLL_S)
        self._producer.close()
        # The admin client has no close: librdkafka ends its threads with the last reference.
        del self._admin

    async def _run_on_admin_thread(self, call: Callable[[], ResultT]) -> ResultT:
        """Run ``call``, a blocking call of the admin client, on the thread for such calls; return the result."""
        return await asyncio.get_running_loop().run_in_executor(self._admin_thread, call)

    async def _create_topic_if_missing_and_allowed(
        self, topic: str, partitions: int, replication_factor: int, setting_key: str
    ) -> None:
        """Create the topic. Does nothing if the topic exists, or if this worker may not create topics.

        :raises WorldError: when the topic cannot be created.
        """
        new_topic = NewTopic(topic, partitions, replication_factor, config={"cleanup.policy": "compact"})
        try:
            created_futures = self._admin.create_topics([new_topic], request_timeout=self._request_timeout_s)
            await asyncio.wrap_future(created_futures[topic])
        except KafkaException as error:
            code = error.args[0].code()
            # A worker that may not create topics can use a topic that an operator has created: the next request shows
            # whether the topic exists.
            if code in _AUTHORIZATION_ERRORS:
                return
            if code == KafkaError.INVALID_REPLICATION_FACTOR:
                raise WorldError(
                    f"topic {topic} cannot be created with {replication_factor} replicas: {error.args[0].str()}; set "
                    f"{setting_key.removesuffix('.topic')}.replication.factor to at most the number of brokers"
                ) from None
            if code != KafkaError.TOPIC_ALREADY_EXISTS:
                raise self.to_world_error(f"cannot create topic {topic}", error) from None

    async def _wait_for_leaders_and_count_partitions(self, topic: str) -> int:
        """The number of partitions of the topic. Waits until every partition has a leader, which takes a moment for a
        new topic.

        :raises WorldError: when the topic cannot be described, or does not exist or lacks a leader after
            ``request_timeout_ms``.
        """
        deadline_s = asyncio.get_running_loop().time() + self._request_timeout_s
        while True:
            try:
                metadata = await self._run_on_admin_thread(
                    lambda: self._admin.list_topics(topic, self._request_timeout_s)
                )
            except KafkaException as error:
                raise self.to_world_error(f"cannot describe topic {topic}", error) from None
            topic_metadata = metadata.topics[topic]
            if (
                topic_metadata.error is None
                and topic_metadata.partitions
                and all(partition.leader >= 0 for partition in topic_metadata.partitions.values())
            ):
                return len(topic_metadata.partitions)
            if asyncio.get_running_loop().time() > deadline_s:
                reason = topic_metadata.error.str() if topic_metadata.error is not None else "a partition has no leader"
                raise WorldError(
                    f"topic {topic} does not exist and could not be created, or cannot be used: {reason}; check that "
                    "the topic exists and that each of its partitions has a leader"
                )
            await asyncio.sleep(0.1)

    async def _check_cleanup_policy_if_describable(self, topic: str, setting_key: str) -> None:
        """Check that no policy of the topic deletes records, as a worker of Kafka Connect does when it starts.
        Not checked if this worker may not describe configs, or the brokers cannot.

        :raises WorldError: when the topic has another cleanup.policy than compact, or its configs cannot be described.
        """
        resource = ConfigResource(ResourceType.TOPIC, topic)
        try:
            config_futures = self._admin.describe_configs([resource], request_timeout=self._request_timeout_s)
            entries: Mapping[str, ConfigEntry] = await asyncio.wrap_future(config_futures[resource])
        except KafkaException as error:
            if error.args[0].code() in (*_AUTHORIZATION_ERRORS, *_UNSUPPORTED_ERRORS):
                return
            raise self.to_world_error(f"cannot describe the configs of topic {topic}", error) from None
        policy = (entries["cleanup.policy"].value if "cleanup.policy" in entries else None) or ""
        # Without any policy, which Kafka allows, the topic keeps all records.
        if {one.strip() for one in policy.split(",")} - {"", "compact"}:
            tool = f"--bootstrap-server {self._servers}"
            raise WorldError(
                f"topic {topic} has cleanup.policy={policy}, which would delete records that are needed: set it to "
                f"compact by `kafka-configs.sh {tool} --alter --entity-type topics --entity-name {topic} --add-config "
                f"cleanup.policy=compact`; or, if the topic has no records, delete it by `kafka-topics.sh {tool} "
                f"--delete --topic {topic}`, and the worker creates it correctly; or name another topic as "
                f"{setting_key}"
            )


_AUTHORIZATION_ERRORS = (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED)
"""The error codes if the access rules do not allow a request to this worker."""
_NEW_LEADER_ERRORS = (
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
)
"""The errors of a partition whose leader is new: for a moment after the creation of a topic, a client may know a leader
that does not know itself yet that it is the leader."""
_UNSUPPORTED_ERRORS = (KafkaError._UNSUPPORTED_FEATURE, KafkaError.UNSUPPORTED_VERSION)
"""The error codes if the brokers do not support a request."""


class TopicLog:
    """Appends records to one topic and reads them (the seam `Log`). Created by
    :meth:`TopicsClient.open_or_create_log`. A position is the offset after a record; with several partitions, the
    position of the log is the greatest of the partitions' positions, and its end the greatest of their end offsets.
    :meth:`close` only ends the running :meth:`follow` calls; appends remain possible until
    :meth:`TopicsClient.close`."""

    def __init__(self, topics: TopicsClient, topic: str, partition_count: int) -> None:
        self.topic = topic
        self._topics = topics
        self._partition_count = partition_count
        self._readers: set[TopicReader] = set()
        self._in_flight_slots = asyncio.Semaphore(RECORDS_IN_FLIGHT_MAX)
        """The number of records that may still be passed to the producer."""
        self._own_transaction_offset: int | None = None
        """The offset of the last record of this worker's last transaction whose commit has begun."""

    def store_last_own_transaction_offset(self, last_offset: int) -> None:
        """Store, for :meth:`end_offset`, that this worker is about to commit a transaction whose last record has the
        offset ``last_offset``."""
        self._own_transaction_offset = last_offset

    async def append(self, lines: Sequence[NewTopicRecord]) -> int:
        """Append ``lines`` and wait until all are durable on all in-sync replicas. Returns the offset of the last
        record, plus 1; with several partitions, the greatest of these numbers; 0 if ``lines`` is empty.

        While no broker can be reached, the append waits, for each record at most `DELIVERY_TIMEOUT_MS`. A record whose
        response was lost is sent again, so the topic may contain the record twice in succession.

        :raises WorldError: when a record could not be written in time, when it is unknown whether a record was written,
            or after :meth:`TopicsClient.close`. The other records may have been written.
        """
        loop = asyncio.get_running_loop()
        deliveries: list[asyncio.Future[int | WorldError]] = []
        try:
            for record in lines:
                delivery: asyncio.Future[int | WorldError] = loop.create_future()
                deliveries.append(delivery)
                await self._in_flight_slots.acquire()
                try:
                    self._topics.produce(self.topic, record, self._delivery_callback(delivery, loop))
                except WorldError:
                    self._in_flight_slots.release()
                    raise
            end = 0
            for delivery in deliveries:
                offset = await delivery
                if isinstance(offset, WorldError):
                    raise offset
                end = max(end, offset + 1)
            return end
        finally:
            for delivery in deliveries:
                delivery.cancel()

    async def end_position(self) -> int:
        """The end of the topic, as a value of ``LogProgress.position``: that of a reader that has read all durable,
        committed records. With several partitions it is the greatest of their end offsets.

        The marker of this worker's own last transaction is not counted if no other record follows it: then a write need
        not wait until a reader has read the marker.

        :raises WorldError: when a leader of the topic's partitions does not respond in time, or refuses the request.
        """
        end_offset = max((await self._topics.end_offsets(self.topic, self._partition_count)).values())
        if self._own_transaction_offset is not None and end_offset == self._own_transaction_offset + 2:
            # What follows the last record of this worker's own transaction is the marker of that transaction: the end
            # is beyond it, so the transaction has ended before the end. A reader reports its position after a marker
            # only with the next response of the broker, for which a write would wait.
            return end_offset - 1
        return end_offset

    async def topic_id(self) -> bytes:
        """The topic id, 16 bytes.

        :raises WorldError: when the topic cannot be described.
        """
        return await self._topics.topic_id(self.topic)

    async def follow(self) -> AsyncGenerator[LogProgress, None]:
        """Read the topic from its beginning, without end. Yields a `LogProgress` with the next new records, or for an
        advance of the position without a record (a transaction marker). ``completes_first_read`` is True in exactly one
        of them: when the reader has reached the end that the topic had when the reader was opened. While no broker
        responds, nothing is yielded.

        :raises WorldError: when records that follow those already yielded were deleted, or the log was closed.
        """
        reader = self._topics.open_reader(self.topic, self._partition_count)
        self._readers.add(reader)
        try:
            end_offsets = await self._end_offsets_with_retries(reader)
            has_reached_end, last_position = False, LogPosition(0)
            while True:
                records = await reader.poll_next_records()
                position = LogPosition(max(reader.positions.values()))
                is_at_end = not has_reached_end and all(
                    reader.positions[number] >= end for number, end in end_offsets.items()
                )
                if records or position > last_position or is_at_end:
                    yield LogProgress(records=records, position=position, completes_first_read=is_at_end)
                has_reached_end, last_position = has_reached_end or is_at_end, position
        finally:
            self._readers.discard(reader)
            await reader.close()

    async def close(self) -> None:
        """Close the readers of all running :meth:`follow`, which then raise WorldError. Appends remain possible until
        :meth:`TopicsClient.close`. Safe to call twice."""
        for reader in list(self._readers):
            await reader.close()

    async def _end_offsets_with_retries(self, reader: TopicReader) -> Mapping[int, int]:
        """The current end offsets, by partition; after a failure, logs it and retries every second until the brokers
        respond.

        :raises WorldError: when ``reader`` is closed while the brokers do not respond.
        """
        while True:
            try:
                return await self._topics.end_offsets(self.topic, self._partition_count)
            except WorldError as error:
                if reader.is_closed:
                    raise
                logger.warning("%s; retrying", error)
                await asyncio.sleep(1)

    def _delivery_callback(
        self, delivery: asyncio.Future[int | WorldError], loop: asyncio.AbstractEventLoop
    ) -> Callable[[KafkaError | None, Message], None]:
        """A callback for the delivery report of one record. The callback runs on the producer's thread; on the event
        loop ``loop`` it completes ``delivery`` with the record's offset or the error."""

        def complete_delivery(offset_or_error: int | WorldError) -> None:
            self._in_flight_slots.release()
            if not delivery.done():
                delivery.set_result(offset_or_error)

        def on_delivery_report(error: KafkaError | None, message: Message) -> None:
            offset = message.offset()
            if error is not None or offset is None:
                failure = self._topics.to_world_error(
                    f"cannot write to topic {self.topic}", error or KafkaError(KafkaError._FAIL)
                )
                loop.call_soon_threadsafe(complete_delivery, failure)
            else:
                self._topics.log_recovery_if_failure_was_logged()
                loop.call_soon_threadsafe(complete_delivery, offset)

        return on_delivery_report


def _ignore_error(_error: KafkaError) -> None:
    """Ignore an error of the admin client: the producer, which has the same brokers, logs it."""
