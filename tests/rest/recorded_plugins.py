"""A simulated runtime with the plug-ins of the Kafka Connect worker whose calls were recorded, for the tests that
compare responses with the recordings."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from coterie.config.definition import (
    ConfigDef,
    ConfigKey,
    Importance,
    OneOf,
    OneOfPluginClasses,
    Type,
    Width,
    at_least,
    split_list,
)
from coterie.config.infos import ConfigInfos, make_config_infos
from coterie.config.plugins import Plugin, PluginType, find_plugin, version_error
from tests.worker.simulated import SimulatedRuntime

_VECTORS = Path(__file__).parent / "vectors" / "connect-rest-2.json"
PLUGIN_CALLS: list[dict[str, Any]] = [
    call for call in json.loads(_VECTORS.read_text())["rest"] if call["section"] in ("plugins", "validate")
]
PLUGINS = [
    Plugin(
        class_name=recorded["class"],
        type=PluginType(recorded["type"]),
        version=recorded["version"],
        aliases=(
            recorded["class"].rpartition(".")[2],
            recorded["class"].rpartition(".")[2].removesuffix("Connector"),
        ),
    )
    for call in PLUGIN_CALLS
    if call["path"] == "/connector-plugins?connectorsOnly=false"
    for recorded in call["body"]
]


def _recorded_keys(class_name: str) -> tuple[ConfigKey, ...]:
    """The recorded definition of a plug-in's keys; empty for a plug-in whose keys were not recorded."""
    path = f"/connector-plugins/{class_name}/config"
    alias = f"/connector-plugins/{class_name.rpartition('.')[2].removesuffix('Connector')}/config"
    call = next((call for call in PLUGIN_CALLS if call["path"] in (path, alias)), None)
    return () if call is None else tuple(map(_parse_key, call["body"]))


def _parse_key(recorded: dict[str, Any]) -> ConfigKey:
    return ConfigKey(
        name=recorded["name"],
        type=Type(recorded["type"]),
        documentation=recorded["documentation"],
        default=recorded["default_value"],
        is_optional=not recorded["required"],
        importance=Importance(recorded["importance"]),
        group=recorded["group"],
        order=recorded["order_in_group"],
        width=Width(recorded["width"]),
        display_name=recorded["display_name"],
        dependents=tuple(recorded["dependents"]),
    )


KEYS_BY_CLASS = {plugin.class_name: _recorded_keys(plugin.class_name) for plugin in PLUGINS} | {
    "org.apache.kafka.connect.transforms.RegexRouter": (
        ConfigKey(name="replacement", type=Type.STRING, documentation="The keys of this transform were not recorded."),
        ConfigKey(
            name="regex",
            type=Type.STRING,
            documentation="Likewise.",
            validator=lambda value: "Invalid regex: Unclosed group near index 1\n(" if value == "(" else None,
        ),
    )
}
VERSION = "4.3.1"
DEFAULT_CLASSES = {
    "key.converter": "org.apache.kafka.connect.json.JsonConverter",
    "value.converter": "org.apache.kafka.connect.json.JsonConverter",
    "header.converter": "org.apache.kafka.connect.storage.SimpleHeaderConverter",
}
"""The converters of the recorded worker, which a validation shows as defaults."""

CONVERTER_KEY_ORDER = (
    "decimal.format",
    "converter.type",
    "schemas.cache.size",
    "schema.content",
    "replace.null.with.default",
    "schemas.enable",
)
"""The order of a JsonConverter's keys in a validation."""


def class_names(type_: PluginType) -> OneOfPluginClasses:
    names = tuple(plugin.class_name for plugin in PLUGINS if plugin.type is type_)
    return OneOfPluginClasses(names, interface_name=type_.interface_name)


class RecordedPluginsRuntime(SimulatedRuntime):
    """Has the plug-ins of the recorded worker, with the recorded keys."""

    async def list_plugins(self) -> Sequence[Plugin]:
        return PLUGINS

    async def describe_plugin(self, name: str, version_range: str | None) -> Sequence[ConfigKey]:
        return KEYS_BY_CLASS[find_plugin(PLUGINS, name, version_range).class_name]

    async def validate(
        self, config: Mapping[str, str], configs_of_checkpointed_tasks: Sequence[Mapping[str, str]]
    ) -> ConfigInfos:
        name = config["connector.class"]
        plugin = find_plugin(PLUGINS, name)
        definition = connector_definition(plugin, config)
        errors = definition.errors(config) | other_errors(config)
        if (message := version_error(plugin, config.get("connector.plugin.version", "latest"))) is not None:
            errors |= {"connector.class": [message], "connector.plugin.version": [message]}
        infos = make_config_infos(name, definition, config, errors)
        return replace(infos, client_property_type_error=client_property_type_error(config))


