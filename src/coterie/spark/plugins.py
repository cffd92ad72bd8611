"""Finds the plug-ins that a connector's config names: the source and the sink at the two ends of its pipeline."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import entry_points

from coterie.config.definition import ConfigDef, ConfigKey, Importance, Type, Width, one_of
from coterie.nouns.errors import ConfigError
from coterie.spark.bad_records.keys import error_tolerance_of
from coterie.spark.bad_records.queue import dead_letter_identity
from coterie.spark.paths import SINK_GROUP, SOURCE_GROUP
from coterie.spark.prefixed_config import SINK, SOURCE, PrefixedConfig
from coterie.spark.seams import Sink, Source
from coterie.spark.sinks.delta import DeltaSink
from coterie.spark.sinks.file_writers import FORMATS
from coterie.spark.sinks.files import FileSink
from coterie.spark.sinks.kafka import KafkaSink
from coterie.spark.sinks.noop import NoopSink
from coterie.spark.sinks.postgres import PostgresSink
from coterie.spark.sinks.spark import SparkSink
from coterie.spark.sources.kafka import KafkaSource

DEFAULT_SOURCE = "KafkaSource"
"""The class of the source of a sink connector whose config names no source, as in Kafka Connect."""
DEFAULT_SINK = "KafkaSink"
"""The class of the sink of a source connector whose config has no key that starts with ``sink.``, as in Kafka
Connect."""
ENTRY_POINTS = "coterie.connectors"
"""The entry point group in which a Python package registers its sources, each as ``alias = class``."""

SINKS: Mapping[str, type[Sink]] = {
    sink.__name__: sink for sink in (DeltaSink, FileSink, KafkaSink, NoopSink, PostgresSink, SparkSink)
}
"""Every sink, by its class name."""
SINK_BY_FORMAT: Mapping[str, type[Sink]] = {
    **dict.fromkeys(FORMATS, FileSink),
    "console": SparkSink,
    "noop": NoopSink,
}
"""The class of the sink by the value of ``sink.format``, for a config that names no sink class."""

SINK_FORMAT = ConfigKey(
    name="sink.format",
    type=Type.STRING,
    documentation="Format of the output files; console prints the rows, noop writes nothing.",
    importance=Importance.HIGH,
    validator=one_of(SINK_BY_FORMAT),
    group=SINK_GROUP,
    width=Width.SHORT,
    display_name="Sink format",
)
"""The key ``sink.format`` of a source connector."""


@cache
def source_class() -> ConfigKey:
    """The key ``source.class`` of a sink connector."""
    return replace(
        _class_key("source.class", "The source that a sink connector reads.", sources(), SOURCE_GROUP),
        default=DEFAULT_SOURCE,
    )


@cache
def sink_class() -> ConfigKey:
    """The key ``sink.class`` of a source connector."""
    documentation = "The sink that a source connector writes to; without it, sink.format names the sink."
    return replace(_class_key("sink.class", documentation, SINKS, SINK_GROUP), optional=True)


def _class_key(name: str, documentation: str, values: Iterable[str], group: str) -> ConfigKey:
    """A config key whose value is one of the class names ``values``."""
    return ConfigKey(
        name=name,
        type=Type.CLASS,
        documentation=documentation,
        importance=Importance.HIGH,
        validator=one_of(values),
        group=group,
        width=Width.LONG,
        display_name=f"{group} class",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfiguredSource:
    """The class, config and keys of a connector's source."""

    plugin: type[Source]
    config: PrefixedConfig
    definition: ConfigDef
    """The keys of the source, with the names by which the user sets them (:meth:`PrefixedConfig.key`). Includes
    ``source.class`` if that key chooses the source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfiguredSink:
    """The class, config and keys of a connector's sink."""

    plugin: type[Sink]
    config: PrefixedConfig
    definition: ConfigDef
    """The keys of the sink, with the names by which the user sets them (:meth:`PrefixedConfig.key`). Includes
    ``sink.class`` and ``sink.format`` if these keys choose the sink."""


@cache
def sources() -> Mapping[str, type[Source]]:
    """The class of every installed source, by its alias, by its class name and by its class name with the module."""
    found: dict[str, type[Source]] = {}
    for entry in entry_points(group=ENTRY_POINTS):
        source: type[Source] = entry.load()
        for name in (entry.name, source.__name__, f"{source.__module__}.{source.__qualname__}"):
            found[name] = source
    return found


def connector_type(config: Mapping[str, str]) -> str:
    """The type of the plug-in that ``connector.class`` names: ``source`` or ``sink``; ``unknown`` when there is no such
    plug-in."""
    name = config.get("connector.class", "").strip()
    return "source" if name in sources() else "sink" if name in SINKS else "unknown"


