"""Compacted topics as logs, over librdkafka: one producer for all topics, and one consumer for each reader of a topic.

librdkafka has its own threads and returns results through blocking calls. So every handle here belongs to one thread
that makes those calls and passes the results to the event loop in batches. The event loop itself only makes calls that
return immediately.
"""

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicPartition
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
from coterie.engine.log import Line, NewLine
from coterie.kafka.client_log import ClientLog, logger
from coterie.kafka.follower import Follower
from coterie.kafka.security import PLAINTEXT, librdkafka_settings
from coterie.nouns.errors import WorldError

ResultT = TypeVar("ResultT")

DELIVERY_TIMEOUT_MS = 30_000
"""The same time limit as Kafka Connect has for a write to its config topic."""
LINES_IN_FLIGHT_MAX = 10_000
"""The maximum number of records of one log that wait for the broker; further appends wait."""
POLL_S = 0.2
"""How long a thread waits inside librdkafka before it checks whether it must end."""


class Topics:
    """The topics of a worker in one Kafka cluster. Must be closed after use, which also closes their logs."""

    def __init__(
        self,
        bootstrap_servers: Sequence[str],
        *,
        client_id: str,
        request_timeout_ms: int = 30_000,
        security: KafkaSecurity = PLAINTEXT,
    ) -> None:
        self._client: dict[str, Any] = {
            **librdkafka_settings(security),
            "bootstrap.servers": ",".join(bootstrap_servers),
            "client.id": client_id,
            # A short back-off, so that a broker that is reachable again is found before sessions end.
            "reconnect.backoff.ms": 50,
            "reconnect.backoff.max.ms": 500,
            "socket.nagle.disable": True,
            "log.connection.close": False,
        }
        self._servers = ",".join(bootstrap_servers)
        self._request_timeout_s = request_timeout_ms / 1000
        self._log = ClientLog(self._servers)
        # The producer logs the failures of both handles: they have the same brokers, and one thread serves both.
        self._admin = AdminClient(dict[str, Any](self._client, logger=self._log, error_cb=_unheard))
        self._producer = Producer(
            {
                **self._client,
                **self._log.settings(),
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
        self._asking = ThreadPoolExecutor(max_workers=1, thread_name_prefix="coterie-kafka-admin")
        self._delivering = ThreadPoolExecutor(max_workers=1, thread_name_prefix="coterie-kafka-producer")
        self._closing = threading.Event()
        self._delivered = self._delivering.submit(self._deliver)
        self._logs: list[TopicLog] = []

    async def open(
        self, topic: str, *, partitions: int, replication: int, key: str, ordered: bool = False
    ) -> "TopicLog":
        """The topic as a log. A missing topic is created, with ``cleanup.policy=compact``.

        ``partitions`` and ``replication`` may be -1 for the broker's default. ``key`` is the worker's setting that
        names the topic; errors contain it. An existing topic may have any number of partitions, unless the order of all
        its records matters (``ordered``): then it must have exactly one.

        :raises WorldError: when the topic cannot be created, has another cleanup.policy, or is ordered and has more
            than one partition.
        """
        await self._create(topic, partitions, replication, key)
        count = await self._partition_count(topic)
        if ordered and count != 1:
            raise WorldError(
                f"topic {topic} has {count} partitions, but the order of its records matters: "
                f"delete it and create it again with 1 partition, or name another topic as {key}"
            )
        await self._check_cleanup_policy(topic, key)
        log = TopicLog(self, topic, count)
        self._logs.append(log)
        return log

    async def cluster_id(self) -> str:
        """The id of the Kafka cluster.

        :raises WorldError: when no broker responds in time.
        """
        try:
            return await self._ask(lambda: self._admin.cluster_id(self._request_timeout_s))
        except KafkaException as error:
            raise self.error("cannot request the cluster's id", error) from None

    async def close(self) -> None:
        """End every thread and connection; unfinished appends fail. Safe to call twice."""
        for log in self._logs:
            await log.close()
        if self._closing.is_set():
            return
        self._closing.set()
        # A request may still run on the admin thread. Wait for a no-op that ends after it, so that the shutdown does
        # not block the event loop.
        await self._ask(lambda: None)
        await asyncio.wrap_future(self._delivered)
        self._delivering.shutdown()
        self._asking.shutdown()

    # -- for the logs -------------------------------------------------------------------------------------------------

    def error(self, what: str, error: KafkaException | KafkaError | BufferError) -> WorldError:
        reason = error.args[0] if isinstance(error, KafkaException) else error
        text = reason.str() if isinstance(reason, KafkaError) else str(reason)
        return WorldError(f"{what}: {text}; check that the brokers of bootstrap.servers={self._servers} run")

    def produce(self, topic: str, line: NewLine, delivered: Callable[[KafkaError | None, Message], None]) -> None:
        """Pass one record to the producer. ``delivered`` is called once, on the producer's thread.

        :raises WorldError: when the producer accepts no more records; then ``delivered`` is not called.
        """
        if self._closing.is_set():
            raise WorldError(f"topic {topic} is closed")
        try:
            self._producer.produce(topic, value=line.value, key=line.key, on_delivery=delivered)
        except (KafkaException, BufferError) as error:
            raise self.error(f"cannot write to topic {topic}", error) from None

    async def end_offsets(self, topic: str, partitions: int) -> Mapping[int, int]:
        """The offset after the last durable record, by partition.

        :raises WorldError: when a leader of the topic's partitions does not respond.
        """
        wanted = {TopicPartition(topic, number): OffsetSpec.latest() for number in range(partitions)}
        try:
            futures: Mapping[TopicPartition, Future[ListOffsetsResultInfo]]
            futures = self._admin.list_offsets(wanted, request_timeout=self._request_timeout_s)
            return {asked.partition: (await asyncio.wrap_future(end)).offset for asked, end in futures.items()}
        except KafkaException as error:
            raise self.error(f"cannot find the end of topic {topic}", error) from None

    def heard(self) -> None:
        """A record was delivered. Called on the producer's thread."""
        self._log.answered()

    def follower(self, topic: str, partitions: int) -> Follower:
        return Follower(self._client, topic, partitions)

    # -- helpers ------------------------------------------------------------------------------------------------------

    def _deliver(self) -> None:
        """The producer's thread: serves callbacks until the end."""
        while not self._closing.is_set():
            self._producer.poll(POLL_S)
            self._admin.poll(0)
        # Fail the outstanding records now, because no later delivery report can reach their callers.
        self._producer.purge()
        self._producer.flush(POLL_S)
        self._producer.close()
        # The admin client has no close: librdkafka ends its threads with the last reference.
        del self._admin

    async def _ask(self, call: Callable[[], ResultT]) -> ResultT:
        return await asyncio.get_running_loop().run_in_executor(self._asking, call)

    async def _create(self, topic: str, partitions: int, replication: int, key: str) -> None:
        wanted = NewTopic(topic, partitions, replication, config={"cleanup.policy": "compact"})
        try:
            created = self._admin.create_topics([wanted], request_timeout=self._request_timeout_s)
            await asyncio.wrap_future(created[topic])
        except KafkaException as error:
            code = error.args[0].code()
            # A worker that may not create topics can use a topic that an operator has created: the next request shows
            # whether the topic exists.
            if code in _NOT_ALLOWED:
                return
            if code == KafkaError.INVALID_REPLICATION_FACTOR:
                raise WorldError(
                    f"topic {topic} cannot be created with {replication} replicas: {error.args[0].str()}; set "
                    f"{key.removesuffix('.topic')}.replication.factor to at most the number of brokers"
                ) from None
            if code != KafkaError.TOPIC_ALREADY_EXISTS:
                raise self.error(f"cannot create topic {topic}", error) from None

    async def _partition_count(self, topic: str) -> int:
        """The number of partitions. Waits until every partition has a leader, which takes a moment for a new topic."""
        deadline_s = asyncio.get_running_loop().time() + self._request_timeout_s
        while True:
            try:
                metadata = await self._ask(lambda: self._admin.list_topics(topic, self._request_timeout_s))
            except KafkaException as error:
                raise self.error(f"cannot describe topic {topic}", error) from None
            found = metadata.topics[topic]
            if found.error is None and found.partitions and all(p.leader >= 0 for p in found.partitions.values()):
                return len(found.partitions)
            if asyncio.get_running_loop().time() > deadline_s:
                why = found.error.str() if found.error is not None else "a partition has no leader"
                raise WorldError(f"topic {topic} does not exist and could not be created, or cannot be used: {why}")
            await asyncio.sleep(0.1)

    async def _check_cleanup_policy(self, topic: str, key: str) -> None:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        try:
            described = self._admin.describe_configs([resource], request_timeout=self._request_timeout_s)
            entries: Mapping[str, ConfigEntry] = await asyncio.wrap_future(described[resource])
        except KafkaException as error:
            if error.args[0].code() in (*_NOT_ALLOWED, *_NOT_SERVED):
                return
            raise self.error(f"cannot describe the configs of topic {topic}", error) from None
        policy = entries["cleanup.policy"].value if "cleanup.policy" in entries else "compact"
        if policy != "compact":
            raise WorldError(
                f"topic {topic} has cleanup.policy={policy}, which would delete records that are needed: "
                f"set it to compact, or name another topic as {key}"
            )


_NOT_ALLOWED = (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED)
_NOT_SERVED = (KafkaError._UNSUPPORTED_FEATURE, KafkaError.UNSUPPORTED_VERSION)


class TopicLog:
    """One topic as a `Log`; created by :meth:`Topics.open`."""

    def __init__(self, topics: Topics, topic: str, partitions: int) -> None:
        self._topics = topics
        self._topic = topic
        self._partitions = partitions
        self._followers: set[Follower] = set()
        self._room = asyncio.Semaphore(LINES_IN_FLIGHT_MAX)

    async def append(self, lines: Sequence[NewLine]) -> int:
        """Append ``lines`` and wait until all are durable on all replicas; return the offset after the last one.

        While no broker can be reached, the append waits. A record whose response was lost is sent again, so the topic
        may contain it twice, one after the other.

        :raises WorldError: when the records could not be written in time, or when it is unknown whether they were.
        """
        loop = asyncio.get_running_loop()
        fates: list[asyncio.Future[int | WorldError]] = []
        try:
            for line in lines:
                fate: asyncio.Future[int | WorldError] = loop.create_future()
                fates.append(fate)
                await self._room.acquire()
                try:
                    self._topics.produce(self._topic, line, self._delivered(fate, loop))
                except WorldError:
                    self._room.release()
                    raise
            end = 0
            for fate in fates:
                offset = await fate
                if isinstance(offset, WorldError):
                    raise offset
                end = max(end, offset + 1)
            return end
        finally:
            for fate in fates:
                fate.cancel()

    async def end_offset(self) -> int:
        """The offset after the last durable record; with several partitions, the greatest of their end offsets.

        :raises WorldError: when a leader of the topic's partitions does not respond.
        """
        return max((await self._topics.end_offsets(self._topic, self._partitions)).values())

    async def follow(self) -> AsyncGenerator[Sequence[Line], None]:
        """Yield every record from the beginning, then every new record as it comes. Yields an empty sequence once, when
        all records that existed at the call have been yielded.

        :raises WorldError: when records were deleted from the topic before they were read, or the log was closed.
        """
        follower = self._topics.follower(self._topic, self._partitions)
        self._followers.add(follower)
        try:
            ends = await self._ends()
            at_end = False
            while True:
                lines = await follower.next_lines()
                if lines:
                    yield lines
                if not at_end and all(follower.positions[number] >= end for number, end in ends.items()):
                    at_end = True
                    yield ()
        finally:
            self._followers.discard(follower)
            await follower.close()

    async def close(self) -> None:
        """End all followers. Safe to call twice."""
        for follower in list(self._followers):
            await follower.close()

    async def _ends(self) -> Mapping[int, int]:
        """The current end offsets of the topic; retries until the brokers respond."""
        while True:
            try:
                return await self._topics.end_offsets(self._topic, self._partitions)
            except WorldError as error:
                logger.warning("%s; retrying", error)
                await asyncio.sleep(1)

    def _delivered(
        self, fate: asyncio.Future[int | WorldError], loop: asyncio.AbstractEventLoop
    ) -> Callable[[KafkaError | None, Message], None]:
        """A callback for the delivery report. It runs on the producer's thread and completes ``fate`` on the event
        loop."""

        def settle(outcome: int | WorldError) -> None:
            self._room.release()
            if not fate.done():
                fate.set_result(outcome)

        def delivered(error: KafkaError | None, message: Message) -> None:
            offset = message.offset()
            if error is not None or offset is None:
                failure = self._topics.error(f"topic {self._topic}", error or KafkaError(KafkaError._FAIL))
                loop.call_soon_threadsafe(settle, failure)
            else:
                self._topics.heard()
                loop.call_soon_threadsafe(settle, offset)

        return delivered


def _unheard(_error: KafkaError) -> None:
    """Ignore the error: another handle logs it."""
