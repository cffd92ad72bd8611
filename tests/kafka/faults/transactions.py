"""Faults of requests about producers and transactions."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from coterie.wire.batches import TRANSACTIONAL_BIT, NewRecord, encode_batch
from coterie.wire.errors import ErrorCode as E
from tests.kafka.faults.data import produce
from tests.kafka.faults.row import DEADLINE_S, Fields, Row, Scene, codes

CONTROL = 0x20


class Producer(NamedTuple):
    """A producer, the topic of two partitions that it writes to, and its transactional id."""

    id: int
    epoch: int
    topic: str
    transactional_id: str | None = None


# -- scenes -----------------------------------------------------------------------------------------------------------


def init(transactional_id: str | None = None, **wrong: Any) -> Fields:
    usual = {"transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1}
    return usual | {"transactional_id": transactional_id} | wrong


def numbered(scene: Scene) -> Producer:
    """An idempotent producer."""
    answer = scene.ask_until_ready("InitProducerId", 5, init())
    return Producer(answer.producer_id, answer.producer_epoch, scene.topic(2))


def transactional(scene: Scene) -> Producer:
    """A transactional producer."""
    transactional_id = scene.name()
    # Kafka creates its transactions topic at the first request for a transaction coordinator.
    scene.ask_until_ready("FindCoordinator", 6, {"key_type": 1, "coordinator_keys": (transactional_id,)})
    answer = scene.ask_until_ready("InitProducerId", 5, init(transactional_id))
    return Producer(answer.producer_id, answer.producer_epoch, scene.topic(2), transactional_id)


def ongoing_transaction(scene: Scene) -> Producer:
    """A producer with an open transaction on the topic's first partition."""
    producer = transactional(scene)
    scene.ask_until_success("AddPartitionsToTxn", 3, add(producer))
    return producer


def ended(scene: Scene, *, commit: bool) -> Producer:
    producer = ongoing_transaction(scene)
    scene.ask_until_success("EndTxn", 4, end(producer, commit=commit))
    return at_rest(scene, producer)


def fenced(scene: Scene) -> Producer:
    """A producer that another producer with the same transactional id has replaced."""
    producer = ongoing_transaction(scene)
    scene.ask_until_success("InitProducerId", 5, init(producer.transactional_id))
    return producer


def bumped(scene: Scene) -> Producer:
    """A producer that has committed and did not receive the response with its new epoch."""
    producer = ongoing_transaction(scene)
    scene.ask_until_success("EndTxn", 5, end(producer, commit=True))
    at_rest(scene, producer._replace(epoch=producer.epoch + 1))
    return producer


def at_rest(scene: Scene, producer: Producer) -> Producer:
    """Wait until the markers are written, which Kafka does after its response."""
    deadline_s = time.monotonic() + DEADLINE_S
    while codes(scene.ask("AddPartitionsToTxn", 5, add_many(producer, verify=True))) == (E.concurrent_transactions,):
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    return producer


# -- requests ---------------------------------------------------------------------------------------------------------


def add(producer: Producer, *partitions: int, topic: str | None = None) -> Fields:
    return {
        "v3_and_below_transactional_id": producer.transactional_id,
        "v3_and_below_producer_id": producer.id,
        "v3_and_below_producer_epoch": producer.epoch,
        "v3_and_below_topics": [{"name": topic or producer.topic, "partitions": partitions or (0,)}],
    }


def add_many(producer: Producer, *partitions: int, verify: bool = False) -> Fields:
    """The form of the request that brokers send."""
    transaction = {
        "transactional_id": producer.transactional_id,
        "producer_id": producer.id,
        "producer_epoch": producer.epoch,
        "verify_only": verify,
        "topics": [{"name": producer.topic, "partitions": partitions or (0,)}],
    }
    return {"transactions": [transaction]}


def end(producer: Producer, *, commit: bool = True) -> Fields:
    return {
        "transactional_id": producer.transactional_id,
        "producer_id": producer.id,
        "producer_epoch": producer.epoch,
        "committed": commit,
    }


