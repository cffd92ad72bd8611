"""Each request of connect groups with each fault: the error code and the message of the response, what the worker does
with it, and what is left of the group: everything, and the two members keep their sessions."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import pytest

from coterie.broker.settings import BrokerSettings
from coterie.nouns.connect_error_codes import ConnectErrorCode as E
from coterie.nouns.jobs import Jobs
from coterie.wire.connect_group_jobs import job_arrays
from tests.broker.apis.connect_groups.reactions import Reaction as R
from tests.broker.apis.connect_groups.reactions import reaction
from tests.broker.apis.connect_groups.scene import TOPIC, Scene, check_members_are_served, picture, scene_of
from tests.broker.apis.connect_groups.worker import ASSIGNOR, DESCRIBE, JOBS, Worker, describe
from tests.broker.conftest import Connect, ThreadedBroker, wait_until
from tests.broker.full_disk import fill_disk, lift_limit
from tests.broker.held_loads import hold_group_loads

OTHER_TOPIC = UUID(int=10)
LONG = "x" * 32_000
MEMBERS_MAX = 3
INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1
MANY = 1_000_000
SECOND = {"version": 1, "minimum_version": 1, "maximum_version": 1}
"""An assignor's versions that no present member reads."""


@pytest.fixture
def settings(settings: BrokerSettings) -> BrokerSettings:
    """Sessions that last longer than a test."""
    groups = replace(settings.connect_groups, group_size_max=MEMBERS_MAX, session_timeout_ms=60_000)
    return replace(settings, connect_groups=groups)


# -- the group ---------------------------------------------------------------------------------------------------------


def prepared(scene: Scene) -> None:
    """Let the group need a target, and w0 ask for its state."""
    scene.member.beat(client_assignors=[ASSIGNOR | {"reason": 3}])
    scene.leader.beat()
    answer = scene.leader.prepare()
    assert answer.error_code == 0
    scene.group_epoch = answer.group_epoch


def installed(scene: Scene) -> None:
    """Let w0 install a target, the same as before, and both members have it."""
    prepared(scene)
    assert install(scene, scene.leader).error_code == 0


def reloaded(scene: Scene) -> None:
    """Let the broker restart while w0 computes."""
    prepared(scene)
    scene.broker.stop()
    scene.broker.start()
    scene.reconnect()


def full(scene: Scene) -> None:
    """Let a third member join: there is no place for another one."""
    assert Worker(scene.client, "w2").beat().error_code == 0


def install(scene: Scene, worker: Worker, **fields: Any) -> Any:
    """The response to the installation of the target that stands, for the last prepared epoch."""
    target = {"w0": scene.leader.owned, "w1": JOBS - scene.leader.owned}
    return worker.install(fields.pop("group_epoch", scene.group_epoch), fields.pop("target", target), **fields)


# -- the table ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    fault: str
    error: E
    message: str | None
    """The message, or its begin."""
    reaction: R
    send: Callable[[Scene], Any]
    before: Callable[[Scene], None] | None = None
    """What happens to the group before the request."""


def row(
    fault: str,
    error: E,
    message: str | None,
    reaction: R,
    send: Callable[[Scene], Any],
    before: Callable[[Scene], None] | None = None,
) -> Row:
    return Row(fault=fault, error=error, message=message, reaction=reaction, send=send, before=before)


def refused(fault: str, message: str, send: Callable[[Scene], Any]) -> Row:
    """A heartbeat with an invalid field: no repetition can succeed."""
    return row(fault, E.INVALID_REQUEST, message, R.ENDS, send)


def assignors(*changes: dict[str, Any]) -> dict[str, Any]:
    return {"client_assignors": [ASSIGNOR | change for change in changes]}


def tasks(connector: str, *numbers: int) -> dict[str, Any]:
    return {"connectors": (), "tasks": [{"connector_id": connector, "task_ids": numbers}]}


NOT_IN_GROUP = (
    "member w9 is not in group workers; a worker with this member id must stop its jobs and join with the epoch 0"
)
TOO_MANY = "a message has more than 500000 array elements and tagged fields, the maximum"
NOT_PREPARED = "member w0 must send ConnectGroupPrepareAssignment before ConnectGroupInstallAssignment"
NOT_CHOSEN = "member {} does not compute the assignment: it was not chosen, or its computation has ended"

