"""The seams of the data plane: what a source and a sink of tasks have to offer.

A plug-in is a class. Its class methods answer for a connector: which keys it has, whether a config is valid, how it is
split. An object of the class is made with ``of`` from one task's config and reads or writes for one start of that task.
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
"""About how much input one of Spark's partitions may have: where the driver writes the rows itself, it holds those of
two partitions at a time."""
SMALL_BATCH_ROWS = 20_000
SMALL_BATCH_BYTES = 8 << 20
"""What leaves through Arrow on the driver at less CPU than through Spark's own writers (1.7 to 8 times less a batch of
100 rows), and is no danger to its memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Which task of its connector a task is: ``index`` counts from 0 to ``count`` - 1."""

    index: int
    count: int
    parts: tuple[str, ...]
    """The parts of the source that this task reads, as :meth:`Source.split` gave them to it."""
    function: SplitFunction


class ReadAgainError(CoterieError):
    """A batch is not read, because the query that planned it would hold too much of it at once. The next start of the
    query on the same checkpoint reads the batch in smaller partitions."""


class Source(Protocol):
    """One task's share of what a connector reads. The share never changes while the task's checkpoint lives."""

    free_prefixes: ClassVar[tuple[str, ...]]
    """Starts of keys whose rest the user chooses: ``option.``, ``consumer.override.``."""
    identity: ClassVar[tuple[str, ...]]
    """The keys that say, beside its parts, what a task reads. A batch in flight of a closed generation of checkpoints
    is read with the values of its own generation."""
    access: ClassVar[tuple[str, ...]]
    """The keys that say where the others lead, a password or an option among them."""
    split_function: ClassVar[SplitFunction]
    """How the rows of the parts are told apart by task."""
    has_fixed_split: ClassVar[bool]
    """Whether the positions of one split mean nothing to another, so that the number of tasks never changes."""
    sifts_bad_records: ClassVar[bool]
    """Whether :meth:`read` gives rows the hidden columns of ``bad_records/hidden.py`` where the config has
    ``errors.tolerance=all``, so that a record that does not convert is a bad row and fails no batch."""
    store: ClassVar[PositionStore]
    """Reads the positions of a task's checkpoint, and writes them into a new one."""
    can_rotate: ClassVar[bool]
    """Whether :meth:`read` has batches wait for rows, as the sink's :class:`Rotation` asks for."""

    @classmethod
    def definition(cls, config: EndConfig) -> Definition:
        """The keys of this source, without ``source.``; ``config`` may decide which there are."""
        ...

    @classmethod
    def validate(cls, spark: SparkSession, config: EndConfig) -> dict[str, list[str]]:
        """Errors by the user's key that the definition cannot find: options, columns, a server that cannot be reached.

        Called when the definition finds none. Waits for a server for some seconds at most. Columns whose key is among
        :meth:`open_keys` are left out: they are looked at by a second call, with what :meth:`infer` has found.
        """
        ...

    @classmethod
    def open_keys(cls, config: EndConfig) -> Sequence[str]:
        """The keys that ``config`` leaves out and that :meth:`infer` finds a value for: the columns of what is read."""
        ...

    @classmethod
    def infer(cls, spark: SparkSession, config: EndConfig) -> Mapping[str, str]:
        """A value for each of :meth:`open_keys`, from what there is to read now. All tasks of a generation have these
        values, and later generations keep them. Called when :meth:`validate` finds nothing wrong.

        :raises ConfigError: when there is nothing to find a value from, or Spark cannot read it; names the key to set.
        :raises WorldError: when the source cannot be reached.
        """
        ...

    @classmethod
    def parts(cls, config: EndConfig) -> Sequence[str]:
        """The names of the parts that exist now.

        :raises ConfigError: when a value is not valid; names its key.
        :raises WorldError: when the source cannot be reached.
        """
        ...

    @classmethod
    def split(cls, parts: Sequence[str], tasks_max: int) -> Sequence[Sequence[str]]:
        """The parts of each of at most ``tasks_max`` tasks."""
        ...

    @classmethod
    def starts(cls, config: EndConfig, parts: Sequence[str], *, is_first: bool) -> Positions:
        """Where to begin with ``parts``, which were never read; those that are left out begin where Spark begins.

        ``is_first`` is true of all parts of a new connector. A part that is found later begins at its beginning.

        :raises WorldError: when the source cannot be reached.
        """
        ...

    @classmethod
    def of(cls, config: EndConfig, share: Share) -> Self:
        """:raises ConfigError: when a value is not valid; names its key."""
        ...

    def schema(self, spark: SparkSession) -> StructType:
        """The columns of :meth:`read`.

        :raises ConfigError: when Spark does not understand them.
        """
        ...

    def read(self, spark: SparkSession, checkpoint: Path, rotation: Rotation | None) -> DataFrame:
        """The stream of this task's rows; called before each start of the query on ``checkpoint``, which may be without
        batches. A replayed batch has the same rows. Every batch is bounded.

        :raises ConfigError: when a value is not valid; names its key.
        :raises WorldError: when this share cannot go on there.
        """
        ...

    def is_small(self, spark: SparkSession, checkpoint: Path, batch_id: int) -> bool:
        """Whether the plan of a batch says that its rows fit into the driver's memory: at most
        :data:`SMALL_BATCH_ROWS` rows and about :data:`SMALL_BATCH_BYTES` bytes of input. No row is counted.

        :raises ReadAgainError: when one of Spark's partitions would be too large; :meth:`read` makes smaller ones.
        """
        ...

    def check_plan(self, checkpoint: Path, batch_id: int) -> None:
        """Called before a batch that was planned is read.

        :raises WorldError: when it must not be read.
        """
        ...

    def check_read(self, spark: SparkSession, checkpoint: Path, batch_id: int) -> None:
        """Called after a batch was read, before the sink puts it in place.

        :raises WorldError: when it was not read as it was planned.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskLineage:
    """A task, and one life of its checkpoint: batch ids count within it, and no other life repeats them."""

    task: ConnectorTaskId
    lineage: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What one batch brings to its sink, whole: one :meth:`Staged.put_in_place` shows all of it or nothing.

    A replay brings the same rows under the same lineage and id. Which of them are bad may differ between two
    evaluations, where an expression of the user is not deterministic.
    """

    lineage: TaskLineage
    batch_id: int
    rows: DataFrame
    """Their columns are those that :meth:`Sink.shape` gave them."""
    is_small: bool
    """Whether the rows may be collected on the driver; see :meth:`Source.is_small`."""
    sifter: Sifter | None = None
    """Divides the batch into good and bad rows, for a sink that :attr:`Sink.holds` both; it then takes its rows from
    here, and not from ``rows``, which are the good ones of another evaluation."""


