"""An invalid config is refused by key, before any task runs."""

from dataclasses import replace
from pathlib import Path

import pytest

from coterie.config.definition import ConfigDef
from coterie.nouns.errors import ConfigError
from coterie.nouns.ids import Incarnation
from coterie.nouns.jobs import TASKS_PER_CONNECTOR_MAX, ConnectorName
from coterie.spark.prefixed_config import PrefixedConfig
from coterie.spark.sources import files
from coterie.spark.sources.rate import RateSource
from tests.spark.conftest import Rig, write_file

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(120)]

DEFINITION_WITH_DEFAULT_FORMAT = ConfigDef(
    tuple(replace(key, default="csv") if key.name == "format" else key for key in files.DEFINITION.keys)
)
"""The keys of a file source whose key ``format`` has a default."""
FILTER = {"transforms": "f", "transforms.f.type": "Filter", "transforms.f.condition": "delay > 0"}
CAST = {"transforms": "c", "transforms.c.type": "Cast", "transforms.c.spec": "row:int,delay:decimal(10,2)"}

WRONG: list[tuple[dict[str, str | None], set[str]]] = [
    ({}, set()),
    ({**FILTER}, set()),
    ({**CAST}, set()),
    ({"source.path": None, "sink.format": "xml"}, {"source.path", "sink.format"}),
    ({"connector.class": "Nothing"}, {"connector.class"}),
    ({"tasks.max": "0", "trigger.interval.ms": "soon"}, {"tasks.max", "trigger.interval.ms"}),
    ({"tasks.max": "1" * 5_000}, {"tasks.max"}),
    ({"tasks.max": str(TASKS_PER_CONNECTOR_MAX)}, set()),
    ({"tasks.max": str(TASKS_PER_CONNECTOR_MAX + 1)}, {"tasks.max"}),
    ({"name": " "}, {"name"}),
    ({"source.schema": "row BIGINTT"}, {"source.schema"}),
    ({"source.schemas": "x"}, {"source.schemas"}),
    ({"sink.pth": "x"}, {"sink.pth"}),
    ({"source.option.heaader": "true"}, {"source.option.heaader"}),
    ({"source.option.maxFileAge": "1d"}, {"source.option.maxFileAge"}),
    ({"source.option.cleanSource": "delete"}, {"source.option.cleanSource"}),
    ({"sink.option.compresion": "gzip"}, {"sink.option.compresion"}),
    ({"source.path": "s3://bucket/x"}, {"source.path"}),
    ({"source.path": "in", "sink.path": "./out"}, {"source.path", "sink.path"}),
    ({"source.path": "~/in", "sink.path": "file:///out"}, {"source.path"}),
    ({"source.max.files.per.trigger": "0"}, {"source.max.files.per.trigger"}),
    ({"source.max.files.per.trigger": "1", "source.max.bytes.per.trigger": "1"}, {"source.max.bytes.per.trigger"}),
    ({"source.format": "text"}, {"source.schema"}),
    ({"source.format": "text", "source.schema": None}, {"source.option.header"}),
    ({"sink.flush.size": "10", "sink.rotate.interval.ms": "0"}, {"sink.flush.size", "sink.rotate.interval.ms"}),
    ({"sink.path": "/proc"}, {"sink.path"}),
    ({**FILTER, "transforms.f.condition": "dleay > 0"}, {"transforms.f.condition"}),
    ({**FILTER, "transforms.f.condition": "delay >"}, {"transforms.f.condition"}),
    ({**FILTER, "transforms.f.condition": "delay"}, {"transforms.f.condition"}),
    ({**FILTER, "transforms.f.condition": None}, {"transforms.f.condition"}),
    ({**FILTER, "transforms.f.type": "Flter"}, {"transforms.f.type", "transforms.f.condition"}),
    ({**FILTER, "transforms": "g"}, {"transforms.g.type", "transforms.f.type", "transforms.f.condition"}),
    ({**FILTER, "transforms": "f,f"}, {"transforms"}),
    ({**CAST, "transforms.c.spec": "row:itn"}, {"transforms.c.spec"}),
    ({**CAST, "transforms.c.spec": "nothing:int"}, {"transforms.c.spec"}),
    ({**CAST, "transforms.c.spec": "row"}, {"transforms.c.spec"}),
]


