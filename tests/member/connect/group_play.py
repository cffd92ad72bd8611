"""A play of a connect group: real members and the real coordinator, on a virtual clock.

Between them are connections as TCP has them: in order, and answered in order, until they break. A request on a broken
connection may still arrive, seconds later. Workers are killed, paused and relaunched, the coordinator is restarted in
the middle of a step, and the group's session timeout changes. After each event the play checks that no job runs on two
workers, unless one of them was paused beyond its session.
"""

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import TypeAlias, assert_never

from coterie.engine.timers import Timers
from coterie.groups.connect.messages import (
    ConnectionClosed,
    ErrorOnlyResponse,
    Event,
    GroupState,
    Heartbeat,
    InstallAssignment,
    PrepareAssignment,
    ReleaseHeldResponse,
    SetGroupConfigs,
)
from coterie.groups.connect.messages import Response as CoordinatorResponse
from coterie.groups.connect.settings import ConnectGroupSettings
from coterie.member.connect import messages
from coterie.member.connect.machine import step
from coterie.member.connect.messages import (
    GroupDescriptionRequest,
    GroupDescriptionResponse,
    HeartbeatRequest,
    InstallAssignmentRequest,
    PrepareAssignmentRequest,
    Request,
    Response,
    Timer,
)
from coterie.member.connect.state import Member, MemberSettings, OfferedAssignor
from coterie.member.events import (
    CancelTimer,
    MemberEnded,
    MemberStarted,
    RequestFailed,
    RequestId,
    ResponseReceived,
    Send,
    SetTimer,
    TimerFired,
    WriteLogMessage,
)
from coterie.member.seams import Step
from coterie.nouns.connect_groups import HeartbeatResponse, InstallAssignmentResponse, PrepareAssignmentResponse
from coterie.nouns.ids import ConfigOffset, GroupEpoch, GroupId, InstanceId, LeaderEpoch, MemberId, ReplyTo, WorkerUrl
from coterie.nouns.jobs import NO_JOBS, Job, Jobs
from coterie.nouns.membership import (
    Assigned,
    ConnectAssignmentDetails,
    ConnectMembershipHandover,
    GroupDescribed,
    InstallTarget,
    LeaseRenewed,
    Leave,
    MembershipEvent,
    MembershipLost,
    MembershipRefused,
    MembershipSuspended,
    MemberStateChanged,
    SetConfiguredJobs,
    SetWorkerState,
    SuspendMembership,
    TargetRequested,
    UpdateAssignor,
)
from tests.groups.connect.simple_assignor import compute
from tests.groups.connect.world import Coordinator, compacted, jobs_of

SETTINGS = ConnectGroupSettings(assignment_interval_ms=50, initial_rebalance_delay_ms=0, session_timeout_ms=9_000)
ConnectStep: TypeAlias = Step[Member, Request, Response, Timer]
COOPERATIVE = OfferedAssignor(name="cooperative", minimum_version=0, maximum_version=3, metadata_version=3)


