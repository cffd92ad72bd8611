"""The simulated coordinator of a connect group: the real `groups` machine with the real outbox, and a disk that may
lose its unacknowledged writes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from coterie.engine.output import Outbox, Output
from coterie.groups.connect.log_records import encode_record
from coterie.groups.connect.messages import (
    ComputeTarget,
    ConnectionClosed,
    ConnectionGraceTimer,
    Effect,
    Event,
    GroupLoaded,
    GroupState,
    Heartbeat,
    HeldJobsTimer,
    RebalanceDelayTimer,
    Record,
    ReleaseHeldResponse,
    Request,
    Response,
    ResponseHoldTimer,
    RevocationTimer,
    SessionTimer,
    TargetComputed,
    TimerKey,
)
from coterie.groups.connect.settings import ConnectGroupSettings
from coterie.groups.connect.state import Group, check_all_invariants
from coterie.groups.effects import CancelTimer, Reply, SetTimer, TimerFired
from coterie.lab.simulator.connect.group_state import (
    DurableGroup,
    EncodedRecord,
    HardState,
    check_replay,
    compact_lines,
    replay_group,
)
from coterie.lab.simulator.coordinator import CoordinatorDisk
from coterie.lab.simulator.invariants import AssertionsAsViolations
from coterie.lab.simulator.records import RecordKind, RecordValue, count_size_and_checksum, jobs_text, recorded_name
from coterie.lab.simulator.world import SimTimers, World
from coterie.lab.steps import MachineSteps
from coterie.nouns.connect_error_codes import ConnectErrorCode
from coterie.nouns.connect_groups import JOIN_EPOCH, HeartbeatResponse
from coterie.nouns.ids import GroupId, MemberId, ReplyTo
from coterie.nouns.target_assignments import ComputedTarget, GroupSnapshot

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectCoordinatorStep:
    """One step of the group's machine, for the invariant checks."""

    event: Event
    hard_state_before: HardState
    """The group's hard state, which its records determine, before the step."""
    output: Output[Record, Effect]
    group: Group
    """The group after the step."""

    @property
    def is_accepted_heartbeat(self) -> bool:
        """Whether the event of this step is a heartbeat that the machine has not refused in this step."""
        if not isinstance(self.event, Heartbeat):
            return False
        return not any(
            isinstance(effect, Reply) and effect.to == self.event.reply_to and _has_refusing_error(effect.response)
            for effect in self.output.effects
        )


class ConnectCoordinatorChecker(Protocol):
    """Checks every step, response and start of the coordinator. A method raises a `Violation` when an invariant is
    broken."""

    def check_step(self, step: ConnectCoordinatorStep) -> None:
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


class ServerAssignor(Protocol):
    """The assignor of the coordinator, which may fail."""

    def compute_duration_and_target(self, snapshot: GroupSnapshot) -> tuple[int, ComputedTarget | None]:
        """How many ms the computation takes, and the computed target; None in place of the target if the computation
        fails."""
        ...


