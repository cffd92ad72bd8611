"""Every key of a connector's config has the definition that a form needs."""

from collections import Counter
from collections.abc import Sequence

import pytest

from coterie.config.definition import ConfigDef, ConfigKey, OneOf, OneOfPluginClasses, Width
from coterie.config.plugins import Plugin, PluginType
from coterie.nouns.errors import ConfigError
from coterie.spark import connector_keys, transforms, validation
from coterie.spark.plugin_list import all_plugins, plugin_config_keys
from coterie.spark.plugins import SINK_BY_CLASS_NAME, configured_sink, configured_source, source_by_name
from coterie.spark.seams import Source
from coterie.spark.sinks.file_writers import FORMATS
from coterie.spark.sources.files import FileSource
from coterie.spark.sources.kafka import KafkaSource
from coterie.spark.sources.python import PythonSource
from coterie.spark.sources.rate import RateSource

SOURCES: tuple[type[Source], ...] = (FileSource, KafkaSource, PythonSource, RateSource)
"""Typed, so that mypy checks that each class fits the seam: entry points are not typed."""

TRANSFORMS = {
    "transforms": "kept,typed",
    "transforms.kept.type": "Filter",
    "transforms.typed.type": "Cast",
}


CONNECTORS = [
    {"connector.class": "FileSource", "sink.format": "json"},
    {"connector.class": "FileSource", "sink.format": "noop"},
    {"connector.class": "RateSource", "sink.class": "FileSink"},
    {"connector.class": "FileSink", "source.class": "RateSource"},
    {"connector.class": "DeltaSink", "source.class": "RateSource"},
    {"connector.class": "PostgresSink", "source.class": "RateSource"},
    {"connector.class": "PythonSource", "sink.class": "FileSink"},
    {"connector.class": "FileSink", "value.converter": "JsonConverter"},
    {"connector.class": "RateSource", "topic": "t"},
    {"connector.class": "KafkaSink", "key.converter": "JsonConverter"},
]


@pytest.fixture(params=CONNECTORS, ids=lambda config: "-".join(config.values()))
def definition(request: pytest.FixtureRequest) -> ConfigDef:
    """All keys of a connector with this source and sink and each kind of transform."""
    ends = (
        configured_source(request.param, {}).definition
        + configured_sink(request.param, {"sink.format": "json"}).definition
    )
    return (
        connector_keys.common_connector_definition()
        + ends
        + transforms.transforms_and_predicates_definition(TRANSFORMS)
    )


def test_every_key_has_documentation_a_group_a_width_and_a_label(definition: ConfigDef) -> None:
    for key in definition.keys:
        assert key.documentation.endswith("."), key.name
        assert key.group, key.name
        assert key.display_name, key.name
        assert key.width is not Width.NONE, key.name


def test_names_are_unique_and_orders_count_each_groups_keys_from_0(definition: ConfigDef) -> None:
    assert max(Counter(key.name for key in definition.keys).values()) == 1
    groups = {key.group for key in definition.keys}
    assert len(groups) == 8
    for group in groups:
        orders = [key.order for key in definition.keys if key.group == group]
        assert sorted(orders) == list(range(len(orders))), group


def keys_in_form(plugin: Plugin) -> Sequence[ConfigKey]:
    """All keys that a form shows for ``plugin``; those of a transform or predicate have the prefix that they have in a
    connector's config."""
    match plugin.type:
        case PluginType.TRANSFORMATION:
            config = {"transforms": "a", "transforms.a.type": plugin.class_name}
            return transforms.transforms_and_predicates_definition(config).keys
        case PluginType.PREDICATE:
            config = {"predicates": "a", "predicates.a.type": plugin.class_name}
            return transforms.transforms_and_predicates_definition(config).keys
        case _:
            return plugin_config_keys(plugin.class_name, None)


