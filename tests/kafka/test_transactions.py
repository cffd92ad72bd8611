"""Transactions with confluent-kafka's producer and consumer, on Coterie's broker and on a real one."""

import threading
from itertools import count

import pytest
from confluent_kafka import IsolationLevel, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from tests.kafka.embedded_broker import EmbeddedBroker
from tests.kafka.tools import Tools
from tests.kafka.transactional_clients import (
    DEADLINE_S,
    KILLS,
    made_topic,
    read_to_end,
    reader,
    transactional,
    value_of,
)


@pytest.fixture
def topic(bootstrap: str) -> str:
    return made_topic(bootstrap, partitions=2)


def transact(producer: Producer, topic: str, *values: str, partition: int = 0) -> None:
    """Begin a transaction and write ``values`` in it."""
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value, partition=partition)
    assert producer.flush(DEADLINE_S) == 0


def last_stable_offset(bootstrap: str, topic: str) -> int:
    at = TopicPartition(topic, 0)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    found = admin.list_offsets({at: OffsetSpec.latest()}, isolation_level=IsolationLevel.READ_COMMITTED)
    return int(found[at].result(DEADLINE_S).offset)


def test_readers_of_committed_records_see_only_these(bootstrap: str, topic: str) -> None:
    producer = transactional(bootstrap, f"id-{topic}")
    transact(producer, topic, "a0", "a1")
    producer.commit_transaction(DEADLINE_S)
    transact(producer, topic, "b0", "b1")
    producer.abort_transaction(DEADLINE_S)
    transact(producer, topic, "c0")
    producer.commit_transaction(DEADLINE_S)
    assert read_to_end(bootstrap, topic) == ["a0", "a1", "c0"]
    assert read_to_end(bootstrap, topic, "read_uncommitted") == ["a0", "a1", "b0", "b1", "c0"]


def test_no_record_after_an_open_transaction_is_visible_before_its_end(bootstrap: str, topic: str) -> None:
    producer, other = transactional(bootstrap, f"id-{topic}"), Producer({"bootstrap.servers": bootstrap})
    other.produce(topic, "before", partition=0)
    assert other.flush(DEADLINE_S) == 0
    transact(producer, topic, "inside")
    other.produce(topic, "after", partition=0)
    assert other.flush(DEADLINE_S) == 0
    assert last_stable_offset(bootstrap, topic) == 1
    assert read_to_end(bootstrap, topic) == ["before"]
    assert read_to_end(bootstrap, topic, "read_uncommitted") == ["before", "inside", "after"]
    with reader(bootstrap, topic, "read_committed") as waiting:
        values: list[str] = []
        producer.commit_transaction(DEADLINE_S)
        while len(values) < 3:
            message = waiting.poll(DEADLINE_S)
            assert message is not None
            if message.error() is None:
                values.append(value_of(message))
    assert values == ["before", "inside", "after"]
    assert last_stable_offset(bootstrap, topic) == 4


def test_a_transaction_over_two_partitions_ends_in_both(bootstrap: str, topic: str) -> None:
    producer = transactional(bootstrap, f"id-{topic}")
    for is_commit in (False, True):
        producer.begin_transaction()
        for number in range(2):
            producer.produce(topic, f"{is_commit} {number}", partition=number)
        if is_commit:
            producer.commit_transaction(DEADLINE_S)
        else:
            assert producer.flush(DEADLINE_S) == 0
            producer.abort_transaction(DEADLINE_S)
    assert [read_to_end(bootstrap, topic, partition=number) for number in range(2)] == [["True 0"], ["True 1"]]


def test_a_replaced_leader_is_fenced_by_the_transactional_id(bootstrap: str, topic: str) -> None:
    """KIP-618: the leader of a Connect cluster writes its config topic with a transactional producer, so that a former
    leader is fenced."""
    former = transactional(bootstrap, f"connect-cluster-{topic}")
    transact(former, topic, "by the former leader")
    leader = transactional(bootstrap, f"connect-cluster-{topic}")
    with pytest.raises(KafkaException) as refused:
        former.commit_transaction(DEADLINE_S)
    assert refused.value.args[0].code() == KafkaError._FENCED
    transact(leader, topic, "by the leader")
    leader.commit_transaction(DEADLINE_S)
    assert read_to_end(bootstrap, topic) == ["by the leader"]


@pytest.mark.processes
@pytest.mark.kafka
def test_kafkas_tool_shows_a_new_epoch_for_each_transaction_of_javas_producer(
    embedded_broker: EmbeddedBroker, tools: Tools
) -> None:
    """Kafka's own clients end transactions with EndTxn v5 and begin them with Produce v12 (KIP-890)."""
    bootstrap = embedded_broker.bootstrap_servers
    topic = made_topic(bootstrap, partitions=1)
    load = ("--topic", topic, "--num-records", "500", "--record-size", "20", "--throughput", "1000")
    transactions = ("--transactional-id", topic, "--transaction-duration-ms", "50")
    tools.run("kafka-producer-perf-test", "--bootstrap-server", bootstrap, *load, *transactions)
    assert len(read_to_end(bootstrap, topic)) == 500
    described = tools.run(
        "kafka-transactions", "--bootstrap-server", bootstrap, "describe", "--transactional-id", topic
    ).out
    names, values = (line.split() for line in described.strip().splitlines())
    state = dict(zip(names, values, strict=False))
    assert state["TransactionState"] == "CompleteCommit"
    assert int(state["ProducerEpoch"]) > 1
    assert last_stable_offset(bootstrap, topic) > 500


@pytest.mark.processes
def test_a_repeatedly_killed_broker_loses_and_doubles_no_transaction(mortal_broker: EmbeddedBroker) -> None:
    bootstrap = mortal_broker.bootstrap_servers
    topic = made_topic(bootstrap, partitions=1)
    producer = transactional(bootstrap, f"id-{topic}")
    expected: list[str] = []
    has_ended = threading.Event()
    transactions = 0

    def kill() -> None:
        for _ in range(KILLS):
            before = transactions
            # At any point of a transaction, after some complete ones.
            while transactions < before + 3 and not has_ended.wait(0.001):
                pass
            mortal_broker.kill()
            mortal_broker.start()

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        for transactions in count():
            producer.begin_transaction()
            values = [f"{transactions}-{number}" for number in range(5)]
            for value in values:
                producer.produce(topic, value, partition=0)
            if transactions % 3 == 2:
                producer.abort_transaction(DEADLINE_S)
            else:
                producer.commit_transaction(DEADLINE_S)
                expected += values
            if not killer.is_alive():
                break
    finally:
        has_ended.set()
        killer.join()
    assert read_to_end(bootstrap, topic) == expected


@pytest.mark.processes
def test_a_repeatedly_killed_broker_doubles_no_record_of_an_idempotent_producer(
    mortal_broker: EmbeddedBroker,
) -> None:
    bootstrap = mortal_broker.bootstrap_servers
    topic = made_topic(bootstrap, partitions=1)
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 0})
    acknowledged: list[str] = []

    def note(error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        acknowledged.append(value_of(message))

    sent: list[str] = []
    for _ in range(KILLS):
        enough = len(acknowledged) + 100
        while len(acknowledged) < enough:
            sent.append(str(len(sent)))
            producer.produce(topic, sent[-1], partition=0, on_delivery=note)
            producer.poll(0.001)
        mortal_broker.kill()
        mortal_broker.start()
    assert producer.flush(DEADLINE_S) == 0
    assert acknowledged == sent
    assert read_to_end(bootstrap, topic) == sent
