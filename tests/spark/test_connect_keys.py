"""docs/connect-keys.md lists the outcome for each key of Kafka Connect: each line is compared with the definitions."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from coterie.spark import connector_keys, transforms, unsupported_connect_keys
from coterie.spark.plugins import ConfiguredSink, ConfiguredSource, configured_sink, configured_source
from coterie.spark.sinks import kafka_target
from coterie.spark.sources import kafka
from tests.spark.conftest import Rig

PAGE = Path(__file__).parents[2] / "docs" / "connect-keys.md"
JSON = {"key.converter": "JsonConverter", "value.converter": "JsonConverter"}
CONFIGS = {
    "Every connector": {"connector.class": "KafkaSource", **JSON},
    "Sink connectors": {"connector.class": "FileSink", **JSON},
    "Source connectors": {"connector.class": "FileSource", **JSON},
    "The JDBC sink": {"connector.class": "PostgresSink"},
    "The S3 sink": {"connector.class": "FileSink"},
}
"""By section of the page, a connector that has all keys of the section."""
OWN = {
    "Every connector": {
        "errors.restart.delay.max.ms",
        "errors.restart.max",
        "metadata.max.age.ms",
        "task.batch.timeout.ms",
        "trigger.interval.ms",
    },
    "Sink connectors": {
        "columns",
        "errors.deadletterqueue.path",
        "errors.deadletterqueue.table",
        "key.schema",
        "max.offsets.per.trigger",
        "source.class",
        "start.offsets",
        "start.timestamp.ms",
        "value.schema",
    },
    "Source connectors": {"delivery.guarantee", "key.fields", "ledger.topic", "sink.class", "sink.format"},
    "The JDBC sink": {"connection.timeout.ms", "statement.timeout.ms"},
    "The S3 sink": {"format", "path"},
}
"""Keys that Connect does not have."""
TREATMENTS = ("taken", "replaced", "refused", "ignored")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One key of the page."""

    section: str
    key: str
    treatment: str
    words: str


def lines() -> Iterator[Line]:
    section = ""
    for line in PAGE.read_text().splitlines():
        if line.startswith("## "):
            section = line.removeprefix("## ")
        elif section and line.startswith("| `"):
            keys, treatment, words = (cell.strip() for cell in line.strip("|").split("|"))
            yield from (
                Line(section=section, key=key, treatment=treatment, words=words)
                for key in re.findall(r"`([^`]+)`", keys)
            )


LINES = list(lines())


def ends(section: str, **keys: str) -> tuple[ConfiguredSource, ConfiguredSink]:
    config = CONFIGS[section] | keys
    return configured_source(config, {}), configured_sink(config, {})


def known_keys(section: str) -> set[str]:
    """The names of the keys of the section."""
    source, sink = ends(section)
    definition = {
        "Every connector": connector_keys.common_connector_definition(),
        "Sink connectors": source.definition,
        "Source connectors": sink.definition,
    }.get(section, sink.definition)
    return {key.name for key in definition.keys}


def free_prefixes(section: str) -> tuple[str, ...]:
    source, sink = ends(section)
    return {"Sink connectors": source.plugin.free_key_prefixes, "Source connectors": sink.plugin.free_key_prefixes}.get(
        section, ()
    )


def all_known() -> set[str]:
    return {name for section in CONFIGS for name in known_keys(section)}


def refusal(line: Line) -> str | None:
    """The error of a config with the key of ``line``, from the checks that need no server."""
    key = re.sub("<.*?>", "x", line.key)
    for start, ours in (
        (kafka.CONSUMER_OVERRIDE_PREFIX, kafka.RESERVED_CONSUMER_PROPERTIES),
        (kafka_target.PRODUCER_OVERRIDE_PREFIX, kafka_target.RESERVED_PRODUCER_PROPERTIES),
    ):
        if key.startswith(start):
            return ours.get(key.removeprefix(start))
    errors = transforms.config_errors({"transforms": "x", "predicates": "x", key: "1"})
    errors |= unsupported_connect_keys.unsupported_key_errors(
        *ends(line.section, **({key: "1"} | CONFIGS[line.section]))
    )
    return next(iter(errors.get(key, ())), None)


