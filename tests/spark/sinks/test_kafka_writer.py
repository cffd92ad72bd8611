"""A batch is in a topic once for readers with read_committed, even if owners are killed, freeze or resume."""

import contextlib
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from coterie.nouns.errors import UnreachableError, WorldError
from coterie.spark.fence import FencedError
from coterie.spark.seams import TaskCheckpointLineage
from coterie.spark.sinks import kafka_writer
from coterie.spark.sinks.kafka_writer import KafkaWriter
from coterie.spark.sources.kafka_client import kafka_admin
from tests.kafka.embedded_broker import EmbeddedBroker
from tests.kafka.real_kafka import RealKafka
from tests.ports import free_port
from tests.spark.sinks.kafka_jvm import Producers
from tests.spark.sinks.kafka_rows import (
    LINEAGE,
    ROWS,
    await_expiration,
    await_transactions,
    numbered,
    numbers,
    records,
    target_of,
    values,
    write,
)
from tests.spark.sinks.owner_process import OwnerProcess

pytestmark = [pytest.mark.spark, pytest.mark.timeout(120)]


ON_BOTH = pytest.mark.parametrize(
    "servers", ["embedded", pytest.param("kafka", marks=pytest.mark.kafka)], indirect=True
)

KILLED_ON_BOTH = pytest.mark.parametrize(
    "servers", ["embedded", pytest.param("kafka", marks=[pytest.mark.kafka, pytest.mark.soak])], indirect=True
)


@pytest.fixture
def servers(request: pytest.FixtureRequest) -> str:
    """The embedded broker, and for marked tests also a real Kafka."""
    kinds = {
        "embedded": "embedded_broker",
        "without auto creation": "broker_without_auto_creation",
        "kafka": "real_kafka",
        "kafka with auto creation": "kafka_with_auto_creation",
    }
    broker = request.getfixturevalue(kinds[getattr(request, "param", "embedded")])
    assert isinstance(broker, (EmbeddedBroker, RealKafka))
    return broker.bootstrap_servers


@pytest.fixture
def keys(servers: str, request: pytest.FixtureRequest) -> dict[str, str]:
    """Keys of a sink whose topic and ledger do not exist yet."""
    name = f"t{abs(hash(request.node.nodeid))}"
    return {
        "topic": name,
        "ledger.topic": f"{name}-ledger",
        "producer.override.bootstrap.servers": servers,
        "topic.creation.default.partitions": "1",
        "topic.creation.default.replication.factor": "1",
    }


class Scene:
    """A topic and owners of the task that writes to it."""

    def __init__(self, keys: dict[str, str], java: Any, jars: Path, ended_by: contextlib.ExitStack) -> None:
        self.keys = keys
        self.java = java
        self.topic = keys["topic"]
        self.servers = keys["producer.override.bootstrap.servers"]
        self._jars = jars
        self._ended_by = ended_by

    def own(
        self, lineage: TaskCheckpointLineage = LINEAGE, kind: type[KafkaWriter] = KafkaWriter, **changes: str
    ) -> KafkaWriter:
        """Take the task over, with changed keys."""
        keys = self.keys | {key.replace("__", "."): value for key, value in changes.items()}
        writer = kind(target_of(keys), lineage, self.java, Producers(self.java))
        self._ended_by.callback(writer.close)
        writer.take_over()
        return writer

    def write(self, writer: KafkaWriter, *batches: int) -> None:
        for batch_id in batches:
            write(writer, self.java, self.topic, batch_id)

    def batch(self, batch_id: int) -> Callable[[], kafka_writer.SendFunction]:
        return numbered(self.java, self.topic, batch_id * ROWS)

    def process(self, batch_id: int) -> OwnerProcess:
        made = OwnerProcess("kafka_owner", json.dumps(self.keys), str(self._jars), str(batch_id))
        self._ended_by.callback(made.end)
        return made

    def numbers(self) -> list[int]:
        """The numbers that readers see when no transaction is open."""
        await_transactions(self.servers, self.topic)
        return numbers(self.servers, self.topic)

    def visible(self, isolation: str = "read_committed") -> list[int]:
        """The numbers that readers see now."""
        return numbers(self.servers, self.topic, isolation)


@pytest.fixture
def scene(keys: dict[str, str], kafka_clients: Any, spark_jars: Path) -> Iterator[Scene]:
    with contextlib.ExitStack() as stack:
        yield Scene(keys, kafka_clients, spark_jars, stack)