class Connection:
    """One connection of a worker's process."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.is_open = True
        self.waiting: deque[tuple[ReplyTo, RequestId]] = deque()
        """The requests that the coordinator has received, in order; responses leave in this order."""
        self.unanswered: set[RequestId] = set()
        self.last_arrival_ms = 0
        """When the last request arrives at the coordinator."""
        self.last_response_ms = 0
        """When the last response arrives at the worker."""


class Process:
    """A worker's process: the member, and a herder that starts and stops jobs as it is told."""

    def __init__(self, play: "GroupPlay", settings: MemberSettings, place: ConnectMembershipHandover | None) -> None:
        self.play = play
        self.member = Member(settings, place)
        self.timers = Timers[Timer]()
        self.connection: Connection | None = None
        self.is_alive = True
        self.paused_until_ms = 0
        self.assigned = NO_JOBS if place is None else place.jobs
        self.running = NO_JOBS
        """The jobs that execute."""
        self.session_ends_ms = 0
        """When the session of the last accepted heartbeat ends: beyond it the process is a zombie."""
        self.has_lease = False
        self.is_ending = False
        self.losses = 0
        self.states = 0
        self.leader_epoch: LeaderEpoch | None = None
        """The last leader's appointment of which this worker knows."""
        self._reported_state: SetWorkerState | None = None

    @property
    def member_id(self) -> MemberId:
        return self.member.settings.member_id

    @property
    def is_paused(self) -> bool:
        return self.play.now_ms < self.paused_until_ms

    def feed(self, event: messages.Event) -> None:
        """Give an event to the member, when the process runs again if it is paused."""
        if not self.is_alive:
            return
        if self.is_paused:
            self.play.at(self.paused_until_ms - self.play.now_ms, lambda: self.feed(event))
            return
        for effect in self.play.step(self.member, event, now_ms=self.play.now_ms).effects:
            match effect:
                case Send():
                    self.play.send(self, effect)
                case SetTimer(timer=timer, at_ms=at_ms):
                    self.timers.set(timer, at_ms)
                case CancelTimer(timer=timer):
                    self.timers.cancel(timer)
                case WriteLogMessage(text=text):
                    self.play.add_to_trace(f"{self.member_id} logs: {text}")
                case MemberEnded():
                    self.is_alive = False
                case event_for_herder:
                    self.play.add_to_trace(f"{self.member_id} <- {event_for_herder}")
                    self.play.at(self.play.herder_delay_ms(), self._handler(event_for_herder))

    def _handler(self, event: MembershipEvent) -> Callable[[], None]:
        return lambda: self.handle(event)

    def handle(self, event: MembershipEvent) -> None:
        """The herder handles an event of the member."""
        if not self.is_alive:
            return
        if self.is_paused:
            self.play.at(self.paused_until_ms - self.play.now_ms, self._handler(event))
            return
        match event:
            case Assigned(jobs=jobs, protocol_details=token):
                assert isinstance(token, ConnectAssignmentDetails)
                self.play.check_job_epochs(self, token)
                self.follow(token.leader_epoch)
                if not self.is_ending:
                    self.assigned = jobs
                    self.start_and_stop()
            case LeaseRenewed(lease_ends_ms=lease_ends_ms, session_timeout_ms=session_timeout_ms):
                self.session_ends_ms = lease_ends_ms + session_timeout_ms // 3
                self.has_lease = True
                self.start_and_stop()
            case MembershipLost():
                self.losses += 1
                self.assigned = NO_JOBS
                self._reported_state = None
                self.start_and_stop()
            case TargetRequested(token=token, snapshot=snapshot):
                target = (
                    None
                    if self.play.is_faulty and self.play.rng.random() < 0.1
                    else compute(snapshot, delay_ms=self.play.delay_ms)
                )
                order = InstallTarget(token=token, target=target, error="" if target else "failed")
                self.play.at(self.play.herder_delay_ms(), lambda: self.feed(order))
            case MembershipSuspended(handover=place):
                self.play.relaunch(self, place)
            case MembershipRefused(reason=reason):
                raise AssertionError(f"no member of the play has a wrong setting: {reason}")
            case MemberStateChanged():
                self.states += 1
            case GroupDescribed():
                pass
            case _:
                raise AssertionError(f"{type(event).__name__} is an event of a classic group")
        self.report()

    def follow(self, leader_epoch: LeaderEpoch) -> None:
        """A leader is appointed: if it is this worker, it reports the configured jobs again."""
        if leader_epoch != self.leader_epoch:
            self.leader_epoch = leader_epoch
            self.configure()

    def start_and_stop(self) -> None:
        """Start the assigned jobs, and stop the others, which takes a moment."""
        if self.is_ending or not self.has_lease:
            return
        surplus = self.running - self.assigned
        self.running |= self.assigned
        if surplus:
            self.play.at(self.play.stop_ms(), lambda: self.stopped(surplus))

    def stopped(self, jobs: Jobs) -> None:
        if not self.is_alive:
            return
        if self.is_paused:
            self.play.at(self.paused_until_ms - self.play.now_ms, lambda: self.stopped(jobs))
            return
        self.running -= jobs - self.assigned
        self.report()

    def report(self) -> None:
        """Tell the member what this worker owns, if that has changed."""
        if self.is_ending:
            return
        state = SetWorkerState(config_offset=self.play.config_offset, owned=self.assigned | self.running)
        if state != self._reported_state:
            self._reported_state = state
            self.play.at(self.play.herder_delay_ms(), lambda: self.feed(state))

    def configure(self) -> None:
        """Tell the member which jobs are configured; after a pause, which are then. A pause that begins in another one
        would exchange two such orders."""
        if self.is_paused:
            self.play.at(self.paused_until_ms - self.play.now_ms, self.configure)
            return
        if self.leader_epoch is not None:
            offset, jobs = self.play.config_offset, self.play.configured
            self.feed(SetConfiguredJobs(leader_epoch=self.leader_epoch, config_offset=offset, jobs=jobs))

    def update_assignor(self, metadata: bytes, reason: int) -> None:
        """The assignor of this worker has other metadata, or asks for a new target assignment."""
        name, version = COOPERATIVE.name, COOPERATIVE.metadata_version
        self.feed(UpdateAssignor(name=name, metadata_version=version, metadata=metadata, reason=reason))

    def end(self, order: Leave | SuspendMembership) -> None:
        """Stop all jobs, and leave or suspend the membership."""
        self.is_ending = True
        self.running = NO_JOBS
        if isinstance(order, Leave):
            self.feed(SetWorkerState(config_offset=self.play.config_offset, owned=NO_JOBS))
        self.feed(order)


