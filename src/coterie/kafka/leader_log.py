"""The config topic as the group's leader writes it: each append is one transaction of a producer whose transactional id
all workers of the group share.

Initialising the producer (InitProducerId) aborts the transaction that an earlier leader has left open, and fences that
leader's producer. librdkafka's transactional calls block, so they run on a thread.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from coterie.engine.log import NewTopicRecord
from coterie.kafka.client_log import ClientFailureLogger
from coterie.nouns.errors import RecordsDiscardedError, WorldError, WriterFencedError
from coterie.nouns.ids import GroupId

ResultT = TypeVar("ResultT")

CALL_TIMEOUT_S = 30.0
"""The time limit of opening the log, and of each of the two parts of an append: sending the records, and the commit."""
CALL_STEP_S = 0.5
"""How long one call of librdkafka blocks at most; a log that is being closed ends its thread within this time."""
TRANSACTION_TIMEOUT_MIN_MS = 1_000
"""librdkafka's lower limit of ``transaction.timeout.ms``."""

_FENCED = (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED)
"""The error codes of a producer that another one has fenced, or whose transaction has timed out."""


def transactional_id(group_id: GroupId) -> str:
    """The transactional id that all workers of the group share: the same as Kafka Connect's, so that a leader of
    Connect with exactly-once support and a leader of Coterie fence each other."""
    return f"connect-cluster-{group_id}"


def missing_write_permission_message(transactional_id: str) -> str:
    """The error message for a worker whose user may not write with ``transactional_id``."""
    return (
        f"the brokers do not allow this worker to write with the transactional id {transactional_id}, with which "
        "the leader of the group writes to the config topic: give the worker's user the operations Write and Describe "
        "for this transactional id"
    )


