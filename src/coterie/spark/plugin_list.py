"""All plug-ins of this worker as Connect's REST API lists them, and the config keys of each."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib.metadata import entry_points

from coterie import __version__
from coterie.config.definition import ConfigDef, ConfigKey, OneOfPluginClasses
from coterie.config.plugins import Plugin, PluginType, find_plugin, sorted_as_in_connect, version_error
from coterie.nouns.errors import invalid_value_message
from coterie.spark import converters, serializers
from coterie.spark.connector_keys import (
    CLASS_KEY_BY_VERSION_KEY,
    HEADER_CONVERTER_NAMES,
    common_connector_definition,
    connector_definition,
)
from coterie.spark.plugins import (
    ENTRY_POINT_GROUP,
    SINK_BY_CLASS_NAME,
    configured_sink,
    configured_source,
)
from coterie.spark.prefixed_config import PrefixedConfig
from coterie.spark.seams import Source
from coterie.spark.smt.predicates import PREDICATE_TYPE_BY_NAME, PREDICATE_TYPES
from coterie.spark.smt.registry import ALL_TRANSFORM_TYPES, TYPE_AND_SIDE_BY_NAME


@cache
def all_plugins() -> Sequence[Plugin]:
    """All plug-ins of this worker, by type and then by class name, as in Connect's list. The first call imports the
    packages of all sources, and raises the exception of a package that cannot be imported. Later calls return the same
    list: a package that is installed later is missing until the worker restarts."""
    return sorted_as_in_connect(
        {*_sources(), *_sinks(), *_transforms(), *_predicates(), *_converters_and_header_converters()}
    )


def plugin_config_keys(name: str, version_range: str | None) -> Sequence[ConfigKey]:
    """The config keys of the plug-in with the name ``name``, whose version must be in ``version_range`` (None: any
    version). For a source or sink: its own keys, then those that every connector has. For a transform, predicate or
    converter: its own keys, without the prefix that they have in a connector's config. For a header converter: none.

    :raises UnknownPluginError, PluginVersionError: see :func:`find_plugin`.
    """
    plugin = find_plugin(all_plugins(), name, version_range)
    match plugin.type:
        case PluginType.SINK | PluginType.SOURCE:
            return _own_then_common_connector_keys(plugin.class_name)
        case PluginType.TRANSFORMATION:
            return TYPE_AND_SIDE_BY_NAME[plugin.class_name][0].keys
        case PluginType.PREDICATE:
            return PREDICATE_TYPE_BY_NAME[plugin.class_name].keys
        case PluginType.CONVERTER:
            return _converter_keys(plugin.class_name)
        case PluginType.HEADER_CONVERTER:
            return ()


def plugin_version_errors(config: Mapping[str, str]) -> dict[str, list[str]]:
    """An error for each version of a plug-in in ``config`` that this worker does not have, by key: under the key of the
    version, and under the key that names the plug-in."""
    errors: dict[str, list[str]] = {}
    for version_key, class_key in CLASS_KEY_BY_VERSION_KEY.items():
        names = config.get(class_key, "").strip()
        plugin = next((plugin for plugin in all_plugins() if names in plugin.names), None)
        message = version_error(plugin, config[version_key]) if plugin and version_key in config else None
        if message is not None:
            # As in Connect, the class and the version are both wrong.
            errors |= {class_key: [message], version_key: [message]}
    return errors


def wrong_plugin_type_errors(definition: ConfigDef, config: Mapping[str, str]) -> dict[str, list[str]]:
    """An error, by key, for each key of ``definition`` that must name a plug-in of one type, and names one of another
    type."""
    errors: dict[str, list[str]] = {}
    for key in definition.keys:
        value = config.get(key.name, "").strip()
        if not isinstance(key.validator, OneOfPluginClasses) or key.validator(value) is None:
            continue
        if any(value in plugin.names for plugin in all_plugins()):
            message = f"Class {value} does not implement the {key.validator.interface_name} interface"
            errors[key.name] = [invalid_value_message(key.name, value, message)]
    return errors


# -- the plug-ins of each type ----------------------------------------------------------------------------------------


def _sources() -> Iterator[Plugin]:
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        source: type[Source] = entry.load()
        yield Plugin(
            class_name=f"{source.__module__}.{source.__qualname__}",
            type=PluginType.SOURCE,
            version=None if entry.dist is None else entry.dist.version,
            aliases=tuple(dict.fromkeys((entry.name, source.__name__))),
        )


def _sinks() -> Iterator[Plugin]:
    for name, sink in SINK_BY_CLASS_NAME.items():
        yield _make_built_in_plugin(f"{sink.__module__}.{sink.__qualname__}", PluginType.SINK, (name,))


def _transforms() -> Iterator[Plugin]:
    for kind in ALL_TRANSFORM_TYPES:
        for side, class_name in kind.class_names_by_side().items():
            names = (name for name, named_side in kind.side_by_accepted_name().items() if named_side is side)
            aliases = tuple(name for name in names if name != class_name)
            yield _make_built_in_plugin(class_name, PluginType.TRANSFORMATION, aliases)


def _predicates() -> Iterator[Plugin]:
    for kind in PREDICATE_TYPES:
        yield _make_built_in_plugin(kind.class_name, PluginType.PREDICATE, (kind.name,))


def _converters_and_header_converters() -> Iterator[Plugin]:
    for type_, names in (
        (PluginType.CONVERTER, converters.CONVERTER_NAMES),
        (PluginType.HEADER_CONVERTER, HEADER_CONVERTER_NAMES),
    ):
        for class_name in names.values:
            yield _make_built_in_plugin(class_name, type_, (class_name.rpartition(".")[2],))


def _make_built_in_plugin(class_name: str, type_: PluginType, aliases: tuple[str, ...]) -> Plugin:
    """A plug-in that is a part of Coterie: its version is Coterie's."""
    return Plugin(class_name=class_name, type=type_, version=__version__, aliases=aliases)


# -- the keys of a plug-in --------------------------------------------------------------------------------------------


def _own_then_common_connector_keys(class_name: str) -> Sequence[ConfigKey]:
    """The keys of a connector whose config contains only ``connector.class``, with the value ``class_name``. The keys
    that every connector has come last."""
    config = {"connector.class": class_name}
    keys = connector_definition(config, configured_source(config, {}), configured_sink(config, {})).keys
    common = {key.name for key in common_connector_definition().keys}
    return [*(key for key in keys if key.name not in common), *(key for key in keys if key.name in common)]


def _converter_keys(class_name: str) -> Sequence[ConfigKey]:
    """The keys of a converter, without the prefix ``value.converter.``: those that it has for a source and those that
    it has for a sink, each once. Their `ConfigKey.group` is "Schemas", as for Connect's JsonConverter."""
    prefix = "value.converter."
    config = PrefixedConfig(config={"value.converter": class_name}, prefix="", is_prefix_optional=True)
    keys = (
        *converters.converter_definition(config, "value").keys,
        *serializers.serializer_definition(config, "value").keys,
    )
    own = {key.name: key for key in keys if key.name.startswith(prefix)}
    return [
        replace(key, name=name.removeprefix(prefix), group="Schemas", order=order)
        for order, (name, key) in enumerate(own.items())
    ]
