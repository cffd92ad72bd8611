"""Exactly-once state of the dead letter queues: marks of the folder, ledger of the topic."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from coterie.nouns.jobs import ConnectorName, ConnectorTaskId
from coterie.spark.bad_records import queue
from coterie.spark.bad_records.keys import DeadLetterFolder, DeadLetterTopic
from coterie.spark.prefixed_config import SINK_PREFIX, PrefixedConfig
from coterie.spark.seams import Batch, TaskCheckpointLineage
from coterie.spark.sinks.file_copies import FolderLayout, SinkFolder
from coterie.spark.sinks.files import FileSink, bad_records_folder
from coterie.spark.sinks.kafka import KafkaSink
from coterie.spark.sinks.kafka_target import KafkaTarget
from coterie.spark.sinks.kafka_writer import transactional_id_of_task
from tests.spark.sinks.file_owners import LINEAGE


def test_a_lineage_is_also_retired_in_the_folder_of_bad_records(tmp_path: Path) -> None:
    folder = SinkFolder(path=tmp_path / "bad", layout=FolderLayout(format="parquet", partition_columns=()))
    folder.take_over(LINEAGE)
    copy = folder.new_batch_copy(LINEAGE, 0)
    copy.check_sink_and_create_staging_folder()
    copy.good_files.folder.mkdir(parents=True, exist_ok=True)
    copy.commit()
    path = {"errors.deadletterqueue.path": str(tmp_path / "bad")}
    for config in ({}, path, {"errors.tolerance": "all"}):
        queue.remove_deduplication_data(config, [LINEAGE])
        assert folder.committed_batches_folder(LINEAGE).is_dir()
    for _ in range(2):
        queue.remove_deduplication_data(path | {"errors.tolerance": "all"}, [LINEAGE])
        assert folder.committed_batches_folder(LINEAGE).is_file()


# -- the folder -------------------------------------------------------------------------------------------------------


def test_an_error_of_a_folder_of_bad_records_names_only_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connector's sink may have a folder, too."""
    key = "errors.deadletterqueue.path"
    (tmp_path / "bad").write_text("a file")
    sink = FileSink(folder=bad_records_folder(tmp_path / "bad"), rotation=None, options={})
    made = queue.DeadLetterQueue(key, sink, lambda rows, _: rows)
    with pytest.raises(OSError, match=f"{key}={tmp_path}/bad cannot be used: .*File exists") as at_start:
        made.take_over(LINEAGE, 1)
    (tmp_path / "bad").unlink()
    made.take_over(LINEAGE, 2)
    folder = bad_records_folder(tmp_path / "bad")
    copy = folder.new_batch_copy(LINEAGE, 0)
    copy.check_sink_and_create_staging_folder()
    (copy.good_files.folder / copy.good_files.file_name(0, ".parquet")).touch()
    monkeypatch.setattr(FileSink, "stage", lambda *_: copy)
    batch: Any = Batch(task_lineage=LINEAGE, batch_id=0, rows=None, is_small=True)  # type: ignore[arg-type]
    staged = made.stage(batch)
    (tmp_path / "bad").rmdir()
    (tmp_path / "bad").write_text("a file")
    with pytest.raises(OSError, match=f"could not be moved to {key}={tmp_path}/bad: File exists") as in_place:
        staged.commit()
    for error in (at_start.value, in_place.value):
        assert "sink.path" not in str(error)
        assert str(error).count(key) == 1


def errors_of(folder: Path) -> dict[str, list[str]]:
    spark: Any = None
    return queue.find_dead_letter_destination_errors(spark, DeadLetterFolder(path=folder), {}, {})


def test_a_folder_with_other_files_is_refused_when_the_config_is_validated(tmp_path: Path) -> None:
    assert errors_of(tmp_path / "bad") == {}
    SinkFolder(
        path=tmp_path / "bad", layout=FolderLayout(format="json", partition_columns=())
    ).create_and_check_folders()
    (sentence,) = errors_of(tmp_path / "bad")["errors.deadletterqueue.path"]
    assert sentence.startswith(
        f"errors.deadletterqueue.path={tmp_path}/bad contains json files without partition columns"
    )


# -- the topic --------------------------------------------------------------------------------------------------------

SERVERS = {"producer.override.bootstrap.servers": "localhost:9092"}


def queue_target(**config: str) -> KafkaTarget:
    """The target for bad records in a topic, of a connector whose sink is not a KafkaSink."""
    dead_letters = DeadLetterTopic(topic="bad", replication_factor=1, has_context_headers=False)
    made = queue.make_dead_letter_queue_if_configured(
        dead_letters, SERVERS | {key.replace("__", "."): value for key, value in config.items()}, {}
    )
    assert made is not None
    assert isinstance(made._sink, KafkaSink)
    return made._sink._target


def sink_target(config: Mapping[str, str]) -> KafkaTarget:
    return KafkaTarget.of(
        PrefixedConfig(config={"topic": "t", **SERVERS, **config}, prefix=SINK_PREFIX, is_prefix_optional=True)
    )


def id_of(target: KafkaTarget, connector: str, task: int = 0) -> str:
    return transactional_id_of_task(
        target, TaskCheckpointLineage(task=ConnectorTaskId(ConnectorName(connector), task), lineage_id="l")
    )


@pytest.mark.parametrize(
    ("connector", "task"), [("dead-letters-orders", 0), ("-dead-letters/orders", 0), ("dead-letters/orders/0", 0)]
)
def test_transactional_ids_of_kafka_sinks_and_of_bad_records_of_other_connectors_differ(
    connector: str, task: int
) -> None:
    """With equal ids the broker would fence one producer, and the restart of its task would fence the other."""
    assert id_of(queue_target(), "orders") != id_of(sink_target({}), connector, task)


def test_connectors_whose_names_end_in_a_number_have_distinct_transactional_ids() -> None:
    target = sink_target({})
    names = [("a", 0), ("a/0", 0), ("a", 10), ("a/1", 0), ("a-1", 0)]
    assert len({id_of(target, connector, task) for connector, task in names}) == len(names)


def test_the_ledger_of_bad_records_is_named_after_the_connectors_ledger() -> None:
    """Then two groups of workers on one cluster can have connectors of the same name."""
    staging, production = queue_target(ledger__topic="staging"), queue_target()
    assert (staging.ledger_topic, production.ledger_topic) == ("staging-dead-letters", "coterie-ledger-dead-letters")
    assert id_of(staging, "orders") != id_of(production, "orders")
