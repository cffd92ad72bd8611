"""The stage: a real coordinator and real members, over a perfect network and a clock that stands until it is told.

Everything that is said is a line in K415's own words and notation: ``AC0`` is the connector A, ``AT1`` its task 1,
``W1(delay: 0, assigned: [AC0, AT1], revoked: [])`` what W1 runs after a round and what it has to give back in it.
"""

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from itertools import count

from coterie.assignors.cooperative import Round, assign
from coterie.assignors.members import Policy
from coterie.assignors.memory import Memory
from coterie.assignors.moves import Why
from coterie.engine.timers import Timers
from coterie.groups import classic as coordinator
from coterie.groups import messages as said
from coterie.groups.state import Group, Limits, Phase, check_whole
from coterie.herder.leading import as_told, left_ms, view_of
from coterie.lab.translation import as_asked, as_heard
from coterie.member import classic as member_machine
from coterie.member.events import (
    Answered,
    CancelTimer,
    Event,
    Installed,
    LeaveWanted,
    Left,
    RejoinWanted,
    RequestId,
    Send,
    SetTimer,
    Subscribed,
    Timer,
    TimerFired,
)
from coterie.member.messages import JoinRequest, Request
from coterie.member.state import Member, MemberSettings
from coterie.nouns.ids import ConfigOffset, Generation, GroupId, MemberId, WorkerUrl
from coterie.nouns.jobs import NO_JOBS, ConnectorName, ConnectorTaskId, Job, Jobs
from coterie.wire.connect import ConnectProtocol
from coterie.wire.connect_bytes import decode_metadata
from coterie.wire.connect_events import AssignmentReceived, AssignmentWanted, MembershipLost, MembershipRefused

MAX_DELAY_MS = 300_000
"""K415's default of ``scheduled.rebalance.max.delay.ms``: its ``d``."""

GROUP = GroupId("fleet")
RELEASED = "what was revoked has been released"
MOVES = (Why.CLAIM, Why.DRAIN, Why.BALANCE)
"""What makes a job move. One that is deleted, or that runs twice, only stops."""


def parse_jobs(text: str) -> Jobs:
    """Read K415's notation, with or without commas.

    :raises ValueError: when a word is no job.
    """
    jobs: list[Job] = []
    for word in text.replace(",", " ").split():
        name, kind, number = ConnectorName(word[0]), word[1:2], word[2:]
        if kind not in ("C", "T") or not number.isdigit():
            raise ValueError(f"{word!r} is no job")
        jobs.append(name if kind == "C" else ConnectorTaskId(name, int(number)))
    return Jobs.of(jobs)


def show_jobs(jobs: Iterable[Job]) -> str:
    words = [f"{job.connector}T{job.task}" if isinstance(job, ConnectorTaskId) else f"{job}C0" for job in jobs]
    return f"[{', '.join(sorted(words))}]"