def send(
    producer: Producer, sequence: int, *, records: int = 1, attributes: int | None = None, partition: int = 0
) -> Fields:
    """One batch, in a transaction if the producer is transactional."""
    if attributes is None:
        attributes = TRANSACTIONAL_BIT if producer.transactional_id else 0
    batch = encode_batch(
        [NewRecord(key=b"k", value=b"v")] * records,
        timestamp_ms=1_600_000_000_000,
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        base_sequence=sequence,
        attributes=attributes,
    )
    return produce(producer.topic, partition=partition, records=batch, transactional_id=producer.transactional_id)


def sent(scene: Scene, producer: Producer, *sequences: int) -> Producer:
    """Write batches of one record each."""
    for sequence in sequences:
        scene.ask_until_success("Produce", 11, send(producer, sequence))
    return producer


def another(producer: Producer, **wrong: Any) -> Producer:
    return producer._replace(**wrong)


Ask = Callable[[Scene], Fields]


def once_sent(sequences: tuple[int, ...], then: int, **wrong: Any) -> Ask:
    return lambda scene: send(sent(scene, numbered(scene), *sequences), then, **wrong)


# -- rows -------------------------------------------------------------------------------------------------------------

_init = partial(Row, "InitProducerId", 5)
_number = partial(Row, "Produce", 11)
_send = partial(Row, "Produce", 11)
_add = partial(Row, "AddPartitionsToTxn", 3)
_end = partial(Row, "EndTxn", 4)
_end_v5 = partial(Row, "EndTxn", 5)


def as_itself(producer: Producer, **wrong: Any) -> Fields:
    return init(producer.transactional_id, producer_id=producer.id, producer_epoch=producer.epoch) | wrong


INITS = (
    _init("of an idempotent producer", E.none, init()),
    _init("of an empty transactional id", E.invalid_request, init("")),
    _init("with no timeout", E.invalid_transaction_timeout, lambda scene: init(scene.name(), transaction_timeout=0)),
    _init(
        "with too long a timeout",
        E.invalid_transaction_timeout,
        lambda scene: init(scene.name(), transaction_timeout=900_001),
    ),
    _init("with an id and no epoch", E.invalid_request, lambda scene: init(scene.name(), producer_id=1)),
    _init("with an epoch and no id", E.invalid_request, lambda scene: init(scene.name(), producer_epoch=1)),
    _init("by the producer itself", E.none, lambda scene: as_itself(transactional(scene))),
    _init("by a fenced producer", E.producer_fenced, lambda scene: as_itself(fenced(scene))),
    Row("InitProducerId", 3, "by a fenced producer", E.invalid_producer_epoch, lambda scene: as_itself(fenced(scene))),
    _init("with another's id", E.producer_fenced, lambda scene: as_itself(transactional(scene), producer_id=987_654)),
    _init("of an unknown id", E.none, lambda scene: init(scene.name(), producer_id=987_654, producer_epoch=3)),
)  # fmt: skip

NUMBERS = (
    _number("of an unknown producer, from anywhere", E.none, lambda scene: send(numbered(scene), 5)),
    _number("again", E.none, once_sent((0,), 0)),
    _number("of the fifth but last, again", E.none, once_sent((0, 1, 2, 3, 4), 0)),
    _number("of the sixth but last, again", E.out_of_order_sequence_number, once_sent((0, 1, 2, 3, 4, 5), 0)),
    _number("after a gap", E.out_of_order_sequence_number, once_sent((0,), 2)),
    _number("that overlaps", E.out_of_order_sequence_number, once_sent((0, 1), 1, records=2)),
    _number("below 0", E.invalid_record, lambda scene: send(numbered(scene), -1)),
    _number(
        "from 0 in the next epoch",
        E.none,
        lambda scene: send(another(sent(scene, numbered(scene), 0), epoch=1), 0),
    ),
    _number(
        "that continue in the next epoch",
        E.out_of_order_sequence_number,
        lambda scene: send(another(sent(scene, numbered(scene), 0), epoch=1), 1),
    ),
    _number(
        "of an epoch below",
        E.invalid_producer_epoch,
        lambda scene: send(another(sent(scene, another(numbered(scene), epoch=3), 0), epoch=2), 1),
    ),
    _number(
        "of no epoch",
        E.invalid_producer_epoch,
        lambda scene: send(another(sent(scene, numbered(scene), 0), epoch=-1), 1),
    ),
    _number("of a control batch", E.invalid_record, lambda scene: send(numbered(scene), 0, attributes=CONTROL)),
)