HEARTBEATS = [
    refused("empty group id", "the heartbeat has an empty group id: set group.id of the worker",
            lambda s: s.member.beat(group_id="")),
    refused("empty member id", "the heartbeat has an empty member id: a worker creates its own id",
            lambda s: s.member.beat(member_id="")),
    refused("member epoch -3", "the heartbeat has the member epoch -3; the lowest valid one is -2",
            lambda s: s.member.beat(member_epoch=-3)),
    refused("the lowest member epoch", "the heartbeat has the member epoch -2147483648; the lowest valid one is -2",
            lambda s: s.member.beat(member_epoch=INT32_MIN)),
    refused("a negative request number", "the heartbeat has the request number -1; it must not be below 0",
            lambda s: s.member.beat(request_number=-1)),
    refused("a negative wait", "the heartbeat has MaxWaitMs -1; it must not be below 0",
            lambda s: s.member.beat(max_wait_ms=-1)),
    refused("a rebalance timeout of 0", "the heartbeat has RebalanceTimeoutMs 0; it must be above 0",
            lambda s: s.member.beat(rebalance_timeout_ms=0)),
    refused("a rebalance timeout of -2", "the field RebalanceTimeoutMs is -2; the lowest allowed value is -1",
            lambda s: s.member.beat(rebalance_timeout_ms=-2)),
    refused("a grace of -2", "the field ConnectionGraceMs is -2; the lowest allowed value is -1",
            lambda s: s.member.beat(connection_grace_ms=-2)),
    refused("a config offset of -3", "the field ConfigOffset is -3; the lowest allowed value is -2",
            lambda s: s.member.beat(config_offset=-3)),
    refused("draining 2", "the field Draining is 2; the highest allowed value is 1",
            lambda s: s.member.beat(draining=2)),
    refused("a job without connector", "the name of a connector is empty",
            lambda s: s.member.beat(connectors_and_tasks={"connectors": [""], "tasks": ()})),
    refused("a task number of -1", "connector 'c' has the task number -1; the lowest allowed number is 0",
            lambda s: s.member.beat(connectors_and_tasks=tasks("c", -1))),
    refused("claims of any job that list one",
            "the field Claims has Wildcard, but also lists jobs; send one of the two",
            lambda s: s.member.beat(claims={"value": {"wildcard": True, "connectors": ["c0"], "tasks": ()}})),
    refused("configured jobs at offset -2", "the field Configured.ConfigOffset is -2; the lowest allowed value is -1",
            lambda s: s.leader.beat(configured={"value": {"config_offset": -2, "connectors": (), "tasks": ()}})),
    refused("a name and a URL of 70 kB", "the worker's ids, URL and name, and the names and metadata of its assignors, "
            "have 70009 bytes together; at most 65536 are allowed",
            lambda s: s.member.beat(name=LONG, url=LONG, **assignors({"metadata": bytes(6_000)}))),
    refused("100,000 assignors", "100000 assignors are listed; at most 16 are allowed",
            lambda s: s.member.beat(**assignors(*({"name": f"a{number}"} for number in range(100_000))))),
    refused("a million owned jobs", TOO_MANY, lambda s: s.member.beat(connectors_and_tasks=tasks("c", *range(MANY)))),
    refused("a million configured jobs", TOO_MANY,
            lambda s: s.leader.beat(configured={"value": {"config_offset": 6, **tasks("c", *range(MANY))}})),
    row("an unknown member", E.UNKNOWN_MEMBER_ID, NOT_IN_GROUP, R.STOPS_AND_JOINS,
        lambda s: s.stranger.beat(member_epoch=1, full=True)),
    row("a request number that was processed", E.STALE_REQUEST, "the request of member w1 has the number 1, but the "
        "coordinator has already processed the number 2; the request is ignored", R.SENDS_ALL,
        lambda s: s.member.beat(request_number=1)),
    row("a member epoch that is too great", E.FENCED_MEMBER_EPOCH,
        "the request has the member epoch 9, and member w1 has "
        "2; the worker must stop its jobs and join with the epoch 0", R.STOPS_AND_JOINS,
        lambda s: s.member.beat(member_epoch=9)),
    row("the greatest member epoch", E.FENCED_MEMBER_EPOCH,
        "the request has the member epoch 2147483647, and member w1 "
        "has 2; the worker must stop its jobs", R.STOPS_AND_JOINS,
        lambda s: s.member.beat(member_epoch=INT32_MAX, full=True)),
    row("an earlier member epoch without owned jobs", E.FENCED_MEMBER_EPOCH, "the request has the member epoch 1, and "
        "member w0 has 2; the worker must stop its jobs", R.STOPS_AND_JOINS, lambda s: s.leader.beat(member_epoch=1)),
    row("a job that is not assigned to the member", E.FENCED_MEMBER_EPOCH,
        "member w1 owns 3 jobs that are not assigned "
        "to it, for example c0; the worker must stop its jobs and join with the epoch 0", R.STOPS_AND_JOINS,
        lambda s: s.member.beat(connectors_and_tasks=job_arrays(JOBS))),
    row("a job of a connector that does not exist", E.FENCED_MEMBER_EPOCH,
        "member w1 owns 1 jobs that are not assigned "
        "to it, for example nowhere-0; the worker must stop its jobs", R.STOPS_AND_JOINS,
        lambda s: s.member.beat(connectors_and_tasks=tasks("nowhere", 0))),
    row("as many owned jobs as a request may have", E.FENCED_MEMBER_EPOCH, "member w1 owns 400000 jobs that are not "
        "assigned to it", R.STOPS_AND_JOINS,
        lambda s: s.member.beat(connectors_and_tasks=tasks("nowhere", *range(400_000)))),
    row("a changed instance id", E.FENCED_INSTANCE_ID,
        "member w1 joined with the instance id i1, which cannot change; the "
        "worker must join with another member id", R.ENDS, lambda s: s.member.beat(instance_id="i2")),
    row("assignors of which no member has one", E.UNSUPPORTED_ASSIGNOR, "the other members of the group support the "
        "assignors even, and this worker supports odd", R.ENDS, lambda s: s.member.beat(**assignors({"name": "odd"}))),
]  # fmt: skip

