"""The config of a batch in flight: source and sink of its generation, and all other keys of the newest config."""

from collections.abc import Mapping

import pytest

from coterie.spark.generations.layout import GenerationId
from coterie.spark.generations.manifest import Manifest
from coterie.spark.generations.split import Split, SplitFunction
from coterie.spark.in_flight import config_for_batch_in_flight
from coterie.spark.plugins import sink_identity

WORKER = {"bootstrap.servers": "here:9092"}
PARTS = ("orders/0/id", "orders/1/id")
TO_POSTGRES = {
    "connector.class": "PostgresSink",
    "topics": "orders",
    "connection.url": "jdbc:postgresql://db/shop?sslmode=require",
    "connection.user": "writer",
    "connection.password": "old",
    "table.name.format": "orders",
}
TO_FILES = {
    "connector.class": "KafkaSource",
    "source.topics": "orders",
    "sink.format": "json",
    "sink.path": "/out",
}
TO_KAFKA = {
    "connector.class": "KafkaSource",
    "source.topics": "orders",
    "sink.class": "KafkaSink",
    "sink.topic": "copies",
}
FOLDER = {"errors.tolerance": "all", "errors.deadletterqueue.path": "/bad"}
TOPIC = {"errors.tolerance": "all", "errors.deadletterqueue.topic.name": "bad"}


def changed(config: Mapping[str, str], **keys: str) -> dict[str, str]:
    return {**config, **{key.replace("__", "."): value for key, value in keys.items()}}


def in_flight(former: Mapping[str, str], newest: Mapping[str, str], parts: tuple[str, ...] = PARTS) -> dict[str, str]:
    manifest = Manifest(
        generation=GenerationId(number=1, id="a"),
        split=Split(function=SplitFunction.PARTS_V1, partitions_by_task=(PARTS,)),
        config=former,
        inferred_values={},
        positions={},
        absent_partition_positions={},
    )
    made = config_for_batch_in_flight(newest, manifest, frozenset(parts), WORKER)
    there = sink_identity(former, WORKER)
    now = sink_identity(made, WORKER)
    assert {key: value for key, value in there.items() if "errors" not in key} == {
        key: value for key, value in now.items() if "errors" not in key
    }, "written elsewhere"
    return made


@pytest.mark.parametrize(
    ("config", "change"),
    [
        (TO_POSTGRES, {"connection.password": "new"}),
        (TO_POSTGRES, {"connection.user": "other"}),
        (TO_POSTGRES, {"connection.url": "postgres://db:5432/shop?sslmode=verify-full"}),
        (TO_POSTGRES, {"statement.timeout.ms": "300000"}),
        (TO_POSTGRES, {"auto.create": "true"}),
        (TO_POSTGRES, {"errors.tolerance": "all", "errors.deadletterqueue.table": "bad_orders"}),
        (TO_FILES, {"sink.partition.field.name": " "}),
        (TO_FILES, {"sink.option.compression": "gzip"}),
        (TO_KAFKA, {"sink.producer.override.bootstrap.servers": "there:9092"}),
        (TO_KAFKA, {"sink.producer.override.linger.ms": "5"}),
        (TO_KAFKA, {"sink.ledger.topic": "coterie-ledger"}),
        (TO_KAFKA, TOPIC),
        (TO_FILES | TOPIC, {"ledger.topic": "coterie-ledger"}),
        (TO_FILES | TOPIC, {"producer.override.sasl.jaas.config": "new"}),
        (TO_FILES | FOLDER, {"ledger.topic": "other-ledger"}),
    ],
)
def test_a_change_of_neither_the_sink_nor_the_meaning_of_rows_keeps_the_generation(
    config: Mapping[str, str], change: Mapping[str, str]
) -> None:
    assert sink_identity(config, WORKER) == sink_identity({**config, **change}, WORKER)


@pytest.mark.parametrize(
    ("config", "change"),
    [
        (TO_POSTGRES, {"connection.url": "jdbc:postgresql://other/shop"}),
        (TO_POSTGRES, {"connection.url": "jdbc:postgresql://db/shop?currentSchema=archive"}),
        (TO_POSTGRES, {"table.name.format": "orders_2"}),
        (TO_POSTGRES, {"insert.mode": "upsert", "pk.mode": "record_value", "pk.fields": "id"}),
        (TO_POSTGRES, FOLDER),
        (TO_FILES, {"sink.path": "/elsewhere"}),
        (TO_FILES, {"sink.format": "parquet"}),
        (TO_FILES, {"sink.partition.field.name": "day"}),
        (TO_KAFKA, {"sink.topic": "others"}),
        (TO_KAFKA, {"sink.delivery.guarantee": "at-least-once"}),
        (TO_KAFKA, {"sink.ledger.topic": "other-ledger"}),
        (TO_KAFKA, FOLDER),
        (TO_FILES, TOPIC),
        (TO_FILES | TOPIC, {"ledger.topic": "other-ledger"}),
        (TO_FILES | TOPIC, {"errors.deadletterqueue.topic.name": "worse"}),
    ],
)
def test_a_change_of_the_sink_or_the_meaning_of_rows_creates_a_generation(
    config: Mapping[str, str], change: Mapping[str, str]
) -> None:
    assert sink_identity(config, WORKER) != sink_identity({**config, **change}, WORKER)


def test_a_new_password_is_used_for_a_batch_in_flight_even_if_the_table_has_changed() -> None:
    newest = changed(TO_POSTGRES, connection__password="new", table__name__format="orders_2", transforms="t")
    made = in_flight(TO_POSTGRES, newest)
    assert (made["sink.connection.password"], made["sink.table.name.format"]) == ("new", "orders")
    assert made["transforms"] == "t"


