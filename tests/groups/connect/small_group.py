"""A connect group of two workers in which the order of all events is chosen: the real coordinator and the real members,
the real assignor, and the checks of the simulator's play `connect`.

A state is reached by a path of choices from a settled group. Nothing is copied: a path is played from its begin.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import combinations
from typing import TypeAlias

from coterie.assignors.connect.cooperative import CooperativeAssignor
from coterie.assignors.members import RebalancePolicy
from coterie.groups.connect.machine import step as step_group
from coterie.groups.connect.messages import (
    ComputeTarget,
    ConnectionClosed,
    EmptyGroupExpiryTimer,
    Event,
    GroupLoaded,
    GroupState,
    Record,
    ReleaseHeldResponse,
    TargetComputed,
)
from coterie.groups.connect.messages import Request as GroupRequest
from coterie.groups.connect.messages import Response as GroupResponse
from coterie.groups.connect.settings import ConnectGroupSettings
from coterie.groups.connect.state import Group, apply_record, check_all_invariants
from coterie.groups.effects import Reply, TimerFired
from coterie.lab.connect_translation import to_coordinator_request, to_worker_response
from coterie.lab.simulator.connect.coordinator import ConnectCoordinatorStep
from coterie.lab.simulator.connect.group_state import HardState
from coterie.lab.simulator.connect.response_checks import ResponseChecker
from coterie.lab.simulator.connect.step_checks import CoordinatorStepChecker
from coterie.lab.simulator.world import World
from coterie.member import events
from coterie.member.connect.machine import step as step_member
from coterie.member.connect.messages import Event as MemberEvent
from coterie.member.connect.messages import Request, Response, Timer
from coterie.member.connect.state import Member, MemberSettings, OfferedAssignor
from coterie.nouns.ids import ConfigOffset, GroupId, LeaderEpoch, MemberId, ReplyTo, WorkerUrl
from coterie.nouns.jobs import NO_JOBS, Jobs
from coterie.nouns.membership import (
    Assigned,
    ConnectAssignmentDetails,
    InstallTarget,
    LeaseRenewed,
    Leave,
    MembershipLost,
    SetConfiguredJobs,
    SetWorkerState,
    TargetRequested,
)

GROUP = GroupId("small")
SETTINGS = ConnectGroupSettings(
    session_timeout_ms=6_000, assignment_interval_ms=0, initial_rebalance_delay_ms=0, server_assignors=("cooperative",)
)
_OFFERED = OfferedAssignor(name="cooperative", minimum_version=0, maximum_version=3, metadata_version=3)
_ASSIGNOR = CooperativeAssignor(RebalancePolicy(max_delay_ms=0))

Choice: TypeAlias = tuple[str, str, int]
"""What happens next: its name, the worker, and the number of records that are durable if the coordinator crashes."""


@dataclass(slots=True)
class Connection:
    """A connection of a worker."""

    number: int
    requests: deque[events.Send[Request]] = field(default_factory=deque)
    """The requests that the coordinator has not received."""
    unanswered: deque[tuple[ReplyTo, events.RequestId]] = field(default_factory=deque)
    """The requests that the coordinator has received and not answered, in order."""
    ready: dict[ReplyTo, GroupResponse] = field(default_factory=dict)
    responses: deque[tuple[events.RequestId, Response]] = field(default_factory=deque)
    """The responses that the worker has not received."""


class SmallWorker:
    """A worker: a real member, and a herder that runs what is assigned, and stops other jobs when it is chosen to."""

    def __init__(self, group: "SmallGroup", name: str, member_id: str, *, uses_server_assignor: bool) -> None:
        self.group = group
        self.name = member_id
        self.member = Member(
            MemberSettings(
                group_id=GROUP,
                member_id=MemberId(member_id),
                url=WorkerUrl(f"http://{name}"),
                assignors=() if uses_server_assignor else (_OFFERED,),
                server_assignor="cooperative" if uses_server_assignor else None,
                rebalance_timeout_ms=30_000,
                config_topic_id=bytes(16),
                coordinator_hold_max_ms=1_000,
            )
        )
        self.connection: Connection | None = None
        self.timers: dict[Timer, int] = {}
        self.assigned = NO_JOBS
        self.running = NO_JOBS
        self.session_ends_ms = 0
        self.leader_epoch: LeaderEpoch | None = None
        """The last leader's appointment of which this worker knows."""
        self.has_left = False

    def feed(self, event: MemberEvent) -> None:
        """Let the member process ``event``, and then what the herder orders in consequence."""
        inbox: deque[MemberEvent] = deque([event])
        while inbox and not self.has_left:
            for effect in step_member(self.member, inbox.popleft(), now_ms=self.group.now_ms).effects:
                match effect:
                    case events.Send():
                        if self.connection is None:
                            self.group.connection_count += 1
                            self.connection = Connection(self.group.connection_count)
                        self.connection.requests.append(effect)
                    case events.SetTimer(timer=timer, at_ms=at_ms):
                        self.timers[timer] = at_ms
                    case events.CancelTimer(timer=timer):
                        self.timers.pop(timer, None)
                    case Assigned():
                        inbox.extend(self.start_assigned(effect))
                    case LeaseRenewed(lease_ends_ms=lease_ends_ms, session_timeout_ms=timeout_ms):
                        self.session_ends_ms = lease_ends_ms + timeout_ms // 3
                    case MembershipLost():
                        self.assigned = NO_JOBS
                        inbox.append(self.state())
                    case TargetRequested(token=token, snapshot=snapshot):
                        inbox.append(InstallTarget(token=token, target=_ASSIGNOR.assign(snapshot)))
                    case events.MemberEnded():
                        self.has_left = True
                        self.running = NO_JOBS
                    case _:
                        pass

    def state(self) -> SetWorkerState:
        return SetWorkerState(config_offset=ConfigOffset(1), owned=self.running | self.assigned)

    def start_assigned(self, assigned: Assigned) -> Iterator[MemberEvent]:
        """Run the assigned jobs; yields what the herder orders then."""
        assert isinstance(assigned.protocol_details, ConnectAssignmentDetails)
        self.assigned = assigned.jobs
        self.running |= assigned.jobs
        yield self.state()
        if assigned.protocol_details.leader_epoch != self.leader_epoch:
            self.leader_epoch = assigned.protocol_details.leader_epoch
            yield self.configured_jobs(self.leader_epoch)

    def configured_jobs(self, leader_epoch: LeaderEpoch) -> SetConfiguredJobs:
        return SetConfiguredJobs(
            leader_epoch=leader_epoch, config_offset=self.group.config_offset, jobs=self.group.jobs
        )

    def stop_surplus(self) -> None:
        """The jobs that are no longer assigned have stopped."""
        self.running &= self.assigned
        self.feed(self.state())

    def break_connection(self) -> None:
        """The worker sees the end of its connection."""
        connection, self.connection = self.connection, None
        if connection is not None:
            lost = [sent.id for sent in connection.requests]
            lost += [id_ for _, id_ in connection.unanswered]
            lost += [id_ for id_, _ in connection.responses]
            for request_id in sorted(lost):
                self.feed(events.RequestFailed(id=request_id, reason="the connection broke"))


