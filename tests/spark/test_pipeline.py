"""Parsing of a task's config, and its refusals."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from coterie.nouns.errors import ConfigError
from coterie.spark.generations.layout import GenerationId
from coterie.spark.generations.manifest import GenerationPlan
from coterie.spark.generations.split import SplitFunction
from coterie.spark.pipeline import Pipeline, split_source, task_configs, use_digests_in_split_if_references
from coterie.spark.plugins import configured_source
from coterie.spark.prefixed_config import SINK_PREFIX, PrefixedConfig
from coterie.spark.rotation import Rotation
from coterie.spark.seams import TaskInput
from coterie.spark.sinks.file_copies import FolderLayout, SinkFolder
from coterie.spark.sinks.files import FileSink
from coterie.spark.sources.files import FileSource
from coterie.spark.sources.kafka import KafkaSource

CONNECTOR = {
    "connector.class": "FileSource",
    "tasks.max": "3",
    "source.format": "csv",
    "source.path": "/in",
    "source.schema": "row BIGINT",
    "source.option.header": "true",
    "transforms": "kept",
    "transforms.kept.type": "Filter",
    "transforms.kept.condition": "row > 0",
    "sink.format": "parquet",
    "sink.path": "file:///out",
    "sink.option.compression": "gzip",
}


def configs_of(config: Mapping[str, str]) -> list[Mapping[str, str]]:
    source = configured_source(config, {})
    split = split_source(source, source.plugin.list_source_partitions(source.config))
    plan = GenerationPlan(
        generation=GenerationId(number=1, id="a"), split=split, config=config, inferred_values={}, initial_positions={}
    )
    return task_configs("c", config, plan.to_manifest({}), config)


def test_a_task_config_becomes_a_pipeline_with_the_keys_defaults() -> None:
    configs = configs_of(CONNECTOR)
    assert len(configs) == 3
    pipeline = Pipeline.of(configs[2], {})
    assert pipeline.source == FileSource(
        format="csv",
        path="/in",
        columns_ddl="row BIGINT",
        batch_limit_option_by_name={"maxFilesPerTrigger": "1000"},
        reader_options={"header": "true"},
        tolerates_bad_records=False,
        task_input=TaskInput(
            task_number=2, task_count=3, source_partitions=("/in",), split_function=SplitFunction.PATH_HASH_V1
        ),
    )
    layout = FolderLayout(format="parquet", partition_columns=())
    folder = SinkFolder(path=Path("/out"), layout=layout)
    assert pipeline.sink == FileSink(
        folder=folder,
        rotation=Rotation(waiting_rows_min=None, rotate_interval_ms=30_000),
        options={"compression": "gzip"},
    )
    (kept,) = pipeline.transforms
    assert (kept.config_key_in_errors, kept.value_of_key_in_errors) == ("transforms.kept.condition", "row > 0")
    assert pipeline.trigger_interval_ms == 1000


def test_task_configs_contain_references_and_not_their_values() -> None:
    by_reference = {**CONNECTOR, "source.path": "/${env:FOLDER}"}
    # The manifest was written by a version of Coterie that stored the name of the folder.
    source = configured_source(CONNECTOR, {})
    split = split_source(source, source.plugin.list_source_partitions(source.config))
    plan = GenerationPlan(
        generation=GenerationId(number=1, id="a"),
        split=split,
        config=by_reference,
        inferred_values={},
        initial_positions={},
    )
    configs = task_configs("c", by_reference, plan.to_manifest({}), CONNECTOR)
    assert {config["source.path"] for config in configs} == {"/${env:FOLDER}"}
    assert not [value for config in configs for value in config.values() if "/in" in value]
    assert use_digests_in_split_if_references(split, source, CONNECTOR) == split
    resolved = {**configs[0], "source.path": "/in"}
    before = Pipeline.of(configs_of(CONNECTOR)[0], {}).source
    after = Pipeline.of(resolved, {}).source
    assert isinstance(before, FileSource)
    assert isinstance(after, FileSource)
    assert replace(after, task_input=before.task_input) == before


def test_a_connector_without_tasks_max_has_one_task() -> None:
    (only,) = configs_of({key: value for key, value in CONNECTOR.items() if key != "tasks.max"})
    assert Pipeline.of(only, {}).source == Pipeline.of(configs_of(CONNECTOR | {"tasks.max": "1"})[0], {}).source


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"task.class": "Nothing"}, "task.class"),
        ({"task.index": "-1"}, "task.index"),
        ({"source.format": "xml"}, "source.format"),
        ({"transforms": "lost"}, "transforms.lost.type"),
        ({"sink.format": "xml"}, "sink.format"),
        ({"sink.path": "s3://bucket/x"}, "sink.path"),
        ({"sink.path": "out"}, "sink.path"),
        ({"sink.path": "/"}, "sink.path"),
        ({"sink.partition.field.name": "day,Day"}, "sink.partition.field.name"),
        ({"trigger.interval.ms": "soon"}, "trigger.interval.ms"),
    ],
)
def test_an_invalid_value_is_refused_by_its_key(changes: dict[str, str], key: str) -> None:
    with pytest.raises(ConfigError) as raised:
        Pipeline.of({**configs_of(CONNECTOR)[0], **changes}, {})
    assert set(raised.value.errors) == {key}


def test_a_connector_of_an_unknown_class_is_not_split() -> None:
    with pytest.raises(ConfigError, match="no source or sink of the class Nothing"):
        configs_of(CONNECTOR | {"connector.class": "Nothing"})


def test_keys_of_the_end_that_the_class_names_may_omit_their_prefix() -> None:
    def without(prefix: str, class_: str, **others: str) -> Pipeline:
        own = {key.removeprefix(prefix): value for key, value in CONNECTOR.items()}
        (only,) = configs_of(own | {"connector.class": class_, "tasks.max": "1"} | others)
        return Pipeline.of(only, {})

    (only,) = configs_of(CONNECTOR | {"tasks.max": "1"})
    prefixed = Pipeline.of(only, {})
    assert without("source.", "FileSource") == prefixed
    assert without("sink.", "FileSink", **{"source.class": "FileSource"}) == prefixed


def test_a_prefixed_key_takes_precedence_and_an_error_names_the_key_that_was_set() -> None:
    both = PrefixedConfig(
        config={"path": "/plain", "sink.path": "/prefixed"}, prefix=SINK_PREFIX, is_prefix_optional=True
    )
    assert both.user_key("path") == "sink.path"
    plain = PrefixedConfig(config={"path": "s3://x"}, prefix=SINK_PREFIX, is_prefix_optional=True)
    with pytest.raises(ConfigError) as raised:
        FileSink.of(plain)
    assert set(raised.value.errors) == {"format"}
    with pytest.raises(ConfigError) as raised:
        FileSink.of(
            PrefixedConfig(config={"format": "json", "path": "s3://x"}, prefix=SINK_PREFIX, is_prefix_optional=True)
        )
    assert set(raised.value.errors) == {"path"}
    other_end = PrefixedConfig(config={"format": "json", "path": "/x"}, prefix=SINK_PREFIX)
    with pytest.raises(ConfigError, match=r"sink\.format"):
        FileSink.of(other_end)


def test_a_sink_connector_without_a_source_reads_from_the_workers_kafka() -> None:
    worker = {"bootstrap.servers": "ours:9092", "sasl.jaas.config": "our password"}
    config = {"name": "c", "task.class": "FileSink", "format": "json", "path": "/out", "topics": "t"}
    task = {**config, "task.index": "0", "task.count": "1", "task.parts": '["t:0@id"]'}
    source = Pipeline.of(task, worker).source
    assert isinstance(source, KafkaSource)
    assert source.consumer_properties == {**worker, "isolation.level": "read_uncommitted"}
    assert "our password" not in repr(source)
    fetching = Pipeline.of({**task, "consumer.override.fetch.min.bytes": "7"}, worker).source
    assert isinstance(fetching, KafkaSource)
    assert fetching.consumer_properties == {**source.consumer_properties, "fetch.min.bytes": "7"}
    theirs = Pipeline.of({**task, "consumer.override.bootstrap.servers": "theirs:9092"}, worker).source
    assert isinstance(theirs, KafkaSource)
    assert theirs.consumer_properties == {"bootstrap.servers": "theirs:9092", "isolation.level": "read_uncommitted"}


def test_the_used_topics_are_those_of_the_records_and_not_the_ledger_or_the_topic_of_bad_records() -> None:
    """As in Kafka Connect, which lists neither the topic of dead letters nor its topics of offsets (KIP-558)."""
    config = {
        "name": "c",
        "task.class": "KafkaSource",
        "source.topics": "read",
        "task.index": "0",
        "task.count": "1",
        "task.parts": '["read:0@id"]',
        "sink.class": "KafkaSink",
        "sink.topic": "written",
        "sink.ledger.topic": "ledger",
        "errors.tolerance": "all",
        "errors.deadletterqueue.topic.name": "bad",
    }
    pipeline = Pipeline.of(config, {"bootstrap.servers": "ours:9092"})
    assert pipeline.used_topics == {"read", "written"}
