"""The simulated coordinator of a classic group: the real `groups` machine with the real outbox, and a disk that may
lose its unacknowledged writes."""

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
from coterie.groups.classic.state import ClassicGroupSettings, Group, GroupPhase, check_all_invariants
from coterie.groups.effects import CancelTimer, Reply, SetTimer, TimerFired
from coterie.lab.simulator.durable import DurableGroup, EncodedRecord, replay_group
from coterie.lab.simulator.invariants import AssertionsAsViolations
from coterie.lab.simulator.network import NetworkCall
from coterie.lab.simulator.records import RecordKind, RecordValue, count_size_and_checksum, recorded_name
from coterie.lab.simulator.replay import check_replay
from coterie.lab.simulator.world import FaultyDisk, SimTimers, World
from coterie.lab.steps import MachineSteps
from coterie.nouns.ids import GenerationId, GroupId, InstanceId, MemberId
from coterie.wire.errors import ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStateBeforeStep:
    """The state of a group before a step, as far as the invariant checks need it."""

    phase: GroupPhase
    generation: GenerationId
    """The number of the generation."""
    members: frozenset[MemberId]
    static_members: Mapping[InstanceId, MemberId]
    """The member id of each static member, by its instance id."""

    @classmethod
    def from_group(cls, group: Group) -> "GroupStateBeforeStep":
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
    group_before: GroupStateBeforeStep
    output: Output[Record, Effect]
    group: Group
    """The group after the step."""
    unanswered_requests: Mapping[ReplyTo, Request]
    """Every request without a response at the time of the step, by its id; also the request that is the step's
    event."""


class CoordinatorChecker(Protocol):
    """Checks every step, response and start of the coordinator. A method raises a `Violation` when an invariant is
    broken."""

    def check_step(self, step: CoordinatorStep) -> None:
        """Check a step of the machine. Called after the step, before its records are durable."""
        ...

    def check_sent_response(self, request: Request, response: Response) -> None:
        """Check ``response`` to ``request``. Called when the response is sent: the records on which it depends are
        durable."""
        ...

    def check_and_store_loaded_group(self, group: Group) -> None:
        """Set the checker's state to ``group``, which the coordinator has loaded from its log at a start, also at its
        first start. A checker may also check ``group``; that is optional. The group has its hard state, and has handled
        no event yet."""
        ...


