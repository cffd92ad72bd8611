"""Manifest, plan and positions on disk are decoded as they were encoded; malformed ones are refused."""

from dataclasses import replace
from pathlib import Path

import pytest

from coterie.nouns.errors import WorldError
from coterie.spark.generations.layout import GenerationId
from coterie.spark.generations.manifest import (
    GenerationPlan,
    Manifest,
    PositionChange,
    manifest_to_json,
    plan_to_json,
    read_manifest,
    read_plan_of_next_generation,
)
from coterie.spark.generations.split import Split, SplitFunction
from coterie.spark.generations.stores import FileSourcePositionStore
from coterie.spark.positions import commit_empty_batches
from coterie.spark.sources.kafka_positions import KafkaPositionStore, TopicIdPartition

SPLIT = Split(function=SplitFunction.PARTS_V1, partitions_by_task=(("a:0@x",), ("a:1@x", "b:0@y")))
PLAN = GenerationPlan(
    generation=GenerationId(number=3, id="id-with-dash"),
    split=SPLIT,
    config={"user.password": "${env:PASSWORD}"},
    inferred_values={},
    initial_positions={"b:0@y": 4},
)


def test_plan_and_manifest_are_decoded_as_they_were_encoded(tmp_path: Path) -> None:
    manifest = PLAN.to_manifest({"a:0@x": 1, "a:1@x": 2, "gone:0@z": 9})
    assert manifest.positions == {"a:0@x": 1, "a:1@x": 2, "b:0@y": 4}
    assert manifest.absent_partition_positions == {"gone:0@z": 9}
    (tmp_path / "manifest.json").write_text(manifest_to_json(manifest))
    assert read_manifest(tmp_path) == manifest
    assert read_plan_of_next_generation(tmp_path) is None
    (tmp_path / "closed").write_text(plan_to_json(PLAN))
    assert read_plan_of_next_generation(tmp_path) == PLAN


def test_a_change_of_positions_is_decoded_as_it_was_encoded(tmp_path: Path) -> None:
    plan = replace(PLAN, position_change=PositionChange(positions={"a:0@x": None, "gone:0@z": 5}))
    manifest = plan.to_manifest({"a:0@x": 1, "a:1@x": 2, "gone:0@z": 9})
    assert manifest.positions == {"a:1@x": 2, "b:0@y": 4}
    assert manifest.absent_partition_positions == {"gone:0@z": 5}
    assert manifest.reset_partitions_without_position == ("a:0@x",)
    (tmp_path / "manifest.json").write_text(manifest_to_json(manifest))
    assert read_manifest(tmp_path) == manifest
    (tmp_path / "closed").write_text(plan_to_json(plan))
    assert read_plan_of_next_generation(tmp_path) == plan


def test_a_change_may_remove_all_other_positions() -> None:
    change = PositionChange(positions={"a": 1, "b": None}, removes_others=True)
    assert change.apply({"a": 5, "b": 6, "c": 7}) == {"a": 1}


def test_no_config_value_is_in_the_repr_of_a_document() -> None:
    manifest: Manifest = PLAN.to_manifest({})
    assert "PASSWORD" not in repr(PLAN) + repr(manifest)


def test_a_document_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"version": 3}')
    with pytest.raises(WorldError, match="run the same version"):
        read_manifest(tmp_path)


@pytest.mark.parametrize("text", ["", "3", "3-", "-a", "x-a", "²-a"])
def test_an_invalid_generation_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="<number>-<id>"):
        GenerationId.parse(text)


@pytest.mark.parametrize("text", ["", "t", "t:", ":0@i", "t:x@i"])
def test_an_invalid_partition_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="<topic>:<partition>"):
        TopicIdPartition.parse(text)


def test_partitions_of_a_recreated_topic_are_other_parts() -> None:
    old, new = (TopicIdPartition(topic="a.b-c", partition=12, topic_id=id_) for id_ in ("x", "y"))
    assert TopicIdPartition.parse(str(old)) == old
    assert str(old) != str(new)


def test_kafka_offsets_are_those_of_the_last_committed_batch_or_else_of_the_seed(tmp_path: Path) -> None:
    store, parts = KafkaPositionStore(), ("a:0@x", "a:1@x", "b:0@y")
    assert store.read(tmp_path, parts) == {}
    store.write_to_new_checkpoint(tmp_path, {"a:0@x": 1, "b:0@y": 0})
    assert store.read(tmp_path, parts) == {"a:0@x": 1, "b:0@y": 0}
    commit_empty_batches(tmp_path, '{"a":{"0":5},"b":{"0":0}}', batch_count=1)
    assert store.read(tmp_path, parts) == {"a:0@x": 5, "b:0@y": 0}


def test_partitions_of_a_topic_and_of_its_recreation_do_not_fit_into_one_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(WorldError, match="two topic ids"):
        KafkaPositionStore().write_to_new_checkpoint(tmp_path, {"a:0@x": 1, "a:0@y": 0})


def test_files_are_read_from_a_seeded_log_and_nothing_is_seeded_without_files(tmp_path: Path) -> None:
    store = FileSourcePositionStore()
    store.write_to_new_checkpoint(tmp_path / "none", {})
    assert not (tmp_path / "none").exists()
    store.write_to_new_checkpoint(tmp_path, {"file:///a": 7})
    assert store.read(tmp_path, ()) == {"file:///a": 7}
