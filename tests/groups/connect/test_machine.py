"""Requests to the coordinator of a connect group: what each one changes, and how faulty ones are refused."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from coterie.groups.connect.machine import step
from coterie.groups.connect.messages import (
    DeleteGroup,
    DescribeGroup,
    DescribeGroupResponse,
    ErrorOnlyResponse,
    GroupState,
    ReleaseHeldResponse,
    RemoveMember,
    SessionTimer,
    SetGroupConfigs,
)
from coterie.groups.connect.state import check_all_invariants
from coterie.groups.effects import TimerFired
from coterie.nouns.connect_error_codes import ConnectErrorCode
from coterie.nouns.connect_groups import Claims, HeartbeatResponse, InstallAssignmentResponse
from coterie.nouns.ids import InstanceId, MemberId, ReplyTo, WorkerUrl
from coterie.nouns.jobs import NO_JOBS, ConnectorName, Jobs
from coterie.nouns.target_assignments import ComputedTarget, DeferredJobs, TargetOfMember, UnplaceableJobs
from tests.groups.connect.builders import (
    JOBS,
    SETTINGS,
    Conversation,
    assignor,
    heartbeat,
    install,
    short_heartbeat,
)
from tests.groups.connect.simple_assignor import DELAY_MS, compute
from tests.groups.connect.world import compacted, jobs_of

INVALID: Mapping[str, Mapping[str, Any]] = {
    "an empty member id": {"member_id": ""},
    "an epoch below -2": {"member_epoch": -3},
    "an empty instance id": {"instance_id": ""},
    "a join without rebalance timeout": {"rebalance_timeout_ms": None},
    "a rebalance timeout of 0": {"rebalance_timeout_ms": 0},
    "a join without owned jobs": {"owned": None},
    "a join with owned jobs": {"owned": JOBS},
    "both kinds of assignors": {"server_assignor": "cooperative"},
    "an assignor without name": {"client_assignors": (assignor(""),)},
    "a minimum version below -1": {"client_assignors": (assignor(oldest=-2),)},
    "a maximum version below 0": {"client_assignors": (assignor(oldest=-1, newest=-1),)},
    "a version outside of its range": {"client_assignors": (assignor(version=4),)},
    "100,000 assignors": {"client_assignors": tuple(assignor(f"a{number}") for number in range(100_000))},
    "large metadata": {"client_assignors": (assignor(metadata=bytes(100_000)),)},
    "too many claims": {"claims": Claims(jobs=jobs_of(1, 10_001))},
    "claims with long names": {"claims": Claims(jobs=Jobs(frozenset([ConnectorName("c" * 1_100_000)])))},
    "a negative request number": {"request_number": -1},
    "a negative wait": {"max_wait_ms": -1},
}


@pytest.mark.parametrize("fields", INVALID.values(), ids=INVALID.keys())
def test_an_invalid_heartbeat_is_refused_and_leaves_no_group(fields: Mapping[str, Any]) -> None:
    conversation = Conversation()
    response = conversation.beat("w0", **fields)
    assert response.error is ConnectErrorCode.INVALID_REQUEST
    assert response.message
    assert conversation.coordinator.group.is_nonexistent
    assert not conversation.coordinator.log


def test_a_member_receives_its_jobs_after_the_target_is_installed() -> None:
    conversation = Conversation()
    joined = conversation.beat("w0")
    assert (joined.error, joined.member_epoch) == (ConnectErrorCode.COMPUTE_ASSIGNMENT, 0)
    assert joined.leader is not None
    assert joined.leader.member_id == "w0"
    conversation.compute("w0")
    assigned = conversation.beat("w0")
    assert assigned.assignment is not None
    assert (assigned.member_epoch, assigned.assignment.jobs) == (1, JOBS)


def test_a_heartbeat_of_a_stranger_is_refused() -> None:
    assert Conversation().beat("w0", 5).error is ConnectErrorCode.UNKNOWN_MEMBER_ID


def test_a_wrong_epoch_is_fenced_and_removes_no_member() -> None:
    conversation = Conversation()
    conversation.settle("w0", "w1")
    records = list(conversation.coordinator.log)
    for epoch in (2, 99, 2**31 - 1):
        assert conversation.beat("w0", epoch + 1, owned=None).error is ConnectErrorCode.FENCED_MEMBER_EPOCH
    assert conversation.coordinator.log == records
    assert conversation.coordinator.group.members.keys() == {"w0", "w1"}


def test_a_job_that_was_never_assigned_cannot_be_owned() -> None:
    conversation = Conversation()
    conversation.settle("w0", "w1")
    assert conversation.beat("w0", 2, owned=JOBS).error is ConnectErrorCode.FENCED_MEMBER_EPOCH


def test_an_older_request_is_not_processed() -> None:
    conversation = Conversation()
    conversation.beat("w0", request_number=7)
    assert conversation.beat("w0", request_number=7).error is ConnectErrorCode.STALE_REQUEST
    assert conversation.beat("w0", request_number=6).error is ConnectErrorCode.STALE_REQUEST
    assert conversation.beat("w0", request_number=8).error is ConnectErrorCode.COMPUTE_ASSIGNMENT


def test_heartbeats_of_a_settled_group_write_nothing() -> None:
    conversation = Conversation()
    conversation.settle("w0", "w1")
    records = len(conversation.coordinator.log)
    for _ in range(10_000):
        conversation.now_ms += 10
        for member in ("w0", "w1"):
            response = conversation.ask(short_heartbeat(member, 2))
            assert response == HeartbeatResponse(member_epoch=2, heartbeat_interval_ms=3_000)  # type: ignore[arg-type]
    assert len(conversation.coordinator.log) == records


def test_target_and_assignment_of_a_settled_member_are_one_object_also_after_a_reload() -> None:
    """A heartbeat compares them, and for one object that takes the same time for any number of jobs."""
    conversation = Conversation()
    conversation.settle("A", "B")
    coordinator = conversation.coordinator
    for _ in range(2):
        group = coordinator.group
        assert all(group.currents[one].assigned is group.targets[one].target.jobs for one in group.members)
        assert group.currents[MemberId("A")].assigned
        coordinator.load(conversation.now_ms)


def test_a_repeated_join_before_the_first_target_is_no_new_join() -> None:
    conversation = Conversation()
    for _ in range(5):
        conversation.beat("w0")
    assert conversation.coordinator.group.group_epoch == 1


def test_only_the_leader_reports_the_configured_jobs() -> None:
    conversation = Conversation()
    conversation.settle("w0", "w1")
    other = heartbeat("w0").configured
    assert other is not None
    fewer = type(other)(config_offset=other.config_offset, jobs=NO_JOBS)
    conversation.ask(short_heartbeat("w1", 2, configured=fewer))
    assert conversation.coordinator.group.configured_jobs == JOBS
    conversation.ask(short_heartbeat("w0", 2, configured=fewer))
    assert conversation.coordinator.group.configured_jobs == NO_JOBS
    assert conversation.coordinator.group.group_epoch == 3


def test_a_newcomer_without_a_common_assignor_is_refused_by_name() -> None:
    conversation = Conversation()
    conversation.beat("w0")
    refused = conversation.beat("w1", client_assignors=(assignor("mine"),))
    assert refused.error is ConnectErrorCode.UNSUPPORTED_ASSIGNOR
    assert "cooperative" in (refused.message or "")
    assert "mine" in (refused.message or "")
    assert conversation.coordinator.group.members.keys() == {"w0"}


def test_an_unknown_assignor_of_the_coordinator_is_refused() -> None:
    refused = Conversation().beat("w0", client_assignors=None, server_assignor="best")
    assert refused.error is ConnectErrorCode.UNSUPPORTED_ASSIGNOR


def test_an_assignor_of_the_coordinator_computes_without_a_member() -> None:
    conversation = Conversation()
    conversation.beat("w0", client_assignors=None, server_assignor="eager")
    assert conversation.coordinator.computations == 1
    got = conversation.beat("w0", client_assignors=None, server_assignor="eager")
    assert got.assignment is not None
    assert got.assignment.jobs == JOBS


def test_a_worker_with_another_config_topic_is_refused() -> None:
    conversation = Conversation()
    conversation.beat("w0", config_topic_id=b"a" * 16)
    refused = conversation.beat("w1", config_topic_id=b"b" * 16)
    assert refused.error is ConnectErrorCode.INVALID_REQUEST
    assert "config.storage.topic" in (refused.message or "")


def test_the_jobs_of_a_member_that_leaves_permanently_move_at_once() -> None:
    conversation = Conversation()
    conversation.settle("w0", "w1")
    assert conversation.beat("w1", -1).member_epoch == -1
    conversation.compute("w0")
    got = conversation.beat("w0", 2, owned=conversation.coordinator.group.currents[MemberId("w0")].assigned)
    assert got.assignment is not None
    assert got.assignment.jobs == JOBS


@pytest.mark.parametrize("epoch", [-1, -2])
def test_a_removed_member_that_leaves_releases_the_jobs_that_it_may_still_have_run(epoch: int) -> None:
    """An operator has removed the member. Its worker has stopped all tasks since then, and sends its last heartbeat."""
    conversation = Conversation()
    conversation.settle("w0", "w1")
    conversation.ask(RemoveMember(reply_to=ReplyTo(0), member_id=MemberId("w1")))
    group = conversation.coordinator.group
    assert group.departed[MemberId("w1")].held
    assert conversation.beat("w1", epoch).member_epoch == epoch
    departed = group.departed.get(MemberId("w1"))
    if epoch == -1:
        assert departed is None, "it does not return, so no job waits for it"
        conversation.compute("w0")
        assert group.targets[MemberId("w0")].target.jobs == JOBS
    else:
        assert departed is not None
        assert (departed.held, bool(departed.jobs)) == (NO_JOBS, True)
    check_all_invariants(group)


@pytest.mark.parametrize("is_removed_first", [False, True])
def test_a_join_that_is_older_than_a_leave_is_not_processed(is_removed_first: bool) -> None:
    """The join was sent on a connection that hangs, before the worker ended and sent its leave on another one."""
    conversation = Conversation()
    conversation.settle("w0", "w1")
    conversation.ask(short_heartbeat("w1", 2, request_number=10))
    if is_removed_first:
        conversation.ask(RemoveMember(reply_to=ReplyTo(0), member_id=MemberId("w1")))
    assert conversation.beat("w1", -2, request_number=12).error is ConnectErrorCode.NONE
    for _ in range(2):
        departed = conversation.coordinator.group.departed[MemberId("w1")]
        assert (departed.request_number, departed.held, bool(departed.jobs)) == (12, NO_JOBS, True)
        assert conversation.beat("w1", request_number=11).error is ConnectErrorCode.STALE_REQUEST
        assert "w1" not in conversation.coordinator.group.members
        conversation.coordinator.load(conversation.now_ms)
    assert conversation.beat("w1", request_number=13).error is ConnectErrorCode.NONE


@pytest.mark.parametrize("has_target", [False, True])
@pytest.mark.parametrize("instance_id", [None, "one"])
def test_a_returned_member_that_goes_before_it_receives_its_jobs_keeps_its_delay(
    has_target: bool, instance_id: str | None
) -> None:
    """A worker crashes, is started again, and crashes before a heartbeat of it takes the new target."""
    conversation = Conversation()
    group = conversation.coordinator.group
    conversation.beat("w0")
    fields: Mapping[str, Any] = {"url": WorkerUrl("http://one"), "instance_id": instance_id}
    conversation.beat("w1", **fields)
    conversation.compute("w0")
    conversation.beat("w0")
    conversation.beat("w1", **fields)
    jobs_of_w1 = group.currents[MemberId("w1")].assigned
    conversation.beat("w0", 2)
    conversation.now_ms += SETTINGS.session_timeout_ms
    conversation.beat("w0", 2, owned=group.currents[MemberId("w0")].assigned)
    conversation.coordinator.handle(TimerFired(key=SessionTimer(member_id=MemberId("w1"))), conversation.now_ms)
    assert group.departed[MemberId("w1")].jobs == jobs_of_w1
    conversation.compute("w0")
    conversation.beat("w1-again", **fields)
    assert not group.departed
    if has_target:
        conversation.compute("w0")
        assert group.targets[MemberId("w1-again")].target.jobs == jobs_of_w1
    assert group.currents[MemberId("w1-again")].assigned == NO_JOBS
    conversation.ask(RemoveMember(reply_to=ReplyTo(0), member_id=MemberId("w1-again")))
    assert group.departed[MemberId("w1-again")].jobs == jobs_of_w1
    conversation.compute("w0")
    assert group.departed[MemberId("w1-again")].deadline_ms is not None
    conversation.beat("w1-third", **fields)
    conversation.compute("w0")
    assert group.targets[MemberId("w1-third")].target.jobs == jobs_of_w1


@pytest.mark.parametrize("instance_id", [None, "one"])
def test_a_worker_that_has_departed_twice_gets_the_jobs_of_both_members(instance_id: str | None) -> None:
    """An operator has removed its first member, which still held jobs when the second one joined."""
    conversation = Conversation()
    group = conversation.coordinator.group
    conversation.beat("w0")
    fields: Mapping[str, Any] = {"url": WorkerUrl("http://one"), "instance_id": instance_id}
    for member, jobs in (("w1", Jobs.of(JOBS.connectors)), ("w2", Jobs.of(JOBS.tasks))):
        conversation.beat(member, **fields)
        snapshot = conversation.prepare("w0", group.currents[MemberId("w0")].member_epoch)
        deferred = {one.member_id: DeferredJobs(jobs=one.jobs, delay_ms=DELAY_MS) for one in snapshot.departed}
        waiting = Jobs.of(job for one in deferred.values() for job in one.jobs)
        rest = JOBS - jobs - waiting
        unplaceable = (UnplaceableJobs(jobs=rest, reason="for the next member"),) if rest else ()
        members = {MemberId(member): TargetOfMember(jobs=jobs)}
        conversation.compute("w0", ComputedTarget(members=members, deferred=deferred, unplaceable=unplaceable))
        conversation.beat(member, **fields)
        assert group.currents[MemberId(member)].assigned == jobs
        conversation.ask(RemoveMember(reply_to=ReplyTo(0), member_id=MemberId(member)))
    for member in ("w1", "w2"):
        conversation.beat(member, -2)
    assert group.departed.keys() == {"w1", "w2"}
    conversation.beat("w3", **fields)
    assert (dict(group.departed), group.members[MemberId("w3")].former) == ({}, JOBS)


def test_a_member_cannot_take_the_instance_id_of_another_one() -> None:
    conversation = Conversation()
    conversation.beat("w0")
    conversation.beat("w1", instance_id=InstanceId("one"))
    for instance_id in (InstanceId("one"), InstanceId("other")):
        assert conversation.beat("w0", instance_id=instance_id).error is ConnectErrorCode.FENCED_INSTANCE_ID
    assert conversation.beat("w1", instance_id=None).error is ConnectErrorCode.FENCED_INSTANCE_ID
    group = conversation.coordinator.group
    assert group.static_member_id(InstanceId("one")) == "w1"


def test_a_static_member_that_leaves_briefly_stays_and_returns_under_another_id() -> None:
    conversation = Conversation()
    conversation.beat("w0")
    conversation.beat("w1", instance_id=InstanceId("one"))
    conversation.compute("w0")
    before = conversation.beat("w1", instance_id=InstanceId("one"))
    assert before.assignment is not None
    refused = conversation.beat("w2", instance_id=InstanceId("one"))
    assert refused.error is ConnectErrorCode.UNRELEASED_INSTANCE_ID
    epoch = conversation.coordinator.group.group_epoch
    assert conversation.beat("w1", -2).member_epoch == -2
    returned = conversation.beat("w2", instance_id=InstanceId("one"))
    assert returned.assignment is not None
    assert conversation.coordinator.group.group_epoch == epoch
    assert conversation.coordinator.group.targets[MemberId("w2")].target.jobs == before.assignment.jobs


def test_a_departed_member_that_takes_the_place_of_a_static_member_gets_the_jobs_that_wait_for_it() -> None:
    conversation = Conversation()
    group = conversation.coordinator.group
    conversation.beat("w0")
    fields: Mapping[str, Any] = {"url": WorkerUrl("http://one"), "instance_id": InstanceId("one")}
    conversation.beat("w1", **fields)
    conversation.compute("w0")
    conversation.beat("w0")
    conversation.beat("w1", **fields)
    jobs_of_w1 = group.currents[MemberId("w1")].assigned
    conversation.ask(RemoveMember(reply_to=ReplyTo(0), member_id=MemberId("w1")))
    conversation.compute("w0")
    conversation.beat("w2", **fields)
    conversation.compute("w0")
    assert (group.departed[MemberId("w1")].jobs, group.needs_target) == (jobs_of_w1, False)
    assert conversation.beat("w2", -2, instance_id=InstanceId("one")).member_epoch == -2
    conversation.beat("w1", **fields)
    assert (dict(group.departed), group.needs_target) == ({}, True)
    conversation.compute("w0")
    assert group.targets[MemberId("w1")].target.jobs == jobs_of_w1


def test_the_reason_for_a_removal_depends_on_whether_the_member_had_left_for_a_short_time() -> None:
    conversation = Conversation()
    conversation.beat("w0", instance_id=InstanceId("zero"))
    conversation.beat("w1", instance_id=InstanceId("one"))
    conversation.beat("w1", -2)
    now_ms = conversation.now_ms + 30_000
    reasons = [
        removal.reason
        for name in ("w0", "w1")
        for removal in step(
            conversation.coordinator.group, TimerFired(key=SessionTimer(member_id=MemberId(name))), now_ms=now_ms
        ).removals
    ]
    assert reasons == [
        "for 10000 ms (its session timeout) it sent no request that the coordinator accepted",
        "it left for a short time, and did not return within 10000 ms (its session timeout)",
    ]


def test_the_jobs_that_waited_for_a_member_are_offered_to_it_once() -> None:
    conversation = Conversation()
    conversation.settle("w0", "w1")
    group = conversation.coordinator.group
    had = group.currents[MemberId("w1")].assigned
    conversation.beat("w1", -2)
    conversation.compute("w0")
    conversation.beat("w1")
    assert group.members[MemberId("w1")].former == had
    snapshot = conversation.prepare("w0", 2)
    assert {one.member_id: one.former_jobs for one in snapshot.members} == {"w0": NO_JOBS, "w1": had}
    conversation.compute("w0")
    conversation.beat("w1", draining=True)
    snapshot = conversation.prepare("w0", 2)
    assert all(one.former_jobs == NO_JOBS for one in snapshot.members)


def test_a_removed_member_keeps_its_jobs_until_its_session_would_have_ended() -> None:
    conversation = Conversation()
    conversation.settle("w0", "w1")
    held = conversation.coordinator.group.currents[MemberId("w1")].assigned
    assert held
    conversation.ask(RemoveMember(reply_to=ReplyTo(0), member_id=MemberId("w1")))
    conversation.compute("w0")
    assert all(conversation.coordinator.group.holder[job] == "w1" for job in held)
    conversation.now_ms += conversation.coordinator.settings.session_timeout_ms
    conversation.beat("w0", 2, owned=conversation.coordinator.group.currents[MemberId("w0")].assigned)
    conversation.coordinator.fire_due(conversation.now_ms)
    assert not any(job in conversation.coordinator.group.holder for job in held)


def test_a_held_heartbeat_is_answered_when_a_job_becomes_free() -> None:
    conversation = Conversation()
    conversation.settle("w0")
    conversation.beat("w1")
    conversation.compute("w0")
    waits = conversation.beat("w1")
    assert waits.assignment is not None
    assert not waits.assignment.jobs
    assert conversation.ask(short_heartbeat("w1", waits.member_epoch, max_wait_ms=1_000)) is None
    revoked = conversation.beat("w0", 1, owned=JOBS)
    assert revoked.assignment is not None
    conversation.beat("w0", 1, owned=revoked.assignment.jobs)
    (answer,) = conversation.coordinator.replies.values()
    assert isinstance(answer, HeartbeatResponse)
    assert answer.assignment is not None
    assert answer.assignment.jobs == JOBS - revoked.assignment.jobs


def test_jobs_that_stop_one_after_the_other_take_one_heartbeat_each() -> None:
    conversation = Conversation()
    conversation.settle("A")
    jobs_of_a = conversation.coordinator.group.currents[MemberId("A")].assigned
    conversation.beat("B")
    conversation.compute("A", ComputedTarget(members={MemberId("B"): TargetOfMember(jobs=jobs_of_a)}))
    hold: Mapping[str, Any] = {"max_wait_ms": 1_000, "configured": None}
    response = conversation.ask(short_heartbeat("A", 1, **hold))
    assert isinstance(response, HeartbeatResponse)
    assert response.assignment is not None
    assert response.assignment.jobs == NO_JOBS
    assert conversation.ask(short_heartbeat("A", 1, **hold)) is None
    left = jobs_of_a
    *all_but_last, _ = jobs_of_a
    for job in all_but_last:
        left -= Jobs.of([job])
        assert conversation.ask(heartbeat("A", 1, owned=left, **hold)) is None, "more jobs have to stop"
    done = conversation.beat("A", 1, owned=NO_JOBS, **hold)
    assert done.member_epoch == 2, "nothing is left to give back"


def test_a_heartbeat_with_all_fields_is_held_only_if_no_response_can_be_lost() -> None:
    conversation = Conversation()
    conversation.settle("A")
    jobs_of_a = conversation.coordinator.group.currents[MemberId("A")].assigned
    hold: Mapping[str, Any] = {"max_wait_ms": 1_000, "owned": jobs_of_a}
    assert conversation.beat("A", 1, **hold).assignment is not None, "the member may not have received its assignment"
    assert conversation.ask(short_heartbeat("A", 1, max_wait_ms=1_000)) is None, "the member has received all responses"
    assert conversation.ask(heartbeat("A", 1, **hold)) is None
    assert conversation.beat("A", 1, **hold, connection_number=2).assignment is not None, "a response on 1 may be lost"


def test_the_jobs_of_a_member_without_assignors_that_joins_again_are_not_held_back() -> None:
    conversation = Conversation()
    fields: Mapping[str, Any] = {"client_assignors": None}
    conversation.beat("A", **fields)
    assert conversation.beat("A", **fields).assignment is not None
    assert conversation.ask(short_heartbeat("A", 1)) is not None, "the member has received all responses"
    again = conversation.beat("A", max_wait_ms=1_000, **fields)
    assert again.assignment is not None
    assert again.assignment.jobs == JOBS


def test_a_repeated_join_is_held_until_the_first_job_is_free() -> None:
    conversation = Conversation()
    conversation.settle("A")
    joined = conversation.beat("B", max_wait_ms=1_000)
    assert (joined.member_epoch, joined.leader is not None) == (0, True), "the first response is never held"
    records = len(conversation.coordinator.log)
    assert conversation.ask(heartbeat("B", max_wait_ms=1_000)) is None
    assert len(conversation.coordinator.log) == records, "a repeated join is no join"
    conversation.beat("A", 1)
    conversation.compute("A")
    replies = conversation.coordinator.replies
    assert not replies, "A has to give the jobs back first"
    of_b = conversation.coordinator.group.targets[MemberId("B")].target.jobs
    conversation.beat("A", 1)
    conversation.beat("A", 1, owned=JOBS - of_b)
    (assigned,) = replies.values()
    assert isinstance(assigned, HeartbeatResponse)
    assert assigned.assignment is not None
    assert (assigned.member_epoch, assigned.assignment.jobs) == (2, of_b)


def test_a_hold_ends_after_its_time_and_when_the_shell_needs_the_connection() -> None:
    conversation = Conversation()
    conversation.settle("w0")
    assert conversation.ask(short_heartbeat("w0", 1, max_wait_ms=60_000)) is None
    conversation.now_ms += conversation.coordinator.settings.session_timeout_ms // 6
    conversation.coordinator.fire_due(conversation.now_ms)
    assert len(conversation.coordinator.replies) == 1
    conversation.coordinator.replies.clear()
    assert conversation.ask(short_heartbeat("w0", 1, max_wait_ms=60_000)) is None
    held = conversation.coordinator.group.sessions[MemberId("w0")].held_heartbeat
    assert held is not None
    for member in ("gone", "w0", "w0"):  # the second one for w0 finds no hold
        release = ReleaseHeldResponse(reply_to=held.reply_to, member_id=MemberId(member))
        conversation.coordinator.handle(release, conversation.now_ms)
    assert list(conversation.coordinator.replies) == [held.reply_to]


def test_a_changed_url_of_the_leader_reaches_each_member_at_once() -> None:
    conversation = Conversation()
    conversation.settle("w0", "w1", "w2")
    assert conversation.ask(short_heartbeat("w1", 3, max_wait_ms=1_000)) is None
    (held,) = (
        one.held_heartbeat.reply_to
        for one in conversation.coordinator.group.sessions.values()
        if one.held_heartbeat is not None
    )
    conversation.ask(short_heartbeat("w0", 3, url=WorkerUrl("http://moved")))
    for response in (conversation.coordinator.replies.pop(held), conversation.ask(short_heartbeat("w2", 3))):
        assert isinstance(response, HeartbeatResponse)
        assert response.leader is not None
        assert (response.leader.member_id, response.leader.url) == ("w0", "http://moved")
    again = conversation.ask(short_heartbeat("w2", 3))
    assert isinstance(again, HeartbeatResponse)
    assert again.leader is None


def test_a_shorter_session_timeout_counts_from_the_next_request_on() -> None:
    conversation = Conversation()
    conversation.settle("w0")
    conversation.ask(SetGroupConfigs(reply_to=ReplyTo(0), configs={"connect.session.timeout.ms": "6000"}))
    response = conversation.ask(short_heartbeat("w0", 1))
    assert isinstance(response, HeartbeatResponse)
    assert response.session_timeout_ms == 6_000
    session = conversation.coordinator.group.sessions[MemberId("w0")]
    assert session.ends_at_ms == conversation.now_ms + 10_000
    conversation.beat("w0", 1, owned=JOBS)
    assert session.ends_at_ms == conversation.now_ms + 10_000, "all fields: the response may have been lost"
    conversation.ask(short_heartbeat("w0", 1))
    assert session.ends_at_ms == conversation.now_ms + 6_000


def test_a_longer_session_timeout_counts_at_once() -> None:
    conversation = Conversation()
    conversation.settle("w0")
    conversation.ask(SetGroupConfigs(reply_to=ReplyTo(0), configs={"connect.session.timeout.ms": "60000"}))
    conversation.ask(short_heartbeat("w0", 1))
    assert conversation.coordinator.group.sessions[MemberId("w0")].ends_at_ms == conversation.now_ms + 60_000


def test_a_heartbeat_that_crosses_a_revocation_is_accepted_with_the_previous_epoch() -> None:
    conversation = Conversation()
    conversation.settle("w0")
    all_jobs = conversation.coordinator.group.currents[MemberId("w0")].assigned
    for epoch, kept in ((2, all_jobs), (3, NO_JOBS)):
        conversation.beat("w1", draining=epoch == 2)
        conversation.coordinator.group.computed_at_ms = None
        target = ComputedTarget(
            members={MemberId("w0"): TargetOfMember(jobs=kept), MemberId("w1"): TargetOfMember(jobs=all_jobs - kept)}
        )
        conversation.compute("w0", target)
        conversation.beat("w0", 1, owned=all_jobs, configured=None)
    assert conversation.coordinator.group.currents[MemberId("w0")].pending == all_jobs
    crossing = conversation.beat("w0", 1, owned=all_jobs, configured=None)
    assert (crossing.error, crossing.member_epoch) == (ConnectErrorCode.NONE, 2), "it acknowledges nothing"
    assert conversation.coordinator.group.currents[MemberId("w0")].pending == all_jobs


def test_a_removed_members_jobs_are_held_as_long_after_a_reload_with_a_shorter_session() -> None:
    conversation = Conversation()
    conversation.settle("w0")
    ends_at_ms = conversation.coordinator.group.sessions[MemberId("w0")].ends_at_ms
    conversation.ask(RemoveMember(reply_to=ReplyTo(0), member_id=MemberId("w0"), instance_id=None))
    conversation.ask(SetGroupConfigs(reply_to=ReplyTo(0), configs={"connect.session.timeout.ms": "6000"}))
    conversation.coordinator.load(conversation.now_ms)
    conversation.coordinator.fire_due(ends_at_ms - 1)
    assert conversation.coordinator.group.departed[MemberId("w0")].held
    conversation.coordinator.fire_due(ends_at_ms)
    assert not conversation.coordinator.group.departed[MemberId("w0")].held


def test_after_the_clock_was_set_back_the_delay_of_a_departed_member_ends_once() -> None:
    conversation = Conversation()
    conversation.now_ms = 36_000_000
    conversation.settle("w0", "w1")
    conversation.ask(RemoveMember(reply_to=ReplyTo(0), member_id=MemberId("w1")))
    conversation.compute("w0")
    conversation.now_ms = 1_000
    for _ in range(2):  # the second load reads what the first one has written
        conversation.coordinator.load(conversation.now_ms)
        departed = conversation.coordinator.group.departed[MemberId("w1")]
        assert (departed.left_at_ms, departed.held_until_ms, departed.deadline_ms) == (1_000, 11_000, 1_000 + DELAY_MS)
        conversation.now_ms += 500
    group = conversation.coordinator.group
    for _ in range(5):
        conversation.now_ms += 4_000
        conversation.coordinator.fire_due(conversation.now_ms)
        current = group.currents[MemberId("w0")]
        conversation.beat("w0", current.member_epoch, owned=current.assigned)
    assert group.departed[MemberId("w1")].held == NO_JOBS
    conversation.compute("w0")
    assert (dict(group.departed), group.targets[MemberId("w0")].target.jobs) == ({}, JOBS)


@pytest.mark.parametrize("load_at_ms", [1_000, 36_000_000])
def test_after_a_load_the_next_target_that_was_ordered_is_due(load_at_ms: int) -> None:
    """The clock may have been set back since the order."""
    conversation = Conversation()
    conversation.now_ms = 36_000_000
    conversation.settle("w0")
    conversation.beat("w1")
    snapshot = conversation.prepare("w0", 1)
    target = replace(compute(snapshot), next_in_ms=60_000)
    assert conversation.ask(install("w0", 1, snapshot, target)) == InstallAssignmentResponse()
    assert not conversation.coordinator.group.needs_target
    conversation.coordinator.load(load_at_ms)
    group = conversation.coordinator.group
    assert group.metadata is not None
    assert (group.group_epoch, group.assignment_epoch, group.metadata.next_at_ms) == (3, 2, None)


def test_a_group_on_whose_removed_member_jobs_may_run_cannot_be_deleted() -> None:
    conversation = Conversation()
    conversation.settle("w0")
    conversation.ask(RemoveMember(reply_to=ReplyTo(0), member_id=MemberId("w0"), instance_id=None))
    refused = conversation.ask(DeleteGroup(reply_to=ReplyTo(0)))
    assert isinstance(refused, ErrorOnlyResponse)
    assert refused.error is ConnectErrorCode.NON_EMPTY_GROUP
    conversation.coordinator.fire_due(conversation.now_ms + 10_000)
    deleted = conversation.ask(DeleteGroup(reply_to=ReplyTo(0)))
    assert isinstance(deleted, ErrorOnlyResponse)
    assert deleted.error is ConnectErrorCode.NONE
    assert conversation.coordinator.group.is_nonexistent


def test_a_leader_without_a_topic_id_refuses_no_newcomer() -> None:
    conversation = Conversation()
    conversation.settle("w0")
    assert conversation.beat("w1", config_topic_id=bytes(15) + b"1").error is ConnectErrorCode.NONE


def test_a_group_without_members_expires_but_its_configs_stay() -> None:
    conversation = Conversation(replace(SETTINGS, empty_group_retention_ms=5_000))
    coordinator = conversation.coordinator
    configs = {"connect.heartbeat.interval.ms": "100"}
    conversation.ask(SetGroupConfigs(reply_to=ReplyTo(0), configs=configs))
    conversation.settle("w0")
    conversation.beat("w0", -2, owned=NO_JOBS, configured=None)
    coordinator.fire_due(conversation.now_ms + 4_999)
    coordinator.load(conversation.now_ms)
    conversation.beat("w1")
    coordinator.fire_due(conversation.now_ms + 5_000)
    assert not coordinator.group.is_nonexistent, "it has a member"
    conversation.beat("w1", -1, owned=NO_JOBS, configured=None)
    coordinator.fire_due(conversation.now_ms + 4_999)
    assert coordinator.group.metadata is not None
    assert coordinator.group.departed, "jobs wait for w0"
    coordinator.fire_due(conversation.now_ms + 5_000)
    assert coordinator.group.metadata is None
    assert not coordinator.group.departed
    assert coordinator.group.configs == configs
    coordinator.load(conversation.now_ms)
    assert (coordinator.group.metadata, coordinator.group.configured, coordinator.group.configs) == (
        None,
        None,
        configs,
    )


def test_a_description_lists_the_jobs_that_a_member_waits_for_by_their_holder() -> None:
    conversation = Conversation()
    conversation.settle("w0")
    conversation.beat("w1")
    conversation.compute("w0")
    conversation.beat("w1")
    shown = conversation.ask(DescribeGroup(reply_to=ReplyTo(0)))
    assert isinstance(shown, DescribeGroupResponse)
    assert (shown.state, shown.group_epoch, shown.assignment_epoch) == (GroupState.RECONCILING, 2, 2)
    w1 = next(member for member in shown.members if member.metadata.member_id == "w1")
    assert w1.awaited_jobs_by_holder == {"w0": w1.target}


def test_the_log_gives_the_live_state_after_each_case() -> None:
    conversation = Conversation()
    conversation.settle("w0", "w1", "w2")
    conversation.beat("w2", -1)
    live = conversation.coordinator.group
    for records in (conversation.coordinator.log, compacted(conversation.coordinator.log)):
        other = Conversation()
        other.coordinator.log = list(records)
        other.coordinator.load(conversation.now_ms)
        loaded = other.coordinator.group
        assert (loaded.metadata, loaded.members, loaded.targets) == (live.metadata, live.members, live.targets)
        assert (loaded.currents, loaded.departed, loaded.configured) == (live.currents, live.departed, live.configured)
        assert (loaded.holder, loaded.target_owner) == (live.holder, live.target_owner)
        assert len(other.coordinator.log) == len(records), "a whole log needs no record"


def test_every_prefix_of_the_log_settles() -> None:
    conversation = Conversation()
    conversation.settle("w0", "w1", "w2")
    conversation.beat("w2", -1)
    conversation.compute("w0")
    log = list(conversation.coordinator.log)
    for length in range(len(log)):
        other = Conversation()
        other.coordinator.log = log[:length]
        other.coordinator.load(other.now_ms)
        before = other.coordinator.group.group_epoch
        other.now_ms += 1
        for member in list(other.coordinator.group.members):
            other.beat(member)  # every worker has stopped its jobs meanwhile
        other.beat("w9")
        assert other.coordinator.group.group_epoch > before
        leader = other.coordinator.group.leader
        assert leader is not None
        other.compute(leader)
        running = NO_JOBS
        for member in list(other.coordinator.group.members):
            epoch = other.coordinator.group.currents[member].member_epoch
            owned = other.coordinator.group.currents[member].assigned
            got = other.beat(member, epoch, owned=owned)
            assert got.assignment is not None
            if owned - got.assignment.jobs:
                other.beat(member, epoch, owned=got.assignment.jobs)
        for member in list(other.coordinator.group.members):
            current = other.coordinator.group.currents[member]
            last = other.beat(member, current.member_epoch, owned=current.assigned)
            assert last.assignment is not None
            running |= last.assignment.jobs
        assert running == JOBS, f"after {length} records"


def test_a_job_that_a_member_gives_back_and_shall_have_again_comes_with_the_same_response() -> None:
    """KAFKA-19449: a member's own revocation must not count as a job that another member still has."""
    conversation = Conversation()
    conversation.settle("w0")
    conversation.beat("w1")
    conversation.compute("w0")
    revoking = conversation.beat("w0", 1, owned=JOBS)
    assert revoking.assignment is not None
    kept = revoking.assignment.jobs
    assert kept <= JOBS
    assert kept != JOBS
    conversation.beat("w1", -1, owned=NO_JOBS)
    conversation.compute("w0")
    again = conversation.beat("w0", 1, owned=kept)
    assert again.assignment is not None
    assert (again.assignment.jobs, again.member_epoch) == (JOBS, 3)
    assert again.assignment.jobs_by_assignment_epoch == {1: kept, 3: JOBS - kept}


def test_a_second_load_after_a_target_that_was_written_in_part_finds_who_is_to_have_each_job() -> None:
    """The crash comes after the target of the newcomer, which then has jobs that the other target still has."""
    conversation = Conversation()
    conversation.settle("w1")
    conversation.beat("w0")
    snapshot = conversation.prepare("w1", 1)
    coordinator = conversation.coordinator
    request = install("w1", 1, snapshot, compute(snapshot))
    assert coordinator.handle(request, conversation.now_ms, crash_after=1)
    for _ in range(2):
        coordinator.load(conversation.now_ms)
        check_all_invariants(coordinator.group)
        assert coordinator.group.target_owner == dict.fromkeys(JOBS, "w1")