class GroupPlay:
    """Processes, connections and the coordinator on a virtual clock."""

    def __init__(self, seed: int, *, is_faulty: bool = True, step: ConnectStep = step) -> None:
        self.step = step
        self.rng = Random(seed)
        self.now_ms = 0
        self.is_faulty = is_faulty
        self.coordinator = Coordinator(SETTINGS)
        self.processes: list[Process] = []
        self.configured = NO_JOBS
        self.config_offset = ConfigOffset(1)
        self.story: deque[str] = deque(maxlen=80)
        self.delay_ms = self.rng.choice([0, 20_000])
        """How long the jobs of a departed member wait."""
        self.zombie_overlaps = 0
        self.requests: dict[MemberId, int] = {}
        """The number of heartbeats, by member."""
        self._agenda: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        self._receivers: dict[ReplyTo, tuple[Process, Connection, Request]] = {}
        self._ready: dict[ReplyTo, CoordinatorResponse] = {}
        self._owner_of_epoch: dict[tuple[Job, GroupEpoch], str] = {}

    # -- time ---------------------------------------------------------------------------------------------------------

    def at(self, in_ms: int, act: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._agenda, (self.now_ms + in_ms, self._count, act))

    def run(self, until_ms: int) -> None:
        while True:
            times = [at_ms for process in self.alive if (at_ms := process.timers.next_deadline_ms()) is not None]
            if self._agenda:
                times.append(self._agenda[0][0])
            if (timer_ms := self.coordinator.timers.next_deadline_ms()) is not None:
                times.append(timer_ms)
            if not times or max(self.now_ms, min(times)) > until_ms:
                self.now_ms = until_ms
                return
            self.now_ms = max(self.now_ms, min(times))
            while self._agenda and self._agenda[0][0] <= self.now_ms:
                heapq.heappop(self._agenda)[2]()
                self._respond()
                self.check()
            self.coordinator.fire_due(self.now_ms)
            self._respond()
            for process in self.alive:
                while (timer := process.timers.pop_due(self.now_ms)) is not None:
                    process.feed(TimerFired(timer=timer))
            self.check()

    @property
    def alive(self) -> list[Process]:
        return [process for process in self.processes if process.is_alive]

    def add_to_trace(self, text: str) -> None:
        self.story.append(f"{self.now_ms}: {text}")

    def herder_delay_ms(self) -> int:
        """Constant, so that the order of the events and orders between a member and its herder is kept."""
        return 1

    def stop_ms(self) -> int:
        return self.rng.choice([5, 200, 1_000]) if self.is_faulty else 5

    def latency_ms(self) -> int:
        return self.rng.choice([1, 1, 2, 5, 300]) if self.is_faulty else 1

    # -- processes ----------------------------------------------------------------------------------------------------

    def start(
        self,
        name: str,
        *,
        url: str | None = None,
        instance_id: str | None = None,
        max_wait_ms: int = 1_000,
        place: ConnectMembershipHandover | None = None,
    ) -> Process:
        settings = MemberSettings(
            group_id=GroupId("workers"),
            member_id=MemberId(name),
            instance_id=None if instance_id is None else InstanceId(instance_id),
            url=WorkerUrl(url or f"http://{name}"),
            assignors=(COOPERATIVE,),
            rebalance_timeout_ms=15_000,
            config_topic_id=bytes(16),
            coordinator_hold_max_ms=max_wait_ms,
        )
        process = Process(self, settings, place)
        self.processes.append(process)
        process.feed(MemberStarted())
        process.configure()
        process.report()
        return process

    def kill(self, process: Process, *, with_fin: bool) -> None:
        self.add_to_trace(f"{process.member_id} is killed")
        process.is_alive = False
        process.running = NO_JOBS
        if with_fin:
            self.close(process)
        if process.connection is not None:
            process.connection.is_open = False

    def close(self, process: Process) -> None:
        """The process ends, and the system closes its connection in an orderly way (FIN)."""
        connection = process.connection
        if connection is not None and self.is_answered_or_held(connection):
            connection.is_open = False
            closed = ConnectionClosed(connection_number=connection.number, member_ids=(process.member_id,))
            self.at(1, lambda: self.receive(closed))

    def relaunch(self, process: Process, place: ConnectMembershipHandover | None) -> None:
        """The process has passed its membership on: the next one follows."""
        settings = process.member.settings
        process.is_alive = False
        self.close(process)
        name = f"{settings.member_id}'" if place is None else settings.member_id

        def start_next() -> None:
            self.start(
                name,
                url=settings.url,
                instance_id=settings.instance_id,
                max_wait_ms=settings.coordinator_hold_max_ms,
                place=place,
            )

        self.at(self.rng.choice([10, 1_000]) if self.is_faulty else 3_000, start_next)

    def configure(self, jobs: Jobs) -> None:
        self.configured = jobs
        self.config_offset = ConfigOffset(self.config_offset + 1)
        for process in self.alive:
            process.configure()
            process.report()

    # -- connections --------------------------------------------------------------------------------------------------

    def send(self, process: Process, send: Send[Request]) -> None:
        """Send a request on the process's connection; open one if there is none."""
        connection = process.connection
        if connection is None or not connection.is_open:
            self._count += 1
            connection = process.connection = Connection(self._count)
        connection.unanswered.add(send.id)
        if isinstance(send.request, HeartbeatRequest):
            self.requests[process.member_id] = self.requests.get(process.member_id, 0) + 1
        arrival_ms = max(self.now_ms + self.latency_ms(), connection.last_arrival_ms)
        connection.last_arrival_ms = arrival_ms
        self.at(arrival_ms - self.now_ms, lambda: self.arrive(process, connection, send))
        self.at(send.request.response_timeout_ms, lambda: self.time_out(process, connection, send.id))
        if self.is_faulty and self.rng.random() < 0.03:
            self.at(self.latency_ms(), lambda: self.break_connection(process, connection))

    def arrive(self, process: Process, connection: Connection, send: Send[Request]) -> None:
        if not connection.is_open and self.rng.random() < 0.5:
            # The request was on its way when the connection broke: it may be processed seconds later.
            late_ms = self.rng.choice([1, 500, 4_000])
            self.at(late_ms, lambda: self.process_request(process, connection, send))
        elif connection.is_open:
            self.process_request(process, connection, send)

    def process_request(self, process: Process, connection: Connection, send: Send[Request]) -> None:
        """The coordinator receives a request. Any request ends the holds on its connection."""
        for to, _ in list(connection.waiting):
            self.receive(ReleaseHeldResponse(reply_to=to, member_id=process.member_id))
        self._count += 1
        reply_to = ReplyTo(self._count)
        connection.waiting.append((reply_to, send.id))
        self._receivers[reply_to] = (process, connection, send.request)
        event = to_event(send.request, reply_to, connection.number)
        if event is None:
            self._ready[reply_to] = ErrorOnlyResponse()
        else:
            self.add_to_trace(f"{process.member_id} -> {send.request}")
            self.receive(event)

    def receive(self, event: Event) -> None:
        crash_after = self.rng.randrange(0, 8) if self.is_faulty and self.rng.random() < 0.005 else None
        if self.coordinator.handle(event, self.now_ms, crash_after=crash_after):
            self.crash()
        self._respond()

    def crash(self) -> None:
        """The coordinator ends, and all connections with it; it reads its log again."""
        self.add_to_trace("the coordinator crashes")
        self._receivers.clear()
        self._ready.clear()
        self.coordinator.replies.clear()
        records = compacted(self.coordinator.log) if self.rng.random() < 0.5 else None
        self.coordinator.load(self.now_ms, records)
        for process in self.alive:
            if process.connection is not None:
                self.break_connection(process, process.connection)

    def _respond(self) -> None:
        """Send the responses, on each connection in the order of its requests."""
        self._ready |= self.coordinator.replies
        self.coordinator.replies.clear()
        for reply_to in list(self._ready):
            process, connection, _ = self._receivers.get(reply_to, (None, None, None))
            if process is None or connection is None:
                del self._ready[reply_to]
                continue
            while connection.waiting and connection.waiting[0][0] in self._ready:
                to, request_id = connection.waiting.popleft()
                response = to_response(self._ready.pop(to))
                del self._receivers[to]
                arrival_ms = max(self.now_ms + self.latency_ms(), connection.last_response_ms)
                connection.last_response_ms = arrival_ms
                self.at(arrival_ms - self.now_ms, self._delivery(process, connection, request_id, response))

    def _delivery(
        self, process: Process, connection: Connection, request_id: RequestId, response: Response
    ) -> Callable[[], None]:
        def deliver() -> None:
            if connection.is_open and request_id in connection.unanswered:
                connection.unanswered.discard(request_id)
                process.feed(ResponseReceived(id=request_id, response=response))

        return deliver

    def time_out(self, process: Process, connection: Connection, request_id: RequestId) -> None:
        if process.is_paused:
            self.at(process.paused_until_ms - self.now_ms + 1, lambda: self.time_out(process, connection, request_id))
        elif request_id in connection.unanswered:
            self.break_connection(process, connection)

    def break_connection(self, process: Process, connection: Connection) -> None:
        connection.is_open = False
        for request_id in sorted(connection.unanswered):
            process.feed(RequestFailed(id=request_id, reason="the connection broke"))
        connection.unanswered.clear()

    def is_answered_or_held(self, connection: Connection) -> bool:
        held = {
            session.held_heartbeat.reply_to
            for session in self.coordinator.group.sessions.values()
            if session.held_heartbeat
        }
        return connection.last_arrival_ms < self.now_ms and all(to in held for to, _ in connection.waiting)

    # -- checks -------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """No job runs on two workers (theory §4.3, I1), unless one of them was paused beyond its session."""
        runs: dict[Job, Process] = {}
        for process in self.alive:
            if not process.running:
                continue
            is_zombie = self.now_ms >= process.session_ends_ms
            for job in process.running:
                other = runs.setdefault(job, process)
                if other is process:
                    continue
                if is_zombie or self.now_ms >= other.session_ends_ms:
                    self.zombie_overlaps += 1
                    continue
                story = "\n".join(self.story)
                raise AssertionError(f"{job} runs on {other.member_id} and on {process.member_id}\n{story}")

    def check_job_epochs(self, process: Process, details: ConnectAssignmentDetails) -> None:
        """Each job epoch has one owner ever."""
        owner = process.member.settings.instance_id or process.member_id
        for epoch, jobs in details.jobs_by_assignment_epoch.items():
            for job in jobs:
                known = self._owner_of_epoch.setdefault((job, epoch), owner)
                assert known == owner, f"{job} at epoch {epoch} belongs to {known} and {owner}"

    def settle(self) -> None:
        """Faults stop; all that is alive settles."""
        self.is_faulty = False
        self.run(self.now_ms + 90_000)
        group, alive = self.coordinator.group, self.alive
        story = "\n".join(self.story)
        assert group.group_state() in (GroupState.STABLE, GroupState.EMPTY), f"{group.group_state()}\n{story}"
        assert group.members.keys() == {process.member_id for process in alive}, story
        running = [job for process in alive for job in process.running]
        assert len(running) == len(set(running)), story
        assert set(running) == (set(self.configured) if alive else set()), story
        for process in alive:
            assert process.running == group.currents[process.member_id].assigned, story
            assert process.member.rebalance_state.value == "STABLE", story
            assert process.member.assigned_unconfirmed == NO_JOBS
            (newest,) = process.member.assignors
            (known,) = group.members[process.member_id].client_assignors
            assert (known.metadata, newest.reason) == (newest.metadata, 0), story

    # -- operators ----------------------------------------------------------------------------------------------------

    def set_session_timeout(self, session_timeout_ms: int) -> None:
        self._count += 1
        self.receive(
            SetGroupConfigs(
                reply_to=ReplyTo(self._count), configs={"connect.session.timeout.ms": str(session_timeout_ms)}
            )
        )


