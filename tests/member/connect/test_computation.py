"""The computation of a target assignment by a member that was chosen for it."""

from typing import Any

import pytest

from coterie.member.connect.messages import HeartbeatRequest, InstallAssignmentRequest, PrepareAssignmentRequest
from coterie.member.connect.state import NotComputing
from coterie.nouns.connect_error_codes import ConnectErrorCode
from coterie.nouns.connect_groups import InstallAssignmentResponse, PrepareAssignmentResponse
from coterie.nouns.ids import ConfigOffset, GroupEpoch
from coterie.nouns.membership import InstallTarget, TargetRequested
from coterie.nouns.target_assignments import ComputedTarget, GroupSnapshot, TargetOfMember
from tests.member.connect.driving import ME, SOME, MemberDriver, accepted

COMPUTE = ConnectErrorCode.COMPUTE_ASSIGNMENT
TARGET = ComputedTarget(members={ME: TargetOfMember(jobs=SOME)})


def snapshot(group_epoch: int = 7) -> GroupSnapshot:
    return GroupSnapshot(
        group_epoch=GroupEpoch(group_epoch),
        assignor="cooperative",
        members=(),
        config_offset=ConfigOffset(4),
        configured=SOME,
    )


@pytest.fixture
def chosen(worker: MemberDriver) -> MemberDriver:
    """A member whose last heartbeat was answered with COMPUTE_ASSIGNMENT."""
    worker.join()
    worker.end_hold()
    worker.answer(accepted(1, error=COMPUTE))
    worker.events.clear()
    return worker


def prepare(worker: MemberDriver, **fields: Any) -> TargetRequested | None:
    """Answer Prepare; returns the order to compute."""
    response = PrepareAssignmentResponse(**(fields or {"snapshot": snapshot()}))
    worker.reply(worker.pending(PrepareAssignmentRequest), response)
    requested = worker.take_events(TargetRequested)
    return requested[0] if requested else None


def test_a_chosen_member_prepares_computes_and_installs(chosen: MemberDriver) -> None:
    kinds = [type(send.request) for send in chosen.sent]
    assert kinds == [PrepareAssignmentRequest, HeartbeatRequest], (
        "a held heartbeat after Prepare does not delay its response"
    )
    request = chosen.pending(PrepareAssignmentRequest).request
    assert isinstance(request, PrepareAssignmentRequest)
    assert (request.member_id, request.member_epoch) == (ME, 1)
    requested = prepare(chosen)
    assert requested is not None
    assert requested.snapshot == snapshot()
    chosen.feed(InstallTarget(token=requested.token, target=TARGET))
    install = chosen.pending(InstallAssignmentRequest)
    assert isinstance(install.request, InstallAssignmentRequest)
    assert (install.request.group_epoch, install.request.assignor_error, install.request.target) == (7, 0, TARGET)
    chosen.reply(install, InstallAssignmentResponse())
    assert isinstance(chosen.member.computation, NotComputing)


def test_the_next_heartbeat_follows_an_installation_at_once() -> None:
    """Also if responses are not held: the next heartbeat is due after the interval."""
    worker = MemberDriver(coordinator_hold_max_ms=0)
    worker.own()
    worker.answer(accepted(0, is_full=True, error=COMPUTE))
    requested = prepare(worker)
    assert requested is not None
    worker.feed(InstallTarget(token=requested.token, target=TARGET))
    assert worker.count(HeartbeatRequest) == 0
    worker.reply(worker.pending(InstallAssignmentRequest), InstallAssignmentResponse())
    assert worker.count(HeartbeatRequest) == 1


def test_an_assignor_that_has_failed_is_reported(chosen: MemberDriver) -> None:
    requested = prepare(chosen)
    assert requested is not None
    chosen.feed(InstallTarget(token=requested.token, target=None, error="ValueError: no"))
    request = chosen.pending(InstallAssignmentRequest).request
    assert isinstance(request, InstallAssignmentRequest)
    assert (request.assignor_error, request.target) == (1, ComputedTarget(members={}))
    assert chosen.logged == ["The assignor of this worker has computed no target assignment: ValueError: no"]


