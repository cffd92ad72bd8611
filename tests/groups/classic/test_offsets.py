"""Offsets of a group: who may commit them, what becomes of them in time, and what is left after a restart."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coterie.groups.classic.lines import decode_line, encode_line
from coterie.groups.classic.machine import step
from coterie.groups.classic.messages import ExpiryTimer, GenerationWritten, GroupLoaded, Request, Response
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
    TopicDeleted,
    TopicId,
    TopicPartition,
)
from coterie.groups.classic.state import Group, Limits, Phase, apply
from coterie.nouns.ids import Generation, GroupId, InstanceId, MemberId, ReplyTo
from coterie.wire.errors import ErrorCode
from coterie.wire.primitives import Writer
from tests.groups.classic.conftest import Play

T = TypeVar("T")
T0 = TopicPartition("t", 0)
T1 = TopicPartition("t", 1)
TOPIC_ID = TopicId(b"the topic's id..")
DAY_MS = 86_400_000
CHECK_MS = Limits().offsets_retention_check_ms
_numbers = map(ReplyTo, count(1_000_000))

patient = partial(settings, suppress_health_check=[HealthCheck.too_slow])


def ask(play: Play, make: Callable[[ReplyTo], Request], answer: type[T]) -> T:
    reply_to = next(_numbers)
    play.feed(make(reply_to))
    response: Response = play.answers[reply_to]
    assert isinstance(response, answer)
    return response


def commit(
    play: Play,
    *partitions: TopicPartition,
    offset: int = 5,
    member: str = "",
    generation: int = -1,
    instance: str | None = None,
    retention_ms: int | None = None,
    metadata: str = "",
) -> OffsetCommitResponse:
    return ask(
        play,
        lambda reply_to: OffsetCommit(
            reply_to=reply_to,
            member_id=MemberId(member),
            instance_id=None if instance is None else InstanceId(instance),
            generation=Generation(generation),
            retention_ms=retention_ms,
            offsets=tuple(
                NewOffset(partition=partition, topic_id=TOPIC_ID, offset=offset, leader_epoch=3, metadata=metadata)
                for partition in partitions or (T0,)
            ),
        ),
        OffsetCommitResponse,
    )


def fetch(play: Play, *partitions: TopicPartition) -> dict[TopicPartition, int]:
    response = ask(
        play, lambda reply_to: OffsetFetch(reply_to=reply_to, partitions=partitions or None), OffsetFetchResponse
    )
    return {partition: committed.offset for partition, committed in response.offsets.items()}


def delete(play: Play, *partitions: TopicPartition) -> OffsetDeleteResponse:
    return ask(play, lambda reply_to: OffsetDelete(reply_to=reply_to, partitions=partitions), OffsetDeleteResponse)


def delete_group(play: Play) -> ErrorCode:
    reply_to = next(_numbers)
    play.feed(DeleteGroup(reply_to=reply_to))
    return play.answers[reply_to].error


def subscription(*topics: str) -> bytes:
    writer = Writer()
    writer.int16(1)
    writer.count(len(topics))
    for topic in topics:
        writer.string(topic)
    writer.nullable_bytes(None)
    return writer.getvalue()


def settle(play: Play, *, protocol_type: str = "consumer", metadata: bytes = subscription("t")) -> str:
    """A stable group of one member, whose id is returned."""
    join = play.join(protocol_type=protocol_type, protocols=(("range", metadata),), session_ms=10_000)
    play.wait(play.limits.initial_rebalance_delay_ms)
    member = str(play.joined(join).member_id)
    play.sync(member, assignments={member: b"all"})
    assert play.phase is Phase.STABLE
    return member


# -- who may commit ---------------------------------------------------------------------------------------------------


def test_a_consumer_that_is_no_member_commits_to_a_group_that_nobody_was_ever_in(play: Play) -> None:
    assert commit(play).errors == (ErrorCode.none,)
    assert fetch(play) == {T0: 5}
    assert not play.group.is_unheard_of


def test_a_group_that_nobody_has_heard_of_has_no_offsets_and_no_generations(play: Play) -> None:
    assert fetch(play) == {} == fetch(play, T0)
    assert commit(play, generation=3, member="m").error is ErrorCode.group_id_not_found
    assert delete(play, T0).error is ErrorCode.group_id_not_found
    assert delete_group(play) is ErrorCode.group_id_not_found
    assert play.log == []
    assert not play.group.deadlines


def test_the_group_without_a_name_has_offsets_too(play: Play) -> None:
    play.group = Group(GroupId(""), play.limits)
    assert commit(play).error is ErrorCode.none
    assert fetch(play) == {T0: 5}
    assert delete(play, T0).error is ErrorCode.invalid_group_id


def test_who_is_no_member_cannot_commit_while_somebody_is(play: Play) -> None:
    member = settle(play)
    assert commit(play).error is ErrorCode.unknown_member_id
    assert commit(play, member="ghost", generation=1).error is ErrorCode.unknown_member_id
    assert commit(play, member=member, generation=0).error is ErrorCode.illegal_generation
    assert commit(play, member=member, generation=-1).error is ErrorCode.illegal_generation
    assert commit(play, member=member, generation=1).error is ErrorCode.none


def test_a_member_of_an_earlier_life_cannot_commit_to_the_empty_group(play: Play) -> None:
    member = settle(play)
    play.leave(member)
    assert commit(play, member=member, generation=1).error is ErrorCode.unknown_member_id
    assert commit(play).error is ErrorCode.none


def test_while_members_rejoin_those_of_the_last_generation_may_commit(play: Play) -> None:
    member = settle(play)
    play.join(protocol_type="consumer", protocols=(("range", subscription("t")),))
    assert play.phase is Phase.PREPARING_REBALANCE
    assert commit(play, member=member, generation=1).error is ErrorCode.none


def test_nobody_commits_between_joining_and_knowing_what_is_its_own(play: Play) -> None:
    member = settle(play)
    play.join(member, protocol_type="consumer", protocols=(("range", subscription("t")),))
    assert play.phase is Phase.COMPLETING_REBALANCE
    assert commit(play, member=member, generation=2).error is ErrorCode.rebalance_in_progress
    assert commit(play, member=member, generation=1).error is ErrorCode.illegal_generation


def test_a_static_member_that_was_replaced_is_fenced(play: Play) -> None:
    join = play.join(protocol_type="consumer", protocols=(("range", subscription("t")),), instance="i")
    play.wait(play.limits.initial_rebalance_delay_ms)
    former = str(play.joined(join).member_id)
    play.sync(former, assignments={former: b"all"})
    assert commit(play, member=former, generation=1, instance="i").error is ErrorCode.none
    again = play.join(protocol_type="consumer", protocols=(("range", subscription("t")),), instance="i")
    latter = str(play.joined(again).member_id)
    assert commit(play, member=former, generation=1, instance="i").error is ErrorCode.fenced_instance_id
    assert commit(play, member=latter, generation=1, instance="other").error is ErrorCode.unknown_member_id
    assert commit(play, member=latter, generation=1, instance="i").error is ErrorCode.none


def test_a_commit_is_a_sign_of_life(play: Play) -> None:
    member = settle(play)
    for _ in range(5):
        play.wait(9_000)
        assert commit(play, member=member, generation=1).error is ErrorCode.none
    play.wait(10_000)
    assert play.phase is Phase.EMPTY


# -- what is committed ------------------------------------------------------------------------------------------------


def test_the_last_of_several_offsets_for_a_partition_counts_and_each_is_answered(play: Play) -> None:
    offsets = tuple(
        NewOffset(partition=T0, topic_id=None, offset=offset, leader_epoch=3, metadata="m") for offset in (1, 2, 3)
    )
    response = ask(
        play,
        lambda reply_to: OffsetCommit(
            reply_to=reply_to,
            member_id=MemberId(""),
            instance_id=None,
            generation=Generation(-1),
            retention_ms=None,
            offsets=offsets,
        ),
        OffsetCommitResponse,
    )
    assert response.errors == (ErrorCode.none,) * 3
    assert fetch(play) == {T0: 3}
    assert len(play.log) == 1


@pytest.mark.parametrize("text", ["x" * 4096, "\U0001f600" * 2048])
def test_metadata_may_be_4096_characters_of_java(play: Play, text: str) -> None:
    assert commit(play, metadata=text).errors == (ErrorCode.none,)
    assert commit(play, metadata=text + "x", offset=6).errors == (ErrorCode.offset_metadata_too_large,)
    assert fetch(play) == {T0: 5}


def test_any_number_is_an_offset(play: Play) -> None:
    commit(play, offset=-7)
    assert fetch(play, T0, T1) == {T0: -7}


# -- deleting ---------------------------------------------------------------------------------------------------------


def test_offsets_of_topics_that_a_consumer_reads_cannot_be_deleted(play: Play) -> None:
    member = settle(play)
    commit(play, T0, TopicPartition("other", 0), member=member, generation=1)
    deleted = delete(play, T0, TopicPartition("other", 0), TopicPartition("other", 1))
    assert deleted.errors == (ErrorCode.group_subscribed_to_topic, ErrorCode.none, ErrorCode.none)
    assert fetch(play) == {T0: 5}


def test_consumers_that_say_nothing_readable_keep_all_their_offsets(play: Play) -> None:
    member = settle(play, metadata=b"\x7f")
    commit(play, member=member, generation=1)
    assert delete(play, TopicPartition("other", 0)).errors == (ErrorCode.group_subscribed_to_topic,)


def test_groups_of_another_type_keep_their_offsets_while_anybody_is_in_them(play: Play) -> None:
    member = settle(play, protocol_type="sheep", metadata=subscription("t"))
    commit(play, member=member, generation=1)
    assert delete(play, T0).error is ErrorCode.non_empty_group
    play.leave(member)
    assert delete(play, T0).errors == (ErrorCode.none,)
    assert fetch(play) == {}


def test_a_group_with_members_cannot_be_deleted_and_an_empty_one_goes_with_all_its_offsets(play: Play) -> None:
    member = settle(play)
    commit(play, T0, T1, member=member, generation=1)
    assert delete_group(play) is ErrorCode.non_empty_group
    play.leave(member)
    assert delete_group(play) is ErrorCode.none
    assert play.log[-3:] == [OffsetRemoved(partition=T0), OffsetRemoved(partition=T1), GroupRemoved()]
    assert play.group.is_unheard_of
    assert not play.group.deadlines


def test_a_deleted_group_can_be_joined_as_if_it_had_never_been(play: Play) -> None:
    play.leave(settle(play))
    delete_group(play)
    settle(play, protocol_type="sheep")
    assert (play.group.generation, play.group.protocol_type) == (1, "sheep")


def test_offsets_of_a_deleted_topic_go_whoever_reads_it(play: Play) -> None:
    member = settle(play)
    commit(play, T0, T1, TopicPartition("u", 0), member=member, generation=1)
    play.feed(TopicDeleted(topic="t"))
    assert fetch(play) == {TopicPartition("u", 0): 5}


# -- in time ----------------------------------------------------------------------------------------------------------


def test_offsets_of_a_group_that_nobody_was_ever_in_go_one_by_one(play: Play) -> None:
    commit(play, T0)
    play.wait(3 * DAY_MS)
    commit(play, T1)
    play.wait(4 * DAY_MS - CHECK_MS)
    assert fetch(play) == {T0: 5, T1: 5}
    play.wait(2 * CHECK_MS)
    assert fetch(play) == {T1: 5}
    play.wait(3 * DAY_MS)
    assert play.group.is_unheard_of
    assert play.log[-1] == GroupRemoved()
    assert not play.group.deadlines


def test_offsets_of_a_group_go_when_it_has_been_empty_for_long_but_one_that_was_reset_since(play: Play) -> None:
    member = settle(play)
    commit(play, T0, member=member, generation=1)
    play.leave(member)
    play.wait(6 * DAY_MS)
    commit(play, T1)
    play.wait(DAY_MS + CHECK_MS)
    assert fetch(play) == {T1: 5}
    play.wait(6 * DAY_MS)
    assert play.group.is_unheard_of


def test_a_member_keeps_offsets_of_the_topics_that_it_reads_and_loses_old_ones_of_others(play: Play) -> None:
    member = settle(play)
    commit(play, T0, TopicPartition("other", 0), member=member, generation=1)
    for _ in range(7 * DAY_MS // 9_000 + 100):
        play.wait(9_000)
        assert play.heartbeat(member) is ErrorCode.none
    assert fetch(play) == {T0: 5}


def test_a_third_type_of_group_keeps_all_its_offsets_while_anybody_is_in_it(play: Play) -> None:
    member = settle(play, protocol_type="sheep", metadata=b"\xff\xff")
    commit(play, T0, member=member, generation=1)
    play.now_ms += 30 * DAY_MS  # it was heard of all the time
    assert play.heartbeat(member) is ErrorCode.none
    play.wait(5_000)
    assert fetch(play) == {T0: 5}
    play.leave(member)
    play.wait(7 * DAY_MS + CHECK_MS)
    assert play.group.is_unheard_of


def test_a_client_may_ask_for_a_shorter_retention_of_its_own(play: Play) -> None:
    commit(play, T0, retention_ms=DAY_MS)
    commit(play, T1)
    play.wait(DAY_MS + CHECK_MS)
    assert fetch(play) == {T1: 5}


def test_an_empty_group_without_offsets_goes_at_the_next_look(play: Play) -> None:
    play.leave(settle(play))
    play.wait(CHECK_MS)
    assert play.group.is_unheard_of


def test_an_empty_group_in_which_somebody_is_about_to_join_stays(play: Play) -> None:
    play.leave(settle(play))
    play.wait(play.group.deadlines[ExpiryTimer()] - play.now_ms - 1)
    newcomer = play.joined(play.join(knows_ids=True)).member_id
    play.wait(1)
    assert play.waits(play.join(newcomer, knows_ids=True))


def test_expiry_goes_on_counting_after_a_restart(play: Play) -> None:
    member = settle(play)
    commit(play, member=member, generation=1)
    play.leave(member)
    play.wait(4 * DAY_MS)
    play.restart()
    assert fetch(play) == {T0: 5}
    play.wait(3 * DAY_MS + CHECK_MS)
    assert play.group.is_unheard_of


def test_groups_that_are_loaded_together_do_not_look_at_their_offsets_together(play: Play) -> None:
    commit(play)
    record = play.log[0]
    looks: set[int] = set()
    for number in range(20):
        group = Group(GroupId(f"g{number}"), play.limits)
        apply(group, record)
        step(group, GroupLoaded(), now_ms=0)
        looks.add(group.deadlines[ExpiryTimer()])
    assert len(looks) == 20
    assert all(CHECK_MS <= at_ms < 2 * CHECK_MS for at_ms in looks)


# -- any history ------------------------------------------------------------------------------------------------------

PARTITIONS = st.sampled_from([T0, T1, TopicPartition("u", 0)])
moves = st.one_of(
    st.tuples(st.sampled_from(["commit", "commit for a day"]), PARTITIONS, st.integers(-1, 2)),
    st.tuples(st.sampled_from(["delete", "topic gone"]), PARTITIONS, st.just(0)),
    st.tuples(st.sampled_from(["join", "sync", "leave", "delete group", "restart"]), st.just(T0), st.just(0)),
    st.tuples(st.just("wait"), st.just(T0), st.sampled_from([1_000, 20_000, DAY_MS, 8 * DAY_MS])),
)


def live(play: Play, history: Sequence[tuple[str, TopicPartition, int]]) -> None:
    for kind, partition, number in history:
        member = next(iter(play.group.members), "")
        match kind:
            case "commit" | "commit for a day":
                generation = -1 if number < 0 else play.group.generation - number + 1
                retention_ms = None if kind == "commit" else DAY_MS
                commit(play, partition, member=member, generation=generation, retention_ms=retention_ms)
            case "delete":
                delete(play, partition)
            case "topic gone":
                play.feed(TopicDeleted(topic=partition[0]))
            case "join":
                play.join(protocol_type="consumer", protocols=(("range", subscription("t")),))
            case "sync" if member:
                play.sync(member, assignments={member: b"all"})
            case "leave" if member:
                play.leave(member)
            case "delete group":
                delete_group(play)
            case "restart":
                play.restart()
            case "wait":
                play.wait(number)
            case _:
                pass


@given(st.lists(moves, max_size=30))
@patient(max_examples=150)
def test_the_last_line_of_each_key_is_all_that_a_load_needs(
    history: list[tuple[str, TopicPartition, int]],
) -> None:
    play = Play(Limits())
    live(play, history)
    last: dict[bytes, bytes | None] = {}
    for record in play.log:
        key, value = encode_line(GroupId("fleet"), record)
        last[key] = value
    loaded = Group(GroupId("fleet"), play.limits)
    for key, value in sorted(last.items()):
        decoded = decode_line(key, value)
        assert decoded is not None
        apply(loaded, decoded[1])
    assert loaded.offsets == play.group.offsets
    assert loaded.written == play.group.written


@given(st.lists(moves, max_size=30))
@patient(max_examples=60)
def test_a_group_that_is_left_alone_is_forgotten_one_day(history: list[tuple[str, TopicPartition, int]]) -> None:
    play = Play(Limits())
    live(play, history)
    play.wait(30 * DAY_MS)
    assert play.group.is_unheard_of
    assert not play.group.deadlines
    assert not {OffsetWritten, GenerationWritten} & {type(record) for record in play.log[-1:]}
