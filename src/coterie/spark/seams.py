"""The interfaces of the data plane: the methods of a source and of a sink.

A plug-in is a class. Its class methods belong to a connector: its keys, the validation of its config, its split. ``of``
creates an object of the class from a task's config; the object reads or writes for one start of that task.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol, Self

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from coterie.config.definition import Definition
from coterie.nouns.errors import CoterieError
from coterie.nouns.jobs import ConnectorTaskId
from coterie.spark.bad_records.keys import DeadLetters
from coterie.spark.bad_records.sifted import Sifter
from coterie.spark.end_config import EndConfig
from coterie.spark.generations.split import SplitFunction
from coterie.spark.generations.stores import PositionStore
from coterie.spark.positions import Positions
from coterie.spark.rotation import Rotation

PARTITION_BYTES = 32 << 20
"""Approximate maximum of a Spark partition's input. When the driver writes the rows, it holds the rows of two Spark
partitions at a time."""
SMALL_BATCH_ROWS = 20_000
SMALL_BATCH_BYTES = 8 << 20
"""Limits of a small batch. The driver writes a small batch by Arrow with less CPU time than Spark's own writers (1.7 to
8 times less for a batch of 100 rows), and its rows fit into the driver's memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The input of one task: ``index`` is the task's number, from 0 to ``count`` - 1."""

    index: int
    count: int
    parts: tuple[str, ...]
    """The source partitions that this task reads, as :meth:`Source.split` assigned them."""
    function: SplitFunction


class ReadAgainError(CoterieError):
    """A batch is not read, because one of its Spark partitions would be too large for memory. The next start of the
    query on the same checkpoint reads the batch in smaller Spark partitions."""


class Source(Protocol):
    """Reads the input of one task. The task's input (:class:`Share`) is fixed for the lifetime of its checkpoint."""

    free_prefixes: ClassVar[tuple[str, ...]]
    """Prefixes of keys whose rest the user chooses: ``option.``, ``consumer.override.``."""
    identity: ClassVar[tuple[str, ...]]
    """The keys that, with the source partitions, determine what a task reads. A batch in flight of a closed checkpoint
    generation is read with the values of its own generation."""
    access: ClassVar[tuple[str, ...]]
    """The keys that determine to which system the identity keys refer; they include passwords and options."""
    split_function: ClassVar[SplitFunction]
    """The function that divides the input of the source partitions between the tasks."""
    has_fixed_split: ClassVar[bool]
    """Whether the positions of one split cannot be used in another split, so that the number of tasks never changes."""
    sifts_bad_records: ClassVar[bool]
    """Whether :meth:`read` returns rows with the error columns of ``bad_records/hidden.py`` if the config contains
    ``errors.tolerance=all``. A record that does not convert is then a bad row, and does not fail the batch."""
    store: ClassVar[PositionStore]
    """Reads the positions of a task's checkpoint, and writes them into a new checkpoint."""
    can_rotate: ClassVar[bool]
    """Whether :meth:`read` can delay batches until enough rows are waiting, as the sink's :class:`Rotation` requires.
    """

    @classmethod
    def definition(cls, config: EndConfig) -> Definition:
        """The keys of this source, without ``source.``. They may depend on ``config``."""
        ...

    @classmethod
    def validate(cls, spark: SparkSession, config: EndConfig) -> dict[str, list[str]]:
        """Errors, by the user's key, that the definition cannot detect: options, columns, an unreachable server.

        Called when the definition detects no error. Waits some seconds at most for a server. Columns whose key is among
        :meth:`open_keys` are not checked: a second call checks them with the values of :meth:`infer`.
        """
        ...

    @classmethod
    def open_keys(cls, config: EndConfig) -> Sequence[str]:
        """The keys that ``config`` does not set and for which :meth:`infer` finds a value: the columns of the input."""
        ...

    @classmethod
    def infer(cls, spark: SparkSession, config: EndConfig) -> Mapping[str, str]:
        """A value for each of :meth:`open_keys`, inferred from the existing input. All tasks of a checkpoint generation
        have these values, and later generations keep them. Called when :meth:`validate` returns no error.

        :raises ConfigError: when there is no input, or Spark cannot read it; the error names the key to set.
        :raises WorldError: when the source cannot be reached.
        """
        ...

    @classmethod
    def parts(cls, config: EndConfig) -> Sequence[str]:
        """The names of the existing source partitions.

        :raises ConfigError: when a value is not valid; the error names the key.
        :raises WorldError: when the source cannot be reached.
        """
        ...

    @classmethod
    def split(cls, parts: Sequence[str], tasks_max: int) -> Sequence[Sequence[str]]:
        """The source partitions of each task, for ``tasks_max`` tasks at most."""
        ...

    @classmethod
    def starts(cls, config: EndConfig, parts: Sequence[str], *, is_first: bool) -> Positions:
        """The initial positions of the source partitions ``parts``, which were never read. A source partition that is
        missing in the result begins at Spark's default.

        ``is_first``: the connector is new. A source partition that is added later is read from its beginning.

        :raises WorldError: when the source cannot be reached.
        """
        ...

    @classmethod
    def of(cls, config: EndConfig, share: Share) -> Self:
        """:raises ConfigError: when a value is not valid; the error names the key."""
        ...

    def schema(self, spark: SparkSession) -> StructType:
        """The columns of :meth:`read`.

        :raises ConfigError: when Spark cannot parse them.
        """
        ...

    def read(self, spark: SparkSession, checkpoint: Path, rotation: Rotation | None) -> DataFrame:
        """The stream of this task's rows. Called before each start of the query on ``checkpoint``, which may have no
        batches. A replayed batch has the same rows. The size of every batch is bounded.

        :raises ConfigError: when a value is not valid; the error names the key.
        :raises WorldError: when the task cannot resume from this checkpoint.
        """
        ...

    def is_small(self, spark: SparkSession, checkpoint: Path, batch_id: int) -> bool:
        """Whether a batch's rows fit into the driver's memory by its plan: at most :data:`SMALL_BATCH_ROWS` rows and
        about :data:`SMALL_BATCH_BYTES` bytes of input. Counts no rows.

        :raises ReadAgainError: when a Spark partition would be too large; the next :meth:`read` uses smaller ones.
        """
        ...

    def check_plan(self, checkpoint: Path, batch_id: int) -> None:
        """Called before a planned batch is read.

        :raises WorldError: when the batch must not be read.
        """
        ...

    def check_read(self, spark: SparkSession, checkpoint: Path, batch_id: int) -> None:
        """Called after a batch was read, before the sink commits it.

        :raises WorldError: when the rows read differ from the batch's plan.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskLineage:
    """A task and the lineage of its checkpoint: batch ids are unique in a lineage, and repeat in other lineages."""

    task: ConnectorTaskId
    lineage: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One batch for a sink. :meth:`Staged.put_in_place` commits all of its rows or none.

    A replay has the same rows, the same lineage and the same id. If an expression of the user is not deterministic, two
    evaluations may classify different rows as bad.
    """

    lineage: TaskLineage
    batch_id: int
    rows: DataFrame
    """The rows, with the columns of :meth:`Sink.shape`."""
    is_small: bool
    """Whether the rows may be collected on the driver; see :meth:`Source.is_small`."""
    sifter: Sifter | None = None
    """Separates the batch's good and bad rows, for a sink that writes both in one transaction (:attr:`Sink.holds`). The
    sink then takes its rows from ``sifter`` and not from ``rows``, the good rows of another evaluation."""


