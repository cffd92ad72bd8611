"""The checks of the invariants in the simulation of workers in a classic group, at every step of the coordinator and of
the workers."""

from collections.abc import Set as AbstractSet

from coterie.assignors.assignor_state import union_of_jobs
from coterie.assignors.members import RebalancePolicy
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
from coterie.lab.simulator.coordinator import CoordinatorStep
from coterie.lab.simulator.fleet.deferral_checks import DeferralChecker
from coterie.lab.simulator.fleet.process import ClassicWorkerProcess
from coterie.lab.simulator.fleet.rounds import CheckedRound, RoundMember, check_round
from coterie.lab.simulator.identities import MemberIdentity
from coterie.lab.simulator.invariants import Invariant, Violation
from coterie.lab.simulator.sim_process import sorted_by_name
from coterie.lab.simulator.workers.checker import WorkersChecker
from coterie.lab.simulator.workers.config_log import ConfigLog
from coterie.lab.simulator.workers.process import WorkerProcess
from coterie.lab.simulator.world import World
from coterie.nouns.ids import GenerationId, MemberId
from coterie.nouns.jobs import NO_JOBS, Jobs
from coterie.nouns.membership import AssignmentsRequested, ComputedAssignments
from coterie.wire.connect import AssignmentErrorCode, ConnectProtocol, RoundToken
from coterie.wire.connect_bytes import decode_version_and_assignment, decode_version_and_metadata
from coterie.wire.errors import ErrorCode


