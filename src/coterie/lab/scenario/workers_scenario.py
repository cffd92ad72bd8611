"""A scenario of workers: the real coordinator and real members of a classic group, on a network without faults and a
clock that only commands move.

Each step prints lines in the words of KIP-415 and in the notation of `notation`.
"""

from collections.abc import Iterable, Sequence

from coterie.assignors.assignor_state import AssignorState
from coterie.assignors.cooperative import RoundOutcome, assign
from coterie.assignors.members import MemberSpec, RebalancePolicy
from coterie.assignors.moves import RevocationReason
from coterie.groups.classic.messages import GenerationWritten, GroupPhase, Record
from coterie.lab.scenario.group import GroupScenario
from coterie.lab.scenario.notation import format_assignment, format_jobs
from coterie.lab.scenario.worker import GROUP_ID, ComputedRound, ScenarioWorker, SharedScenarioInput
from coterie.lab.steps import PLAIN_STEPS, MachineSteps
from coterie.nouns.ids import GenerationId, MemberId
from coterie.nouns.jobs import NO_JOBS, Jobs
from coterie.nouns.membership import Leave, Rejoin
from coterie.wire.connect import ConnectProtocol

DEFAULT_MAX_DELAY_MS = 300_000
"""The default of ``scheduled.rebalance.max.delay.ms``, which KIP-415's examples call ``d``."""

MOVE_REASONS = (RevocationReason.CLAIM, RevocationReason.DRAIN, RevocationReason.BALANCE)
"""A job that is revoked for one of these reasons counts as a move to another worker. A job that is revoked for another
reason (the job was deleted, or two workers run it) does not."""


