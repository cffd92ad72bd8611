"""The named invariants: what must hold at every moment whatever the weather, and how a breach is told."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from itertools import combinations
from typing import TYPE_CHECKING

from coterie.groups.classic import step
from coterie.groups.messages import (
    GenerationWritten,
    GroupLoaded,
    Heartbeat,
    HeartbeatResponse,
    JoinGroup,
    JoinGroupResponse,
    Reply,
    ReplyTo,
    Request,
    Response,
    SessionTimer,
    SetTimer,
    SyncGroup,
    SyncGroupResponse,
    TimerKey,
)
from coterie.groups.records import decode_value, encode_value
from coterie.groups.state import Group, Phase, apply
from coterie.lab.simulator.config_log import ConfigLog
from coterie.lab.simulator.world import World
from coterie.nouns.ids import Generation, MemberId
from coterie.nouns.jobs import NO_JOBS, ConnectorTaskId, Jobs
from coterie.wire.connect import AssignmentError
from coterie.wire.connect_bytes import decode_assignment, decode_metadata
from coterie.wire.errors import ErrorCode

if TYPE_CHECKING:
    from coterie.lab.simulator.worker import Process


class Invariant(StrEnum):
    """What the simulator watches. Safety at every moment; liveness once the weather has calmed down."""

    ONE_OWNER = "one-owner"
    """No task is effective on two workers that both have their lease (I1 of the theory)."""
    STOPPED_WHEN_EXPIRED = "stopped-when-expired"
    """When a member's session ends, its worker has stopped everything; one that was paused stops at once after (I6)."""
    RELEASED_FIRST = "released-first"
    """Nothing is assigned to one member that another one says it runs (K415: release before acquisition)."""
    DISJOINT = "disjoint"
    """No round leaves a job with two members (I2)."""
    ACCOUNTED = "accounted"
    """After a round every configured job is somebody's, or about to be released, or waits for a delay that runs."""
    KNOWN_MEMBERS = "known-members"
    """A leader assigns to the members of its generation: to all of them and to nobody else."""
    DURABLE_FIRST = "durable-first"
    """No answer shows what the log does not hold."""
    GENERATION_RISES = "generation-rises"
    """A generation is one membership, told once; it never falls, whatever crashes (A2)."""
    NOTHING_LOST = "nothing-lost"
    """What was durable is there after a crash."""
    REPLAY_IS_LIVE = "replay-is-live"
    """The log gives back the group: its leader, its members, their generation, a deadline for each."""
    MACHINE_CHECK = "machine-check"
    """What the machines assert of themselves."""
    SETTLES = "settles"
    """When the faults have stopped, all that live end in one stable generation in which everything runs once (L1)."""
    BALANCED = "balanced"
    """Then connectors, tasks and their sum are at floor or ceiling for every worker."""
    QUIET = "quiet"
    """Then nothing happens any more: no rebalance without a cause."""


class Violation(Exception):
    """An invariant is broken: the simulated machines have a bug."""

    def __init__(self, invariant: Invariant, what: str) -> None:
        self.invariant = invariant
        super().__init__(f"{invariant}: {what}")


