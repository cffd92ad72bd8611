"""A scenario of workers: a real coordinator and real members, on a network without faults and a clock that only
commands move.

Each step prints lines in KIP-415's own words and `notation`.
"""

from collections.abc import Iterable, Sequence

from coterie.assignors.cooperative import RoundOutcome, assign
from coterie.assignors.members import MemberView, Policy
from coterie.assignors.memory import Memory
from coterie.assignors.moves import Why
from coterie.groups.classic.messages import GenerationWritten, Phase, Record
from coterie.lab.scenario.group import GroupStage
from coterie.lab.scenario.notation import show_jobs, show_share
from coterie.lab.scenario.worker import GROUP, ComputedRound, FleetConfig, ScenarioWorker
from coterie.lab.steps import STEPS, Steps
from coterie.nouns.ids import Generation, MemberId
from coterie.nouns.jobs import NO_JOBS, Jobs
from coterie.nouns.membership import Leave, Rejoin
from coterie.wire.connect import ConnectProtocol

MAX_DELAY_MS = 300_000
"""KIP-415's default of ``scheduled.rebalance.max.delay.ms``: its ``d``."""

MOVES = (Why.CLAIM, Why.DRAIN, Why.BALANCE)
"""The reasons for which a job moves. A job that is deleted, or that runs twice, only stops."""