SENDS = (
    _send("into a transaction", E.none, lambda scene: send(ongoing_transaction(scene), 0)),
    _send("into no transaction", E.transaction_abortable, lambda scene: send(transactional(scene), 0)),
    Row("Produce", 10, "into no transaction", E.invalid_txn_state, lambda scene: send(transactional(scene), 0)),
    Row("Produce", 12, "that begins a transaction", E.none, lambda scene: send(transactional(scene), 0)),
    Row(
        "Produce", 12, "that begins one, but not with 0", E.out_of_order_sequence_number,
        lambda scene: send(transactional(scene), 7),
    ),
    _send("into another partition", E.transaction_abortable, lambda scene: send(ongoing_transaction(scene), 0,
        partition=1)),
    _send("into one that has ended", E.transaction_abortable, lambda scene: send(ended(scene, commit=True), 0)),
    _send("by a fenced producer", E.invalid_producer_epoch, lambda scene: send(fenced(scene), 0)),
    Row("Produce", 12, "by a fenced producer", E.invalid_producer_epoch, lambda scene: send(fenced(scene), 0)),
    _send("in a later epoch", E.invalid_producer_epoch, lambda scene: send(another(ongoing_transaction(scene),
        epoch=5), 0)),
    _send(
        "with another's id",
        E.invalid_producer_id_mapping,
        lambda scene: send(another(ongoing_transaction(scene), id=987_654), 0),
    ),
    _send(
        "of an unknown transactional id",
        E.invalid_producer_id_mapping,
        lambda scene: send(another(ongoing_transaction(scene), transactional_id=scene.name()), 0),
    ),
    _send(
        "without a transactional id",
        E.transactional_id_authorization_failed,
        lambda scene: send(another(ongoing_transaction(scene), transactional_id=None), 0, attributes=TRANSACTIONAL_BIT),
    ),
    _send(
        "with an empty one",
        E.invalid_request,
        lambda scene: send(another(ongoing_transaction(scene), transactional_id=""), 0, attributes=TRANSACTIONAL_BIT),
    ),
    _send(
        "past an open transaction",
        E.invalid_txn_state,
        lambda scene: send(sent(scene, ongoing_transaction(scene), 0), 1, attributes=0),
    ),
    _send("after a gap", E.out_of_order_sequence_number, lambda scene: send(sent(scene, ongoing_transaction(scene),
        0), 2)),
)  # fmt: skip

ADDS = (
    _add("of a partition", E.none, lambda scene: add(transactional(scene))),
    _add("of a partition again", E.none, lambda scene: add(ongoing_transaction(scene))),
    _add(
        "of no topic",
        E.unknown_topic_or_partition,
        lambda scene: add(transactional(scene), topic=scene.name()),
    ),
    _add(
        "of one partition that is there and one that is not",
        (E.operation_not_attempted, E.unknown_topic_or_partition),
        lambda scene: add(transactional(scene), 0, 9),
    ),
    _add(
        "of a broker's own topic",
        E.topic_authorization_failed,
        lambda scene: add(transactional(scene), topic="__consumer_offsets"),
    ),
    _add("by a fenced producer", E.producer_fenced, lambda scene: add(fenced(scene))),
    Row("AddPartitionsToTxn", 1, "by a fenced producer", E.invalid_producer_epoch, lambda scene: add(fenced(scene))),
    _add("in a later epoch", E.producer_fenced, lambda scene: add(another(transactional(scene), epoch=5))),
    _add(
        "with another's id",
        E.invalid_producer_id_mapping,
        lambda scene: add(another(transactional(scene), id=987_654)),
    ),
    _add(
        "of an unknown transactional id",
        E.invalid_producer_id_mapping,
        lambda scene: add(another(transactional(scene), transactional_id=scene.name())),
    ),
    _add(
        "of an empty transactional id",
        E.invalid_request,
        lambda scene: add(another(transactional(scene), transactional_id="")),
    ),
    Row("AddPartitionsToTxn", 5, "as brokers do it", E.none, lambda scene: add_many(transactional(scene))),
    Row(
        "AddPartitionsToTxn", 5, "as brokers verify it", E.transaction_abortable,
        lambda scene: add_many(ongoing_transaction(scene), 0, 1, verify=True),
    ),
)  # fmt: skip

