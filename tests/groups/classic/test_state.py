"""What holds after any events whatever: replay is live, phases change lawfully, order is decided by nothing hidden."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coterie.groups.classic.lines import decode_line, encode_line
from coterie.groups.classic.machine import step
from coterie.groups.classic.messages import (
    Event,
    ExpiryTimer,
    GenerationWritten,
    GroupLoaded,
    Heartbeat,
    HeartbeatResponse,
    JoinGroup,
    JoinPhaseTimer,
    LeaveGroup,
    LeavingMember,
    MemberProtocol,
    NewMemberTimer,
    PendingMemberTimer,
    Record,
    ReplyTo,
    SessionTimer,
    SyncGroup,
    SyncTimer,
    TimerKey,
)
from coterie.groups.classic.offset_messages import GroupRemoved
from coterie.groups.classic.state import Group, Limits, Phase, apply, check_whole
from coterie.groups.effects import Reply, TimerFired
from coterie.nouns.ids import Generation, GroupId, InstanceId, MemberId
from coterie.wire.errors import ErrorCode

# A machine that is busy with other things is no reason to fail.
patient = partial(settings, suppress_health_check=[HealthCheck.too_slow])

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
TIMERS: tuple[Callable[[MemberId], TimerKey], ...] = (
    lambda member_id: SessionTimer(member_id=member_id),
    lambda member_id: PendingMemberTimer(member_id=member_id),
    lambda member_id: NewMemberTimer(member_id=member_id),
    lambda _: JoinPhaseTimer(),
    lambda _: SyncTimer(),
    lambda _: ExpiryTimer(),
)


class Move(NamedTuple):
    """What happens next, said so that it means something at any moment: the numbers choose among what is there."""

    kind: str
    who: int
    flavour: int


OFFERS = ("ab", "ab", "ab", "AB", "ba", "a", "b", "")
# What moves a group on comes often, so that histories reach every phase; what is stray or wrong comes between.
KINDS = (
    *("new", "new with id", "rejoin", "rejoin all", "sync", "sync", "sync all", "sync all", "join phase over"),
    *("join phase over", "heartbeat", "join as anybody", "sync as anybody", "heartbeat as anybody", "leave"),
    *("next timer", "stray timer", "wait", "static", "static", "static as anybody", "crash"),
)
histories = st.lists(
    st.builds(Move, st.sampled_from(KINDS), st.integers(0, 5), st.integers(0, 7)), min_size=20, max_size=80
)


class Story:
    """Plays a history and keeps what came of it."""

    def __init__(self, history: Sequence[Move]) -> None:
        self.group = Group(GroupId("fleet"), LIMITS)
        self.records: list[Record] = []
        self.lines: list[str] = []
        self.phases = {self.group.phase}
        self.now_ms = 0
        self.asked: list[ReplyTo] = []
        self.answered: list[ReplyTo] = []
        self.lost: list[ReplyTo] = []
        """Parked when their coordinator crashed."""
        self.errors: dict[ReplyTo, ErrorCode] = {}
        for move in history:
            for event in self.events(move):
                self.feed(event)
        assert sorted(self.answered + self.lost + self.parked) == self.asked, "every request is answered once or waits"

    def feed(self, event: Event) -> None:
        before, generation = self.group.phase, self.group.generation
        output = step(self.group, event, now_ms=self.now_ms)
        check_whole(self.group)
        assert (before, self.group.phase) in LAWFUL or isinstance(event, GroupLoaded)
        assert self.group.generation >= generation or GroupRemoved() in output.records
        for record in output.records:
            if isinstance(record, GenerationWritten):
                assert len(record.members) <= LIMITS.group_size_max, "a full group stays full, whoever is away"
        self.phases.add(self.group.phase)
        self.records.extend(output.records)
        self.lines.append(repr(output))
        replies = [effect for effect in output.effects if isinstance(effect, Reply)]
        self.answered.extend(reply.to for reply in replies)
        self.errors.update({reply.to: reply.response.error for reply in replies})

    def beat(self, member_id: MemberId, instance_id: InstanceId | None = None) -> ErrorCode:
        reply_to = self.reply_to()
        self.feed(
            Heartbeat(reply_to=reply_to, member_id=member_id, generation=self.group.generation, instance_id=instance_id)
        )
        return self.errors[reply_to]

    def events(self, move: Move) -> Iterator[Event]:
        members = list(self.group.members)
        known = [*members, *sorted(self.group.pending)]
        one_of_us = known[move.who % len(known)] if known else MemberId("ghost")
        anybody = [*known, MemberId("ghost")][move.who % (len(known) + 1)]
        askew = Generation(self.group.generation + (0, 0, 0, 0, -1, 1, 0, 0)[move.flavour])
        match move.kind:
            case "new" | "new with id":
                yield self.join(MemberId(""), move, knows_ids=move.kind == "new with id")
            case "rejoin" | "join as anybody":
                yield self.join(one_of_us if move.kind == "rejoin" else anybody, move)
            case "rejoin all":
                yield from (self.join(member_id, move) for member_id in members)
            case "sync all":
                yield from (self.sync(member_id, self.group.generation, move) for member_id in members)
            case "sync":
                yield self.sync(one_of_us, self.group.generation, move)
            case "sync as anybody":
                yield self.sync(anybody, askew, move)
            case "heartbeat":
                yield Heartbeat(reply_to=self.reply_to(), member_id=one_of_us, generation=self.group.generation)
            case "heartbeat as anybody":
                yield Heartbeat(reply_to=self.reply_to(), member_id=anybody, generation=askew)
            case "leave":
                yield self.leave(move, anybody, one_of_us)
            case "crash":
                yield self.crash()
            case "static" | "static as anybody":
                yield self.static_one(move, anybody)
            case _:
                yield from self.time_passes(move, anybody)

    def leave(self, move: Move, anybody: MemberId, one_of_us: MemberId) -> LeaveGroup:
        leaving = (
            LeavingMember(member_id=anybody),
            LeavingMember(member_id=one_of_us, instance_id=self.instance(move) if move.who > 3 else None),
            LeavingMember(member_id=MemberId(""), instance_id=self.instance(move)),
        )
        return LeaveGroup(reply_to=self.reply_to(), members=leaving[: move.flavour % 4])

    def static_one(self, move: Move, anybody: MemberId) -> Event:
        instance_id = self.instance(move)
        if move.kind == "static":
            return self.join(MemberId(""), move, instance_id=instance_id)
        member_id = self.group.static_members.get(instance_id, anybody) if move.flavour % 2 else anybody
        if move.flavour < 4:
            return self.join(member_id, move, instance_id=instance_id)
        return Heartbeat(
            reply_to=self.reply_to(), member_id=member_id, generation=self.group.generation, instance_id=instance_id
        )

    def crash(self) -> GroupLoaded:
        """All that was soft is lost, with whoever waited for an answer."""
        self.lost += self.parked
        self.group = Group(GroupId("fleet"), LIMITS)
        for record in self.records:
            apply(self.group, record)
        return GroupLoaded()

    @property
    def parked(self) -> list[ReplyTo]:
        return [*self.group.joins.values(), *self.group.syncs.values()]

    def time_passes(self, move: Move, anybody: MemberId) -> Iterator[Event]:
        deadlines = self.group.deadlines
        if move.kind == "stray timer":
            yield TimerFired(key=TIMERS[move.flavour % len(TIMERS)](anybody))
        elif move.kind == "wait" or not deadlines:
            self.now_ms += move.flavour * 700
        else:
            key, at_ms = min(deadlines.items(), key=lambda item: item[1])
            if move.kind == "join phase over" and JoinPhaseTimer() in deadlines:
                key, at_ms = JoinPhaseTimer(), deadlines[JoinPhaseTimer()]
            elif move.kind == "join phase over":
                return
            self.now_ms = max(self.now_ms, at_ms)
            yield TimerFired(key=key)

    @staticmethod
    def instance(move: Move) -> InstanceId:
        return InstanceId("ij"[move.who % 2])

    def reply_to(self) -> ReplyTo:
        self.asked.append(ReplyTo(len(self.asked)))
        return self.asked[-1]

    def join(
        self, member_id: MemberId, move: Move, *, knows_ids: bool = False, instance_id: InstanceId | None = None
    ) -> JoinGroup:
        reply_to = self.reply_to()
        return JoinGroup(
            reply_to=reply_to,
            member_id=member_id,
            fresh_member_id=MemberId(f"m{reply_to}"),
            requires_known_member_id=knows_ids,
            instance_id=instance_id,
            can_skip_assignment=move.flavour % 2 == 0,
            client_id="c",
            client_host="/h",
            session_timeout_ms=5_999 if move.flavour == 7 else 10_000,
            rebalance_timeout_ms=(60_000, 6_000)[move.who % 2],
            protocol_type="consumer" if move.flavour == 6 and move.who > 3 else "connect",
            protocols=tuple(MemberProtocol(name=name.lower(), metadata=name.encode()) for name in OFFERS[move.flavour]),
        )

    def sync(self, member_id: MemberId, generation: Generation, move: Move) -> SyncGroup:
        return SyncGroup(
            reply_to=self.reply_to(),
            member_id=member_id,
            generation=generation,
            protocol=(None, None, self.group.protocol, "z")[move.flavour % 4],
            assignments=tuple((other, other.encode()) for other in list(self.group.members)[move.who :]),
        )


def test_histories_reach_every_phase() -> None:
    seen: set[Phase] = set()

    @given(histories)
    @patient(max_examples=60, database=None, derandomize=True)
    def play(history: list[Move]) -> None:
        seen.update(Story(history).phases)

    play()
    assert seen == set(Phase) - {Phase.DEAD}


@given(histories)
@patient(max_examples=200)
def test_replaying_the_records_gives_the_live_state_and_stable_members_notice_nothing(
    history: list[Move],
) -> None:
    story = Story(history)
    replayed = Group(GroupId("fleet"), LIMITS)
    for record in story.records:
        line = decode_line(*encode_line(GroupId("fleet"), record))
        assert line is not None
        apply(replayed, line[1])
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


SETTLE = (
    Move("static", 0, 0),
    Move("join phase over", 0, 0),
    Move("rejoin all", 0, 0),
    Move("join phase over", 0, 0),
    Move("sync all", 0, 0),
)


def test_a_static_member_that_is_back_in_a_stable_group_is_noticed_by_nobody() -> None:
    seen = 0

    @given(histories)
    @patient(max_examples=150, database=None, derandomize=True)
    def play(history: list[Move]) -> None:
        nonlocal seen
        story = Story([*history, *SETTLE])
        group = story.group
        for instance_id, former_id in sorted(group.static_members.items()):
            before = group.written
            if group.phase is not Phase.STABLE or before is None:
                return
            seen += 1
            join = story.join(MemberId(""), Move("static", 0, 0), instance_id=instance_id)
            offered = group.members[former_id].protocols
            story.feed(replace(join, protocols=offered, protocol_type=group.protocol_type or ""))
            new_id = group.static_members[instance_id]
            after = group.written
            assert after is not None
            assert (group.phase, after.generation, after.protocol) == (Phase.STABLE, before.generation, before.protocol)
            assert new_id != former_id
            assert after.members.keys() == before.members.keys() - {former_id} | {new_id}
            for member_id, member in before.members.items():
                if member_id != former_id:
                    assert after.members[member_id] == member
            assert after.members[new_id].assignment == before.members[former_id].assignment
            assert after.leader == (new_id if before.leader == former_id else before.leader)
            assert story.beat(former_id, instance_id) is ErrorCode.fenced_instance_id
            assert {story.beat(member_id) for member_id in after.members} == {ErrorCode.none}

    play()
    assert seen > 50


@given(histories)
@patient(max_examples=60)
def test_the_same_events_give_the_same_outputs(history: list[Move]) -> None:
    assert Story(history).lines == Story(history).lines


@given(histories)
@patient(max_examples=60)
def test_a_group_that_is_left_alone_loses_everybody_and_becomes_empty(history: list[Move]) -> None:
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
