"""The invariant checks of the workers' simulation, at every step of the coordinator and of the workers."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from json import loads

from coterie.assignors.members import Policy
from coterie.assignors.memory import union
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
from coterie.herder.seams import TaskStart
from coterie.lab.simulator.actor import by_name
from coterie.lab.simulator.coordinator import CoordinatorStep
from coterie.lab.simulator.fleet.config_log import ConfigLog
from coterie.lab.simulator.fleet.process import Process
from coterie.lab.simulator.fleet.rounds import CheckedRound, Part, check_round, names_of_jobs
from coterie.lab.simulator.fleet.waits import Waits
from coterie.lab.simulator.identities import MemberIdentity
from coterie.lab.simulator.invariants import Invariant, Violation
from coterie.lab.simulator.world import World
from coterie.nouns.ids import Generation, MemberId
from coterie.nouns.jobs import NO_JOBS, ConnectorTaskId
from coterie.nouns.membership import AssignmentWanted, Computed
from coterie.wire.connect import AssignmentError, ConnectProtocol, RoundToken
from coterie.wire.connect_bytes import decode_assignment, decode_metadata
from coterie.wire.errors import ErrorCode


class Watch:
    """The checks of workers and their group; matches `coordinator.CoordinatorWatch`."""

    def __init__(self, world: World, config_log: ConfigLog, policy: Policy, *, session_timeout_ms: int) -> None:
        self._world = world
        self._config_log = config_log
        self._policy = policy
        self._session_timeout_ms = session_timeout_ms
        self._waits = Waits(max_delay_ms=policy.max_delay_ms, slack_ms=2 * session_timeout_ms)
        self.stops = 0
        """Number of task stops ordered so far."""
        self.overtaken = 0
        """Number of SyncGroups so far whose member received no assignment, since the next round had begun."""
        self.processes: Mapping[str, Process] = {}
        self._told: dict[Generation, tuple[MemberIdentity, str | None]] = {}
        self._memberships: dict[Generation, frozenset[MemberIdentity]] = {}
        self._places: dict[MemberId, MemberIdentity] = {}
        """A static member's instance id; the member id of any other member."""
        self._fenced: set[MemberId] = set()
        """Member ids that another process with the same instance id has replaced. Their processes learn this from the
        response to their next heartbeat (KIP-345), or stop when they have had no response for a session timeout."""
        self._checked = Generation(0)
        """The last generation whose assignments were checked. It is written again when a static member rejoins."""
        self._handed_back = NO_JOBS

    # -- the coordinator --------------------------------------------------------------------------------------------

    def on_step(self, taken: CoordinatorStep) -> None:
        if isinstance(taken.event, Heartbeat):
            return  # A heartbeat changes nothing that is checked here.
        if isinstance(taken.event, SyncGroup):
            self._on_sync(taken.event, taken)
        for instance_id, former in taken.before.static_members.items():
            if taken.group.static_members.get(instance_id, former) != former:
                self._fenced.add(former)
        for record in taken.output.records:
            assert isinstance(record, GenerationWritten), "workers commit no offsets, and their group is not deleted"
            for member_id, member in record.members.items():
                self._places[member_id] = member.instance_id or member_id
            self._on_written(record)
        if isinstance(taken.event, TimerFired) and isinstance(taken.event.key, SessionTimer):
            self._on_expired(taken.before.members - taken.group.members.keys())

    def _on_sync(self, request: SyncGroup, taken: CoordinatorStep) -> None:
        """Check the leader's SyncGroup, the one that writes records."""
        if not taken.output.records or not request.assignments:
            return
        given = {member_id for member_id, _ in request.assignments}
        if given != taken.before.members:
            raise Violation(
                Invariant.KNOWN_MEMBERS,
                f"the leader assigns to {sorted(given)}, members are {sorted(taken.before.members)}",
            )

    def _on_written(self, record: GenerationWritten) -> None:
        if record.protocol is None:
            highest = max(self._told, default=Generation(0))
            if record.generation <= highest:
                raise Violation(
                    Invariant.GENERATION_RISES, f"generation {record.generation} begins, {highest} was sent before"
                )
        elif record.generation > self._checked:
            self._checked = record.generation
            self._check_round(record)

    def _check_round(self, record: GenerationWritten) -> None:
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
            parts[member_id] = Part.of(self._places[member_id], decode_metadata(member.subscription)[1], assignment)
            configured = self._config_log.jobs_at(assignment.config_offset)
            delay_ms = assignment.delay_ms
        round_ = CheckedRound(
            generation=record.generation,
            protocol=protocol,
            parts=parts,
            configured=configured,
            delay_ms=delay_ms,
            handed_back=self._handed_back,
        )
        check_round(round_, self._policy)
        if protocol is ConnectProtocol.EAGER:
            self._handed_back = NO_JOBS  # a leader keeps no state after an eager round
            return
        drained = [part.revoked for part in parts.values() if part.draining]
        self._handed_back = (self._handed_back - round_.running) | union(drained)

    def on_reply(self, request: Request, response: Response) -> None:
        if response.error is ErrorCode.none and isinstance(response, JoinGroupResponse):
            self._on_joined(response)
        elif isinstance(request, SyncGroup) and response.error is ErrorCode.rebalance_in_progress:
            self.overtaken += 1

    def _on_joined(self, response: JoinGroupResponse) -> None:
        leader = self._places[response.leader]
        told_before = self._told.setdefault(response.generation, (leader, response.protocol))
        if told_before != (leader, response.protocol):
            raise Violation(
                Invariant.GENERATION_RISES,
                f"generation {response.generation} is led by {leader}, but was led by {told_before[0]}",
            )
        if response.members:
            members = frozenset(self._places[one.member_id] for one in response.members)
            if self._memberships.setdefault(response.generation, members) != members:
                raise Violation(Invariant.GENERATION_RISES, f"generation {response.generation} has two memberships")

    def on_loaded(self, group: Group) -> None:
        if group.generation < max(self._told, default=Generation(0)):
            raise Violation(Invariant.NOTHING_LOST, f"after a crash the group is at generation {group.generation}")
        self._fenced -= group.members.keys()  # the crash has lost the records of their successors

    def _on_expired(self, gone: AbstractSet[MemberId]) -> None:
        for process in by_name(self.processes):
            if process.member.member_id in gone and self._should_have_stopped(process):
                self._still_runs(process, "is removed")

    # -- workers ----------------------------------------------------------------------------------------------------

    def on_dealt(self, process: Process, wanted: AssignmentWanted, computed: Computed) -> None:
        """The leader ``process`` has computed a round; perhaps no member receives its assignments."""
        token = RoundToken.of(wanted.token)
        if computed.has_config_mismatch:
            return
        if token.protocol is ConnectProtocol.EAGER:
            self._waits.on_dealt_anew(process)
            return
        round_ = CheckedRound(
            generation=token.generation,
            protocol=token.protocol,
            parts={
                member_id: Part.reported(self._places[member_id], wanted.members[member_id], assignment)
                for member_id, assignment in computed.assignments.items()
            },
            configured=self._config_log.jobs_at(computed.config_offset),
            delay_ms=computed.delay_ms,
        )
        self._waits.on_dealt(process, round_, received=process.received, now_ms=self._world.now_ms)

    def on_join(self, process: Process) -> None:
        if process.protocol is ConnectProtocol.EAGER and process.active:
            runs = sorted(map(str, process.active))
            raise Violation(Invariant.EAGER_STOPS_FIRST, f"{process.name} joins and still runs {runs}")

    def on_forged(self, process: Process, answer: Answer) -> None:
        """The leader ``process`` has responded to forged task configs."""
        if isinstance(answer, Done) and process.protocol is not None and process.protocol >= ConnectProtocol.SESSIONED:
            raise Violation(Invariant.SIGNED, f"{process.name} accepts task configs that no worker has signed")

    def on_exit(self, process: Process, code: int) -> None:
        if process.drains and not process.ending and (code or process.given or process.active):
            raise Violation(
                Invariant.DRAINED, f"{process.name} exits with {code}, and still owns {names_of_jobs(process.given)}"
            )

    def on_stop(self, process: Process, start: TaskStart | None) -> None:
        """The herder orders a stop of the task that was started by ``start``; None if no such task runs."""
        if start is None:
            return
        self.stops += 1
        task, offset = start.task, process.herder.config.offset
        if process.ending or task not in process.given:
            return
        if self._config_log.work_at(offset).get(task) == start:
            raise Violation(
                Invariant.STOPPED_FOR_A_REASON,
                f"{process.name} stops {task}, which is assigned to it and has its present config",
            )

    def on_told(self, request: Write, process: Process, since: int) -> None:
        """A user receives the success of ``request``, which was sent when the log ended at offset ``since``."""
        holds: Mapping[str, object] | None
        match request:
            case PutConnector(connector=name, config=config):
                key, holds = f"connector-{name}", {"properties": dict(config)}
            case DeleteConnector(connector=name):
                key, holds = f"connector-{name}", None
            case SetTargetState(connector=name, target_state=state):
                key, holds = f"target-state-{name}", {"state.v2": state.value}
            case other:
                raise AssertionError(f"users do not send {other}")
        read = max(process.herder.config.offset, 0)
        for line in self._config_log.lines[since:read]:
            if line.key == key.encode() and _says(line.value, holds):
                return
        raise Violation(
            Invariant.TOLD_IS_WRITTEN, f"{process.name} reports that {key} is written, but has not read it in the log"
        )

    def on_start(self, process: Process, task: ConnectorTaskId) -> None:
        if process.member.member_id in self._fenced:
            return  # The process has not received the error yet.
        for other in by_name(self.processes):
            if other is not process and task in other.active and self._is_effective(other):
                raise Violation(Invariant.ONE_OWNER, f"{process.name} starts {task}, which {other.name} runs")

    def on_restart(self, process: Process, task: ConnectorTaskId, *, is_held: bool) -> None:
        """A query that died is about to restart; ``is_held``: whether the process still holds the checkpoint."""
        if not is_held:
            raise Violation(
                Invariant.RESTARTED_IN_PLACE, f"{process.name} restarts {task}, whose checkpoint was taken over"
            )
        if self._world.now_ms >= process.answered_sent_ms + Lease(self._session_timeout_ms).proved_ms:
            unheard_ms = self._world.now_ms - process.answered_sent_ms
            raise Violation(
                Invariant.RESTARTED_IN_PLACE,
                f"{process.name} restarts {task}, its last request with a response is {unheard_ms} ms old",
            )
        self.on_start(process, task)

    def on_resumed(self, process: Process) -> None:
        """``process`` is about to resume. After a short pause it is still a member, and its tasks continue."""
        if self._may_be_counted_in(process):
            for other in by_name(self.processes):
                both = sorted(map(str, process.active.keys() & other.active.keys()))
                if both and other is not process and self._is_effective(other):
                    raise Violation(Invariant.ONE_OWNER, f"{process.name} resumes {both}, which {other.name} runs")

    def on_second(self) -> None:
        """Called every second: a process without a response for a session timeout must have stopped its tasks."""
        for process in by_name(self.processes):
            unheard = self._world.now_ms >= process.answered_sent_ms + self._session_timeout_ms
            if unheard and self._should_have_stopped(process):
                self._still_runs(process, f"has had no response for {self._session_timeout_ms} ms")

    def _should_have_stopped(self, process: Process) -> bool:
        """Whether ``process`` has had time to stop its tasks. A paused process has not: its time begins when it
        resumes, and it then handles timers and responses in any order."""
        patience_ms = process.herder.settings.stop_grace_ms + 300
        return not process.paused and process.resumed_at_ms + patience_ms < self._world.now_ms

    def _still_runs(self, process: Process, what: str) -> None:
        if process.active:
            runs = sorted(map(str, process.active))
            raise Violation(Invariant.STOPPED_WHEN_EXPIRED, f"{process.member.member_id} {what} and still runs {runs}")

    def _is_effective(self, process: Process) -> bool:
        """The process runs, and the coordinator may still have it as a member. If not, the checkpoint fences its
        tasks."""
        return not process.paused and self._may_be_counted_in(process)

    def _may_be_counted_in(self, process: Process) -> bool:
        is_fenced = process.member.member_id in self._fenced
        return not is_fenced and self._world.now_ms < process.answered_sent_ms + self._session_timeout_ms


def _says(value: bytes | None, holds: Mapping[str, object] | None) -> bool:
    """Whether a line's value contains all of ``holds``; for None, whether the line is a tombstone."""
    if value is None or holds is None:
        return value is None and holds is None
    said = loads(value)
    return all(said.get(key) == what for key, what in holds.items())