def rows(batches: int) -> list[int]:
    return list(range(batches * ROWS))


# -- exactly once -----------------------------------------------------------------------------------------------------


@ON_BOTH
def test_a_batch_is_visible_only_after_it_was_put_in_place(scene: Scene) -> None:
    staged = scene.own().stage(0, scene.batch(0))
    assert scene.visible() == []
    assert scene.visible("read_uncommitted") == rows(1)
    staged.commit()
    staged.clean_up()
    assert scene.numbers() == rows(1)


def test_a_dropped_staged_batch_leaves_nothing_and_can_be_staged_again(scene: Scene) -> None:
    writer = scene.own()
    writer.stage(0, scene.batch(0)).clean_up()
    scene.write(writer, 0)
    assert scene.numbers() == rows(1)


@ON_BOTH
def test_a_replay_writes_nothing_and_the_ledger_states_the_last_batch(scene: Scene) -> None:
    for _ in range(2):
        scene.write(scene.own(), 0, 1, 0)
    assert scene.numbers() == rows(2)
    assert records(scene.servers, scene.keys["ledger.topic"])[-1] == (
        json.dumps(["my/é", 2]).encode(),
        b'{"lineage": "l", "batch": 1}',
        [],
    )


class WithoutLedger(KafkaWriter):
    """A mutant that does not check the ledger."""

    def _is_batch_committed(self, batch_id: int) -> bool:
        return False


def test_without_the_ledger_a_replay_doubles_every_row(scene: Scene) -> None:
    """Shows that the previous test can fail."""
    for _ in range(2):
        scene.write(scene.own(kind=WithoutLedger), 0)
    assert len(scene.numbers()) == 2 * ROWS


def test_a_batch_without_rows_makes_no_transaction(scene: Scene) -> None:
    writer = scene.own()
    staged = writer.stage(0, lambda: None)
    staged.commit()
    staged.clean_up()
    assert values(scene.servers, scene.keys["ledger.topic"]) == []


def test_a_new_lineage_counts_its_batches_from_0(scene: Scene) -> None:
    """Batches of a new lineage are not skipped because of the numbers of the former one."""
    scene.write(scene.own(), 0, 1)
    scene.write(scene.own(replace(LINEAGE, lineage_id="next")), 0, 1)
    assert scene.numbers() == sorted(rows(2) * 2)


# -- owners -----------------------------------------------------------------------------------------------------------


@ON_BOTH
def test_a_replaced_owner_cannot_write(scene: Scene) -> None:
    old = scene.own()
    left = old.stage(0, scene.batch(0))
    new = scene.own()
    with pytest.raises(FencedError):
        left.commit()
    left.clean_up()
    with pytest.raises(FencedError):
        scene.write(old, 0)
    scene.write(new, 0, 1)
    newest = scene.own()
    with pytest.raises(FencedError):
        scene.write(new, 2)
    scene.write(newest, 2)
    assert scene.numbers() == rows(3)


class WithoutFence(KafkaWriter):
    """A mutant whose starts have different transactional ids."""

    made = 0

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        WithoutFence.made += 1
        self._transactional_id += f"-{WithoutFence.made}"


def test_without_the_fence_a_replaced_owner_doubles_its_batch(scene: Scene) -> None:
    """Shows that the previous test can fail."""
    left = scene.own(kind=WithoutFence).stage(0, scene.batch(0))
    scene.write(scene.own(kind=WithoutFence), 0)
    left.commit()
    assert len(scene.numbers()) == 2 * ROWS


@ON_BOTH
def test_two_concurrent_owners_put_each_batch_in_place_once(scene: Scene) -> None:
    """Repeated take-overs from a running owner, during its batches."""
    rounds, batches = 6, 3
    writer = scene.own()

    def write_until_fenced(writer: KafkaWriter, batches_to_write: range) -> None:
        with contextlib.suppress(FencedError):
            scene.write(writer, *batches_to_write)

    for number in range(rounds):
        batches_to_write = range(number * batches, (number + 1) * batches)
        old = threading.Thread(target=write_until_fenced, args=(writer, batches_to_write))
        old.start()
        writer = scene.own()
        # The new owner replays the batch that the old one may have written.
        scene.write(writer, *batches_to_write)
        old.join()
    assert scene.numbers() == rows(rounds * batches)


# -- expired transactional ids ----------------------------------------------------------------------------------------


