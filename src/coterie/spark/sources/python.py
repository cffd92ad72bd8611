"""``PythonSource``: the rows are a Spark stream that a function of the user builds.

The function, ``def build(spark: SparkSession, config: dict[str, str]) -> DataFrame``, runs in the worker's process,
before each start of the connector's only task and when the config is validated. For this reason a worker runs only
functions of the modules that its ``pipeline.modules`` allows. The positions are those of the stream's own sources, in
Spark's checkpoint. They cannot be moved to another checkpoint, so the connector is never split again and its sink
cannot be changed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from coterie.config.definition import ConfigDef, ConfigKey, Importance, Type, Width
from coterie.nouns.connector_offsets import ConnectorOffset, OffsetsRefusedError
from coterie.nouns.errors import ConfigError
from coterie.spark.generations.split import SplitFunction
from coterie.spark.generations.stores import PositionStore, UnmovablePositionStore
from coterie.spark.paths import SOURCE_GROUP
from coterie.spark.positions import Positions
from coterie.spark.prefixed_config import PrefixedConfig
from coterie.spark.rotation import Rotation
from coterie.spark.seams import TaskInput
from coterie.spark.sessions import new_session_without_java_functions
from coterie.spark.user_code import call_or_raise_value_error, function_name_error, load_allowed_function

FUNCTION_KEY = "pipeline.function"
"""The key with the function's name, ``package.module:name``."""
DEFINITION = ConfigDef(
    (
        ConfigKey(
            name=FUNCTION_KEY,
            type=Type.STRING,
            documentation="package.module:name of a function (spark, config) that returns a streaming DataFrame.",
            importance=Importance.HIGH,
            validator=function_name_error,
            group=SOURCE_GROUP,
            width=Width.LONG,
            display_name="Function",
        ),
    )
)

