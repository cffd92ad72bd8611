"""Who computes, and what happens when a computation fails."""

from dataclasses import replace
from typing import Any

import pytest

from coterie.groups.connect.messages import (
    DescribeGroup,
    DescribeGroupResponse,
    GroupRecord,
    NextComputationTimer,
    PrepareAssignment,
    SetGroupConfigs,
)
from coterie.groups.connect.settings import ConnectGroupSettings
from coterie.groups.effects import TimerFired
from coterie.nouns.connect_error_codes import ConnectErrorCode
from coterie.nouns.connect_groups import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    HeartbeatResponse,
    InstallAssignmentResponse,
    PrepareAssignmentResponse,
    SupportedAssignor,
)
from coterie.nouns.ids import InstanceId, MemberEpoch, MemberId, ReplyTo
from coterie.nouns.jobs import NO_JOBS
from coterie.nouns.target_assignments import ComputedTarget, GroupSnapshot, TargetOfMember
from tests.groups.connect.builders import JOBS, SETTINGS, Conversation, assignor, install, short_heartbeat
from tests.groups.connect.simple_assignor import compute

ALONE = replace(SETTINGS, server_assignors=())


def chosen(conversation: Conversation) -> str | None:
    return conversation.coordinator.group.computing_member_id


def joined(*members: str) -> Conversation:
    conversation = Conversation(ALONE)
    for member in members:
        conversation.beat(member)
    return conversation


def test_a_member_that_covers_all_versions_computes() -> None:
    """K848C: of A [1-5], B [3-4] and C [2-4], A must be selected."""
    conversation = Conversation(ALONE)
    for name, oldest, newest in (("B", 3, 4), ("A", 1, 5), ("C", 2, 4)):
        conversation.beat(name, client_assignors=(assignor(oldest=oldest, newest=newest),))
        conversation.compute(chosen(conversation) or "")
    conversation.beat("D", client_assignors=(assignor(oldest=3, newest=3),))
    assert chosen(conversation) == "A"


def test_a_newcomer_is_refused_if_no_member_would_cover_all_versions() -> None:
    conversation = joined()
    conversation.beat("A", client_assignors=(assignor(oldest=1, newest=3),))
    refused = conversation.beat("B", client_assignors=(assignor(oldest=2, newest=4),))
    assert refused.error is ConnectErrorCode.UNSUPPORTED_ASSIGNOR


def update(conversation: Conversation, member: str, *offers: SupportedAssignor) -> HeartbeatResponse:
    """A heartbeat of a member of the group that changes only its assignors."""
    epoch = conversation.coordinator.group.currents[MemberId(member)].member_epoch
    return conversation.beat(member, epoch, owned=None, client_assignors=offers)


def prepared(conversation: Conversation, member: str) -> GroupSnapshot:
    return conversation.prepare(member, conversation.coordinator.group.currents[MemberId(member)].member_epoch)


def reasons(snapshot: GroupSnapshot) -> dict[str, int]:
    return {one.member_id: one.reason for one in snapshot.members}


def test_a_reason_is_for_one_computation_and_for_its_repetitions() -> None:
    conversation = joined()
    conversation.settle("w0", "w1")
    update(conversation, "w1", assignor(reason=3))
    conversation.compute("w0", ComputedTarget(members={}))
    assert chosen(conversation) == "w1", "the first one has failed"
    assert reasons(prepared(conversation, "w1")) == {"w0": 0, "w1": 3}
    conversation.compute("w1")
    update(conversation, "w1", assignor(metadata=b"new"))
    assert reasons(prepared(conversation, chosen(conversation) or "")) == {"w0": 0, "w1": 0}