ENDS = (
    _end("of a transaction", E.none, lambda scene: end(ongoing_transaction(scene))),
    _end("of none", E.invalid_txn_state, lambda scene: end(transactional(scene))),
    _end("again", E.none, lambda scene: end(ended(scene, commit=False), commit=False)),
    _end("otherwise", E.invalid_txn_state, lambda scene: end(ended(scene, commit=True), commit=False)),
    _end("by a fenced producer", E.producer_fenced, lambda scene: end(fenced(scene))),
    Row("EndTxn", 1, "by a fenced producer", E.invalid_producer_epoch, lambda scene: end(fenced(scene))),
    _end("in a later epoch", E.producer_fenced, lambda scene: end(another(ongoing_transaction(scene), epoch=5))),
    _end(
        "with another's id",
        E.invalid_producer_id_mapping,
        lambda scene: end(another(ongoing_transaction(scene), id=987_654)),
    ),
    _end(
        "of an unknown transactional id",
        E.invalid_producer_id_mapping,
        lambda scene: end(another(ongoing_transaction(scene), transactional_id=scene.name())),
    ),
    _end(
        "of an empty transactional id",
        E.invalid_request,
        lambda scene: end(another(ongoing_transaction(scene), transactional_id="")),
    ),
    _end_v5("of a transaction", E.none, lambda scene: end(ongoing_transaction(scene))),
    _end_v5("again, in the epoch before", E.none, lambda scene: end(bumped(scene))),
    _end_v5("otherwise, in the epoch before", E.invalid_txn_state, lambda scene: end(bumped(scene), commit=False)),
    _end_v5("by an abort of nothing", E.none, lambda scene: end(transactional(scene), commit=False)),
    _end_v5("by a commit of nothing", E.invalid_txn_state, lambda scene: end(transactional(scene))),
    _end_v5("by a fenced producer", E.producer_fenced, lambda scene: end(fenced(scene))),
)

DESCRIPTIONS = (
    Row(
        "DescribeTransactions", 0, "of an open one", E.none,
        lambda scene: {"transactional_ids": (ongoing_transaction(scene).transactional_id,)},
    ),
    Row(
        "DescribeTransactions", 0, "of an unknown id", E.transactional_id_not_found,
        lambda scene: {"transactional_ids": (scene.name(),)},
    ),
    Row("DescribeTransactions", 0, "of an empty id", E.invalid_request, {"transactional_ids": ("",)}),
    Row(
        "ListTransactions", 1, "in a state that is none", E.none,
        {"state_filters": ("Ongoing", "Asleep"), "producer_id_filters": ()},
    ),
    Row("ListTransactions", 2, "of a pattern", E.none, {"transactional_id_pattern": "a.*|b+"}),
    Row("ListTransactions", 2, "of no pattern", E.invalid_regular_expression, {"transactional_id_pattern": "["}),
    Row(
        "DescribeProducers", 0, "of a partition", E.none,
        lambda scene: {"topics": [{"name": sent(scene, ongoing_transaction(scene), 0).topic,
            "partition_indexes": (0,)}]},
    ),
    Row(
        "DescribeProducers", 0, "of no topic", E.unknown_topic_or_partition,
        lambda scene: {"topics": [{"name": scene.name(), "partition_indexes": (0,)}]},
    ),
)  # fmt: skip

ROWS = INITS + NUMBERS + SENDS + ADDS + ENDS + DESCRIPTIONS