def to_event(request: Request, reply_to: ReplyTo, connection: int) -> Event | None:
    """The coordinator's event of a member's request; None for a request that the play answers itself."""
    match request:
        case HeartbeatRequest():
            return Heartbeat(
                reply_to=reply_to, connection_number=connection, client_id="play", client_host="/127.0.0.1",
                member_id=request.member_id, member_epoch=request.member_epoch,
                request_number=request.request_number, instance_id=request.instance_id,
                rebalance_timeout_ms=request.rebalance_timeout_ms, server_assignor=request.server_assignor,
                client_assignors=request.client_assignors, owned=request.owned, url=request.url, name=request.name,
                config_offset=request.config_offset, config_topic_id=request.config_topic_id,
                configured=request.configured, claims=request.claims, draining=request.draining,
                max_wait_ms=request.max_wait_ms, connection_grace_ms=request.connection_grace_ms,
                resumes=request.resumes,
            )  # fmt: skip
        case PrepareAssignmentRequest():
            return PrepareAssignment(reply_to=reply_to, member_id=request.member_id, member_epoch=request.member_epoch)
        case InstallAssignmentRequest():
            return InstallAssignment(
                reply_to=reply_to,
                member_id=request.member_id,
                member_epoch=request.member_epoch,
                group_epoch=request.group_epoch,
                assignor_error=request.assignor_error,
                target=request.target,
            )
        case GroupDescriptionRequest():
            return None
        case _:
            assert_never(request)