class Staged(Protocol):
    """A batch that the sink has written and not committed: readers cannot read it yet."""

    def put_in_place(self) -> None:
        """Commit the batch in the sink, atomically. Of all copies of a batch only the first is committed. The others
        are dropped without an error.

        :raises FencedError: when another owner has taken over in the sink.
        :raises WorldError: when the commit failed.
        """
        ...

    def drop(self) -> None:
        """Remove the staged data of this copy, whether it was committed or not. Raises nothing."""
        ...


class Sink(Protocol):
    """The place to which a task writes its batches. A sink does not use the worker's fence: the query keeps the fence
    open around :meth:`Staged.put_in_place`."""

    free_prefixes: ClassVar[tuple[str, ...]]
    """See :attr:`Source.free_prefixes`."""
    identity: ClassVar[tuple[str, ...]]
    """The keys that determine where rows are written and their meaning there. A changed value requires a new checkpoint
    generation. A batch in flight of a closed generation is written with the values of its own generation."""
    access: ClassVar[tuple[str, ...]]
    """See :attr:`Source.access`."""
    holds: ClassVar[tuple[type[DeadLetters], ...]]
    """The kinds of dead letter destination to which the sink writes in the same commit as the good rows of a batch. For
    these kinds :meth:`stage` receives a batch with a :attr:`Batch.sifter`; the sink's config names the destination.

    For other kinds the batch contains only the good rows. A separate sink commits the bad rows before them."""

    @property
    def rotation(self) -> Rotation | None:
        """How long batches wait for rows; None for a sink that writes small batches as efficiently as large ones."""
        ...

    @classmethod
    def definition(cls, config: EndConfig) -> Definition:
        """The keys of this sink, without ``sink.``. They may depend on ``config``."""
        ...

    @classmethod
    def validate(cls, spark: SparkSession, config: EndConfig) -> dict[str, list[str]]:
        """See :meth:`Source.validate`."""
        ...

    @classmethod
    def is_exactly_once(cls, config: EndConfig) -> bool:
        """Whether a batch's rows are written exactly once, also when this owner or another owner replays the batch."""
        ...

    @classmethod
    def of(cls, config: EndConfig) -> Self:
        """:raises ConfigError: when a value is not valid; the error names the key."""
        ...

    def shape(self, rows: DataFrame) -> DataFrame:
        """``rows`` with the columns that the sink's batches have: the columns of the value, and those that the sink
        takes from the metadata columns (:mod:`coterie.spark.record`). Called before each start of the query. The
        function must transform each row separately.

        :raises ConfigError: when ``rows`` lack a column that a key of the sink requires; the error names the key.
        """
        ...

    def take_over(self, lineage: TaskLineage, start: int) -> None:
        """Remove the data that earlier owners of this task have staged, and end their open transactions on a server, so
        that earlier owners commit nothing any more. Called before each start of the query, on this object each time.

        ``start`` is the number of the task's start (:attr:`HeldCheckpoint.starts`): earlier owners have lower numbers.

        :raises WorldError: when the sink cannot be reached.
        """
        ...

    @classmethod
    def retire(cls, config: EndConfig, lineages: Sequence[TaskLineage]) -> None:
        """Remove the data that the sink keeps for these lineages to reject a second copy of a batch. Idempotent.

        All batches of the lineages are committed, and no start will use them any more. A batch of an owner that
        continues after a long suspension must still not be committed afterwards.

        ``config``: the config of the checkpoint generation to which the lineages belong.

        :raises ConfigError, WorldError, OSError: when the data cannot be removed now; the caller tries again later.
        """
        ...

    def stage(self, batch: Batch) -> Staged:
        """Write a batch without making it visible to readers.

        :raises FencedError: when another owner has taken over in the sink.
        :raises WorldError: when the sink rejects the rows, or cannot be reached in time.
        """
        ...

    def close(self) -> None:
        """Close connections. Called when the task's query has ended. Raises nothing."""
        ...