class LeaderTopicLog:
    """Writes one topic as the leader of the group (the seam `LeaderLog`): each append is one transaction, and returns
    the log's position after it, that is the offset of its last record plus 1. Created by `TopicsClient.new_leader_log`,
    closed by `TopicsClient.close`."""

    def __init__(
        self,
        client_config: Mapping[str, Any],
        topic: str,
        transactional_id: str,
        *,
        before_commit: Callable[[int], None],
    ) -> None:
        """``client_config`` is the librdkafka config of the worker's handles. ``before_commit`` is called on the event
        loop, in the order of the transactions, with the offset of the last record of each transaction that is about to
        be committed: before any lookup of the topic's end can find the end of this transaction."""
        self._client_config = dict(client_config)
        self._topic = topic
        self._transactional_id = transactional_id
        self._before_commit = before_commit
        self._log = ClientFailureLogger(f"writing topic {topic} as the leader")
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"coterie-leader-{topic}")
        self._closing = threading.Event()
        # Used on the thread only.
        self._producer: Producer | None = None
        """The initialised producer; None before the first :meth:`open`, and after an error."""

    async def open(self, *, transaction_timeout_ms: int) -> None:
        """Make a new producer and initialise it, which fences the producers of all other workers of the group. The
        brokers abort a transaction that is open for longer than ``transaction_timeout_ms`` (at least
        ``TRANSACTION_TIMEOUT_MIN_MS``).

        :raises WorldError: when the brokers do not respond within ``CALL_TIMEOUT_S``, or do not allow this worker to
            use the transactional id; or after :meth:`close`.
        """
        await self._run_on_thread(lambda: self.open_blocking(max(transaction_timeout_ms, TRANSACTION_TIMEOUT_MIN_MS)))

    async def append(self, records: Sequence[NewTopicRecord]) -> int:
        """Append ``records`` in one transaction, and wait until it is committed. Returns the offset of the last record,
        plus 1.

        :raises WriterFencedError: when another worker has opened the log after this worker, or the transaction has
            timed out; none of the records is ever read.
        :raises RecordsDiscardedError: when a record could not be written; none of the records is ever read. The log
            must be opened again.
        :raises WorldError: when it is unknown whether the records were written, or after :meth:`close`. The log must be
            opened again.
        """
        loop = asyncio.get_running_loop()

        def announce_commit(last_offset: int) -> None:
            loop.call_soon_threadsafe(self._before_commit, last_offset)

        last_offset = await self._run_on_thread(
            lambda: self.append_blocking_and_return_last_offset(records, announce_commit)
        )
        return last_offset + 1

    async def close(self) -> None:
        """Close the producer and end the thread; unfinished calls raise WorldError. Safe to call twice."""
        if self._closing.is_set():
            return
        self._closing.set()
        producer_closed = asyncio.get_running_loop().run_in_executor(self._thread, self._drop_producer)
        self._thread.shutdown(wait=False)
        await asyncio.shield(producer_closed)
        self._thread.shutdown()

    # -- on the thread ------------------------------------------------------------------------------------------------

    def open_blocking(self, transaction_timeout_ms: int) -> None:
        """Replace the producer by a new one, and initialise it. :meth:`open` calls this method on the log's thread,
        which it blocks.

        :raises WorldError: as :meth:`open`.
        """
        self._drop_producer()
        producer = Producer(
            {
                **self._client_config,
                **self._log.callback_settings(),
                "transactional.id": self._transactional_id,
                "transaction.timeout.ms": transaction_timeout_ms,
                "linger.ms": 0,
                "partitioner": "murmur2_random",
            }
        )
        try:
            self._retry_short_calls_until_timeout(producer.init_transactions)
        except KafkaException as error:
            _discard_producer(producer)
            if _librdkafka_error_of(error).code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
                raise WorldError(missing_write_permission_message(self._transactional_id)) from None
            raise WorldError(
                f"cannot open topic {self._topic} with transactional.id={self._transactional_id}: "
                f"{_librdkafka_error_text(error)}; check that the brokers run"
            ) from None
        self._producer = producer

    def append_blocking_and_return_last_offset(
        self, records: Sequence[NewTopicRecord], announce_commit: Callable[[int], None]
    ) -> int:
        """Write ``records`` in one transaction; returns the offset of the last one, with which ``announce_commit`` is
        called before the commit. :meth:`append` calls this method on the log's thread, which it blocks. After an error
        the producer is dropped, and the log must be opened again.

        :raises WriterFencedError: as :meth:`append`.
        :raises RecordsDiscardedError: as :meth:`append`.
        :raises WorldError: as :meth:`append`, and when the log is not open.
        """
        producer = self._producer
        if producer is None:
            raise WorldError(
                f"topic {self._topic} is not open for writing as the group's leader: it was never opened, or an "
                "earlier write has failed; it must be opened again before the next write"
            )
        assert records, "a transaction has records"
        try:
            offset = self._begin_transaction_and_send(producer, records)
            announce_commit(offset)
            self.commit_blocking(producer)
        except WorldError:
            self._drop_producer()
            raise
        self._log.on_response()
        return offset

    def _begin_transaction_and_send(self, producer: Producer, records: Sequence[NewTopicRecord]) -> int:
        """Begin a transaction and send ``records``; returns the offset of the last one.

        :raises WriterFencedError: when another worker has opened the log after this worker, or the transaction has
            timed out.
        :raises RecordsDiscardedError: when a record could not be sent. The transaction is then aborted, at the latest
            by its time limit: none of the records is ever read.
        """
        offsets: list[int] = []
        errors: list[KafkaError] = []

        def on_delivery(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                errors.append(error)
                return
            offset = message.offset()
            assert offset is not None
            offsets.append(offset)

        try:
            producer.begin_transaction()
            for record in records:
                producer.produce(self._topic, value=record.value, key=record.key, on_delivery=on_delivery)
            self._retry_short_calls_until_timeout(lambda timeout_s: _flush_producer(producer, timeout_s))
        except (KafkaException, BufferError, SystemError) as error:
            errors.insert(0, _librdkafka_error_of(error))
        if not errors:
            return max(offsets)
        if any(error.code() in _FENCED for error in errors):
            raise self._make_fenced_error(errors[0])
        raise RecordsDiscardedError(
            f"cannot write to topic {self._topic}: {errors[0].str()}; check that the brokers run"
        )

    def commit_blocking(self, producer: Producer) -> None:
        """Commit the open transaction of ``producer``; blocks the log's thread until it is committed.

        :raises WorldError: when the commit has failed, or its result is unknown.
        """
        try:
            self._retry_short_calls_until_timeout(producer.commit_transaction)
        except KafkaException as error:
            # Also if this producer is fenced: an earlier attempt may have succeeded, with its response lost.
            raise WorldError(
                f"it is unknown whether the records were written to topic {self._topic}: "
                f"{_librdkafka_error_text(error)}; before you repeat a change, read whether it has taken effect"
            ) from None

    def _make_fenced_error(self, error: KafkaError) -> WriterFencedError:
        """The exception for an append that the brokers have refused because another worker has opened the log, or
        because the transaction has timed out."""
        return WriterFencedError(
            f"another worker writes to topic {self._topic} with transactional.id={self._transactional_id}, or the "
            f"transaction has timed out: {error.str()}"
        )

    def _retry_short_calls_until_timeout(self, call: Callable[[float], object]) -> None:
        """Call ``call`` with the timeout :data:`CALL_STEP_S`, again and again until it returns without an error.

        :raises KafkaException: the last error, when ``call`` has not succeeded within ``CALL_TIMEOUT_S``, when the log
            is being closed, and when another attempt cannot succeed.
        """
        deadline_s = time.monotonic() + CALL_TIMEOUT_S
        while True:
            try:
                call(CALL_STEP_S)
            except KafkaException as error:
                if (
                    not _librdkafka_error_of(error).retriable()
                    or self._closing.is_set()
                    or time.monotonic() > deadline_s
                ):
                    raise
            else:
                return

    def _drop_producer(self) -> None:
        if self._producer is not None:
            _discard_producer(self._producer)
            self._producer = None

    async def _run_on_thread(self, call: Callable[[], ResultT]) -> ResultT:
        """Run a blocking call on the log's thread; return the result.

        :raises WorldError: after :meth:`close`.
        """
        if self._closing.is_set():
            raise WorldError(f"the Kafka client of topic {self._topic} is closed, because this worker is shutting down")
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)


