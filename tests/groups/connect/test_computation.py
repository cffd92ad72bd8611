"""Who computes, and what happens when a computation fails."""

from dataclasses import replace

import pytest

from coterie.groups.connect.state import Chosen, Prepared
from coterie.nouns.connect_error_codes import ConnectErrorCode
from coterie.nouns.connect_groups import InstallAssignmentResponse
from coterie.nouns.ids import InstanceId, MemberEpoch, MemberId
from coterie.nouns.jobs import NO_JOBS
from coterie.nouns.target_assignments import ComputedTarget
from tests.groups.connect.builders import SETTINGS, Conversation, assignor, install
from tests.groups.connect.simple_assignor import compute

ALONE = replace(SETTINGS, server_assignors=())


def chosen(conversation: Conversation) -> str | None:
    match conversation.coordinator.group.computation:
        case Chosen(member_id=member_id) | Prepared(member_id=member_id):
            return member_id
        case _:
            return None


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
    failed = replace(install("w0", 0, snapshot, ComputedTarget(members={})), error=1)
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