JOINS = [
    refused("empty group id", "the heartbeat has an empty group id: set group.id of the worker",
            lambda s: s.stranger.beat(group_id="")),
    refused("empty member id", "the heartbeat has an empty member id: a worker creates its own id",
            lambda s: s.stranger.beat(member_id="")),
    refused("empty instance id",
            "the heartbeat has an empty instance id: set group.instance.id of the worker, or remove "
            "it", lambda s: s.stranger.beat(instance_id="")),
    refused("no rebalance timeout", "a join needs RebalanceTimeoutMs",
            lambda s: s.stranger.beat(rebalance_timeout_ms=-1)),
    refused("no list of owned jobs", "a join needs ConnectorsAndTasks",
            lambda s: s.stranger.beat(connectors_and_tasks=None)),
    refused("owned jobs", "a worker that joins owns no jobs: it must stop all jobs first",
            lambda s: s.stranger.beat(connectors_and_tasks=job_arrays(JOBS))),
    refused("owned jobs, of a member", "a worker that joins owns no jobs: it must stop all jobs first",
            lambda s: s.member.beat(full=True, member_epoch=0)),
    refused("both kinds of assignors", "the heartbeat has both ServerAssignor and ClientAssignors; only one is allowed",
            lambda s: s.stranger.beat(server_assignor="even")),
    refused("an assignor twice", "an assignor is listed twice", lambda s: s.stranger.beat(**assignors({}, {}))),
    refused("an assignor without name", "the name of an assignor is empty",
            lambda s: s.stranger.beat(**assignors({"name": ""}))),
    refused("an assignor below version -1", "assignor even: MinimumVersion -2 is below -1",
            lambda s: s.stranger.beat(**assignors({"minimum_version": -2}))),
    refused("an assignor whose greatest version is below 0", "assignor even: MaximumVersion -1 is below 0",
            lambda s: s.stranger.beat(
                **assignors({"minimum_version": -1, "maximum_version": -1, "version": -1}))),
    refused("an assignor whose greatest version is below its least",
            "assignor even: MaximumVersion 2 is below 0 or below "
            "MinimumVersion", lambda s: s.stranger.beat(**assignors({"minimum_version": 3, "maximum_version": 2}))),
    refused("an assignor's version out of its range", "assignor even: Version 9 is not between MinimumVersion and "
            "MaximumVersion", lambda s: s.stranger.beat(**assignors({"version": 9}))),
    refused("17 assignors", "17 assignors are listed; at most 16 are allowed",
            lambda s: s.stranger.beat(**assignors(*({"name": f"a{number}"} for number in range(17))))),
    refused("metadata of 70 kB",
            "the worker's ids, URL and name, and the names and metadata of its assignors, have 70018 "
            "bytes together; at most 65536 are allowed",
            lambda s: s.stranger.beat(**assignors({"metadata": bytes(70_000)}))),
    refused("another config topic",
            f"this worker reads the config topic with the id {OTHER_TOPIC.hex}, and the group's "
            f"leader reads the one with the id {TOPIC.hex}; check config.storage.topic",
            lambda s: s.stranger.beat(config_topic_id=OTHER_TOPIC)),
    row("a full group", E.GROUP_MAX_SIZE_REACHED, "group workers is full: group.connect.max.size is 3 members", R.ENDS,
        lambda s: s.stranger.beat(), full),
    row("a request number that was processed", E.STALE_REQUEST, "the request of member w1 has the number 1, but the "
        "coordinator has already processed the number 2; the request is ignored", R.SENDS_ALL,
        lambda s: s.member.beat(member_epoch=0, full=True, request_number=1, connectors_and_tasks=job_arrays(Jobs()))),
    row("the instance id of another member", E.UNRELEASED_INSTANCE_ID,
        "the instance id i1 belongs to the member w1, which "
        "has not left; the instance id is free at the end of that member's session (60000 ms after its last heartbeat)",
        R.ASKS_AGAIN, lambda s: s.stranger.beat(instance_id="i1")),
    row("another instance id than before", E.FENCED_INSTANCE_ID,
        "member w1 joined with the instance id i1, and joins again "
        "with i2; restart the worker", R.ENDS, lambda s: s.member.beat(
            member_epoch=0, full=True, instance_id="i2", connectors_and_tasks=job_arrays(Jobs()))),
    row("an assignor of the coordinator that it does not have", E.UNSUPPORTED_ASSIGNOR,
        "the coordinator has no assignor "
        "odd; its assignors: none", R.ENDS, lambda s: s.stranger.beat(client_assignors=None, server_assignor="odd")),
    row("no assignor in common with the group", E.UNSUPPORTED_ASSIGNOR, "the other members of the group support the "
        "assignors even, and this worker supports odd; set a common assignor in group.local.assignors", R.ENDS,
        lambda s: s.stranger.beat(**assignors({"name": "odd"}))),
    row("versions that do not overlap", E.UNSUPPORTED_ASSIGNOR,
        "with this worker, no member's assignor (even) can read "
        "the metadata versions of all members; check that this worker's version of the assignor", R.ENDS,
        lambda s: s.stranger.beat(**assignors(SECOND))),
]  # fmt: skip