class WorkersStage(GroupStage):
    """One group, its workers, and the lines that they print."""

    def __init__(self, protocol: ConnectProtocol = ConnectProtocol.STATIC, *, steps: Steps = STEPS) -> None:
        super().__init__(GROUP, steps)
        self.protocol = protocol
        """The protocol of workers for which the script sets no other."""
        self.fleet = FleetConfig(configured=NO_JOBS, policy=Policy(max_delay_ms=MAX_DELAY_MS))
        self.workers: dict[str, ScenarioWorker] = {}
        self._had_leader: str | None = None
        self._spoken: ConnectProtocol | None = None

    # -- commands -----------------------------------------------------------------------------------------------------

    def configure(self, jobs: Jobs) -> None:
        """Set the configured jobs; if the group has a leader, it requests a round."""
        self.fleet.configured = jobs
        leader = self.group.leader
        if leader is not None:
            self.workers[self._name_of(leader)].feed(Rejoin(reason="the set of jobs has changed"))
            self.settle()

    def start(self, name: str, *, claims: Jobs | None = None, protocol: ConnectProtocol | None = None) -> None:
        if name in self.workers:
            raise ValueError(f"{name} has started already")
        self.workers[name] = ScenarioWorker(
            self,
            self.fleet,
            name,
            self.protocol if protocol is None else protocol,
            claims,
            fresh_member_id=MemberId(name + "'" * (self._next_life(name) - 1)),
            tell_round=self._tell_round,
        )
        self.workers[name].subscribe()
        self.settle()

    def stop(self, name: str) -> None:
        """Stop a worker as SIGTERM does: its jobs stop, then it sends LeaveGroup."""
        is_leader = self.group.leader is not None and self._name_of(self.group.leader) == name
        self.say(f"{name}, which is the leader, leaves" if is_leader else f"{name} leaves")
        self.workers[name].feed(Leave(reason="shutdown"))
        self.settle()
        del self.workers[name]

    def kill(self, name: str) -> None:
        """End a worker without LeaveGroup: the coordinator removes it when its session has expired."""
        self.say(f"{name} dies")
        del self.workers[name]

    def drain(self, name: str) -> None:
        """Have a worker report that it drains: it is to leave and not to return."""
        self.say(f"{name} is to drain")
        worker = self.workers[name]
        worker.draining = True
        worker.subscribe()
        worker.feed(Rejoin(reason="this worker drains"))
        self.settle()

    def rejoin(self, name: str) -> None:
        self.workers[name].feed(Rejoin(reason="the script orders it"))
        self.settle()

    @property
    def delay_ends_at_ms(self) -> int | None:
        ends = [worker.deferred_until_ms for worker in self.workers.values() if worker.deferred_until_ms is not None]
        return min(ends, default=None)

    def show(self) -> None:
        runs = ", ".join(f"{name}({show_jobs(worker.owned)})" for name, worker in sorted(self.workers.items()))
        self.say(f"Initial group and assignment: {runs}".rstrip())
        self.say(f"Config topic contains: {show_jobs(self.fleet.configured)[1:-1]}")
        if self.group.leader is not None:
            self.say(f"{self._name_of(self.group.leader)} is current leader")

    # -- steps of the machines ----------------------------------------------------------------------------------------

    def _tell_round(self, leader: str, protocol: ConnectProtocol, computed: ComputedRound) -> None:
        if self._spoken not in (None, protocol):
            self.say(f"The group speaks {protocol.setting}")
        self._spoken = protocol
        self.say(f"{leader} computes and sends assignments:")
        if isinstance(computed, RoundOutcome):
            self._tell_cooperative_round(computed)
        else:
            for member, jobs in sorted(computed.items()):
                self.say(show_share(self._name_of(member), delay_ms=0, runs=jobs, gives=NO_JOBS))
            self._tell_stops(computed)

    def _tell_cooperative_round(self, outcome: RoundOutcome) -> None:
        for member, one in sorted(outcome.assignments.items()):
            name = self._name_of(member)
            self.say(show_share(name, delay_ms=outcome.delay_ms, runs=one.whole, gives=one.revoked))
        waiting = [job for one in outcome.memory.waiting for job in one.jobs]
        for job, reason in outcome.unassigned.items():
            if job not in waiting:
                self.say(f"  {show_jobs([job])} is unassigned: {reason}")
        if any(worker.stopped for worker in self.workers.values()):
            self._tell_stops(outcome.assignments)
            return
        moves = [(why, jobs) for one in outcome.assignments.values() for why, jobs in one.why.items() if why in MOVES]
        made = sum(len(jobs) for _, jobs in moves)
        later = ", the others not before the delay is over" if waiting else ", the others in later rounds"
        self._tell_moves(made, outcome, later if made < outcome.optimum else "")

    def _tell_stops(self, members: Iterable[MemberId]) -> None:
        """Print the moves of a round for which all members have stopped everything; the optimum is that of a
        cooperative group that ran the same jobs."""
        workers = {member: self.workers[self._name_of(member)] for member in members}
        ran = {member: worker.owned | worker.stopped for member, worker in workers.items()}
        cheapest = assign(
            Memory(),
            configured=self.fleet.configured,
            members={member: MemberView(owned=jobs) for member, jobs in ran.items()},
            generation=Generation(1),
            last_completed_generation=Generation(-1),
            now_ms=self.now_ms,
            policy=self.fleet.policy,
        )
        for worker in workers.values():
            worker.stopped = NO_JOBS
        self._tell_moves(sum(map(len, ran.values())), cheapest)

    def _tell_moves(self, made: int, cheapest: RoundOutcome, later: str = "") -> None:
        self.say(f"  moves: {made}, optimum: {cheapest.optimum}, M*: {cheapest.bound}{later}")

    def _tell_step(self, was: Phase, generation: Generation, records: Sequence[Record]) -> None:
        written = [record for record in records if isinstance(record, GenerationWritten)]
        begun = [record for record in written if record.protocol is None and record.members]
        is_open = self.group.phase is Phase.PREPARING_REBALANCE
        if was is not Phase.PREPARING_REBALANCE and (begun or is_open):
            self.say("Rebalance is triggered")
        for record in begun:
            self._tell_leader(record)

    def _tell_leader(self, record: GenerationWritten) -> None:
        assert record.leader is not None
        name = self._name_of(record.leader)
        self.say(f"{name} becomes leader (generation {record.generation})")
        if self._had_leader not in (None, name):
            delay = self.workers[name].deferred_until_ms
            self.say("No delay is in progress." if delay is None else "There's an active delay in progress.")
        self._had_leader = name

    def _name_of(self, member_id: MemberId) -> str:
        return member_id.rstrip("'")

    def _fire_due(self) -> bool:
        return any(self.workers[name].fire_due() for name in sorted(self.workers))

    def _deadlines(self) -> Iterable[int | None]:
        return (worker.next_at_ms() for worker in self.workers.values())