def to_response(response: CoordinatorResponse) -> Response:
    """The coordinator's response as the member receives it."""
    match response:
        case HeartbeatResponse() | PrepareAssignmentResponse() | InstallAssignmentResponse():
            return replace(response)
        case _:
            return GroupDescriptionResponse()


def play_with_faults(seed: int, *, step: ConnectStep = step) -> GroupPlay:
    """A group with faults, some time after its begin."""
    play = GroupPlay(seed, step=step)
    rng = play.rng
    play.configure(jobs_up_to(6))
    for _ in range(rng.randrange(1, 4)):
        start_worker(play, instance_id=f"i{rng.random()}" if rng.random() < 0.2 else None)
    for _ in range(rng.randrange(5, 20)):
        play.run(play.now_ms + rng.choice([50, 500, 3_000, 12_000]))
        rng.choice([start_if_few, end_one, replace_one, suspend_one, pause_one, change_configs, crash, update_one])(
            play
        )
    return play


def start_worker(play: GroupPlay, *, url: str | None = None, instance_id: str | None = None) -> None:
    name = f"w{len(play.processes)}"
    play.start(name, url=url, instance_id=instance_id, max_wait_ms=play.rng.choice([0, 1_000, 5_000]))


def one_of(play: GroupPlay) -> list[Process]:
    """One of the processes that live and are not about to end; empty if there is none."""
    left = [process for process in play.alive if not process.is_ending]
    return [play.rng.choice(left)] if left else []


