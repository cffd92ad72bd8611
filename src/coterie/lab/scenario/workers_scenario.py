"""A scenario of workers: a real coordinator and real members, on a network without faults and a clock that only
commands move.

Each step prints lines in KIP-415's own words and in the notation of `notation`.
"""

from collections.abc import Iterable, Sequence

from coterie.assignors.assignor_state import AssignorState
from coterie.assignors.cooperative import RoundOutcome, assign
from coterie.assignors.members import MemberSpec, RebalancePolicy
from coterie.assignors.moves import RevocationReason
from coterie.groups.classic.messages import GenerationWritten, Phase, Record
from coterie.lab.scenario.group import GroupScenario
from coterie.lab.scenario.notation import show_assignment, show_jobs
from coterie.lab.scenario.worker import GROUP, ComputedRound, FleetConfig, ScenarioWorker
from coterie.lab.steps import STEPS, Steps
from coterie.nouns.ids import Generation, MemberId
from coterie.nouns.jobs import NO_JOBS, Jobs
from coterie.nouns.membership import Leave, Rejoin
from coterie.wire.connect import ConnectProtocol

MAX_DELAY_MS = 300_000
"""The default of ``scheduled.rebalance.max.delay.ms``, which KIP-415's examples call ``d``."""

MOVES = (RevocationReason.CLAIM, RevocationReason.DRAIN, RevocationReason.BALANCE)
"""The reasons of revocations that count as moves. A job that was deleted, or that two workers run, is only stopped."""


