"""What is wrong with a connector's config, by key; and the keys that every connector has."""

from collections.abc import Mapping, Sequence
from functools import cache

from pyspark.sql import SparkSession

from coterie.config.definition import Definition, Importance, Key, Type, Width, at_least, not_blank, one_of
from coterie.nouns.errors import ConfigError
from coterie.spark import transforms
from coterie.spark.paths import SINK_OPTIONS, SOURCE_OPTIONS
from coterie.spark.plugins import SINK_FORMAT, find_sink, find_source, sink_definition, sources
from coterie.spark.seams import Share, Source

GROUP = "Common"


@cache
def common() -> Definition:
    """The keys that every connector has, whatever its source and sink."""
    return Definition(
        (
            Key(
                name="name",
                type=Type.STRING,
                documentation="Name of the connector, unique among all.",
                importance=Importance.HIGH,
                optional=True,
                check=not_blank,
                group=GROUP,
                order=0,
                width=Width.MEDIUM,
                display_name="Connector name",
            ),
            Key(
                name="connector.class",
                type=Type.CLASS,
                documentation="The plug-in: its alias or its class.",
                importance=Importance.HIGH,
                check=one_of(sources(), "No such connector; there are"),
                group=GROUP,
                order=1,
                width=Width.LONG,
                display_name="Connector class",
            ),
            Key(
                name="tasks.max",
                type=Type.INT,
                documentation="Most tasks that the connector is split into.",
                default="1",
                importance=Importance.HIGH,
                check=at_least(1),
                group=GROUP,
                order=2,
                width=Width.SHORT,
                display_name="Tasks max",
            ),
            transforms.ALIASES,
            Key(
                name="trigger.interval.ms",
                type=Type.LONG,
                documentation="How often a task looks for new input; 0 means again at once.",
                default="1000",
                check=at_least(0),
                group=GROUP,
                order=3,
                width=Width.SHORT,
                display_name="Trigger interval (ms)",
            ),
        )
    )


def errors_of(
    spark: SparkSession, config: Mapping[str, str], checkpointed: Sequence[Mapping[str, str]]
) -> dict[str, list[str]]:
    """Every error by key: first what the definitions tell, then, of keys that are fine, what Spark tells.

    ``checkpointed`` are the configs of the connector's tasks that may have checkpoints.
    """
    source = find_source(config.get("connector.class"))
    if source is None:
        return common().errors(config)
    definition = common() + source.definition() + sink_definition(config) + transforms.definition(config)
    found = definition.errors(config) | _unknown(definition, config)
    if not any(key.startswith("source.") for key in found):
        if "tasks.max" not in found:
            found |= split_errors(config, len(shares_of(source, config)), checkpointed)
        found |= source.validate(spark, config)
        found |= _column_errors(spark, source, config, found)
    if SINK_FORMAT.name not in found:
        found |= find_sink(config).validate(spark, config)
    return found


def shares_of(source: type[Source], config: Mapping[str, str]) -> Sequence[Mapping[str, str]]:
    """What the config of each task has beside the connector's ``config``.

    :raises ConfigError: when a value is not valid.
    :raises WorldError: when the source cannot be reached.
    """
    return source.split(source.parts(config), common().read(config, "tasks.max", int))


def split_errors(
    config: Mapping[str, str], tasks: int, checkpointed: Sequence[Mapping[str, str]]
) -> dict[str, list[str]]:
    """What is wrong with a ``config`` that is split into ``tasks`` where ``checkpointed`` tasks have read before.

    A task's checkpoint tells which input it has read of its own part. With another number of tasks each has another
    part, and keeps its checkpoint or begins without: some rows are then read by no task, others by two.
    """
    if not checkpointed or (before := checkpointed[0].get("task.count")) in (None, str(tasks)):
        return {}
    old, new = (common().value(one, "tasks.max") for one in (checkpointed[0], config))
    return {
        "tasks.max": [
            f"Invalid value {new} for configuration tasks.max: the connector has checkpoints of {before} task(s), made "
            f"with tasks.max={old}, and {tasks} task(s) would lose rows and double others on them. Keep "
            f"tasks.max={old}; or create a connector under another name; or delete this one and create it again. "
            "A new connector reads everything from the beginning, into other folders"
        ]
    }


def _unknown(definition: Definition, config: Mapping[str, str]) -> dict[str, list[str]]:
    """Keys under our own prefixes that no definition has: a typing error must not be silent."""
    known = {key.name for key in definition.keys}
    return {
        key: [f"Unknown configuration {key}"]
        for key in config
        if key.startswith(("source.", "sink.", "transforms."))
        and not key.startswith((SOURCE_OPTIONS, SINK_OPTIONS))
        and key not in known
    }


def _column_errors(
    spark: SparkSession, source: type[Source], config: Mapping[str, str], found: Mapping[str, list[str]]
) -> dict[str, list[str]]:
    """Resolve the source's columns and, where they and their keys are valid, the transforms, as the query will."""
    try:
        schema = source.of(config, Share(index=0, count=1)).schema(spark)
        if any(key.startswith(("transforms", "source.")) for key in found):
            return {}
        transforms.transform(spark.createDataFrame([], schema), transforms.parsed(config))
    except ConfigError as error:
        return {key: list(sentences) for key, sentences in error.errors.items()}
    return {}