RATE: dict[str, str | None] = {
    "connector.class": "RateSource",
    **dict.fromkeys(("source.format", "source.path", "source.schema", "source.option.header")),
}
WRONG += [
    ({**RATE, "source.rows.per.second": "100"}, set()),
    ({**RATE, "source.rows.per.second": "0"}, {"source.rows.per.second"}),
    ({**RATE, "source.path": "/in"}, {"source.path"}),
    ({**RATE, "source.option.rampUpTime": "5s"}, {"source.option.rampUpTime"}),
    ({**RATE, **FILTER, "transforms.f.condition": "value > 7"}, set()),
    ({**RATE, **FILTER}, {"transforms.f.condition"}),
    ({"sink.format": "noop", "sink.path": None}, set()),
    ({"sink.format": "noop"}, {"sink.path"}),
    ({"sink.format": "noop", "sink.path": None, "sink.option.compression": "gzip"}, {"sink.option.compression"}),
]


@pytest.mark.parametrize(("changes", "keys"), WRONG)
async def test_each_wrong_key_is_named(
    rig: Rig, tmp_path: Path, changes: dict[str, str | None], keys: set[str]
) -> None:
    config = {key: value for key, value in (rig.config(tmp_path) | changes).items() if value is not None}
    errors = await rig.config_errors(config, ())
    assert set(errors) == keys
    assert all(sentence for sentences in errors.values() for sentence in sentences)