class WorkersScenario(GroupScenario):
    """One group of workers. The commands of a transcript are methods, which add the lines that they print to
    ``output_lines``."""

    def __init__(
        self, protocol: ConnectProtocol = ConnectProtocol.STATIC, *, steps: MachineSteps = PLAIN_STEPS
    ) -> None:
        super().__init__(GROUP_ID, steps)
        self.newest_protocol = protocol
        """The newest protocol that a worker offers, unless the command that starts it sets another."""
        self.fleet = SharedScenarioInput(
            configured_jobs=NO_JOBS, policy=RebalancePolicy(max_delay_ms=DEFAULT_MAX_DELAY_MS)
        )
        self.workers: dict[str, ScenarioWorker] = {}
        """The running workers, by name."""
        self._last_leader: str | None = None
        self._last_protocol: ConnectProtocol | None = None

    # -- commands -----------------------------------------------------------------------------------------------------

    def set_jobs_and_let_leader_rejoin(self, jobs: Jobs) -> None:
        """Set the configured jobs. If the group has a leader that runs, let it request a round, and run until the group
        is idle. A leader that was killed requests none: the next leader assigns the jobs."""
        self.fleet.configured_jobs = jobs
        leader = self.group.leader
        leading_worker = None if leader is None else self.workers.get(self._worker_name(leader))
        if leading_worker is not None:
            leading_worker.step_member(Rejoin(reason="the set of jobs has changed"))
            self.run_all_due_now()

    def start_worker(self, name: str, *, claims: Jobs | None = None, protocol: ConnectProtocol | None = None) -> None:
        """Start the worker ``name``, and run until the group is idle. ``claims``: the only jobs that the worker may run
        (KIP-987); None: it may run all jobs that no other worker claims. ``protocol``: the newest protocol that the
        worker offers; None: :attr:`newest_protocol`.

        :raises ValueError: when the worker runs already.
        """
        if name in self.workers:
            raise ValueError(
                f"cannot start the worker {name}, because it runs already: end it first, or use another name"
            )
        self.workers[name] = ScenarioWorker(
            self,
            self.fleet,
            name,
            self.newest_protocol if protocol is None else protocol,
            claims,
            fresh_member_id=MemberId(name + "'" * (self._increment_start_count(name) - 1)),
            report_round=self._print_round,
        )
        self.workers[name].report_state_to_member()
        self.run_all_due_now()

    def leave_and_stop_worker(self, name: str) -> None:
        """Stop the worker ``name`` as SIGTERM does: it sends LeaveGroup, and no longer takes part in the scenario.

        :raises KeyError: when the worker does not run.
        """
        is_leader = self.group.leader is not None and self._worker_name(self.group.leader) == name
        self.add_output_line(f"{name}, which is the leader, leaves" if is_leader else f"{name} leaves")
        self.workers[name].step_member(Leave(reason="shutdown"))
        self.run_all_due_now()
        del self.workers[name]

    def kill_worker(self, name: str) -> None:
        """End the worker ``name`` without LeaveGroup: the coordinator removes its member when the session expires.

        :raises KeyError: when the worker does not run.
        """
        self.add_output_line(f"{name} dies")
        del self.workers[name]

    def let_worker_report_drain(self, name: str) -> None:
        """Let the worker ``name`` report that it drains: the following rounds revoke its jobs. The worker leaves the
        group only with :meth:`leave_and_stop_worker`.

        :raises KeyError: when the worker does not run.
        """
        self.add_output_line(f"{name} is to drain")
        worker = self.workers[name]
        worker.is_draining = True
        worker.report_state_to_member()
        worker.step_member(Rejoin(reason="this worker drains"))
        self.run_all_due_now()

    def end_slow_stops_and_rejoin(self, name: str) -> None:
        """End the stops of all jobs that the worker ``name`` is still stopping, and let it rejoin.

        :raises KeyError: when the worker does not run.
        """
        self.workers[name].end_slow_stops_and_rejoin()
        self.run_all_due_now()

    def rejoin_worker(self, name: str) -> None:
        """Let the worker ``name`` send JoinGroup now.

        :raises KeyError: when the worker does not run.
        """
        self.workers[name].step_member(Rejoin(reason="the script orders it"))
        self.run_all_due_now()

    @property
    def earliest_rebalance_delay_end_ms(self) -> int | None:
        """The earliest end of the scheduled rebalance delays that workers have received, in ms on the scenario's clock;
        None if no worker has received a delay that is still running."""
        ends = [
            worker.rebalance_delay_ends_ms
            for worker in self.workers.values()
            if worker.rebalance_delay_ends_ms is not None
        ]
        return min(ends, default=None)

    def print_jobs_and_leader(self) -> None:
        """Print the jobs of each worker, the configured jobs and the leader."""
        jobs_by_worker = ", ".join(
            f"{name}({format_jobs(worker.owned_jobs)})" for name, worker in sorted(self.workers.items())
        )
        self.add_output_line(f"Initial group and assignment: {jobs_by_worker}".rstrip())
        self.add_output_line(f"Config topic contains: {format_jobs(self.fleet.configured_jobs)[1:-1]}")
        if self.group.leader is not None:
            self.add_output_line(f"{self._worker_name(self.group.leader)} is current leader")

    # -- steps of the machines ----------------------------------------------------------------------------------------

    def _print_round(self, leader: str, protocol: ConnectProtocol, computed: ComputedRound) -> None:
        """Print ``computed``, the round that the worker ``leader`` has computed with the group's ``protocol``."""
        if self._last_protocol not in (None, protocol):
            self.add_output_line(f"The group speaks {protocol.setting}")
        self._last_protocol = protocol
        self.add_output_line(f"{leader} computes and sends assignments:")
        if isinstance(computed, RoundOutcome):
            self._print_cooperative_round(computed)
        else:
            for member, jobs in sorted(computed.items()):
                self.add_output_line(
                    format_assignment(self._worker_name(member), delay_ms=0, owned=jobs, revoked=NO_JOBS)
                )
            self._print_and_forget_stops_as_moves(computed)

    def _print_cooperative_round(self, outcome: RoundOutcome) -> None:
        """Print each assignment of a cooperative round, the unassigned jobs with their reasons (without the jobs that
        stay unassigned because of the delay), and the number of moves."""
        for member, assignment in sorted(outcome.assignments.items()):
            name = self._worker_name(member)
            self.add_output_line(
                format_assignment(
                    name, delay_ms=outcome.delay_ms, owned=assignment.owned_after, revoked=assignment.revoked
                )
            )
        deferred_jobs = [job for assignment in outcome.assignor_state.deferrals for job in assignment.jobs]
        for job, reason in outcome.reason_by_unassigned_job.items():
            if job not in deferred_jobs:
                self.add_output_line(f"  {format_jobs([job])} is unassigned: {reason}")
        if any(worker.jobs_stopped_before_join for worker in self.workers.values()):
            self._print_and_forget_stops_as_moves(outcome.assignments)
            return
        moves = [
            (reason, jobs)
            for assignment in outcome.assignments.values()
            for reason, jobs in assignment.revoked_by_reason.items()
            if reason in MOVE_REASONS
        ]
        moves_made = sum(len(jobs) for _, jobs in moves)
        remark = ", the others not before the delay is over" if deferred_jobs else ", the others in later rounds"
        self._print_moves(moves_made, outcome, remark if moves_made < outcome.move_count_to_target else "")

    def _print_and_forget_stops_as_moves(self, members: Iterable[MemberId]) -> None:
        """Print the number of moves of a round for which all of ``members`` have stopped all their jobs: each stopped
        job counts as a move. The printed optimum is that of a cooperative round in which the members still run these
        jobs. The stopped jobs are then forgotten."""
        workers = {member: self.workers[self._worker_name(member)] for member in members}
        jobs_before = {
            member: worker.owned_jobs | worker.jobs_stopped_before_join for member, worker in workers.items()
        }
        cooperative_round = assign(
            AssignorState(),
            configured=self.fleet.configured_jobs,
            members={member: MemberSpec(owned=jobs) for member, jobs in jobs_before.items()},
            generation=GenerationId(1),
            last_completed_generation=GenerationId(-1),
            now_ms=self.now_ms,
            policy=self.fleet.policy,
        )
        for worker in workers.values():
            worker.jobs_stopped_before_join = NO_JOBS
        self._print_moves(sum(map(len, jobs_before.values())), cooperative_round)

    def _print_moves(self, moves_made: int, round_outcome: RoundOutcome, remark: str = "") -> None:
        """Print ``moves_made``, the number of moves that the round makes; the number of moves from the jobs that the
        members own to the target of ``round_outcome`` ("optimum"); and a lower bound of the moves to any target (M*).
        ``remark`` is added to the end of the line."""
        optimum, lower_bound = round_outcome.move_count_to_target, round_outcome.move_count_lower_bound
        self.add_output_line(f"  moves: {moves_made}, optimum: {optimum}, M*: {lower_bound}{remark}")

    def _print_rebalance_of_step(
        self, phase_before: GroupPhase, generation_before: GenerationId, records: Sequence[Record]
    ) -> None:
        generations = [record for record in records if isinstance(record, GenerationWritten)]
        begun_generations = [record for record in generations if record.protocol is None and record.members]
        is_open = self.group.phase is GroupPhase.PREPARING_REBALANCE
        if phase_before is not GroupPhase.PREPARING_REBALANCE and (begun_generations or is_open):
            self.add_output_line("Rebalance is triggered")
        for record in begun_generations:
            self._print_leader_and_delay(record)

    def _print_leader_and_delay(self, record: GenerationWritten) -> None:
        """Print the leader of the generation in ``record`` and, if another worker was the leader before, whether a
        scheduled rebalance delay in the last assignment of the new leader is still running."""
        assert record.leader is not None
        name = self._worker_name(record.leader)
        self.add_output_line(f"{name} becomes leader (generation {record.generation})")
        if self._last_leader not in (None, name):
            delay = self.workers[name].rebalance_delay_ends_ms
            self.add_output_line(
                "No delay is in progress." if delay is None else "There's an active delay in progress."
            )
        self._last_leader = name

    def _worker_name(self, member_id: MemberId) -> str:
        """The name of the worker with the member id ``member_id``: a member id is the worker's name with one ``'`` for
        each restart."""
        return member_id.rstrip("'")

    def _fire_due_member_timer(self) -> bool:
        return any(self.workers[name].fire_due_timer_or_rejoin() for name in sorted(self.workers))

    def _next_member_timer_times_ms(self) -> Iterable[int | None]:
        return (worker.next_timer_or_rejoin_at_ms() for worker in self.workers.values())
