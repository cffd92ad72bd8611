"""One worker on the stage: a real member, and the little of a herder that a scenario needs."""

from functools import partial
from typing import TYPE_CHECKING

from coterie.assignors import eager
from coterie.assignors.cooperative import assign
from coterie.assignors.memory import Memory
from coterie.engine.timers import Timers
from coterie.herder.place import kept_of
from coterie.herder.rounds.following import has_yet_to_deal
from coterie.herder.rounds.leading import computed_of, dealt_anew, have_all_stopped, left_ms, view_of
from coterie.member.classic import machine as member_machine
from coterie.member.classic.messages import Response
from coterie.member.classic.state import Member, MemberSettings
from coterie.member.events import (
    CancelTimer,
    Event,
    Installed,
    Left,
    RejoinWanted,
    Send,
    SetTimer,
    Subscribed,
    Timer,
    TimerFired,
)
from coterie.nouns.ids import ConfigOffset, Generation, GroupId, WorkerUrl
from coterie.nouns.jobs import NO_JOBS, Jobs
from coterie.nouns.membership import Assigned, AssignmentWanted, Lost, MembershipRefused, MustReleaseAll
from coterie.wire.connect import ConnectProtocol, RoundResult, RoundToken

if TYPE_CHECKING:
    from coterie.lab.scenario.stage import Stage

GROUP = GroupId("fleet")
RELEASED = "what was revoked has been released"


class Worker:
    """It runs what it is given, and stops at once."""

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

    def feed(self, event: Event[Response]) -> None:
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
                case Assigned():
                    self.stage.soon(partial(self.take, effect))
                case MustReleaseAll():
                    self.stage.soon(self.release)
                case Lost():
                    self.stage.soon(self.lose)
                case Left():
                    self.stage.workers.pop(self.name, None)
                case MembershipRefused(reason=reason):
                    raise AssertionError(f"the stage is set wrong: {reason}")
                case _:
                    pass  # what is said to the process's log and to the herder's clock

    def subscribe(self) -> None:
        self.feed(Subscribed(config_offset=ConfigOffset(1), owned=self.owned, draining=self.draining))

    def release(self) -> None:
        """An eager group rebalances."""
        self.stage.say(f"{self.name} stops everything")
        self.owned, self.stopped = NO_JOBS, self.owned
        self.subscribe()

    def compute(self, wanted: AssignmentWanted) -> None:
        token = RoundToken.of(wanted.token)
        self.stage.tell_vote(token.protocol)
        if token.protocol is ConnectProtocol.EAGER:
            self.deal_anew(wanted)
        else:
            self.deal_on(wanted, token.generation)

    def deal_anew(self, wanted: AssignmentWanted) -> None:
        all_stopped = have_all_stopped(wanted, heard=self.completed, protocol=self.spoken)
        self.memory, self.moves_at_ms = Memory(), None
        self.dealt_for = self.stage.configured if all_stopped else NO_JOBS
        dealt = eager.assign(self.dealt_for, wanted.members)
        self.stage.tell_eager_round(self, dealt)
        self.feed(Installed(token=wanted.token, computed=dealt_anew(wanted, dealt, config_offset=ConfigOffset(1))))

    def deal_on(self, wanted: AssignmentWanted, generation: Generation) -> None:
        outcome = assign(
            self.memory,
            configured=self.stage.configured,
            members={other: view_of(report) for other, report in wanted.members.items()},
            generation=generation,
            last_completed_generation=self.completed,
            now_ms=self.stage.now_ms,
            policy=self.stage.policy,
            known_delay_ms=left_ms(self.deferred_until_ms, self.stage.now_ms),
        )
        self.memory, self.dealt_for = outcome.memory, None
        self.moves_at_ms = self.stage.now_ms + outcome.moves_in_ms if outcome.moves_in_ms else None
        self.stage.tell_round(self, outcome)
        self.feed(Installed(token=wanted.token, computed=computed_of(outcome, config_offset=ConfigOffset(1))))

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
            self.feed(RejoinWanted(reason=RELEASED))
        if has_yet_to_deal(self.dealt_for, configured=self.stage.configured):
            self.feed(RejoinWanted(reason="now all stop"))

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