LEAVES = [
    row("an unknown member", E.UNKNOWN_MEMBER_ID, NOT_IN_GROUP, R.HAS_LEFT, lambda s: s.stranger.beat(member_epoch=-1)),
    row("an unknown member, for a short time", E.UNKNOWN_MEMBER_ID, NOT_IN_GROUP, R.HAS_LEFT,
        lambda s: s.stranger.beat(member_epoch=-2)),
    row("a request number that was processed", E.STALE_REQUEST, "the request of member w1 has the number 1, but the "
        "coordinator has already processed the number 2; the request is ignored", R.HAS_LEFT,
        lambda s: s.member.beat(member_epoch=-1, request_number=1)),
]  # fmt: skip

PREPARES = [
    row("empty group id", E.INVALID_REQUEST, "the request has an empty group id", R.COMPUTES_NO_MORE,
        lambda s: Worker(s.client, "w0", "").prepare()),
    row("empty member id", E.INVALID_REQUEST, "the request has an empty member id", R.COMPUTES_NO_MORE,
        lambda s: Worker(s.client, "").prepare()),
    row("member epoch -1", E.INVALID_REQUEST,
        "the request has the member epoch -1, which is below 0", R.COMPUTES_NO_MORE,
        lambda s: s.leader.prepare(member_epoch=-1), prepared),
    row("the lowest member epoch", E.INVALID_REQUEST, "the request has the member epoch -2147483648, which is below 0",
        R.COMPUTES_NO_MORE, lambda s: s.leader.prepare(member_epoch=INT32_MIN), prepared),
    row("an unknown group", E.GROUP_ID_NOT_FOUND, "there is no connect group none", R.COMPUTES_NO_MORE,
        lambda s: Worker(s.client, "w0", "none").prepare()),
    row("an unknown member", E.UNKNOWN_MEMBER_ID, NOT_IN_GROUP, R.COMPUTES_NO_MORE, lambda s: s.stranger.prepare()),
    row("another member epoch", E.FENCED_MEMBER_EPOCH, "the request has the member epoch 0, and member w0 has 2; the "
        "request must be sent again with the present member epoch", R.SENDS_AFTER_HEARTBEAT,
        lambda s: s.leader.prepare(member_epoch=0), prepared),
    row("the greatest member epoch", E.FENCED_MEMBER_EPOCH,
        "the request has the member epoch 2147483647, and member w0 "
        "has 2", R.SENDS_AFTER_HEARTBEAT, lambda s: s.leader.prepare(member_epoch=INT32_MAX), prepared),
    row("no computation is needed", E.UNKNOWN_MEMBER_ID, NOT_CHOSEN.format("w0"), R.COMPUTES_NO_MORE,
        lambda s: s.leader.prepare()),
    row("another member was chosen", E.UNKNOWN_MEMBER_ID, NOT_CHOSEN.format("w1"), R.COMPUTES_NO_MORE,
        lambda s: s.member.prepare(), prepared),
]  # fmt: skip