def _flush_producer(producer: Producer, timeout_s: float) -> None:
    """Wait until all records are delivered or have failed.

    :raises KafkaException: when neither is so for a record after ``timeout_s``. The error is marked as retriable, so
        that :meth:`LeaderTopicLog._retry_short_calls_until_timeout` waits again.
    """
    if producer.flush(timeout_s):
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "records are not delivered", False, True, False))


def _discard_producer(producer: Producer) -> None:
    """Drop the producer's undelivered records. librdkafka ends the producer's threads when Python drops the last
    reference to the producer. An open transaction stays open: the next producer with this transactional id aborts the
    transaction, or the brokers do when it times out."""
    # Not `close`, which would try to abort the transaction.
    producer.purge()
    with suppress(KafkaException, SystemError):
        producer.flush(0)


def _librdkafka_error_of(error: KafkaException | BufferError | SystemError) -> KafkaError:
    """The error of librdkafka in an exception; for an exception without one, an error with the code ``_FAIL`` and the
    exception's text. A fatal error that librdkafka reports while it calls back raises a SystemError, whose cause is the
    fatal error."""
    cause: BaseException = error
    while not isinstance(cause, KafkaException) and cause.__cause__ is not None:
        cause = cause.__cause__
    reason = cause.args[0] if cause.args else cause
    return reason if isinstance(reason, KafkaError) else KafkaError(KafkaError._FAIL, str(reason))


def _librdkafka_error_text(error: KafkaException) -> str:
    return _librdkafka_error_of(error).str()
