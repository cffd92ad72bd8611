"""A member to drive by hand: it says what is sent and told, and answers are given by name."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from coterie.engine.timers import Timers
from coterie.member.classic.machine import step
from coterie.member.classic.messages import (
    Effect,
    Event,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinRequest,
    JoinResponse,
    Request,
    Response,
    SyncRequest,
    SyncResponse,
    Timer,
)
from coterie.member.classic.state import Member, MemberSettings
from coterie.member.events import (
    Answered,
    CancelTimer,
    Say,
    Send,
    SetTimer,
    TimerFired,
    Unanswered,
)
from coterie.nouns.ids import ConfigOffset, Generation, GroupId, InstanceId, MemberId, WorkerUrl
from coterie.nouns.jobs import NO_JOBS, ConnectorName, ConnectorTaskId, Jobs
from coterie.nouns.membership import PlaceHandover, Subscribe
from coterie.wire.connect import ConnectProtocol, WorkerAssignment
from coterie.wire.connect_bytes import encode_assignment
from coterie.wire.errors import ErrorCode

RequestT = TypeVar("RequestT", bound=Request)
EffectT = TypeVar("EffectT")

INTERVAL_MS, OFTEN_MS, QUIET_MS = 3_000, 200, 6_000
SOME_WORK = Jobs(frozenset({ConnectorName("a")}), frozenset({ConnectorTaskId(ConnectorName("a"), 0)}))


HANDED_ON = PlaceHandover(
    member_id=MemberId("me"),
    generation=Generation(7),
    protocol="sessioned",
    leader=MemberId("x"),
    leader_url=WorkerUrl("http://x:8083/"),
    config_offset=ConfigOffset(4),
    jobs=SOME_WORK,
    may_have_missed_vote=True,
)
"""What a former life of the process has handed on."""


class Worker:
    """One member and what is around it; time stands still unless it is told to pass."""

    def __init__(
        self,
        instance_id: InstanceId | None = None,
        *,
        offers: ConnectProtocol = ConnectProtocol.STATIC,
        claims: Jobs | None = None,
        rebalance_timeout_ms: int = 60_000,
    ) -> None:
        self.member = Member(
            MemberSettings(
                group_id=GroupId("fleet"),
                instance_id=instance_id,
                url=WorkerUrl("http://w:8083/"),
                protocols=offers.offered,
                claims=claims,
                session_timeout_ms=9_000,
                rebalance_timeout_ms=rebalance_timeout_ms,
                heartbeat_interval_ms=1_000,
                rebalance_heartbeat_interval_ms=1_000,
            )
        )
        self.now_ms = 0
        self.timers = Timers[Timer]()
        self.out: list[Send[Request]] = []
        self.said: list[str] = []
        self.warned: list[str] = []
        self.told: list[Effect] = []
        """What the herder hears, oldest first."""

    def feed(self, event: Event) -> None:
        for effect in step(self.member, event, now_ms=self.now_ms).effects:
            match effect:
                case Send():
                    self.out.append(effect)
                case SetTimer(timer=timer, at_ms=at_ms):
                    self.timers.set(timer, at_ms)
                case CancelTimer(timer=timer):
                    self.timers.cancel(timer)
                case Say(text=text, warns=warns):
                    (self.warned if warns else self.said).append(text)
                case _:
                    self.told.append(effect)

    def pass_time(self, ms: int) -> None:
        end_ms = self.now_ms + ms
        while (at_ms := self.timers.next_at_ms()) is not None and at_ms <= end_ms:
            self.now_ms = max(self.now_ms, at_ms)
            due = self.timers.pop_due(self.now_ms)
            assert due is not None
            self.feed(TimerFired(timer=due))
        self.now_ms = end_ms

    def subscribe(self, owned: Jobs = NO_JOBS) -> None:
        self.feed(Subscribe(config_offset=ConfigOffset(4), owned=owned))

    def settle(
        self,
        work: Jobs = SOME_WORK,
        *,
        protocol: ConnectProtocol = ConnectProtocol.COMPATIBLE,
        generation: int = 1,
    ) -> None:
        """One round in which ``work`` is assigned and started; the group does not know a static member yet."""
        if self.sent(JoinRequest) is None:
            self.subscribe()
        if self.sent(JoinRequest) is None:
            self.answer(HeartbeatRequest, HeartbeatResponse(error=ErrorCode.unknown_member_id))
        self.answer(JoinRequest, joined(generation, protocol=protocol))
        self.answer(SyncRequest, synced(work, protocol=protocol))
        self.subscribe(work)
        self.told.clear()

    def sent(self, kind: type[RequestT]) -> RequestT | None:
        """The newest request of ``kind`` that waits for its answer."""
        for send in reversed(self.out):
            if isinstance(send.request, kind):
                return send.request
        return None

    def answer(self, kind: type[RequestT], response: Response) -> RequestT:
        send = self.take(kind)
        self.feed(Answered(id=send.id, response=response))
        assert isinstance(send.request, kind)
        return send.request

    def fail(self, kind: type[RequestT]) -> None:
        self.feed(Unanswered(id=self.take(kind).id, reason="the connection broke"))

    def take(self, kind: type[RequestT]) -> Send[Request]:
        send = next(send for send in reversed(self.out) if isinstance(send.request, kind))
        self.out.remove(send)
        return send

    def heard(self, kind: type[EffectT]) -> list[EffectT]:
        """Everything of ``kind`` told since the last call; the rest is forgotten."""
        found: list[EffectT] = [effect for effect in self.told if isinstance(effect, kind)]
        self.told.clear()
        return found

    def beats(self) -> int:
        return sum(isinstance(send.request, HeartbeatRequest) for send in self.out)


def joined(
    generation: int = 1,
    *,
    leader: str = "x",
    members: Mapping[str, bytes] | None = None,
    protocol: ConnectProtocol = ConnectProtocol.COMPATIBLE,
) -> JoinResponse:
    return JoinResponse(
        error=ErrorCode.none,
        generation=Generation(generation),
        protocol=protocol.wire_name,
        leader=MemberId(leader),
        member_id=MemberId("me"),
        members={MemberId(member): data for member, data in members.items()} if members is not None else None,
    )


def synced(
    assigned: Jobs = NO_JOBS,
    *,
    revoked: Jobs = NO_JOBS,
    delay_ms: int = 0,
    protocol: ConnectProtocol = ConnectProtocol.COMPATIBLE,
) -> SyncResponse:
    assignment = WorkerAssignment(
        leader=MemberId("x"),
        leader_url=WorkerUrl("http://x:8083/"),
        config_offset=ConfigOffset(4),
        assigned=assigned,
        revoked=revoked,
        delay_ms=delay_ms,
    )
    return SyncResponse(error=ErrorCode.none, assignment=encode_assignment(protocol, assignment))


def hurrying(interval_ms: int = INTERVAL_MS, often_ms: int = OFTEN_MS) -> Worker:
    worker = Worker()
    worker.member.settings = replace(
        worker.member.settings,
        heartbeat_interval_ms=interval_ms,
        rebalance_heartbeat_interval_ms=often_ms,
        quiet_ms=QUIET_MS,
    )
    return worker