class ClassicGroupChecker(WorkersChecker):
    """Checks the workers and the coordinator of their classic group; implements `coordinator.CoordinatorChecker`."""

    def __init__(
        self, world: World, config_log: ConfigLog, policy: RebalancePolicy, *, session_timeout_ms: int
    ) -> None:
        super().__init__(world, config_log)
        self._policy = policy
        self._deferral_checker = DeferralChecker(max_delay_ms=policy.max_delay_ms, slack_ms=2 * session_timeout_ms)
        self.refused_sync_count = 0
        """Number of SyncGroup requests so far that were answered with REBALANCE_IN_PROGRESS and not with an assignment,
        because the next rebalance had begun."""
        self.rejoin_after_release_count = 0
        """Number of rounds so far that herders have requested because they have released revoked jobs."""
        self._sent_by_generation: dict[GenerationId, tuple[MemberIdentity, str | None]] = {}
        """For each generation that was sent in a JoinGroup response, the leader and the protocol that were sent."""
        self._members_by_generation: dict[GenerationId, frozenset[MemberIdentity]] = {}
        """For each generation, its members as its leader received them."""
        self._identities: dict[MemberId, MemberIdentity] = {}
        """By member id, the instance id of a static member; the member id itself of any other member."""
        self._fenced_member_ids: set[MemberId] = set()
        """The member ids that a newer member with the same instance id has replaced. The process of such a member id is
        fenced by the response to its next heartbeat (KIP-345), or stops its tasks when it has had no response for a
        session timeout."""
        self._last_checked_generation = GenerationId(0)
        """The last generation whose assignments were checked. It is needed because the coordinator writes a generation
        again when a static member rejoins."""
        self._revoked_by_member: dict[MemberId, Jobs] = {}
        """The jobs that the last checked round revoked from each member."""
        self._released_by_draining = NO_JOBS
        """The jobs that rounds have revoked from draining members and that no member has owned since."""

    # -- the coordinator --------------------------------------------------------------------------------------------

    def check_step(self, step: CoordinatorStep) -> None:
        """Check one step of the coordinator: the assignments and the records that it writes, and that members whose
        sessions have expired run no task."""
        if isinstance(step.event, Heartbeat):
            return  # A heartbeat changes nothing that is checked here.
        if isinstance(step.event, SyncGroup):
            self._check_assigned_member_ids(step.event, step)
        for instance_id, former in step.group_before.static_members.items():
            if step.group.static_members.get(instance_id, former) != former:
                self._fenced_member_ids.add(former)
        for record in step.output.records:
            assert isinstance(record, GenerationWritten), (
                "bug in the simulator or the coordinator: workers commit no offsets and their group is not deleted, so "
                "all records are generations"
            )
            for member_id, member in record.members.items():
                self._identities[member_id] = member.instance_id or member_id
            self._check_written_generation(record)
        if isinstance(step.event, TimerFired) and isinstance(step.event.key, SessionTimer):
            self._check_removed_members_stopped(step.group_before.members - step.group.members.keys())

    def _check_assigned_member_ids(self, request: SyncGroup, step: CoordinatorStep) -> None:
        """If the step writes the assignments of ``request``, the leader's SyncGroup, check that they are for all
        members of the group and for no other member.

        :raises Violation: KNOWN_MEMBERS.
        """
        if not step.output.records or not request.assignments:
            return
        assigned_member_ids = {member_id for member_id, _ in request.assignments}
        if assigned_member_ids != step.group_before.members:
            raise Violation(
                Invariant.KNOWN_MEMBERS,
                f"the leader sends assignments for {sorted(assigned_member_ids)}, but the members are "
                f"{sorted(step.group_before.members)}",
            )

    def _check_written_generation(self, record: GenerationWritten) -> None:
        """Check a generation that the coordinator writes. A generation without a protocol and assignments begins a
        round: the number of the generation must be higher than every generation that was sent to members. The
        assignments of any other generation are checked as a round when the coordinator writes them for the first time.

        :raises Violation: GENERATION_RISES, or those of `check_round`.
        """
        if record.protocol is None:
            highest = max(self._sent_by_generation, default=GenerationId(0))
            if record.generation <= highest:
                raise Violation(
                    Invariant.GENERATION_RISES, f"generation {record.generation} begins, but {highest} was sent before"
                )
        elif record.generation > self._last_checked_generation:
            self._last_checked_generation = record.generation
            self._check_and_store_round(record)

    def _check_and_store_round(self, record: GenerationWritten) -> None:
        """Check the assignments of a generation, unless one of them has an error instead of jobs.

        :raises Violation: KNOWN_MEMBERS, or those of `check_round`.
        """
        protocol = {connect_protocol.wire_name: connect_protocol for connect_protocol in ConnectProtocol}[
            record.protocol or ""
        ]
        members: dict[MemberId, RoundMember] = {}
        configured, delay_ms = NO_JOBS, 0
        for member_id, member in record.members.items():
            if not member.assignment:
                raise Violation(
                    Invariant.KNOWN_MEMBERS, f"generation {record.generation} has no assignment for {member_id}"
                )
            assignment = decode_version_and_assignment(member.assignment)[1]
            if assignment.error is not AssignmentErrorCode.NO_ERROR:
                return
            members[member_id] = RoundMember.from_decoded_messages(
                self._identities[member_id],
                decode_version_and_metadata(member.subscription)[1],
                assignment,
                revoked_in_last_round=self._revoked_by_member.get(member_id, NO_JOBS),
            )
            configured = self._config_log.configured_jobs_at(assignment.config_offset)
            delay_ms = assignment.delay_ms
        round_ = CheckedRound(
            generation=record.generation,
            protocol=protocol,
            members=members,
            configured_jobs=configured,
            delay_ms=delay_ms,
            released_by_draining=self._released_by_draining,
        )
        check_round(round_, self._policy)
        self._revoked_by_member = {member_id: member.revoked for member_id, member in members.items()}
        if protocol is ConnectProtocol.EAGER:
            self._released_by_draining = NO_JOBS  # a leader keeps no state after an eager round
            return
        released = [round_member.revoked for round_member in members.values() if round_member.is_draining]
        self._released_by_draining = (self._released_by_draining - round_.owned_jobs) | union_of_jobs(released)

    def check_sent_response(self, request: Request, response: Response) -> None:
        """Check a response when it is sent: all members of a generation must receive the same leader and protocol with
        their JoinGroup responses. Count the SyncGroup requests that are answered with REBALANCE_IN_PROGRESS.

        :raises Violation: GENERATION_RISES.
        """
        if response.error is ErrorCode.none and isinstance(response, JoinGroupResponse):
            self._check_same_leader_and_members(response)
        elif isinstance(request, SyncGroup) and response.error is ErrorCode.rebalance_in_progress:
            self.refused_sync_count += 1

    def _check_same_leader_and_members(self, response: JoinGroupResponse) -> None:
        """Check that all members of a generation receive the same leader and protocol, and that its leader always
        receives the same members.

        :raises Violation: GENERATION_RISES.
        """
        leader = self._identities[response.leader]
        sent_before = self._sent_by_generation.setdefault(response.generation, (leader, response.protocol))
        if sent_before != (leader, response.protocol):
            raise Violation(
                Invariant.GENERATION_RISES,
                f"generation {response.generation} is sent with the leader and protocol {(leader, response.protocol)}, "
                f"but was sent with {sent_before}",
            )
        if response.members:
            members = frozenset(self._identities[joined_member.member_id] for joined_member in response.members)
            if self._members_by_generation.setdefault(response.generation, members) != members:
                raise Violation(
                    Invariant.GENERATION_RISES,
                    f"generation {response.generation} was sent to its leader with two different sets of members",
                )

    def check_and_store_loaded_group(self, group: Group) -> None:
        """Check the group that the coordinator has loaded, at its first start or after a crash: no generation that was
        sent is lost. The members of the loaded group no longer count as fenced: if newer members had replaced them, the
        crash has lost the records of the newer members.

        :raises Violation: NOTHING_LOST.
        """
        if group.generation < max(self._sent_by_generation, default=GenerationId(0)):
            raise Violation(
                Invariant.NOTHING_LOST,
                f"after a crash the group is at generation {group.generation}, but a later one was sent",
            )
        self._fenced_member_ids -= group.members.keys()  # the crash has lost the records of their successors

    def _check_removed_members_stopped(self, removed_members: AbstractSet[MemberId]) -> None:
        """Check that the processes of ``removed_members``, the members that were removed because a session has expired,
        run no task, if they have had time to stop them.

        :raises Violation: STOPPED_WHEN_EXPIRED.
        """
        for process in sorted_by_name(self.processes):
            if process.member_id in removed_members and self._has_had_time_to_stop(process):
                self._check_runs_no_task(process, "was removed from the group")

    # -- workers ----------------------------------------------------------------------------------------------------

    def check_deferrals_in_round(
        self, process: ClassicWorkerProcess, requested_round: AssignmentsRequested, computed: ComputedAssignments
    ) -> None:
        """Check the scheduled rebalance delay in a round that ``process``, the leader, has computed, also if no member
        will receive the assignments. ``requested_round`` has the members' reports, ``computed`` the assignments. A
        round that assigns nothing because a member has read more of the config log is not checked.

        :raises Violation: LOST_WAITS, DELAY_ENDS.
        """
        token = RoundToken.checked_instance(requested_round.token)
        if computed.has_config_mismatch:
            return
        if token.protocol is ConnectProtocol.EAGER:
            self._deferral_checker.forget_last_cooperative_round(process)
            return
        round_ = CheckedRound(
            generation=token.generation,
            protocol=token.protocol,
            members={
                member_id: RoundMember.from_report(
                    self._identities[member_id], requested_round.members[member_id], assignment
                )
                for member_id, assignment in computed.assignments.items()
            },
            configured_jobs=self._config_log.configured_jobs_at(computed.config_offset),
            delay_ms=computed.delay_ms,
        )
        self._deferral_checker.check_deferrals_in_round(
            process, round_, received_generation=process.received_generation, now_ms=self._world.now_ms
        )

    def forget_last_computed_round(self, process: ClassicWorkerProcess) -> None:
        """Forget the last round that ``process``, which has lost its membership, has computed."""
        self._deferral_checker.forget_last_computed_round(process)

    def check_eager_join_without_tasks(self, process: ClassicWorkerProcess) -> None:
        """Check that ``process``, which is about to send JoinGroup, runs no task if the group's protocol is `eager` in
        the last generation that it has received.

        :raises Violation: EAGER_STOPS_FIRST.
        """
        if process.protocol is ConnectProtocol.EAGER and process.running_tasks:
            runs = sorted(map(str, process.running_tasks))
            raise Violation(
                Invariant.EAGER_STOPS_FIRST, f"{process.name} sends JoinGroup to an eager group and still runs {runs}"
            )

    def _are_requests_signed(self, process: WorkerProcess) -> bool:
        return (
            isinstance(process, ClassicWorkerProcess)
            and process.protocol is not None
            and process.protocol >= ConnectProtocol.SESSIONED
        )

    def _was_replaced_or_cut_off(self, process: WorkerProcess) -> bool:
        return process.member_id in self._fenced_member_ids