def connector_definition(plugin: Plugin, config: Mapping[str, str]) -> ConfigDef:
    """The keys of a connector of the recorded worker, in the order in which it validates them."""
    keys = KEYS_BY_CLASS[plugin.class_name]
    first_common = [key.name for key in keys].index("name")
    common = [with_checks(key, config) for key in keys[first_common:]]
    aliases = [
        key
        for list_key, title, type_ in (
            ("transforms", "Transforms", PluginType.TRANSFORMATION),
            ("predicates", "Predicates", PluginType.PREDICATE),
        )
        for alias in dict.fromkeys(split_list(config.get(list_key, "")))
        for key in alias_keys(f"{list_key}.{alias}.", f"{title}: {alias}", type_, config)
    ]
    converter_keys = [
        replace(
            key,
            name=f"{name}.{key.name}",
            name_in_type_errors=key.name,
            default="value" if key.name == "converter.type" else key.default,
        )
        for name in DEFAULT_CLASSES
        if (class_name := config.get(name)) in KEYS_BY_CLASS
        for key in sorted(KEYS_BY_CLASS[class_name], key=lambda key: CONVERTER_KEY_ORDER.index(key.name))
    ]
    return ConfigDef((*common, *aliases, *keys[:first_common], *converter_keys))


def with_checks(key: ConfigKey, config: Mapping[str, str]) -> ConfigKey:
    """A recorded key with the checks and the defaults of a validation, which were not recorded."""
    if key.name in DEFAULT_CLASSES:
        type_ = PluginType.HEADER_CONVERTER if key.name == "header.converter" else PluginType.CONVERTER
        return replace(key, default=DEFAULT_CLASSES[key.name], validator=class_names(type_))
    class_key = key.name.removesuffix(".plugin.version")
    if class_key in DEFAULT_CLASSES:
        is_known = config.get(class_key, DEFAULT_CLASSES[class_key]) in KEYS_BY_CLASS
        return replace(key, default=VERSION if is_known else None, validator=OneOf((VERSION,), "Version is"))
    match key.name:
        case "connector.plugin.version":
            return replace(key, validator=OneOf((key.default or VERSION,), "Version is"))
        case "transforms":
            return replace(
                key,
                validator=lambda value: (
                    None if len(set(split_list(value))) == len(split_list(value)) else "Duplicate alias provided."
                ),
            )
        case "tasks.max":
            return replace(key, validator=at_least(1))
        case "errors.tolerance":
            return replace(
                key, validator=lambda value: None if value in ("none", "all") else "String must be one of: none, all"
            )
        case _:
            return key


def alias_keys(prefix: str, group: str, type_: PluginType, config: Mapping[str, str]) -> list[ConfigKey]:
    """The keys of one transform or predicate, with their prefix."""
    class_name = config.get(f"{prefix}type", "")
    type_key = ConfigKey(name="type", type=Type.CLASS, documentation="The class.", validator=class_names(type_))
    keys = []
    if class_name in KEYS_BY_CLASS:
        version = OneOf((VERSION,), "Version is")
        keys.append(
            ConfigKey(
                name="plugin.version", type=Type.STRING, documentation="Version.", default=VERSION, validator=version
            )
        )
        if type_ is PluginType.TRANSFORMATION:
            keys += [
                ConfigKey(name="negate", type=Type.BOOLEAN, documentation="Negate.", default="false"),
                ConfigKey(name="predicate", type=Type.STRING, documentation="Predicate.", is_optional=True),
            ]
        keys += KEYS_BY_CLASS[class_name]
    own_keys = [replace(key, name_in_validator_errors=key.name) for key in keys]
    return [replace(key, name=prefix + key.name, group=group) for key in (type_key, *own_keys)]


def client_property_type_error(config: Mapping[str, str]) -> str | None:
    """Connect's message about the value of a property of the recorded source's producer, if it has the wrong type."""
    linger_ms = config.get("producer.override.linger.ms", "0")
    return (
        None
        if linger_ms.isdigit()
        else f"Invalid value {linger_ms} for configuration linger.ms: Not a number of type LONG"
    )


def other_errors(config: Mapping[str, str]) -> dict[str, list[str]]:
    """What Connect checks about several keys."""
    errors: dict[str, list[str]] = {}
    if config.get("exactly.once.support") == "required":
        errors["exactly.once.support"] = [
            "This worker does not have exactly-once source support enabled.",
            "The connector does not support exactly-once semantics with the provided configuration.",
        ]
    is_sink = "Sink" in config["connector.class"]
    if is_sink and "topics" not in config and "topics.regex" not in config:
        message = "Must configure one of topics or topics.regex"
        errors |= {"topics": [message], "topics.regex": [message]}
    if config.get("consumer.override.group.id") == "restlab":
        errors["consumer.override.group.id"] = ["Consumer group restlab conflicts with Connect worker group restlab"]
    if "topics" in config and "topics.regex" in config:
        message = "topics and topics.regex are mutually exclusive options, but both are set."
        errors |= {"topics": [message], "topics.regex": [message]}
    if (topic := config.get("errors.deadletterqueue.topic.name")) and topic in split_list(config.get("topics", "")):
        errors["topics"] = [
            f"The DLQ topic '{topic}' may not be included in the list of topics ('topics=[{config['topics']}]') "
            "consumed by the connector"
        ]
    return errors
