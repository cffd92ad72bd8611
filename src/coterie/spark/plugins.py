"""Finds the plug-ins that a connector's config names: the source and the sink at the two ends of its pipeline."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import entry_points

from coterie.config.definition import ConfigDef, ConfigKey, Importance, OneOfPluginClasses, Type, Width, one_of
from coterie.nouns.errors import ConfigError
from coterie.spark.bad_records.keys import read_bad_record_settings
from coterie.spark.bad_records.queue import dead_letter_destination_identity
from coterie.spark.paths import SINK_GROUP, SOURCE_GROUP
from coterie.spark.prefixed_config import SINK_PREFIX, SOURCE_PREFIX, PrefixedConfig
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
ENTRY_POINT_GROUP = "coterie.connectors"
"""The entry point group in which a Python package registers its sources, each as ``alias = class``."""

SINK_BY_CLASS_NAME: Mapping[str, type[Sink]] = {
    sink.__name__: sink for sink in (DeltaSink, FileSink, KafkaSink, NoopSink, PostgresSink, SparkSink)
}
"""Every sink, by its class name."""
SINK_BY_NAME: Mapping[str, type[Sink]] = {
    **SINK_BY_CLASS_NAME,
    **{f"{sink.__module__}.{sink.__qualname__}": sink for sink in SINK_BY_CLASS_NAME.values()},
}
"""Every sink, by its class name with and without the module."""
SINK_BY_FORMAT: Mapping[str, type[Sink]] = {
    **dict.fromkeys(FORMATS, FileSink),
    "console": SparkSink,
    "noop": NoopSink,
}
"""The class of the sink by the value of ``sink.format``, for a config that names no sink class."""

SINK_FORMAT_KEY = ConfigKey(
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
def source_class_key() -> ConfigKey:
    """The definition of the key ``source.class`` of a sink connector."""
    names = OneOfPluginClasses(tuple(sorted(source_by_name())), interface_name="SourceConnector")
    return replace(
        _make_class_key("source.class", "The source that a sink connector reads.", names, SOURCE_GROUP),
        default=DEFAULT_SOURCE,
    )


@cache
def sink_class_key() -> ConfigKey:
    """The definition of the key ``sink.class`` of a source connector."""
    documentation = "The sink that a source connector writes to; without it, sink.format names the sink."
    names = OneOfPluginClasses(
        tuple(SINK_BY_CLASS_NAME), interface_name="SinkConnector", also_accepted_names=frozenset(SINK_BY_NAME)
    )
    return replace(_make_class_key("sink.class", documentation, names, SINK_GROUP), is_optional=True)


def _make_class_key(name: str, documentation: str, names: OneOfPluginClasses, group: str) -> ConfigKey:
    """The config key ``name``, whose value is one of the class names ``names``. ``group``: the group in a form."""
    return ConfigKey(
        name=name,
        type=Type.CLASS,
        documentation=documentation,
        importance=Importance.HIGH,
        validator=names,
        group=group,
        width=Width.LONG,
        display_name=f"{group} class",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfiguredSource:
    """The source of a connector: its class, its config, and the definition of its keys."""

    plugin: type[Source]
    """The class of the source."""
    config: PrefixedConfig
    """The config of the connector or task, in which the source's keys have the prefix ``source.``."""
    definition: ConfigDef
    """The keys of the source, with the names by which the user sets them (:meth:`PrefixedConfig.user_key`). Includes
    ``source.class`` if that key chooses the source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfiguredSink:
    """The sink of a connector: its class, its config, and the definition of its keys."""

    plugin: type[Sink]
    """The class of the sink."""
    config: PrefixedConfig
    """The config of the connector or task, in which the sink's keys have the prefix ``sink.``."""
    definition: ConfigDef
    """The keys of the sink, with the names by which the user sets them (:meth:`PrefixedConfig.user_key`). Includes
    ``sink.class`` and ``sink.format`` if these keys choose the sink."""