@pytest.fixture
def expiring(expiring_servers: str, scene: Scene) -> Scene:
    """A scene on a broker that removes idle transactional ids."""
    scene.servers = scene.keys["producer.override.bootstrap.servers"] = expiring_servers
    return scene


def test_a_task_whose_transactional_id_has_expired_writes_its_next_batch_once(
    expiring: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="coterie.spark.sinks.kafka_writer")
    writer = expiring.own()
    await_expiration(expiring.java, expiring.servers)
    expiring.write(writer, 0, 1)
    await_expiration(expiring.java, expiring.servers)
    expiring.write(writer, 2, 3)
    assert expiring.numbers() == rows(4)
    assert caplog.text.count("had expired, because the task wrote no batch") == 2
    # The later batches are in the ledger, and the producer is still that of the newest start.
    expiring.write(expiring.own(), 2, 3, 4)
    assert expiring.numbers() == rows(5)
    with pytest.raises(FencedError):
        expiring.write(writer, 5)


def test_an_owner_whose_transactional_id_has_expired_cannot_write_after_it_was_replaced(expiring: Scene) -> None:
    old = expiring.own()
    expiring.write(old, 0)
    await_expiration(expiring.java, expiring.servers)
    new = expiring.own()
    with pytest.raises(FencedError):
        expiring.write(old, 1)
    expiring.write(new, 1)
    assert expiring.numbers() == rows(2)


def test_an_owner_cannot_write_when_its_successors_transactional_id_has_expired_too(expiring: Scene) -> None:
    """The broker then accepts the old producer again, and only the ledger shows that another start has written."""
    old = expiring.own()
    expiring.write(old, 0)
    await_expiration(expiring.java, expiring.servers)
    expiring.write(expiring.own(), 1)
    await_expiration(expiring.java, expiring.servers)
    with pytest.raises(FencedError, match="Another start of task"):
        expiring.write(old, 1)
    assert expiring.numbers() == rows(2)


# -- killed and stopped -----------------------------------------------------------------------------------------------


