"""Each request of connect groups with each fault gets its error code, changes nothing, and harms no other member."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest

from coterie.nouns.connect_error_codes import ConnectErrorCode as E
from coterie.nouns.jobs import Jobs
from coterie.wire.connect_group_jobs import job_arrays
from tests.broker.apis.connect_groups.worker import ASSIGNOR, JOBS, Worker, describe
from tests.broker.conftest import Connect, RawClient

TOPIC, OTHER_TOPIC = UUID(int=1), UUID(int=10)
LONG = "x" * 32_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A stable group of w0, which leads, and w1; and a stranger that has not joined."""

    client: RawClient
    leader: Worker
    member: Worker
    stranger: Worker


def scene_of(client: RawClient) -> Scene:
    leader, member = Worker(client, "w0"), Worker(client, "w1", instance_id="i1")
    leader.settle()
    member.beat()
    leader.settle()
    leader.acknowledge()
    member.settle()
    return Scene(client=client, leader=leader, member=member, stranger=Worker(client, "w9"))


def prepared(scene: Scene) -> int:
    """Let the group need a target, and w0 ask for its state; returns the group epoch of the response."""
    scene.member.beat(client_assignors=[ASSIGNOR | {"reason": 3}])
    scene.leader.beat()
    answer = scene.leader.prepare()
    assert answer.error_code == 0
    epoch: int = answer.group_epoch
    return epoch


def install(worker: Worker, epoch: int, **fields: Any) -> Any:
    return worker.install(epoch, {"w0": JOBS, "w1": Jobs()}, **fields)


def assignors(*changes: dict[str, Any]) -> dict[str, Any]:
    return {"client_assignors": [ASSIGNOR | change for change in changes]}


