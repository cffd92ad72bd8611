"""The plug-ins of a worker, the keys of each, and the results of validations of connectors with them."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyspark.errors import AnalysisException

from coterie import __version__
from coterie.config.definition import ConfigKey, Type
from coterie.config.infos import ConfigInfos, make_config_infos
from coterie.config.plugins import Plugin, PluginType, PluginVersionError, UnknownPluginError, sorted_as_in_connect
from coterie.config.secrets import MASK, masked_config
from coterie.nouns.errors import ConfigError
from coterie.rest import models, plugin_views
from coterie.spark import transforms
from coterie.spark.connector_keys import connector_definition
from coterie.spark.plugin_list import all_plugins, plugin_config_keys, plugin_version_errors, wrong_plugin_type_errors
from coterie.spark.plugins import configured_sink, configured_source, source_version_by_name
from coterie.spark.smt.registry import TYPE_AND_SIDE_BY_NAME
from coterie.spark.validation import validate_config
from tests.spark.conftest import Rig

CONNECTORS = [plugin for plugin in all_plugins() if plugin.type.is_connector]
PLUGIN_IDS = [f"{plugin.type.value} {plugin.class_name}" for plugin in all_plugins()]


def test_each_source_has_the_version_of_its_package_by_each_name_without_an_import() -> None:
    sources = [plugin for plugin in all_plugins() if plugin.type is PluginType.SOURCE]
    assert source_version_by_name() == {name: plugin.version for plugin in sources for name in plugin.names}


def infos_of(config: Mapping[str, str]) -> ConfigInfos:
    """The result of the checks of ``config`` that need no Spark."""
    try:
        source = configured_source(config, {})
    except ConfigError:
        source = None
    try:
        sink = configured_sink(config, {})
    except ConfigError:
        sink = None
    definition = connector_definition(config, source, sink)
    errors = definition.errors(config) | plugin_version_errors(config) | wrong_plugin_type_errors(definition, config)
    return make_config_infos(config.get("connector.class", ""), definition, config, errors)


def test_the_list_has_every_plugin_once_in_connects_order() -> None:
    listed = all_plugins()
    assert listed == sorted_as_in_connect(set(listed))
    names = {type_: [p.class_name for p in listed if p.type is type_] for type_ in PluginType}
    assert "coterie.spark.sinks.files.FileSink" in names[PluginType.SINK]
    assert "coterie.spark.sources.kafka.KafkaSource" in names[PluginType.SOURCE]
    assert {"org.apache.kafka.connect.transforms.Cast$Key", "Sql"} <= set(names[PluginType.TRANSFORMATION])
    assert "org.apache.kafka.connect.transforms.predicates.HasHeaderKey" in names[PluginType.PREDICATE]
    assert len(names[PluginType.CONVERTER]) == 3
    assert "org.apache.kafka.connect.storage.SimpleHeaderConverter" in names[PluginType.HEADER_CONVERTER]
    assert {plugin.version for plugin in listed} == {__version__}
    transform_names = {name for plugin in listed if plugin.type is PluginType.TRANSFORMATION for name in plugin.names}
    assert transform_names == set(TYPE_AND_SIDE_BY_NAME)


def test_readers_see_no_password_of_any_plugin() -> None:
    keys = [key.name for plugin in all_plugins() for key in plugin_config_keys(plugin.class_name, __version__)]
    passwords = [
        key.name
        for plugin in all_plugins()
        for key in plugin_config_keys(plugin.class_name, __version__)
        if key.type is Type.PASSWORD
    ]
    assert passwords
    assert masked_config(dict.fromkeys(passwords, "x")) == dict.fromkeys(passwords, MASK)
    assert masked_config(dict.fromkeys(keys, "x")) == {key: MASK if key in passwords else "x" for key in keys}


@pytest.mark.parametrize("plugin", all_plugins(), ids=PLUGIN_IDS)
def test_every_name_of_a_plugin_describes_well_formed_keys(plugin: Plugin) -> None:
    keys = plugin_config_keys(plugin.class_name, __version__)
    assert len({key.name for key in keys}) == len(keys)
    for key in plugin_views.config_keys_json(keys):
        models.ConfigKey.model_validate(json.loads(json.dumps(key)), strict=True)
        assert str(key["documentation"]).endswith("."), key
        assert "\n" not in str(key["documentation"])
    assert all(key.value_error(key.default) is None for key in keys if key.default is not None), "each default is valid"
    others = [other.class_name for other in all_plugins() if set(other.names) & set(plugin.names)]
    assert set(others) == {plugin.class_name}, "a name means one class"
    with pytest.raises(PluginVersionError):
        plugin_config_keys(plugin.class_name, "9.9")


def test_a_connectors_own_keys_come_before_those_of_every_connector() -> None:
    names = [key.name for key in plugin_config_keys("FileSource", None)]
    assert names.index("path") < names.index("sink.class") < names.index("name") < names.index("tasks.max")
    assert "consumer.override.auto.offset.reset" in [key.name for key in plugin_config_keys("FileSink", None)]
    assert [key.name for key in plugin_config_keys("JsonConverter", None)] == ["schemas.enable"]
    with pytest.raises(UnknownPluginError):
        plugin_config_keys("java.lang.String", None)


@pytest.mark.parametrize("plugin", CONNECTORS, ids=lambda plugin: plugin.class_name)
def test_a_connector_is_named_by_the_class_in_the_list(plugin: Plugin) -> None:
    errors = infos_of({"connector.class": plugin.class_name}).errors
    assert "connector.class" not in errors
    assert infos_of({"connector.class": plugin.class_name}).groups[0] == "Common"


VALUES = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        [
            "true",
            "-1",
            "0",
            "2147483648",
            "a,a",
            "JsonConverter",
            "FileSink",
            "Filter",
            "Cast",
            "all",
            "9.9",
            "${env:X}",
        ]
    ),
)
KEYS = st.sampled_from(
    [
        *{key.name for plugin in CONNECTORS for key in plugin_config_keys(plugin.class_name, None)},
        *(f"transforms.a.{name}" for name in ("type", "spec", "condition", "predicate", "unknown")),
        *("predicates.a.type", "predicates.a.pattern", "source.unknown", "sink.unknown", "value.converter.x"),
    ]
)


@given(
    connector_class=st.sampled_from([name for plugin in CONNECTORS for name in plugin.names]),
    config=st.dictionaries(KEYS, VALUES, max_size=8),
)
@example(connector_class="RateSource", config={"predicates": "a,a", "transforms": "a,a"})
def test_every_validation_is_well_formed_and_survives_json(connector_class: str, config: dict[str, str]) -> None:
    infos = infos_of({"transforms": "a", "predicates": "a"} | config | {"connector.class": connector_class})
    body = plugin_views.config_infos_json(infos)
    parsed = json.loads(json.dumps(body))
    assert parsed == body
    models.ConfigInfos.model_validate(parsed, strict=True)
    names = [info["definition"]["name"] for info in parsed["configs"]]
    assert len(set(names)) == len(names)
    assert [info["value"]["name"] for info in parsed["configs"]] == names
    assert parsed["error_count"] == sum(len(info["value"]["errors"]) for info in parsed["configs"])
    assert set(parsed["groups"]) == {info["definition"]["group"] for info in parsed["configs"]} - {None}
    for info in parsed["configs"]:
        assert set(info["definition"]["dependents"]) <= set(names)
        if info["definition"]["type"] == "PASSWORD":
            assert info["value"]["value"] in (None, "[hidden]")
    for group in parsed["groups"]:
        orders = [
            info["definition"]["order_in_group"] for info in parsed["configs"] if info["definition"]["group"] == group
        ]
        assert sorted(orders) == list(range(len(orders))), group


MISSPELT = [
    ({"errors.tolerance": "some"}, "errors.tolerance", "String must be one of: none, all"),
    ({"value.converter": "no.such"}, "value.converter", "Class no.such could not be found."),
    ({"key.converter": "Filter"}, "key.converter", "Class Filter does not implement the Converter interface"),
    ({"header.converter": "no.such"}, "header.converter", "Class no.such could not be found."),
    ({"header.converter": "FileSink"}, "header.converter", "does not implement the HeaderConverter interface"),
    ({"transforms": "a"}, "transforms.a.type", "Missing required configuration"),
    ({"transforms": "a,a", "transforms.a.type": "Flatten"}, "transforms", "Invalid value [a, a] for configuration"),
    ({"transforms": "a", "transforms.a.type": "no.such"}, "transforms.a.type", "Class no.such could not be found."),
    ({"transforms": "a", "transforms.a.type": "JsonConverter"}, "transforms.a.type", "the Transformation interface"),
    (
        {"transforms": "a", "transforms.a.type": "Cast"},
        "transforms.a.spec",
        'Missing required configuration "transforms.a.spec" which has no default value.',
    ),
    # Connect's message has the key of a transform or predicate without its prefix if the validator finds the error.
    (
        {"predicates": "p", "predicates.p.type": "HasHeaderKey", "predicates.p.name": " "},
        "predicates.p.name",
        "Invalid value   for configuration name: String must be non-empty",
    ),
    (
        {"transforms": "a", "transforms.a.type": "Flatten", "transforms.a.negate": "maybe"},
        "transforms.a.negate",
        "Invalid value maybe for configuration transforms.a.negate: Expected value to be either true or false",
    ),
    (
        {"connector.class": "KafkaSink", "value.converter": "JsonConverter", "value.converter.schemas.enable": "maybe"},
        "value.converter.schemas.enable",
        "Invalid value maybe for configuration schemas.enable: Expected value to be either true or false",
    ),
    (
        {
            "connector.class": "KafkaSource",
            "source.key.converter": "JsonConverter",
            "source.key.converter.schemas.enable": "maybe",
        },
        "source.key.converter.schemas.enable",
        "Invalid value maybe for configuration schemas.enable: Expected value to be either true or false",
    ),
    ({"predicates": "p", "predicates.p.type": "Cast"}, "predicates.p.type", "the Predicate interface"),
    ({"tasks.max": "x"}, "tasks.max", "Not a number of type INT"),
    ({"tasks.max.enforce": "maybe"}, "tasks.max.enforce", "Expected value to be either true or false"),
    ({"config.action.reload": "later"}, "config.action.reload", "String must be one of: none, restart"),
    ({"transaction.boundary": "batch"}, "transaction.boundary", "INTERVAL, POLL, CONNECTOR"),
    ({"connector.plugin.version": "9"}, "connector.plugin.version", "not found that matches the version range [9,9]"),
    ({"connector.class": "Cast"}, "connector.class", "Class Cast does not implement the Connector interface"),
    ({"sink.class": "FileSource"}, "sink.class", "does not implement the SinkConnector interface"),
]


@pytest.mark.parametrize(("changes", "key", "words"), MISSPELT, ids=lambda value: str(value)[:40])
def test_a_misspelt_value_is_an_error_of_its_key(changes: dict[str, str], key: str, words: str) -> None:
    errors = infos_of({"connector.class": "RateSource", "name": "a", "sink.class": "NoopSink"} | changes).errors
    assert any(words in message for message in errors[key]), errors


def test_connects_converters_are_accepted_where_they_have_no_effect() -> None:
    converters = {f"{side}.converter": "org.apache.kafka.connect.storage.StringConverter" for side in ("key", "value")}
    converters["header.converter"] = "org.apache.kafka.connect.storage.SimpleHeaderConverter"
    config = {"connector.class": "RateSource", "name": "a", "sink.format": "noop", "rows.per.second": "1"} | converters
    infos = infos_of(config)
    assert infos.errors == {}

    def group_of_converter(infos: ConfigInfos) -> str | None:
        (key,) = [info.key for info in infos.configs if info.name == "value.converter"]
        return None if key is None else key.group

    assert group_of_converter(infos) == "Without effect"
    assert group_of_converter(infos_of({"connector.class": "FileSink"})) == "Source"


def test_a_secret_is_shown_as_a_password_of_the_form() -> None:
    (key,) = [key for key in plugin_config_keys("PostgresSink", None) if key.name == "connection.password"]
    assert key.type is Type.PASSWORD
    config = {"connector.class": "PostgresSink", "connection.password": "secret-1"}
    assert "secret-1" not in json.dumps(plugin_views.config_infos_json(infos_of(config)))


def test_a_transforms_own_keys_do_not_contain_those_of_every_transform() -> None:
    own: list[ConfigKey] = list(plugin_config_keys("org.apache.kafka.connect.transforms.Flatten$Key", None))
    all_names = {
        key.name
        for key in transforms.transforms_and_predicates_definition(
            {"transforms": "a", "transforms.a.type": "Flatten$Key"}
        ).keys
    }
    assert {f"transforms.a.{key.name}" for key in own} == all_names - {
        f"transforms.a.{name}" for name in ("type", "predicate", "negate")
    }


@pytest.mark.spark
@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.timeout(300)
async def test_the_runtime_validates_with_the_same_definitions_and_lists_the_same_plugins(rig: Rig) -> None:
    assert await rig.runtime.list_plugins() == all_plugins()
    assert await rig.runtime.describe_plugin("Filter", None) == plugin_config_keys("Filter", None)
    for changes, key, words in MISSPELT:
        config = {"connector.class": "RateSource", "name": "a", "sink.class": "NoopSink"} | changes
        infos = await rig.runtime.validate(config, ())
        assert any(words in message for message in infos.errors[key]), infos.errors
        assert [info.key for info in infos.configs][: len(infos_of(config).configs)] == [
            info.key for info in infos_of(config).configs
        ]


@pytest.mark.spark
@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("misspelt", "message"),
    [
        ("transforms.a.delimitr", "Unknown configuration transforms.a.delimitr"),
        ("sink.pth", "Unknown configuration sink.pth"),
    ],
)
async def test_a_misspelt_key_has_an_error_and_no_definition_beside_the_keys_with_one(
    rig: Rig, misspelt: str, message: str
) -> None:
    config = {"connector.class": "RateSource", "name": "a", "sink.class": "NoopSink", "rows.per.second": "1"}
    config |= {"transforms": "a", "transforms.a.type": "Flatten"}
    body: Any = plugin_views.config_infos_json(await rig.runtime.validate(config | {misspelt: "x"}, ()))
    models.ConfigInfos.model_validate(body, strict=True)
    without_definition = [info["value"] for info in body["configs"] if info["definition"] is None]
    (value,) = without_definition
    assert (value["name"], value["value"]) == (misspelt, None)
    assert value["errors"][0].startswith(message)
    assert body["error_count"] == 1
    with_definition = [info["value"]["name"] for info in body["configs"] if info["definition"] is not None]
    assert with_definition == [info.name for info in infos_of(config).configs]


@pytest.mark.spark
@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.timeout(300)
async def test_pyspark_writes_no_error_of_a_query_past_the_log(rig: Rig, capfd: pytest.CaptureFixture[str]) -> None:
    """The log hides the values of references, which a query may contain."""
    with pytest.raises(AnalysisException):
        rig.session.sql("SELECT 'secret-a' FROM missing")
    with pytest.raises(AnalysisException):
        rig.session.range(1).select("missing")
    assert capfd.readouterr().err == ""


@pytest.mark.spark
@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.timeout(300)
async def test_a_result_has_references_and_not_the_secrets(rig: Rig) -> None:
    secrets = {"${env:A}": "secret-a", "${env:B}": "secret-b", "x${env:C}": "xsecret-c"}
    written = {"connector.class": "RateSource", "name": "a", "sink.format": "noop"}
    written |= {"tasks.max": "${env:A}", "rows.per.second": "${env:B}", "errors.tolerance": "x${env:C}"}

    def resolve(config: Mapping[str, str]) -> Mapping[str, str]:
        return {key: secrets.get(value, value) for key, value in config.items()}

    infos = validate_config(rig.session, written, resolve, {}, ())
    body = json.dumps(plugin_views.config_infos_json(infos))
    assert "secret-" not in body
    assert set(infos.errors) == {"tasks.max", "rows.per.second", "errors.tolerance"}
    assert infos.errors["tasks.max"][0].startswith("Invalid value ${env:A} for configuration tasks.max")
    assert {info.name: info.value for info in infos.configs}["tasks.max"] == "${env:A}"

    def fail(config: Mapping[str, str]) -> Mapping[str, str]:
        raise ConfigError({"tasks.max": ["There is no variable A"]})

    assert validate_config(rig.session, written, fail, {}, ()).errors["tasks.max"] == ["There is no variable A"]