class SimConnectCoordinator:
    """The coordinator of one connect group, which faults crash and restart. It starts when it is created. Each crash
    first checks that a replay of all records gives the hard state of the live group; each start checks the group that
    it loads, in half of the cases from a log whose first part was compacted."""

    def __init__(
        self,
        world: World,
        checker: ConnectCoordinatorChecker,
        *,
        group_id: GroupId,
        settings: ConnectGroupSettings,
        assignor: ServerAssignor,
        steps: MachineSteps,
    ) -> None:
        self._world = world
        self._steps = steps
        self._checker = checker
        self._group_id = group_id
        self._settings = settings
        self._assignor = assignor
        self.disk = CoordinatorDisk(world)
        self.on_crash: Callable[[], None] = lambda: None
        """Called when the coordinator has crashed; it must end all connections."""
        self._request_count = 0
        self._start_count = 0
        self.installed_target_count = 0
        """Number of target assignments installed so far, also by steps whose records a crash has lost."""
        self.is_up = False
        self.start()

    # -- start and crash ------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Load the group from the durable records, check it, and accept requests again. In half of the starts a random
        first part of the records is compacted before."""
        if self._world.draw_bool(0.5):
            # A log cleaner compacts a log up to any record.
            lines = self.disk.durable_lines
            cleaned_count = self._world.rng.randint(0, len(lines))
            lines[:cleaned_count] = compact_lines(lines[:cleaned_count])
        self._start_count += 1
        self._respond_to: dict[ReplyTo, Callable[[Response], None]] = {}
        self._unanswered_requests: dict[ReplyTo, Request] = {}
        self._lines_required: dict[ReplyTo, int] = {}
        """For each request with a computed response, the number of log records that must be durable before the response
        may be sent."""
        self._outbox = Outbox[Effect]()
        self._timers = SimTimers[TimerKey](self._world, lambda key: self.feed_event(TimerFired(key=key)))
        self.group = replay_group(self._group_id, self._settings, self.disk.durable_lines)
        self._hard_state_before_step = HardState.from_group(self.group)
        """The group's hard state before the next step, for the checks of that step."""
        self._durable_group = DurableGroup(self._group_id, self._settings, self.disk.durable_lines)
        self._written_lines: list[EncodedRecord] = list(self.disk.durable_lines)
        """All records that the group has written, also those that are not durable yet."""
        self.is_up = True
        self._checker.check_and_store_loaded_group(self.group)
        self._world.add_record(RecordKind.COORDINATOR_UP, len(self.disk.durable_lines), self.group.group_epoch)
        self.feed_event(GroupLoaded())

    def crash(self) -> None:
        """Check that a replay of all records gives the hard state of the live group; then crash: records that are not
        durable may be lost, and all connections end.

        :raises Violation: REPLAY_IS_LIVE.
        """
        check_replay(self.group, self._settings, self._written_lines)
        self._world.add_record(RecordKind.COORDINATOR_CRASHES, self.group.group_state(), self.group.group_epoch)
        self.is_up = False
        self._timers.close()
        self.disk.crash()
        self.on_crash()

    # -- requests ---------------------------------------------------------------------------------------------------

    def fresh_reply_to(self) -> ReplyTo:
        """A new request id, by which the response finds its request."""
        self._request_count += 1
        return ReplyTo(self._request_count)

    def serve(self, client: str, request: Request, respond: Callable[[Response], None]) -> None:
        """Let the machine handle ``request`` of the worker or operator ``client``. ``respond`` is called with the
        response; never if the coordinator crashes before. The coordinator must be up."""
        self._respond_to[request.reply_to] = respond
        self._unanswered_requests[request.reply_to] = request
        if _is_request_in_digest(request):
            self._world.add_record(
                RecordKind.ASKED, client, recorded_name(request), *_recorded_values_of_request(request)
            )
        self.feed_event(request)

    def inspect_group(self, group_id: GroupId, look: Callable[[Group], T]) -> T | None:
        """Call ``look`` with the group, and return the result; None if the coordinator is down. ``group_id`` must be
        that of this coordinator's group."""
        assert group_id == self._group_id, "the group is not that of this coordinator"
        return look(self.group) if self.is_up else None

    def notify(self, group_id: GroupId, notification: ConnectionClosed | ReleaseHeldResponse) -> None:
        """Let the machine handle ``notification`` now, unless the coordinator is down. ``group_id`` must be that of
        this coordinator's group."""
        assert group_id == self._group_id, "the group is not that of this coordinator"
        if self.is_up:
            self.feed_event(notification)

    # -- the loop: step, append, release, perform -------------------------------------------------------------------

    def feed_event(self, event: Event) -> None:
        """Step the machine with ``event``, check the step, and begin to write the records of the step to the log. The
        effects of the step are performed when all records of this step and of earlier steps are durable: in this call,
        if no record has to become durable first."""
        group, before = self.group, self._hard_state_before_step
        # Before the first step a group may have what an incomplete step has left.
        state_before = None if isinstance(event, GroupLoaded) else group.group_state()
        with AssertionsAsViolations("groups"):
            output = self._steps.step_connect_group(group, event, now_ms=self._world.now_ms)
            if output.records or isinstance(event, GroupLoaded):  # Otherwise the hard state has not changed.
                check_all_invariants(group)
                self._hard_state_before_step = HardState.from_group(group)
        if isinstance(event, TimerFired) and not isinstance(event.key, ResponseHoldTimer):
            member_id = _member_id_of_timer(event.key)
            self._world.add_record(RecordKind.TIMER_FIRED, recorded_name(event.key), member_id)
        self._checker.check_step(
            ConnectCoordinatorStep(event=event, hard_state_before=before, output=output, group=group)
        )
        if state_before is not None and group.group_state() is not state_before:
            self._world.add_record(RecordKind.PHASE, state_before, group.group_state(), group.group_epoch)
        if group.assignment_epoch > before.assignment_epoch:
            self.installed_target_count += 1
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
                case ComputeTarget(snapshot=snapshot):
                    self._begin_computation(snapshot)

    def _begin_computation(self, snapshot: GroupSnapshot) -> None:
        """Let the assignor of the coordinator compute a target for ``snapshot``. When the computation ends, its result
        is an event for the machine, unless the coordinator has crashed since."""
        start_count = self._start_count
        duration_ms, target = self._assignor.compute_duration_and_target(snapshot)

        def feed_target_unless_restarted() -> None:
            if self.is_up and start_count == self._start_count:
                self.feed_event(TargetComputed(group_epoch=snapshot.group_epoch, target=target))

        self._world.add_record(RecordKind.COMPUTES, "coordinator", snapshot.group_epoch, target is not None)
        self._world.call_after(duration_ms, feed_target_unless_restarted)

    def _check_and_send_response(self, reply_to: ReplyTo, response: Response) -> None:
        """Check the response to the request ``reply_to``, and send it."""
        respond, request = self._respond_to.pop(reply_to), self._unanswered_requests.pop(reply_to)
        self._durable_group.check_response_is_durable(
            request, response, lines_required=self._lines_required.pop(reply_to)
        )
        self._checker.check_sent_response(request, response)
        if (
            _is_request_in_digest(request)
            or response.error is not ConnectErrorCode.NONE
            or _response_has_assignment(response)
        ):
            self._world.add_record(
                RecordKind.ANSWERED,
                recorded_name(request),
                response.error.name,
                *_recorded_values_of_response(request, response),
            )
        respond(response)

    @property
    def is_up_with_stable_group(self) -> bool:
        """Whether the coordinator runs and the group is STABLE."""
        return self.is_up and self.group.group_state() is GroupState.STABLE