HEARTBEATS: list[tuple[str, E, Callable[[Scene], Any]]] = [
    ("empty group id", E.INVALID_REQUEST, lambda s: s.stranger.beat(group_id="")),
    ("empty member id", E.INVALID_REQUEST, lambda s: s.stranger.beat(member_id="")),
    ("member epoch -3", E.INVALID_REQUEST, lambda s: s.member.beat(member_epoch=-3)),
    ("empty instance id", E.INVALID_REQUEST, lambda s: s.stranger.beat(instance_id="")),
    ("a negative request number", E.INVALID_REQUEST, lambda s: s.member.beat(request_number=-1)),
    ("a negative wait", E.INVALID_REQUEST, lambda s: s.member.beat(max_wait_ms=-1)),
    ("a rebalance timeout of 0", E.INVALID_REQUEST, lambda s: s.member.beat(rebalance_timeout_ms=0)),
    ("a rebalance timeout of -2", E.INVALID_REQUEST, lambda s: s.member.beat(rebalance_timeout_ms=-2)),
    ("a grace of -2", E.INVALID_REQUEST, lambda s: s.member.beat(connection_grace_ms=-2)),
    ("a config offset of -3", E.INVALID_REQUEST, lambda s: s.member.beat(config_offset=-3)),
    ("draining 2", E.INVALID_REQUEST, lambda s: s.member.beat(draining=2)),
    ("a join without a rebalance timeout", E.INVALID_REQUEST, lambda s: s.stranger.beat(rebalance_timeout_ms=-1)),
    ("a join without owned jobs", E.INVALID_REQUEST, lambda s: s.stranger.beat(connectors_and_tasks=None)),
    ("a join that owns jobs", E.INVALID_REQUEST, lambda s: s.stranger.beat(connectors_and_tasks=job_arrays(JOBS))),
    ("a job without connector", E.INVALID_REQUEST,
     lambda s: s.member.beat(connectors_and_tasks={"connectors": [""], "tasks": ()})),
    ("a task number of -1", E.INVALID_REQUEST, lambda s: s.member.beat(
        connectors_and_tasks={"connectors": (), "tasks": [{"connector_id": "c", "task_ids": [-1]}]})),
    ("claims of any job that list one", E.INVALID_REQUEST, lambda s: s.member.beat(
        claims={"value": {"wildcard": True, "connectors": ["c0"], "tasks": ()}})),
    ("configured jobs at offset -2", E.INVALID_REQUEST, lambda s: s.member.beat(
        configured={"value": {"config_offset": -2, "connectors": (), "tasks": ()}})),
    ("both kinds of assignors", E.INVALID_REQUEST, lambda s: s.stranger.beat(server_assignor="even")),
    ("an assignor twice", E.INVALID_REQUEST, lambda s: s.stranger.beat(**assignors({}, {}))),
    ("an assignor without name", E.INVALID_REQUEST, lambda s: s.stranger.beat(**assignors({"name": ""}))),
    ("an assignor below version -1", E.INVALID_REQUEST,
     lambda s: s.stranger.beat(**assignors({"minimum_version": -2}))),
    ("an assignor whose greatest version is below its least", E.INVALID_REQUEST,
     lambda s: s.stranger.beat(**assignors({"minimum_version": 3, "maximum_version": 2}))),
    ("an assignor's version out of its range", E.INVALID_REQUEST,
     lambda s: s.stranger.beat(**assignors({"version": 9}))),
    ("17 assignors", E.INVALID_REQUEST,
     lambda s: s.stranger.beat(**assignors(*({"name": f"a{number}"} for number in range(17))))),
    ("metadata of 70 kB", E.INVALID_REQUEST, lambda s: s.stranger.beat(**assignors({"metadata": bytes(70_000)}))),
    ("a name and a URL of 70 kB", E.INVALID_REQUEST,
     lambda s: s.member.beat(name=LONG, url=LONG, **assignors({"metadata": bytes(6_000)}))),
    ("an unknown member", E.UNKNOWN_MEMBER_ID, lambda s: s.stranger.beat(member_epoch=1, full=True)),
    ("the leave of an unknown member", E.UNKNOWN_MEMBER_ID, lambda s: s.stranger.beat(member_epoch=-1)),
    ("a request number that was processed", E.STALE_REQUEST, lambda s: s.member.beat(request_number=1)),
    ("a leave with a request number that was processed", E.STALE_REQUEST,
     lambda s: s.member.beat(member_epoch=-1, request_number=1)),
    ("a member epoch that is too great", E.FENCED_MEMBER_EPOCH, lambda s: s.member.beat(member_epoch=9)),
    ("an earlier member epoch without owned jobs", E.FENCED_MEMBER_EPOCH, lambda s: s.leader.beat(member_epoch=1)),
    ("a job that is not assigned to the member", E.FENCED_MEMBER_EPOCH,
     lambda s: s.member.beat(connectors_and_tasks=job_arrays(JOBS))),
    ("the instance id of another member", E.UNRELEASED_INSTANCE_ID, lambda s: s.stranger.beat(instance_id="i1")),
    ("a changed instance id", E.FENCED_INSTANCE_ID, lambda s: s.member.beat(instance_id="i2")),
    ("an assignor of the coordinator that it does not have", E.UNSUPPORTED_ASSIGNOR,
     lambda s: s.stranger.beat(client_assignors=None, server_assignor="odd")),
    ("no assignor in common with the group", E.UNSUPPORTED_ASSIGNOR,
     lambda s: s.stranger.beat(**assignors({"name": "odd"}))),
]  # fmt: skip

PREPARES: list[tuple[str, E, Callable[[Scene], Any]]] = [
    ("empty group id", E.INVALID_REQUEST, lambda s: Worker(s.client, "w0", "").prepare()),
    ("empty member id", E.INVALID_REQUEST, lambda s: Worker(s.client, "").prepare()),
    ("an unknown group", E.GROUP_ID_NOT_FOUND, lambda s: Worker(s.client, "w0", "none").prepare()),
    ("an unknown member", E.UNKNOWN_MEMBER_ID, lambda s: s.stranger.prepare()),
    ("another member epoch", E.FENCED_MEMBER_EPOCH, lambda s: Worker(s.client, "w0").prepare()),
    ("no computation is needed", E.UNKNOWN_MEMBER_ID, lambda s: s.leader.prepare()),
    ("another member was chosen", E.UNKNOWN_MEMBER_ID, lambda s: (prepared(s), s.member.prepare())[1]),
]

