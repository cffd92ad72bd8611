"""The coordinator of the simulation: the real `groups` machine with the real outbox, and a disk that may lose its
unacknowledged writes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol
from zlib import crc32

from coterie.engine.output import Outbox, Output
from coterie.groups.classic.log_records import encode_record
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
from coterie.groups.classic.state import Group, Limits, Phase, check_all
from coterie.groups.effects import CancelTimer, Reply, SetTimer, TimerFired
from coterie.lab.simulator.durable import DurableGroup, EncodedRecord, replay_group
from coterie.lab.simulator.invariants import MachineCheck
from coterie.lab.simulator.network import Call
from coterie.lab.simulator.records import RecordKind, RecordValue, recorded_name, size_and_checksum
from coterie.lab.simulator.replay import check_replay
from coterie.lab.simulator.world import FaultyDisk, SimTimers, World
from coterie.lab.steps import Steps
from coterie.nouns.ids import Generation, GroupId, InstanceId, MemberId
from coterie.wire.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupBefore:
    """The state of a group before a step, as far as the invariant checks need it."""

    phase: Phase
    generation: Generation
    members: frozenset[MemberId]
    static_members: Mapping[InstanceId, MemberId]

    @classmethod
    def of(cls, group: Group) -> "GroupBefore":
        """The present state of ``group``."""
        return cls(
            phase=group.phase,
            generation=group.generation,
            members=frozenset(group.members),
            static_members=dict(group.static_members),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorStep:
    """One step of a group's machine, for the invariant checks."""

    event: Event
    before: GroupBefore
    output: Output[Record, Effect]
    group: Group
    """The group after the step."""
    asked: Mapping[ReplyTo, Request]
    """Every request that has received no response yet, by its id; that of this step, too."""


class CoordinatorChecker(Protocol):
    """Checks every step, response and start of the coordinator. A method raises a `Violation` when an invariant is
    broken."""

    def on_step(self, step: CoordinatorStep) -> None:
        """The machine has processed an event; its records are not durable yet."""
        ...

    def on_reply(self, request: Request, response: Response) -> None:
        """A response is being sent; the records on which it depends are durable."""
        ...

    def on_loaded(self, group: Group) -> None:
        """The coordinator has read its log at a start; ``group`` has its hard state, and has processed no event yet."""
        ...


