"""The config of a batch in flight: where its generation read and wrote, and all else as the newest config has it."""

from collections.abc import Mapping

import pytest

from coterie.spark.generations.layout import GenerationId
from coterie.spark.generations.manifest import Manifest
from coterie.spark.generations.split import Split, SplitFunction
from coterie.spark.in_flight import config_in_flight
from coterie.spark.plugins import written_to

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
        split=Split(function=SplitFunction.PARTS_V1, tasks=(PARTS,)),
        config=former,
        inferred={},
        positions={},
        parked={},
    )
    made = config_in_flight(newest, manifest, frozenset(parts), WORKER)
    there = written_to(former, WORKER)
    now = written_to(made, WORKER)
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
def test_what_neither_names_the_place_nor_the_meaning_of_rows_keeps_the_generation(
    config: Mapping[str, str], change: Mapping[str, str]
) -> None:
    assert written_to(config, WORKER) == written_to({**config, **change}, WORKER)


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
def test_another_place_or_meaning_of_rows_makes_another_generation(
    config: Mapping[str, str], change: Mapping[str, str]
) -> None:
    assert written_to(config, WORKER) != written_to({**config, **change}, WORKER)


def test_a_new_password_is_used_also_where_the_table_is_another_one_by_now() -> None:
    newest = changed(TO_POSTGRES, connection__password="new", table__name__format="orders_2", transforms="t")
    made = in_flight(TO_POSTGRES, newest)
    assert (made["sink.connection.password"], made["sink.table.name.format"]) == ("new", "orders")
    assert made["transforms"] == "t"


def test_a_password_of_another_database_is_not_sent_to_the_former_one() -> None:
    newest = changed(TO_POSTGRES, connection__url="postgres://other/shop", connection__password="new")
    made = in_flight(TO_POSTGRES, newest)
    assert (made["sink.connection.url"], made["sink.connection.password"]) == (TO_POSTGRES["connection.url"], "old")
    assert "new" not in made.values()


def test_a_batch_for_a_database_is_not_written_to_the_files_that_came_after_it() -> None:
    newest = changed(TO_FILES, transforms="t")
    made = in_flight(TO_POSTGRES, newest)
    assert made["sink.class"] == "PostgresSink"
    assert made["sink.connection.password"] == "old"
    assert "sink.path" not in made
    back = in_flight(TO_FILES, changed(TO_POSTGRES, path="/elsewhere"))
    assert (back["sink.class"], back["sink.path"], back["sink.format"]) == ("FileSink", "/out", "json")
    assert "connection.password" not in back


def test_a_record_to_another_cluster_and_another_topic_goes_to_neither_for_a_batch_in_flight() -> None:
    newest = changed(TO_KAFKA, sink__topic="others", sink__producer__override__bootstrap__servers="there:9092")
    made = in_flight(TO_KAFKA, newest)
    assert made["sink.topic"] == "copies"
    assert "there:9092" not in made.values()


def test_the_source_is_read_with_newer_keys_as_long_as_they_lead_to_the_same_parts() -> None:
    newest = changed(TO_FILES, max__offsets__per__trigger="7", source__consumer__override__sasl__mechanism="PLAIN")
    made = in_flight(TO_FILES, newest)
    assert made["source.max.offsets.per.trigger"] == "7"
    assert made["source.consumer.override.sasl.mechanism"] == "PLAIN"
    elsewhere = changed(newest, source__consumer__override__bootstrap__servers="there:9092")
    assert "there:9092" in in_flight(TO_FILES, elsewhere).values(), "the same topics, so the same cluster"
    made = in_flight(TO_FILES, elsewhere, parts=("orders/0/another-id",))
    assert "there:9092" not in made.values()
    assert "PLAIN" not in made.values()


def test_bad_records_go_where_those_of_the_batch_can_stand_already() -> None:
    poison = in_flight(TO_FILES, changed(TO_FILES, **FOLDER, sink__path="/elsewhere"))
    assert poison["errors.tolerance"] == "all"
    assert poison["errors.deadletterqueue.path"] == "/bad", "without a place before, no bad record stands anywhere"
    other = changed(TO_KAFKA, errors__tolerance="all", errors__deadletterqueue__path="/other")
    made = in_flight({**TO_KAFKA, **FOLDER}, other)
    assert made["errors.deadletterqueue.path"] == "/bad"
    strict = in_flight({**TO_KAFKA, **FOLDER}, TO_KAFKA)
    assert (strict["errors.tolerance"], strict["errors.deadletterqueue.path"]) == ("all", "/bad")
    held = {**TO_POSTGRES, "errors.tolerance": "all", "errors.deadletterqueue.table": "bad"}
    moved = in_flight(held, {**held, "errors.deadletterqueue.table": "worse", "table.name.format": "orders_2"})
    assert moved["errors.deadletterqueue.table"] == "worse", "the transaction of the batch holds both"


def letters_of(made: Mapping[str, str]) -> dict[str, str]:
    """Where the bad records of a batch go whose sink holds none, and how."""
    return {key: value for key, value in made.items() if key.startswith(("errors.dead", "ledger.", "producer."))}


PASSWORD = "producer.override.sasl.jaas.config"
TO_TOPIC = TO_FILES | TOPIC | {"ledger.topic": "ledger", PASSWORD: "old"}


def test_the_ledger_tells_which_bad_records_of_the_batch_stand_in_the_topic() -> None:
    """With another ledger, bad records that stand in the topic would be written there once more."""
    made = in_flight(TO_TOPIC, changed(TO_TOPIC, ledger__topic="other"))
    assert made["ledger.topic"] == "ledger"
    del (without := dict(TO_TOPIC))["ledger.topic"]
    assert in_flight(TO_TOPIC, without)["ledger.topic"] == "ledger"
    assert in_flight(without, TO_TOPIC)["ledger.topic"] == "coterie-ledger"
    to_kafka = TO_KAFKA | TOPIC | {"sink.ledger.topic": "other"}
    assert letters_of(in_flight(TO_TOPIC, to_kafka)) == {
        "errors.deadletterqueue.topic.name": "bad",
        "ledger.topic": "ledger",
    }
    assert in_flight(to_kafka, TO_TOPIC)["sink.ledger.topic"] == "other", "the sink holds both, in its own ledger"


def test_a_new_password_of_the_cluster_of_bad_records_is_used_and_one_of_another_cluster_is_not() -> None:
    for other in ({}, {"errors.deadletterqueue.topic.name": "worse"}, {"ledger.topic": "other"}):
        made = in_flight(TO_TOPIC, {**TO_TOPIC, PASSWORD: "new", **other})
        assert letters_of(made) == letters_of(TO_TOPIC | {PASSWORD: "new"})
    elsewhere = {"producer.override.bootstrap.servers": "there:9092", "ledger.topic": "other", PASSWORD: "new"}
    for newest in (TO_TOPIC | elsewhere, TO_FILES, TO_FILES | FOLDER):
        assert letters_of(in_flight(TO_TOPIC, newest)) == letters_of(TO_TOPIC)
