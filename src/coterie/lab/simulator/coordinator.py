"""The broker of the simulation: the real `groups` machine with the real outbox, and a disk that may lose its
unacknowledged writes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol
from zlib import crc32

from coterie.engine.output import Outbox, Output
from coterie.groups.classic.lines import encode_line
from coterie.groups.classic.messages import (
    Effect,
    Event,
    GroupLoaded,
    Heartbeat,
    JoinGroupResponse,
    LeaveGroupResponse,
    NewMemberTimer,
    PendingMemberTimer,
    Record,
    ReplyTo,
    Request,
    Response,
    SessionTimer,
    SyncGroupResponse,
    TimerKey,
)
from coterie.groups.classic.offset_messages import OffsetCommitResponse, OffsetDeleteResponse, OffsetFetchResponse
from coterie.groups.classic.state import Group, Limits, Phase, check_whole
from coterie.groups.effects import CancelTimer, Reply, SetTimer, TimerFired
from coterie.lab.simulator.durable import DurableGroup, EncodedRecord, folded
from coterie.lab.simulator.invariants import MachineCheck
from coterie.lab.simulator.network import Call
from coterie.lab.simulator.records import RecordKind, RecordValue, name_of, weight
from coterie.lab.simulator.replay import check_replay
from coterie.lab.simulator.world import Alarms, FaultyDisk, World
from coterie.lab.steps import Steps
from coterie.nouns.ids import Generation, GroupId, InstanceId, MemberId
from coterie.wire.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class Before:
    """The group's state before a step."""

    phase: Phase
    generation: Generation
    members: frozenset[MemberId]
    static_members: Mapping[InstanceId, MemberId]

    @classmethod
    def of(cls, group: Group) -> "Before":
        return cls(
            phase=group.phase,
            generation=group.generation,
            members=frozenset(group.members),
            static_members=dict(group.static_members),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorStep:
    """One step of the machine, for the invariant checks."""

    event: Event
    before: Before
    output: Output[Record, Effect]
    group: Group
    """The group after the step."""
    asked: Mapping[ReplyTo, Request]
    """Every request that had no response before this step."""


class CoordinatorWatch(Protocol):
    """Checks every step, response and start of the coordinator; raises a `Violation` when an invariant is broken."""

    def on_step(self, taken: CoordinatorStep) -> None: ...

    def on_reply(self, request: Request, response: Response) -> None:
        """A response leaves; the records on which it depends are durable."""
        ...

    def on_loaded(self, group: Group) -> None:
        """The coordinator has read its log and is about to start."""
        ...


class Disk(FaultyDisk):
    """Writes in one batch what was appended during the last write, acknowledges late, and may lose in a crash what it
    has not acknowledged."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world
        self.lines: list[EncodedRecord] = []
        self._writing: list[EncodedRecord] = []
        self._waiting: list[EncodedRecord] = []
        self._life = 0

    def append(self, lines: Sequence[EncodedRecord], acknowledged: Callable[[int], None]) -> None:
        self._waiting += lines
        if not self._writing:
            self._write(acknowledged)

    def crash(self) -> None:
        """Any prefix of the write in progress becomes durable, without an acknowledgement."""
        self.lines += self._writing[: self._world.rng.randint(0, len(self._writing))]
        self._writing, self._waiting = [], []
        self._life += 1

    def _write(self, acknowledged: Callable[[int], None]) -> None:
        self._writing, self._waiting = self._waiting, []
        life = self._life

        def written() -> None:
            if life != self._life:
                return
            done = len(self._writing)
            self.lines += self._writing
            self._writing = []
            acknowledged(done)
            if self._waiting:
                self._write(acknowledged)

        self._world.after(self.write_ms(self._world.rng), written)


class SimCoordinator:
    """The coordinator of one group, which crashes and restarts."""

    def __init__(
        self, world: World, watch: CoordinatorWatch, *, group_id: GroupId, limits: Limits, steps: Steps
    ) -> None:
        self._world = world
        self._steps = steps
        self._watch = watch
        self._group_id = group_id
        self._limits = limits
        self.disk = Disk(world)
        self._fresh = 0
        self._asked = 0
        self.up = False
        self.start()

    # -- start and crash ------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Replay the records on the disk, then accept requests again."""
        self._calls: dict[ReplyTo, Call] = {}
        self._requests: dict[ReplyTo, Request] = {}
        self._needs: dict[ReplyTo, int] = {}
        """Number of log lines that must be durable before a response may leave."""
        self._outbox = Outbox[Effect]()
        self._alarms = Alarms[TimerKey](self._world, lambda key: self.feed(TimerFired(key=key)))
        self.group = folded(self._group_id, self._limits, self.disk.lines)
        self._now = Before.of(self.group)
        self._durable = DurableGroup(self._group_id, self._limits, self.disk.lines)
        self._lines: list[EncodedRecord] = list(self.disk.lines)
        self.up = True
        self._watch.on_loaded(self.group)
        self._world.record(RecordKind.COORDINATOR_UP, len(self.disk.lines), self.group.generation)
        self.feed(GroupLoaded())

    def crash(self) -> None:
        check_replay(self.group, self._lines)
        self._world.record(RecordKind.COORDINATOR_CRASHES, self.group.phase, self.group.generation)
        self.up = False
        self._alarms.off()
        self.disk.crash()
        for call in self._calls.values():
            call.fail("the connection was reset", within_ms=200)

    # -- requests ---------------------------------------------------------------------------------------------------

    def serve(self, call: Call, request: Callable[[ReplyTo], Request]) -> None:
        if not self.up:
            call.fail("connection refused", within_ms=20)
            return
        self._asked += 1
        reply_to = ReplyTo(self._asked)
        self._calls[reply_to] = call
        asked = self._requests[reply_to] = request(reply_to)
        if not isinstance(asked, Heartbeat):
            self._world.record(RecordKind.ASKED, call.worker, name_of(asked))
        self.feed(asked)

    def fresh_member_id(self, prefix: str) -> MemberId:
        self._fresh += 1
        return MemberId(f"{prefix}-{self._world.rng.getrandbits(16):04x}{self._fresh}")

    # -- the loop: step, append, release, perform -------------------------------------------------------------------

    def feed(self, event: Event) -> None:
        group, before = self.group, self._now
        with MachineCheck("groups"):
            output = self._steps.group(group, event, now_ms=self._world.now_ms)
            if not isinstance(event, Heartbeat):  # Heartbeats are nine of ten steps, and change at most one deadline.
                check_whole(group)
                self._now = Before.of(group)
        if isinstance(event, TimerFired):
            self._world.record(RecordKind.TIMER_FIRED, name_of(event.key), _member_of(event.key))
        self._watch.on_step(
            CoordinatorStep(event=event, before=before, output=output, group=group, asked=self._requests)
        )
        if group.phase is not before.phase:
            self._world.record(RecordKind.PHASE, before.phase, group.phase, group.generation)
        lines = [encode_line(self._group_id, record) for record in output.records]
        self._lines += lines
        for effect in output.effects:
            if isinstance(effect, Reply):
                self._needs[effect.to] = len(self._lines)
        self._outbox.put(output)
        if lines:
            self._world.record(RecordKind.APPENDED, *weight(lines))
            self.disk.append(lines, self._on_durable)
        self._release()

    def _on_durable(self, lines: int) -> None:
        self._world.record(RecordKind.DURABLE, lines)
        self._outbox.durable(lines)
        self._release()

    def _release(self) -> None:
        for effect in self._outbox.release():
            match effect:
                case Reply(to=to, response=response):
                    self._answer(to, response)
                case SetTimer(key=key, at_ms=at_ms):
                    self._alarms.set(key, at_ms)
                case CancelTimer(key=key):
                    self._alarms.cancel(key)

    def _answer(self, to: ReplyTo, response: Response) -> None:
        call, request = self._calls.pop(to), self._requests.pop(to)
        self._durable.check(request, response, needs=self._needs.pop(to))
        self._watch.on_reply(request, response)
        if not isinstance(request, Heartbeat) or response.error is not ErrorCode.none:
            self._world.record(
                RecordKind.ANSWERED, call.worker, name_of(request), response.error.name, *_values(response)
            )
        call.answer(response)

    @property
    def is_stable(self) -> bool:
        return self.up and self.group.phase is Phase.STABLE


def _member_of(timer: TimerKey) -> MemberId | None:
    match timer:
        case SessionTimer() | PendingMemberTimer() | NewMemberTimer():
            return timer.member_id
        case _:
            return None


def _values(response: Response) -> tuple[RecordValue, ...]:
    """The fields of ``response`` that are recorded beside its error."""
    match response:
        case JoinGroupResponse(generation=generation, protocol=protocol, leader=leader, member_id=member_id):
            return generation, protocol, leader, member_id, *(member.member_id for member in response.members)
        case SyncGroupResponse(assignment=assignment):
            return len(assignment), crc32(assignment)
        case OffsetCommitResponse(errors=errors) | OffsetDeleteResponse(errors=errors):
            return tuple(error.name for error in errors)
        case OffsetFetchResponse(offsets=offsets):
            return tuple(
                f"{partition.topic}-{partition.partition}={offsets[partition].offset}" for partition in offsets
            )
        case LeaveGroupResponse(members=members):
            return tuple(error.name for _, error in members)
        case _:
            return ()
