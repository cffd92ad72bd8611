"""A trace keeps a small summary even of a large event, with the member's id."""

import typing
from typing import Any

import pytest

from coterie.groups.connect.messages import (
    CheckOffsetAccess,
    ConnectionClosed,
    DeleteGroup,
    DescribeGroup,
    Event,
    GroupLoaded,
    PrepareAssignment,
    ReleaseHeldResponse,
    RemoveMember,
    SessionTimer,
    SetGroupConfigs,
    TargetComputed,
)
from coterie.groups.connect.summary import ID_LENGTH_MAX, summarize_event
from coterie.groups.effects import TimerFired
from coterie.nouns.ids import ConfigOffset, GroupEpoch, MemberEpoch, MemberId, ReplyTo, WorkerUrl
from coterie.nouns.jobs import Jobs
from coterie.nouns.target_assignments import ComputedTarget, GroupSnapshot, TargetOfMember
from tests.groups.connect.builders import heartbeat, install
from tests.groups.connect.world import jobs_of

REPLY_TO = ReplyTo(1)
LONG = MemberId("x" * 100_000 + "-uuid")
THIRD = GroupEpoch(3)
MANY = jobs_of(1, 1_000)
TARGET = ComputedTarget(members={LONG: TargetOfMember(jobs=MANY)})
SNAPSHOT = GroupSnapshot(group_epoch=THIRD, assignor="a", members=(), config_offset=ConfigOffset(-1), configured=Jobs())

EVENTS: list[tuple[Event, list[Any]]] = [
    (heartbeat(LONG, 5, owned=MANY, url=WorkerUrl("u" * 100_000)), ["Heartbeat", 5, len(MANY)]),
    (heartbeat(LONG, 5, owned=None), ["Heartbeat", "unchanged"]),
    (TimerFired(key=SessionTimer(member_id=LONG)), ["TimerFired", "SessionTimer"]),
    (ReleaseHeldResponse(reply_to=REPLY_TO, member_id=LONG), ["ReleaseHeldResponse"]),
    (PrepareAssignment(reply_to=REPLY_TO, member_id=LONG, member_epoch=MemberEpoch(5)), ["PrepareAssignment", 5]),
    (install(LONG, 5, SNAPSHOT, TARGET), ["InstallAssignment", 3, "error 0", "1 members"]),
    (TargetComputed(group_epoch=THIRD, target=TARGET), ["TargetComputed", 3, "1 members"]),
    (TargetComputed(group_epoch=THIRD, target=None, assignor_error="e" * 100_000), ["TargetComputed", 3, "failed"]),
    (ConnectionClosed(connection_number=7, member_ids=(LONG,) * 1_000), ["ConnectionClosed", 7, "1000 members"]),
    (RemoveMember(reply_to=REPLY_TO, member_id=LONG), ["RemoveMember"]),
    (
        CheckOffsetAccess(reply_to=REPLY_TO, member_id=LONG, member_epoch=MemberEpoch(5), is_commit=True),
        ["CheckOffsetAccess", 5],
    ),
    (SetGroupConfigs(reply_to=REPLY_TO, configs={"k" * 100_000: "v"}), ["SetGroupConfigs", "1 configs"]),
    (DescribeGroup(reply_to=REPLY_TO), ["DescribeGroup"]),
    (DeleteGroup(reply_to=REPLY_TO), ["DeleteGroup"]),
    (GroupLoaded(), ["GroupLoaded"]),
]


def test_every_event_has_a_case() -> None:
    assert {type(event) for event, _ in EVENTS} == {typing.get_origin(one) or one for one in typing.get_args(Event)}


@pytest.mark.parametrize(("event", "expected"), EVENTS)
def test_a_summary_is_small_and_contains_the_member_and_the_counts(event: Event, expected: list[Any]) -> None:
    kept = summarize_event(event)
    assert all(part in kept for part in expected)
    assert all(isinstance(part, int) or len(part) <= ID_LENGTH_MAX for part in kept)
    if hasattr(event, "member_id"):
        assert any(isinstance(part, str) and part.endswith("x-uuid") for part in kept)