def test_a_password_of_another_database_is_not_sent_to_the_former_database() -> None:
    newest = changed(TO_POSTGRES, connection__url="postgres://other/shop", connection__password="new")
    made = in_flight(TO_POSTGRES, newest)
    assert (made["sink.connection.url"], made["sink.connection.password"]) == (TO_POSTGRES["connection.url"], "old")
    assert "new" not in made.values()


def test_a_batch_in_flight_for_a_database_is_not_written_to_the_file_sink_that_replaced_it() -> None:
    newest = changed(TO_FILES, transforms="t")
    made = in_flight(TO_POSTGRES, newest)
    assert made["sink.class"] == "PostgresSink"
    assert made["sink.connection.password"] == "old"
    assert "sink.path" not in made
    back = in_flight(TO_FILES, changed(TO_POSTGRES, path="/elsewhere"))
    assert (back["sink.class"], back["sink.path"], back["sink.format"]) == ("FileSink", "/out", "json")
    assert "connection.password" not in back


def test_a_batch_in_flight_keeps_its_cluster_and_topic_if_both_have_changed() -> None:
    newest = changed(TO_KAFKA, sink__topic="others", sink__producer__override__bootstrap__servers="there:9092")
    made = in_flight(TO_KAFKA, newest)
    assert made["sink.topic"] == "copies"
    assert "there:9092" not in made.values()


def test_the_source_is_read_with_the_newest_keys_if_they_give_the_same_parts() -> None:
    newest = changed(TO_FILES, max__offsets__per__trigger="7", source__consumer__override__sasl__mechanism="PLAIN")
    made = in_flight(TO_FILES, newest)
    assert made["source.max.offsets.per.trigger"] == "7"
    assert made["source.consumer.override.sasl.mechanism"] == "PLAIN"
    elsewhere = changed(newest, source__consumer__override__bootstrap__servers="there:9092")
    assert "there:9092" in in_flight(TO_FILES, elsewhere).values(), "the topics are the same, so the cluster is"
    made = in_flight(TO_FILES, elsewhere, parts=("orders/0/another-id",))
    assert "there:9092" not in made.values()
    assert "PLAIN" not in made.values()


def test_bad_records_of_a_batch_in_flight_go_where_earlier_ones_may_be_already() -> None:
    with_bad_records = in_flight(TO_FILES, changed(TO_FILES, **FOLDER, sink__path="/elsewhere"))
    assert with_bad_records["errors.tolerance"] == "all"
    assert with_bad_records["errors.deadletterqueue.path"] == "/bad", (
        "without a former queue no bad record is written yet"
    )
    other = changed(TO_KAFKA, errors__tolerance="all", errors__deadletterqueue__path="/other")
    made = in_flight({**TO_KAFKA, **FOLDER}, other)
    assert made["errors.deadletterqueue.path"] == "/bad"
    strict = in_flight({**TO_KAFKA, **FOLDER}, TO_KAFKA)
    assert (strict["errors.tolerance"], strict["errors.deadletterqueue.path"]) == ("all", "/bad")
    held = {**TO_POSTGRES, "errors.tolerance": "all", "errors.deadletterqueue.table": "bad"}
    moved = in_flight(held, {**held, "errors.deadletterqueue.table": "worse", "table.name.format": "orders_2"})
    assert moved["errors.deadletterqueue.table"] == "worse", "one transaction of the batch contains both tables"


def dead_letter_keys_of(made: Mapping[str, str]) -> dict[str, str]:
    """The keys for bad records of a batch whose sink does not write them itself."""
    return {key: value for key, value in made.items() if key.startswith(("errors.dead", "ledger.", "producer."))}


PASSWORD = "producer.override.sasl.jaas.config"
TO_TOPIC = TO_FILES | TOPIC | {"ledger.topic": "ledger", PASSWORD: "old"}


def test_a_batch_in_flight_keeps_the_ledger_that_lists_its_bad_records() -> None:
    """With another ledger, bad records that are in the topic would be written there again."""
    made = in_flight(TO_TOPIC, changed(TO_TOPIC, ledger__topic="other"))
    assert made["ledger.topic"] == "ledger"
    del (without := dict(TO_TOPIC))["ledger.topic"]
    assert in_flight(TO_TOPIC, without)["ledger.topic"] == "ledger"
    assert in_flight(without, TO_TOPIC)["ledger.topic"] == "coterie-ledger"
    to_kafka = TO_KAFKA | TOPIC | {"sink.ledger.topic": "other"}
    assert dead_letter_keys_of(in_flight(TO_TOPIC, to_kafka)) == {
        "errors.deadletterqueue.topic.name": "bad",
        "ledger.topic": "ledger",
    }
    assert in_flight(to_kafka, TO_TOPIC)["sink.ledger.topic"] == "other", "the sink writes both, with its own ledger"


def test_for_bad_records_only_a_new_password_of_the_same_cluster_is_used() -> None:
    for other in ({}, {"errors.deadletterqueue.topic.name": "worse"}, {"ledger.topic": "other"}):
        made = in_flight(TO_TOPIC, {**TO_TOPIC, PASSWORD: "new", **other})
        assert dead_letter_keys_of(made) == dead_letter_keys_of(TO_TOPIC | {PASSWORD: "new"})
    elsewhere = {"producer.override.bootstrap.servers": "there:9092", "ledger.topic": "other", PASSWORD: "new"}
    for newest in (TO_TOPIC | elsewhere, TO_FILES, TO_FILES | FOLDER):
        assert dead_letter_keys_of(in_flight(TO_TOPIC, newest)) == dead_letter_keys_of(TO_TOPIC)
