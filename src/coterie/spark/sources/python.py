"""``PythonSource``: a connector whose rows are a Spark stream that a function of the user builds.

``def build(spark: SparkSession, config: dict[str, str]) -> DataFrame`` runs in the worker, before each start of the
connector's only task and when the config is validated. So a worker runs only functions of the modules that its
``pipeline.modules`` allows. Positions are those of the stream's own sources, in Spark's checkpoint. They cannot be
moved to another checkpoint, so the connector is never split again and its sink cannot be changed.
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
"""How long a function may take to build its stream, which reads no rows."""

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
"""Nodes of a plan that keep state between batches. A join of two streams keeps state too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonSource:
    """The stream that a function builds."""

    free_prefixes: ClassVar[tuple[str, ...]] = ("",)
    """Every key is allowed: the function may read any."""
    identity: ClassVar[tuple[str, ...]] = ()
    access: ClassVar[tuple[str, ...]] = ()
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
        """No keys: the function determines the columns."""
        return ()

    @classmethod
    def infer(cls, spark: SparkSession, config: EndConfig) -> Mapping[str, str]:
        """Nothing: there are no keys to infer."""
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
        """No positions: the options of the function's own sources determine where these begin."""
        return {}

    @classmethod
    def of(cls, config: EndConfig, share: Share) -> Self:
        return cls(function=config.read(DEFINITION, FUNCTION, str), config=config)

    def schema(self, spark: SparkSession) -> StructType:
        # The function may change any setting of its session.
        return self._built(spark.newSession()).schema

    def read(self, spark: SparkSession, checkpoint: Path, rotation: Rotation | None) -> DataFrame:
        return self._built(spark)

    def is_small(self, spark: SparkSession, checkpoint: Path, batch_id: int) -> bool:
        """Always False: the number of rows of a batch cannot be read from the plan of an unknown source."""
        return False

    def check_plan(self, checkpoint: Path, batch_id: int) -> None:
        """Does nothing: any batch can be read."""

    def check_read(self, spark: SparkSession, checkpoint: Path, batch_id: int) -> None:
        """Does nothing: Spark fails a batch that it could not read."""

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
    """:raises ValueError: when a function has returned anything other than a stream without state."""
    if not isinstance(made, DataFrame):
        raise ValueError(f"it returned a {type(made).__name__}, not a DataFrame")
    if not made.isStreaming:
        raise ValueError("it returned a DataFrame that is not a stream: build it from spark.readStream")
    for node in _nodes(made._jdf.queryExecution().analyzed()):
        name = str(node.nodeName())
        if name in _STATEFUL or (name == "Join" and node.left().isStreaming() and node.right().isStreaming()):
            raise ValueError(f"its stream keeps state between batches ({name}), which is not supported yet")


def _nodes(plan: Any) -> Iterator[Any]:
    yield plan
    children = plan.children()
    for index in range(children.size()):
        yield from _nodes(children.apply(index))