@cache
def source_by_name() -> Mapping[str, type[Source]]:
    """The class of every installed source, by its alias, by its class name and by its class name with the module."""
    source_by_any_name: dict[str, type[Source]] = {}
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        source: type[Source] = entry.load()
        for name in (entry.name, source.__name__, f"{source.__module__}.{source.__qualname__}"):
            source_by_any_name[name] = source
    return source_by_any_name


def source_version_by_name() -> Mapping[str, str | None]:
    """The version of the package of every installed source (None: the package has none), by the source's alias, by its
    class name and by its class name with the module. No package is imported: these are the names that the packages
    declare, and a class that is declared in another module than its own has no entry for its own module."""
    version_by_name: dict[str, str | None] = {}
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        version = None if entry.dist is None else entry.dist.version
        version_by_name |= dict.fromkeys((entry.name, entry.attr, f"{entry.module}.{entry.attr}"), version)
    return version_by_name


def connector_type(config: Mapping[str, str]) -> str:
    """The type of the plug-in that ``connector.class`` names: ``source`` or ``sink``; ``unknown`` when there is no such
    plug-in."""
    name = config.get("connector.class", "").strip()
    return "source" if name in source_by_name() else "sink" if name in SINK_BY_NAME else "unknown"


def source_class(config: Mapping[str, str], connector_class_key: str = "connector.class") -> type[Source]:
    """The class of the source of a connector or of a task: the class that ``connector_class_key`` names; if
    ``connector_class_key`` names a sink, the class that ``source.class`` names, by default :data:`DEFAULT_SOURCE`.

    ``connector_class_key``: the key of ``config`` with the connector's class: ``connector.class``, or ``task.class`` in
    a task's config.

    :raises ConfigError: when the value of ``connector_class_key`` is missing or names neither a source nor a sink, or
        ``source.class`` is needed and names no source; the error names the key.
    """
    name = _read_known_class_name(config, connector_class_key)
    if name not in source_by_name():
        name = ConfigDef((source_class_key(),)).required_value(config, "source.class", str)
    return source_by_name()[name]


def configured_source(
    config: Mapping[str, str], worker_kafka_properties: Mapping[str, str], connector_class_key: str = "connector.class"
) -> ConfiguredSource:
    """The source of a connector or of a task, whose class is :func:`source_class`.

    ``worker_kafka_properties``: see :attr:`PrefixedConfig.worker_kafka_properties`. ``connector_class_key``: see
    :func:`source_class`.

    :raises ConfigError: as :func:`source_class`.
    """
    plugin = source_class(config, connector_class_key)
    is_class_of_source = _read_known_class_name(config, connector_class_key) in source_by_name()
    selectors = ConfigDef(() if is_class_of_source else (source_class_key(),))
    # A config of Kafka Connect's sink connectors has `topics` without a prefix. Not for the Kafka sink: keys without a
    # prefix belong to the sink there.
    is_prefix_optional = is_class_of_source or (
        "source.class" not in config and SINK_BY_NAME.get(config[connector_class_key].strip()) != KafkaSink
    )
    source_config = PrefixedConfig(
        config=config,
        prefix=SOURCE_PREFIX,
        is_prefix_optional=is_prefix_optional,
        worker_kafka_properties=worker_kafka_properties,
    )
    keys = source_config.definition_with_user_keys(plugin.definition(source_config)).keys
    return ConfiguredSource(
        plugin=plugin, config=source_config, definition=definition_with_order_in_groups((*selectors.keys, *keys))
    )


