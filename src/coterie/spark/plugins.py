"""Which plug-ins a connector's config names: the source and the sink at the two ends of its pipeline."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import entry_points

from coterie.config.definition import Definition, Importance, Key, Type, Width, one_of
from coterie.nouns.errors import ConfigError
from coterie.spark.bad_records.keys import tolerance_of
from coterie.spark.bad_records.queue import place_of
from coterie.spark.end_config import SINK, SOURCE, EndConfig
from coterie.spark.paths import SINK_GROUP, SOURCE_GROUP
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
"""The source of a sink connector that names none, as in Kafka Connect."""
DEFAULT_SINK = "KafkaSink"
"""The sink of a source connector without a key for a sink, as in Kafka Connect."""
ENTRY_POINTS = "coterie.connectors"
"""The group of entry points under which a package offers its sources: alias = class."""

SINKS: Mapping[str, type[Sink]] = {
    sink.__name__: sink for sink in (DeltaSink, FileSink, KafkaSink, NoopSink, PostgresSink, SparkSink)
}
"""Every sink, by its class name."""
SINK_BY_FORMAT: Mapping[str, type[Sink]] = {
    **dict.fromkeys(FORMATS, FileSink),
    "console": SparkSink,
    "noop": NoopSink,
}
"""The sink that ``sink.format`` names, where no class is named."""

SINK_FORMAT = Key(
    name="sink.format",
    type=Type.STRING,
    documentation="Format of the files that are written; console prints the rows, noop writes nothing.",
    importance=Importance.HIGH,
    check=one_of(SINK_BY_FORMAT),
    group=SINK_GROUP,
    width=Width.SHORT,
    display_name="Sink format",
)


@cache
def source_class() -> Key:
    """``source.class``, of a sink connector."""
    return replace(
        _class_key("source.class", "The source that a sink connector reads.", sources(), SOURCE_GROUP),
        default=DEFAULT_SOURCE,
    )


@cache
def sink_class() -> Key:
    """``sink.class``, of a source connector."""
    documentation = "The sink that a source connector writes to; without it, sink.format names the sink."
    return replace(_class_key("sink.class", documentation, SINKS, SINK_GROUP), optional=True)


def _class_key(name: str, documentation: str, values: Iterable[str], group: str) -> Key:
    return Key(
        name=name,
        type=Type.CLASS,
        documentation=documentation,
        importance=Importance.HIGH,
        check=one_of(values),
        group=group,
        width=Width.LONG,
        display_name=f"{group} class",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceEnd:
    """The source of a connector, and how it reads the connector's config."""

    plugin: type[Source]
    config: EndConfig
    definition: Definition
    """Its keys as the user sees them, those that name the source among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkEnd:
    """The sink of a connector, and how it reads the connector's config."""

    plugin: type[Sink]
    config: EndConfig
    definition: Definition
    """Its keys as the user sees them, those that name the sink among them."""


@cache
def sources() -> Mapping[str, type[Source]]:
    """Every installed source, by alias, by class name and by full class name."""
    found: dict[str, type[Source]] = {}
    for entry in entry_points(group=ENTRY_POINTS):
        source: type[Source] = entry.load()
        for name in (entry.name, source.__name__, f"{source.__module__}.{source.__qualname__}"):
            found[name] = source
    return found


def connector_type(config: Mapping[str, str]) -> str:
    """``source`` or ``sink``, or ``unknown`` when there is no such class."""
    name = config.get("connector.class", "").strip()
    return "source" if name in sources() else "sink" if name in SINKS else "unknown"


def source_end(config: Mapping[str, str], worker: Mapping[str, str], class_key: str = "connector.class") -> SourceEnd:
    """The source of a connector, or of a task: the class that ``class_key`` names, or the one that a sink names.

    ``worker``: see :attr:`EndConfig.worker`.

    :raises ConfigError: when a class is missing or unknown; names its key.
    """
    name = _class_name(config, class_key)
    is_own = name in sources()
    selectors = Definition(() if is_own else (source_class(),))
    if not is_own:
        name = selectors.read(config, "source.class", str)
    # A sink connector of Kafka Connect names its topics without a prefix. The keys of the Kafka sink are its own.
    is_prefix_optional = is_own or ("source.class" not in config and SINKS.get(config[class_key].strip()) != KafkaSink)
    end = EndConfig(config=config, prefix=SOURCE, is_prefix_optional=is_prefix_optional, worker=worker)
    plugin = sources()[name]
    keys = end.shown(plugin.definition(end)).keys
    return SourceEnd(plugin=plugin, config=end, definition=_numbered((*selectors.keys, *keys)))


def sink_end(config: Mapping[str, str], worker: Mapping[str, str], class_key: str = "connector.class") -> SinkEnd:
    """The sink of a connector, or of a task: the class that ``class_key`` names, or the one that a source names.

    ``worker``: see :attr:`EndConfig.worker`.

    :raises ConfigError: when a class or format is missing or unknown; names its key.
    """
    name = _class_name(config, class_key)
    selectors: tuple[Key, ...] = ()
    is_implied = False
    if is_own := name in SINKS:
        plugin = SINKS[name]
    elif named := Definition((sink_class(),)).find(config, "sink.class", str):
        plugin, selectors = SINKS[named], (sink_class(),)
    elif is_implied := not any(key.startswith(SINK) for key in config):
        plugin, selectors = SINKS[DEFAULT_SINK], (sink_class(), replace(SINK_FORMAT, optional=True))
    else:
        selectors = (sink_class(), SINK_FORMAT)
        plugin = SINK_BY_FORMAT[Definition(selectors).read(config, SINK_FORMAT.name, str)]
    # A source connector of Kafka Connect names its topic without a prefix. The keys of the Kafka source are its own.
    is_prefix_optional = is_own or (is_implied and sources()[name] is not KafkaSource)
    end = EndConfig(config=config, prefix=SINK, is_prefix_optional=is_prefix_optional, worker=worker)
    keys = end.shown(plugin.definition(end)).keys
    # A key of the sink's own that has a selector's name is left out: the selector has the values of all sinks.
    taken = {key.name for key in selectors}
    return SinkEnd(
        plugin=plugin,
        config=end,
        definition=_numbered((*selectors, *(key for key in keys if key.name not in taken))),
    )


def written_to(config: Mapping[str, str], worker: Mapping[str, str]) -> Mapping[str, str | None]:
    """Where a connector's rows are written and what they mean there: the class of the sink, the keys of its identity,
    and the place of bad records unless the sink holds these.

    ``worker``: see :attr:`EndConfig.worker`.

    :raises ConfigError: when a value is not valid; names its key.
    """
    sink = sink_end(config, worker)
    tolerance = tolerance_of(config)
    is_held = tolerance is None or isinstance(tolerance.letters, sink.plugin.holds)
    return {
        "class": sink.plugin.__name__,
        **sink.config.stated(sink.plugin.definition(sink.config), sink.plugin.identity),
        **({} if tolerance is None or is_held else place_of(tolerance.letters, config)),
    }


def _numbered(keys: Iterable[Key]) -> Definition:
    """``keys`` in the order given, which is that of a form: each group's count from 0."""
    places: Counter[str | None] = Counter()
    numbered: list[Key] = []
    for key in keys:
        numbered.append(replace(key, order=places[key.group]))
        places[key.group] += 1
    return Definition(tuple(numbered))


def _class_name(config: Mapping[str, str], class_key: str) -> str:
    name = config.get(class_key, "").strip()
    if name not in sources() and name not in SINKS:
        raise ConfigError({class_key: [f"No such connector: {config.get(class_key)}"]})
    return name