def test_the_page_has_each_key_once_with_one_of_four_outcomes() -> None:
    assert {line.section for line in LINES} == set(CONFIGS)
    assert len({(line.section, line.key) for line in LINES}) == len(LINES) > 130
    assert {line.treatment for line in LINES} == set(TREATMENTS)
    assert [line for line in LINES if line.treatment != "taken" and not line.words] == []


@pytest.mark.parametrize("line", LINES, ids=lambda line: f"{line.section}: {line.key}")
def test_each_key_is_treated_as_the_page_states(line: Line) -> None:
    is_known = line.key in all_known() if line.section == "Every connector" else line.key in known_keys(line.section)
    is_common = line.key in known_keys("Every connector")
    is_free = line.key.startswith(free_prefixes(line.section) or "\0")
    match line.treatment:
        case "taken":
            assert is_known or is_common or is_free
            assert refusal(line) is None
        case "refused":
            assert refusal(line)
        case _:
            assert not is_known
            assert not is_free
            assert refusal(line) is None


@pytest.mark.parametrize("section", CONFIGS)
def test_every_key_in_common_with_connect_is_on_the_page(section: str) -> None:
    there = {line.key for line in LINES if line.treatment == "taken"}
    assert OWN[section] <= known_keys(section) | known_keys("Every connector")
    assert known_keys(section) - OWN[section] - OWN["Sink connectors"] <= there


@pytest.mark.parametrize(
    ("section", "keys"),
    [
        ("The JDBC sink", {*unsupported_connect_keys.UNSUPPORTED_JDBC_SINK_KEYS}),
        ("The S3 sink", {*unsupported_connect_keys.UNSUPPORTED_S3_SINK_KEYS}),
        ("Sink connectors", {kafka.CONSUMER_OVERRIDE_PREFIX + name for name in kafka.RESERVED_CONSUMER_PROPERTIES}),
        (
            "Source connectors",
            {kafka_target.PRODUCER_OVERRIDE_PREFIX + name for name in kafka_target.RESERVED_PRODUCER_PROPERTIES},
        ),
    ],
)
def test_every_refused_key_of_connect_is_on_the_page(section: str, keys: set[str]) -> None:
    refused = {line.key for line in LINES if line.section == section and line.treatment == "refused"}
    assert keys <= refused


@pytest.mark.parametrize("section", ["The JDBC sink", "The S3 sink"])
def test_a_value_equal_to_the_fixed_behaviour_is_accepted(section: str) -> None:
    missed = (
        unsupported_connect_keys.UNSUPPORTED_JDBC_SINK_KEYS
        if section == "The JDBC sink"
        else unsupported_connect_keys.UNSUPPORTED_S3_SINK_KEYS
    )
    for key, no_counterpart in missed.items():
        for value in no_counterpart.accepted_values:
            assert unsupported_connect_keys.unsupported_key_errors(*ends(section, **{key: f" {value.upper()}"})) == {}
    assert any(no_counterpart.accepted_values for no_counterpart in missed.values())


def test_connectors_without_a_counterpart_in_connect_may_use_any_key() -> None:
    """A function of a PythonSource may read a key of any name, and a sink with a prefix has no keys without it."""
    of_function = {"source.class": "PythonSource", "fields.whitelist": "a"}
    assert unsupported_connect_keys.unsupported_key_errors(*ends("The JDBC sink", **of_function)) == {}
    prefixed = {"connector.class": "KafkaSource", "sink.class": "PostgresSink", "fields.whitelist": "a"}
    assert unsupported_connect_keys.unsupported_key_errors(*ends("The JDBC sink", **prefixed)) == {}


@pytest.mark.spark
@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.timeout(300)
async def test_a_config_with_a_refused_key_of_connect_names_the_key(rig: Rig) -> None:
    config = {
        "connector.class": "PostgresSink",
        "topics": "t",
        "connection.url": "jdbc:postgresql://127.0.0.1:1/shop",
        "connection.sslmode": "require",
        "table.name.format": "t",
        "fields.whitelist": "id,name",
        "batch.size": "3000",
        "consumer.override.bootstrap.servers": "127.0.0.1:1",
    }
    errors = await rig.config_errors(config, ())
    assert "ReplaceField, with include" in errors["fields.whitelist"][0]
    assert "parameters of connection.url" in errors["connection.sslmode"][0]
    assert "batch.size" not in errors
