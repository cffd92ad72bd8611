"""One worker of a scenario: a real member, and the part of a herder that a scenario needs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from coterie.assignors import eager
from coterie.assignors.cooperative import RoundOutcome, assign
from coterie.assignors.members import Policy
from coterie.assignors.memory import Memory
from coterie.engine.timers import Timers
from coterie.groups.classic import messages as said
from coterie.herder.place import kept_of
from coterie.herder.rounds.following import has_yet_to_deal
from coterie.herder.rounds.leading import computed_of, dealt_anew, have_all_stopped, left_ms, view_of
from coterie.lab.scenario.group import GroupStage
from coterie.lab.scenario.notation import show_jobs
from coterie.lab.translation import as_asked, as_heard
from coterie.member.classic.messages import Event, JoinRequest, Request, Timer
from coterie.member.classic.state import Member, MemberSettings
from coterie.member.events import Answered, CancelTimer, RequestId, Send, SetTimer, TimerFired
from coterie.nouns.ids import ConfigOffset, Generation, GroupId, MemberId, WorkerUrl
from coterie.nouns.jobs import NO_JOBS, Jobs
from coterie.nouns.membership import (
    Assigned,
    AssignmentWanted,
    Install,
    Lost,
    MembershipRefused,
    MustReleaseAll,
    Rejoin,
    Subscribe,
)
from coterie.wire.connect import ConnectProtocol, RoundResult, RoundToken
from coterie.wire.connect_bytes import decode_metadata

GROUP = GroupId("fleet")
RELEASED = "the revoked jobs have been released"


ComputedRound: TypeAlias = RoundOutcome | Mapping[MemberId, Jobs]
"""The round that a leader has computed: a cooperative round, or the jobs of each member of an eager group."""


@dataclass(slots=True, kw_only=True)
class FleetConfig:
    """The input of every leader: the jobs that the config topic contains, and the policy."""

    configured: Jobs
    policy: Policy


class ScenarioWorker:
    """One worker. It starts and stops jobs at once."""

    def __init__(
        self,
        stage: GroupStage,
        fleet: FleetConfig,
        name: str,
        protocol: ConnectProtocol,
        claims: Jobs | None,
        *,
        fresh_member_id: MemberId,
        tell_round: Callable[[str, ConnectProtocol, ComputedRound], None],
    ) -> None:
        """``tell_round`` receives this worker's name, the group's protocol, and the round that the worker computed as
        leader."""
        self.stage = stage
        self.fleet = fleet
        self.name = name
        self.fresh_member_id = fresh_member_id
        self.tell_round = tell_round
        self.draining = False
        self.member = Member(
            MemberSettings(
                group_id=GROUP,
                url=WorkerUrl(f"http://{name}:8083/"),
                protocols=protocol.offered,
                claims=claims,
                rebalance_heartbeat_interval_ms=3_000,  # One heartbeat interval keeps transcripts short.
            )
        )
        self.timers = Timers[Timer]()
        self.owned = NO_JOBS
        self.stopped = NO_JOBS
        """Jobs that the worker has stopped since the last round, because the group is eager."""
        self.memory = Memory()
        self.completed = Generation(-1)
        """The last generation whose assignment the worker has received."""
        self.spoken: ConnectProtocol | None = None
        """The protocol that the group elected in that generation."""
        self.deferred_until_ms: int | None = None
        """Time at which the scheduled rebalance delay ends."""
        self.moves_at_ms: int | None = None
        """Time at which the worker, as the leader, requests the round that makes the next moves."""
        self.dealt_for: Jobs | None = None
        """The jobs that the worker, as the leader, assigned in the last round if that round was eager; else None."""

    def feed(self, event: Event) -> None:
        for effect in self.stage.steps.member(self.member, event, now_ms=self.stage.now_ms).effects:
            match effect:
                case Send(id=id_, request=request):
                    self.ask(id_, request)
                case SetTimer(timer=timer, at_ms=at_ms):
                    self.timers.set(timer, at_ms)
                case CancelTimer(timer=timer):
                    self.timers.cancel(timer)
                case AssignmentWanted():
                    self.stage.soon(partial(self.compute, effect))
                case Assigned():
                    self.stage.soon(partial(self.take, effect))
                case MustReleaseAll():
                    self.stage.soon(self.release)
                case Lost():
                    self.stage.soon(self.lose)
                case MembershipRefused(reason=reason):
                    raise AssertionError(f"bug in the scenario's setup: {reason}")
                case _:
                    pass  # log lines, and states of the member that only a herder needs

    def ask(self, id_: RequestId, request: Request) -> None:
        def make(reply_to: said.ReplyTo) -> said.Request:
            if isinstance(request, JoinRequest) and request.member_id:
                self._tell_join(request)
            return as_asked(self.name, reply_to, request, fresh_member_id=lambda _: self.fresh_member_id)

        self.stage.ask(make, lambda response: self.feed(Answered(id=id_, response=as_heard(response))))

    def _tell_join(self, request: JoinRequest) -> None:
        allocation = decode_metadata(request.protocols[0][1])[1].allocation
        verb = "rejoins" if request.reason == RELEASED else "joins"
        group = self.stage.group
        if request.member_id not in group.members and group.phase is said.Phase.PREPARING_REBALANCE:
            verb += " while rebalance is still active"
        runs = show_jobs(allocation.assigned if allocation else NO_JOBS)
        self.stage.say(f"{self.name} {verb} with assignment: {runs}")

    def subscribe(self) -> None:
        self.feed(Subscribe(config_offset=ConfigOffset(1), owned=self.owned, draining=self.draining))

    def release(self) -> None:
        """Stop all jobs, since an eager group rebalances."""
        self.stage.say(f"{self.name} stops everything")
        self.owned, self.stopped = NO_JOBS, self.owned
        self.subscribe()

    def compute(self, wanted: AssignmentWanted) -> None:
        token = RoundToken.of(wanted.token)
        if token.protocol is ConnectProtocol.EAGER:
            self.deal_anew(wanted)
        else:
            self.deal_on(wanted, token)

    def deal_anew(self, wanted: AssignmentWanted) -> None:
        all_stopped = have_all_stopped(wanted, heard=self.completed, protocol=self.spoken)
        self.memory, self.moves_at_ms = Memory(), None
        self.dealt_for = self.fleet.configured if all_stopped else NO_JOBS
        dealt = eager.assign(self.dealt_for, wanted.members)
        self.tell_round(self.name, ConnectProtocol.EAGER, dealt)
        self.feed(Install(token=wanted.token, computed=dealt_anew(wanted, dealt, config_offset=ConfigOffset(1))))

    def deal_on(self, wanted: AssignmentWanted, token: RoundToken) -> None:
        outcome = assign(
            self.memory,
            configured=self.fleet.configured,
            members={other: view_of(report) for other, report in wanted.members.items()},
            generation=token.generation,
            last_completed_generation=self.completed,
            now_ms=self.stage.now_ms,
            policy=self.fleet.policy,
            known_delay_ms=left_ms(self.deferred_until_ms, self.stage.now_ms),
        )
        self.memory, self.dealt_for = outcome.memory, None
        self.moves_at_ms = self.stage.now_ms + outcome.moves_in_ms if outcome.moves_in_ms else None
        self.tell_round(self.name, token.protocol, outcome)
        self.feed(Install(token=wanted.token, computed=computed_of(outcome, config_offset=ConfigOffset(1))))

    def take(self, delivered: Assigned) -> None:
        result = RoundResult.of(delivered.token)
        self.completed, self.spoken = Generation(delivered.epoch), result.protocol
        if delivered.is_whole and self.owned:
            self.stage.say(f"{self.name} stops everything")
        self.owned = kept_of(self.owned, delivered) | delivered.jobs
        self.deferred_until_ms = self.stage.now_ms + result.delay_ms if result.delay_ms else None
        if delivered.leader != self.member.member_id:
            self.moves_at_ms = self.dealt_for = None
        self.subscribe()
        if delivered.revoked:
            self.stage.say(f"{self.name} stops revoked resources")
            self.feed(Rejoin(reason=RELEASED))
        if has_yet_to_deal(self.dealt_for, configured=self.fleet.configured):
            self.feed(Rejoin(reason="all members have stopped their jobs"))

    def lose(self) -> None:
        self.owned = self.stopped = NO_JOBS
        self.memory, self.completed, self.spoken = Memory(), Generation(-1), None
        self.deferred_until_ms = self.moves_at_ms = None
        self.subscribe()

    def next_at_ms(self) -> int | None:
        due = (self.timers.next_at_ms(), self.deferred_until_ms, self.moves_at_ms)
        return min((at_ms for at_ms in due if at_ms is not None), default=None)

    def fire_due(self) -> bool:
        now_ms = self.stage.now_ms
        if self.deferred_until_ms is not None and self.deferred_until_ms <= now_ms:
            self.deferred_until_ms = None
            self.feed(Rejoin(reason="the scheduled rebalance delay is over"))
            return True
        if self.moves_at_ms is not None and self.moves_at_ms <= now_ms:
            self.moves_at_ms = None
            self.feed(Rejoin(reason="postponed moves are due"))
            return True
        timer = self.timers.pop_due(now_ms)
        if timer is not None:
            self.feed(TimerFired(timer=timer))
        return timer is not None
