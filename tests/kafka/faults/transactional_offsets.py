"""Faults of requests that commit offsets in transactions."""

from functools import partial
from typing import Any

from coterie.wire.errors import ErrorCode as E
from tests.kafka.faults.offsets import commit as plain_commit
from tests.kafka.faults.row import Fields, Row, Scene
from tests.kafka.faults.transactions import Producer, another, end, fenced, transactional

NO_MEMBER: Fields = {"generation_id": -1, "member_id": "", "group_instance_id": None}


# -- scenes and requests ----------------------------------------------------------------------------------------------


def add_group(producer: Producer, group_id: str) -> Fields:
    return {
        "transactional_id": producer.transactional_id,
        "producer_id": producer.id,
        "producer_epoch": producer.epoch,
        "group_id": group_id,
    }


def commit(
    producer: Producer,
    group_id: str,
    *,
    topic: str | None = None,
    partition: int = 0,
    offset: int = 1,
    metadata: str = "",
    **wrong: Any,
) -> Fields:
    """A commit that names no member."""
    new_offset = {
        "partition_index": partition,
        "committed_offset": offset,
        "committed_leader_epoch": -1,
        "committed_metadata": metadata,
    }
    topics = [{"name": topic or producer.topic, "partitions": [new_offset]}]
    return NO_MEMBER | add_group(producer, group_id) | {"topics": topics} | wrong


def with_group(scene: Scene) -> tuple[Producer, str]:
    """A producer whose transaction contains the offsets of the group."""
    producer, group_id = transactional(scene), scene.name()
    scene.ask_until_success("AddOffsetsToTxn", 4, add_group(producer, group_id))
    return producer, group_id


def in_transaction(scene: Scene, **wrong: Any) -> Fields:
    return commit(*with_group(scene), **wrong)


def by_member(scene: Scene, **wrong: Any) -> Fields:
    return commit(transactional(scene), "") | scene.member() | wrong


def pending(scene: Scene) -> tuple[Producer, str]:
    """A producer, and a group that has nothing but a pending offset in the producer's transaction."""
    producer, group_id = transactional(scene), scene.name()
    scene.ask_until_success("TxnOffsetCommit", 5, commit(producer, group_id))
    return producer, group_id


def fetch_pending(scene: Scene, *, stable: bool) -> Fields:
    producer, group_id = pending(scene)
    topics = [{"name": producer.topic, "partition_indexes": (0, 1)}]
    group = {"group_id": group_id, "member_id": None, "member_epoch": -1, "topics": topics}
    return {"groups": [group], "require_stable": stable}


def delete_pending_offset(scene: Scene) -> Fields:
    producer, group_id = pending(scene)
    return {
        "group_id": group_id,
        "topics": [{"name": producer.topic, "partitions": [{"partition_index": 0}]}],
    }


def end_after_commit(scene: Scene, *, commit_: bool) -> Fields:
    producer, _ = pending(scene)
    return end(producer, commit=commit_)


# -- rows -------------------------------------------------------------------------------------------------------------

_add = partial(Row, "AddOffsetsToTxn", 4)
_commit = partial(Row, "TxnOffsetCommit", 5)

ADDS = (
    _add("of a group", E.none, lambda scene: add_group(transactional(scene), scene.name())),
    _add("of a group again", E.none, lambda scene: add_group(*with_group(scene))),
    _add("of an empty group id", E.none, lambda scene: add_group(transactional(scene), "")),
    _add("by a fenced producer", E.producer_fenced, lambda scene: add_group(fenced(scene), scene.name())),
    Row(
        "AddOffsetsToTxn", 1, "by a fenced producer", E.invalid_producer_epoch,
        lambda scene: add_group(fenced(scene), scene.name()),
    ),
    _add(
        "with another's id", E.invalid_producer_id_mapping,
        lambda scene: add_group(another(transactional(scene), id=987_654), scene.name()),
    ),
    _add(
        "of an empty transactional id", E.invalid_request,
        lambda scene: add_group(another(transactional(scene), transactional_id=""), scene.name()),
    ),
)  # fmt: skip

