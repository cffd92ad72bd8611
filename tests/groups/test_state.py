"""What holds after any events whatever: replay is live, phases change lawfully, order is decided by nothing hidden."""

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.groups.classic import step
from coterie.groups.messages import (
    Event,
    GroupLoaded,
    Heartbeat,
    HeartbeatResponse,
    JoinGroup,
    JoinPhaseTimer,
    LeaveGroup,
    MemberProtocol,
    NewMemberTimer,
    PendingMemberTimer,
    Record,
    Reply,
    ReplyTo,
    SessionTimer,
    SyncGroup,
    SyncTimer,
    TimerFired,
    TimerKey,
)
from coterie.groups.records import decode_value, encode_value
from coterie.groups.state import Group, Limits, Phase, apply, check_whole
from coterie.nouns.ids import Generation, GroupId, MemberId
from coterie.wire.errors import ErrorCode

LIMITS = Limits(group_size_max=4)
ONE_STEP = {
    (Phase.EMPTY, Phase.PREPARING_REBALANCE),
    (Phase.PREPARING_REBALANCE, Phase.COMPLETING_REBALANCE),
    (Phase.PREPARING_REBALANCE, Phase.EMPTY),
    (Phase.COMPLETING_REBALANCE, Phase.STABLE),
    (Phase.COMPLETING_REBALANCE, Phase.PREPARING_REBALANCE),
    (Phase.STABLE, Phase.PREPARING_REBALANCE),
}
LAWFUL = (
    ONE_STEP
    | {(phase, phase) for phase in Phase}
    # one event may open a join phase and end it, where nobody is left to be waited for
    | {(a, c) for a, b in ONE_STEP for b2, c in ONE_STEP if b == b2 == Phase.PREPARING_REBALANCE}
)

# Few ids, so that events meet; `m0` to `m9` are the ids that get handed out, in turn.
member_ids = st.sampled_from([f"m{number}" for number in range(10)]).map(MemberId)
protocol_lists = st.sampled_from(["", "a", "b", "ab", "ba", "AB"]).map(
    lambda names: tuple(MemberProtocol(name=name.lower(), metadata=name.encode()) for name in names)
)
timer_keys: st.SearchStrategy[TimerKey] = st.one_of(
    st.builds(SessionTimer, member_id=member_ids),
    st.builds(PendingMemberTimer, member_id=member_ids),
    st.builds(NewMemberTimer, member_id=member_ids),
    st.builds(JoinPhaseTimer),
    st.builds(SyncTimer),
)
# Generations are told relative to the group's at that moment: mostly right, sometimes of before, sometimes invented.
generations = st.sampled_from([0, 0, 0, 0, -1, 1]).map(Generation)
replies = st.just(ReplyTo(0))
joins = st.builds(
    JoinGroup,
    reply_to=replies,
    member_id=st.just(MemberId("")) | member_ids,
    fresh_member_id=st.just(MemberId("")),
    requires_known_member_id=st.booleans(),
    client_id=st.just("c"),
    client_host=st.just("/h"),
    session_timeout_ms=st.sampled_from([5_999, 6_000, 10_000]),
    rebalance_timeout_ms=st.sampled_from([6_000, 60_000]),
    protocol_type=st.sampled_from(["connect", "connect", "connect", "consumer", ""]),
    protocols=protocol_lists,
)
syncs = st.builds(
    SyncGroup,
    reply_to=replies,
    member_id=member_ids,
    generation=generations,
    protocol=st.sampled_from([None, "a", "b"]),
    assignments=st.lists(st.tuples(member_ids, st.binary(max_size=2)), max_size=3).map(tuple),
)
heartbeats = st.builds(Heartbeat, reply_to=replies, member_id=member_ids, generation=generations)
leaves = st.builds(LeaveGroup, reply_to=replies, member_ids=st.lists(member_ids, max_size=2).map(tuple))
due_timers = st.just(TimerFired(key=JoinPhaseTimer()))
stray_timers = st.builds(TimerFired, key=timer_keys)
events: st.SearchStrategy[Event] = st.one_of(joins, joins, syncs, syncs, heartbeats, leaves, stray_timers, due_timers)
histories = st.lists(st.tuples(st.sampled_from([0, 0, 10, 3_000, 7_000]), events), max_size=60)


