"""The stage: a real coordinator and real members, over a perfect network and a clock that stands until it is told.

Everything that is said is a line in K415's own words and `notation`.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from itertools import count

from coterie.assignors.cooperative import Round, assign
from coterie.assignors.members import MemberView, Policy
from coterie.assignors.memory import Memory
from coterie.assignors.moves import Why
from coterie.engine.timers import Timers
from coterie.groups.classic import machine as coordinator
from coterie.groups.classic import messages as said
from coterie.groups.classic.state import Group, Limits, Phase, check_whole
from coterie.groups.effects import CancelTimer, Reply, SetTimer, TimerFired
from coterie.lab.scenario.notation import show_jobs, show_share
from coterie.lab.scenario.worker import GROUP, RELEASED, Worker
from coterie.lab.translation import as_asked, as_heard
from coterie.member.classic.messages import JoinRequest, Request
from coterie.member.events import Answered, LeaveWanted, RejoinWanted, RequestId
from coterie.nouns.ids import Generation, MemberId
from coterie.nouns.jobs import NO_JOBS, Jobs
from coterie.wire.connect import ConnectProtocol
from coterie.wire.connect_bytes import decode_metadata

MAX_DELAY_MS = 300_000
"""K415's default of ``scheduled.rebalance.max.delay.ms``: its ``d``."""

MOVES = (Why.CLAIM, Why.DRAIN, Why.BALANCE)
"""What makes a job move. One that is deleted, or that runs twice, only stops."""


