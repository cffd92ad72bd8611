"""The checks of the invariants in the workers' simulation, at every step of the coordinator and of the workers."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from json import loads

from coterie.assignors.assignor_state import union
from coterie.assignors.members import RebalancePolicy
from coterie.engine.lease import Lease
from coterie.groups.classic.messages import (
    GenerationWritten,
    Heartbeat,
    JoinGroupResponse,
    Request,
    Response,
    SessionTimer,
    SyncGroup,
)
from coterie.groups.classic.state import Group
from coterie.groups.effects import TimerFired
from coterie.herder.requests import Answer, DeleteConnector, Done, PutConnector, SetTargetState, Write
from coterie.herder.seams import TaskSpec
from coterie.lab.simulator.coordinator import CoordinatorStep
from coterie.lab.simulator.fleet.config_log import ConfigLog
from coterie.lab.simulator.fleet.deferral_checks import DeferralChecker
from coterie.lab.simulator.fleet.process import Process
from coterie.lab.simulator.fleet.rounds import CheckedRound, Part, check_round, job_list_text
from coterie.lab.simulator.identities import MemberIdentity
from coterie.lab.simulator.invariants import Invariant, Violation
from coterie.lab.simulator.sim_process import sorted_by_name
from coterie.lab.simulator.world import World
from coterie.nouns.ids import Generation, MemberId
from coterie.nouns.jobs import NO_JOBS, ConnectorTaskId
from coterie.nouns.membership import AssignmentsRequested, ComputedAssignments
from coterie.wire.connect import AssignmentError, ConnectProtocol, RoundToken
from coterie.wire.connect_bytes import decode_assignment, decode_metadata
from coterie.wire.errors import ErrorCode


class FleetChecker:
    """Checks the workers and their group; implements `coordinator.CoordinatorChecker`. A method raises a `Violation`
    when an invariant is broken."""

    def __init__(
        self, world: World, config_log: ConfigLog, policy: RebalancePolicy, *, session_timeout_ms: int
    ) -> None:
        self._world = world
        self._config_log = config_log
        self._policy = policy
        self._session_timeout_ms = session_timeout_ms
        self._deferral_checker = DeferralChecker(max_delay_ms=policy.max_delay_ms, slack_ms=2 * session_timeout_ms)
        self.stops = 0
        """Number of task stops ordered so far."""
        self.undelivered_assignments = 0
        """Number of SyncGroups so far that received no assignment, because the next rebalance had begun."""
        self.processes: Mapping[str, Process] = {}
        """The processes that have not ended, by name."""
        self._sent_by_generation: dict[Generation, tuple[MemberIdentity, str | None]] = {}
        """For each generation that a member has received, its leader and protocol."""
        self._memberships: dict[Generation, frozenset[MemberIdentity]] = {}
        """The members of each generation, as its leader received them."""
        self._identities: dict[MemberId, MemberIdentity] = {}
        """A static member's instance id; the member id of any other member."""
        self._fenced: set[MemberId] = set()
        """The member ids that another process with the same instance id has replaced. Each of their processes learns
        this from the response to its next heartbeat (KIP-345), or stops its tasks when it has had no response for a
        session timeout."""
        self._checked = Generation(0)
        """The last generation whose assignments were checked. Such a generation is written again when a static member
        rejoins."""
        self._released_by_draining = NO_JOBS
        """The jobs that draining members have released and that no member has owned since."""

    # -- the coordinator --------------------------------------------------------------------------------------------

    def on_step(self, step: CoordinatorStep) -> None:
        """Check one step of the coordinator: the records that it writes, and the members that it removes."""
        if isinstance(step.event, Heartbeat):
            return  # A heartbeat changes nothing that is checked here.
        if isinstance(step.event, SyncGroup):
            self._on_sync(step.event, step)
        for instance_id, former in step.before.static_members.items():
            if step.group.static_members.get(instance_id, former) != former:
                self._fenced.add(former)
        for record in step.output.records:
            assert isinstance(record, GenerationWritten), "workers commit no offsets, and their group is not deleted"
            for member_id, member in record.members.items():
                self._identities[member_id] = member.instance_id or member_id
            self._on_written(record)
        if isinstance(step.event, TimerFired) and isinstance(step.event.key, SessionTimer):
            self._on_expired(step.before.members - step.group.members.keys())

    def _on_sync(self, request: SyncGroup, step: CoordinatorStep) -> None:
        """Check the members of the leader's SyncGroup, if the step writes its assignments.

        :raises Violation: KNOWN_MEMBERS.
        """
        if not step.output.records or not request.assignments:
            return
        given = {member_id for member_id, _ in request.assignments}
        if given != step.before.members:
            raise Violation(
                Invariant.KNOWN_MEMBERS,
                f"the leader assigns to {sorted(given)}, members are {sorted(step.before.members)}",
            )

    def _on_written(self, record: GenerationWritten) -> None:
        """Check a generation without assignments for its number, and one with assignments once, as a round.

        :raises Violation: GENERATION_RISES, or those of `check_round`.
        """
        if record.protocol is None:
            highest = max(self._sent_by_generation, default=Generation(0))
            if record.generation <= highest:
                raise Violation(
                    Invariant.GENERATION_RISES, f"generation {record.generation} begins, {highest} was sent before"
                )
        elif record.generation > self._checked:
            self._checked = record.generation
            self._check_round(record)

    def _check_round(self, record: GenerationWritten) -> None:
        """Check the assignments of a generation, unless they have an assignment error.

        :raises Violation: KNOWN_MEMBERS, or those of `check_round`.
        """
        protocol = {one.wire_name: one for one in ConnectProtocol}[record.protocol or ""]
        parts: dict[MemberId, Part] = {}
        configured, delay_ms = NO_JOBS, 0
        for member_id, member in record.members.items():
            if not member.assignment:
                raise Violation(
                    Invariant.KNOWN_MEMBERS, f"generation {record.generation} has no assignment for {member_id}"
                )
            assignment = decode_assignment(member.assignment)[1]
            if assignment.error is not AssignmentError.NO_ERROR:
                return
            parts[member_id] = Part.of(self._identities[member_id], decode_metadata(member.subscription)[1], assignment)
            configured = self._config_log.configured_jobs_at(assignment.config_offset)
            delay_ms = assignment.delay_ms
        round_ = CheckedRound(
            generation=record.generation,
            protocol=protocol,
            parts=parts,
            configured=configured,
            delay_ms=delay_ms,
            released_by_draining=self._released_by_draining,
        )
        check_round(round_, self._policy)
        if protocol is ConnectProtocol.EAGER:
            self._released_by_draining = NO_JOBS  # a leader keeps no state after an eager round
            return
        drained = [part.revoked for part in parts.values() if part.draining]
        self._released_by_draining = (self._released_by_draining - round_.owned) | union(drained)

    def on_reply(self, request: Request, response: Response) -> None:
        """Check a JoinGroup response that is being sent; count the SyncGroups without an assignment."""
        if response.error is ErrorCode.none and isinstance(response, JoinGroupResponse):
            self._on_joined(response)
        elif isinstance(request, SyncGroup) and response.error is ErrorCode.rebalance_in_progress:
            self.undelivered_assignments += 1

    def _on_joined(self, response: JoinGroupResponse) -> None:
        """Check that all members of a generation receive the same leader and protocol, and its leader always the same
        members.

        :raises Violation: GENERATION_RISES.
        """
        leader = self._identities[response.leader]
        told_before = self._sent_by_generation.setdefault(response.generation, (leader, response.protocol))
        if told_before != (leader, response.protocol):
            raise Violation(
                Invariant.GENERATION_RISES,
                f"generation {response.generation} is led by {leader}, but was led by {told_before[0]}",
            )
        if response.members:
            members = frozenset(self._identities[one.member_id] for one in response.members)
            if self._memberships.setdefault(response.generation, members) != members:
                raise Violation(Invariant.GENERATION_RISES, f"generation {response.generation} has two memberships")

    def on_loaded(self, group: Group) -> None:
        """Check the group that the coordinator has loaded after a crash.

        :raises Violation: NOTHING_LOST.
        """
        if group.generation < max(self._sent_by_generation, default=Generation(0)):
            raise Violation(Invariant.NOTHING_LOST, f"after a crash the group is at generation {group.generation}")
        self._fenced -= group.members.keys()  # the crash has lost the records of their successors

    def _on_expired(self, gone: AbstractSet[MemberId]) -> None:
        """Check that the processes of the members ``gone``, which were removed because a session has expired, run no
        task.

        :raises Violation: STOPPED_WHEN_EXPIRED.
        """
        for process in sorted_by_name(self.processes):
            if process.member.member_id in gone and self._should_have_stopped(process):
                self._still_runs(process, "is removed")

    # -- workers ----------------------------------------------------------------------------------------------------

    def on_round_computed(self, process: Process, wanted: AssignmentsRequested, computed: ComputedAssignments) -> None:
        """Check the scheduled rebalance delay in the round that the leader ``process`` has computed, also if no member
        will receive its assignments.

        :raises Violation: LOST_WAITS, DELAY_ENDS.
        """
        token = RoundToken.of(wanted.token)
        if computed.has_config_mismatch:
            return
        if token.protocol is ConnectProtocol.EAGER:
            self._deferral_checker.on_eager_round_computed(process)
            return
        round_ = CheckedRound(
            generation=token.generation,
            protocol=token.protocol,
            parts={
                member_id: Part.reported(self._identities[member_id], wanted.members[member_id], assignment)
                for member_id, assignment in computed.assignments.items()
            },
            configured=self._config_log.configured_jobs_at(computed.config_offset),
            delay_ms=computed.delay_ms,
        )
        self._deferral_checker.on_round_computed(
            process, round_, received_generation=process.received_generation, now_ms=self._world.now_ms
        )

    def on_join(self, process: Process) -> None:
        """``process`` sends JoinGroup: check that it runs no task if its group is eager.

        :raises Violation: EAGER_STOPS_FIRST.
        """
        if process.protocol is ConnectProtocol.EAGER and process.running_tasks:
            runs = sorted(map(str, process.running_tasks))
            raise Violation(Invariant.EAGER_STOPS_FIRST, f"{process.name} joins and still runs {runs}")

    def on_forged(self, process: Process, answer: Answer) -> None:
        """Check the response of the leader ``process`` to forged task configs.

        :raises Violation: SIGNED.
        """
        if isinstance(answer, Done) and process.protocol is not None and process.protocol >= ConnectProtocol.SESSIONED:
            raise Violation(Invariant.SIGNED, f"{process.name} accepts task configs that no worker has signed")

    def on_exit(self, process: Process, code: int) -> None:
        """Check the exit of ``process`` with ``code``, if its worker was ordered to drain.

        :raises Violation: DRAINED.
        """
        if process.is_draining and not process.is_ending and (code or process.assigned_jobs or process.running_tasks):
            raise Violation(
                Invariant.DRAINED,
                f"{process.name} exits with {code}, and still owns {job_list_text(process.assigned_jobs)}",
            )

    def on_stop(self, process: Process, spec: TaskSpec | None) -> None:
        """Count and check a stop that the herder orders. ``spec`` is the running task; None if no such task runs.

        :raises Violation: STOPPED_FOR_A_REASON.
        """
        if spec is None:
            return
        self.stops += 1
        task, offset = spec.task, process.herder.config.offset
        if process.is_ending or task not in process.assigned_jobs:
            return
        if self._config_log.runnable_tasks_at(offset).get(task) == spec:
            raise Violation(
                Invariant.STOPPED_FOR_A_REASON,
                f"{process.name} stops {task}, which is assigned to it and has its present config",
            )

    def on_write_acknowledged(self, request: Write, process: Process, since: int) -> None:
        """Check the success of a user's ``request`` that ``process`` reports: the change is in the log from offset
        ``since`` on, the log's end when the request was sent, and the process has read it.

        :raises Violation: TOLD_IS_WRITTEN.
        """
        holds: Mapping[str, object] | None
        match request:
            case PutConnector(connector=name, config=config):
                key, holds = f"connector-{name}", {"properties": dict(config)}
            case DeleteConnector(connector=name):
                key, holds = f"connector-{name}", None
            case SetTargetState(connector=name, target_state=state):
                key, holds = f"target-state-{name}", {"state.v2": state.value}
            case other:
                raise AssertionError(f"users send no such request: {other}")
        read = max(process.herder.config.offset, 0)
        for line in self._config_log.lines[since:read]:
            if line.key == key.encode() and _says(line.value, holds):
                return
        raise Violation(
            Invariant.TOLD_IS_WRITTEN, f"{process.name} reports that {key} is written, but has not read it in the log"
        )

    def on_start(self, process: Process, task: ConnectorTaskId) -> None:
        """Check that no other worker runs ``task``, which ``process`` is about to start.

        :raises Violation: ONE_OWNER.
        """
        if process.member.member_id in self._fenced:
            return  # The process has not received the error yet.
        for other in sorted_by_name(self.processes):
            if other is not process and task in other.running_tasks and self._is_effective(other):
                raise Violation(Invariant.ONE_OWNER, f"{process.name} starts {task}, which {other.name} runs")

    def on_restart(self, process: Process, task: ConnectorTaskId, *, holds_checkpoint: bool) -> None:
        """Check the restart of ``task`` by ``process`` after its query has died. ``holds_checkpoint``: whether the
        process still holds the task's checkpoint.

        :raises Violation: RESTARTED_IN_PLACE, ONE_OWNER.
        """
        if not holds_checkpoint:
            raise Violation(
                Invariant.RESTARTED_IN_PLACE, f"{process.name} restarts {task}, whose checkpoint was taken over"
            )
        if self._world.now_ms >= process.last_answered_sent_at_ms + Lease(self._session_timeout_ms).duration_ms:
            unheard_ms = self._world.now_ms - process.last_answered_sent_at_ms
            raise Violation(
                Invariant.RESTARTED_IN_PLACE,
                f"{process.name} restarts {task}, its last request with a response is {unheard_ms} ms old",
            )
        self.on_start(process, task)

    def on_resumed(self, process: Process) -> None:
        """Check ``process``, which is about to resume: if it may still be a member, as after a short pause, no other
        worker runs its tasks.

        :raises Violation: ONE_OWNER.
        """
        if self._may_be_counted_in(process):
            for other in sorted_by_name(self.processes):
                both = sorted(map(str, process.running_tasks.keys() & other.running_tasks.keys()))
                if both and other is not process and self._is_effective(other):
                    raise Violation(Invariant.ONE_OWNER, f"{process.name} resumes {both}, which {other.name} runs")

    def check_every_second(self) -> None:
        """Check that each process without a response for a session timeout has stopped its tasks. Called every second.

        :raises Violation: STOPPED_WHEN_EXPIRED.
        """
        for process in sorted_by_name(self.processes):
            unheard = self._world.now_ms >= process.last_answered_sent_at_ms + self._session_timeout_ms
            if unheard and self._should_have_stopped(process):
                self._still_runs(process, f"has had no response for {self._session_timeout_ms} ms")

    def _should_have_stopped(self, process: Process) -> bool:
        """Whether ``process`` has had time to stop its tasks. A paused process has not; its time begins when it
        resumes, because it then handles timers and responses in any order."""
        patience_ms = process.herder.settings.stop_grace_ms + 300
        return not process.paused and process.resumed_at_ms + patience_ms < self._world.now_ms

    def _still_runs(self, process: Process, what: str) -> None:
        """Raise if ``process`` runs tasks; ``what`` says why it must run none.

        :raises Violation: STOPPED_WHEN_EXPIRED.
        """
        if process.running_tasks:
            runs = sorted(map(str, process.running_tasks))
            raise Violation(Invariant.STOPPED_WHEN_EXPIRED, f"{process.member.member_id} {what} and still runs {runs}")

    def _is_effective(self, process: Process) -> bool:
        """Whether ``process`` runs without a pause and may still be a member. If it is no member, the tasks that it
        still runs are fenced: their next owner takes over their checkpoints."""
        return not process.paused and self._may_be_counted_in(process)

    def _may_be_counted_in(self, process: Process) -> bool:
        """Whether the coordinator may still have ``process`` as a member: the process was not replaced, and one of its
        requests of the last session timeout has had a response."""
        is_fenced = process.member.member_id in self._fenced
        return not is_fenced and self._world.now_ms < process.last_answered_sent_at_ms + self._session_timeout_ms


def _says(value: bytes | None, holds: Mapping[str, object] | None) -> bool:
    """Whether the value of a line has all entries of ``holds``; with ``holds`` None, whether the line is a
    tombstone."""
    if value is None or holds is None:
        return value is None and holds is None
    said = loads(value)
    return all(said.get(key) == what for key, what in holds.items())
