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
    """A join by the only member of a stable group."""
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


def static(scene: Scene) -> dict[str, Any]:
    """The only member of a joining group, a static one: ``group_id``, ``member_id``, ``generation_id`` and
    ``group_instance_id``."""
    group_id = scene.name()
    joined = scene.ask_until_ready("JoinGroup", 9, JOIN | {"group_id": group_id, "group_instance_id": "i"})
    assert joined.error_code is E.none, joined
    return {
        "group_id": group_id,
        "member_id": joined.member_id,
        "generation_id": joined.generation_id,
        "group_instance_id": "i",
    }


def static_join(scene: Scene, **wrong: Any) -> Fields:
    member = static(scene)
    return JOIN | {name: member[name] for name in ("group_id", "member_id", "group_instance_id")} | wrong


def static_leave(scene: Scene, member_id: str | None, instance_id: str | None) -> Fields:
    """A leave; ``member_id`` None stands for the right one."""
    member = static(scene)
    leaving = {"member_id": member["member_id"] if member_id is None else member_id, "group_instance_id": instance_id}
    return {"group_id": member["group_id"], "members": [leaving | {"reason": None}]}


def with_the_id_of_a_dynamic_member(scene: Scene) -> Fields:
    """A static join with the member id of a dynamic member."""
    group_id = scene.name()
    handed_out = scene.ask_until_ready("JoinGroup", 9, JOIN | {"group_id": group_id})
    return JOIN | {"group_id": group_id, "member_id": handed_out.member_id, "group_instance_id": "i"}


NAMELESS: Fields = {"groups_names": ("",)}


def without_nameless_group(scene: Scene, fields: Fields) -> Fields:
    """Delete the group with the empty name, which is a valid name and which a row about offsets creates."""
    scene.ask("DeleteGroups", 2, NAMELESS)
    return fields


def described(group_id: str) -> Fields:
    return {"groups": (group_id,), "include_authorized_operations": False}


_find = partial(Row, "FindCoordinator", 6)
_join = partial(Row, "JoinGroup", 9)
_sync = partial(Row, "SyncGroup", 5)
_heartbeat = partial(Row, "Heartbeat", 4)
_leave = partial(Row, "LeaveGroup", 5)
_describe = partial(Row, "DescribeGroups")
_list = partial(Row, "ListGroups", 5)
_delete = partial(Row, "DeleteGroups", 2)

FIND = (
    _find("of a group", E.none, {"key_type": GROUP, "coordinator_keys": ("some-group",)}),
    Row("FindCoordinator", 2, "of a type that is none", E.invalid_request, {"key_type": 77, "key": "some-group"}),
    _find("of nothing", E.none, {"key_type": GROUP, "coordinator_keys": ()}),
    _find("of a type that is none", E.invalid_request, {"key_type": 77, "coordinator_keys": ("some-group",)}),
    _find("of a share group by a key that is none", E.invalid_request, {"key_type": SHARE, "coordinator_keys": ("x",)}),
)

JOINS = (
    _join("without a member id", E.member_id_required, join),
    _join("of an empty group id", E.invalid_group_id, lambda scene: join(scene, group_id="")),
    _join("with an unknown member id", E.unknown_member_id, lambda scene: join(scene, member_id="unknown")),
    _join("with a session too short", E.invalid_session_timeout, lambda scene: join(scene, session_timeout=10)),
    _join("with a session too long", E.invalid_session_timeout, lambda scene: join(scene, session_timeout=2**31 - 1)),
    _join("without protocols", E.inconsistent_group_protocol, lambda scene: join(scene, protocols=())),
    _join("of an empty type", E.inconsistent_group_protocol, lambda scene: join(scene, protocol_type="")),
    _join("of another type", E.inconsistent_group_protocol, lambda scene: rejoin(scene, protocol_type="connect")),
)

SYNCS = (
    _sync("of an empty group id", E.invalid_group_id, lambda scene: sync(scene, group_id="")),
    _sync("of an unknown group", E.unknown_member_id, lambda scene: sync(scene, group_id=scene.name())),
    _sync("by an unknown member", E.unknown_member_id, lambda scene: sync(scene, member_id="unknown")),
    _sync("of a former generation", E.illegal_generation, lambda scene: sync(scene, generation_id=0)),
    _sync("of another type", E.inconsistent_group_protocol, lambda scene: sync(scene, protocol_type="connect")),
    _sync("of another protocol", E.inconsistent_group_protocol, lambda scene: sync(scene, protocol_name="sticky")),
)

HEARTBEATS = (
    _heartbeat("of an empty group id", E.invalid_group_id, lambda scene: heartbeat(scene, group_id="")),
    _heartbeat("of no group", E.unknown_member_id, lambda scene: heartbeat(scene, group_id=scene.name())),
    _heartbeat("by an unknown member", E.unknown_member_id, lambda scene: heartbeat(scene, member_id="unknown")),
    _heartbeat("of a former generation", E.illegal_generation, lambda scene: heartbeat(scene, generation_id=0)),
    _heartbeat("of a later generation", E.illegal_generation, lambda scene: heartbeat(scene, generation_id=99)),
)