class Stage:
    """One group, its workers, and what they say."""

    def __init__(self, protocol: ConnectProtocol = ConnectProtocol.STATIC) -> None:
        self.protocol = protocol
        """What workers speak unless a script says otherwise."""
        self.now_ms = 0
        self.configured = NO_JOBS
        self.policy = Policy(max_delay_ms=MAX_DELAY_MS)
        self.workers: dict[str, Worker] = {}
        self.lines: list[str] = []
        self._group = Group(GROUP, Limits(initial_rebalance_delay_ms=0))  # K415: "start rebalancing immediately"
        self._timers = Timers[said.TimerKey]()
        self._reply_to = map(said.ReplyTo, count(1))
        self._waiting: dict[said.ReplyTo, Callable[[said.Response], None]] = {}
        self._queue: deque[Callable[[], None]] = deque()
        self._lives: dict[str, int] = {}
        self._had_leader: str | None = None
        self._spoken: ConnectProtocol | None = None

    # -- what a script may do -----------------------------------------------------------------------------------------

    def configure(self, jobs: Jobs) -> None:
        """Say what is configured; if a group is there, its leader asks for a round."""
        self.configured = jobs
        leader = self._group.leader
        if leader is not None:
            self.workers[self._name_of(leader)].feed(RejoinWanted(reason="the set of jobs has changed"))
            self.settle()

    def start(self, name: str, *, claims: Jobs | None = None, protocol: ConnectProtocol | None = None) -> None:
        if name in self.workers:
            raise ValueError(f"{name} is here already")
        self._lives[name] = self._lives.get(name, 0) + 1
        self.workers[name] = Worker(self, name, self.protocol if protocol is None else protocol, claims)
        self.workers[name].subscribe()
        self.settle()

    def stop(self, name: str) -> None:
        """Stop a worker as SIGTERM does: its jobs first, then it says farewell."""
        is_leader = self._group.leader is not None and self._name_of(self._group.leader) == name
        self.say(f"{name}, which is the leader, leaves" if is_leader else f"{name} leaves")
        self.workers[name].feed(LeaveWanted(reason="shutdown"))
        self.settle()

    def kill(self, name: str) -> None:
        """Let a worker vanish without a word: the coordinator finds out when its session is over."""
        self.say(f"{name} dies")
        del self.workers[name]

    def drain(self, name: str) -> None:
        """Have a worker say that it is to go for good."""
        self.say(f"{name} is to drain")
        worker = self.workers[name]
        worker.draining = True
        worker.subscribe()
        worker.feed(RejoinWanted(reason="this worker drains"))
        self.settle()

    def rejoin(self, name: str) -> None:
        self.workers[name].feed(RejoinWanted(reason="a wish"))
        self.settle()

    def wait(self, ms: int) -> None:
        until_ms = self.now_ms + ms
        while (at_ms := self._next_at_ms()) is not None and at_ms <= until_ms:
            self.now_ms = max(self.now_ms, at_ms)
            self.settle()
        self.now_ms = until_ms

    @property
    def delay_ends_at_ms(self) -> int | None:
        ends = [worker.deferred_until_ms for worker in self.workers.values() if worker.deferred_until_ms is not None]
        return min(ends, default=None)

    def show(self) -> None:
        runs = ", ".join(f"{name}({show_jobs(worker.owned)})" for name, worker in sorted(self.workers.items()))
        self.say(f"Initial group and assignment: {runs}".rstrip())
        self.say(f"Config topic contains: {show_jobs(self.configured)[1:-1]}")
        if self._group.leader is not None:
            self.say(f"{self._name_of(self._group.leader)} is current leader")

    # -- what the machines do -----------------------------------------------------------------------------------------

    def say(self, line: str) -> None:
        self.lines.append(line)

    def soon(self, act: Callable[[], None]) -> None:
        self._queue.append(act)

    def settle(self) -> None:
        """Let everything happen that happens now."""
        while True:
            if self._queue:
                self._queue.popleft()()
            elif (key := self._timers.pop_due(self.now_ms)) is not None:
                self._coordinate(TimerFired(key=key))
            elif not any(self.workers[name].fire_due() for name in sorted(self.workers)):
                return

    def ask(self, worker: Worker, id_: RequestId, request: Request) -> None:
        reply_to = next(self._reply_to)

        def answer(response: said.Response) -> None:
            self.soon(lambda: worker.feed(Answered(id=id_, response=as_heard(response))))

        self._waiting[reply_to] = answer
        self.soon(lambda: self._hear(worker, reply_to, request))

    def tell_vote(self, protocol: ConnectProtocol) -> None:
        if self._spoken not in (None, protocol):
            self.say(f"The group speaks {protocol.setting}")
        self._spoken = protocol

    def tell_round(self, leader: Worker, outcome: Round) -> None:
        self.say(f"{leader.name} computes and sends assignments:")
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

    def tell_eager_round(self, leader: Worker, dealt: Mapping[MemberId, Jobs]) -> None:
        self.say(f"{leader.name} computes and sends assignments:")
        for member, jobs in sorted(dealt.items()):
            self.say(show_share(self._name_of(member), delay_ms=0, runs=jobs, gives=NO_JOBS))
        self._tell_stops(dealt)

    def _tell_stops(self, members: Iterable[MemberId]) -> None:
        """Of a round for which all stop everything; the optimum is that of a cooperative group that ran the same."""
        workers = {member: self.workers[self._name_of(member)] for member in members}
        ran = {member: worker.owned | worker.stopped for member, worker in workers.items()}
        cheapest = assign(
            Memory(),
            configured=self.configured,
            members={member: MemberView(owned=jobs) for member, jobs in ran.items()},
            generation=Generation(1),
            last_completed_generation=Generation(-1),
            now_ms=self.now_ms,
            policy=self.policy,
        )
        for worker in workers.values():
            worker.stopped = NO_JOBS
        self._tell_moves(sum(map(len, ran.values())), cheapest)

    def _tell_moves(self, made: int, cheapest: Round, later: str = "") -> None:
        self.say(f"  moves: {made}, optimum: {cheapest.optimum}, M*: {cheapest.bound}{later}")

    # -- the coordinator's side ---------------------------------------------------------------------------------------

    def _hear(self, worker: Worker, reply_to: said.ReplyTo, request: Request) -> None:
        if isinstance(request, JoinRequest) and request.member_id:
            self._tell_join(worker, request)
        fresh = MemberId(worker.name + "'" * (self._lives[worker.name] - 1))
        self._coordinate(as_asked(worker.name, reply_to, request, fresh_member_id=lambda _: fresh))

    def _coordinate(self, event: said.Event) -> None:
        was_open = self._group.phase is Phase.PREPARING_REBALANCE
        output = coordinator.step(self._group, event, now_ms=self.now_ms)
        check_whole(self._group)
        written = [record for record in output.records if isinstance(record, said.GenerationWritten)]
        begun = [record for record in written if record.protocol is None and record.members]
        if not was_open and (begun or self._group.phase is Phase.PREPARING_REBALANCE):
            self.say("Rebalance is triggered")
        for record in begun:
            self._tell_leader(record)
        for effect in output.effects:
            match effect:
                case Reply(to=to, response=response):
                    self._waiting.pop(to)(response)
                case SetTimer(key=key, at_ms=at_ms):
                    self._timers.set(key, at_ms)
                case CancelTimer(key=key):
                    self._timers.cancel(key)

    def _tell_join(self, worker: Worker, request: JoinRequest) -> None:
        allocation = decode_metadata(request.protocols[0][1])[1].allocation
        verb = "rejoins" if request.reason == RELEASED else "joins"
        if request.member_id not in self._group.members and self._group.phase is Phase.PREPARING_REBALANCE:
            verb += " while rebalance is still active"
        self.say(f"{worker.name} {verb} with assignment: {show_jobs(allocation.assigned if allocation else NO_JOBS)}")

    def _tell_leader(self, record: said.GenerationWritten) -> None:
        assert record.leader is not None
        name = self._name_of(record.leader)
        self.say(f"{name} becomes leader (generation {record.generation})")
        if self._had_leader not in (None, name):
            delay = self.workers[name].deferred_until_ms
            self.say("No delay is in progress." if delay is None else "There's an active delay in progress.")
        self._had_leader = name

    def _name_of(self, member_id: MemberId) -> str:
        return member_id.rstrip("'")

    def _next_at_ms(self) -> int | None:
        deadlines = [self._timers.next_at_ms(), *(worker.next_at_ms() for worker in self.workers.values())]
        return min((at_ms for at_ms in deadlines if at_ms is not None), default=None)