def test_a_repeated_order_to_compute_sends_no_second_prepare(chosen: MemberDriver) -> None:
    chosen.answer(accepted(1, error=COMPUTE))
    assert chosen.count(PrepareAssignmentRequest) == 1


def test_a_target_of_an_older_computation_is_not_installed(chosen: MemberDriver) -> None:
    first = prepare(chosen)
    assert first is not None
    chosen.answer(accepted(1, error=COMPUTE))
    second = prepare(chosen)
    assert second is not None
    assert second.token != first.token
    chosen.feed(InstallTarget(token=first.token, target=TARGET))
    assert chosen.count(InstallAssignmentRequest) == 0
    chosen.feed(InstallTarget(token=second.token, target=TARGET))
    assert chosen.count(InstallAssignmentRequest) == 1


@pytest.mark.parametrize("is_lost", [True, False])
def test_prepare_is_repeated_after_the_next_accepted_heartbeat(chosen: MemberDriver, *, is_lost: bool) -> None:
    if is_lost:
        chosen.fail(PrepareAssignmentRequest)
    else:
        prepare(chosen, error=ConnectErrorCode.FENCED_MEMBER_EPOCH)
    assert chosen.count(PrepareAssignmentRequest) == 0
    chosen.answer(accepted(2))
    request = chosen.pending(PrepareAssignmentRequest).request
    assert isinstance(request, PrepareAssignmentRequest)
    assert request.member_epoch == 2


@pytest.mark.parametrize("is_lost", [True, False])
def test_an_installation_is_repeated_after_the_next_accepted_heartbeat(chosen: MemberDriver, *, is_lost: bool) -> None:
    requested = prepare(chosen)
    assert requested is not None
    chosen.feed(InstallTarget(token=requested.token, target=TARGET))
    if is_lost:
        chosen.fail(InstallAssignmentRequest)
    else:
        fenced = InstallAssignmentResponse(error=ConnectErrorCode.FENCED_MEMBER_EPOCH)
        chosen.reply(chosen.pending(InstallAssignmentRequest), fenced)
    assert chosen.count(InstallAssignmentRequest) == 0
    chosen.answer(accepted(2))
    request = chosen.pending(InstallAssignmentRequest).request
    assert isinstance(request, InstallAssignmentRequest)
    assert (request.member_epoch, request.group_epoch, request.target) == (2, 7, TARGET)


@pytest.mark.parametrize(
    "error", [ConnectErrorCode.UNKNOWN_MEMBER_ID, ConnectErrorCode.NOT_COORDINATOR, ConnectErrorCode.INVALID_REQUEST]
)
def test_after_any_other_error_the_member_gives_up_the_computation_and_stays(
    chosen: MemberDriver, error: ConnectErrorCode
) -> None:
    assert prepare(chosen, error=error, message="why") is None
    assert chosen.logged == [f"This worker does not compute the target assignment: {error.name}: why"]
    assert chosen.events == []
    chosen.end_hold()
    assert chosen.count(PrepareAssignmentRequest) == 0


def test_an_invalid_target_is_logged_and_not_repeated(chosen: MemberDriver) -> None:
    requested = prepare(chosen)
    assert requested is not None
    chosen.feed(InstallTarget(token=requested.token, target=TARGET))
    invalid = InstallAssignmentResponse(error=ConnectErrorCode.INVALID_ASSIGNMENT, message="a-0 twice")
    chosen.reply(chosen.pending(InstallAssignmentRequest), invalid)
    assert chosen.logged == [
        "The target assignment that this worker has computed was not installed, and is not sent again: "
        "INVALID_ASSIGNMENT: a-0 twice"
    ]
    chosen.end_hold()
    assert chosen.count(InstallAssignmentRequest) == 0


def test_a_lost_membership_ends_the_computation(chosen: MemberDriver) -> None:
    requested = prepare(chosen)
    assert requested is not None
    chosen.refuse(ConnectErrorCode.FENCED_MEMBER_EPOCH)
    chosen.feed(InstallTarget(token=requested.token, target=TARGET))
    assert chosen.count(InstallAssignmentRequest) == 0
