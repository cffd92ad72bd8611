"""Offsets of a group: which members may commit them, how they expire, and which remain after a restart."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coterie.groups.classic.log_records import decode_record, encode_record
from coterie.groups.classic.machine import step
from coterie.groups.classic.messages import GenerationWritten, GroupLoaded, OffsetExpiryTimer, Record, Request, Response
from coterie.groups.classic.offset_messages import (
    DeleteGroup,
    GroupRemoved,
    NewOffset,
    OffsetCommit,
    OffsetCommitResponse,
    OffsetDelete,
    OffsetDeleteResponse,
    OffsetFetch,
    OffsetFetchResponse,
    OffsetRemoved,
    OffsetWritten,
    PendingOffsetWritten,
    TopicDeleted,
    TopicId,
    TopicPartition,
    TransactionEnded,
    TxnOffsetCommit,
)
from coterie.groups.classic.state import ClassicGroupSettings, Group, GroupPhase, apply
from coterie.groups.transaction_messages import ProducerIdAndEpoch
from coterie.nouns.ids import GenerationId, GroupId, InstanceId, MemberId, ReplyTo
from coterie.wire.errors import ErrorCode
from coterie.wire.primitives import Writer
from tests.groups.classic.conftest import GroupDriver

T = TypeVar("T")
T0 = TopicPartition("t", 0)
T1 = TopicPartition("t", 1)
TOPIC_ID = TopicId(b"the topic's id..")
DAY_MS = 86_400_000
CHECK_MS = ClassicGroupSettings().offsets_retention_check_interval_ms
_numbers = map(ReplyTo, count(1_000_000))

slow_settings = partial(settings, suppress_health_check=[HealthCheck.too_slow])


def send(driver: GroupDriver, make: Callable[[ReplyTo], Request], response_type: type[T]) -> T:
    reply_to = next(_numbers)
    driver.feed(make(reply_to))
    response: Response = driver.responses[reply_to]
    assert isinstance(response, response_type)
    return response


def commit(
    driver: GroupDriver,
    *partitions: TopicPartition,
    offset: int = 5,
    member: str = "",
    generation: int = -1,
    instance: str | None = None,
    retention_ms: int | None = None,
    metadata: str = "",
) -> OffsetCommitResponse:
    return send(
        driver,
        lambda reply_to: OffsetCommit(
            reply_to=reply_to,
            member_id=MemberId(member),
            instance_id=None if instance is None else InstanceId(instance),
            generation=GenerationId(generation),
            retention_ms=retention_ms,
            offsets=tuple(
                NewOffset(partition=partition, topic_id=TOPIC_ID, offset=offset, leader_epoch=3, metadata=metadata)
                for partition in partitions or (T0,)
            ),
        ),
        OffsetCommitResponse,
    )


def commit_in_transaction(
    driver: GroupDriver,
    *partitions: TopicPartition,
    producer_id: int = 7,
    offset: int = 5,
    member: str = "",
    generation: int = -1,
    instance: str | None = None,
    metadata: str = "",
) -> OffsetCommitResponse:
    return send(
        driver,
        lambda reply_to: TxnOffsetCommit(
            reply_to=reply_to,
            producer=ProducerIdAndEpoch(producer_id, 0),
            member_id=MemberId(member),
            instance_id=None if instance is None else InstanceId(instance),
            generation=GenerationId(generation),
            offsets=tuple(
                NewOffset(partition=partition, topic_id=TOPIC_ID, offset=offset, leader_epoch=3, metadata=metadata)
                for partition in partitions or (T0,)
            ),
        ),
        OffsetCommitResponse,
    )


def end_transaction(driver: GroupDriver, *, commit: bool, producer_id: int = 7) -> None:
    driver.feed(TransactionEnded(producer_id=producer_id, is_commit=commit))


def unstable(driver: GroupDriver, *partitions: TopicPartition) -> frozenset[TopicPartition]:
    response = send(
        driver,
        lambda reply_to: OffsetFetch(reply_to=reply_to, partitions=partitions or None, requires_stable=True),
        OffsetFetchResponse,
    )
    return response.unstable_partitions


def fetch(driver: GroupDriver, *partitions: TopicPartition) -> dict[TopicPartition, int]:
    response = send(
        driver, lambda reply_to: OffsetFetch(reply_to=reply_to, partitions=partitions or None), OffsetFetchResponse
    )
    return {partition: committed.offset for partition, committed in response.offsets.items()}


def delete(driver: GroupDriver, *partitions: TopicPartition) -> OffsetDeleteResponse:
    return send(driver, lambda reply_to: OffsetDelete(reply_to=reply_to, partitions=partitions), OffsetDeleteResponse)


def delete_group(driver: GroupDriver) -> ErrorCode:
    reply_to = next(_numbers)
    driver.feed(DeleteGroup(reply_to=reply_to))
    return driver.responses[reply_to].error


def subscription(*topics: str) -> bytes:
    writer = Writer()
    writer.int16(1)
    writer.array_count(len(topics))
    for topic in topics:
        writer.string(topic)
    writer.nullable_bytes(None)
    return writer.getvalue()


def settle(driver: GroupDriver, *, protocol_type: str = "consumer", metadata: bytes = subscription("t")) -> str:
    """A stable group of one member, whose id is returned."""
    join = driver.join(protocol_type=protocol_type, protocols=(("range", metadata),), session_ms=10_000)
    driver.advance_clock(driver.limits.initial_rebalance_delay_ms)
    member = str(driver.join_response(join).member_id)
    driver.sync(member, assignments={member: b"all"})
    assert driver.phase is GroupPhase.STABLE
    return member


# -- which members may commit -----------------------------------------------------------------------------------------


def test_a_consumer_outside_any_group_may_commit_to_a_nonexistent_group(driver: GroupDriver) -> None:
    assert commit(driver).partition_errors == (ErrorCode.none,)
    assert fetch(driver) == {T0: 5}
    assert not driver.group.is_nonexistent


def test_a_nonexistent_group_has_no_offsets_and_no_generations(driver: GroupDriver) -> None:
    assert fetch(driver) == {} == fetch(driver, T0)
    assert commit(driver, generation=3, member="m").error is ErrorCode.group_id_not_found
    assert delete(driver, T0).error is ErrorCode.group_id_not_found
    assert delete_group(driver) is ErrorCode.group_id_not_found
    assert driver.log == []
    assert not driver.group.deadlines


def test_a_group_with_an_empty_id_has_offsets_too(driver: GroupDriver) -> None:
    driver.group = Group(GroupId(""), driver.limits)
    assert commit(driver).error is ErrorCode.none
    assert fetch(driver) == {T0: 5}
    assert delete(driver, T0).error is ErrorCode.invalid_group_id


def test_only_members_may_commit_to_a_group_with_members(driver: GroupDriver) -> None:
    member = settle(driver)
    assert commit(driver).error is ErrorCode.unknown_member_id
    assert commit(driver, member="ghost", generation=1).error is ErrorCode.unknown_member_id
    assert commit(driver, member=member, generation=0).error is ErrorCode.illegal_generation
    assert commit(driver, member=member, generation=-1).error is ErrorCode.illegal_generation
    assert commit(driver, member=member, generation=1).error is ErrorCode.none


def test_a_former_member_cannot_commit_to_the_empty_group(driver: GroupDriver) -> None:
    member = settle(driver)
    driver.leave(member)
    assert commit(driver, member=member, generation=1).error is ErrorCode.unknown_member_id
    assert commit(driver).error is ErrorCode.none


def test_in_the_join_phase_members_of_the_last_generation_may_commit(driver: GroupDriver) -> None:
    member = settle(driver)
    driver.join(protocol_type="consumer", protocols=(("range", subscription("t")),))
    assert driver.phase is GroupPhase.PREPARING_REBALANCE
    assert commit(driver, member=member, generation=1).error is ErrorCode.none


def test_no_member_may_commit_in_the_sync_phase(driver: GroupDriver) -> None:
    member = settle(driver)
    driver.join(member, protocol_type="consumer", protocols=(("range", subscription("t")),))
    assert driver.phase is GroupPhase.COMPLETING_REBALANCE
    assert commit(driver, member=member, generation=2).error is ErrorCode.rebalance_in_progress
    assert commit(driver, member=member, generation=1).error is ErrorCode.illegal_generation


def test_a_replaced_static_member_is_fenced(driver: GroupDriver) -> None:
    join = driver.join(protocol_type="consumer", protocols=(("range", subscription("t")),), instance="i")
    driver.advance_clock(driver.limits.initial_rebalance_delay_ms)
    previous = str(driver.join_response(join).member_id)
    driver.sync(previous, assignments={previous: b"all"})
    assert commit(driver, member=previous, generation=1, instance="i").error is ErrorCode.none
    again = driver.join(protocol_type="consumer", protocols=(("range", subscription("t")),), instance="i")
    current = str(driver.join_response(again).member_id)
    assert commit(driver, member=previous, generation=1, instance="i").error is ErrorCode.fenced_instance_id
    assert commit(driver, member=current, generation=1, instance="other").error is ErrorCode.unknown_member_id
    assert commit(driver, member=current, generation=1, instance="i").error is ErrorCode.none


def test_a_commit_extends_the_members_session(driver: GroupDriver) -> None:
    member = settle(driver)
    for _ in range(5):
        driver.advance_clock(9_000)
        assert commit(driver, member=member, generation=1).error is ErrorCode.none
    driver.advance_clock(10_000)
    assert driver.phase is GroupPhase.EMPTY


# -- the committed values ---------------------------------------------------------------------------------------------


def test_of_several_offsets_for_a_partition_the_last_is_kept_and_each_gets_an_error_code(driver: GroupDriver) -> None:
    offsets = tuple(
        NewOffset(partition=T0, topic_id=None, offset=offset, leader_epoch=3, metadata="m") for offset in (1, 2, 3)
    )
    response = send(
        driver,
        lambda reply_to: OffsetCommit(
            reply_to=reply_to,
            member_id=MemberId(""),
            instance_id=None,
            generation=GenerationId(-1),
            retention_ms=None,
            offsets=offsets,
        ),
        OffsetCommitResponse,
    )
    assert response.partition_errors == (ErrorCode.none,) * 3
    assert fetch(driver) == {T0: 3}
    assert len(driver.log) == 1


@pytest.mark.parametrize("text", ["x" * 4096, "\U0001f600" * 2048])
def test_metadata_may_have_4096_java_characters(driver: GroupDriver, text: str) -> None:
    assert commit(driver, metadata=text).partition_errors == (ErrorCode.none,)
    assert commit(driver, metadata=text + "x", offset=6).partition_errors == (ErrorCode.offset_metadata_too_large,)
    assert fetch(driver) == {T0: 5}


def test_a_negative_offset_is_accepted(driver: GroupDriver) -> None:
    commit(driver, offset=-7)
    assert fetch(driver, T0, T1) == {T0: -7}


# -- deleting ---------------------------------------------------------------------------------------------------------


def test_offsets_of_topics_that_a_consumer_reads_cannot_be_deleted(driver: GroupDriver) -> None:
    member = settle(driver)
    commit(driver, T0, TopicPartition("other", 0), member=member, generation=1)
    deleted = delete(driver, T0, TopicPartition("other", 0), TopicPartition("other", 1))
    assert deleted.partition_errors == (ErrorCode.group_subscribed_to_topic, ErrorCode.none, ErrorCode.none)
    assert fetch(driver) == {T0: 5}


def test_consumers_with_unreadable_metadata_keep_all_their_offsets(driver: GroupDriver) -> None:
    member = settle(driver, metadata=b"\x7f")
    commit(driver, member=member, generation=1)
    assert delete(driver, TopicPartition("other", 0)).partition_errors == (ErrorCode.group_subscribed_to_topic,)


def test_groups_of_another_protocol_type_keep_their_offsets_while_they_have_members(driver: GroupDriver) -> None:
    member = settle(driver, protocol_type="sheep", metadata=subscription("t"))
    commit(driver, member=member, generation=1)
    assert delete(driver, T0).error is ErrorCode.non_empty_group
    driver.leave(member)
    assert delete(driver, T0).partition_errors == (ErrorCode.none,)
    assert fetch(driver) == {}


def test_a_group_with_members_cannot_be_deleted_and_an_empty_one_loses_all_its_offsets(driver: GroupDriver) -> None:
    member = settle(driver)
    commit(driver, T0, T1, member=member, generation=1)
    assert delete_group(driver) is ErrorCode.non_empty_group
    driver.leave(member)
    assert delete_group(driver) is ErrorCode.none
    assert driver.log[-3:] == [OffsetRemoved(partition=T0), OffsetRemoved(partition=T1), GroupRemoved()]
    assert driver.group.is_nonexistent
    assert not driver.group.deadlines


def test_a_deleted_group_can_be_joined_as_a_new_one(driver: GroupDriver) -> None:
    driver.leave(settle(driver))
    delete_group(driver)
    settle(driver, protocol_type="sheep")
    assert (driver.group.generation, driver.group.protocol_type) == (1, "sheep")


def test_offsets_of_a_deleted_topic_are_removed_even_if_a_member_reads_it(driver: GroupDriver) -> None:
    member = settle(driver)
    commit(driver, T0, T1, TopicPartition("u", 0), member=member, generation=1)
    driver.feed(TopicDeleted(topic="t"))
    assert fetch(driver) == {TopicPartition("u", 0): 5}


# -- expiry -----------------------------------------------------------------------------------------------------------


def test_offsets_of_a_group_that_never_had_members_expire_one_by_one(driver: GroupDriver) -> None:
    commit(driver, T0)
    driver.advance_clock(3 * DAY_MS)
    commit(driver, T1)
    driver.advance_clock(4 * DAY_MS - CHECK_MS)
    assert fetch(driver) == {T0: 5, T1: 5}
    driver.advance_clock(2 * CHECK_MS)
    assert fetch(driver) == {T1: 5}
    driver.advance_clock(3 * DAY_MS)
    assert driver.group.is_nonexistent
    assert driver.log[-1] == GroupRemoved()
    assert not driver.group.deadlines


def test_offsets_of_an_empty_group_expire_except_those_committed_since(driver: GroupDriver) -> None:
    member = settle(driver)
    commit(driver, T0, member=member, generation=1)
    driver.leave(member)
    driver.advance_clock(6 * DAY_MS)
    commit(driver, T1)
    driver.advance_clock(DAY_MS + CHECK_MS)
    assert fetch(driver) == {T1: 5}
    driver.advance_clock(6 * DAY_MS)
    assert driver.group.is_nonexistent


def test_offsets_of_topics_that_a_member_reads_do_not_expire_and_others_do(driver: GroupDriver) -> None:
    member = settle(driver)
    commit(driver, T0, TopicPartition("other", 0), member=member, generation=1)
    for _ in range(7 * DAY_MS // 9_000 + 100):
        driver.advance_clock(9_000)
        assert driver.heartbeat(member) is ErrorCode.none
    assert fetch(driver) == {T0: 5}


def test_a_group_of_a_third_protocol_type_keeps_all_its_offsets_while_it_has_members(driver: GroupDriver) -> None:
    member = settle(driver, protocol_type="sheep", metadata=b"\xff\xff")
    commit(driver, T0, member=member, generation=1)
    driver.now_ms += 30 * DAY_MS  # as if it had sent heartbeats all the time
    assert driver.heartbeat(member) is ErrorCode.none
    driver.advance_clock(5_000)
    assert fetch(driver) == {T0: 5}
    driver.leave(member)
    driver.advance_clock(7 * DAY_MS + CHECK_MS)
    assert driver.group.is_nonexistent


def test_a_client_may_request_a_shorter_retention(driver: GroupDriver) -> None:
    commit(driver, T0, retention_ms=DAY_MS)
    commit(driver, T1)
    driver.advance_clock(DAY_MS + CHECK_MS)
    assert fetch(driver) == {T1: 5}


def test_an_empty_group_without_offsets_is_removed_at_the_next_expiry_check(driver: GroupDriver) -> None:
    driver.leave(settle(driver))
    driver.advance_clock(CHECK_MS)
    assert driver.group.is_nonexistent


def test_an_empty_group_with_a_pending_member_id_is_not_removed(driver: GroupDriver) -> None:
    driver.leave(settle(driver))
    driver.advance_clock(driver.group.deadlines[OffsetExpiryTimer()] - driver.now_ms - 1)
    new_member_id = driver.join_response(driver.join(requires_known_member_id=True)).member_id
    driver.advance_clock(1)
    assert driver.is_parked(driver.join(new_member_id, requires_known_member_id=True))


def test_expiry_times_continue_after_a_restart(driver: GroupDriver) -> None:
    member = settle(driver)
    commit(driver, member=member, generation=1)
    driver.leave(member)
    driver.advance_clock(4 * DAY_MS)
    driver.restart()
    assert fetch(driver) == {T0: 5}
    driver.advance_clock(3 * DAY_MS + CHECK_MS)
    assert driver.group.is_nonexistent


def test_groups_loaded_together_check_their_offsets_at_different_times(driver: GroupDriver) -> None:
    commit(driver)
    (record,) = driver.log
    check_times_ms: set[int] = set()
    for number in range(20):
        group = Group(GroupId(f"g{number}"), driver.limits)
        apply(group, record)
        step(group, GroupLoaded(), now_ms=0)
        check_times_ms.add(group.deadlines[OffsetExpiryTimer()])
    assert len(check_times_ms) == 20
    assert all(CHECK_MS <= at_ms < 2 * CHECK_MS for at_ms in check_times_ms)


# -- transactions -----------------------------------------------------------------------------------------------------


def test_pending_offsets_count_from_the_commit_of_their_transaction_on(driver: GroupDriver) -> None:
    commit(driver, T0, offset=1)
    assert commit_in_transaction(driver, T0, T1, offset=2).partition_errors == (ErrorCode.none, ErrorCode.none)
    assert fetch(driver) == {T0: 1}
    assert unstable(driver) == {T0}, "of all partitions, those with a committed offset are listed"
    assert unstable(driver, T0, T1, TopicPartition("u", 0)) == {T0, T1}
    driver.restart()
    assert unstable(driver, T0, T1) == {T0, T1}
    end_transaction(driver, commit=True, producer_id=8)
    assert unstable(driver, T0, T1) == {T0, T1}, "another producer's transaction has ended"
    end_transaction(driver, commit=True)
    assert fetch(driver) == {T0: 2, T1: 2}
    assert not unstable(driver, T0, T1)


def test_an_aborted_transaction_leaves_no_offset_and_no_group(driver: GroupDriver) -> None:
    commit_in_transaction(driver)
    assert driver.group.has_only_offsets
    end_transaction(driver, commit=False)
    assert fetch(driver) == {}
    assert driver.group.is_nonexistent
    assert not driver.group.deadlines


@pytest.mark.parametrize("is_tombstone", [False, True])
def test_a_later_record_without_a_transaction_overrides_pending_offsets(
    driver: GroupDriver, is_tombstone: bool
) -> None:
    commit_in_transaction(driver, T0, T1, offset=2)
    if is_tombstone:
        delete(driver, T0)
    else:
        commit(driver, T0, offset=3)
    assert unstable(driver, T0, T1) == {T1}
    end_transaction(driver, commit=True)
    assert fetch(driver) == ({T1: 2} if is_tombstone else {T0: 3, T1: 2})


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_of_two_transactions_the_later_offset_counts_whichever_ends_first(
    driver: GroupDriver, order: tuple[int, int]
) -> None:
    commit_in_transaction(driver, T0, producer_id=1, offset=10)
    commit_in_transaction(driver, T0, producer_id=2, offset=20)
    end_transaction(driver, commit=True, producer_id=order[0])
    assert unstable(driver, T0) == ({T0} if order[0] == 1 else set())
    end_transaction(driver, commit=True, producer_id=order[1])
    assert fetch(driver) == {T0: 20}


def test_an_aborted_later_offset_gives_way_to_an_earlier_one(driver: GroupDriver) -> None:
    commit_in_transaction(driver, T0, producer_id=1, offset=10)
    commit_in_transaction(driver, T0, producer_id=2, offset=20)
    end_transaction(driver, commit=False, producer_id=2)
    assert unstable(driver, T0) == {T0}
    end_transaction(driver, commit=True, producer_id=1)
    assert fetch(driver) == {T0: 10}


def test_of_several_commits_in_one_transaction_the_last_counts(driver: GroupDriver) -> None:
    for offset in (1, 2):
        commit_in_transaction(driver, T0, offset=offset)
    end_transaction(driver, commit=True)
    assert fetch(driver) == {T0: 2}


def test_who_may_commit_in_a_transaction(driver: GroupDriver) -> None:
    assert commit_in_transaction(driver, generation=3, member="m").error is ErrorCode.illegal_generation
    assert driver.group.is_nonexistent
    member = settle(driver)
    generation = driver.group.generation
    assert commit_in_transaction(driver, member=member, generation=generation).error is ErrorCode.none
    assert commit_in_transaction(driver, member=member, generation=7).error is ErrorCode.illegal_generation
    assert commit_in_transaction(driver, member="stranger", generation=generation).error is ErrorCode.unknown_member_id
    assert commit_in_transaction(driver, member=member, generation=generation, instance="i").error is (
        ErrorCode.unknown_member_id
    )
    assert commit_in_transaction(driver).error is ErrorCode.none, "old versions send neither member nor generation"


def test_a_replaced_static_member_cannot_commit_in_a_transaction(driver: GroupDriver) -> None:
    join = driver.join(protocol_type="consumer", instance="i")
    driver.advance_clock(driver.limits.initial_rebalance_delay_ms)
    former = str(driver.join_response(join).member_id)
    driver.sync(former, assignments={former: b"all"})
    driver.join(protocol_type="consumer", instance="i")
    answer = commit_in_transaction(driver, member=former, generation=driver.group.generation, instance="i")
    assert answer.error is ErrorCode.fenced_instance_id


def test_in_the_sync_phase_a_member_may_commit_in_a_transaction(driver: GroupDriver) -> None:
    join = driver.join(protocol_type="consumer")
    driver.advance_clock(driver.limits.initial_rebalance_delay_ms)
    member = str(driver.join_response(join).member_id)
    assert driver.phase is GroupPhase.COMPLETING_REBALANCE
    assert commit_in_transaction(driver, member=member, generation=driver.group.generation).error is ErrorCode.none


def test_a_pending_offset_with_too_long_metadata_is_left_out(driver: GroupDriver) -> None:
    response = commit_in_transaction(driver, metadata="x" * 4097)
    assert response.partition_errors == (ErrorCode.offset_metadata_too_large,)
    assert driver.group.is_nonexistent


def test_a_deletion_of_the_group_or_of_the_topic_drops_pending_offsets(driver: GroupDriver) -> None:
    commit_in_transaction(driver, T0, TopicPartition("u", 0))
    driver.feed(TopicDeleted(topic="t"))
    driver.restart()
    end_transaction(driver, commit=True)
    assert fetch(driver) == {TopicPartition("u", 0): 5}
    commit_in_transaction(driver, T0)
    assert delete_group(driver) is ErrorCode.none
    assert driver.group.is_nonexistent
    end_transaction(driver, commit=True)
    assert driver.group.is_nonexistent


def test_a_pending_offset_keeps_the_group_and_the_committed_offset_from_expiry(driver: GroupDriver) -> None:
    commit(driver, T0)
    commit(driver, T1)
    commit_in_transaction(driver, T0, offset=6)
    driver.advance_clock(8 * DAY_MS)
    assert fetch(driver) == {T0: 5}
    driver.restart()
    driver.advance_clock(8 * DAY_MS)
    assert fetch(driver) == {T0: 5}
    end_transaction(driver, commit=False)
    driver.advance_clock(8 * DAY_MS)
    assert driver.group.is_nonexistent


def test_offsets_that_a_transaction_has_committed_expire(driver: GroupDriver) -> None:
    commit_in_transaction(driver)
    end_transaction(driver, commit=True)
    assert fetch(driver) == {T0: 5}
    driver.advance_clock(8 * DAY_MS)
    assert driver.group.is_nonexistent


# -- random histories -------------------------------------------------------------------------------------------------

PARTITIONS = st.sampled_from([T0, T1, TopicPartition("u", 0)])
moves = st.one_of(
    st.tuples(st.sampled_from(["commit", "commit for a day"]), PARTITIONS, st.integers(-1, 2)),
    st.tuples(st.sampled_from(["delete", "topic gone"]), PARTITIONS, st.just(0)),
    st.tuples(st.sampled_from(["commit in transaction", "commit transaction"]), PARTITIONS, st.integers(0, 2)),
    st.tuples(st.just("abort transaction"), PARTITIONS, st.integers(0, 2)),
    st.tuples(st.sampled_from(["join", "sync", "leave", "delete group", "restart"]), st.just(T0), st.just(0)),
    st.tuples(st.just("wait"), st.just(T0), st.sampled_from([1_000, 20_000, DAY_MS, 8 * DAY_MS])),
)


def run_transaction_move(driver: GroupDriver, kind: str, partition: TopicPartition, producer_id: int) -> None:
    if kind == "commit in transaction":
        commit_in_transaction(driver, partition, producer_id=producer_id, offset=len(driver.log))
    else:
        end_transaction(driver, commit=kind == "commit transaction", producer_id=producer_id)


def run_history(driver: GroupDriver, history: Sequence[tuple[str, TopicPartition, int]]) -> None:
    for kind, partition, number in history:
        member = next(iter(driver.group.members), "")
        match kind:
            case "commit" | "commit for a day":
                generation = -1 if number < 0 else driver.group.generation - number + 1
                retention_ms = None if kind == "commit" else DAY_MS
                commit(driver, partition, member=member, generation=generation, retention_ms=retention_ms)
            case "commit in transaction" | "commit transaction" | "abort transaction":
                run_transaction_move(driver, kind, partition, number)
            case "delete":
                delete(driver, partition)
            case "topic gone":
                driver.feed(TopicDeleted(topic=partition[0]))
            case "join":
                driver.join(protocol_type="consumer", protocols=(("range", subscription("t")),))
            case "sync" if member:
                driver.sync(member, assignments={member: b"all"})
            case "leave" if member:
                driver.leave(member)
            case "delete group":
                delete_group(driver)
            case "restart":
                driver.restart()
            case "wait":
                driver.advance_clock(number)
            case _:
                pass


@given(st.lists(moves, max_size=30))
@slow_settings(max_examples=150)
def test_the_last_record_of_each_key_is_sufficient_to_load_a_group(
    history: list[tuple[str, TopicPartition, int]],
) -> None:
    driver = GroupDriver(ClassicGroupSettings())
    run_history(driver, history)
    last: dict[bytes, bytes | None] = {}
    for record in without_transactions(driver.log):
        key, value = encode_record(GroupId("fleet"), record)
        last[key] = value
    loaded = Group(GroupId("fleet"), driver.limits)
    for key, value in sorted(last.items()):
        decoded = decode_record(key, value)
        assert decoded is not None
        apply(loaded, decoded[1])
    assert loaded.offsets == driver.group.offsets
    assert loaded.generation_record == driver.group.generation_record


def without_transactions(log: Sequence[Record | TransactionEnded]) -> list[Record]:
    """The records of ``log`` that count, as a compaction sees them: committed offsets at the places at which they were
    written, and neither markers nor the records of open and aborted transactions."""
    counting: list[Record] = []
    for at, record in enumerate(log):
        if isinstance(record, PendingOffsetWritten):
            ends = (
                one.is_commit
                for one in log[at:]
                if isinstance(one, TransactionEnded) and one.producer_id == record.producer.producer_id
            )
            if next(ends, False):
                counting.append(OffsetWritten(partition=record.partition, committed_offset=record.committed_offset))
        elif not isinstance(record, TransactionEnded):
            counting.append(record)
    return counting


@given(st.lists(moves, max_size=30))
@slow_settings(max_examples=100)
def test_a_replay_of_the_log_gives_the_same_offsets_and_pending_offsets(
    history: list[tuple[str, TopicPartition, int]],
) -> None:
    driver = GroupDriver(ClassicGroupSettings())
    run_history(driver, history)
    before = driver.group
    driver.restart()
    assert driver.group.offsets == before.offsets
    assert driver.group.pending_offsets == before.pending_offsets


@given(st.lists(moves, max_size=30))
@slow_settings(max_examples=60)
def test_a_group_without_requests_is_removed_eventually(history: list[tuple[str, TopicPartition, int]]) -> None:
    driver = GroupDriver(ClassicGroupSettings())
    run_history(driver, history)
    for producer_id in range(3):
        end_transaction(driver, commit=False, producer_id=producer_id)
    driver.advance_clock(30 * DAY_MS)
    assert driver.group.is_nonexistent
    assert not driver.group.deadlines
    assert not {OffsetWritten, GenerationWritten} & {type(record) for record in driver.log[-1:]}