def test_a_reason_that_is_given_during_a_computation_is_for_the_next_one() -> None:
    conversation = joined()
    conversation.settle("w0", "w1")
    update(conversation, "w1", assignor(reason=1))
    during = prepared(conversation, "w0")
    assert reasons(during) == {"w0": 0, "w1": 1}
    epoch = during.members[0].member_epoch
    update(conversation, "w1", assignor(reason=1))
    update(conversation, "w0", assignor(reason=2))
    assert conversation.ask(install("w0", epoch, during, compute(during))) == InstallAssignmentResponse()
    assert reasons(prepared(conversation, chosen(conversation) or "")) == {"w0": 2, "w1": 1}
    conversation.compute(chosen(conversation) or "")
    assert conversation.coordinator.group.reasons == {}


def test_without_a_covering_member_the_members_may_change_all_but_their_versions() -> None:
    conversation = joined()
    offers = {"A": assignor(), "B": assignor(newest=1), "C": assignor(oldest=2)}
    for name, offer in offers.items():
        conversation.beat(name, client_assignors=(offer,))
    conversation.compute("A")
    for name, offer in offers.items():
        conversation.beat(name, client_assignors=(offer,))
    conversation.beat("A", LEAVE_EPOCH)
    assert update(conversation, "B", assignor(newest=1, metadata=b"new", reason=2)).error is ConnectErrorCode.NONE
    epoch = conversation.coordinator.group.currents[MemberId("B")].member_epoch
    assert (
        conversation.beat("B", epoch, owned=None, client_assignors=None, draining=True).error is ConnectErrorCode.NONE
    )
    refused = update(conversation, "B", assignor(oldest=1, newest=1))
    assert refused.error is ConnectErrorCode.UNSUPPORTED_ASSIGNOR


def test_another_member_computes_at_once_after_an_invalid_target() -> None:
    conversation = joined("w0", "w1")
    response = conversation.compute("w0", ComputedTarget(members={}))
    assert isinstance(response, InstallAssignmentResponse)
    assert response.error is ConnectErrorCode.INVALID_ASSIGNMENT
    assert chosen(conversation) == "w1"
    metadata = conversation.coordinator.group.metadata
    assert metadata is not None
    assert "w0" in metadata.assignment_error


def test_another_member_computes_after_an_assignors_error_or_a_timeout() -> None:
    conversation = joined("w0", "w1")
    snapshot = conversation.prepare("w0", 0)
    failed = replace(install("w0", 0, snapshot, ComputedTarget(members={})), assignor_error=1)
    assert conversation.ask(failed) == InstallAssignmentResponse()
    assert chosen(conversation) == "w1"
    conversation.now_ms += ALONE.computation_timeout_ms - 1
    conversation.beat("w0")
    conversation.beat("w1")
    conversation.now_ms += 1
    conversation.coordinator.fire_due(conversation.now_ms)
    assert chosen(conversation) is None, "all have failed: a pause follows"
    conversation.now_ms += 1_000
    conversation.coordinator.fire_due(conversation.now_ms)
    assert chosen(conversation) == "w0"


def test_a_new_member_ends_the_pause_after_failures() -> None:
    """It may be able to compute where the others have failed."""
    conversation = joined("w0")
    conversation.compute("w0", ComputedTarget(members={}))
    assert chosen(conversation) is None, "the only member has failed: a pause follows"
    conversation.beat("w1")
    assert chosen(conversation) is not None


def test_the_coordinators_assignor_of_that_name_computes_when_all_members_have_failed() -> None:
    conversation = Conversation()
    conversation.beat("w0")
    conversation.compute("w0", ComputedTarget(members={}))
    group = conversation.coordinator.group
    assert group.assignment_epoch == group.group_epoch == 1


def test_another_member_computes_when_the_computing_one_leaves() -> None:
    conversation = joined("w0", "w1")
    conversation.prepare("w0", 0)
    conversation.beat("w0", -1)
    assert chosen(conversation) == "w1"