INSTALLS: list[tuple[str, E, Callable[[Scene], Any]]] = [
    ("empty group id", E.INVALID_REQUEST, lambda s: install(Worker(s.client, "w0", ""), 1)),
    ("empty member id", E.INVALID_REQUEST, lambda s: install(Worker(s.client, ""), 1)),
    ("a negative member epoch", E.INVALID_REQUEST, lambda s: install(s.leader, 1, member_epoch=-1)),
    ("a task number of -1", E.INVALID_REQUEST, lambda s: install(s.leader, 1, unplaceable=[
        {"reason": "", "connectors": (), "tasks": [{"connector_id": "c", "task_ids": [-1]}]}])),
    ("a delay of -1", E.INVALID_REQUEST, lambda s: install(s.leader, 1, deferred=[
        {"member_id": "w7", "delay_ms": -1, "connectors": ["c0"], "tasks": ()}])),
    ("a next portion in -2 ms", E.INVALID_REQUEST, lambda s: install(s.leader, 1, next_in_ms=-2)),
    ("an unknown group", E.GROUP_ID_NOT_FOUND, lambda s: install(Worker(s.client, "w0", "none"), 1)),
    ("an unknown member", E.UNKNOWN_MEMBER_ID, lambda s: install(s.stranger, 1)),
    ("another member epoch", E.FENCED_MEMBER_EPOCH, lambda s: install(s.leader, 1, member_epoch=9)),
    ("no computation is needed", E.UNKNOWN_MEMBER_ID, lambda s: install(s.leader, 9)),
    ("another member was chosen", E.UNKNOWN_MEMBER_ID, lambda s: install(s.member, prepared(s))),
    ("another group epoch", E.INVALID_ASSIGNMENT, lambda s: install(s.leader, prepared(s) + 1)),
    ("a job is missing", E.INVALID_ASSIGNMENT, lambda s: s.leader.install(prepared(s), {"w0": Jobs()})),
    ("a job is assigned twice", E.INVALID_ASSIGNMENT,
     lambda s: s.leader.install(prepared(s), {"w0": JOBS, "w1": JOBS})),
    ("an unknown member has jobs", E.INVALID_ASSIGNMENT, lambda s: s.leader.install(prepared(s), {"w9": JOBS})),
    ("a job waits for an unknown member", E.INVALID_ASSIGNMENT, lambda s: s.leader.install(
        prepared(s), {}, deferred=[{"member_id": "w7", "delay_ms": 5, **job_arrays(JOBS)}])),
    ("an unplaceable job without a reason", E.INVALID_ASSIGNMENT, lambda s: s.leader.install(
        prepared(s), {}, unplaceable=[{"reason": "", **job_arrays(JOBS)}])),
]  # fmt: skip

DESCRIBES: list[tuple[str, E, Callable[[Scene], Any]]] = [
    ("empty group id", E.INVALID_REQUEST, lambda s: describe(s.client, "")),
    ("an unknown group", E.GROUP_ID_NOT_FOUND, lambda s: describe(s.client, "none")),
]

TABLE = [
    pytest.param(error, send, id=f"{api}: {fault}")
    for api, rows in (
        ("heartbeat", HEARTBEATS), ("prepare", PREPARES), ("install", INSTALLS), ("describe", DESCRIBES),
    )
    for fault, error, send in rows
]  # fmt: skip


@pytest.mark.parametrize(("error", "send"), TABLE)
def test_each_fault_has_its_error_and_changes_no_member(
    connect: Connect, error: E, send: Callable[[Scene], Any]
) -> None:
    scene = scene_of(connect())
    before = [(one.member_id, one.assigned, one.target) for one in describe(scene.client).members]
    answer = send(scene)
    assert answer.error_code == error, answer
    assert answer.error_message
    assert answer.error_message.isprintable()
    after = describe(scene.client)
    assert [(one.member_id, one.assigned, one.target) for one in after.members] == before
    for worker in (scene.leader, scene.member):
        worker.epoch = next(one.member_epoch for one in after.members if one.member_id == worker.member_id)
        assert worker.beat(full=True).error_code in (E.NONE, E.COMPUTE_ASSIGNMENT)


def test_a_worker_of_another_config_topic_is_refused(connect: Connect) -> None:
    client = connect()
    Worker(client, "w0", config_topic_id=TOPIC).settle()
    refused = Worker(client, "w1", config_topic_id=OTHER_TOPIC).beat()
    assert refused.error_code == E.INVALID_REQUEST
    assert "check config.storage.topic" in refused.error_message