async def test_a_key_that_looks_like_a_typo_is_logged(
    rig: Rig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = {**rig.config(tmp_path), "name": "flights", "sorce.schema": "x"}
    assert await rig.config_errors(config, ()) == {}
    lines = [record.getMessage() for record in caplog.records if record.name == "coterie.spark.validation"]
    assert lines == ["The key sorce.schema of connector flights is ignored; is source.schema meant?"]


async def test_another_number_of_tasks_is_refused_if_positions_cannot_be_split_again(rig: Rig) -> None:
    config = {"connector.class": "RateSource", "tasks.max": "2", "sink.format": "noop"}
    name, incarnation = ConnectorName("rate"), Incarnation("i")
    tasks = (await rig.split(name, incarnation, config, ())).task_configs
    changed = {**config, "tasks.max": "3"}
    sentence = (
        "Invalid value 3 for configuration tasks.max: the connector has checkpoints of 2 task(s), made with "
        "tasks.max=2; 3 task(s) with these checkpoints would lose rows and duplicate others. Keep tasks.max=2; or "
        "create a connector under another name; or delete this one and create it again. A new connector reads "
        "everything from the beginning, into other folders"
    )
    assert await rig.config_errors(changed, tasks) == {"tasks.max": [sentence]}
    with pytest.raises(ConfigError, match="would lose rows and duplicate others"):
        await rig.split(name, incarnation, changed, tasks)
    without = {key: value for key, value in config.items() if key != "tasks.max"}
    assert "Invalid value 1 for" in (await rig.config_errors(without, tasks))["tasks.max"][0]
    assert set(await rig.config_errors({**config, "tasks.max": "0"}, tasks)) == {"tasks.max"}
    same = {**config, "trigger.interval.ms": "7"}
    assert await rig.config_errors(same, tasks) == {}
    kept = (await rig.split(name, incarnation, same, tasks)).task_configs
    assert [task["generation"] for task in kept] == [task["generation"] for task in tasks]
    assert await rig.config_errors(changed, ()) == {}, "a new connector may have any number"


async def test_a_fixed_split_that_a_value_prevents_is_an_error_of_its_key(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(config: PrefixedConfig) -> list[str]:
        raise ConfigError({"source.rows.per.second": ["no such rows"]})

    monkeypatch.setattr(RateSource, "list_source_partitions", refuse)
    config = {"connector.class": "RateSource", "source.rows.per.second": "1", "sink.format": "noop"}
    assert await rig.config_errors(config, []) == {"source.rows.per.second": ["no such rows"]}


async def test_another_source_is_refused_if_the_connector_has_checkpoints(rig: Rig, tmp_path: Path) -> None:
    config = rig.config(tmp_path)
    tasks = (await rig.split(ConnectorName("c"), Incarnation("i"), config, ())).task_configs
    out = {"sink.format": config["sink.format"], "sink.path": config["sink.path"]}
    rate = {"connector.class": "RateSource", **out}
    errors = await rig.config_errors(rate, tasks)
    assert errors == {
        "connector.class": [
            "Invalid value RateSource for configuration connector.class: the connector has checkpoints, made with "
            "FileSource, and another source cannot resume from them. Keep FileSource; or create a connector under "
            "another name; or delete this one and create it again. A new connector reads everything from the "
            "beginning, into other folders"
        ]
    }
    by_sink = {"connector.class": "FileSink", "format": "json", "path": out["sink.path"]}
    assert set(await rig.config_errors({**by_sink, "source.class": "RateSource"}, tasks)) == {"source.class"}
    json = {**config, "source.format": "json"}
    json.pop("source.option.header")
    sentence = (await rig.config_errors(json, tasks))["source.format"][0]
    assert (
        "Invalid value json for configuration source.format: the connector has checkpoints, made with csv" in sentence
    )
    for changed, key in ((rate, "connector.class"), (json, "source.format")):
        with pytest.raises(ConfigError) as raised:
            await rig.split(ConnectorName("c"), Incarnation("i"), changed, tasks)
        assert set(raised.value.errors) == {key}
        assert await rig.config_errors(changed, ()) == {}, "a new connector may have any source"
    full_name = "coterie.spark.sources.files.FileSource"
    assert await rig.config_errors({**config, "connector.class": full_name}, tasks) == {}
    same = {key: value for key, value in config.items() if key.startswith("source.")}
    assert await rig.config_errors({**by_sink, **same, "source.class": "FileSource"}, tasks) == {}


async def test_files_may_be_split_again(rig: Rig, tmp_path: Path) -> None:
    config = rig.config(tmp_path, tasks__max="2")
    tasks = (await rig.split(ConnectorName("c"), Incarnation("i"), config, ())).task_configs
    assert await rig.config_errors({**config, "tasks.max": "3"}, tasks) == {}


async def test_the_type_of_a_connector_is_that_of_its_plug_in(rig: Rig) -> None:
    assert rig.runtime.connector_type({"connector.class": "FileSource"}) == "source"
    assert rig.runtime.connector_type({"connector.class": "coterie.spark.sources.files.FileSource"}) == "source"
    assert rig.runtime.connector_type({"connector.class": "RateSource"}) == "source"
    assert rig.runtime.connector_type({"connector.class": "FileSink"}) == "sink"
    assert rig.runtime.connector_type({}) == "unknown"


async def test_a_client_property_of_a_wrong_type_is_found_before_any_request_to_the_cluster(rig: Rig) -> None:
    unreachable = "127.0.0.1:1"
    to_kafka = {"connector.class": "KafkaSink", "source.class": "RateSource", "topic": "t", "name": "a"}
    from_kafka = {"connector.class": "KafkaSource", "topics": "t", "sink.format": "noop", "name": "a"}
    for config, side, name, reason in (
        (to_kafka, "producer", "linger.ms", "Not a number of type LONG"),
        (from_kafka, "consumer", "check.crcs", "Expected value to be either true or false"),
    ):
        config = config | {f"{side}.override.bootstrap.servers": unreachable, f"{side}.override.{name}": "x"}
        infos = await rig.runtime.validate(config, ())
        # As in Connect, the message has the name of the property without the prefix.
        message = f"Invalid value x for configuration {name}: {reason}"
        assert infos.client_property_type_error == message
        assert infos.errors == {f"{side}.override.{name}": [message]}


async def test_a_missing_key_of_a_connector_with_checkpoints_is_named(rig: Rig, tmp_path: Path) -> None:
    config = rig.config(tmp_path)
    tasks = (await rig.split(ConnectorName("c"), Incarnation("i"), config, ())).task_configs
    required = ("source.format", "source.path", "sink.format", "sink.path")
    for key in required:
        errors = await rig.config_errors({name: value for name, value in config.items() if name != key}, tasks)
        assert errors == {key: [f'Missing required configuration "{key}" which has no default value.']}, key
    errors = await rig.config_errors({"connector.class": "FileSource"}, tasks)
    assert {"format", "path"} <= errors.keys(), "the user's keys when no key has the prefix"
    with pytest.raises(ConfigError):
        await rig.split(ConnectorName("c"), Incarnation("i"), {**config, "connector.class": "KafkaSource"}, tasks)


@pytest.mark.parametrize("sink", ["FileSink", "KafkaSink"])
async def test_the_default_source_is_another_source_than_that_of_the_checkpoints(
    rig: Rig, tmp_path: Path, sink: str
) -> None:
    config = rig.config(tmp_path)
    tasks = (await rig.split(ConnectorName("c"), Incarnation("i"), config, ())).task_configs
    errors = await rig.config_errors({"connector.class": sink, "path": str(tmp_path / "out")}, tasks)
    assert (
        "Invalid value KafkaSource for configuration source.class: the connector has checkpoints, made with FileSource"
    ) in errors["source.class"][0]


async def test_a_default_format_is_the_same_format_as_the_one_that_is_set(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = rig.config(tmp_path)
    monkeypatch.setattr(files, "DEFINITION", DEFINITION_WITH_DEFAULT_FORMAT)
    without_format = {key: value for key, value in config.items() if key != "source.format"}
    for former, new in ((config, without_format), (without_format, config)):
        tasks = (await rig.split(ConnectorName("c"), Incarnation("i"), former, ())).task_configs
        assert "source.format" not in await rig.config_errors(new, tasks)
        errors = await rig.config_errors({**new, "source.format": "json"}, tasks)
        assert "Invalid value json for configuration source.format: the connector has che" in errors["source.format"][0]


OVERLAPPING = [
    ("in", "in", "is that of"),
    ("in", "in/", "is that of"),
    ("in", "../{name}/in", "is that of"),
    ("in", "link", "is that of"),
    ("link", "in/out", "is in that of"),
    ("in", "in/out", "is in that of"),
    ("in/a/b", "in/a", "contains that of"),
    ("*", "out", "is that of"),
    ("{{in,out}}/[^b]*", "out/a/x", "is in that of"),
    ("in/*/a", "in/out", "contains that of"),
]
"""Paths of source and sink below a folder ``name`` that contains the symbolic link ``link`` to ``in``: the paths, and
how the second is described."""


@pytest.mark.parametrize("scheme", ["", "file://"])
@pytest.mark.parametrize(("read", "written", "relation"), OVERLAPPING)
async def test_a_connector_that_would_read_its_own_files_is_refused(
    rig: Rig, tmp_path: Path, read: str, written: str, relation: str, scheme: str
) -> None:
    config = rig.config(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path / "in")
    source, sink = (f"{tmp_path}/{path.format(name=tmp_path.name)}" for path in (read, written))
    config |= {"source.path": scheme + source, "sink.path": sink}
    message = (
        f"Invalid value {sink} for configuration sink.path: the connector would read its own files again, without end: "
        f"this folder {relation} source.path, {scheme}{source}. Name two folders of which neither contains the other"
    )
    assert await rig.config_errors(config, ()) == {"sink.path": [message]}


@pytest.mark.parametrize(
    "sink",
    [
        {"sink.class": "DeltaSink", "sink.path": "{folder}/in", "sink.auto.create": "true"},
        {"sink.class": "SparkSink", "sink.format": "csv", "sink.option.Path": "{folder}/in"},
        *({"sink.format": format_, "sink.path": "{folder}/in"} for format_ in ("csv", "json", "orc", "parquet")),
    ],
)
async def test_every_sink_that_writes_a_folder_is_refused_on_the_folder_of_the_source(
    rig: Rig, tmp_path: Path, sink: dict[str, str]
) -> None:
    config = {key: value for key, value in rig.config(tmp_path).items() if not key.startswith("sink.")}
    errors = await rig.config_errors(config | {key: value.format(folder=tmp_path) for key, value in sink.items()}, ())
    assert set(errors) == {next(key for key in sink if key.lower().endswith("path"))}
    assert "would read its own files again" in str(errors)


@pytest.mark.parametrize(("read", "written"), [("in", "in2"), ("in/a", "in/b"), ("in*", "out"), ("*/a", "out/b")])
async def test_separate_folders_of_source_and_sink_are_accepted(
    rig: Rig, tmp_path: Path, read: str, written: str
) -> None:
    config = rig.config(tmp_path) | {"source.path": f"{tmp_path}/{read}", "sink.path": f"{tmp_path}/{written}"}
    assert await rig.config_errors(config, ()) == {}


async def test_the_unprefixed_path_of_a_source_is_not_the_folder_of_a_sink_without_a_path(
    rig: Rig, tmp_path: Path
) -> None:
    config = {"connector.class": "FileSource", "format": "csv", "path": str(tmp_path / "in"), "schema": "row INT"}
    errors = await rig.config_errors(config | {"topic": "flights", "option.header": "true"}, ())
    assert "path" not in errors


async def test_a_folder_of_bad_records_in_the_folder_of_the_source_is_refused(rig: Rig, tmp_path: Path) -> None:
    folder = tmp_path / "in" / "bad"
    tolerance = {"errors.tolerance": "all", "errors.deadletterqueue.path": str(folder)}
    assert await rig.config_errors(rig.config(tmp_path) | tolerance, ()) == {
        "errors.deadletterqueue.path": [
            f"The connector would read the bad records in {folder}, which overlaps source.path; name another folder"
        ]
    }


async def test_a_folder_with_files_of_another_format_is_refused(rig: Rig, tmp_path: Path) -> None:
    write_file(tmp_path / "out", "other.csv", [])
    assert await rig.config_errors(rig.config(tmp_path), ()) == {
        "sink.path": [
            f"Invalid value {tmp_path}/out for configuration sink.path: {tmp_path}/out contains other.csv, and readers "
            "could not read json files without partition columns beside it: set another folder, or move the other "
            "files to another folder"
        ]
    }
