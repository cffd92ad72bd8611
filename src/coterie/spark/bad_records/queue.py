"""Writes the bad rows of a task to a topic or a folder by a separate sink, before the good rows of the batch.

Used for destinations that the connector's sink does not write together with the good rows
(:attr:`Sink.atomic_dead_letter_destinations`). The separate sink has its own record of committed batches, so it commits
a replayed batch only once. But the bad rows and the good rows of a batch are two commits: if an expression is not
deterministic, a replay after the first commit may classify other rows as bad, and records are then lost or duplicated.

Only a folder of bad records has deduplication data to remove: a queue to a topic keeps one record for each task, like
every Kafka sink. A table of bad records is written by the connector's own sink, never by a queue.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from coterie.nouns.errors import ConfigError, UnreachableError, WorldError
from coterie.nouns.jobs import ConnectorTaskId
from coterie.spark.bad_records.dead_letters import dead_letter_record_columns_for_topic, dead_letter_rows_for_folder
from coterie.spark.bad_records.keys import (
    DEAD_LETTER_PATH_KEY,
    DEAD_LETTER_REPLICATION_KEY,
    DEAD_LETTER_TABLE_KEY,
    DEAD_LETTER_TOPIC_KEY,
    TOLERANCE_KEY,
    DeadLetterDestination,
    DeadLetterFolder,
    DeadLetterTable,
    DeadLetterTopic,
    NoDeadLetters,
    read_bad_record_settings,
)
from coterie.spark.converters import Format
from coterie.spark.jars import missing_jars_message
from coterie.spark.prefixed_config import SINK_PREFIX, PrefixedConfig
from coterie.spark.seams import Batch, Sink, StagedBatch, TaskCheckpointLineage
from coterie.spark.sinks.files import FileSink, bad_records_folder
from coterie.spark.sinks.kafka import KafkaSink
from coterie.spark.sinks.kafka_target import DEFINITION as KAFKA_KEYS
from coterie.spark.sinks.kafka_target import PRODUCER_OVERRIDE_PREFIX

DEAD_LETTER_LEDGER_SUFFIX = "-dead-letters"
"""The name of the queue's ledger topic is the value of ``ledger.topic`` with this suffix. This compacted topic contains
the last committed batch of each task that writes bad records to a topic."""
LEDGER_TOPIC_KEY = "ledger.topic"
"""The config key, without prefix, that names the ledger topic of the Kafka sink."""


class DeadLetterQueue:
    """Writes the bad rows of a task to their destination. The parameter ``sink`` is the sink that writes them.

    ``destination_key`` is the config key of the destination: each WorldError and OSError of ``sink`` is raised again
    with this key in its message. ``to_destination_columns`` converts bad rows of a task to the columns that ``sink``
    writes.
    """

    def __init__(
        self,
        destination_key: str,
        sink: Sink,
        to_destination_columns: Callable[[DataFrame, ConnectorTaskId], DataFrame],
    ) -> None:
        self._destination_key = destination_key
        self._sink = sink
        self._to_destination_columns = to_destination_columns

    def take_over(self, lineage: TaskCheckpointLineage, task_start_number: int) -> None:
        """Take over from earlier owners of the task in the destination of bad rows: :meth:`Sink.take_over` of its
        sink."""
        with self._adding_config_key_to_errors():
            self._sink.take_over(lineage, task_start_number)

    def stage(self, batch: Batch) -> StagedBatch:
        """Write the bad rows of a batch without making them visible to readers: :meth:`Sink.stage` of the destination's
        sink. The rows of ``batch`` have the columns of ``BAD_ROW_TYPE``."""
        with self._adding_config_key_to_errors():
            staged = self._sink.stage(
                replace(batch, rows=self._to_destination_columns(batch.rows, batch.task_lineage.task))
            )
        return _StagedDeadLetters(staged, self._adding_config_key_to_errors)

    def close(self) -> None:
        """Close the connections to the destination of bad rows. Raises nothing."""
        self._sink.close()

    @contextmanager
    def _adding_config_key_to_errors(self) -> Iterator[None]:
        """Context manager: a WorldError or OSError of the block is raised again with the config key of the destination
        in its message."""
        try:
            yield
        except UnreachableError as error:
            raise UnreachableError(self._message_with_config_key(str(error))) from error
        except WorldError as error:
            raise WorldError(self._message_with_config_key(str(error))) from error
        except OSError as error:
            # Not a permanent failure: at the next start the folder may be usable.
            raise OSError(error.errno, self._message_with_config_key(error.strerror or str(error))) from error

    def _message_with_config_key(self, message: str) -> str:
        """``message`` with the config key of the destination before it, unless ``message`` contains the key."""
        return message if self._destination_key in message else f"{self._destination_key}: {message}"


class _StagedDeadLetters:
    """A staged batch of bad rows, for which errors of the commit contain the config key of the destination."""

    def __init__(
        self, staged_batch: StagedBatch, adding_key_to_errors: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self._staged_batch = staged_batch
        self._name_key_in_errors = adding_key_to_errors

    def commit(self) -> None:
        """Commit the bad rows of the batch in their destination (:meth:`StagedBatch.commit`)."""
        with self._name_key_in_errors():
            self._staged_batch.commit()

    def clean_up(self) -> None:
        """Remove what remains of the staged bad rows. Raises nothing."""
        self._staged_batch.clean_up()


def make_dead_letter_queue_if_configured(
    destination: DeadLetterDestination, config: Mapping[str, str], worker_kafka_properties: Mapping[str, str]
) -> DeadLetterQueue | None:
    """The queue that writes bad rows to ``destination`` with a task's ``config``. None for :class:`NoDeadLetters`: bad
    rows are then written nowhere.

    :raises ConfigError: when ``destination`` is a table, to which only the connector's own sink could write; or when a
        value of a key is not valid.
    """
    match destination:
        case NoDeadLetters():
            return None
        case DeadLetterFolder(path=path):
            return DeadLetterQueue(
                DEAD_LETTER_PATH_KEY,
                FileSink(folder=bad_records_folder(path), rotation=None, options={}),
                dead_letter_rows_for_folder,
            )
        case DeadLetterTopic() as topic_destination:
            sink = KafkaSink.of(_dead_letter_sink_config(topic_destination, config, worker_kafka_properties))
            return DeadLetterQueue(
                DEAD_LETTER_TOPIC_KEY,
                sink,
                lambda bad_rows, task: _dead_letter_records(bad_rows, topic_destination, task),
            )
        case DeadLetterTable():
            raise ConfigError(
                {
                    DEAD_LETTER_TABLE_KEY: [
                        f"{DEAD_LETTER_TABLE_KEY} cannot be used: the sink writes to no database; use "
                        f"PostgresSink, or set {DEAD_LETTER_PATH_KEY}"
                    ]
                }
            )


def dead_letter_destination_identity(destination: DeadLetterDestination, config: Mapping[str, str]) -> dict[str, str]:
    """The values that identify ``destination``, by config key. For a topic they include ``ledger.topic``: that value
    determines where the queue's committed batches are stored. Empty for :class:`NoDeadLetters`.

    :raises ConfigError: when the value of ``ledger.topic`` is not valid; the error names the key.
    """
    match destination:
        case NoDeadLetters():
            return {}
        case DeadLetterTopic(topic=topic):
            return {
                DEAD_LETTER_TOPIC_KEY: topic,
                LEDGER_TOPIC_KEY: ledger_topic_and_producer_overrides(config)[LEDGER_TOPIC_KEY],
            }
        case DeadLetterFolder(path=path):
            return {DEAD_LETTER_PATH_KEY: str(path)}
        case DeadLetterTable(schema=schema, table=table):
            return {DEAD_LETTER_TABLE_KEY: table if schema is None else f"{schema}.{table}"}


def ledger_topic_and_producer_overrides(config: Mapping[str, str]) -> dict[str, str]:
    """The settings in a connector's config, besides ``errors.*``, with which the queue writes to a topic:
    ``ledger.topic`` (the default if it is not set) and all ``producer.override.*``. The keys of the result have these
    names, without the prefix ``sink.``.

    :raises ConfigError: when the value of ``ledger.topic`` is not valid; the error names the key.
    """
    sink_config = PrefixedConfig(config=config, prefix=SINK_PREFIX, is_prefix_optional=True)
    overrides = {
        PRODUCER_OVERRIDE_PREFIX + name: value
        for name, value in sink_config.values_under_prefix(PRODUCER_OVERRIDE_PREFIX).items()
    }
    return {LEDGER_TOPIC_KEY: sink_config.required_value(KAFKA_KEYS, LEDGER_TOPIC_KEY, str), **overrides}


def find_dead_letter_destination_errors(
    spark: SparkSession,
    destination: DeadLetterDestination,
    config: Mapping[str, str],
    worker_kafka_properties: Mapping[str, str],
) -> dict[str, list[str]]:
    """Error messages about ``destination``, the destination of a :class:`DeadLetterQueue`, by the key that the user
    must correct; empty when no error was found. Waits some seconds at most for a Kafka cluster. Nothing is written.

    :raises ConfigError: see :func:`make_dead_letter_queue_if_configured`.
    """
    match destination:
        case NoDeadLetters():
            return {}
        case DeadLetterFolder(path=path):
            message = bad_records_folder(path).incompatibility_message()
            return {} if message is None else {DEAD_LETTER_PATH_KEY: [f"{DEAD_LETTER_PATH_KEY}={message}"]}
        case DeadLetterTopic():
            if (message := missing_jars_message(spark, "kafka")) is not None:
                return {DEAD_LETTER_TOPIC_KEY: [message]}
            return KafkaSink.validate(spark, _dead_letter_sink_config(destination, config, worker_kafka_properties))
        case DeadLetterTable():
            make_dead_letter_queue_if_configured(destination, config, worker_kafka_properties)
            return {}


def remove_deduplication_data(config: Mapping[str, str], lineages: Sequence[TaskCheckpointLineage]) -> None:
    """If ``config`` names a folder of bad records, remove from its work folder the data by which second copies of the
    batches of ``lineages`` are rejected (the commit markers). See :meth:`Sink.remove_deduplication_data`.

    If the connector's sink is a file sink, nothing is removed: the folder of bad records then has no markers, because
    the markers in the work folder of the sink apply to the bad records too.

    :raises ConfigError, WorldError, OSError: see :meth:`Sink.remove_deduplication_data`.
    """
    tolerance = read_bad_record_settings(config)
    if tolerance is not None and isinstance(tolerance.dead_letter_destination, DeadLetterFolder):
        bad_records_folder(tolerance.dead_letter_destination.path).remove_deduplication_data(lineages)


def _dead_letter_sink_config(
    destination: DeadLetterTopic, config: Mapping[str, str], worker_kafka_properties: Mapping[str, str]
) -> PrefixedConfig:
    """The config of the Kafka sink that writes bad records. The config has no key ``topic``: the user's keys
    ``errors.deadletterqueue.topic.*`` name the topic, so that errors of this sink name these keys.

    The ledger topic differs from that of the connector's own sink, which may also be a Kafka sink: with one ledger
    topic both sinks would have the same transactional id.
    """
    bytes_converter = Format.BYTES.value
    user_settings = ledger_topic_and_producer_overrides(config)
    sink_config = {
        **user_settings,
        TOLERANCE_KEY: "all",
        DEAD_LETTER_TOPIC_KEY: destination.topic,
        DEAD_LETTER_REPLICATION_KEY: str(destination.replication_factor),
        LEDGER_TOPIC_KEY: user_settings[LEDGER_TOPIC_KEY] + DEAD_LETTER_LEDGER_SUFFIX,
        "key.converter": bytes_converter,
        "value.converter": bytes_converter,
    }
    return PrefixedConfig(
        config=sink_config, prefix=SINK_PREFIX, is_prefix_optional=True, worker_kafka_properties=worker_kafka_properties
    )


def _dead_letter_records(bad_rows: DataFrame, destination: DeadLetterTopic, task: ConnectorTaskId) -> DataFrame:
    """Convert ``bad_rows``, of ``task``, to records of the topic of ``destination``."""
    record_columns = {
        "topic": F.lit(destination.topic),
        **dead_letter_record_columns_for_topic(F.col, task, has_context=destination.has_context_headers),
    }
    return bad_rows.select(*(column.alias(name) for name, column in record_columns.items()))
