"""The interfaces of the data plane: the methods of a source and of a sink.

A plug-in is a class. Its class methods belong to a connector: its keys, the validation of its config, its split. ``of``
creates an object of the class from a task's config; the object reads or writes for one start of that task.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol, Self, runtime_checkable

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from coterie.config.definition import ConfigDef
from coterie.nouns.connector_offsets import ConnectorOffset
from coterie.nouns.errors import CoterieError
from coterie.nouns.jobs import ConnectorTaskId
from coterie.spark.bad_records.keys import DeadLetterDestination
from coterie.spark.bad_records.separator import BadRowSeparator
from coterie.spark.generations.split import SplitFunction
from coterie.spark.generations.stores import PositionStore
from coterie.spark.positions import Positions
from coterie.spark.prefixed_config import PrefixedConfig
from coterie.spark.rotation import Rotation

SPARK_PARTITION_BYTES_MAX = 32 << 20
"""Approximate maximum size of the input of one Spark partition, in bytes. When the driver writes the rows, it holds the
rows of two Spark partitions at a time."""
SMALL_BATCH_ROWS_MAX = 20_000
"""Maximum number of rows of a small batch; see :data:`SMALL_BATCH_BYTES_MAX`."""
SMALL_BATCH_BYTES_MAX = 8 << 20
"""Approximate maximum size of the input of a small batch, in bytes. The rows of a small batch fit into the driver's
memory, and the driver writes them by Arrow with less CPU time than Spark's own writers (1.7 to 8 times less for a batch
of 100 rows)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskInput:
    """The part of a connector's input that one task reads."""

    task_number: int
    """The task's number, from 0 to ``task_count`` - 1."""
    task_count: int
    """The number of the connector's tasks."""
    source_partitions: tuple[str, ...]
    """The names of the source partitions that this task reads, as :meth:`Source.divide_partitions` assigned them. If
    :attr:`split_function` is a hash function, they may be digests of the names
    (:meth:`Split.with_digests_if_hash_split`)."""
    split_function: SplitFunction
    """The function that divides the input of the source partitions between the tasks."""


class TooManyTasksError(CoterieError):
    """A source returns more tasks than the ``tasks.max`` of its connector; the message is Connect's."""


class BatchTooLargeError(CoterieError):
    """A planned batch is not read, because one of its Spark partitions would be too large for memory. The next start of
    the query on the same checkpoint reads the batch in smaller Spark partitions."""