def test_a_second_choice_of_the_same_member_is_sent_to_its_held_heartbeat() -> None:
    conversation = joined()
    conversation.settle("w0")
    conversation.beat("w1")
    ordered = conversation.ask(short_heartbeat("w0", 1))
    assert isinstance(ordered, HeartbeatResponse)
    assert ordered.error is ConnectErrorCode.COMPUTE_ASSIGNMENT
    snapshot = conversation.prepare("w0", 1)
    assert conversation.ask(short_heartbeat("w0", 1, max_wait_ms=1_000)) is None
    conversation.beat("w2")
    target = ComputedTarget(members={MemberId("w0"): TargetOfMember(jobs=JOBS)})
    assert conversation.ask(install("w0", 1, snapshot, target)) == InstallAssignmentResponse()
    (ordered_again,) = conversation.coordinator.replies.values()
    assert isinstance(ordered_again, HeartbeatResponse)
    assert ordered_again.error is ConnectErrorCode.COMPUTE_ASSIGNMENT


def test_a_late_target_is_installed_without_the_members_that_have_gone() -> None:
    conversation = joined("w0", "w1", "w2")
    snapshot = conversation.prepare("w0", 0)
    conversation.beat("w2", -1)
    target = compute(snapshot)
    assert conversation.ask(install("w0", 0, snapshot, target)) == InstallAssignmentResponse()
    group = conversation.coordinator.group
    assert group.targets.keys() == {"w0", "w1"}
    assert group.group_epoch > group.assignment_epoch, "the next computation places the jobs of the member that left"
    assert chosen(conversation) is not None


def test_a_repeated_installation_is_answered_again_and_an_older_one_is_refused() -> None:
    conversation = joined("w0")
    old = conversation.prepare("w0", 0)
    conversation.beat("w1")
    new = conversation.prepare("w0", 0)
    refused = conversation.ask(install("w0", 0, old, compute(old)))
    assert isinstance(refused, InstallAssignmentResponse)
    assert refused.error is ConnectErrorCode.INVALID_ASSIGNMENT
    request = install("w0", 0, new, compute(new))
    assert conversation.ask(request) == InstallAssignmentResponse()
    records = len(conversation.coordinator.log)
    assert conversation.ask(request) == InstallAssignmentResponse()
    assert len(conversation.coordinator.log) == records


