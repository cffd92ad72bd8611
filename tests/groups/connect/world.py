"""A small world for the coordinator of one connect group: workers that follow the protocol, a network that loses,
delays and repeats messages, and a coordinator that crashes after any of its records.

Every step checks the coordinator's state, and that no job runs on two workers at once.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Protocol, TypeAlias

from coterie.engine.lease import LeaseDurations
from coterie.engine.output import Output
from coterie.engine.timers import Timers
from coterie.groups.connect.machine import step
from coterie.groups.connect.messages import (
    ComputeTarget,
    Effect,
    Event,
    GroupLoaded,
    GroupState,
    Heartbeat,
    InstallAssignment,
    PrepareAssignment,
    Record,
    Response,
    TargetComputed,
    TimerKey,
)
from coterie.groups.connect.settings import ConnectGroupSettings
from coterie.groups.connect.state import Group, apply_record, check_all_invariants
from coterie.groups.effects import CancelTimer, Reply, SetTimer, TimerFired
from coterie.nouns.connect_error_codes import ConnectErrorCode
from coterie.nouns.connect_groups import (
    JOIN_EPOCH,
    LEAVE_BRIEFLY_EPOCH,
    LEAVE_EPOCH,
    ConfiguredJobs,
    HeartbeatResponse,
    PrepareAssignmentResponse,
    SupportedAssignor,
)
from coterie.nouns.ids import ConfigOffset, GroupEpoch, GroupId, InstanceId, MemberEpoch, MemberId, ReplyTo, WorkerUrl
from coterie.nouns.jobs import NO_JOBS, ConnectorName, ConnectorTaskId, Job, Jobs
from coterie.nouns.target_assignments import ComputedTarget, GroupSnapshot
from tests.groups.connect.simple_assignor import compute

Compute: TypeAlias = Callable[[GroupSnapshot], ComputedTarget]


class StepGroup(Protocol):
    """`coterie.groups.connect.machine.step`, or a function that also observes the step."""

    def __call__(self, group: Group, event: Event, /, *, now_ms: int) -> Output[Record, Effect]: ...


ASSIGNOR = SupportedAssignor(name="cooperative", minimum_version=0, maximum_version=3, version=3)
SETTINGS = ConnectGroupSettings(assignment_interval_ms=50, initial_rebalance_delay_ms=0)

RETRY_MS = {
    ConnectErrorCode.UNKNOWN_MEMBER_ID: 1,
    ConnectErrorCode.FENCED_MEMBER_EPOCH: 1,
    ConnectErrorCode.STALE_REQUEST: 50,
    ConnectErrorCode.UNRELEASED_INSTANCE_ID: 500,
}
"""The errors after which a worker tries again, and the pause before."""


def key_of(record: Record) -> tuple[object, ...]:
    """The key of a record in the compacted log."""
    kinds = {
        "GroupRecord": 3, "GroupRemoved": 3, "ConfiguredJobsWritten": 4, "ConfiguredJobsRemoved": 4,
        "MemberRecord": 5, "MemberRemoved": 5, "TargetWritten": 6, "TargetRemoved": 6, "CurrentAssignment": 7,
        "CurrentAssignmentRemoved": 7, "ConfigsWritten": 8, "ConfigsRemoved": 8, "MemberDeparted": 9,
        "DepartedMemberRemoved": 9,
    }  # fmt: skip
    return kinds[type(record).__name__], getattr(record, "member_id", "")


def is_tombstone(record: Record) -> bool:
    return type(record).__name__.endswith("Removed")


def compacted(log: Sequence[Record]) -> list[Record]:
    """The last record of each key, without tombstones, in the order of the log."""
    last = {key_of(record): record for record in log}
    kept = {id(record) for record in last.values() if not is_tombstone(record)}
    return [record for record in log if id(record) in kept]


class Coordinator:
    """Runs the machine of one group, with its log and timers."""

    def __init__(
        self, settings: ConnectGroupSettings = SETTINGS, compute: Compute = compute, step_group: StepGroup = step
    ) -> None:
        self.settings = settings
        self.compute = compute
        self.step_group = step_group
        self.log: list[Record] = []
        self.group = Group(GroupId("workers"), settings)
        self.timers: Timers[TimerKey] = Timers()
        self.replies: dict[ReplyTo, Response] = {}
        self.computations = 0

    def handle(self, event: Event, now_ms: int, *, crash_after: int | None = None) -> bool:
        """Step the machine. With ``crash_after`` the coordinator crashes when so many records of the step are durable;
        then nothing of its effects is performed, and True is returned."""
        output = self.step_group(self.group, event, now_ms=now_ms)
        check_all_invariants(self.group)
        if crash_after is not None and crash_after < len(output.records):
            self.log += output.records[:crash_after]
            return True
        self.log += output.records
        computing: list[TargetComputed] = []
        for effect in output.effects:
            match effect:
                case Reply(to=to, response=response):
                    self.replies[to] = response
                case SetTimer(key=key, at_ms=at_ms):
                    self.timers.set(key, at_ms)
                case CancelTimer(key=key):
                    self.timers.cancel(key)
                case ComputeTarget(snapshot=snapshot):
                    self.computations += 1
                    computing.append(TargetComputed(group_epoch=snapshot.group_epoch, target=self.compute(snapshot)))
        for done in computing:
            self.handle(done, now_ms)
        return False

    def load(self, now_ms: int, records: Sequence[Record] | None = None) -> None:
        """Replay the log into a new group, as after a restart."""
        self.group = Group(GroupId("workers"), self.settings)
        for record in self.log if records is None else records:
            apply_record(self.group, record)
        self.timers = Timers()
        self.handle(GroupLoaded(), now_ms)

    def fire_due(self, now_ms: int) -> None:
        while (key := self.timers.pop_due(now_ms)) is not None:
            self.handle(TimerFired(key=key), now_ms)


@dataclass(slots=True)
class Worker:
    """A worker that follows the protocol."""

    member_id: MemberId
    url: WorkerUrl
    instance_id: InstanceId | None = None
    holds: bool = False
    epoch: MemberEpoch = JOIN_EPOCH
    running: Jobs = NO_JOBS
    stopping: Jobs = NO_JOBS
    number: int = 0
    is_alive: bool = True
    has_answer: bool = True
    """Whether the newest request was answered."""
    sends_all: bool = True
    reported: Jobs | None = None
    draining: bool = False
    reported_draining: bool = False
    leader: bool = False
    lease_ends_ms: int = 0
    session_timeout_ms: int = SETTINGS.session_timeout_ms
    sent_at_ms: dict[int, int] = field(default_factory=dict)
    job_epochs: dict[Job, GroupEpoch] = field(default_factory=dict)


class World:
    """Workers, network and coordinator on a virtual clock."""

    def __init__(
        self,
        seed: int,
        *,
        settings: ConnectGroupSettings = SETTINGS,
        compute: Compute = compute,
        step_group: StepGroup = step,
    ) -> None:
        self.rng = Random(seed)
        self.now_ms = 0
        self.coordinator = Coordinator(settings, compute, step_group)
        self.workers: dict[MemberId, Worker] = {}
        self.is_faulty = True
        self.configured = NO_JOBS
        self.config_offset = 1
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        self._replies = 0
        self._waiting: dict[ReplyTo, Callable[[Response], None]] = {}
        self.owner_of_epoch: dict[tuple[Job, GroupEpoch], str] = {}
        self.story: list[str] = []

    # -- time ---------------------------------------------------------------------------------------------------------

    def at(self, in_ms: int, act: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (self.now_ms + in_ms, self._count, act))

    def run(self, until_ms: int) -> None:
        while True:
            next_timer = self.coordinator.timers.next_deadline_ms()
            next_event = self._events[0][0] if self._events else None
            times = [at for at in (next_timer, next_event) if at is not None]
            if not times or min(times) > until_ms:
                self.now_ms = until_ms
                return
            self.now_ms = max(self.now_ms, min(times))
            if next_timer is not None and next_timer <= self.now_ms:
                self.coordinator.fire_due(self.now_ms)
            else:
                heapq.heappop(self._events)[2]()
            self._deliver_replies()
            self.check()

    # -- network ------------------------------------------------------------------------------------------------------

    def send(self, make: Callable[[ReplyTo], Event], on_reply: Callable[[Response], None]) -> None:
        """Send a request; it may be lost, delayed or repeated, and so may its response."""
        copies = 1
        if self.is_faulty:
            copies = self.rng.choices([0, 1, 2], [8, 84, 8])[0]
        for copy in range(copies):
            self._replies += 1
            reply_to = ReplyTo(self._replies)
            event = make(reply_to)
            self._waiting[reply_to] = on_reply if copy == 0 else lambda _: None
            self.at(self.delay_ms() * (1 + 4 * copy), lambda event=event: self.receive(event))  # type: ignore[misc]

    def delay_ms(self) -> int:
        return self.rng.choice([1, 2, 5, 300, 3_000]) if self.is_faulty else 1

    def receive(self, event: Event) -> None:
        self.add_to_trace(f"> {describe(event)}")
        crash_after = None
        if self.is_faulty and self.rng.random() < 0.02:
            crash_after = self.rng.randrange(0, 8)
        if self.coordinator.handle(event, self.now_ms, crash_after=crash_after):
            self.crash()

    def crash(self) -> None:
        """The coordinator crashes: all requests that wait for a response are lost, and the log is read again."""
        self.add_to_trace("the coordinator crashes")
        self._waiting.clear()
        self.coordinator.load(self.now_ms, compacted(self.coordinator.log) if self.rng.random() < 0.5 else None)

    def _deliver_replies(self) -> None:
        for to, response in list(self.coordinator.replies.items()):
            del self.coordinator.replies[to]
            receiver = self._waiting.pop(to, None)
            if receiver is None or (self.is_faulty and self.rng.random() < 0.08):
                continue
            self.at(self.delay_ms(), lambda receiver=receiver, response=response: receiver(response))  # type: ignore[misc]

    # -- workers ------------------------------------------------------------------------------------------------------

    def start(
        self, name: str, *, holds: bool = False, instance_id: str | None = None, url: str | None = None
    ) -> Worker:
        worker = Worker(
            member_id=MemberId(name),
            url=WorkerUrl(url or f"http://{name}"),
            holds=holds,
            instance_id=None if instance_id is None else InstanceId(instance_id),
        )
        self.workers[worker.member_id] = worker
        self.at(0, lambda: self.beat(worker))
        self.at(100, lambda: self.watch(worker))
        return worker

    def beat(self, worker: Worker) -> None:
        """Send a heartbeat; the next one follows the response, or a time-out."""
        if not worker.is_alive:
            return
        if self.now_ms >= worker.lease_ends_ms and worker.epoch != JOIN_EPOCH:
            self.stop_all(worker)
        worker.number += 1
        number = worker.number
        is_full = worker.sends_all or worker.epoch == JOIN_EPOCH or not worker.has_answer
        owned = worker.running | worker.stopping
        worker.sent_at_ms[number] = self.now_ms
        worker.has_answer = False
        reports = is_full or owned != worker.reported
        worker.reported = owned
        reports_draining = is_full or worker.draining != worker.reported_draining
        worker.reported_draining = worker.draining

        def make(reply_to: ReplyTo) -> Heartbeat:
            return Heartbeat(
                reply_to=reply_to, connection_number=0, client_id=worker.member_id, client_host="/127.0.0.1",
                member_id=worker.member_id, member_epoch=worker.epoch, request_number=number,
                instance_id=worker.instance_id if is_full else None,
                rebalance_timeout_ms=15_000 if is_full else None,
                client_assignors=(ASSIGNOR,) if is_full else None,
                owned=owned if reports else None, url=worker.url if is_full else None,
                draining=worker.draining if reports_draining else None,
                configured=ConfiguredJobs(config_offset=ConfigOffset(self.config_offset), jobs=self.configured)
                if worker.leader or is_full else None,
                max_wait_ms=1_000 if worker.holds and not is_full else 0,
            )  # fmt: skip

        self.send(make, lambda response: self.on_heartbeat_response(worker, number, response))
        self.at(2_500, lambda: self.on_timeout(worker, number))

    def on_timeout(self, worker: Worker, number: int) -> None:
        if worker.is_alive and worker.number == number and not worker.has_answer:
            worker.sends_all = True
            self.beat(worker)

    def watch(self, worker: Worker) -> None:
        """Stop all jobs when the lease has ended."""
        if not worker.is_alive:
            return
        if worker.epoch != JOIN_EPOCH and self.now_ms >= worker.lease_ends_ms:
            self.stop_all(worker)
        self.at(100, lambda: self.watch(worker))

    def stop_all(self, worker: Worker) -> None:
        worker.running = worker.stopping = NO_JOBS
        worker.epoch = JOIN_EPOCH
        worker.leader = False

    def on_heartbeat_response(self, worker: Worker, number: int, response: Response) -> None:
        assert isinstance(response, HeartbeatResponse)
        if not worker.is_alive:
            return
        if response.error in (ConnectErrorCode.NONE, ConnectErrorCode.COMPUTE_ASSIGNMENT):
            worker.lease_ends_ms = max(
                worker.lease_ends_ms, worker.sent_at_ms[number] + LeaseDurations(worker.session_timeout_ms).duration_ms
            )
        if number != worker.number:
            return
        self.add_to_trace(f"  {worker.member_id} <- {describe(response)}")
        worker.has_answer = True
        worker.sends_all = False
        if response.error in RETRY_MS:
            worker.sends_all = True
            if response.error in (ConnectErrorCode.UNKNOWN_MEMBER_ID, ConnectErrorCode.FENCED_MEMBER_EPOCH):
                self.stop_all(worker)
            self.at(RETRY_MS[response.error], lambda: self.beat_if_idle(worker, number))
            return
        assert response.error in (ConnectErrorCode.NONE, ConnectErrorCode.COMPUTE_ASSIGNMENT), response
        worker.epoch = response.member_epoch
        if response.session_timeout_ms is not None:
            worker.session_timeout_ms = response.session_timeout_ms
        if response.leader is not None:
            worker.leader = response.leader.member_id == worker.member_id
        if response.assignment is not None:
            self.take(worker, response.assignment.jobs)
            for epoch, jobs in response.assignment.jobs_by_assignment_epoch.items():
                for job in jobs:
                    self.check_job_epoch(worker, job, epoch)
        if response.error is ConnectErrorCode.COMPUTE_ASSIGNMENT:
            self.prepare(worker)
        wait_ms = 1 if worker.holds else min(response.heartbeat_interval_ms, 1_000)
        self.at(wait_ms, lambda: self.beat_if_idle(worker, number))

    def beat_if_idle(self, worker: Worker, number: int) -> None:
        if worker.number == number:
            self.beat(worker)

    def take(self, worker: Worker, jobs: Jobs) -> None:
        """Stop what is not in ``jobs``, which takes a moment, or start what is new."""
        revoked = worker.running - jobs
        new = jobs - worker.running - worker.stopping
        assert not (revoked and new), "one response never both revokes and assigns"
        worker.running = (worker.running & jobs) | new
        if revoked:
            worker.stopping |= revoked
            self.at(self.rng.choice([5, 200, 4_000]) if self.is_faulty else 5, lambda: self.stopped(worker, revoked))

    def stopped(self, worker: Worker, jobs: Jobs) -> None:
        if worker.is_alive and worker.stopping & jobs:
            worker.stopping -= jobs
            if worker.epoch != JOIN_EPOCH:
                self.beat(worker)

    def prepare(self, worker: Worker) -> None:
        epoch = worker.epoch
        self.send(
            lambda reply_to: PrepareAssignment(reply_to=reply_to, member_id=worker.member_id, member_epoch=epoch),
            lambda response: self.install(worker, response),
        )

    def install(self, worker: Worker, response: Response) -> None:
        assert isinstance(response, PrepareAssignmentResponse)
        snapshot = response.snapshot
        if snapshot is None or not worker.is_alive:
            return
        self.coordinator.computations += 1
        target, epoch = self.coordinator.compute(snapshot), worker.epoch
        self.send(
            lambda reply_to: InstallAssignment(
                reply_to=reply_to,
                member_id=worker.member_id,
                member_epoch=epoch,
                group_epoch=snapshot.group_epoch,
                target=target,
            ),
            lambda _: None,
        )

    def kill(self, name: str) -> None:
        worker = self.workers.pop(MemberId(name))
        worker.is_alive = False

    def leave(self, name: str, *, briefly: bool) -> None:
        """Stop all jobs and leave, in one message that may be lost."""
        worker = self.workers.pop(MemberId(name))
        worker.is_alive = False
        number = worker.number + 1
        self.send(
            lambda reply_to: Heartbeat(
                reply_to=reply_to, connection_number=0, client_id=name, client_host="/127.0.0.1",
                member_id=worker.member_id,
                member_epoch=LEAVE_BRIEFLY_EPOCH if briefly else LEAVE_EPOCH, request_number=number, owned=NO_JOBS,
            ),
            lambda _: None,
        )  # fmt: skip

    # -- checks -------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """No job runs on two workers (theory §4.3, I1)."""
        seen: dict[Job, MemberId] = {}
        for worker in self.workers.values():
            for job in worker.running | worker.stopping:
                assert job not in seen, f"{job} runs on {seen[job]} and on {worker.member_id}"
                seen[job] = worker.member_id

    def check_job_epoch(self, worker: Worker, job: Job, epoch: GroupEpoch) -> None:
        """Each job epoch has one owner ever."""
        owner = worker.instance_id or worker.member_id
        assert self.owner_of_epoch.setdefault((job, epoch), owner) == owner, f"{job} at epoch {epoch} has two owners"

    def settle(self) -> None:
        """Faults stop; all that is alive must settle."""
        self.is_faulty = False
        self.run(self.now_ms + 120_000)
        group = self.coordinator.group
        assert group.group_state() in (GroupState.STABLE, GroupState.EMPTY), (group.group_state(), self.story[-40:])
        assert group.members.keys() == self.workers.keys()
        running = Jobs.of(job for worker in self.workers.values() for job in worker.running)
        if self.workers and not all(worker.draining for worker in self.workers.values()):
            assert running == self.configured
        else:
            assert group.metadata is not None
            unplaceable = Jobs.of(job for one in group.metadata.unplaceable for job in one.jobs)
            assert running | unplaceable == (self.configured if self.workers else unplaceable)
        for worker in self.workers.values():
            assert worker.running == group.currents[worker.member_id].assigned

    def add_to_trace(self, text: str) -> None:
        self.story.append(f"{self.now_ms}: {text}")


def describe(message: object) -> str:
    match message:
        case Heartbeat():
            owned = "-" if message.owned is None else list(map(str, message.owned))
            return f"{message.member_id} #{message.request_number} epoch {message.member_epoch} owned {owned}"
        case HeartbeatResponse():
            jobs = "-" if message.assignment is None else list(map(str, message.assignment.jobs))
            return f"{message.error.name} epoch {message.member_epoch} assigned {jobs}"
        case _:
            return type(message).__name__


def jobs_of(connectors: int, tasks: int) -> Jobs:
    """Connectors c0, c1, … with ``tasks`` tasks each."""
    names = [ConnectorName(f"c{number}") for number in range(connectors)]
    return Jobs.of([*names, *(ConnectorTaskId(name, task) for name in names for task in range(tasks))])
