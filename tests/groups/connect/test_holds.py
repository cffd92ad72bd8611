"""Held heartbeats: how long their responses are held at most, what ends a hold, and what does not."""

from dataclasses import replace

import pytest

from coterie.groups.connect.messages import RemoveMember
from coterie.nouns.connect_error_codes import ConnectErrorCode
from coterie.nouns.connect_groups import HeartbeatResponse
from coterie.nouns.ids import MemberId, ReplyTo
from coterie.nouns.jobs import NO_JOBS
from coterie.nouns.target_assignments import ComputedTarget, TargetOfMember
from tests.groups.connect.builders import JOBS, SETTINGS, Conversation, short_heartbeat

W0, W1, W2 = (MemberId(f"w{number}") for number in range(3))
LONG_MS = 600_000


@pytest.mark.parametrize(
    ("wait_ms", "member_grace_ms", "group_grace_ms", "hold_ms"),
    [
        (700, 2_000, 2_000, 700),
        (LONG_MS, 0, 2_000, 3_000),
        (LONG_MS, 2_000, 0, 3_000),
        (LONG_MS, 2_000, 2_000, 1_000),
        (LONG_MS, 2_000, 500, 250),
        (LONG_MS, 500, 2_000, 250),
        (LONG_MS, 60_000, 60_000, 3_000),
    ],
)
def test_a_hold_lasts_a_sixth_of_the_session_or_half_of_the_grace_at_most(
    wait_ms: int, member_grace_ms: int, group_grace_ms: int, hold_ms: int
) -> None:
    settings = replace(SETTINGS, session_timeout_ms=18_000, connection_grace_ms=group_grace_ms)
    conversation = Conversation(settings)
    conversation.settle("w0")
    # An immediate response: the next heartbeat has nothing to report.
    assert conversation.ask(short_heartbeat("w0", 1, connection_grace_ms=member_grace_ms)) is not None
    assert conversation.ask(short_heartbeat("w0", 1, max_wait_ms=wait_ms)) is None
    for passed_ms, is_held in ((hold_ms - 1, True), (1, False)):
        conversation.now_ms += passed_ms
        conversation.coordinator.fire_due(conversation.now_ms)
        assert (not conversation.coordinator.replies) == is_held


def test_a_new_epoch_without_a_job_to_receive_or_to_release_ends_no_hold() -> None:
    """A member leaves whose jobs all go to w0: w2 keeps its jobs, and learns of the epoch when its hold ends."""
    conversation = Conversation()
    conversation.settle("w0", "w1", "w2")
    group = conversation.coordinator.group
    epoch, kept = group.currents[W2].member_epoch, group.currents[W2].assigned
    assert kept
    assert conversation.ask(short_heartbeat("w2", epoch, max_wait_ms=1_000)) is None
    conversation.beat("w1", -1, owned=NO_JOBS)
    target = {W0: TargetOfMember(jobs=JOBS - kept), W2: TargetOfMember(jobs=kept)}
    conversation.compute("w0", ComputedTarget(members=target))
    conversation.beat("w0", group.currents[W0].member_epoch, owned=group.currents[W0].assigned)
    assert group.assignment_epoch > epoch
    assert not conversation.coordinator.replies
    conversation.now_ms += 1_000
    conversation.coordinator.fire_due(conversation.now_ms)
    (response,) = conversation.coordinator.replies.values()
    assert isinstance(response, HeartbeatResponse)
    assert response.error is ConnectErrorCode.NONE
    assert int(response.member_epoch) == group.assignment_epoch


def test_a_removal_ends_a_hold_with_the_error() -> None:
    conversation = Conversation()
    conversation.settle("w0", "w1")
    assert conversation.ask(short_heartbeat("w1", 2, max_wait_ms=1_000)) is None
    removal = RemoveMember(reply_to=ReplyTo(0), member_id=W1)
    conversation.coordinator.handle(removal, conversation.now_ms)
    errors = [one.error for one in conversation.coordinator.replies.values() if isinstance(one, HeartbeatResponse)]
    assert errors == [ConnectErrorCode.UNKNOWN_MEMBER_ID]