class Story:
    """Plays a history and keeps what came of it."""

    def __init__(self, history: Sequence[tuple[int, Event]]) -> None:
        self.group = Group(GroupId("fleet"), LIMITS)
        self.records: list[Record] = []
        self.lines: list[str] = []
        self.now_ms = 0
        asked: list[ReplyTo] = []
        answered: list[ReplyTo] = []
        for number, (later_ms, event) in enumerate(history):
            self.now_ms += later_ms
            event = self.made_real(event, number)
            before, generation = self.group.phase, self.group.generation
            output = step(self.group, event, now_ms=self.now_ms)
            check_whole(self.group)
            assert (before, self.group.phase) in LAWFUL
            assert self.group.generation >= generation
            self.records.extend(output.records)
            self.lines.append(repr(output))
            if not isinstance(event, TimerFired):
                asked.append(ReplyTo(number))
            answered.extend(effect.to for effect in output.effects if isinstance(effect, Reply))
        parked = [*self.group.joins.values(), *self.group.syncs.values()]
        assert sorted(answered + parked) == asked, "every request is answered once or waits"

    def made_real(self, event: Event, number: int) -> Event:
        """Fill in what only the moment knows: who asks, the fresh id, the generation."""
        match event:
            case JoinGroup() as join:
                return JoinGroup(
                    reply_to=ReplyTo(number),
                    member_id=join.member_id,
                    fresh_member_id=self.fresh_id(number),
                    requires_known_member_id=join.requires_known_member_id,
                    client_id=join.client_id,
                    client_host=join.client_host,
                    session_timeout_ms=join.session_timeout_ms,
                    rebalance_timeout_ms=join.rebalance_timeout_ms,
                    protocol_type=join.protocol_type,
                    protocols=join.protocols,
                )
            case SyncGroup() as sync:
                return SyncGroup(
                    reply_to=ReplyTo(number),
                    member_id=sync.member_id,
                    generation=Generation(self.group.generation + sync.generation),
                    protocol=sync.protocol,
                    assignments=sync.assignments,
                )
            case Heartbeat() as heartbeat:
                return Heartbeat(
                    reply_to=ReplyTo(number),
                    member_id=heartbeat.member_id,
                    generation=Generation(self.group.generation + heartbeat.generation),
                )
            case LeaveGroup() as leave:
                return LeaveGroup(reply_to=ReplyTo(number), member_ids=leave.member_ids)
            case _:
                return event

    def fresh_id(self, number: int) -> MemberId:
        free = [f"m{n}" for n in range(10) if f"m{n}" not in self.group.members.keys() | self.group.pending]
        return MemberId(free[0] if free else f"more{number}")


@given(histories)
@settings(max_examples=300)
def test_replaying_the_records_gives_the_live_state_and_stable_members_notice_nothing(
    history: list[tuple[int, Event]],
) -> None:
    story = Story(history)
    replayed = Group(GroupId("fleet"), LIMITS)
    for record in story.records:
        apply(replayed, decode_value(encode_value(record)))
    assert replayed.written == story.group.written
    step(replayed, GroupLoaded(), now_ms=story.now_ms)
    check_whole(replayed)
    written = story.group.written
    if written is None or not written.members:
        assert replayed.phase is Phase.EMPTY
    elif written.protocol is None or len(written.members) > LIMITS.group_size_max:
        assert replayed.phase is Phase.PREPARING_REBALANCE
    else:
        assert replayed.phase is Phase.STABLE
        for member_id in written.members:
            beat = Heartbeat(reply_to=ReplyTo(0), member_id=member_id, generation=written.generation)
            output = step(replayed, beat, now_ms=story.now_ms)
            assert Reply(to=ReplyTo(0), response=HeartbeatResponse(error=ErrorCode.none)) in output.effects
    if story.group.phase is Phase.STABLE:
        assert (replayed.phase, replayed.leader) == (Phase.STABLE, story.group.leader)
        assert list(replayed.members) == list(story.group.members)


@given(histories)
def test_the_same_events_give_the_same_outputs(history: list[tuple[int, Event]]) -> None:
    assert Story(history).lines == Story(history).lines


@given(histories)
def test_a_group_that_is_left_alone_loses_everybody_and_becomes_empty(history: list[tuple[int, Event]]) -> None:
    story = Story(history)
    group, now_ms = story.group, story.now_ms
    while group.deadlines:
        key, at_ms = min(group.deadlines.items(), key=lambda item: item[1])
        now_ms = max(now_ms, at_ms)
        step(group, TimerFired(key=key), now_ms=now_ms)
        check_whole(group)
    assert group.phase is Phase.EMPTY
    assert not group.joins
    assert not group.pending