class Source(Protocol):
    """Reads the input of one task (:class:`TaskInput`). The input is fixed for the lifetime of the task's checkpoint.
    Keys have names without the prefix ``source.``."""

    free_key_prefixes: ClassVar[tuple[str, ...]]
    """Prefixes of keys whose rest the user chooses, such as ``option.`` and ``consumer.override.``. The empty prefix
    allows every key."""
    identity_keys: ClassVar[tuple[str, ...]]
    """The keys that, with the source partitions, determine what a task reads. A batch in flight (planned and not
    committed) of a closed checkpoint generation is read with the values of these keys in that generation's config."""
    connection_keys: ClassVar[tuple[str, ...]]
    """The keys that determine to which system (cluster, server) the identity keys refer; they include passwords and
    options."""
    split_function: ClassVar[SplitFunction]
    """The function that divides the input of the source partitions between the tasks."""
    has_fixed_split: ClassVar[bool]
    """Whether the positions of one split cannot be used in another split. The number of a connector's tasks then never
    changes after the first split."""
    reports_bad_records: ClassVar[bool]
    """Whether :meth:`read` returns rows with the error columns of :mod:`coterie.spark.bad_records.error_columns` if the
    config contains ``errors.tolerance=all``. A record that does not convert is then a bad row, and does not fail the
    batch."""
    position_store: ClassVar[PositionStore]
    """Reads the positions of a task's checkpoint, and writes positions into a new checkpoint."""
    can_wait_for_rows: ClassVar[bool]
    """Whether :meth:`read` can delay batches until enough rows are waiting, as the sink's :class:`Rotation` requires.
    """

    @classmethod
    def definition(cls, config: PrefixedConfig) -> ConfigDef:
        """The keys of this source. They may depend on the values in ``config``."""
        ...

    @classmethod
    def validate(cls, spark: SparkSession, config: PrefixedConfig) -> dict[str, list[str]]:
        """Errors, by the user's key, that the definition cannot detect: invalid options or columns, a server that
        cannot be reached. Empty when there is none.

        Called when the definition detects no error. Waits some seconds at most for a server. Columns whose key is among
        :meth:`keys_to_infer` are not checked: a second call checks them with the values of :meth:`infer_values`.
        """
        ...

    @classmethod
    def keys_to_infer(cls, config: PrefixedConfig) -> Sequence[str]:
        """The keys that ``config`` does not set and for which :meth:`infer_values` finds a value: the columns of the
        input."""
        ...

    @classmethod
    def infer_values(cls, spark: SparkSession, config: PrefixedConfig) -> Mapping[str, str]:
        """A value for each of :meth:`keys_to_infer`, by key, inferred from the existing input; an empty mapping if
        there is no such key. All tasks of a checkpoint generation have these values. A later generation that reads one
        of the same source partitions keeps them. Called when :meth:`validate` returns no error.

        :raises ConfigError: when there is no input, or Spark cannot read the input; the error names the key to set.
        :raises WorldError: when the source cannot be reached.
        """
        ...

    @classmethod
    def list_source_partitions(cls, config: PrefixedConfig) -> Sequence[str]:
        """The names of the source partitions that exist now. A source partition is the smallest part of the input that
        one task reads: a Kafka partition, a folder.

        :raises ConfigError: when a value is not valid; the error names the key.
        :raises WorldError: when the source cannot be reached.
        """
        ...

    @classmethod
    def divide_partitions(cls, source_partitions: Sequence[str], tasks_max: int) -> Sequence[Sequence[str]]:
        """The source partitions of each task, by task number, for ``tasks_max`` tasks at most."""
        ...

    @classmethod
    def initial_positions(
        cls, config: PrefixedConfig, source_partitions: Sequence[str], *, is_new_connector: bool
    ) -> Positions:
        """The positions at which to begin with ``source_partitions``, which were never read, or whose positions a user
        has removed. A source partition that is missing in the result begins at Spark's default.

        ``is_new_connector``: True for the first split of a new connector, and for source partitions whose positions a
        user has removed. False for source partitions that are added to an existing connector: these are read from their
        beginning.

        :raises ConfigError: when the config defines no position for a source partition; the error names the key.
        :raises WorldError: when the source cannot be reached.
        """
        ...

    @classmethod
    def to_offsets(cls, positions: Positions) -> Sequence[ConnectorOffset]:
        """``positions`` as the REST API returns them (KIP-875), sorted by partition."""
        ...

    @classmethod
    def parse_offsets(cls, config: PrefixedConfig, offsets: Sequence[ConnectorOffset]) -> Mapping[str, int | None]:
        """The changes of positions that ``offsets``, which a client has sent, request: by key of the position, the new
        position; None removes the position. The next start reads input without a position as a new connector does.

        :raises OffsetsRefusedError: when this source cannot use an offset or a partition; the message is for the
            client.
        :raises WorldError: when the source cannot be reached.
        """
        ...

    @classmethod
    def of(cls, config: PrefixedConfig, task_input: TaskInput) -> Self:
        """The object that reads ``task_input`` for one start of a task, or one that only validation uses.

        :raises ConfigError: when a value is not valid; the error names the key.
        """
        ...

    def schema(self, spark: SparkSession) -> StructType:
        """The columns that the rows of :meth:`read` have, with the hidden ones of :mod:`coterie.spark.record_columns`,
        without error columns.

        :raises ConfigError: when a function of the user that builds the rows is not allowed, does not exist, or fails.
        :raises PySparkException: when Spark cannot parse the columns in the config, which the validation rejects.
        """
        ...

    def read(self, spark: SparkSession, checkpoint: Path, rotation: Rotation | None) -> DataFrame:
        """The stream of this task's rows, which continues after the last batch in ``checkpoint``, or begins at the
        initial positions if there is no batch. Called before each start of the query on ``checkpoint``. A replayed
        batch has the same rows. The size of every batch is bounded. ``rotation``: how long a batch waits for more rows;
        None: it does not wait.

        :raises ConfigError: when a value is not valid; the error names the key.
        :raises WorldError: when the task cannot resume from this checkpoint.
        :raises PySparkException, Py4JError: when Spark cannot make the stream.
        """
        ...

    def is_batch_small(self, spark: SparkSession, checkpoint: Path, batch_id: int) -> bool:
        """Whether the planned batch ``batch_id`` is small (:data:`SMALL_BATCH_ROWS_MAX`,
        :data:`SMALL_BATCH_BYTES_MAX`), so that all its rows fit into the driver's memory. False also when this is
        unknown. Estimated from the plan in ``checkpoint`` and, depending on the source, from a few sample records or
        the metadata of the files: the batch itself is not read, but the source may be contacted.

        :raises BatchTooLargeError: when a Spark partition would be too large. The query must then be started again:
            the :meth:`read` of its next start uses smaller Spark partitions for the same batch.
        :raises UnreachableError, WorldError: when the source has to be contacted and does not respond as needed.
        """
        ...

    def has_bounded_spark_partitions(self, spark: SparkSession, checkpoint: Path, batch_id: int) -> bool:
        """Whether each Spark partition of the planned batch ``batch_id`` has at most about twice
        :data:`SPARK_PARTITION_BYTES_MAX` of input, so that the driver may hold two of them. Judged by the plan in
        ``checkpoint``, after :meth:`is_batch_small` was False. False if the plan does not contain the sizes: Spark then
        stores the rows on disk for a sink whose driver reads them."""
        ...

    def check_before_read(self, checkpoint: Path, batch_id: int) -> None:
        """Check that the planned batch ``batch_id`` may be read. Called before each read of a batch.

        :raises WorldError: when the batch must not be read.
        """
        ...

    def check_after_read(self, spark: SparkSession, checkpoint: Path, batch_id: int) -> None:
        """Check that the rows that were read are those of the batch's plan. Called after the sink has staged the batch
        and before it commits the batch.

        :raises WorldError: when the rows that were read differ from the plan.
        """
        ...