INSTALLS = [
    row("empty group id", E.INVALID_REQUEST, "the request has an empty group id", R.COMPUTES_NO_MORE,
        lambda s: install(s, Worker(s.client, "w0", ""))),
    row("empty member id", E.INVALID_REQUEST, "the request has an empty member id", R.COMPUTES_NO_MORE,
        lambda s: install(s, Worker(s.client, ""))),
    row("member epoch -1", E.INVALID_REQUEST,
        "the request has the member epoch -1, which is below 0", R.COMPUTES_NO_MORE,
        lambda s: install(s, s.leader, member_epoch=-1), prepared),
    row("the lowest member epoch", E.INVALID_REQUEST, "the request has the member epoch -2147483648, which is below 0",
        R.COMPUTES_NO_MORE, lambda s: install(s, s.leader, member_epoch=INT32_MIN), prepared),
    row("a task number of -1", E.INVALID_REQUEST,
        "connector 'c' has the task number -1; the lowest allowed number is 0",
        R.COMPUTES_NO_MORE, lambda s: install(s, s.leader, unplaceable=[{"reason": "", **tasks("c", -1)}]), prepared),
    row("a delay of -1", E.INVALID_REQUEST, "the field Deferred.DelayMs is -1; the lowest allowed value is 0",
        R.COMPUTES_NO_MORE, lambda s: install(s, s.leader, deferred=[
            {"member_id": "w7", "delay_ms": -1, "connectors": ["c0"], "tasks": ()}]), prepared),
    row("a next portion in -2 ms", E.INVALID_REQUEST, "the field NextInMs is -2; the lowest allowed value is -1",
        R.COMPUTES_NO_MORE, lambda s: install(s, s.leader, next_in_ms=-2), prepared),
    row("a million unplaceable jobs", E.INVALID_REQUEST, TOO_MANY, R.COMPUTES_NO_MORE,
        lambda s: install(s, s.leader, unplaceable=[{"reason": "", **tasks("c", *range(MANY))}]), prepared),
    row("an unknown group", E.GROUP_ID_NOT_FOUND, "there is no connect group none", R.COMPUTES_NO_MORE,
        lambda s: install(s, Worker(s.client, "w0", "none"))),
    row("an unknown member", E.UNKNOWN_MEMBER_ID, NOT_IN_GROUP, R.COMPUTES_NO_MORE, lambda s: install(s, s.stranger)),
    row("another member epoch", E.FENCED_MEMBER_EPOCH, "the request has the member epoch 9, and member w0 has 2; the "
        "request must be sent again with the present member epoch", R.SENDS_AFTER_HEARTBEAT,
        lambda s: install(s, s.leader, member_epoch=9), prepared),
    row("the greatest member epoch", E.FENCED_MEMBER_EPOCH,
        "the request has the member epoch 2147483647, and member w0 "
        "has 2", R.SENDS_AFTER_HEARTBEAT, lambda s: install(s, s.leader, member_epoch=INT32_MAX), prepared),
    row("no computation is needed", E.UNKNOWN_MEMBER_ID, NOT_CHOSEN.format("w0"), R.COMPUTES_NO_MORE,
        lambda s: install(s, s.leader, group_epoch=9)),
    row("another member was chosen", E.UNKNOWN_MEMBER_ID, NOT_CHOSEN.format("w1"), R.COMPUTES_NO_MORE,
        lambda s: install(s, s.member), prepared),
    row("a reload of the group", E.UNKNOWN_MEMBER_ID, NOT_PREPARED, R.COMPUTES_NO_MORE,
        lambda s: install(s, s.leader), reloaded),
    row("another group epoch", E.INVALID_ASSIGNMENT,
        "the assignment is for the group epoch 4, and the last response to "
        "ConnectGroupPrepareAssignment had 3; it is not installed", R.COMPUTES_NO_MORE,
        lambda s: install(s, s.leader, group_epoch=4), prepared),
    row("the lowest group epoch", E.INVALID_ASSIGNMENT,
        "the assignment is for the group epoch -2147483648, and the last",
        R.COMPUTES_NO_MORE, lambda s: install(s, s.leader, group_epoch=INT32_MIN), prepared),
    row("the greatest group epoch", E.INVALID_ASSIGNMENT,
        "the assignment is for the group epoch 2147483647, and the last",
        R.COMPUTES_NO_MORE, lambda s: install(s, s.leader, group_epoch=INT32_MAX), prepared),
    row("a job is missing", E.INVALID_ASSIGNMENT, "it does not assign c0 (6 jobs are missing)", R.COMPUTES_NO_MORE,
        lambda s: install(s, s.leader, target={"w0": Jobs()}), prepared),
    row("a job is assigned twice", E.INVALID_ASSIGNMENT, "it assigns c0 twice", R.COMPUTES_NO_MORE,
        lambda s: install(s, s.leader, target={"w0": JOBS, "w1": JOBS}), prepared),
    row("an unknown member has jobs", E.INVALID_ASSIGNMENT, "it has a target for w9, but the group had no member w9",
        R.COMPUTES_NO_MORE, lambda s: install(s, s.leader, target={"w9": JOBS}), prepared),
    row("a job waits for an unknown member", E.INVALID_ASSIGNMENT,
        "it defers jobs for w7, but no member w7 has left the "
        "group", R.COMPUTES_NO_MORE, lambda s: install(
            s, s.leader, target={}, deferred=[{"member_id": "w7", "delay_ms": 5, **job_arrays(JOBS)}]), prepared),
    row("an unplaceable job without a reason", E.INVALID_ASSIGNMENT, "it gives no reason for unplaceable jobs",
        R.COMPUTES_NO_MORE, lambda s: install(
            s, s.leader, target={}, unplaceable=[{"reason": "", **job_arrays(JOBS)}]), prepared),
    row("an error of the assignor", E.NONE, None, R.HAS_INSTALLED,
        lambda s: install(s, s.leader, error=1, target={}), prepared),
    row("a repeated installation", E.NONE, None, R.HAS_INSTALLED, lambda s: install(s, s.leader), installed),
]  # fmt: skip