class Watch:
    def __init__(self, world: World, config_log: ConfigLog, *, session_timeout_ms: int) -> None:
        self._world = world
        self._config_log = config_log
        self._session_timeout_ms = session_timeout_ms
        self.processes: Mapping[str, Process] = {}
        self._durable: list[GenerationWritten] = []
        self._last: GenerationWritten | None = None
        self._told: dict[Generation, tuple[MemberId, str | None]] = {}
        self._memberships: dict[Generation, tuple[MemberId, ...]] = {}

    @contextmanager
    def machine_check(self, room: str) -> Iterator[None]:
        try:
            yield
        except AssertionError as error:
            raise Violation(Invariant.MACHINE_CHECK, f"{room}: {error}") from error

    # -- the coordinator --------------------------------------------------------------------------------------------

    def on_sync(self, request: SyncGroup, group: Group) -> None:
        """A leader's sync is about to be taken."""
        if group.phase is not Phase.COMPLETING_REBALANCE or request.member_id != group.leader:
            return
        given = {member_id for member_id, _ in request.assignments}
        if request.generation == group.generation and given != group.members.keys():
            raise Violation(
                Invariant.KNOWN_MEMBERS, f"the leader assigns to {sorted(given)}, members are {sorted(group.members)}"
            )

    def on_written(self, record: GenerationWritten, group: Group) -> None:
        self._last = record
        if record.protocol is None:
            highest = max(self._told, default=Generation(0))
            if record.generation <= highest:
                raise Violation(
                    Invariant.GENERATION_RISES, f"generation {record.generation} begins, {highest} was told"
                )
        else:
            self._check_round(record)

    def _check_round(self, record: GenerationWritten) -> None:
        runs: dict[MemberId, Jobs] = {}
        ends: dict[MemberId, Jobs] = {}
        released, assigned, configured, delay_ms = NO_JOBS, NO_JOBS, NO_JOBS, 0
        for member_id, member in record.members.items():
            if not member.assignment:
                raise Violation(Invariant.KNOWN_MEMBERS, f"generation {record.generation} gives {member_id} nothing")
            allocation = decode_metadata(member.subscription)[1].allocation
            assignment = decode_assignment(member.assignment)[1]
            if assignment.error is not AssignmentError.NO_ERROR:
                return
            runs[member_id] = allocation.assigned if allocation is not None else NO_JOBS
            ends[member_id] = (runs[member_id] - assignment.revoked) | assignment.assigned
            configured = self._config_log.jobs_at(assignment.config_offset)
            delay_ms = assignment.delay_ms
            released |= assignment.revoked
            assigned |= assignment.assigned
            for other_id, other in runs.items():
                if other_id != member_id:
                    self._released_first(record, member_id, assignment.assigned & other)
            for other_id in runs.keys() - {member_id}:
                other_assignment = decode_assignment(record.members[other_id].assignment)[1]
                self._released_first(record, other_id, other_assignment.assigned & runs[member_id])
        for (one, its), (other_id, others) in combinations(sorted(ends.items()), 2):
            if its & others:
                raise Violation(
                    Invariant.DISJOINT,
                    f"generation {record.generation}: {one}, {other_id} both end with {told(its & others)}",
                )
        missing = configured - _union(ends) - released
        if missing and delay_ms == 0:
            raise Violation(Invariant.ACCOUNTED, f"generation {record.generation} forgets {told(missing)}")
        if surplus := _union(ends) - configured:
            raise Violation(Invariant.ACCOUNTED, f"generation {record.generation} keeps the deleted {told(surplus)}")

    def _released_first(self, record: GenerationWritten, member_id: MemberId, jobs: Jobs) -> None:
        if jobs:
            raise Violation(
                Invariant.RELEASED_FIRST,
                f"generation {record.generation} gives {member_id} {told(jobs)}, which another member runs",
            )

    def on_reply(self, request: Request, response: Response, lines: Sequence[bytes]) -> None:
        for line in lines[len(self._durable) :]:
            self._durable.append(decode_value(line))
        if response.error is not ErrorCode.none:
            return
        match request, response:
            case JoinGroup(), JoinGroupResponse():
                self._on_joined(response)
            case SyncGroup(), SyncGroupResponse():
                self._on_synced(request, response)
            case _:
                pass

    def _on_joined(self, response: JoinGroupResponse) -> None:
        if not any(record.generation == response.generation for record in reversed(self._durable)):
            raise Violation(Invariant.DURABLE_FIRST, f"generation {response.generation} is told, the log has it not")
        told_before = self._told.setdefault(response.generation, (response.leader, response.protocol))
        if told_before != (response.leader, response.protocol):
            raise Violation(
                Invariant.GENERATION_RISES,
                f"generation {response.generation} is led by {response.leader}, and was by {told_before[0]}",
            )
        if response.members:
            members = tuple(one.member_id for one in response.members)
            if self._memberships.setdefault(response.generation, members) != members:
                raise Violation(Invariant.GENERATION_RISES, f"generation {response.generation} has two memberships")

    def _on_synced(self, request: SyncGroup, response: SyncGroupResponse) -> None:
        for record in reversed(self._durable):
            if record.generation == request.generation and record.protocol is not None:
                member = record.members.get(request.member_id)
                if member is not None and member.assignment == response.assignment:
                    return
        raise Violation(
            Invariant.DURABLE_FIRST,
            f"{request.member_id} is told its assignment of generation {request.generation}, the log has it not",
        )

    def on_crash(self, group: Group) -> None:
        """Before a life ends: whoever replays its log finds the same group."""
        if group.written != self._last:
            raise Violation(Invariant.REPLAY_IS_LIVE, "the live group differs from its last record")
        if group.phase is not Phase.STABLE or group.written is None:
            return
        replica = Group(group.group_id, group.limits)
        apply(replica, decode_value(encode_value(group.written)))
        armed = {
            effect.key for effect in step(replica, GroupLoaded(), now_ms=0).effects if isinstance(effect, SetTimer)
        }
        same = (replica.phase, replica.leader, list(replica.members)) == (
            group.phase,
            group.leader,
            list(group.members),
        )
        if not same:
            raise Violation(Invariant.REPLAY_IS_LIVE, f"replay gives {replica.phase} led by {replica.leader}")
        for member_id in group.members:
            beat = Heartbeat(reply_to=ReplyTo(0), member_id=member_id, generation=group.generation)
            answer = Reply(to=ReplyTo(0), response=HeartbeatResponse(error=ErrorCode.none))
            if SessionTimer(member_id=member_id) not in armed or answer not in step(replica, beat, now_ms=0).effects:
                raise Violation(Invariant.REPLAY_IS_LIVE, f"after a replay {member_id} is no member like before")

    def on_loaded(self, group: Group, lines: Sequence[bytes]) -> None:
        for line in lines[len(self._durable) :]:
            self._durable.append(decode_value(line))
        self._last = group.written
        if len(lines) < len(self._durable) or group.generation < max(self._told, default=Generation(0)):
            raise Violation(Invariant.NOTHING_LOST, f"after a crash the group is at generation {group.generation}")

    def on_expired(self, gone: set[MemberId], key: TimerKey) -> None:
        if isinstance(key, SessionTimer):
            for name in sorted(self.processes):
                process = self.processes[name]
                if process.member.member_id in gone and self._should_have_stopped(process):
                    self._still_runs(process, "is removed")

    # -- workers ----------------------------------------------------------------------------------------------------

    def on_start(self, process: "Process", task: ConnectorTaskId) -> None:
        for name in sorted(self.processes):
            other = self.processes[name]
            if other is not process and task in other.active and self._is_effective(other):
                raise Violation(Invariant.ONE_OWNER, f"{process.name} starts {task}, which {name} runs")

    def on_resumed(self, process: "Process") -> None:
        if self._is_effective(process):
            for name in sorted(self.processes):
                both = process.active & self.processes[name].active
                if both and self.processes[name] is not process:
                    raise Violation(
                        Invariant.ONE_OWNER, f"{process.name} goes on with {sorted(map(str, both))}, {name} runs it"
                    )

    def on_second(self) -> None:
        """Looked at every second: whoever has heard nothing for a session has stopped by itself."""
        for name in sorted(self.processes):
            process = self.processes[name]
            unheard = self._world.now_ms >= process.answered_sent_ms + self._session_timeout_ms
            if unheard and self._should_have_stopped(process):
                self._still_runs(process, f"has heard nothing for {self._session_timeout_ms} ms")

    def _should_have_stopped(self, process: "Process") -> bool:
        """A process that was paused could not stop meanwhile; it begins when it goes on, in whatever order it hears."""
        patience_ms = process.herder.settings.stop_grace_ms + 300
        return not process.paused and process.resumed_at_ms + patience_ms < self._world.now_ms

    def _still_runs(self, process: "Process", what: str) -> None:
        if process.active:
            runs = sorted(map(str, process.active))
            raise Violation(Invariant.STOPPED_WHEN_EXPIRED, f"{process.member.member_id} {what} and still runs {runs}")

    def _is_effective(self, process: "Process") -> bool:
        """It runs, and the coordinator may still count it in. Otherwise the checkpoint fences what it does."""
        return not process.paused and self._world.now_ms < process.answered_sent_ms + self._session_timeout_ms


def told(jobs: Jobs) -> str:
    return ", ".join(map(str, jobs)) or "nothing"


def _union(parts: Mapping[MemberId, Jobs]) -> Jobs:
    whole = NO_JOBS
    for part in parts.values():
        whole |= part
    return whole