@runtime_checkable
class TopicUser(Protocol):
    """A source that reads topics of Kafka, or a sink that writes to them."""

    @property
    def used_topics(self) -> frozenset[str]:
        """The topics of the records that the task reads or writes, as far as its config or its source partitions name
        them. As in Kafka Connect (KIP-558), the topic of bad records is not one of them, nor is a topic in which the
        task keeps its progress, such as a ledger."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCheckpointLineage:
    """A task and the lineage of its checkpoint: batch ids are unique in a lineage, and repeat in other lineages."""

    task: ConnectorTaskId
    lineage_id: str
    """The id of the checkpoint's contents (:attr:`HeldCheckpoint.lineage_id`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One batch for a sink. In an exactly-once sink :meth:`StagedBatch.commit` commits all of its rows or none.

    A replay of the batch has the same rows, the same lineage and the same id. If an expression of the user is not
    deterministic, two evaluations of the rows may classify different rows as bad.
    """

    task_lineage: TaskCheckpointLineage
    batch_id: int
    rows: DataFrame
    """The rows, with the columns of :meth:`Sink.to_sink_columns`."""
    is_small: bool
    """Whether all rows may be collected on the driver at once: an estimate from before the rows are read
    (:meth:`Source.is_batch_small`)."""
    compute_has_bounded_spark_partitions: Callable[[], bool] = lambda: False
    """Returns the result of :meth:`Source.has_bounded_spark_partitions` for the batch."""
    bad_row_separator_for_atomic_sink: BadRowSeparator | None = None
    """Separates the batch's good and bad rows, for a sink that writes both in one transaction
    (:attr:`Sink.atomic_dead_letter_destinations`); else None. Such a sink takes its rows from this separator and not
    from :attr:`rows`, which are the good rows of another evaluation."""

    @property
    def has_bounded_spark_partitions(self) -> bool:
        """Whether the driver may hold the rows of two Spark partitions: see
        :meth:`Source.has_bounded_spark_partitions`. The source computes it at each call, so only a sink
        whose driver reads the rows calls it."""
        return self.is_small or self.compute_has_bounded_spark_partitions()


class StagedBatch(Protocol):
    """A batch that the sink has prepared and not committed: readers of the sink do not see it yet. Some sinks have
    already written a copy of the rows; others write the rows only in :meth:`commit`."""

    def commit(self) -> None:
        """Commit the batch in the sink: in an exactly-once sink atomically, and without effect and without an error if
        another copy of the same batch was committed before. In another sink the rows become visible one after the
        other, also if another copy was committed before.

        :raises FencedError: when another owner has taken over in the sink.
        :raises WorldError, OSError, PySparkException, Py4JError: when the commit failed.
        """
        ...

    def clean_up(self) -> None:
        """Remove what remains of the staged data of this copy, after its commit or instead of it. Raises nothing."""
        ...


@runtime_checkable
class HasStartPositions(Protocol):
    """A source class whose config may contain the positions at which a new connector begins."""

    @classmethod
    def start_position_errors(cls, config: PrefixedConfig) -> dict[str, list[str]]:
        """Errors in the positions at which ``config`` lets a new connector begin, by the user's key. Called for valid
        configs of connectors whose tasks have no checkpoint yet: later these keys have no effect."""
        ...


@runtime_checkable
class HasConsumerGroup(Protocol):
    """A source class whose positions are offsets in Kafka: Kafka's tools read them as those of a consumer group."""

    @classmethod
    def replace_group_offsets(cls, config: PrefixedConfig, positions: Positions) -> None:
        """Make ``positions`` the only offsets of the connector's consumer group.

        :raises WorldError: when the cluster cannot be reached or rejects the request.
        """
        ...


@runtime_checkable
class HasRecreatablePartitions(Protocol):
    """A source class whose input may be deleted and created again under its name. The new input is another source
    partition, but clients name both by the same partition of an offset."""

    @classmethod
    def former_partitions(cls, source_partitions: Iterable[str], known_partitions: Iterable[str]) -> frozenset[str]:
        """Those of ``known_partitions`` that are not in ``source_partitions``, and that clients name by the same
        partition of an offset as one of ``source_partitions``: the source partitions of deleted input."""
        ...