def configured_source(
    config: Mapping[str, str], worker_kafka_properties: Mapping[str, str], class_key: str = "connector.class"
) -> ConfiguredSource:
    """The source of a connector or of a task: the class that ``class_key`` names, or that ``source.class`` names if
    ``class_key`` names a sink.

    ``worker_kafka_properties``: see :attr:`PrefixedConfig.worker_kafka_properties`.

    :raises ConfigError: when the value of ``class_key`` or ``source.class`` is missing or unknown; the error names the
        key.
    """
    name = _class_name(config, class_key)
    is_own = name in sources()
    selectors = ConfigDef(() if is_own else (source_class(),))
    if not is_own:
        name = selectors.read(config, "source.class", str)
    # A config of Kafka Connect's sink connectors has `topics` without a prefix. Not for the Kafka sink: keys without a
    # prefix belong to the sink there.
    is_prefix_optional = is_own or ("source.class" not in config and SINKS.get(config[class_key].strip()) != KafkaSink)
    end = PrefixedConfig(
        config=config,
        prefix=SOURCE,
        is_prefix_optional=is_prefix_optional,
        worker_kafka_properties=worker_kafka_properties,
    )
    plugin = sources()[name]
    keys = end.with_user_keys(plugin.definition(end)).keys
    return ConfiguredSource(plugin=plugin, config=end, definition=_numbered((*selectors.keys, *keys)))


def configured_sink(
    config: Mapping[str, str], worker_kafka_properties: Mapping[str, str], class_key: str = "connector.class"
) -> ConfiguredSink:
    """The sink of a connector or of a task: the class that ``class_key`` names, or that ``sink.class`` or
    ``sink.format`` names if ``class_key`` names a source.

    ``worker_kafka_properties``: see :attr:`PrefixedConfig.worker_kafka_properties`.

    :raises ConfigError: when a class or format is missing or unknown; the error names the key.
    """
    name = _class_name(config, class_key)
    selectors: tuple[ConfigKey, ...] = ()
    is_implied = False
    if is_own := name in SINKS:
        plugin = SINKS[name]
    elif named := ConfigDef((sink_class(),)).find(config, "sink.class", str):
        plugin, selectors = SINKS[named], (sink_class(),)
    elif is_implied := not any(key.startswith(SINK) for key in config):
        plugin, selectors = SINKS[DEFAULT_SINK], (sink_class(), replace(SINK_FORMAT, optional=True))
    else:
        selectors = (sink_class(), SINK_FORMAT)
        plugin = SINK_BY_FORMAT[ConfigDef(selectors).read(config, SINK_FORMAT.name, str)]
    # A config of Kafka Connect's source connectors has `topic` without a prefix. Not for the Kafka source: keys without
    # a prefix belong to the source there.
    is_prefix_optional = is_own or (is_implied and sources()[name] is not KafkaSource)
    end = PrefixedConfig(
        config=config,
        prefix=SINK,
        is_prefix_optional=is_prefix_optional,
        worker_kafka_properties=worker_kafka_properties,
    )
    keys = end.with_user_keys(plugin.definition(end)).keys
    # A key of the sink with a selector's name is left out: the selector lists the values of all sinks.
    taken = {key.name for key in selectors}
    return ConfiguredSink(
        plugin=plugin,
        config=end,
        definition=_numbered((*selectors, *(key for key in keys if key.name not in taken))),
    )


def sink_identity(config: Mapping[str, str], worker_kafka_properties: Mapping[str, str]) -> Mapping[str, str | None]:
    """The identity of the place to which a connector writes: equal for two configs that write to the same place.

    It consists of the class of the sink, the set or default values of its :attr:`Sink.identity_keys` by name, and the
    destination of dead letters unless the sink writes these in the transaction of the good rows.

    ``worker_kafka_properties``: see :attr:`PrefixedConfig.worker_kafka_properties`.

    :raises ConfigError: when a value is not valid; the error names the key.
    """
    sink = configured_sink(config, worker_kafka_properties)
    tolerance = error_tolerance_of(config)
    is_held = tolerance is None or isinstance(tolerance.dead_letter_destination, sink.plugin.atomic_dead_letters)
    return {
        "class": sink.plugin.__name__,
        **sink.config.effective_values(sink.plugin.definition(sink.config), sink.plugin.identity_keys),
        **({} if tolerance is None or is_held else dead_letter_identity(tolerance.dead_letter_destination, config)),
    }


def _numbered(keys: Iterable[ConfigKey]) -> ConfigDef:
    """A definition of ``keys`` with :attr:`ConfigKey.order`, the order in a form: the given order, numbered from 0 in
    each group."""
    places: Counter[str | None] = Counter()
    numbered: list[ConfigKey] = []
    for key in keys:
        numbered.append(replace(key, order=places[key.group]))
        places[key.group] += 1
    return ConfigDef(tuple(numbered))


def _class_name(config: Mapping[str, str], class_key: str) -> str:
    """The value of ``class_key``, which names a source or a sink.

    :raises ConfigError: when the value is missing, or names neither.
    """
    name = config.get(class_key, "").strip()
    if name not in sources() and name not in SINKS:
        raise ConfigError({class_key: [f"No such connector: {config.get(class_key)}"]})
    return name
