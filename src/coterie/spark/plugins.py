"""How a source is found by its class name or its short alias, and a sink by its format."""

from collections.abc import Mapping
from functools import cache
from importlib.metadata import entry_points

from coterie.config.definition import Definition, Importance, Key, Type, Width, one_of
from coterie.nouns.errors import ConfigError
from coterie.spark.paths import SINK_GROUP
from coterie.spark.seams import Sink, Source
from coterie.spark.sinks.files import FORMATS, FileSink
from coterie.spark.sinks.noop import NoopSink

ENTRY_POINTS = "coterie.connectors"
"""The group of entry points under which a package offers its sources: alias = class."""

SINKS: Mapping[str, type[Sink]] = {**dict.fromkeys(FORMATS, FileSink), "noop": NoopSink}
"""Every sink, by each of its formats."""

SINK_FORMAT = Key(
    name="sink.format",
    type=Type.STRING,
    documentation="Format of the files that are written; noop writes nothing.",
    importance=Importance.HIGH,
    check=one_of(SINKS),
    group=SINK_GROUP,
    order=0,
    width=Width.SHORT,
    display_name="Sink format",
)


@cache
def sources() -> Mapping[str, type[Source]]:
    """Every installed source, by alias, by class name and by full class name."""
    found: dict[str, type[Source]] = {}
    for entry in entry_points(group=ENTRY_POINTS):
        source: type[Source] = entry.load()
        for name in (entry.name, source.__name__, f"{source.__module__}.{source.__qualname__}"):
            found[name] = source
    return found


def find_source(connector_class: str | None) -> type[Source] | None:
    return None if connector_class is None else sources().get(connector_class.strip())


def source_of(config: Mapping[str, str], key: str) -> type[Source]:
    """The source whose class or alias is the value of ``key``.

    :raises ConfigError: when there is none.
    """
    source = find_source(config.get(key))
    if source is None:
        raise ConfigError({key: [f"No such connector: {config.get(key)}"]})
    return source


def find_sink(config: Mapping[str, str]) -> type[Sink]:
    """:raises ConfigError: when ``sink.format`` is missing, or there is no such sink."""
    return SINKS[Definition((SINK_FORMAT,)).read(config, SINK_FORMAT.name, str)]


def sink_definition(config: Mapping[str, str]) -> Definition:
    """``sink.format`` and the keys of the sink that it names; where it names none, those of the file sink."""
    sink = SINKS.get(config.get(SINK_FORMAT.name, "").strip(), FileSink)
    return Definition((SINK_FORMAT,)) + sink.definition()
