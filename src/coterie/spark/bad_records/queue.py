"""Writes the bad rows of a task to a topic or a folder by a separate sink, before the good rows of the batch.

Used for destinations that the connector's sink does not write together with the good rows (:attr:`Sink.holds`). The
separate sink has its own record of committed batches, so that it commits a replayed batch once. But the bad rows and
the good rows of a batch are two commits.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from coterie.nouns.errors import ConfigError, UnreachableError, WorldError
from coterie.nouns.jobs import ConnectorTaskId
from coterie.spark.bad_records.keys import (
    PATH,
    REPLICATION,
    TABLE,
    TOLERANCE,
    TOPIC,
    DeadLetters,
    Dropped,
    ToFolder,
    ToTable,
    ToTopic,
    tolerance_of,
)
from coterie.spark.bad_records.letters import file_letters, record_parts
from coterie.spark.converters import Format
from coterie.spark.end_config import SINK, EndConfig
from coterie.spark.fence import FencedError
from coterie.spark.jars import missing
from coterie.spark.seams import Batch, Sink, Staged, TaskLineage
from coterie.spark.sinks.files import FileSink, bad_folder
from coterie.spark.sinks.kafka import KafkaSink
from coterie.spark.sinks.kafka_target import DEFINITION as KAFKA_KEYS
from coterie.spark.sinks.kafka_target import OVERRIDE

LEDGER_SUFFIX = "-dead-letters"
"""Suffix that is appended to ``ledger.topic``: name of the compacted topic that contains the last committed batch of
each task that writes bad records to a topic."""
LEDGER = "ledger.topic"


class DeadLetterQueue:
    """A sink for bad rows. ``key``: the config key of the destination, which errors name. ``shape``: returns the
    columns that the sink writes for the bad rows of a task."""

    def __init__(self, key: str, sink: Sink, shape: Callable[[DataFrame, ConnectorTaskId], DataFrame]) -> None:
        self._key = key
        self._sink = sink
        self._shape = shape

    def take_over(self, lineage: TaskLineage, start: int) -> None:
        """See :meth:`Sink.take_over`."""
        with self._named():
            self._sink.take_over(lineage, start)

    def stage(self, batch: Batch) -> Staged:
        """See :meth:`Sink.stage`; the rows of ``batch`` are bad rows."""
        with self._named():
            staged = self._sink.stage(replace(batch, rows=self._shape(batch.rows, batch.lineage.task)))
        return _StagedLetters(staged, self._named)

    def close(self) -> None:
        """See :meth:`Sink.close`."""
        self._sink.close()

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except FencedError:
            raise
        except UnreachableError as error:
            raise UnreachableError(self._sentence(str(error))) from error
        except WorldError as error:
            raise WorldError(self._sentence(str(error))) from error
        except OSError as error:
            # Not a permanent failure: at the next start the folder may be usable.
            raise OSError(error.errno, self._sentence(error.strerror or str(error))) from error

    def _sentence(self, said: str) -> str:
        return said if self._key in said else f"{self._key}: {said}"


class _StagedLetters:
    """A staged batch of bad rows; its errors also name the config key of the destination."""

    def __init__(self, staged: Staged, named: Callable[[], AbstractContextManager[None]]) -> None:
        self._staged = staged
        self._named = named

    def put_in_place(self) -> None:
        """See :meth:`Staged.put_in_place`."""
        with self._named():
            self._staged.put_in_place()

    def drop(self) -> None:
        """See :meth:`Staged.drop`."""
        self._staged.drop()


def queue_of(letters: DeadLetters, config: Mapping[str, str], worker: Mapping[str, str]) -> DeadLetterQueue | None:
    """The dead letter queue of a task's config; None when bad rows are dropped.

    :raises ConfigError: when only the connector's sink could write to this kind of destination.
    """
    match letters:
        case Dropped():
            return None
        case ToFolder(path=path):
            return DeadLetterQueue(PATH, FileSink(folder=bad_folder(path), rotation=None, options={}), file_letters)
        case ToTopic() as to:
            sink = KafkaSink.of(_topic_end(to, config, worker))
            return DeadLetterQueue(TOPIC, sink, lambda bad, task: _records(bad, to, task))
        case ToTable():
            raise ConfigError(
                {TABLE: [f"{TABLE} cannot be used: the sink writes to no database; use PostgresSink, or set {PATH}"]}
            )


def place_of(letters: DeadLetters, config: Mapping[str, str]) -> dict[str, str]:
    """The values of the keys that identify the destination of bad records and the queue's record of committed batches.
    Empty when bad records are dropped.

    :raises ConfigError: when a value is not valid; the error names the key.
    """
    match letters:
        case Dropped():
            return {}
        case ToTopic(topic=topic):
            return {TOPIC: topic, LEDGER: topic_keys(config)[LEDGER]}
        case ToFolder(path=path):
            return {PATH: str(path)}
        case ToTable(schema=schema, table=table):
            return {TABLE: table if schema is None else f"{schema}.{table}"}


def topic_keys(config: Mapping[str, str]) -> dict[str, str]:
    """The keys in a connector's config, in addition to ``errors.*``, with which the queue writes to a topic:
    ``ledger.topic`` and ``producer.override.*``.

    :raises ConfigError: when a value is not valid; the error names the key.
    """
    own = EndConfig(config=config, prefix=SINK, is_prefix_optional=True)
    overrides = {OVERRIDE + name: value for name, value in own.under(OVERRIDE).items()}
    return {LEDGER: own.read(KAFKA_KEYS, LEDGER, str), **overrides}


def errors_of(
    spark: SparkSession, letters: DeadLetters, config: Mapping[str, str], worker: Mapping[str, str]
) -> dict[str, list[str]]:
    """Errors, by the user's key, of the queue's destination. Waits some seconds at most for a server.

    :raises ConfigError: see :func:`queue_of`.
    """
    match letters:
        case Dropped():
            return {}
        case ToFolder(path=path):
            sentence = bad_folder(path).misfit()
            return {} if sentence is None else {PATH: [f"{PATH}={sentence}"]}
        case ToTopic():
            if (sentence := missing(spark, "kafka")) is not None:
                return {TOPIC: [sentence]}
            return KafkaSink.validate(spark, _topic_end(letters, config, worker))
        case ToTable():
            queue_of(letters, config, worker)
            return {}


def retire(config: Mapping[str, str], lineages: Sequence[TaskLineage]) -> None:
    """See :meth:`Sink.retire`; for the folder of bad records that ``config`` names, if it names one.

    A file sink keeps the commit markers of its bad records in its own work folder, and not in the folder of bad
    records.
    """
    tolerance = tolerance_of(config)
    if tolerance is not None and isinstance(tolerance.letters, ToFolder):
        bad_folder(tolerance.letters.path).retire(lineages)


def _topic_end(letters: ToTopic, config: Mapping[str, str], worker: Mapping[str, str]) -> EndConfig:
    """The config of the Kafka sink that writes bad records. It contains the topic under the user's keys, so that errors
    of this sink name these keys.

    The ledger topic differs from that of the connector's own sink, which may also be a Kafka sink: with one ledger
    topic both sinks would have the same transactional id.
    """
    bytes_ = Format.BYTES.value
    users = topic_keys(config)
    keys = {
        **users,
        TOLERANCE: "all",
        TOPIC: letters.topic,
        REPLICATION: str(letters.replication_factor),
        LEDGER: users[LEDGER] + LEDGER_SUFFIX,
        "key.converter": bytes_,
        "value.converter": bytes_,
    }
    return EndConfig(config=keys, prefix=SINK, is_prefix_optional=True, worker=worker)


def _records(bad: DataFrame, letters: ToTopic, task: ConnectorTaskId) -> DataFrame:
    parts = {
        "topic": F.lit(letters.topic),
        **record_parts(F.col, task, has_context=letters.has_context),
    }
    return bad.select(*(column.alias(name) for name, column in parts.items()))
