"""What is wrong with a connector's config, by key; and the keys that every connector has."""

from collections.abc import Mapping, Sequence
from functools import cache

from pyspark.sql import SparkSession

from coterie.config.definition import Definition, Importance, Key, Type, Width, at_least, not_blank, one_of
from coterie.nouns.errors import ConfigError
from coterie.spark import transforms
from coterie.spark.paths import option_values
from coterie.spark.plugins import Plugin, find_plugin, plugins
from coterie.spark.sinks import files

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
                check=one_of(plugins(), "No such connector; there are"),
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
    found = common().errors(config)
    plugin = find_plugin(config.get("connector.class", ""))
    if plugin is None:
        return found
    definition = common() + plugin.definition(config) + files.DEFINITION + transforms.definition(config)
    found = definition.errors(config) | _unknown(definition, plugin, config)
    if not any(key.startswith(plugin.prefix) for key in found):
        found |= plugin.validate(spark, config)
        found |= _unfit_transforms(spark, plugin, config, found)
    if "sink.format" not in found:
        found |= _unknown_sink_options(spark, config)
    if "tasks.max" not in found:
        found |= split_errors(config, len(dealt_by(plugin, config)), checkpointed)
    return found


def dealt_by(plugin: Plugin, config: Mapping[str, str]) -> Sequence[Mapping[str, str]]:
    """What each task of a connector with this ``config`` gets of its own."""
    return plugin.split(config, common().read(config, "tasks.max", int))


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


def _unknown(definition: Definition, plugin: Plugin, config: Mapping[str, str]) -> dict[str, list[str]]:
    """Keys under our own prefixes that nobody defines: a slip of the pen must not be silent."""
    known = {key.name for key in definition.keys}
    options = (plugin.options_prefix, files.OPTIONS)
    ours = (plugin.prefix, "sink.", "transforms.")
    return {
        key: [f"Unknown configuration {key}"]
        for key in config
        if key.startswith(ours) and not key.startswith(options) and key not in known
    }


def _unfit_transforms(
    spark: SparkSession, plugin: Plugin, config: Mapping[str, str], found: Mapping[str, list[str]]
) -> dict[str, list[str]]:
    """Resolve the transforms against the source's columns, as the query will."""
    if any(key.startswith(("transforms", plugin.prefix)) for key in found):
        return {}
    try:
        transforms.transform(spark.createDataFrame([], plugin.schema(spark, config)), config)
    except ConfigError as error:
        return {key: list(sentences) for key, sentences in error.errors.items()}
    return {}


def _unknown_sink_options(spark: SparkSession, config: Mapping[str, str]) -> dict[str, list[str]]:
    sql = spark._jvm.org.apache.spark.sql  # type: ignore[union-attr]
    format_ = config["sink.format"]
    known = {
        "json": sql.catalyst.json.JSONOptions,
        "parquet": sql.execution.datasources.parquet.ParquetOptions,
    }[format_]
    return {
        files.OPTIONS + option: [f"Spark's {format_} files have no option {option}"]
        for option in option_values(config, files.OPTIONS)
        if not (known.isValidOption(option) or option.startswith("parquet."))
    }