class CoordinatorDisk(FaultyDisk):
    """The disk with the coordinator's log. All records that are appended during a write are written together by the
    next write, which calls ``on_acknowledged`` once, with the number of all its records. A crash loses the records
    whose write was not acknowledged, except the first few of the write in progress (a random number, perhaps none or
    all)."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world
        self.durable_lines: list[EncodedRecord] = []
        """The durable records, in the order of the log."""
        self._lines_in_write: list[EncodedRecord] = []
        self._lines_waiting: list[EncodedRecord] = []
        self._crash_count = 0

    def append(self, lines: Sequence[EncodedRecord], on_acknowledged: Callable[[int], None]) -> None:
        """Queue the records ``lines`` to be written. When a write is durable, ``on_acknowledged`` is called with the
        number of its records, which may come from several appends: each append must pass the same function."""
        self._lines_waiting += lines
        if not self._lines_in_write:
            self._write_waiting_lines(on_acknowledged)

    def crash(self) -> None:
        """Make the first few records of the write in progress durable (a random number, perhaps none or all), without
        an acknowledgement; lose all other records that are not durable."""
        self.durable_lines += self._lines_in_write[: self._world.rng.randint(0, len(self._lines_in_write))]
        self._lines_in_write, self._lines_waiting = [], []
        self._crash_count += 1

    def _write_waiting_lines(self, on_acknowledged: Callable[[int], None]) -> None:
        """Write all waiting records together, and then those that are appended meanwhile."""
        self._lines_in_write, self._lines_waiting = self._lines_waiting, []
        crash_count = self._crash_count

        def make_durable_unless_crashed() -> None:
            if crash_count != self._crash_count:
                return
            line_count = len(self._lines_in_write)
            self.durable_lines += self._lines_in_write
            self._lines_in_write = []
            on_acknowledged(line_count)
            if self._lines_waiting:
                self._write_waiting_lines(on_acknowledged)

        self._world.call_after(self.draw_write_duration_ms(self._world.rng), make_durable_unless_crashed)


class SimCoordinator:
    """The coordinator of one classic group, which faults crash and restart. It starts when it is created. Each crash
    first checks that a replay of all records gives the live group; each start checks the group that it loads."""

    def __init__(
        self,
        world: World,
        checker: CoordinatorChecker,
        *,
        group_id: GroupId,
        limits: ClassicGroupSettings,
        steps: MachineSteps,
    ) -> None:
        self._world = world
        self._steps = steps
        self._checker = checker
        self._group_id = group_id
        self._limits = limits
        self.disk = CoordinatorDisk(world)
        self._fresh_member_id_count = 0
        """Number of member ids made so far."""
        self._request_count = 0
        """Number of requests received so far; the next request gets this number plus 1 as its id."""
        self.is_up = False
        self.start()

    # -- start and crash ------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Load the group from the durable records, check it, and accept requests again."""
        self._open_calls: dict[ReplyTo, NetworkCall] = {}
        self._unanswered_requests: dict[ReplyTo, Request] = {}
        self._lines_required: dict[ReplyTo, int] = {}
        """For each request with a computed response, the number of log records that must be durable before the response
        may be sent."""
        self._outbox = Outbox[Effect]()
        self._timers = SimTimers[TimerKey](self._world, lambda key: self.feed_event(TimerFired(key=key)))
        self.group = replay_group(self._group_id, self._limits, self.disk.durable_lines)
        self._group_before = GroupStateBeforeStep.from_group(self.group)
        """The group's state for the checks of the next step."""
        self._durable_group = DurableGroup(self._group_id, self._limits, self.disk.durable_lines)
        self._written_lines: list[EncodedRecord] = list(self.disk.durable_lines)
        """All records that the group has written, also those that are not durable yet."""
        self.is_up = True
        self._checker.check_and_store_loaded_group(self.group)
        self._world.add_record(RecordKind.COORDINATOR_UP, len(self.disk.durable_lines), self.group.generation)
        self.feed_event(GroupLoaded())

    def crash(self) -> None:
        """Check that a replay of all records gives the live group; then crash: all calls without a response fail
        within 0.2 s, and records that are not durable may be lost.

        :raises Violation: REPLAY_IS_LIVE.
        """
        check_replay(self.group, self._written_lines)
        self._world.add_record(RecordKind.COORDINATOR_CRASHES, self.group.phase, self.group.generation)
        self.is_up = False
        self._timers.close()
        self.disk.crash()
        for call in self._open_calls.values():
            call.fail_later("the connection was reset", within_ms=200)

    # -- requests ---------------------------------------------------------------------------------------------------

    def serve_or_fail_call(self, call: NetworkCall, make_request: Callable[[ReplyTo], Request]) -> None:
        """Let the machine handle the request that ``make_request`` builds from its id. The response is sent as that of
        ``call``. The call fails if the coordinator is down, or crashes before it responds."""
        if not self.is_up:
            call.fail_later("connection refused", within_ms=20)
            return
        self._request_count += 1
        reply_to = ReplyTo(self._request_count)
        self._open_calls[reply_to] = call
        group_request = self._unanswered_requests[reply_to] = make_request(reply_to)
        if not isinstance(group_request, Heartbeat):
            self._world.add_record(RecordKind.ASKED, call.link_name, recorded_name(group_request))
        self.feed_event(group_request)

    def fresh_member_id(self, prefix: str) -> MemberId:
        """A new member id that begins with ``prefix``."""
        self._fresh_member_id_count += 1
        return MemberId(f"{prefix}-{self._world.rng.getrandbits(16):04x}{self._fresh_member_id_count}")

    # -- the loop: step, append, release, perform -------------------------------------------------------------------

    def feed_event(self, event: Event) -> None:
        """Step the machine with ``event``, check the step, and begin to write the records of the step to the log. The
        effects of the step are performed when all records of this step and of earlier steps are durable: in this call,
        if no record has to become durable first."""
        group, group_before = self.group, self._group_before
        with AssertionsAsViolations("groups"):
            output = self._steps.step_classic_group(group, event, now_ms=self._world.now_ms)
            if not isinstance(event, Heartbeat):  # Heartbeats are nine of ten steps, and change at most one deadline.
                check_all_invariants(group)
                self._group_before = GroupStateBeforeStep.from_group(group)
        if isinstance(event, TimerFired):
            self._world.add_record(RecordKind.TIMER_FIRED, recorded_name(event.key), _member_id_of_timer(event.key))
        self._checker.check_step(
            CoordinatorStep(
                event=event,
                group_before=group_before,
                output=output,
                group=group,
                unanswered_requests=self._unanswered_requests,
            )
        )
        if group.phase is not group_before.phase:
            self._world.add_record(RecordKind.PHASE, group_before.phase, group.phase, group.generation)
        lines = [encode_record(self._group_id, record) for record in output.records]
        self._written_lines += lines
        for effect in output.effects:
            if isinstance(effect, Reply):
                self._lines_required[effect.to] = len(self._written_lines)
        self._outbox.put(output)
        if lines:
            self._world.add_record(RecordKind.APPENDED, *count_size_and_checksum(lines))
            self.disk.append(lines, self._mark_durable_and_perform_effects)
        self._perform_durable_effects()

    def _mark_durable_and_perform_effects(self, line_count: int) -> None:
        """Record that the next ``line_count`` records are durable now, and perform the effects that waited for them."""
        self._world.add_record(RecordKind.DURABLE, line_count)
        self._outbox.mark_durable(line_count)
        self._perform_durable_effects()

    def _perform_durable_effects(self) -> None:
        """Perform the effects that no longer wait for records: the records of their steps are durable."""
        for effect in self._outbox.pop_durable_effects():
            match effect:
                case Reply(to=reply_to, response=response):
                    self._check_and_send_response(reply_to, response)
                case SetTimer(key=key, at_ms=at_ms):
                    self._timers.set(key, at_ms)
                case CancelTimer(key=key):
                    self._timers.cancel(key)

    def _check_and_send_response(self, reply_to: ReplyTo, response: Response) -> None:
        """Check the response to the request ``reply_to``, and send it."""
        call, request = self._open_calls.pop(reply_to), self._unanswered_requests.pop(reply_to)
        self._durable_group.check_response_is_durable(
            request, response, lines_required=self._lines_required.pop(reply_to)
        )
        self._checker.check_sent_response(request, response)
        if not isinstance(request, Heartbeat) or response.error is not ErrorCode.none:
            self._world.add_record(
                RecordKind.ANSWERED,
                call.link_name,
                recorded_name(request),
                response.error.name,
                *_recorded_values_of_response(response),
            )
        call.respond(response)

    @property
    def is_up_with_stable_group(self) -> bool:
        """Whether the coordinator runs and the group is STABLE."""
        return self.is_up and self.group.phase is GroupPhase.STABLE


def _member_id_of_timer(timer: TimerKey) -> MemberId | None:
    """The member id in a timer's key; None if the timer belongs to no member."""
    match timer:
        case SessionTimer() | PendingMemberTimer() | NewMemberTimer():
            return timer.member_id
        case _:
            return None


def _recorded_values_of_response(response: Response) -> tuple[RecordValue, ...]:
    """The values of ``response`` that are recorded in addition to its error."""
    match response:
        case JoinGroupResponse(generation=generation, protocol=protocol, leader=leader, member_id=member_id):
            return generation, protocol, leader, member_id, *(member.member_id for member in response.members)
        case SyncGroupResponse(assignment=assignment):
            return len(assignment), crc32(assignment)
        case OffsetCommitResponse(partition_errors=errors) | OffsetDeleteResponse(partition_errors=errors):
            return tuple(error.name for error in errors)
        case OffsetFetchResponse(offsets=offsets):
            return tuple(
                f"{partition.topic}-{partition.partition}={offsets[partition].offset}" for partition in offsets
            )
        case LeaveGroupResponse(members=members):
            return tuple(error.name for _, error in members)
        case _:
            return ()