class SmallGroup:
    """Two workers, their connections, and the coordinator."""

    def __init__(self, jobs: Jobs, *, uses_server_assignor: bool) -> None:
        self.jobs = jobs
        self.config_offset = ConfigOffset(1)
        self.faults_left = 0
        self._uses_server_assignor = uses_server_assignor
        self._clock = World(0)
        self.connection_count = 0
        self._request_count = 0
        self._steps = CoordinatorStepChecker(self._clock)
        self._responses = ResponseChecker()
        self._log: list[Record] = []
        self._requests: dict[ReplyTo, tuple[GroupRequest, Connection | None]] = {}
        self._late: list[tuple[Connection, SmallWorker, events.Send[Request]]] = []
        """Requests of broken connections that have not arrived."""
        self.group = Group(GROUP, SETTINGS)
        self.workers: dict[str, SmallWorker] = {}
        self._hand_to_group(GroupLoaded())

    @property
    def now_ms(self) -> int:
        return self._clock.now_ms

    # -- workers ------------------------------------------------------------------------------------------------------

    def start(self, name: str, member_id: str | None = None) -> None:
        """Start a process of the worker ``name``, which knows the configured jobs. With ``member_id`` it takes the
        place of a former process."""
        worker = SmallWorker(self, name, member_id or name, uses_server_assignor=self._uses_server_assignor)
        self.workers[member_id or name] = worker
        worker.feed(events.MemberStarted())
        worker.feed(worker.state())

    def leave(self, name: str, *, is_permanent: bool) -> None:
        """Let a worker stop all its jobs and leave."""
        worker = self.workers[name]
        worker.assigned = worker.running = NO_JOBS
        worker.feed(worker.state())
        worker.feed(Leave(reason="chosen", is_permanent=is_permanent))

    def configure(self, jobs: Jobs) -> None:
        """All workers read other configured jobs."""
        self.jobs, self.config_offset = jobs, ConfigOffset(2)
        for worker in self.workers.values():
            if worker.leader_epoch is not None:
                worker.feed(worker.configured_jobs(worker.leader_epoch))

    # -- the coordinator ----------------------------------------------------------------------------------------------

    def _hand_to_group(self, event: Event, *, crash_after: int | None = None) -> bool:
        """Step the coordinator, which crashes when ``crash_after`` records of the step are durable. Returns whether it
        has crashed."""
        before = HardState.from_group(self.group)
        output = step_group(self.group, event, now_ms=self.now_ms)
        check_all_invariants(self.group)
        self._steps.check_step(
            ConnectCoordinatorStep(event=event, hard_state_before=before, output=output, group=self.group)
        )
        if crash_after is not None and crash_after <= len(output.records):
            self._log += output.records[:crash_after]
            return True
        self._log += output.records
        computed: list[Event] = []
        for effect in output.effects:
            match effect:
                case Reply(to=to, response=response):
                    self._on_reply(to, response)
                case ComputeTarget(snapshot=snapshot):
                    target = _ASSIGNOR.assign(snapshot)
                    computed.append(TargetComputed(group_epoch=snapshot.group_epoch, target=target))
                case _:
                    pass  # The coordinator's timers are in `Group.deadlines`.
        for result in computed:
            self._hand_to_group(result)
        return False

    def _on_reply(self, to: ReplyTo, response: GroupResponse) -> None:
        request, connection = self._requests.pop(to)
        self._responses.check_sent_response(request, response)
        if connection is None:
            return
        connection.ready[to] = response
        while connection.unanswered and connection.unanswered[0][0] in connection.ready:
            answered, request_id = connection.unanswered.popleft()
            connection.responses.append((request_id, to_worker_response(connection.ready.pop(answered))))

    def _crash(self) -> None:
        """The coordinator ends and reads its log; all connections end."""
        self._requests.clear()
        self.group = Group(GROUP, SETTINGS)
        for record in self._log:
            apply_record(self.group, record)
        self._responses.check_and_store_loaded_group(self.group)
        self._steps.check_and_store_loaded_group(self.group)
        self._hand_to_group(GroupLoaded())
        for worker in self.workers.values():
            worker.break_connection()

    def _receive(
        self, worker: SmallWorker, connection: Connection, send: events.Send[Request], crash_after: int | None
    ) -> None:
        """The coordinator receives a request; a late one has a connection that has ended."""
        is_open = connection is worker.connection
        if is_open:
            for waiting, _ in tuple(connection.unanswered):
                self._hand_to_group(ReleaseHeldResponse(reply_to=waiting, member_id=MemberId(worker.name)))
        self._request_count += 1
        reply_to = ReplyTo(self._request_count)
        request = to_coordinator_request(send.request, reply_to, connection=connection.number, client_id=worker.name)
        self._requests[reply_to] = (request, connection if is_open else None)
        if is_open:
            connection.unanswered.append((reply_to, send.id))
        if self._hand_to_group(request, crash_after=crash_after):
            self._crash()

    # -- choices ------------------------------------------------------------------------------------------------------

    def choices(self) -> Iterator[Choice]:
        """What may happen next, in a fixed order; the first choice is what happens without faults."""
        for name, worker in self.workers.items():
            connection = worker.connection
            if not worker.running <= worker.assigned:
                yield "stop", name, 0
            if connection is not None and connection.responses:
                yield "response", name, 0
            if connection is not None and connection.requests:
                yield "request", name, 0
        if self._late:
            yield "late", "", 0
        if self._next_timer() is not None:
            yield "time", "", 0
        if not self.faults_left:
            return
        for name, worker in self.workers.items():
            connection = worker.connection
            if connection is None or worker.has_left:
                continue
            yield "break", name, 0
            if connection.requests:
                yield "break late", name, 0
                yield from (("crash", name, durable_count) for durable_count in range(5))
            elif not connection.responses:
                yield "fin", name, 0

    def choose_first(self, count: int) -> None:
        """Let what happens without faults happen, ``count`` times."""
        for _ in range(count):
            self.choose(next(self.choices()))

    def choose(self, choice: Choice) -> None:
        """Let ``choice`` happen."""
        kind, name, durable_count = choice
        worker = self.workers.get(name)
        if kind in ("break", "break late", "crash", "fin"):
            self.faults_left -= 1
        if worker is None:
            if kind == "late":
                former_connection, sender, send = self._late.pop(0)
                self._receive(sender, former_connection, send, None)
            else:
                self._pass_time()
            return
        connection = worker.connection
        match kind:
            case "stop":
                worker.stop_surplus()
            case "response":
                assert connection is not None
                request_id, response = connection.responses.popleft()
                worker.feed(events.ResponseReceived(id=request_id, response=response))
            case "request" | "crash":
                assert connection is not None
                self._receive(
                    worker, connection, connection.requests.popleft(), durable_count if kind == "crash" else None
                )
            case "break":
                worker.break_connection()
            case "break late":
                assert connection is not None
                self._late += [(connection, worker, send) for send in connection.requests]
                worker.break_connection()
            case _:
                # A proxy has closed the connection, and the worker sees it, too.
                assert connection is not None
                self._hand_to_group(ConnectionClosed(connection_number=connection.number, member_ids=(MemberId(name),)))
                worker.break_connection()

    def _next_timer(self) -> int | None:
        """The time of the next timer."""
        # A group that expires is followed by another one, which begins with epoch 1: its expiry is not explored.
        times = [at_ms for key, at_ms in self.group.deadlines.items() if not isinstance(key, EmptyGroupExpiryTimer)]
        times += [at_ms for worker in self.workers.values() for at_ms in worker.timers.values() if not worker.has_left]
        return min(times, default=None)

    def _pass_time(self) -> None:
        """Let time pass until the next timer, and fire it. A worker that has lost its membership stops before that."""
        at_ms = self._next_timer()
        assert at_ms is not None
        for worker in self.workers.values():
            if not worker.running <= worker.assigned and worker.assigned == NO_JOBS:
                worker.stop_surplus()
        self._clock.run_until(max(self.now_ms, at_ms))
        for worker in self.workers.values():
            for timer in [timer for timer, timer_ms in worker.timers.items() if timer_ms <= self.now_ms]:
                worker.timers.pop(timer, None)
                worker.feed(events.TimerFired(timer=timer))
        for key in [key for key, key_ms in self.group.deadlines.items() if key_ms <= self.now_ms]:
            self._hand_to_group(TimerFired(key=key))

    # -- checks -------------------------------------------------------------------------------------------------------

    def check_one_owner(self) -> None:
        """No job runs on both workers while the sessions of both run (I1)."""
        live = [worker for worker in self.workers.values() if self.now_ms < worker.session_ends_ms]
        for first, second in combinations(live, 2):
            shared = first.running & second.running
            assert not shared, f"{list(map(str, shared))} on both workers"

    def settle(self) -> None:
        """Without further faults the group becomes stable, and each job runs once (L1)."""
        self.faults_left = 0
        for _ in range(400):
            if self.is_settled():
                return
            self.choose(next(self.choices()))
            self.check_one_owner()
        raise AssertionError(
            f"not settled: {self.group.group_state()}, {[(w.name, w.running) for w in self.workers.values()]}"
        )

    def is_settled(self) -> bool:
        """Whether the group is stable, and its members run what is configured."""
        present = [worker for worker in self.workers.values() if not worker.has_left]
        running = [job for worker in present for job in worker.running]
        is_there = self.group.members.keys() == {worker.name for worker in present}
        have_assigned_jobs = all(
            worker.running == worker.assigned == self.group.currents[MemberId(worker.name)].assigned
            for worker in present
            if worker.name in self.group.currents
        )
        is_stable = self.group.group_state() in (GroupState.STABLE, GroupState.EMPTY)
        return (
            is_stable
            and is_there
            and have_assigned_jobs
            and sorted(map(str, running)) == sorted(map(str, self.jobs if present else NO_JOBS))
        )

    def fingerprint(self) -> tuple[object, ...]:
        """All that determines what may follow, as text."""
        group = self.group
        soft = (group.sessions, group.computation, group.failed_members, group.computed_at_ms, group.deadlines)
        workers = [
            (
                one.member.place, one.member.heartbeat, one.member.computation, one.member.ending,
                one.member.older_heartbeats, one.member.worker_state, one.member.assigned_unconfirmed,
                one.member.retries, one.timers, one.assigned, one.running, one.connection, one.has_left,
            )
            for one in self.workers.values()
        ]  # fmt: skip
        return (self.now_ms, self.faults_left, *map(repr, (HardState.from_group(group), soft, workers, self._late)))


def explore(begin: Callable[[], SmallGroup], *, depth: int) -> int:
    """Visit every state that at most ``depth`` choices reach, each once, and check it. From every state at that depth
    the group must settle. Returns the number of states."""
    seen: set[tuple[object, ...]] = set()
    paths: list[tuple[Choice, ...]] = [()]
    for level in range(depth + 1):
        next_paths: list[tuple[Choice, ...]] = []
        for path in paths:
            small = begin()
            try:
                for choice in path:
                    small.choose(choice)
                    small.check_one_owner()
                fingerprint = small.fingerprint()
                if fingerprint in seen:
                    continue
                seen.add(fingerprint)
                if level == depth:
                    small.settle()
                    continue
                choices = list(small.choices())
            except Exception as error:
                error.add_note(f"after {path}")
                raise
            next_paths += [(*path, choice) for choice in choices]
        paths = next_paths
    return len(seen)