LEAVES = (
    _leave("by an unknown member", E.unknown_member_id, lambda scene: leave(scene, "unknown")),
    _leave("of an empty group id", E.invalid_group_id, lambda scene: leave(scene) | {"group_id": ""}),
    _leave("by its member", E.none, leave),
)

STATIC = (
    _join("static, without a member id", E.none, lambda scene: static_join(scene, member_id="")),
    _join("static, by its former id", E.fenced_instance_id, lambda scene: static_join(scene, member_id="former")),
    _join("of an unknown instance", E.unknown_member_id, lambda scene: static_join(scene, group_instance_id="j")),
    _join(
        "static, by the id of a dynamic member that has not joined",
        E.unknown_member_id,
        with_the_id_of_a_dynamic_member,
        kafka=E.unknown_server_error,
        why="Kafka's own assertion fails on it",
    ),
    _join(
        "of an instance with a long name",
        E.invalid_request,
        lambda scene: join(scene, group_instance_id="x" * 1_001),
        kafka=E.none,
        why="each member id contains it; Kafka accepts up to 32,730 characters and fails with an exception above that",
    ),
    _sync(
        "static, by its former id", E.fenced_instance_id, lambda scene: SYNC | static(scene) | {"member_id": "former"}
    ),
    _sync("of an unknown instance", E.unknown_member_id, lambda scene: sync(scene, group_instance_id="j")),
    _sync("without a type", E.inconsistent_group_protocol, lambda scene: sync(scene, protocol_type=None)),
    _sync(
        "without a protocol, of no group",
        E.inconsistent_group_protocol,
        SYNC
        | {
            "group_id": "",
            "generation_id": 1,
            "member_id": "unknown",
            "protocol_name": None,
        },
    ),
    Row("SyncGroup", 4, "of a version without a type", E.none, sync),
    _heartbeat("static, by its former id", E.fenced_instance_id, lambda scene: static(scene) | {"member_id": "former"}),
    _heartbeat("of an unknown instance", E.unknown_member_id, lambda scene: heartbeat(scene, group_instance_id="j")),
    _heartbeat(
        "of a static member without its instance id", E.none, lambda scene: static(scene) | {"group_instance_id": None}
    ),
    _leave("static, by its former id", E.fenced_instance_id, lambda scene: static_leave(scene, "former", "i")),
    _leave("by instance id alone", E.none, lambda scene: static_leave(scene, "", "i")),
    _leave("static, by member id alone", E.none, lambda scene: static_leave(scene, None, None)),
    _leave("of an unknown instance", E.unknown_member_id, lambda scene: static_leave(scene, "", "j")),
    _leave(
        "of its own member id with another instance id",
        E.unknown_member_id,
        lambda scene: static_leave(scene, None, "j"),
    ),
    _leave("of an unknown group", E.unknown_member_id, lambda scene: leave(scene) | {"group_id": scene.name()}),
    _leave("of no member", E.none, lambda scene: leave(scene) | {"members": ()}),
    Row(
        "LeaveGroup",
        2,
        "by an unknown member",
        E.unknown_member_id,
        lambda scene: scene.member() | {"member_id": "unknown"},
    ),
    Row("LeaveGroup", 2, "of no group", E.unknown_member_id, {"group_id": "no such group", "member_id": "unknown"}),
)

REPORTED = (
    _describe(6, "of an unknown group", E.group_id_not_found, lambda scene: described(scene.name())),
    _describe(5, "of an unknown group", E.none, lambda scene: described(scene.name())),
    _describe(
        6,
        "of an empty group id",
        E.group_id_not_found,
        lambda scene: without_nameless_group(scene, {"groups": ("",), "include_authorized_operations": True}),
    ),
    _describe(6, "of nothing", E.none, {"groups": (), "include_authorized_operations": True}),
    _list("of a state that is none", E.none, {"states_filter": ("Nonsense",), "types_filter": ()}),
    _list("of a type that is none", E.none, {"states_filter": (), "types_filter": ("nonsense",)}),
    _delete(
        "of a group with a member", E.non_empty_group, lambda scene: {"groups_names": (scene.member()["group_id"],)}
    ),
    _delete("of an unknown group", E.group_id_not_found, lambda scene: {"groups_names": (scene.name(),)}),
    _delete("of an empty group id", E.group_id_not_found, lambda scene: without_nameless_group(scene, NAMELESS)),
    _delete("of nothing", E.none, {"groups_names": ()}),
)

ROWS = FIND + JOINS + SYNCS + HEARTBEATS + LEAVES + STATIC + REPORTED
