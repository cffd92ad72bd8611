"""The seams of the data plane: what a source and a sink of tasks have to offer.

A plug-in is a class. Its class methods answer for a connector: which keys it has, whether a config is valid, how it is
split. An object of the class is made with ``of`` from one task's config and reads or writes for that task.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol, Self

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from coterie.config.definition import Definition
from coterie.nouns.jobs import ConnectorTaskId
from coterie.spark.positions import Positions


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Which task of its connector a task is: ``index`` counts from 0 to ``count`` - 1."""

    index: int
    count: int


class Source(Protocol):
    """One task's share of what a connector reads. The share never changes while the task's checkpoint lives."""

    type: ClassVar[str]
    """``source`` or ``sink``, as REST shows the connector."""

    @classmethod
    def definition(cls) -> Definition:
        """The keys of this source; their names start with ``source.``."""
        ...

    @classmethod
    def validate(cls, spark: SparkSession, config: Mapping[str, str]) -> dict[str, list[str]]:
        """Errors by key that only Spark can find: those of ``source.option.*``. Called when the definition finds none;
        :meth:`schema` finds those of the columns."""
        ...

    @classmethod
    def parts(cls, config: Mapping[str, str]) -> Sequence[str]:
        """The names of what there is to split now. A source that grows is asked again while it runs.

        :raises WorldError: when the source cannot be reached.
        """
        ...

    @classmethod
    def split(cls, parts: Sequence[str], tasks_max: int) -> Sequence[Mapping[str, str]]:
        """For each of at most ``tasks_max`` tasks: what its config has beside the connector's."""
        ...

    @classmethod
    def of(cls, config: Mapping[str, str], share: Share) -> Self:
        """:raises ConfigError: when a value is not valid; names its key."""
        ...

    def schema(self, spark: SparkSession) -> StructType:
        """The columns of :meth:`read`.

        :raises ConfigError: when Spark does not understand them.
        """
        ...

    def read(self, spark: SparkSession) -> DataFrame:
        """The stream of this task's rows. A replayed batch has the same rows."""
        ...

    def positions(self, spark: SparkSession, checkpoint: Path) -> Positions:
        """What this task has read of its share by the last committed batch. Positions of several tasks can be merged:
        they have no key in common."""
        ...

    def seed(self, checkpoint: Path, positions: Positions) -> None:
        """Have a checkpoint on which no query has run go on at ``positions``; those of other tasks do no harm.

        :raises WorldError: when this share cannot go on at them.
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

    A replay brings the same rows under the same lineage and id.
    """

    lineage: TaskLineage
    batch_id: int
    rows: DataFrame


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

    @classmethod
    def definition(cls) -> Definition:
        """The keys of this sink beside ``sink.format``; their names start with ``sink.``."""
        ...

    @classmethod
    def validate(cls, spark: SparkSession, config: Mapping[str, str]) -> dict[str, list[str]]:
        """Errors by key that only Spark can find: those of ``sink.option.*``. Called when ``sink.format`` is valid."""
        ...

    @classmethod
    def of(cls, config: Mapping[str, str]) -> Self:
        """:raises ConfigError: when a value is not valid; names its key."""
        ...

    def take_over(self, lineage: TaskLineage) -> None:
        """Remove what earlier owners of this task have staged, so that nothing of it is put in place any more. Called
        before each start of the query."""
        ...

    def stage(self, batch: Batch) -> Staged:
        """Write a batch so that no reader sees it yet."""
        ...
