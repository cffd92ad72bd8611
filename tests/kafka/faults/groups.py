"""Faults of requests about groups and their members."""

from functools import partial
from typing import Any

from coterie.wire.errors import ErrorCode as E
from tests.kafka.faults.row import Fields, Row, Scene

GROUP, TRANSACTION, SHARE = 0, 1, 2
"""Types of the keys of FindCoordinator."""

JOIN: Fields = {
    "session_timeout": 30_000,
    "rebalance_timeout": 30_000,
    "member_id": "",
    "group_instance_id": None,
    "protocol_type": "consumer",
    "protocols": [{"name": "range", "metadata": b"m"}],
    "reason": None,
}
SYNC: Fields = {
    "group_instance_id": None,
    "protocol_type": "consumer",
    "protocol_name": "range",
    "assignments": (),
}


def join(scene: Scene, **wrong: Any) -> Fields:
    return JOIN | {"group_id": scene.name()} | wrong


def rejoin(scene: Scene, **wrong: Any) -> Fields:
    """By the only member of a stable group."""
    member = scene.member()
    return JOIN | {"group_id": member["group_id"], "member_id": member["member_id"]} | wrong


def sync(scene: Scene, **wrong: Any) -> Fields:
    return SYNC | scene.member() | wrong


def heartbeat(scene: Scene, **wrong: Any) -> Fields:
    return scene.member() | {"group_instance_id": None} | wrong


def leave(scene: Scene, member_id: str | None = None) -> Fields:
    member = scene.member()
    leaving = {"member_id": member_id or member["member_id"], "group_instance_id": None, "reason": None}
    return {"group_id": member["group_id"], "members": [leaving]}


_find = partial(Row, "FindCoordinator", 6)
_join = partial(Row, "JoinGroup", 9)
_sync = partial(Row, "SyncGroup", 5)
_heartbeat = partial(Row, "Heartbeat", 4)
_leave = partial(Row, "LeaveGroup", 5)

FIND = (
    _find("of a group", E.none, {"key_type": GROUP, "coordinator_keys": ("some-group",)}),
    _find("of a type that is none", E.invalid_request, {"key_type": 77, "coordinator_keys": ("some-group",)}),
    _find("of a share group by a key that is none", E.invalid_request, {"key_type": SHARE, "coordinator_keys": ("x",)}),
)

JOINS = (
    _join("without a member id", E.member_id_required, join),
    _join("of an empty group id", E.invalid_group_id, lambda scene: join(scene, group_id="")),
    _join("with a member id that nobody has", E.unknown_member_id, lambda scene: join(scene, member_id="nobody")),
    _join("with a session too short", E.invalid_session_timeout, lambda scene: join(scene, session_timeout=10)),
    _join("with a session too long", E.invalid_session_timeout, lambda scene: join(scene, session_timeout=2**31 - 1)),
    _join("without protocols", E.inconsistent_group_protocol, lambda scene: join(scene, protocols=())),
    _join("of an empty type", E.inconsistent_group_protocol, lambda scene: join(scene, protocol_type="")),
    _join("of another type", E.inconsistent_group_protocol, lambda scene: rejoin(scene, protocol_type="connect")),
)

SYNCS = (
    _sync("of an empty group id", E.invalid_group_id, lambda scene: sync(scene, group_id="")),
    _sync("of a group that is not there", E.unknown_member_id, lambda scene: sync(scene, group_id=scene.name())),
    _sync("by nobody", E.unknown_member_id, lambda scene: sync(scene, member_id="nobody")),
    _sync("of a former generation", E.illegal_generation, lambda scene: sync(scene, generation_id=0)),
    _sync("of another type", E.inconsistent_group_protocol, lambda scene: sync(scene, protocol_type="connect")),
    _sync("of another protocol", E.inconsistent_group_protocol, lambda scene: sync(scene, protocol_name="sticky")),
)

HEARTBEATS = (
    _heartbeat("of an empty group id", E.invalid_group_id, lambda scene: heartbeat(scene, group_id="")),
    _heartbeat("of no group", E.unknown_member_id, lambda scene: heartbeat(scene, group_id=scene.name())),
    _heartbeat("by nobody", E.unknown_member_id, lambda scene: heartbeat(scene, member_id="nobody")),
    _heartbeat("of a former generation", E.illegal_generation, lambda scene: heartbeat(scene, generation_id=0)),
    _heartbeat("of a generation to come", E.illegal_generation, lambda scene: heartbeat(scene, generation_id=99)),
)

LEAVES = (
    _leave("by nobody", E.unknown_member_id, lambda scene: leave(scene, "nobody")),
    _leave("of an empty group id", E.invalid_group_id, lambda scene: leave(scene) | {"group_id": ""}),
    _leave("by its member", E.none, leave),
)

ROWS = FIND + JOINS + SYNCS + HEARTBEATS + LEAVES