class Disk(FaultyDisk):
    """The disk with the coordinator's log. Records that are appended during a write are written together by the next
    write. A crash may lose records whose write was not acknowledged."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world
        self.lines: list[EncodedRecord] = []
        """The durable records."""
        self._writing: list[EncodedRecord] = []
        self._waiting: list[EncodedRecord] = []
        self._life = 0

    def append(self, lines: Sequence[EncodedRecord], acknowledged: Callable[[int], None]) -> None:
        """Write the records ``lines``. ``acknowledged`` is called with the number of records of each write when they
        are durable."""
        self._waiting += lines
        if not self._writing:
            self._write(acknowledged)

    def crash(self) -> None:
        """Make the first few records of the write in progress durable (a random number, perhaps none or all), without
        an acknowledgement; lose all other records that are not durable."""
        self.lines += self._writing[: self._world.rng.randint(0, len(self._writing))]
        self._writing, self._waiting = [], []
        self._life += 1

    def _write(self, acknowledged: Callable[[int], None]) -> None:
        """Write the waiting records, and then those that come meanwhile."""
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
    """The coordinator of one group, which crashes and restarts. It starts when it is created."""

    def __init__(
        self, world: World, checker: CoordinatorChecker, *, group_id: GroupId, limits: Limits, steps: Steps
    ) -> None:
        self._world = world
        self._steps = steps
        self._checker = checker
        self._group_id = group_id
        self._limits = limits
        self.disk = Disk(world)
        self._fresh = 0
        """Number of member ids made so far."""
        self._asked = 0
        """Number of requests received so far."""
        self.up = False
        self.start()

    # -- start and crash ------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Replay the durable records, then accept requests again."""
        self._calls: dict[ReplyTo, Call] = {}
        self._requests: dict[ReplyTo, Request] = {}
        self._lines_required: dict[ReplyTo, int] = {}
        """For each request with a computed response, the number of log records that must be durable before the response
        may be sent."""
        self._outbox = Outbox[Effect]()
        self._timers = SimTimers[TimerKey](self._world, lambda key: self.feed(TimerFired(key=key)))
        self.group = replay_group(self._group_id, self._limits, self.disk.lines)
        self._now = GroupBefore.of(self.group)
        """The group's state for the checks of the next step."""
        self._durable = DurableGroup(self._group_id, self._limits, self.disk.lines)
        self._lines: list[EncodedRecord] = list(self.disk.lines)
        """All records that the group has written, durable or not."""
        self.up = True
        self._checker.on_loaded(self.group)
        self._world.record(RecordKind.COORDINATOR_UP, len(self.disk.lines), self.group.generation)
        self.feed(GroupLoaded())

    def crash(self) -> None:
        """Crash: open calls fail, and records that are not durable may be lost. Before that, check that a replay of all
        records gives the live group.

        :raises Violation: REPLAY_IS_LIVE.
        """
        check_replay(self.group, self._lines)
        self._world.record(RecordKind.COORDINATOR_CRASHES, self.group.phase, self.group.generation)
        self.up = False
        self._timers.close()
        self.disk.crash()
        for call in self._calls.values():
            call.fail("the connection was reset", within_ms=200)

    # -- requests ---------------------------------------------------------------------------------------------------

    def serve(self, call: Call, request: Callable[[ReplyTo], Request]) -> None:
        """Process the request that ``request`` builds from its id; its response is that of ``call``. The call fails if
        the coordinator is down."""
        if not self.up:
            call.fail("connection refused", within_ms=20)
            return
        self._asked += 1
        reply_to = ReplyTo(self._asked)
        self._calls[reply_to] = call
        asked = self._requests[reply_to] = request(reply_to)
        if not isinstance(asked, Heartbeat):
            self._world.record(RecordKind.ASKED, call.worker, recorded_name(asked))
        self.feed(asked)

    def fresh_member_id(self, prefix: str) -> MemberId:
        """A new member id that begins with ``prefix``."""
        self._fresh += 1
        return MemberId(f"{prefix}-{self._world.rng.getrandbits(16):04x}{self._fresh}")

    # -- the loop: step, append, release, perform -------------------------------------------------------------------

    def feed(self, event: Event) -> None:
        """Step the machine with ``event``, check the step, append its records to the log, and perform the effects whose
        records are durable."""
        group, before = self.group, self._now
        with MachineCheck("groups"):
            output = self._steps.group(group, event, now_ms=self._world.now_ms)
            if not isinstance(event, Heartbeat):  # Heartbeats are nine of ten steps, and change at most one deadline.
                check_all(group)
                self._now = GroupBefore.of(group)
        if isinstance(event, TimerFired):
            self._world.record(RecordKind.TIMER_FIRED, recorded_name(event.key), _member_of(event.key))
        self._checker.on_step(
            CoordinatorStep(event=event, before=before, output=output, group=group, asked=self._requests)
        )
        if group.phase is not before.phase:
            self._world.record(RecordKind.PHASE, before.phase, group.phase, group.generation)
        lines = [encode_record(self._group_id, record) for record in output.records]
        self._lines += lines
        for effect in output.effects:
            if isinstance(effect, Reply):
                self._lines_required[effect.to] = len(self._lines)
        self._outbox.put(output)
        if lines:
            self._world.record(RecordKind.APPENDED, *size_and_checksum(lines))
            self.disk.append(lines, self._on_durable)
        self._release()

    def _on_durable(self, lines: int) -> None:
        """The next ``lines`` records are durable: perform the effects that have waited for them."""
        self._world.record(RecordKind.DURABLE, lines)
        self._outbox.mark_durable(lines)
        self._release()

    def _release(self) -> None:
        """Perform the effects whose records are durable."""
        for effect in self._outbox.release():
            match effect:
                case Reply(to=to, response=response):
                    self._answer(to, response)
                case SetTimer(key=key, at_ms=at_ms):
                    self._timers.set(key, at_ms)
                case CancelTimer(key=key):
                    self._timers.cancel(key)

    def _answer(self, to: ReplyTo, response: Response) -> None:
        """Check the response to the request ``to``, and send it."""
        call, request = self._calls.pop(to), self._requests.pop(to)
        self._durable.check(request, response, lines_required=self._lines_required.pop(to))
        self._checker.on_reply(request, response)
        if not isinstance(request, Heartbeat) or response.error is not ErrorCode.none:
            self._world.record(
                RecordKind.ANSWERED, call.worker, recorded_name(request), response.error.name, *_values(response)
            )
        call.answer(response)

    @property
    def is_stable(self) -> bool:
        """Whether the coordinator runs and the group is STABLE."""
        return self.up and self.group.phase is Phase.STABLE


def _member_of(timer: TimerKey) -> MemberId | None:
    """The member id in a timer's key; None if the timer belongs to no member."""
    match timer:
        case SessionTimer() | PendingMemberTimer() | NewMemberTimer():
            return timer.member_id
        case _:
            return None


def _values(response: Response) -> tuple[RecordValue, ...]:
    """The values of ``response`` that are recorded in addition to its error."""
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