@pytest.mark.parametrize("plugin", all_plugins(), ids=lambda plugin: f"{plugin.type} {plugin.class_name}")
def test_each_key_of_every_plugin_has_what_a_form_needs(plugin: Plugin) -> None:
    keys = keys_in_form(plugin)
    if plugin.type in (PluginType.SINK, PluginType.SOURCE, PluginType.TRANSFORMATION, PluginType.PREDICATE):
        assert keys
    names = {key.name for key in keys}
    assert len(names) == len(keys)
    for key in keys:
        assert key.documentation.endswith("."), key.name
        assert key.group, key.name
        assert key.display_name, key.name
        assert key.width is not Width.NONE, key.name
        assert set(key.dependents) <= names, key.name
        if isinstance(key.validator, OneOf | OneOfPluginClasses):
            assert key.recommended_values == tuple(sorted(key.validator.values)), key.name
    for group in {key.group for key in keys}:
        orders = [key.order for key in keys if key.group == group]
        assert sorted(orders) == list(range(len(orders))), group


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "Set connector.class to the class of a source or sink"),
        ({"connector.class": " "}, "Set connector.class to the class of a source or sink"),
        ({"connector.class": "Mine"}, "This worker has no source or sink of the class Mine: correct connector.class"),
    ],
)
def test_a_class_that_names_no_plug_in_is_refused(config: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        configured_source(config, {})
    assert raised.value.errors["connector.class"][0].startswith(message)


def test_dependents_are_keys_of_the_same_config(definition: ConfigDef) -> None:
    dependents = {name for key in definition.keys for name in key.dependents}
    own = {"kept": ["condition"], "typed": ["spec", "replace.null.with.default"]}
    assert dependents == {
        f"transforms.{alias}.{name}" for alias, names in own.items() for name in [*names, "predicate", "negate"]
    }
    assert all(definition[name] for name in dependents)


def test_a_key_with_a_closed_list_of_values_recommends_them(definition: ConfigDef) -> None:
    recommended = {key.name: key.recommended_values for key in definition.keys if key.recommended_values}
    assert set(recommended["connector.class"]) >= {"FileSource", "RateSource", *SINK_BY_CLASS_NAME}
    assert {"Cast", "Filter"} < set(recommended["transforms.kept.type"])
    if "sink.class" in recommended:
        assert recommended["sink.class"] == tuple(sorted(SINK_BY_CLASS_NAME))
        assert recommended["sink.format"] in (FORMATS, tuple(sorted((*FORMATS, "console", "noop"))))
    else:
        assert set(recommended["source.class"]) >= {"FileSource", "RateSource"}
        values = next(recommended[key] for key in ("insert.mode", "delivery.guarantee", "format") if key in recommended)
        assert values in (FORMATS, ("insert", "upsert"), ("at-least-once", "exactly-once"))


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:secret@h/d",
        "jdbc:postgresql://u:1/sec?ret@h/d",
        "postgresql://u:1/secret@h",
        "postgresql://u:1#secret@h/d",
        "postgresql://h/d?user=u&password=secret",
        "jdbc:postgresql://h:port/d?password=secret",
        "postgres:u:secret@h/d",
        "mysql://u:secret@h/d",
    ],
)
def test_no_part_of_a_password_in_place_of_a_url_is_quoted(url: str) -> None:
    config = {"connector.class": "PostgresSink", "connection.url": url}
    end = configured_sink(config, {})
    (sentence,) = end.definition.errors(config)["connection.url"]
    assert sentence.startswith("Invalid value [hidden] for configuration connection.url: ")
    assert "sec" not in sentence
    assert "ret" not in sentence
    assert "secret" not in repr(end)


def test_the_entry_points_name_our_sources_by_alias_class_and_full_class_name() -> None:
    for source in SOURCES:
        assert source_by_name()[source.__name__] is source
        assert source_by_name()[f"{source.__module__}.{source.__name__}"] is source


@pytest.mark.parametrize(
    ("key", "probably"),
    [
        ("sorce.path", "source.path"),
        ("soucre.path", "source.path"),
        ("sourcee.path", "source.path"),
        ("sinc.path", "sink.path"),
        ("transform.f.type", "transforms.f.type"),
        ("source.pth", None),
        ("sink.path", None),
        ("since.path", None),
        ("path", None),
        ("errors.tolerance", None),
        (".path", None),
    ],
)
def test_a_key_whose_prefix_looks_like_a_typo_is_found(key: str, probably: str | None) -> None:
    assert validation.likely_typos({"name": "a", key: "x"}) == ({} if probably is None else {key: probably})


def test_every_connector_has_a_key_for_the_interval_of_listing_source_parts() -> None:
    key = "metadata.max.age.ms"
    assert connector_keys.common_connector_definition().required_value({}, key, int) == 60_000
    assert connector_keys.common_connector_definition().required_value({key: "0"}, key, int) == 0
    assert key in connector_keys.common_connector_definition().errors({"connector.class": "FileSource", key: "-1"})