class Sink(Protocol):
    """The place to which a task writes its batches. Config keys have names without the prefix ``sink.``. A sink does
    not use the run's :class:`Fence`: the query calls :meth:`StagedBatch.commit` only while the fence is open."""

    free_key_prefixes: ClassVar[tuple[str, ...]]
    """Prefixes of keys whose rest the user chooses, such as ``option.``."""
    identity_keys: ClassVar[tuple[str, ...]]
    """The keys that determine where rows are written, and what rows mean there. A changed value requires a new
    checkpoint generation. A batch in flight (planned and not committed) of a closed generation is written with the
    values of these keys in that generation's config."""
    connection_keys: ClassVar[tuple[str, ...]]
    """The keys that determine to which system (cluster, server) the identity keys refer; they include passwords and
    options."""
    atomic_dead_letter_destinations: ClassVar[tuple[type[DeadLetterDestination], ...]]
    """The kinds of dead letter destination to which the sink writes in the same commit as the good rows of a batch. For
    these kinds :meth:`stage` receives a batch with a :attr:`Batch.bad_row_separator_for_atomic_sink`; the sink's config
    names the destination.

    For other kinds the batch contains only the good rows. A separate sink commits the bad rows before the good rows."""

    @property
    def rotation(self) -> Rotation | None:
        """How long batches wait for rows. None means that they do not wait: the sink's config sets no wait, or the sink
        writes small batches as efficiently as large ones."""
        ...

    @classmethod
    def definition(cls, config: PrefixedConfig) -> ConfigDef:
        """The keys of this sink. They may depend on the values in ``config``."""
        ...

    @classmethod
    def validate(cls, spark: SparkSession, config: PrefixedConfig) -> dict[str, list[str]]:
        """Errors, by the user's key, that the definition cannot detect; empty when there is none. Called when the
        definition detects no error. Waits some seconds at most for a server."""
        ...

    @classmethod
    def is_exactly_once(cls, config: PrefixedConfig) -> bool:
        """Whether, with this config, a batch's rows are written exactly once, also when this or another owner of the
        task replays the batch."""
        ...

    @classmethod
    def of(cls, config: PrefixedConfig) -> Self:
        """The object that writes the batches of one start of a task, or one that only validation uses.

        :raises ConfigError: when a value is not valid; the error names the key.
        """
        ...

    def to_sink_columns(self, rows: DataFrame) -> DataFrame:
        """``rows`` with the columns that the sink's batches have: the columns of the value, and those that the sink
        takes from the metadata columns (:mod:`coterie.spark.record_columns`). Called before each start of the query.
        Each result row must depend on one row only.

        :raises ConfigError: when ``rows`` lack a column that a key of the sink requires; the error names the key.
        """
        ...

    def take_over(self, lineage: TaskCheckpointLineage, task_start_number: int) -> None:
        """Remove the data that earlier owners of this task have staged, and end their open transactions on a server, so
        that earlier owners commit nothing any more. A sink that does not write exactly once (:meth:`is_exactly_once`)
        need not prevent their commits. Called on the same object before each start of the query, also before restarts.

        ``task_start_number`` is the number of the task's start (:attr:`HeldCheckpoint.task_start_number`): earlier
        owners have lower numbers.

        :raises FencedError: when a later start of the task has taken over in the sink.
        :raises WorldError, OSError: when the sink cannot be reached or used.
        """
        ...

    @classmethod
    def remove_deduplication_data(cls, config: PrefixedConfig, lineages: Sequence[TaskCheckpointLineage]) -> None:
        """Remove the data that the sink keeps for each of ``lineages`` to reject a second copy of a batch. Idempotent.

        All batches of the lineages are committed, and no start will use these lineages any more. Also after the removal
        the sink must reject a batch of an earlier owner whose process continues after a long suspension.

        ``config``: the config of the checkpoint generation to which the lineages belong.

        :raises ConfigError, WorldError, OSError: when the data cannot be removed now; the caller tries again later.
        """
        ...

    def stage(self, batch: Batch) -> StagedBatch:
        """Prepare the commit of a batch: write the rows without making them visible to readers, or leave the writing to
        :meth:`StagedBatch.commit`.

        :raises FencedError: when another owner has taken over in the sink.
        :raises WorldError: when the sink rejects the rows, or cannot be reached in time.
        :raises OSError, PySparkException, Py4JError: when a file cannot be written, or Spark cannot compute or write
            the rows.
        """
        ...

    def close(self) -> None:
        """Close connections; a call of another thread that waits for a server then fails. Called when the query is
        stopped, when its start has failed and when it has ended, possibly more than once. :meth:`take_over` opens the
        connections again for a restart. Raises nothing."""
        ...