class Staged(Protocol):
    """A batch that the sink has written and that readers do not see yet."""

    def put_in_place(self) -> None:
        """Take the one decisive step: of all copies of a batch, only the first put in place counts. The others are
        dropped without an error.

        :raises FencedError: when another owner has taken over in the sink.
        :raises WorldError: when the step failed.
        """
        ...

    def drop(self) -> None:
        """Remove what is left of the copy, put in place or not. Raises nothing."""
        ...


class Sink(Protocol):
    """Where a task writes its batches. It knows nothing of the worker's fence: the query holds that around
    :meth:`Staged.put_in_place`."""

    free_prefixes: ClassVar[tuple[str, ...]]
    """See :attr:`Source.free_prefixes`."""
    identity: ClassVar[tuple[str, ...]]
    """The keys that say where rows are written and what they mean there. Another value of one makes another generation
    of checkpoints; a batch in flight of a closed generation is written with the values of its own."""
    access: ClassVar[tuple[str, ...]]
    """See :attr:`Source.access`."""
    holds: ClassVar[tuple[type[DeadLetters], ...]]
    """The places of bad rows that the sink writes itself, by the same decisive step as the good rows of a batch. For
    these :meth:`stage` gets a batch with a :attr:`Batch.sifter`, and reads where bad rows go from its config.

    For other places a batch has good rows only. Its bad rows are put in place before them, by a sink of their own."""

    @property
    def rotation(self) -> Rotation | None:
        """How batches are to wait for rows; None for a sink to which small ones do no harm."""
        ...

    @classmethod
    def definition(cls, config: EndConfig) -> Definition:
        """The keys of this sink, without ``sink.``; ``config`` may decide which there are."""
        ...

    @classmethod
    def validate(cls, spark: SparkSession, config: EndConfig) -> dict[str, list[str]]:
        """See :meth:`Source.validate`."""
        ...

    @classmethod
    def is_exactly_once(cls, config: EndConfig) -> bool:
        """Whether a batch that is replayed, by this owner of the task or another, shows its rows once."""
        ...

    @classmethod
    def of(cls, config: EndConfig) -> Self:
        """:raises ConfigError: when a value is not valid; names its key."""
        ...

    def shape(self, rows: DataFrame) -> DataFrame:
        """The columns with which rows come in batches: those of the value, and what the sink takes from the hidden
        columns of ``rows`` (:mod:`coterie.spark.record`). Called before each start of the query. Row by row.

        :raises ConfigError: when ``rows`` lack what a key of the sink asks for; names the key.
        """
        ...

    def take_over(self, lineage: TaskLineage, start: int) -> None:
        """Remove what earlier owners of this task have staged, and end what they still have open on a server, so that
        nothing of it is put in place any more. Called before each start of the query, on this object each time.

        ``start`` is the number of the task's start (:attr:`HeldCheckpoint.starts`): earlier owners have lower ones.

        :raises WorldError: when the sink cannot be reached.
        """
        ...

    @classmethod
    def retire(cls, config: EndConfig, lineages: Sequence[TaskLineage]) -> None:
        """Remove what guards lineages against a second copy of a batch. All their batches are committed, no start will
        use them any more, and a batch that an owner brings after a long freeze must still not be shown. Repeatable.

        ``config`` is that of the generation to which the lineages belong.

        :raises ConfigError, WorldError, OSError: when that cannot be done now; it is tried again later.
        """
        ...

    def stage(self, batch: Batch) -> Staged:
        """Write a batch so that no reader sees it yet.

        :raises FencedError: when another owner has taken over in the sink.
        :raises WorldError: when the sink refuses the rows, or cannot be reached in time.
        """
        ...

    def close(self) -> None:
        """Give up connections; called when the task's query has ended. Raises nothing."""
        ...
