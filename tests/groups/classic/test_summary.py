"""A trace keeps a small summary even of a large event, with the member's id."""

import typing
from typing import Any

import pytest

from coterie.groups.classic.messages import (
    DescribeGroup,
    Event,
    GroupLoaded,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    LeavingMember,
    MemberProtocol,
    SessionTimer,
    SyncGroup,
)
from coterie.groups.classic.offset_messages import (
    DeleteGroup,
    NewOffset,
    OffsetCommit,
    OffsetDelete,
    OffsetFetch,
    TopicDeleted,
    TransactionEnded,
    TxnOffsetCommit,
)
from coterie.groups.classic.summary import ID_LENGTH_MAX, summarize_event
from coterie.groups.effects import TimerFired
from coterie.groups.transaction_messages import ProducerIdAndEpoch
from coterie.nouns.ids import GenerationId, InstanceId, MemberId, ReplyTo, TopicPartition

REPLY_TO = ReplyTo(1)
LONG_MEMBER_ID = MemberId("x" * 100_000 + "-uuid")
INSTANCE = InstanceId("y" * 100_000 + "-instance")
THIRD = GenerationId(3)
PARTITIONS = tuple(TopicPartition("z" * 249, number) for number in range(1_000))
OFFSETS = tuple(
    NewOffset(partition=one, topic_id=None, offset=1, leader_epoch=1, metadata="m" * 100) for one in PARTITIONS
)

EVENTS: list[tuple[Event, list[Any]]] = [
    (Heartbeat(reply_to=REPLY_TO, member_id=LONG_MEMBER_ID, generation=THIRD), ["Heartbeat", 3]),
    (
        JoinGroup(
            reply_to=REPLY_TO, member_id=LONG_MEMBER_ID, fresh_member_id=LONG_MEMBER_ID,
            requires_known_member_id=True, client_id="c" * 100_000,
            client_host="h", session_timeout_ms=1, rebalance_timeout_ms=1, protocol_type="connect",
            protocols=(MemberProtocol(name="p" * 100_000, metadata=bytes(100_000)),), instance_id=INSTANCE,
        ),
        ["JoinGroup", "1 protocols"],
    ),
    (
        SyncGroup(
            reply_to=REPLY_TO, member_id=LONG_MEMBER_ID, generation=THIRD, assignments=((LONG_MEMBER_ID,
            bytes(1_000_000)),), instance_id=INSTANCE
        ),
        ["SyncGroup", 3, "1 assignments"],
    ),
    (
        LeaveGroup(reply_to=REPLY_TO, members=(LeavingMember(member_id=MemberId(""), instance_id=INSTANCE),) * 1_000),
        ["LeaveGroup", "1000 members"],
    ),
    (LeaveGroup(reply_to=REPLY_TO, members=()), ["LeaveGroup", "0 members"]),
    (DescribeGroup(reply_to=REPLY_TO), ["DescribeGroup"]),
    (
        OffsetCommit(
            reply_to=REPLY_TO, member_id=LONG_MEMBER_ID, instance_id=INSTANCE, generation=THIRD, retention_ms=None,
            offsets=OFFSETS
        ),
        ["OffsetCommit", 3, "1000 offsets"],
    ),
    (
        TxnOffsetCommit(
            reply_to=REPLY_TO, producer=ProducerIdAndEpoch(7, 2), member_id=LONG_MEMBER_ID, instance_id=INSTANCE,
            generation=THIRD, offsets=OFFSETS
        ),
        ["TxnOffsetCommit", 3, 7, 2, "1000 offsets"],
    ),
    (TransactionEnded(producer_id=7, is_commit=True), ["TransactionEnded", 7, "commit"]),
    (OffsetFetch(reply_to=REPLY_TO, partitions=PARTITIONS), ["OffsetFetch", "1000 partitions"]),
    (OffsetFetch(reply_to=REPLY_TO, partitions=None), ["OffsetFetch", "all"]),
    (OffsetDelete(reply_to=REPLY_TO, partitions=PARTITIONS), ["OffsetDelete", "1000 partitions"]),
    (DeleteGroup(reply_to=REPLY_TO), ["DeleteGroup"]),
    (TimerFired(key=SessionTimer(member_id=LONG_MEMBER_ID)), ["TimerFired", "SessionTimer"]),
    (TopicDeleted(topic="t" * 100_000), ["TopicDeleted"]),
    (GroupLoaded(), ["GroupLoaded"]),
]  # fmt: skip


def test_every_event_has_a_case() -> None:
    assert {type(event) for event, _ in EVENTS} == {typing.get_origin(one) or one for one in typing.get_args(Event)}


@pytest.mark.parametrize(("event", "expected"), EVENTS)
def test_a_summary_is_small_and_contains_the_member_and_the_counts(event: Event, expected: list[Any]) -> None:
    kept = summarize_event(event)
    assert all(part in kept for part in expected)
    assert all(isinstance(part, int) or len(part) <= ID_LENGTH_MAX for part in kept)
    if hasattr(event, "member_id"):
        assert any(isinstance(part, str) and part.endswith("x-uuid") for part in kept)
