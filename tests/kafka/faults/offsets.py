"""Faults of requests about committed offsets."""

from functools import partial
from typing import Any

from coterie.wire.errors import ErrorCode as E
from tests.kafka.faults.row import Fields, Row, Scene

NO_MEMBER: Fields = {"generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None}


def commit(scene: Scene, *, topic: str | None = None, partition: int = 0, metadata: str = "", **wrong: Any) -> Fields:
    """A commit without a member, as tools do it, to a group without members."""
    offset = {
        "partition_index": partition,
        "committed_offset": 1,
        "committed_leader_epoch": -1,
        "committed_metadata": metadata,
    }
    topics = [{"name": topic or scene.topic(), "partitions": [offset]}]
    return NO_MEMBER | {"group_id": scene.name(), "topics": topics} | wrong


def by_member(scene: Scene, **wrong: Any) -> Fields:
    member = scene.member()
    return commit(scene) | {
        "group_id": member["group_id"],
        "member_id": member["member_id"],
        "generation_id_or_member_epoch": member["generation_id"],
    } | wrong  # fmt: skip


def fetch(group_id: str, topic: str = "no-such-topic", member_id: str | None = None, epoch: int = -1) -> Fields:
    topics = [{"name": topic, "partition_indexes": (0,)}]
    group = {"group_id": group_id, "member_id": member_id, "member_epoch": epoch, "topics": topics}
    return {"groups": [group], "require_stable": False}


def delete(group_id: str, topic: str, partition: int = 0) -> Fields:
    return {"group_id": group_id, "topics": [{"name": topic, "partitions": [{"partition_index": partition}]}]}


def delete_of(scene: Scene, **wrong: Any) -> Fields:
    """A deletion in a group with an offset and no members."""
    committed = commit(scene)
    scene.ask("OffsetCommit", 9, committed)
    return delete(committed["group_id"], committed["topics"][0]["name"]) | wrong


_commit = partial(Row, "OffsetCommit", 9)
_fetch = partial(Row, "OffsetFetch", 9)
_delete = partial(Row, "OffsetDelete", 0)

ROWS = (
    _commit("without a member", E.none, commit),
    _commit("of an empty group id", E.none, lambda scene: commit(scene, group_id="")),
    _commit("of no topic", E.unknown_topic_or_partition, lambda scene: commit(scene, topic="no-such-topic")),
    _commit("of no partition", E.unknown_topic_or_partition, lambda scene: commit(scene, partition=7)),
    _commit("with too long metadata", E.offset_metadata_too_large, lambda scene: commit(scene, metadata="x" * 4097)),
    _commit("with metadata of the maximum length", E.none, lambda scene: commit(scene, metadata="x" * 4096)),
    _commit(
        "by a member of no group",
        E.group_id_not_found,
        lambda scene: commit(scene, member_id="m", generation_id_or_member_epoch=1),
    ),
    _commit("by a member", E.none, by_member),
    _commit("by an unknown member", E.unknown_member_id, lambda scene: by_member(scene, member_id="stranger")),
    _commit(
        "of another generation", E.illegal_generation, lambda scene: by_member(scene, generation_id_or_member_epoch=7)
    ),
    _commit(
        "without a member to a group with members", E.unknown_member_id, lambda scene: by_member(scene, **NO_MEMBER)
    ),
    _fetch("of no group", E.none, lambda scene: fetch(scene.name())),
    _fetch("of an empty group id", E.none, fetch("")),
    _fetch("of no topic", E.none, lambda scene: fetch(scene.member()["group_id"])),
    _delete("of an offset", E.none, delete_of),
    _delete("of no group", E.group_id_not_found, lambda scene: delete(scene.name(), scene.topic())),
    _delete("of an empty group id", E.invalid_group_id, lambda scene: delete_of(scene, group_id="")),
    _delete(
        "of no topic",
        E.unknown_topic_or_partition,
        lambda scene: (
            delete_of(scene) | {"topics": [{"name": "no-such-topic", "partitions": [{"partition_index": 0}]}]}
        ),
    ),
    _delete(
        "of members without a subscription",
        E.group_subscribed_to_topic,
        lambda scene: delete(scene.member()["group_id"], scene.topic()),
    ),
)