_STATEFUL_PLAN_NODES = frozenset(
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
"""The names of the nodes of Spark's plan that keep state between batches. A join of two streams keeps state too, and is
checked separately."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonSource:
    """Reads the stream that a function of the user builds; the connector has one task."""

    free_key_prefixes: ClassVar[tuple[str, ...]] = ("",)
    """Every key is allowed, since the function receives the whole config."""
    identity_keys: ClassVar[tuple[str, ...]] = ()
    connection_keys: ClassVar[tuple[str, ...]] = ()
    split_function: ClassVar[SplitFunction] = SplitFunction.PARTS_V1
    has_fixed_split: ClassVar[bool] = True
    reports_bad_records: ClassVar[bool] = False
    can_wait_for_rows: ClassVar[bool] = False
    position_store: ClassVar[PositionStore] = UnmovablePositionStore()

    function_name: str
    """The full name of the function, ``package.module:name``."""
    prefixed_config: PrefixedConfig = field(repr=False)

    @classmethod
    def definition(cls, config: PrefixedConfig) -> ConfigDef:
        return DEFINITION

    @classmethod
    def validate(cls, spark: SparkSession, config: PrefixedConfig) -> dict[str, list[str]]:
        """Errors, by the user's key: builds the stream, without starting it, and returns the reason why that failed."""
        try:
            cls.of(
                config, TaskInput(task_number=0, task_count=1, source_partitions=(), split_function=cls.split_function)
            ).schema(spark)
        except ConfigError as error:
            return error.errors_as_new_lists
        return {}

    @classmethod
    def keys_to_infer(cls, config: PrefixedConfig) -> Sequence[str]:
        """No keys: the function determines the columns."""
        return ()

    @classmethod
    def infer_values(cls, spark: SparkSession, config: PrefixedConfig) -> Mapping[str, str]:
        """Always an empty mapping: nothing is inferred and no input is read, because the function determines the
        columns and :meth:`keys_to_infer` has no key."""
        return {}

    @classmethod
    def list_source_partitions(cls, config: PrefixedConfig) -> Sequence[str]:
        """One source partition: the stream."""
        return ["stream"]

    @classmethod
    def divide_partitions(cls, source_partitions: Sequence[str], tasks_max: int) -> Sequence[Sequence[str]]:
        """One task, with all source partitions, also if ``tasks_max`` is greater."""
        return [list(source_partitions)]

    @classmethod
    def initial_positions(
        cls, config: PrefixedConfig, source_partitions: Sequence[str], *, is_new_connector: bool
    ) -> Positions:
        """No positions: the stream's own sources begin where the function's options for them determine."""
        return {}

    @classmethod
    def to_offsets(cls, positions: Positions) -> Sequence[ConnectorOffset]:
        """No offsets: the positions belong to the stream's own sources."""
        return ()

    @classmethod
    def parse_offsets(cls, config: PrefixedConfig, offsets: Sequence[ConnectorOffset]) -> Mapping[str, int | None]:
        raise OffsetsRefusedError(
            "The positions of a PythonSource are those of the stream that its function builds, which only Spark reads "
            "and writes: they cannot be changed. Create a connector under another name to read the input again"
        )

    @classmethod
    def of(cls, config: PrefixedConfig, task_input: TaskInput) -> Self:
        return cls(function_name=config.required_value(DEFINITION, FUNCTION_KEY, str), prefixed_config=config)

    def schema(self, spark: SparkSession) -> StructType:
        # The function may change any setting of its session.
        return self._build_stream(new_session_without_java_functions(spark)).schema

    def read(self, spark: SparkSession, checkpoint: Path, rotation: Rotation | None) -> DataFrame:
        return self._build_stream(spark)

    def is_batch_small(self, spark: SparkSession, checkpoint: Path, batch_id: int) -> bool:
        """Always False: from the plan of an unknown source the number of a batch's rows cannot be determined."""
        return False

    def has_bounded_spark_partitions(self, spark: SparkSession, checkpoint: Path, batch_id: int) -> bool:
        """Always False: from the plan of an unknown source the size of a Spark partition cannot be determined."""
        return False

    def check_before_read(self, checkpoint: Path, batch_id: int) -> None:
        """Does nothing: every batch can be read."""

    def check_after_read(self, spark: SparkSession, checkpoint: Path, batch_id: int) -> None:
        """Does nothing: the rows cannot be compared with the plan of an unknown source."""

    def _build_stream(self, spark: SparkSession) -> DataFrame:
        """The stream that the function returns. The function receives the connector's config, without the keys of the
        task.

        :raises ConfigError: when the worker does not allow the function's module, or the function does not exist,
            raises, or returns anything other than a stream without state.
        """
        config = {key: value for key, value in self.prefixed_config.config.items() if not key.startswith("task.")}
        try:
            result = call_or_raise_value_error(load_allowed_function(spark, self.function_name), spark, config)
            _check_stateless_stream(result)
        except (PySparkException, ValueError) as error:
            raise self.prefixed_config.make_config_error(FUNCTION_KEY, str(error)) from error
        assert isinstance(result, DataFrame)
        return result


def _check_stateless_stream(result: object) -> None:
    """Check that ``result``, a function's result, is a stream without state.

    :raises ValueError: when it is not; the message says what it is.
    """
    if not isinstance(result, DataFrame):
        raise ValueError(f"the function returned a {type(result).__name__}, not a DataFrame")
    if not result.isStreaming:
        raise ValueError("the function returned a DataFrame that is not a stream: build it from spark.readStream")
    for node in _plan_nodes(result._jdf.queryExecution().analyzed()):
        name = str(node.nodeName())
        if name in _STATEFUL_PLAN_NODES or (
            name == "Join" and node.left().isStreaming() and node.right().isStreaming()
        ):
            raise ValueError(f"the function's stream keeps state between batches ({name}), which is not supported yet")


def _plan_nodes(plan: Any) -> Iterator[Any]:
    """All nodes of ``plan``, a logical plan of Spark in the JVM."""
    yield plan
    children = plan.children()
    for index in range(children.size()):
        yield from _plan_nodes(children.apply(index))
