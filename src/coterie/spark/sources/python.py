"""``PythonSource``: a connector whose rows are what a function of the user builds: a stream of Spark.

``def build(spark: SparkSession, config: dict[str, str]) -> DataFrame`` runs in the worker, before each start of the
connector's only task and when the config is validated. So a worker runs only functions of the modules that its
``pipeline.modules`` allows. Positions are those of the stream's own sources, in Spark's checkpoint. They cannot be
taken to another checkpoint, so the connector is never split anew and keeps its sink.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from coterie.config.definition import Definition, Importance, Key, Type, Width
from coterie.nouns.errors import ConfigError
from coterie.spark.end_config import EndConfig
from coterie.spark.generations.split import SplitFunction
from coterie.spark.generations.stores import NoPositions, PositionStore
from coterie.spark.paths import SOURCE_GROUP
from coterie.spark.positions import Positions
from coterie.spark.rotation import Rotation
from coterie.spark.seams import Share
from coterie.spark.user_code import call_within, load, well_formed

BUILD_LIMIT_S = 60
"""How long a function may take to build its stream; it reads nothing meanwhile."""

FUNCTION = "pipeline.function"
DEFINITION = Definition(
    (
        Key(
            name=FUNCTION,
            type=Type.STRING,
            documentation="package.module:name of a function (spark, config) that returns a streaming DataFrame.",
            importance=Importance.HIGH,
            check=well_formed,
            group=SOURCE_GROUP,
            width=Width.LONG,
            display_name="Function",
        ),
    )
)

_STATEFUL = frozenset(
    [
        "Aggregate",
        "Deduplicate",
        "DeduplicateWithinWatermark",
        "Distinct",
        "FlatMapGroupsWithState",
        "FlatMapGroupsInPandasWithState",
        "GlobalLimit",
        "LocalLimit",
        "TransformWithState",
        "TransformWithStateInPySpark",
    ]
)
"""Nodes of a plan that keep state between batches; a join of two streams does too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonSource:
    """The stream that a function builds."""

    free_prefixes: ClassVar[tuple[str, ...]] = ("",)
    identity: ClassVar[tuple[str, ...]] = ()
    access: ClassVar[tuple[str, ...]] = ()
    """All keys: the function may read any."""
    split_function: ClassVar[SplitFunction] = SplitFunction.PARTS_V1
    has_fixed_split: ClassVar[bool] = True
    sifts_bad_records: ClassVar[bool] = False
    can_rotate: ClassVar[bool] = False
    store: ClassVar[PositionStore] = NoPositions()

    function: str
    config: EndConfig = field(repr=False)

    @classmethod
    def definition(cls, config: EndConfig) -> Definition:
        return DEFINITION

    @classmethod
    def validate(cls, spark: SparkSession, config: EndConfig) -> dict[str, list[str]]:
        """Build the stream, and do not start it."""
        try:
            cls.of(config, Share(index=0, count=1, parts=(), function=cls.split_function)).schema(spark)
        except ConfigError as error:
            return error.listed
        return {}

    @classmethod
    def open_keys(cls, config: EndConfig) -> Sequence[str]:
        """None: the function's rows have their columns."""
        return ()

    @classmethod
    def infer(cls, spark: SparkSession, config: EndConfig) -> Mapping[str, str]:
        """No key is left open."""
        return {}

    @classmethod
    def parts(cls, config: EndConfig) -> Sequence[str]:
        return ["stream"]

    @classmethod
    def split(cls, parts: Sequence[str], tasks_max: int) -> Sequence[Sequence[str]]:
        """One task."""
        return [list(parts)]

    @classmethod
    def starts(cls, config: EndConfig, parts: Sequence[str], *, is_first: bool) -> Positions:
        """None: the function's own sources begin where their options say."""
        return {}

    @classmethod
    def of(cls, config: EndConfig, share: Share) -> Self:
        return cls(function=config.read(DEFINITION, FUNCTION, str), config=config)

    def schema(self, spark: SparkSession) -> StructType:
        # The function may set what it likes in its session.
        return self._built(spark.newSession()).schema

    def read(self, spark: SparkSession, checkpoint: Path, rotation: Rotation | None) -> DataFrame:
        return self._built(spark)

    def is_small(self, spark: SparkSession, checkpoint: Path, batch_id: int) -> bool:
        """Never: the plans of sources that are not known here do not say how many rows a batch has."""
        return False

    def check_plan(self, checkpoint: Path, batch_id: int) -> None:
        """Any batch can be read."""

    def check_read(self, spark: SparkSession, checkpoint: Path, batch_id: int) -> None:
        """Spark fails a batch that it could not read."""

    def _built(self, spark: SparkSession) -> DataFrame:
        """:raises ConfigError: when the function does not return a stream without state."""
        config = {key: value for key, value in self.config.config.items() if not key.startswith("task.")}
        try:
            made = call_within(BUILD_LIMIT_S, load(spark, self.function), spark, config)
            _check(made)
        except (PySparkException, ValueError) as error:
            raise self.config.refused(FUNCTION, str(error)) from error
        assert isinstance(made, DataFrame)
        return made


def _check(made: object) -> None:
    """:raises ValueError: when a function has returned something else than a stream without state."""
    if not isinstance(made, DataFrame):
        raise ValueError(f"it returned a {type(made).__name__}, and no DataFrame")
    if not made.isStreaming:
        raise ValueError("it returned a DataFrame that is no stream: build it from spark.readStream")
    for node in _nodes(made._jdf.queryExecution().analyzed()):
        name = str(node.nodeName())
        if name in _STATEFUL or (name == "Join" and node.left().isStreaming() and node.right().isStreaming()):
            raise ValueError(f"its stream keeps state between batches ({name}), which is not supported yet")


def _nodes(plan: Any) -> Iterator[Any]:
    yield plan
    children = plan.children()
    for index in range(children.size()):
        yield from _nodes(children.apply(index))