DESCRIBES = [
    row("empty group id", E.INVALID_REQUEST, "the request has an empty group id", R.REPORTS,
        lambda s: describe(s.client, "")),
    row("an unknown group", E.GROUP_ID_NOT_FOUND, "there is no connect group none", R.REPORTS,
        lambda s: describe(s.client, "none")),
]  # fmt: skip

TABLE = [
    pytest.param(request, one, id=f"{request}: {one.fault}")
    for request, rows in (
        ("heartbeat", HEARTBEATS), ("join", JOINS), ("leave", LEAVES), ("prepare", PREPARES), ("install", INSTALLS),
        ("describe", DESCRIBES),
    )
    for one in rows
]  # fmt: skip
ASSIGNMENT_ERRORS = {
    "a job is missing", "a job is assigned twice", "an unknown member has jobs", "a job waits for an unknown member",
    "an unplaceable job without a reason", "an error of the assignor",
}  # fmt: skip
"""Faults that end a computation: the group keeps the text of the error, and another member is chosen. Nothing else is
written for any fault."""


@pytest.mark.parametrize(("request_name", "expected"), TABLE)
def test_each_fault_has_its_error_and_its_reaction_and_changes_no_member(
    broker: ThreadedBroker, connect: Connect, request_name: str, expected: Row
) -> None:
    scene = scene_of(broker, connect)
    if expected.before is not None:
        expected.before(scene)
    before = picture(scene)
    answer = expected.send(scene)
    error, message = E(answer.error_code), answer.error_message
    assert error is expected.error, message
    if expected.message is None:
        assert message is None
    else:
        assert message.startswith(expected.message), message
        assert message.isprintable()
    assert reaction(request_name, error, message) is expected.reaction
    after = picture(scene)
    assert after.described == before.described
    assert after.sessions == before.sessions
    ends_computation = expected.fault in ASSIGNMENT_ERRORS
    assert (after.assignment_error != before.assignment_error) == ends_computation
    assert (after.log_end != before.log_end) == ends_computation
    check_members_are_served(scene)


