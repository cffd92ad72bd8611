"""Plays a transcript of a connect group: commands (``> W1 joins``), and after each one the group as K848C's case
studies print it.

Names are K415's: AC0 is connector A, AT1 is its task 1.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from coterie.groups.connect.messages import (
    ConfiguredJobsWritten,
    CurrentAssignment,
    Event,
    GroupRecord,
    Heartbeat,
    InstallAssignment,
    MemberRecord,
    PrepareAssignment,
    RebalanceDelayTimer,
    Response,
    SessionTimer,
    TargetWritten,
    TimerKey,
)
from coterie.groups.connect.settings import ConnectGroupSettings
from coterie.nouns.connect_error_codes import ConnectErrorCode
from coterie.nouns.connect_groups import (
    ConfiguredJobs,
    HeartbeatResponse,
    InstallAssignmentResponse,
    PrepareAssignmentResponse,
)
from coterie.nouns.ids import ConfigOffset, GroupEpoch, LeaderEpoch, MemberEpoch, MemberId, ReplyTo, WorkerUrl
from coterie.nouns.jobs import NO_JOBS, ConnectorName, ConnectorTaskId, Job, Jobs
from coterie.nouns.target_assignments import ComputedTarget, DeferredJobs, TargetOfMember
from tests.groups.connect.world import ASSIGNOR, Coordinator

SETTINGS = ConnectGroupSettings(assignment_interval_ms=0, initial_rebalance_delay_ms=0)
CONFIGURED = "[AC0, AT1, AT2, BC0, BT1]"
DELAY_MS = 300_000
_LIST = r"(\w+)=\[([^\]]*)\]"


def parse_jobs(text: str) -> Jobs:
    """The jobs in a list such as ``[AC0, AT1]``."""
    return Jobs.of(parse_job(name) for name in re.findall(r"\w+", text))


def parse_job(name: str) -> Job:
    connector = ConnectorName(name[0])
    return connector if name[1] == "C" else ConnectorTaskId(connector, int(name[2:]))


def show_jobs(jobs: Jobs) -> str:
    """The inverse of :func:`parse_jobs`, in the order of the draft: by connector."""
    names = [f"{job.connector}T{job.task}" if isinstance(job, ConnectorTaskId) else f"{job}C0" for job in jobs]
    return f"[{', '.join(sorted(names, key=lambda name: (name[0], name[1] != 'C', name)))}]"


def parse_assignments(text: str) -> Mapping[MemberId, Jobs]:
    """The jobs of each member in a text such as ``W1=[AC0], W2=[]``."""
    return {MemberId(name): parse_jobs(jobs) for name, jobs in re.findall(_LIST, text)}


@dataclass(slots=True)
class PlayedWorker:
    """A worker that does what the commands say."""

    member_id: MemberId
    epoch: MemberEpoch = MemberEpoch(0)  # noqa: RUF009
    running: Jobs = NO_JOBS
    number: int = 0
    is_computing: bool = False
    has_joined: bool = False


class Play:
    """One group, and the workers that the commands name."""

    def __init__(self) -> None:
        self.coordinator = Coordinator(SETTINGS)
        self.workers: dict[MemberId, PlayedWorker] = {}
        self.now_ms = 1_000
        self._replies = 0

    def perform(self, command: str) -> Iterator[str]:
        """Perform one command; yields the lines that it prints."""
        patterns: Mapping[str, Callable[..., Iterator[str]]] = {
            r"given epoch (\d+): (.*)": self.given,
            r"(\w+) joins": self.join,
            r"(\w+) heartbeats": self.heartbeat,
            r"(\w+) heartbeats with the epoch (\d+)": self.heartbeat_with,
            r"(\w+) asks for an assignment": self.ask_for_assignment,
            r"(\w+) computes (.*)": self.compute,
            r"the session of (\w+) ends": self.end_session,
            r"the delay ends": self.end_delay,
            r"show": lambda: iter(()),
        }
        for pattern, act in patterns.items():
            if match := re.fullmatch(pattern, command):
                yield from act(*match.groups())
                break
        else:
            raise AssertionError(f"unknown command: {command}")
        yield from self.shown()

    # -- commands -----------------------------------------------------------------------------------------------------

    def given(self, epoch: str, text: str) -> Iterator[str]:
        """A group that has settled at this epoch."""
        number = GroupEpoch(int(epoch))
        log = self.coordinator.log
        for member_id, jobs in parse_assignments(text).items():
            log.append(
                MemberRecord(
                    member_id=member_id, group_epoch=number, joined_epoch=number, instance_id=None,
                    client_id=member_id, client_host="/127.0.0.1", url=WorkerUrl(f"http://{member_id}"), name="",
                    rebalance_timeout_ms=60_000, session_timeout_ms=SETTINGS.session_timeout_ms,
                    connection_grace_ms=0, server_assignor=None, client_assignors=(ASSIGNOR,), claims=None,
                    draining=False,
                )
            )  # fmt: skip
            log.append(
                CurrentAssignment(
                    member_id=member_id, member_epoch=MemberEpoch(number), previous_epoch=MemberEpoch(number),
                    assigned=jobs, job_epochs={number: jobs} if jobs else {},
                )
            )  # fmt: skip
            target = TargetOfMember(jobs=jobs)
            log.append(TargetWritten(member_id=member_id, assignment_epoch=number, target=target))
            self.workers[member_id] = PlayedWorker(member_id, MemberEpoch(number), jobs, has_joined=True)
        configured = ConfiguredJobs(config_offset=ConfigOffset(1), jobs=parse_jobs(CONFIGURED))
        log.append(
            ConfiguredJobsWritten(
                group_epoch=number, config_topic_id=bytes(16), leader_epoch=LeaderEpoch(1), configured=configured
            )
        )
        leader = MemberId("W3")
        log.append(GroupRecord(group_epoch=number, assignment_epoch=number, leader=leader, leader_epoch=LeaderEpoch(1)))
        self.coordinator.load(self.now_ms)
        yield from ()

    def join(self, name: str) -> Iterator[str]:
        self.workers[MemberId(name)] = PlayedWorker(MemberId(name))
        yield from self.heartbeat(name)

    def heartbeat_with(self, name: str, epoch: str) -> Iterator[str]:
        worker = self.workers.setdefault(MemberId(name), PlayedWorker(MemberId(name), has_joined=True))
        worker.epoch = MemberEpoch(int(epoch))
        yield from self.heartbeat(name)

    def ask_for_assignment(self, name: str) -> Iterator[str]:
        yield from self.heartbeat(name, reason=1)

    def heartbeat(self, name: str, reason: int = 0) -> Iterator[str]:
        """The worker sends a heartbeat, and does what the response says."""
        worker = self.workers[MemberId(name)]
        worker.number += 1
        assignor = ASSIGNOR if not reason else type(ASSIGNOR)(
            name=ASSIGNOR.name, minimum_version=0, maximum_version=3, version=3, reason=reason
        )  # fmt: skip
        response = self.ask(
            lambda reply_to: Heartbeat(
                reply_to=reply_to, connection_number=1, client_id=name, client_host="/127.0.0.1",
                member_id=worker.member_id,
                member_epoch=worker.epoch, request_number=0, rebalance_timeout_ms=60_000,
                client_assignors=(assignor,), owned=worker.running, url=WorkerUrl(f"http://{name}"),
                configured=ConfiguredJobs(config_offset=ConfigOffset(1), jobs=parse_jobs(CONFIGURED)),
            )
        )  # fmt: skip
        assert isinstance(response, HeartbeatResponse)
        worker.is_computing = response.error is ConnectErrorCode.COMPUTE_ASSIGNMENT
        if response.error not in (ConnectErrorCode.NONE, ConnectErrorCode.COMPUTE_ASSIGNMENT):
            yield f"{name} receives {response.error.name}, stops its jobs and is to join with the epoch 0"
            worker.epoch, worker.running = MemberEpoch(0), NO_JOBS
            return
        worker.epoch = response.member_epoch
        if worker.is_computing:
            yield f"{name} is to compute the assignment"
        if response.assignment is None:
            return
        revoked, new = worker.running - response.assignment.jobs, response.assignment.jobs - worker.running
        worker.running = response.assignment.jobs
        if revoked:
            yield f"{name} stops {show_jobs(revoked)}"
        if new:
            yield f"{name} starts {show_jobs(new)}"

    def compute(self, name: str, text: str) -> Iterator[str]:
        """The chosen worker prepares, computes and installs the target that the command contains."""
        member_id = MemberId(name)
        epoch = self.workers[member_id].epoch
        prepared = self.ask(
            lambda reply_to: PrepareAssignment(reply_to=reply_to, member_id=member_id, member_epoch=epoch)
        )
        assert isinstance(prepared, PrepareAssignmentResponse)
        snapshot = prepared.snapshot
        assert snapshot is not None, prepared.message
        now, _, later = text.partition("; deferred: ")
        delays = {one.member_id: one.delay_left_ms for one in snapshot.departed}
        target = ComputedTarget(
            members={one: TargetOfMember(jobs=jobs) for one, jobs in parse_assignments(now).items()},
            deferred={
                one: DeferredJobs(jobs=jobs, delay_ms=DELAY_MS if (left := delays[one]) is None else left)
                for one, jobs in parse_assignments(later).items()
            },
        )
        installed = self.ask(
            lambda reply_to: InstallAssignment(
                reply_to=reply_to, member_id=member_id, member_epoch=epoch, group_epoch=snapshot.group_epoch,
                target=target,
            )
        )  # fmt: skip
        assert installed == InstallAssignmentResponse(), installed
        yield from ()

    def end_session(self, name: str) -> Iterator[str]:
        yield from self.run_until(SessionTimer(member_id=MemberId(name)))
        self.workers.pop(MemberId(name))

    def end_delay(self) -> Iterator[str]:
        (timer,) = (key for key in self.coordinator.group.deadlines if isinstance(key, RebalanceDelayTimer))
        yield from self.run_until(timer)

    # -- helpers ------------------------------------------------------------------------------------------------------

    def run_until(self, timer: TimerKey) -> Iterator[str]:
        """Let the time pass until the timer fires; the other workers send heartbeats meanwhile."""
        silent = getattr(timer, "member_id", None)
        while timer in self.coordinator.group.deadlines:
            due_ms = self.coordinator.group.deadlines[timer]
            self.now_ms = min(self.now_ms + 3_000, due_ms)
            if self.now_ms >= due_ms:
                self.coordinator.fire_due(self.now_ms)
            else:
                for member_id in [one for one in self.workers if one != silent]:
                    yield from self.heartbeat(member_id)

    def ask(self, make: Callable[[ReplyTo], Event]) -> Response:
        self._replies += 1
        reply_to = ReplyTo(self._replies)
        self.coordinator.handle(make(reply_to), self.now_ms)
        return self.coordinator.replies.pop(reply_to)

    def shown(self) -> Iterator[str]:
        """The group as K848C's case studies print it."""
        group = self.coordinator.group
        members = [one.member_id for one in group.members_in_joining_order()]
        yield f"Group (epoch={group.group_epoch}): {', '.join(members) or 'empty'}"
        yield f"Target Assignment (epoch={group.assignment_epoch})"
        for member_id in members:
            yield f"  {member_id} - connectorsAndTasks={show_jobs(group.targets[member_id].target.jobs)}"
        for departed in group.departed.values():
            if departed.deadline_ms is not None:
                left_s = (departed.deadline_ms - self.now_ms) // 1000
                yield f"  deferred for {departed.member_id} ({left_s} s): {show_jobs(departed.jobs)}"
        yield "Member Assignment"
        for member_id in members:
            current = group.currents[member_id]
            pending = f", to give back: {show_jobs(current.pending)}" if current.pending else ""
            jobs = show_jobs(current.assigned)
            yield f"  {member_id} - epoch={current.member_epoch}, connectorsAndTasks={jobs}{pending}"


def play(text: str) -> str:
    """The transcript ``text`` with the output of its commands as it is now."""
    performer = Play()
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("> "):
            lines += [line, *performer.perform(line[2:])]
        elif line.startswith("#"):
            lines.append(line)
        elif not line and lines and lines[-1]:
            lines.append("")
    return "\n".join(lines).rstrip() + "\n"