@pytest.mark.parametrize(
    ("member", "epoch", "code"),
    [
        ("", 0, ConnectErrorCode.INVALID_REQUEST),
        ("w0", -1, ConnectErrorCode.INVALID_REQUEST),
        ("stranger", 0, ConnectErrorCode.UNKNOWN_MEMBER_ID),
        ("w0", 7, ConnectErrorCode.FENCED_MEMBER_EPOCH),
        ("w1", 0, ConnectErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_only_the_chosen_member_may_install(member: str, epoch: int, code: ConnectErrorCode) -> None:
    conversation = joined("w0", "w1")
    snapshot = conversation.prepare("w0", 0)
    refused = conversation.ask(
        replace(
            install("w0", 0, snapshot, compute(snapshot)), member_id=MemberId(member), member_epoch=MemberEpoch(epoch)
        )
    )
    assert isinstance(refused, InstallAssignmentResponse)
    assert refused.error is code
    assert chosen(conversation) == "w0"


def test_a_request_to_a_group_that_does_not_exist_creates_none() -> None:
    conversation = Conversation()
    snapshot = joined("w0").prepare("w0", 0)
    refused = conversation.ask(install("w0", 0, snapshot, compute(snapshot)))
    assert isinstance(refused, InstallAssignmentResponse)
    assert refused.error is ConnectErrorCode.GROUP_ID_NOT_FOUND
    assert conversation.coordinator.group.is_nonexistent


def test_a_new_group_waits_for_more_members_and_computations_keep_their_interval() -> None:
    conversation = Conversation(replace(SETTINGS, initial_rebalance_delay_ms=3_000, assignment_interval_ms=200))
    conversation.beat("w0")
    conversation.now_ms += 2_000
    conversation.beat("w1")
    assert chosen(conversation) is None
    conversation.now_ms += 1_000
    conversation.coordinator.fire_due(conversation.now_ms)
    assert chosen(conversation) == "w0"
    conversation.compute("w0")
    conversation.beat("w2")
    assert chosen(conversation) is None
    conversation.now_ms += 200
    conversation.coordinator.fire_due(conversation.now_ms)
    assert chosen(conversation) == "w0"


def test_the_initial_delay_of_a_group_whose_computations_have_failed_before_is_not_shortened() -> None:
    conversation = Conversation(replace(ALONE, initial_rebalance_delay_ms=3_000))
    conversation.beat("w0")
    conversation.now_ms += 3_000
    conversation.coordinator.fire_due(conversation.now_ms)
    conversation.compute("w0", ComputedTarget(members={}))
    assert chosen(conversation) is None, "the only member has failed: a pause follows"
    conversation.beat("w0", LEAVE_EPOCH)
    conversation.beat("w1")
    conversation.now_ms += 10
    conversation.beat("w2")
    conversation.now_ms += 2_989
    conversation.coordinator.fire_due(conversation.now_ms)
    assert chosen(conversation) is None, "the second join does not end the initial delay"
    conversation.now_ms += 1
    conversation.coordinator.fire_due(conversation.now_ms)
    assert chosen(conversation) == "w1"
    for member in ("w1", "w2"):
        conversation.compute(member, ComputedTarget(members={}))
    conversation.now_ms += 1_000
    conversation.coordinator.fire_due(conversation.now_ms)
    assert chosen(conversation) == "w1", "the pause is the first one of this group"


def test_the_target_of_a_static_member_counts_for_the_member_id_with_which_it_has_returned_meanwhile() -> None:
    """Its return requests no new target, so nothing else would give it jobs."""
    conversation = joined("w0")
    conversation.beat("w1", instance_id=InstanceId("one"))
    conversation.compute("w0")
    conversation.beat("w1", -2, owned=NO_JOBS)
    conversation.beat("w2")
    snapshot = conversation.prepare("w0", 0)
    conversation.beat("w1-again", instance_id=InstanceId("one"))
    target = compute(snapshot)
    conversation.ask(install("w0", 0, snapshot, target))
    group = conversation.coordinator.group
    assert target.members[MemberId("w1")].jobs != NO_JOBS
    assert group.targets[MemberId("w1-again")].target == target.members[MemberId("w1")]
    assert group.group_epoch == group.assignment_epoch


@pytest.mark.parametrize(
    ("newcomer", "computes"),
    [
        ({"client_assignors": (assignor(oldest=0, newest=9),)}, "w2"),
        ({"client_assignors": None, "server_assignor": "eager"}, None),
    ],
    ids=["it cannot read the newcomer's metadata", "the newcomer has no assignor in common with it"],
)
def test_a_choice_that_a_newcomer_makes_impossible_ends_at_once(newcomer: dict[str, Any], computes: str | None) -> None:
    conversation = Conversation()
    conversation.beat("w0")
    conversation.beat("w1")
    assert chosen(conversation) == "w0"
    conversation.beat("w2", **newcomer)
    assert chosen(conversation) == computes
    refused = conversation.ask(
        PrepareAssignment(reply_to=ReplyTo(0), member_id=MemberId("w0"), member_epoch=JOIN_EPOCH)
    )
    assert isinstance(refused, PrepareAssignmentResponse)
    assert refused.error is ConnectErrorCode.UNKNOWN_MEMBER_ID
    assert chosen(conversation) == computes, "a refusal changes nothing"


def test_a_repeated_prepare_has_the_members_of_the_first_one_if_the_assignor_cannot_read_those_since() -> None:
    conversation = Conversation()
    conversation.beat("w0")
    first = conversation.prepare("w0", 0)
    conversation.beat("w1", client_assignors=None, server_assignor="eager")
    again = conversation.prepare("w0", 0)
    assert again == first
    assert conversation.ask(install("w0", 0, again, compute(again))) == InstallAssignmentResponse()
    group = conversation.coordinator.group
    assert (group.group_epoch, group.assignment_epoch) == (2, 2), "the coordinator has computed for both members"


def without_a_covering_member(settings: ConnectGroupSettings) -> Conversation:
    """A group of members of which each reads other versions; the one that read all has left."""
    conversation = Conversation(settings)
    for name, offer in {"A": assignor(), "B": assignor(newest=1), "C": assignor(oldest=2)}.items():
        conversation.beat(name, client_assignors=(offer,))
    conversation.compute("A")
    for name, offer in {"B": assignor(newest=1), "C": assignor(oldest=2)}.items():
        conversation.beat(name, client_assignors=(offer,))
    conversation.beat("A", LEAVE_EPOCH)
    return conversation


def test_the_error_lists_the_versions_if_no_member_covers_all() -> None:
    conversation = without_a_covering_member(ALONE)
    response = conversation.ask(DescribeGroup(reply_to=ReplyTo(0)))
    assert isinstance(response, DescribeGroupResponse)
    assert response.assignment_error.startswith(
        "no present member's assignor cooperative reads the metadata versions of all members (B: 0 to 1, C: 2 to 3); "
    )
    group_records = [record for record in conversation.coordinator.log if isinstance(record, GroupRecord)]
    assert [record.group_epoch for record in group_records].count(conversation.coordinator.group.group_epoch) == 1
    records = len(conversation.coordinator.log)
    for _ in range(3):
        conversation.now_ms += 60_000
        for member, offer in {"B": assignor(newest=1), "C": assignor(oldest=2)}.items():
            conversation.beat(member, client_assignors=(offer,))
        conversation.coordinator.handle(TimerFired(key=NextComputationTimer()), conversation.now_ms)
    assert len(conversation.coordinator.log) == records, "the same error is not written again"


def test_the_coordinator_computes_if_no_member_covers_all_versions() -> None:
    coordinator = without_a_covering_member(SETTINGS).coordinator
    group = coordinator.group
    assert group.assignment_epoch == group.group_epoch
    assert group.metadata is not None
    errors = {record.assignment_error for record in coordinator.log if isinstance(record, GroupRecord)}
    assert errors == {""}, "a computation that succeeds is never logged as failed"


def test_an_assignor_has_nine_tenths_of_the_time_that_is_left() -> None:
    conversation = joined("w0")
    conversation.now_ms += 2_000
    assert conversation.prepare("w0", 0).time_limit_ms == 7_200
    conversation.now_ms += 8_000
    conversation.coordinator.fire_due(conversation.now_ms)
    assert chosen(conversation) is None, "10 s after the choice"


def test_a_computation_takes_at_most_the_rebalance_timeout_of_the_member_and_the_groups_limit() -> None:
    conversation = Conversation(ALONE)
    conversation.beat("w0", rebalance_timeout_ms=4_000)
    assert conversation.prepare("w0", 0).time_limit_ms == 3_600
    conversation.now_ms += 4_000
    conversation.coordinator.fire_due(conversation.now_ms)
    assert chosen(conversation) is None
    assert conversation.coordinator.group.metadata is not None
    assert "within 4000 ms" in conversation.coordinator.group.metadata.assignment_error


def test_the_time_limit_of_the_coordinators_assignor_is_the_groups() -> None:
    limits: list[int] = []

    def noted(snapshot: GroupSnapshot) -> ComputedTarget:
        limits.append(snapshot.time_limit_ms)
        return compute(snapshot)

    conversation = Conversation()
    conversation.coordinator.compute = noted
    conversation.ask(SetGroupConfigs(reply_to=ReplyTo(0), configs={"connect.computation.timeout.ms": "2000"}))
    conversation.beat("w0", client_assignors=None, server_assignor="eager")
    assert limits == [1_800]