COMMITS = (
    *(Row("TxnOffsetCommit", version, "in a transaction", E.none, in_transaction) for version in range(6)),
    _commit("that begins a transaction", E.none, lambda scene: commit(transactional(scene), scene.name())),
    Row(
        "TxnOffsetCommit", 4, "without AddOffsetsToTxn", E.transaction_abortable,
        lambda scene: commit(transactional(scene), scene.name()),
    ),
    Row(
        "TxnOffsetCommit", 3, "without AddOffsetsToTxn", E.invalid_txn_state,
        lambda scene: commit(transactional(scene), scene.name()),
    ),
    _commit("of an empty group id", E.invalid_group_id, lambda scene: commit(transactional(scene), "")),
    _commit("by a fenced producer", E.invalid_producer_epoch, lambda scene: commit(fenced(scene), scene.name())),
    Row(
        "TxnOffsetCommit", 3, "by a fenced producer", E.invalid_producer_epoch,
        lambda scene: commit(fenced(scene), scene.name()),
    ),
    _commit(
        "in a later epoch", E.invalid_producer_epoch,
        lambda scene: commit(another(transactional(scene), epoch=5), scene.name()),
    ),
    _commit(
        "with another's id", E.invalid_producer_id_mapping,
        lambda scene: commit(another(transactional(scene), id=987_654), scene.name()),
    ),
    _commit(
        "of an unknown transactional id", E.invalid_producer_id_mapping,
        lambda scene: commit(another(transactional(scene), transactional_id=scene.name()), scene.name()),
    ),
    _commit(
        "of no topic", E.unknown_topic_or_partition,
        lambda scene: commit(transactional(scene), scene.name(), topic="no-such-topic"),
    ),
    _commit(
        "of no partition", E.unknown_topic_or_partition,
        lambda scene: commit(transactional(scene), scene.name(), partition=7),
    ),
    _commit(
        "with too long metadata", E.offset_metadata_too_large,
        lambda scene: commit(transactional(scene), scene.name(), metadata="x" * 4097),
    ),
    _commit(
        "by a member of no group", E.illegal_generation,
        lambda scene: commit(transactional(scene), scene.name(), member_id="m", generation_id=1),
    ),
    _commit("by a member", E.none, by_member),
    _commit("by an unknown member", E.unknown_member_id, lambda scene: by_member(scene, member_id="stranger")),
    _commit("of another generation", E.illegal_generation, lambda scene: by_member(scene, generation_id=7)),
    _commit("by an unknown static member", E.unknown_member_id, lambda scene: by_member(scene, group_instance_id="i")),
    _commit("without a member to a group with members", E.none, lambda scene: by_member(scene, **NO_MEMBER)),
    _commit(
        "without a member id to a group with members", E.unknown_member_id,
        lambda scene: by_member(scene, member_id=""),
    ),
    Row(
        "TxnOffsetCommit", 2, "to a group with members", E.none,
        lambda scene: in_transaction(scene) | {"group_id": scene.member()["group_id"]},
    ),
)  # fmt: skip

PENDING = (
    Row("OffsetFetch", 9, "of a pending offset", E.none, lambda scene: fetch_pending(scene, stable=False)),
    Row(
        "OffsetFetch", 9, "of a pending offset that must be stable", E.unstable_offset_commit,
        lambda scene: fetch_pending(scene, stable=True),
    ),
    Row("OffsetDelete", 0, "of a pending offset", E.none, delete_pending_offset),
    Row(
        "DeleteGroups", 2, "of a group with a pending offset", E.none,
        lambda scene: {"groups_names": (pending(scene)[1],)},
    ),
    Row(
        "OffsetCommit", 9, "beside a pending offset", E.none,
        lambda scene: plain_commit(scene, group_id=pending(scene)[1]),
    ),
    Row("EndTxn", 5, "that commits offsets", E.none, lambda scene: end_after_commit(scene, commit_=True)),
    Row("EndTxn", 5, "that drops offsets", E.none, lambda scene: end_after_commit(scene, commit_=False)),
)  # fmt: skip

ROWS = ADDS + COMMITS + PENDING