def test_a_group_that_cannot_write_is_not_served_until_it_is_loaded_again_and_loses_nothing(
    broker: ThreadedBroker, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_load = hold_group_loads(monkeypatch)
    scene = scene_of(broker, connect)
    before = picture(scene)
    broker.run(lambda context: context.log.run_write(fill_disk))
    lost = scene.member.beat(name=LONG, url=LONG)
    assert (lost.error_code, lost.error_message) == (
        E.NOT_COORDINATOR,
        "this broker is stopping, or loads the group again after a failure that is in its log; send the request again",
    )
    assert reaction("heartbeat", E.NOT_COORDINATOR, lost.error_message) is R.ASKS_AGAIN
    assert reaction("join", E.NOT_COORDINATOR, lost.error_message) is R.ASKS_AGAIN
    loading = "the group is being loaded from the broker's log; send the request again"
    for request, answer, does in (
        ("heartbeat", scene.leader.beat(full=True), R.ASKS_AGAIN),
        ("join", scene.stranger.beat(), R.ASKS_AGAIN),
        ("leave", scene.stranger.beat(member_epoch=-1), R.HAS_LEFT),
        ("prepare", scene.leader.prepare(), R.COMPUTES_NO_MORE),
        ("install", install(scene, scene.leader), R.COMPUTES_NO_MORE),
        ("describe", describe(scene.client), R.REPORTS),
    ):
        assert (answer.error_code, answer.error_message) == (E.COORDINATOR_LOAD_IN_PROGRESS, loading), request
        assert reaction(request, E.COORDINATOR_LOAD_IN_PROGRESS, loading) is does
    broker.run(lambda context: context.log.run_write(lift_limit))
    may_load.set()
    wait_until(lambda: describe(scene.client).error_code == 0)
    after = picture(scene)
    # Only the members report how far they have read the config topic.
    unread = [[replace(one, config_offset=-1) for one in shown.described.members] for shown in (before, after)]
    assert unread[0] == unread[1]
    assert replace(after.described, members=()) == replace(before.described, members=())
    check_members_are_served(scene)


def test_a_describe_request_for_too_many_groups_closes_only_its_connection(
    broker: ThreadedBroker, connect: Connect
) -> None:
    """Its response has an error for each group, and none for the whole request."""
    scene = scene_of(broker, connect)
    before = picture(scene)
    hostile = connect()
    hostile.send(DESCRIBE, 0, group_ids=["g"] * MANY, include_authorized_operations=False)
    assert hostile.is_closed()
    assert picture(scene) == before
    check_members_are_served(scene)