POINTS = {"owns": 0, "inside": ROWS // 2, "staged": ROWS, "done": ROWS}
"""The last line of an owner before it is killed, and how many rows of its batch are in the topic then: before the
transaction, inside it, before its commit and after it."""


def kill_an_owner(scene: Scene, point: str, batch_id: int) -> None:
    """Kill the owner of a batch at a point, and let the next owner write the batch again."""
    process = scene.process(batch_id)
    before = len(scene.visible("read_uncommitted"))
    for word in POINTS:
        process.wait_for_word(word)
        if word == point:
            break
        process.go_on()
    assert len(scene.visible("read_uncommitted")) - before == POINTS[point], "the kill missed its point"
    if point == "done":
        assert ROWS * batch_id in scene.numbers()
    else:
        assert ROWS * batch_id not in scene.visible()
    process.end()
    scene.write(scene.own(), batch_id)


@KILLED_ON_BOTH
@pytest.mark.parametrize("point", POINTS)
def test_the_next_owner_completes_the_batch_of_a_killed_owner_once(scene: Scene, point: str) -> None:
    scene.write(scene.own(), 0)
    kill_an_owner(scene, point, 1)
    scene.write(scene.own(), 2)
    assert scene.numbers() == rows(3)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@ON_BOTH
def test_batches_of_twenty_owners_killed_at_each_point_are_written_once(scene: Scene) -> None:
    kills = [point for _ in range(20) for point in POINTS]
    for batch_id, point in enumerate(kills):
        kill_an_owner(scene, point, batch_id)
    assert scene.numbers() == rows(len(kills))


@KILLED_ON_BOTH
def test_an_owner_stopped_inside_its_transaction_is_fenced_when_it_continues(scene: Scene) -> None:
    process = scene.process(0)
    process.wait_for_word("owns")
    process.go_on()
    process.wait_for_word("inside")
    process.signal(signal.SIGSTOP)
    scene.write(scene.own(), 0)
    process.signal(signal.SIGCONT)
    process.go_on()
    process.wait_for_word("fenced")
    assert scene.numbers() == rows(1)


# -- the ledger -------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def open_transaction(scene: Scene, key: bytes) -> Iterator[None]:
    """Keep a transaction of another task open, in this task's partition of the ledger."""
    producer = Producer({"bootstrap.servers": scene.servers, "transactional.id": "another", "linger.ms": 0})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(scene.keys["ledger.topic"], b"{}", key=key, partition=ledger_partition(scene))
    assert producer.flush(30) == 0
    try:
        yield
    finally:
        producer.abort_transaction(30)


def ledger_partition(scene: Scene) -> int:
    target = target_of(scene.keys)
    with kafka_admin(target.producer_properties, scene.java) as admin:
        return kafka_writer.check_ledger_and_find_partition(admin, target, json.dumps(["my/é", 2])).partition


@ON_BOTH
def test_a_start_waits_for_an_open_transaction_of_another_task_that_hides_its_ledger_record(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last stable offset is before the record: a reader that stops there would write the batch again."""
    writer = scene.own()
    scene.write(writer, 0)
    with open_transaction(scene, b"another"):
        scene.write(writer, 1)
        with monkeypatch.context() as patch:
            patch.setattr(kafka_writer, "LEDGER_READ_TIMEOUT_S", 1)
            with pytest.raises(UnreachableError, match="the transaction of another task is open"):
                scene.own()
    scene.write(scene.own(), 1)
    assert scene.numbers() == rows(2)


def test_a_start_does_not_wait_for_an_open_transaction_that_hides_no_ledger_record(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.write(scene.own(), 0)
    monkeypatch.setattr(kafka_writer, "LEDGER_READ_TIMEOUT_S", 10)
    with open_transaction(scene, b"another"):
        scene.write(scene.own(), 0, 1)
    assert scene.numbers() == rows(2)


def test_the_last_ledger_record_of_a_task_is_found_at_any_distance_from_the_end(scene: Scene) -> None:
    scene.write(scene.own(), 0)
    producer, partition = Producer({"bootstrap.servers": scene.servers}), ledger_partition(scene)
    for number in range(kafka_writer.FIRST_READ_OFFSETS * 3):
        producer.produce(scene.keys["ledger.topic"], b"{}", key=b"%d" % number, partition=partition)
    assert producer.flush(30) == 0
    scene.write(scene.own(), 0, 1)
    assert scene.numbers() == rows(2)


def test_a_topic_that_is_no_ledger_is_refused(scene: Scene) -> None:
    admin = AdminClient({"bootstrap.servers": scene.servers})
    for future in admin.create_topics([NewTopic(scene.keys["ledger.topic"], 1, 1)]).values():
        future.result(30)
    with pytest.raises(WorldError, match=r"has cleanup\.policy=delete and must have compact"):
        scene.own()


def test_a_foreign_record_in_the_ledger_is_named(scene: Scene) -> None:
    scene.own()
    producer = Producer({"bootstrap.servers": scene.servers})
    key = json.dumps(["my/é", 2]).encode()
    producer.produce(scene.keys["ledger.topic"], b"what is this?", key=key, partition=ledger_partition(scene))
    assert producer.flush(30) == 0
    with pytest.raises(WorldError, match="was not written by the Kafka sink: 'what is this"):
        scene.own()


# -- refusals of a cluster --------------------------------------------------------------------------------------------


@ON_BOTH
def test_a_transaction_that_takes_too_long_names_the_key(scene: Scene) -> None:
    writer = scene.own(producer__override__transaction__timeout__ms="1000")

    def take_too_long() -> None:
        # On a slow machine the time limit can pass while the records are sent.
        staged = writer.stage(0, scene.batch(0))
        threading.Event().wait(1.1)
        # The broker aborts the transaction some seconds later; in this test the next start aborts it.
        scene.own()
        staged.commit()

    with pytest.raises(UnreachableError) as caught:
        take_too_long()
    assert "longer than the 1000 ms of producer.override.transaction.timeout.ms: raise this limit" in str(caught.value)


def test_a_transaction_timeout_that_the_broker_does_not_allow_names_the_key(scene: Scene) -> None:
    with pytest.raises(WorldError, match=r"Set producer\.override\.transaction\.timeout\.ms to at most"):
        scene.own(producer__override__transaction__timeout__ms="900001")


def test_a_record_that_is_too_large_names_the_keys_and_leaves_nothing_open(scene: Scene) -> None:
    writer = scene.own()
    record_of = scene.java.org.apache.kafka.clients.producer.ProducerRecord

    def send(producer: Any, _: Any) -> None:
        producer.send(record_of(scene.topic, b"small"))
        producer.send(record_of(scene.topic, b"x" * (2 << 20))).get()

    with pytest.raises(WorldError) as caught:
        writer.stage(0, lambda: send)
    assert not isinstance(caught.value, UnreachableError)
    assert "raise producer.override.max.request.size and producer.override.buffer.memory" in str(caught.value)
    scene.write(scene.own(), 0)
    assert scene.numbers() == rows(1)


def test_the_next_start_looks_up_a_commit_without_a_response_in_the_ledger(
    scene: Scene, mortal_broker: EmbeddedBroker
) -> None:
    """The broker is killed before the commit of a batch: once it restarts in time, once it does not."""
    scene.servers = scene.keys["producer.override.bootstrap.servers"] = mortal_broker.bootstrap_servers
    scene.keys["producer.override.max.block.ms"] = "1000"
    writer = scene.own(producer__override__max__block__ms="30000")
    staged = writer.stage(0, scene.batch(0))
    mortal_broker.kill()
    mortal_broker.start()
    staged.commit()
    assert scene.numbers() == rows(1)
    staged = scene.own().stage(1, scene.batch(1))
    mortal_broker.kill()
    with pytest.raises(UnreachableError, match="the commit of batch 1 of task my/é-2 failed"):
        staged.commit()
    staged.clean_up()
    mortal_broker.start()
    scene.write(scene.own(), 0, 1, 2)
    assert scene.numbers() == rows(3)


@pytest.mark.parametrize(
    "servers", ["without auto creation", pytest.param("kafka", marks=pytest.mark.kafka)], indirect=True
)
def test_a_missing_topic_is_named_unless_it_may_be_created(scene: Scene) -> None:
    creation = {key: value for key, value in scene.keys.items() if key.startswith("topic.creation.")}
    for key in creation:
        del scene.keys[key]
    with pytest.raises(WorldError, match=rf"has no topic {scene.topic}; create it, or set topic\.creation") as raised:
        scene.own()
    assert str(raised.value).endswith("its config auto.create.topics.enable is false")
    scene.keys |= creation
    scene.own()


@pytest.mark.parametrize(
    ("servers", "partitions"),
    [("embedded", 1), pytest.param("kafka with auto creation", 3, marks=pytest.mark.kafka)],
    indirect=["servers"],
)
def test_a_missing_topic_is_created_with_the_brokers_defaults_if_the_broker_creates_topics(
    scene: Scene, partitions: int
) -> None:
    for key in [key for key in scene.keys if key.startswith("topic.creation.")]:
        del scene.keys[key]
    scene.write(scene.own(), 0)
    assert scene.numbers() == rows(1)
    with kafka_admin(target_of(scene.keys).producer_properties, scene.java) as admin:
        assert len(admin.list_partitions([scene.topic])) == partitions


def test_an_unreachable_cluster_is_named(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.spark.sources.kafka_client.RESPONSE_TIMEOUT_MS", 500)
    servers = f"127.0.0.1:{free_port()}"
    with pytest.raises(WorldError, match=f"Kafka at {servers} did not answer"):
        scene.own(producer__override__bootstrap__servers=servers)


def test_closing_aborts_an_open_transaction_so_that_readers_do_not_wait(scene: Scene) -> None:
    """As at a stop without grace: the task may not start again for long, for example because it is paused."""
    writer = scene.own()
    staged = writer.stage(0, scene.batch(0))
    writer.close()
    staged.clean_up()
    other = Producer({"bootstrap.servers": scene.servers})
    other.produce(scene.topic, b"999")
    assert other.flush(10) == 0
    deadline_s = time.monotonic() + 10
    while scene.visible() != [999]:
        assert time.monotonic() < deadline_s, "the open transaction hides later records"


def test_closing_ends_a_batch_on_another_thread(scene: Scene) -> None:
    writer = scene.own()
    inside, may_go_on = threading.Event(), threading.Event()

    def halfway() -> None:
        inside.set()
        may_go_on.wait(30)

    caught: list[Exception] = []

    def stage() -> None:
        try:
            writer.stage(0, numbered(scene.java, scene.topic, 0, halfway))
        except (FencedError, WorldError) as error:
            caught.append(error)

    thread = threading.Thread(target=stage)
    thread.start()
    assert inside.wait(30)
    writer.close()
    may_go_on.set()
    thread.join(30)
    assert [type(error) for error in caught] == [FencedError]
    scene.write(scene.own(), 0)
    assert scene.numbers() == rows(1)