def start_if_few(play: GroupPlay) -> None:
    if len(play.alive) < 4:
        start_worker(play)


def end_one(play: GroupPlay) -> None:
    for process in one_of(play):
        if play.rng.random() < 0.5:
            play.kill(process, with_fin=play.rng.random() < 0.5)
        else:
            process.end(Leave(reason="play", is_permanent=play.rng.random() < 0.5))


def replace_one(play: GroupPlay) -> None:
    for process in one_of(play):
        settings = process.member.settings
        play.kill(process, with_fin=play.rng.random() < 0.5)
        start_worker(play, url=settings.url, instance_id=settings.instance_id)


def suspend_one(play: GroupPlay) -> None:
    for process in one_of(play):
        process.end(SuspendMembership())


def pause_one(play: GroupPlay) -> None:
    for process in one_of(play):
        process.paused_until_ms = play.now_ms + play.rng.choice([1_000, 5_000, 20_000, 60_000])


def change_configs(play: GroupPlay) -> None:
    if play.rng.random() < 0.5:
        play.configure(jobs_up_to(play.rng.randrange(0, 8)))
    else:
        play.set_session_timeout(play.rng.choice([4_000, 9_000, 30_000]))


def update_one(play: GroupPlay) -> None:
    for process in one_of(play):
        process.update_assignor(play.rng.choice([b"", b"m"]), play.rng.randrange(4))


def crash(play: GroupPlay) -> None:
    play.crash()


def jobs_up_to(count: int) -> Jobs:
    """A connector and ``count`` tasks of it; no jobs for 0."""
    return jobs_of(1, count) if count else NO_JOBS
