"""What is wrong with a connector's config, by key; and the keys that every connector has."""

from collections.abc import Mapping

from pyspark.sql import SparkSession

from coterie.config.definition import Definition, Importance, Key, Type, as_list, at_least, not_blank
from coterie.nouns.errors import ConfigError
from coterie.spark import transforms
from coterie.spark.paths import option_values
from coterie.spark.plugins import Plugin, find_plugin, plugins
from coterie.spark.sinks import files


def _aliases(value: str) -> str | None:
    aliases = as_list(value)
    if "" in aliases:
        return "List must not contain empty items"
    return "Aliases must be distinct" if len(set(aliases)) < len(aliases) else None


COMMON = Definition(
    (
        Key(
            name="name",
            type=Type.STRING,
            documentation="Name of the connector, unique among all.",
            importance=Importance.HIGH,
            optional=True,
            check=not_blank,
        ),
        Key(
            name="connector.class",
            type=Type.CLASS,
            documentation="The plug-in: its alias or its class.",
            importance=Importance.HIGH,
            check=lambda value: (
                None if find_plugin(value) else f"No such connector; there are: {', '.join(sorted(plugins()))}"
            ),
        ),
        Key(
            name="tasks.max",
            type=Type.INT,
            documentation="Most tasks that the connector is split into.",
            default="1",
            importance=Importance.HIGH,
            check=at_least(1),
        ),
        Key(
            name="transforms",
            type=Type.LIST,
            documentation="Aliases of the transforms, in the order in which they are applied.",
            default="",
            check=_aliases,
        ),
        Key(
            name="trigger.interval.ms",
            type=Type.LONG,
            documentation="How often a task looks for new input; 0 means again at once.",
            default="1000",
            check=at_least(0),
        ),
    )
)


def errors_of(spark: SparkSession, config: Mapping[str, str]) -> dict[str, list[str]]:
    """Every error by key: first what the definitions tell, then, of keys that are fine, what Spark tells."""
    found = COMMON.errors(config)
    plugin = find_plugin(config.get("connector.class", ""))
    if plugin is None:
        return found
    definition = COMMON + plugin.definition(config) + files.DEFINITION + transforms.definition(config)
    found = definition.errors(config) | _unknown(definition, plugin, config)
    if not any(key.startswith(plugin.prefix) for key in found):
        found |= plugin.validate(spark, config)
        found |= _unfit_transforms(spark, plugin, config, found)
    if "sink.format" not in found:
        found |= _unknown_sink_options(spark, config)
    return found


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
