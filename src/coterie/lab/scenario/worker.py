"""One worker on the stage: a real member, and the little of a herder that a scenario needs."""

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
RELEASED = "what was revoked has been released"


ComputedRound: TypeAlias = RoundOutcome | Mapping[MemberId, Jobs]
"""What a leader has computed: a cooperative round, or the jobs of each member of an eager group."""


@dataclass(slots=True, kw_only=True)
class FleetConfig:
    """What every leader goes by: the jobs that the config topic contains, and the policy."""

    configured: Jobs
    policy: Policy


class ScenarioWorker:
    """It runs what it is given, and stops at once."""

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
        """``tell_round`` gets this worker's name, what the group speaks, and what the worker computed as leader."""
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
                rebalance_heartbeat_interval_ms=3_000,  # One rhythm: a play tells who acts when, not how often all ask.
            )
        )
        self.timers = Timers[Timer]()
        self.owned = NO_JOBS
        self.stopped = NO_JOBS
        """What it has stopped since the last round because the next one is an eager group's."""
        self.memory = Memory()
        self.completed = Generation(-1)
        self.spoken: ConnectProtocol | None = None
        """What the group voted for in that round."""
        self.deferred_until_ms: int | None = None
        """When the scheduled rebalance delay is over."""
        self.moves_at_ms: int | None = None
        """When it asks for the round that makes the next moves, as the leader."""
        self.dealt_for: Jobs | None = None
        """What it dealt out in the last round if that was an eager one, and it led."""

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
                    raise AssertionError(f"the stage is set wrong: {reason}")
                case _:
                    pass  # what is said to the process's log and to the herder's clock

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
        """An eager group rebalances."""
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
            self.feed(Rejoin(reason="now all stop"))

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
            self.feed(Rejoin(reason="moves are left to make"))
            return True
        timer = self.timers.pop_due(now_ms)
        if timer is not None:
            self.feed(TimerFired(timer=timer))
        return timer is not None