class Worker:
    """A member and the little of a herder that a scenario needs: it runs what it is given, and stops at once."""

    def __init__(self, stage: "Stage", name: str, protocol: ConnectProtocol, claims: Jobs | None) -> None:
        self.stage = stage
        self.name = name
        self.draining = False
        self.member = Member(
            MemberSettings(
                group_id=GROUP,
                url=WorkerUrl(f"http://{name}:8083/"),
                protocols=protocol.offered,
                claims=claims,
                rebalance_heartbeat_interval_ms=3_000,  # One rhythm: a play tells who acts when, not how often all ask.
            )
        )
        self.timers = Timers[Timer]()
        self.owned = NO_JOBS
        self.memory = Memory()
        self.completed = Generation(-1)
        self.deferred_until_ms: int | None = None
        """When the scheduled rebalance delay is over."""
        self.moves_at_ms: int | None = None
        """When it asks for the round that makes the next moves, as the leader."""

    def feed(self, event: Event) -> None:
        for effect in member_machine.step(self.member, event, now_ms=self.stage.now_ms).effects:
            match effect:
                case Send(id=id_, request=request):
                    self.stage.ask(self, id_, request)
                case SetTimer(timer=timer, at_ms=at_ms):
                    self.timers.set(timer, at_ms)
                case CancelTimer(timer=timer):
                    self.timers.cancel(timer)
                case AssignmentWanted():
                    self.stage.soon(partial(self.compute, effect))
                case AssignmentReceived():
                    self.stage.soon(partial(self.take, effect))
                case MembershipLost():
                    self.stage.soon(self.lose)
                case Left():
                    self.stage.workers.pop(self.name, None)
                case MembershipRefused(reason=reason):
                    raise AssertionError(f"the stage is set wrong: {reason}")
                case _:
                    pass  # what is said to the process's log and to the herder's clock

    def subscribe(self) -> None:
        self.feed(Subscribed(config_offset=ConfigOffset(1), owned=self.owned, draining=self.draining))

    def compute(self, wanted: AssignmentWanted) -> None:
        outcome = assign(
            self.memory,
            configured=self.stage.configured,
            members={
                other: view_of(metadata, wanted.instance_ids.get(other), wanted.protocol)
                for other, metadata in wanted.members.items()
            },
            generation=wanted.generation,
            last_completed_generation=self.completed,
            now_ms=self.stage.now_ms,
            policy=self.stage.policy,
            known_delay_ms=left_ms(self.deferred_until_ms, self.stage.now_ms),
        )
        self.memory = outcome.memory
        self.moves_at_ms = self.stage.now_ms + outcome.moves_in_ms if outcome.moves_in_ms else None
        self.stage.tell_round(self, outcome)
        assignments = as_told(wanted, outcome, leader_url=self.member.settings.url, config_offset=ConfigOffset(1))
        self.feed(Installed(generation=wanted.generation, assignments=assignments))

    def take(self, delivered: AssignmentReceived) -> None:
        assignment = delivered.assignment
        self.completed = delivered.generation
        self.owned = (self.owned - assignment.revoked) | assignment.assigned
        self.deferred_until_ms = self.stage.now_ms + assignment.delay_ms if assignment.delay_ms else None
        if assignment.leader != self.member.member_id:
            self.moves_at_ms = None
        self.subscribe()
        if assignment.revoked:
            self.stage.say(f"{self.name} stops revoked resources")
            self.feed(RejoinWanted(reason=RELEASED))

    def lose(self) -> None:
        self.owned, self.memory, self.completed = NO_JOBS, Memory(), Generation(-1)
        self.deferred_until_ms = self.moves_at_ms = None
        self.subscribe()

    def next_at_ms(self) -> int | None:
        due = (self.timers.next_at_ms(), self.deferred_until_ms, self.moves_at_ms)
        return min((at_ms for at_ms in due if at_ms is not None), default=None)

    def fire_due(self) -> bool:
        now_ms = self.stage.now_ms
        if self.deferred_until_ms is not None and self.deferred_until_ms <= now_ms:
            self.deferred_until_ms = None
            self.feed(RejoinWanted(reason="the scheduled rebalance delay is over"))
            return True
        if self.moves_at_ms is not None and self.moves_at_ms <= now_ms:
            self.moves_at_ms = None
            self.feed(RejoinWanted(reason="moves are left to make"))
            return True
        timer = self.timers.pop_due(now_ms)
        if timer is not None:
            self.feed(TimerFired(timer=timer))
        return timer is not None


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
        self.workers[name] = Worker(self, name, protocol or self.protocol, claims)
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
                self._coordinate(said.TimerFired(key=key))
            elif not any(self.workers[name].fire_due() for name in sorted(self.workers)):
                return

    def ask(self, worker: Worker, id_: RequestId, request: Request) -> None:
        reply_to = next(self._reply_to)

        def answer(response: said.Response) -> None:
            self.soon(lambda: worker.feed(Answered(id=id_, response=as_heard(response))))

        self._waiting[reply_to] = answer
        self.soon(lambda: self._hear(worker, reply_to, request))

    def tell_round(self, leader: Worker, outcome: Round) -> None:
        self.say(f"{leader.name} computes and sends assignments:")
        for member in sorted(outcome.assignments):
            one = outcome.assignments[member]
            runs, gives = show_jobs(one.whole), show_jobs(one.revoked)
            name = self._name_of(member)
            self.say(f"  {name}(delay: {outcome.delay_ms}, assigned: {runs}, revoked: {gives})")
        waiting = [job for one in outcome.memory.waiting for job in one.jobs]
        for job, reason in outcome.unassigned.items():
            if job not in waiting:
                self.say(f"  {show_jobs([job])} is unassigned: {reason}")
        moves = [(why, jobs) for one in outcome.assignments.values() for why, jobs in one.why.items() if why in MOVES]
        made = sum(len(jobs) for _, jobs in moves)
        later = ", the others not before the delay is over" if waiting else ", the others in later rounds"
        self.say(
            f"  moves: {made}, optimum: {outcome.optimum}, M*: {outcome.bound}"
            + (later if made < outcome.optimum else "")
        )

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
                case said.Reply(to=to, response=response):
                    self._waiting.pop(to)(response)
                case said.SetTimer(key=key, at_ms=at_ms):
                    self._timers.set(key, at_ms)
                case said.CancelTimer(key=key):
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