def _has_refusing_error(response: Response) -> bool:
    """Whether ``response`` has an error that refuses its request; COMPUTE_ASSIGNMENT does not."""
    return response.error not in (ConnectErrorCode.NONE, ConnectErrorCode.COMPUTE_ASSIGNMENT)


def _is_request_in_digest(request: Request) -> bool:
    """Whether ``request`` and its response are added to the records of the simulation. Of heartbeats, only those are
    recorded with which a member joins or leaves, or reports the configured jobs; the response to another heartbeat is
    recorded only if it has an error or an assignment."""
    return not isinstance(request, Heartbeat) or request.member_epoch <= JOIN_EPOCH or request.configured is not None


def _response_has_assignment(response: Response) -> bool:
    return isinstance(response, HeartbeatResponse) and response.assignment is not None


def _member_id_of_timer(timer: TimerKey) -> MemberId | None:
    """The member id in a timer's key; None if the timer belongs to no member."""
    match timer:
        case (
            SessionTimer()
            | RevocationTimer()
            | ResponseHoldTimer()
            | ConnectionGraceTimer()
            | HeldJobsTimer()
            | RebalanceDelayTimer()
        ):
            return timer.member_id
        case _:
            return None


def _recorded_values_of_request(request: Request) -> tuple[RecordValue, ...]:
    """The values of ``request`` that are recorded in addition to its name."""
    if isinstance(request, Heartbeat):
        return request.member_id, request.member_epoch, request.request_number
    return ()


def _recorded_values_of_response(request: Request, response: Response) -> tuple[RecordValue, ...]:
    """The values of ``response`` that are recorded in addition to its error."""
    member_id = getattr(request, "member_id", None)
    if isinstance(response, HeartbeatResponse):
        jobs = None if response.assignment is None else jobs_text(response.assignment.jobs)
        return member_id, response.member_epoch, jobs
    return (member_id,)