class WorkersScenario(GroupScenario):
    """One group of workers; its commands print lines."""

    def __init__(self, protocol: ConnectProtocol = ConnectProtocol.STATIC, *, steps: Steps = STEPS) -> None:
        super().__init__(GROUP, steps)
        self.protocol = protocol
        """The newest protocol that workers offer for which the script sets no other."""
        self.fleet = FleetConfig(configured=NO_JOBS, policy=RebalancePolicy(max_delay_ms=MAX_DELAY_MS))
        self.workers: dict[str, ScenarioWorker] = {}
        self._last_leader: str | None = None
        self._last_protocol: ConnectProtocol | None = None

    # -- commands -----------------------------------------------------------------------------------------------------

    def configure(self, jobs: Jobs) -> None:
        """Set the configured jobs. If the group has a leader, the leader requests a round."""
        self.fleet.configured = jobs
        leader = self.group.leader
        if leader is not None:
            self.workers[self._name_of(leader)].feed(Rejoin(reason="the set of jobs has changed"))
            self.run_queue()

    def start(self, name: str, *, claims: Jobs | None = None, protocol: ConnectProtocol | None = None) -> None:
        """Start the worker ``name``; ``protocol`` None: the scenario's protocol.

        :raises ValueError: when the worker runs already.
        """
        if name in self.workers:
            raise ValueError(f"the worker {name} runs already")
        self.workers[name] = ScenarioWorker(
            self,
            self.fleet,
            name,
            self.protocol if protocol is None else protocol,
            claims,
            fresh_member_id=MemberId(name + "'" * (self._next_life(name) - 1)),
            report_round=self._report_round,
        )
        self.workers[name].subscribe()
        self.run_queue()

    def stop(self, name: str) -> None:
        """Stop a worker as SIGTERM does: it stops its jobs, then it sends LeaveGroup."""
        is_leader = self.group.leader is not None and self._name_of(self.group.leader) == name
        self.print_line(f"{name}, which is the leader, leaves" if is_leader else f"{name} leaves")
        self.workers[name].feed(Leave(reason="shutdown"))
        self.run_queue()
        del self.workers[name]

    def kill(self, name: str) -> None:
        """End a worker without LeaveGroup: the coordinator removes its member when the session has expired."""
        self.print_line(f"{name} dies")
        del self.workers[name]

    def drain(self, name: str) -> None:
        """Have a worker report that it drains: it is to release its jobs, to leave and not to return."""
        self.print_line(f"{name} is to drain")
        worker = self.workers[name]
        worker.draining = True
        worker.subscribe()
        worker.feed(Rejoin(reason="this worker drains"))
        self.run_queue()

    def rejoin(self, name: str) -> None:
        """Have a worker send JoinGroup now."""
        self.workers[name].feed(Rejoin(reason="the script orders it"))
        self.run_queue()

    @property
    def delay_ends_at_ms(self) -> int | None:
        """When the scheduled rebalance delay ends, by the worker for which it ends first; None if there is no delay."""
        ends = [worker.deferred_until_ms for worker in self.workers.values() if worker.deferred_until_ms is not None]
        return min(ends, default=None)

    def show(self) -> None:
        """Print the jobs of each worker, the configured jobs and the leader."""
        runs = ", ".join(f"{name}({show_jobs(worker.owned)})" for name, worker in sorted(self.workers.items()))
        self.print_line(f"Initial group and assignment: {runs}".rstrip())
        self.print_line(f"Config topic contains: {show_jobs(self.fleet.configured)[1:-1]}")
        if self.group.leader is not None:
            self.print_line(f"{self._name_of(self.group.leader)} is current leader")

    # -- steps of the machines ----------------------------------------------------------------------------------------

    def _report_round(self, leader: str, protocol: ConnectProtocol, computed: ComputedRound) -> None:
        """Print the round that the worker ``leader`` has computed."""
        if self._last_protocol not in (None, protocol):
            self.print_line(f"The group speaks {protocol.setting}")
        self._last_protocol = protocol
        self.print_line(f"{leader} computes and sends assignments:")
        if isinstance(computed, RoundOutcome):
            self._report_cooperative_round(computed)
        else:
            for member, jobs in sorted(computed.items()):
                self.print_line(show_assignment(self._name_of(member), delay_ms=0, runs=jobs, gives=NO_JOBS))
            self._report_stops(computed)

    def _report_cooperative_round(self, outcome: RoundOutcome) -> None:
        """Print each assignment of a cooperative round, the unassigned jobs and the number of moves."""
        for member, one in sorted(outcome.assignments.items()):
            name = self._name_of(member)
            self.print_line(show_assignment(name, delay_ms=outcome.delay_ms, runs=one.owned_after, gives=one.revoked))
        waiting = [job for one in outcome.state.deferrals for job in one.jobs]
        for job, reason in outcome.unassigned.items():
            if job not in waiting:
                self.print_line(f"  {show_jobs([job])} is unassigned: {reason}")
        if any(worker.stopped for worker in self.workers.values()):
            self._report_stops(outcome.assignments)
            return
        moves = [
            (why, jobs)
            for one in outcome.assignments.values()
            for why, jobs in one.revoked_by_reason.items()
            if why in MOVES
        ]
        made = sum(len(jobs) for _, jobs in moves)
        later = ", the others not before the delay is over" if waiting else ", the others in later rounds"
        self._report_moves(made, outcome, later if made < outcome.moves_to_target else "")

    def _report_stops(self, members: Iterable[MemberId]) -> None:
        """Print the number of moves of a round for which all of ``members`` have stopped all jobs. The optimum next to
        it is that of a cooperative group whose members ran the same jobs."""
        workers = {member: self.workers[self._name_of(member)] for member in members}
        ran = {member: worker.owned | worker.stopped for member, worker in workers.items()}
        cheapest = assign(
            AssignorState(),
            configured=self.fleet.configured,
            members={member: MemberSpec(owned=jobs) for member, jobs in ran.items()},
            generation=Generation(1),
            last_completed_generation=Generation(-1),
            now_ms=self.now_ms,
            policy=self.fleet.policy,
        )
        for worker in workers.values():
            worker.stopped = NO_JOBS
        self._report_moves(sum(map(len, ran.values())), cheapest)

    def _report_moves(self, made: int, cheapest: RoundOutcome, later: str = "") -> None:
        """Print the number ``made`` of moves, and beside it the fewest moves to the target of ``cheapest`` and their
        lower bound M*."""
        self.print_line(
            f"  moves: {made}, optimum: {cheapest.moves_to_target}, M*: {cheapest.moves_lower_bound}{later}"
        )

    def _report_step(self, was: Phase, generation: Generation, records: Sequence[Record]) -> None:
        written = [record for record in records if isinstance(record, GenerationWritten)]
        begun = [record for record in written if record.protocol is None and record.members]
        is_open = self.group.phase is Phase.PREPARING_REBALANCE
        if was is not Phase.PREPARING_REBALANCE and (begun or is_open):
            self.print_line("Rebalance is triggered")
        for record in begun:
            self._report_leader(record)

    def _report_leader(self, record: GenerationWritten) -> None:
        """Print the leader of a generation and, if the leader has changed, whether it knows of a delay."""
        assert record.leader is not None
        name = self._name_of(record.leader)
        self.print_line(f"{name} becomes leader (generation {record.generation})")
        if self._last_leader not in (None, name):
            delay = self.workers[name].deferred_until_ms
            self.print_line("No delay is in progress." if delay is None else "There's an active delay in progress.")
        self._last_leader = name

    def _name_of(self, member_id: MemberId) -> str:
        """The name of the worker with this member id, which is the name with one ``'`` for each restart."""
        return member_id.rstrip("'")

    def _fire_due(self) -> bool:
        return any(self.workers[name].fire_due() for name in sorted(self.workers))

    def _deadlines(self) -> Iterable[int | None]:
        return (worker.next_at_ms() for worker in self.workers.values())
