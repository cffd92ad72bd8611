"""Invariants after any events: replay gives the live state, phases change as allowed, outputs are deterministic."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coterie.groups.classic.log_records import decode_record, encode_record
from coterie.groups.classic.machine import step
from coterie.groups.classic.messages import (
    Event,
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
    OffsetExpiryTimer,
    PendingMemberTimer,
    Record,
    ReplyTo,
    SessionTimer,
    SyncGroup,
    SyncTimer,
    TimerKey,
)
from coterie.groups.classic.offset_messages import GroupRemoved
from coterie.groups.classic.state import ClassicGroupSettings, Group, GroupPhase, apply, check_all_invariants
from coterie.groups.effects import Reply, TimerFired
from coterie.nouns.ids import GenerationId, GroupId, InstanceId, MemberId
from coterie.wire.errors import ErrorCode

# A slow host must not fail the health check.
patient = partial(settings, suppress_health_check=[HealthCheck.too_slow])

LIMITS = ClassicGroupSettings(group_size_max=4)
ALLOWED_SINGLE_STEPS = {
    (GroupPhase.EMPTY, GroupPhase.PREPARING_REBALANCE),
    (GroupPhase.PREPARING_REBALANCE, GroupPhase.COMPLETING_REBALANCE),
    (GroupPhase.PREPARING_REBALANCE, GroupPhase.EMPTY),
    (GroupPhase.COMPLETING_REBALANCE, GroupPhase.STABLE),
    (GroupPhase.COMPLETING_REBALANCE, GroupPhase.PREPARING_REBALANCE),
    (GroupPhase.STABLE, GroupPhase.PREPARING_REBALANCE),
}
ALLOWED_TRANSITIONS = (
    ALLOWED_SINGLE_STEPS
    | {(phase, phase) for phase in GroupPhase}
    # one event may open a join phase and end it, if no member is left to wait for
    | {
        (a, c)
        for a, b in ALLOWED_SINGLE_STEPS
        for b2, c in ALLOWED_SINGLE_STEPS
        if b == b2 == GroupPhase.PREPARING_REBALANCE
    }
)
TIMERS: tuple[Callable[[MemberId], TimerKey], ...] = (
    lambda member_id: SessionTimer(member_id=member_id),
    lambda member_id: PendingMemberTimer(member_id=member_id),
    lambda member_id: NewMemberTimer(member_id=member_id),
    lambda _: JoinPhaseTimer(),
    lambda _: SyncTimer(),
    lambda _: OffsetExpiryTimer(),
)


class RandomEvent(NamedTuple):
    """The next event, valid in any state: the numbers select among the present members."""

    kind: str
    member_number: int
    variant: int


PROTOCOL_NAMES = ("ab", "ab", "ab", "AB", "ba", "a", "b", "")
# Events that advance a group are frequent, so that histories reach every phase; invalid ones are in between.
KINDS = (
    *("new", "new with id", "rejoin", "rejoin all", "sync", "sync", "sync all", "sync all", "join phase over"),
    *("join phase over", "heartbeat", "join as any member", "sync as any member", "heartbeat as any member", "leave"),
    *("next timer", "stray timer", "wait", "static", "static", "static as any member", "crash"),
)
histories = st.lists(
    st.builds(RandomEvent, st.sampled_from(KINDS), st.integers(0, 5), st.integers(0, 7)), min_size=20, max_size=80
)


class RandomHistory:
    """Runs a history and keeps its records, outputs and responses."""

    def __init__(self, history: Sequence[RandomEvent]) -> None:
        self.group = Group(GroupId("fleet"), LIMITS)
        self.records: list[Record] = []
        self.lines: list[str] = []
        self.phases = {self.group.phase}
        self.now_ms = 0
        self.requests: list[ReplyTo] = []
        self.answered_requests: list[ReplyTo] = []
        self.lost_requests: list[ReplyTo] = []
        """Requests parked when their coordinator crashed."""
        self.errors: dict[ReplyTo, ErrorCode] = {}
        for move in history:
            for event in self.events(move):
                self.feed(event)
        assert sorted(self.answered_requests + self.lost_requests + self.parked) == self.requests, (
            "every request has one response or is parked"
        )

    def feed(self, event: Event) -> None:
        before, generation = self.group.phase, self.group.generation
        output = step(self.group, event, now_ms=self.now_ms)
        check_all_invariants(self.group)
        assert (before, self.group.phase) in ALLOWED_TRANSITIONS or isinstance(event, GroupLoaded)
        assert self.group.generation >= generation or GroupRemoved() in output.records
        for record in output.records:
            if isinstance(record, GenerationWritten):
                assert len(record.members) <= LIMITS.group_size_max, "absent static members count for the size limit"
        self.phases.add(self.group.phase)
        self.records.extend(output.records)
        self.lines.append(repr(output))
        replies = [effect for effect in output.effects if isinstance(effect, Reply)]
        self.answered_requests.extend(reply.to for reply in replies)
        self.errors.update({reply.to: reply.response.error for reply in replies})

    def beat(self, member_id: MemberId, instance_id: InstanceId | None = None) -> ErrorCode:
        reply_to = self.reply_to()
        self.feed(
            Heartbeat(reply_to=reply_to, member_id=member_id, generation=self.group.generation, instance_id=instance_id)
        )
        return self.errors[reply_to]

    def events(self, move: RandomEvent) -> Iterator[Event]:
        members = list(self.group.members)
        known_member_ids = [*members, *sorted(self.group.pending_join_members)]
        known_member_id = (
            known_member_ids[move.member_number % len(known_member_ids)] if known_member_ids else MemberId("ghost")
        )
        any_member_id = [*known_member_ids, MemberId("ghost")][move.member_number % (len(known_member_ids) + 1)]
        wrong_generation = GenerationId(self.group.generation + (0, 0, 0, 0, -1, 1, 0, 0)[move.variant])
        match move.kind:
            case "new" | "new with id":
                yield self.join(MemberId(""), move, requires_id=move.kind == "new with id")
            case "rejoin" | "join as any member":
                yield self.join(known_member_id if move.kind == "rejoin" else any_member_id, move)
            case "rejoin all":
                yield from (self.join(member_id, move) for member_id in members)
            case "sync all":
                yield from (self.sync(member_id, self.group.generation, move) for member_id in members)
            case "sync":
                yield self.sync(known_member_id, self.group.generation, move)
            case "sync as any member":
                yield self.sync(any_member_id, wrong_generation, move)
            case "heartbeat":
                yield Heartbeat(reply_to=self.reply_to(), member_id=known_member_id, generation=self.group.generation)
            case "heartbeat as any member":
                yield Heartbeat(reply_to=self.reply_to(), member_id=any_member_id, generation=wrong_generation)
            case "leave":
                yield self.leave(move, any_member_id, known_member_id)
            case "crash":
                yield self.crash()
            case "static" | "static as any member":
                yield self.static_member_event(move, any_member_id)
            case _:
                yield from self.time_passes(move, any_member_id)

    def leave(self, move: RandomEvent, any_member_id: MemberId, known_member_id: MemberId) -> LeaveGroup:
        leaving = (
            LeavingMember(member_id=any_member_id),
            LeavingMember(
                member_id=known_member_id, instance_id=self.instance(move) if move.member_number > 3 else None
            ),
            LeavingMember(member_id=MemberId(""), instance_id=self.instance(move)),
        )
        return LeaveGroup(reply_to=self.reply_to(), members=leaving[: move.variant % 4])

    def static_member_event(self, move: RandomEvent, any_member_id: MemberId) -> Event:
        instance_id = self.instance(move)
        if move.kind == "static":
            return self.join(MemberId(""), move, instance_id=instance_id)
        member_id = self.group.static_members.get(instance_id, any_member_id) if move.variant % 2 else any_member_id
        if move.variant < 4:
            return self.join(member_id, move, instance_id=instance_id)
        return Heartbeat(
            reply_to=self.reply_to(), member_id=member_id, generation=self.group.generation, instance_id=instance_id
        )

    def crash(self) -> GroupLoaded:
        """All state that is not in the log is lost, and so are the parked requests."""
        self.lost_requests += self.parked
        self.group = Group(GroupId("fleet"), LIMITS)
        for record in self.records:
            apply(self.group, record)
        return GroupLoaded()

    @property
    def parked(self) -> list[ReplyTo]:
        return [*self.group.parked_joins.values(), *self.group.parked_syncs.values()]

    def time_passes(self, move: RandomEvent, any_member_id: MemberId) -> Iterator[Event]:
        deadlines = self.group.deadlines
        if move.kind == "stray timer":
            yield TimerFired(key=TIMERS[move.variant % len(TIMERS)](any_member_id))
        elif move.kind == "wait" or not deadlines:
            self.now_ms += move.variant * 700
        else:
            key, at_ms = min(deadlines.items(), key=lambda item: item[1])
            if move.kind == "join phase over" and JoinPhaseTimer() in deadlines:
                key, at_ms = JoinPhaseTimer(), deadlines[JoinPhaseTimer()]
            elif move.kind == "join phase over":
                return
            self.now_ms = max(self.now_ms, at_ms)
            yield TimerFired(key=key)

    @staticmethod
    def instance(move: RandomEvent) -> InstanceId:
        return InstanceId("ij"[move.member_number % 2])

    def reply_to(self) -> ReplyTo:
        self.requests.append(ReplyTo(len(self.requests)))
        return self.requests[-1]

    def join(
        self,
        member_id: MemberId,
        move: RandomEvent,
        *,
        requires_id: bool = False,
        instance_id: InstanceId | None = None,
    ) -> JoinGroup:
        reply_to = self.reply_to()
        return JoinGroup(
            reply_to=reply_to,
            member_id=member_id,
            fresh_member_id=MemberId(f"m{reply_to}"),
            requires_known_member_id=requires_id,
            instance_id=instance_id,
            supports_skip_assignment=move.variant % 2 == 0,
            client_id="c",
            client_host="/h",
            session_timeout_ms=5_999 if move.variant == 7 else 10_000,
            rebalance_timeout_ms=(60_000, 6_000)[move.member_number % 2],
            protocol_type="consumer" if move.variant == 6 and move.member_number > 3 else "connect",
            protocols=tuple(
                MemberProtocol(name=name.lower(), metadata=name.encode()) for name in PROTOCOL_NAMES[move.variant]
            ),
        )

    def sync(self, member_id: MemberId, generation: GenerationId, move: RandomEvent) -> SyncGroup:
        return SyncGroup(
            reply_to=self.reply_to(),
            member_id=member_id,
            generation=generation,
            protocol=(None, None, self.group.protocol, "z")[move.variant % 4],
            assignments=tuple((other, other.encode()) for other in list(self.group.members)[move.member_number :]),
        )


def test_random_histories_reach_every_phase() -> None:
    seen: set[GroupPhase] = set()

    @given(histories)
    @patient(max_examples=60, database=None, derandomize=True)
    def play(history: list[RandomEvent]) -> None:
        seen.update(RandomHistory(history).phases)

    play()
    assert seen == set(GroupPhase) - {GroupPhase.DEAD}


@given(histories)
@patient(max_examples=200)
def test_replayed_records_give_the_live_state_and_stable_members_keep_their_generation(
    history: list[RandomEvent],
) -> None:
    story = RandomHistory(history)
    replayed = Group(GroupId("fleet"), LIMITS)
    for record in story.records:
        line = decode_record(*encode_record(GroupId("fleet"), record))
        assert line is not None
        apply(replayed, line[1])
    assert replayed.generation_record == story.group.generation_record
    step(replayed, GroupLoaded(), now_ms=story.now_ms)
    check_all_invariants(replayed)
    written = story.group.generation_record
    if written is None or not written.members:
        assert replayed.phase is GroupPhase.EMPTY
    elif written.protocol is None or len(written.members) > LIMITS.group_size_max:
        assert replayed.phase is GroupPhase.PREPARING_REBALANCE
    else:
        assert replayed.phase is GroupPhase.STABLE
        for member_id in written.members:
            beat = Heartbeat(reply_to=ReplyTo(0), member_id=member_id, generation=written.generation)
            output = step(replayed, beat, now_ms=story.now_ms)
            assert Reply(to=ReplyTo(0), response=HeartbeatResponse(error=ErrorCode.none)) in output.effects
    if story.group.phase is GroupPhase.STABLE:
        assert (replayed.phase, replayed.leader) == (GroupPhase.STABLE, story.group.leader)
        assert list(replayed.members) == list(story.group.members)


SETTLE = (
    RandomEvent("static", 0, 0),
    RandomEvent("join phase over", 0, 0),
    RandomEvent("rejoin all", 0, 0),
    RandomEvent("join phase over", 0, 0),
    RandomEvent("sync all", 0, 0),
)


def test_a_static_member_that_rejoins_a_stable_group_changes_only_its_own_member_id() -> None:
    seen = 0

    @given(histories)
    @patient(max_examples=150, database=None, derandomize=True)
    def play(history: list[RandomEvent]) -> None:
        nonlocal seen
        story = RandomHistory([*history, *SETTLE])
        group = story.group
        for instance_id, former_id in sorted(group.static_members.items()):
            before = group.generation_record
            if group.phase is not GroupPhase.STABLE or before is None:
                return
            seen += 1
            join = story.join(MemberId(""), RandomEvent("static", 0, 0), instance_id=instance_id)
            offered = group.members[former_id].protocols
            story.feed(replace(join, protocols=offered, protocol_type=group.protocol_type or ""))
            new_id = group.static_members[instance_id]
            after = group.generation_record
            assert after is not None
            assert (group.phase, after.generation, after.protocol) == (
                GroupPhase.STABLE,
                before.generation,
                before.protocol,
            )
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
def test_the_same_events_give_the_same_outputs(history: list[RandomEvent]) -> None:
    assert RandomHistory(history).lines == RandomHistory(history).lines


@given(histories)
@patient(max_examples=60)
def test_a_group_without_requests_loses_all_members_and_becomes_empty(history: list[RandomEvent]) -> None:
    story = RandomHistory(history)
    group, now_ms = story.group, story.now_ms
    while group.deadlines:
        key, at_ms = min(group.deadlines.items(), key=lambda item: item[1])
        now_ms = max(now_ms, at_ms)
        step(group, TimerFired(key=key), now_ms=now_ms)
        check_all_invariants(group)
    assert group.phase is GroupPhase.EMPTY
    assert not group.parked_joins
    assert not group.pending_join_members