def configured_sink(
    config: Mapping[str, str], worker_kafka_properties: Mapping[str, str], connector_class_key: str = "connector.class"
) -> ConfiguredSink:
    """The sink of a connector or of a task: the class that ``connector_class_key`` names; if ``connector_class_key``
    names a source, the class that ``sink.class`` or else ``sink.format`` names, or :data:`DEFAULT_SINK` if no key
    starts with ``sink.``.

    ``worker_kafka_properties``: see :attr:`PrefixedConfig.worker_kafka_properties`. ``connector_class_key``: see
    :func:`source_class`.

    :raises ConfigError: when a class or format is missing or unknown; the error names the key.
    """
    name = _read_known_class_name(config, connector_class_key)
    selectors: tuple[ConfigKey, ...] = ()
    is_implied = False
    if is_class_of_sink := name in SINK_BY_NAME:
        plugin = SINK_BY_NAME[name]
    elif sink_class_name := ConfigDef((sink_class_key(),)).optional_value(config, "sink.class", str):
        plugin, selectors = SINK_BY_NAME[sink_class_name], (sink_class_key(),)
    elif is_implied := not any(key.startswith(SINK_PREFIX) for key in config):
        plugin, selectors = (
            SINK_BY_CLASS_NAME[DEFAULT_SINK],
            (sink_class_key(), replace(SINK_FORMAT_KEY, is_optional=True)),
        )
    else:
        selectors = (sink_class_key(), SINK_FORMAT_KEY)
        plugin = SINK_BY_FORMAT[ConfigDef(selectors).required_value(config, SINK_FORMAT_KEY.name, str)]
    # A config of Kafka Connect's source connectors has `topic` without a prefix. Not for the Kafka source: keys without
    # a prefix belong to the source there.
    is_prefix_optional = is_class_of_sink or (is_implied and source_by_name()[name] is not KafkaSource)
    sink_config = PrefixedConfig(
        config=config,
        prefix=SINK_PREFIX,
        is_prefix_optional=is_prefix_optional,
        worker_kafka_properties=worker_kafka_properties,
    )
    keys = sink_config.definition_with_user_keys(plugin.definition(sink_config)).keys
    # A key of the sink with a selector's name is left out: the selector lists the values of all sinks.
    selector_names = {key.name for key in selectors}
    return ConfiguredSink(
        plugin=plugin,
        config=sink_config,
        definition=definition_with_order_in_groups(
            (*selectors, *(key for key in keys if key.name not in selector_names))
        ),
    )


def sink_identity(config: Mapping[str, str], worker_kafka_properties: Mapping[str, str]) -> Mapping[str, str | None]:
    """The identity of the place to which a connector writes: equal for two configs that write to the same place.

    It consists of the class of the sink, the values (those that the config sets, else the defaults) of its
    :attr:`Sink.identity_keys` by name, and the destination of dead letters unless the sink writes these in the
    transaction of the good rows.

    ``worker_kafka_properties``: see :attr:`PrefixedConfig.worker_kafka_properties`.

    :raises ConfigError: when a value is not valid; the error names the key.
    """
    sink = configured_sink(config, worker_kafka_properties)
    tolerance = read_bad_record_settings(config)
    is_atomic = tolerance is None or isinstance(
        tolerance.dead_letter_destination, sink.plugin.atomic_dead_letter_destinations
    )
    return {
        "class": sink.plugin.__name__,
        **sink.config.effective_values(sink.plugin.definition(sink.config), sink.plugin.identity_keys),
        **(
            {}
            if tolerance is None or is_atomic
            else dead_letter_destination_identity(tolerance.dead_letter_destination, config)
        ),
    }


def definition_with_order_in_groups(keys: Iterable[ConfigKey]) -> ConfigDef:
    """A definition of ``keys`` with :attr:`ConfigKey.order`, the order in a form: the given order, numbered from 0 in
    each group."""
    next_order_by_group: Counter[str | None] = Counter()
    ordered_keys: list[ConfigKey] = []
    for key in keys:
        ordered_keys.append(replace(key, order=next_order_by_group[key.group]))
        next_order_by_group[key.group] += 1
    return ConfigDef(tuple(ordered_keys))


def _read_known_class_name(config: Mapping[str, str], connector_class_key: str) -> str:
    """The value of ``connector_class_key``, which names a source or a sink.

    :raises ConfigError: when the value is missing, or names neither.
    """
    name = config.get(connector_class_key, "").strip()
    if name not in source_by_name() and name not in SINK_BY_NAME:
        message = (
            f"This worker has no source or sink of the class {name}: correct {connector_class_key}, or install the "
            "plug-in on every worker"
        )
        raise ConfigError(
            {connector_class_key: [message if name else f"Set {connector_class_key} to the class of a source or sink"]}
        )
    return name
