"""docs/connect-keys.md says what becomes of each key of Kafka Connect: each line is held to the definitions."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from coterie.spark import connect_keys, transforms, validation
from coterie.spark.plugins import SinkEnd, SourceEnd, sink_end, source_end
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
    "Every connector": {"metadata.max.age.ms", "trigger.interval.ms", "task.batch.timeout.ms"},
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
FATES = ("taken", "replaced", "refused", "ignored")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One key of the page."""

    section: str
    key: str
    fate: str
    words: str


def lines() -> Iterator[Line]:
    section = ""
    for line in PAGE.read_text().splitlines():
        if line.startswith("## "):
            section = line.removeprefix("## ")
        elif section and line.startswith("| `"):
            keys, fate, words = (cell.strip() for cell in line.strip("|").split("|"))
            yield from (
                Line(section=section, key=key, fate=fate, words=words) for key in re.findall(r"`([^`]+)`", keys)
            )


LINES = list(lines())


def ends(section: str, **keys: str) -> tuple[SourceEnd, SinkEnd]:
    config = CONFIGS[section] | keys
    return source_end(config, {}), sink_end(config, {})


def known(section: str) -> set[str]:
    """The names of the keys that the section is about."""
    source, sink = ends(section)
    definition = {
        "Every connector": validation.common(),
        "Sink connectors": source.definition,
        "Source connectors": sink.definition,
    }.get(section, sink.definition)
    return {key.name for key in definition.keys}


def free_prefixes(section: str) -> tuple[str, ...]:
    source, sink = ends(section)
    return {"Sink connectors": source.plugin.free_prefixes, "Source connectors": sink.plugin.free_prefixes}.get(
        section, ()
    )


def all_known() -> set[str]:
    return {name for section in CONFIGS for name in known(section)}


def refusal(line: Line) -> str | None:
    """What the checks that need no server say of a config that sets the key of ``line``."""
    key = re.sub("<.*?>", "x", line.key)
    for start, ours in ((kafka.OVERRIDE, kafka.OURS), (kafka_target.OVERRIDE, kafka_target.OURS)):
        if key.startswith(start):
            return ours.get(key.removeprefix(start))
    errors = transforms.errors_of({"transforms": "x", "predicates": "x", key: "1"})
    errors |= connect_keys.errors_of(*ends(line.section, **({key: "1"} | CONFIGS[line.section])))
    return next(iter(errors.get(key, ())), None)


def test_the_page_has_each_key_once_in_a_section_with_one_of_four_fates() -> None:
    assert {line.section for line in LINES} == set(CONFIGS)
    assert len({(line.section, line.key) for line in LINES}) == len(LINES) > 130
    assert {line.fate for line in LINES} == set(FATES)
    assert [line for line in LINES if line.fate != "taken" and not line.words] == []


@pytest.mark.parametrize("line", LINES, ids=lambda line: f"{line.section}: {line.key}")
def test_what_the_page_says_of_a_key_is_what_becomes_of_it(line: Line) -> None:
    is_known = line.key in all_known() if line.section == "Every connector" else line.key in known(line.section)
    is_common = line.key in known("Every connector")
    is_free = line.key.startswith(free_prefixes(line.section) or "\0")
    match line.fate:
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
def test_every_key_that_connect_has_too_is_on_the_page(section: str) -> None:
    there = {line.key for line in LINES if line.fate == "taken"}
    assert OWN[section] <= known(section) | known("Every connector")
    assert known(section) - OWN[section] - OWN["Sink connectors"] <= there


@pytest.mark.parametrize(
    ("section", "keys"),
    [
        ("The JDBC sink", {*connect_keys.JDBC_SINK}),
        ("The S3 sink", {*connect_keys.S3_SINK}),
        ("Sink connectors", {kafka.OVERRIDE + name for name in kafka.OURS}),
        ("Source connectors", {kafka_target.OVERRIDE + name for name in kafka_target.OURS}),
    ],
)
def test_every_key_of_connect_that_is_refused_is_on_the_page(section: str, keys: set[str]) -> None:
    refused = {line.key for line in LINES if line.section == section and line.fate == "refused"}
    assert keys <= refused


@pytest.mark.parametrize("section", ["The JDBC sink", "The S3 sink"])
def test_a_value_that_asks_for_what_happens_anyway_is_taken(section: str) -> None:
    missed = connect_keys.JDBC_SINK if section == "The JDBC sink" else connect_keys.S3_SINK
    for key, no_counterpart in missed.items():
        for value in no_counterpart.without_effect:
            assert connect_keys.errors_of(*ends(section, **{key: f" {value.upper()}"})) == {}
    assert any(no_counterpart.without_effect for no_counterpart in missed.values())


def test_keys_of_a_connector_that_is_not_written_as_in_connect_are_its_own() -> None:
    """A function of a PythonSource may read a key of any name, and a sink with a prefix has no other keys at all."""
    of_function = {"source.class": "PythonSource", "fields.whitelist": "a"}
    assert connect_keys.errors_of(*ends("The JDBC sink", **of_function)) == {}
    prefixed = {"connector.class": "KafkaSource", "sink.class": "PostgresSink", "fields.whitelist": "a"}
    assert connect_keys.errors_of(*ends("The JDBC sink", **prefixed)) == {}


@pytest.mark.spark
@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.timeout(300)
async def test_a_config_with_such_a_key_is_refused_by_its_name(rig: Rig) -> None:
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
    errors = await rig.runtime.validate(config, ())
    assert "ReplaceField, with include" in errors["fields.whitelist"][0]
    assert "parameters of connection.url" in errors["connection.sslmode"][0]
    assert "batch.size" not in errors
