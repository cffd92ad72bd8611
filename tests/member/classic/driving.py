"""Drives one member machine by hand: records what it sends and reports, and answers its requests by their type."""

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
    CancelTimer,
    RequestFailed,
    ResponseReceived,
    Send,
    SetTimer,
    TimerFired,
    WriteLogMessage,
)
from coterie.nouns.ids import ConfigOffset, GenerationId, GroupId, InstanceId, MemberId, WorkerUrl
from coterie.nouns.jobs import NO_JOBS, ConnectorName, ConnectorTaskId, Jobs
from coterie.nouns.membership import ClassicMembershipHandover, SetWorkerState
from coterie.wire.connect import ConnectProtocol, WorkerAssignment
from coterie.wire.connect_bytes import encode_assignment
from coterie.wire.errors import ErrorCode

RequestT = TypeVar("RequestT", bound=Request)
EffectT = TypeVar("EffectT")

INTERVAL_MS, REBALANCE_INTERVAL_MS, NEXT_ROUND_WINDOW_MS = 3_000, 200, 6_000
SOME_WORK = Jobs(frozenset({ConnectorName("a")}), frozenset({ConnectorTaskId(ConnectorName("a"), 0)}))


HANDOVER = ClassicMembershipHandover(
    member_id=MemberId("me"),
    generation=GenerationId(7),
    protocol="sessioned",
    leader=MemberId("x"),
    leader_url=WorkerUrl("http://x:8083/"),
    config_offset=ConfigOffset(4),
    jobs=SOME_WORK,
    may_have_missed_protocol_change=True,
)
"""The handover of the previous process."""


class MemberDriver:
    """One member machine, its timers and what it emits; the clock moves only in ``advance_clock``."""

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
                protocols=offers.versions_to_offer,
                claims=claims,
                session_timeout_ms=9_000,
                rebalance_timeout_ms=rebalance_timeout_ms,
                heartbeat_interval_ms=1_000,
                rebalance_heartbeat_interval_ms=1_000,
            )
        )
        self.now_ms = 0
        self.timers = Timers[Timer]()
        self.sent_requests: list[Send[Request]] = []
        self.log_infos: list[str] = []
        self.log_warnings: list[str] = []
        self.herder_events: list[Effect] = []
        """Events for the herder, oldest first."""

    def feed(self, event: Event) -> None:
        for effect in step(self.member, event, now_ms=self.now_ms).effects:
            match effect:
                case Send():
                    self.sent_requests.append(effect)
                case SetTimer(timer=timer, at_ms=at_ms):
                    self.timers.set(timer, at_ms)
                case CancelTimer(timer=timer):
                    self.timers.cancel(timer)
                case WriteLogMessage(text=text, is_warning=is_warning):
                    (self.log_warnings if is_warning else self.log_infos).append(text)
                case _:
                    self.herder_events.append(effect)

    def advance_clock(self, ms: int) -> None:
        end_ms = self.now_ms + ms
        while (at_ms := self.timers.next_deadline_ms()) is not None and at_ms <= end_ms:
            self.now_ms = max(self.now_ms, at_ms)
            due = self.timers.pop_due(self.now_ms)
            assert due is not None
            self.feed(TimerFired(timer=due))
        self.now_ms = end_ms

    def set_worker_state(self, owned: Jobs = NO_JOBS) -> None:
        self.feed(SetWorkerState(config_offset=ConfigOffset(4), owned=owned))

    def settle(
        self,
        work: Jobs = SOME_WORK,
        *,
        protocol: ConnectProtocol = ConnectProtocol.COMPATIBLE,
        generation: int = 1,
    ) -> None:
        """One rebalance that assigns ``work``, which starts; a static member is not registered in the group yet."""
        if self.sent(JoinRequest) is None:
            self.set_worker_state()
        if self.sent(JoinRequest) is None:
            self.answer(HeartbeatRequest, HeartbeatResponse(error=ErrorCode.unknown_member_id))
        self.answer(JoinRequest, joined(generation, protocol=protocol))
        self.answer(SyncRequest, synced(work, protocol=protocol))
        self.set_worker_state(work)
        self.herder_events.clear()

    def sent(self, kind: type[RequestT]) -> RequestT | None:
        """The newest request of ``kind`` that waits for its response."""
        for send in reversed(self.sent_requests):
            if isinstance(send.request, kind):
                return send.request
        return None

    def answer(self, kind: type[RequestT], response: Response) -> RequestT:
        send = self.take_request(kind)
        self.feed(ResponseReceived(id=send.id, response=response))
        assert isinstance(send.request, kind)
        return send.request

    def fail(self, kind: type[RequestT]) -> None:
        self.feed(RequestFailed(id=self.take_request(kind).id, reason="the connection broke"))

    def take_request(self, kind: type[RequestT]) -> Send[Request]:
        send = next(send for send in reversed(self.sent_requests) if isinstance(send.request, kind))
        self.sent_requests.remove(send)
        return send

    def take_events(self, kind: type[EffectT]) -> list[EffectT]:
        """The herder events of ``kind`` since the last call; events of other kinds are dropped."""
        found: list[EffectT] = [effect for effect in self.herder_events if isinstance(effect, kind)]
        self.herder_events.clear()
        return found

    def heartbeat_count(self) -> int:
        return sum(isinstance(send.request, HeartbeatRequest) for send in self.sent_requests)


def joined(
    generation: int = 1,
    *,
    leader: str = "x",
    members: Mapping[str, bytes] | None = None,
    protocol: ConnectProtocol = ConnectProtocol.COMPATIBLE,
) -> JoinResponse:
    return JoinResponse(
        error=ErrorCode.none,
        generation=GenerationId(generation),
        protocol=protocol.wire_name,
        leader=MemberId(leader),
        member_id=MemberId("me"),
        metadata_by_member={MemberId(member): data for member, data in members.items()}
        if members is not None
        else None,
    )


def synced(
    assigned: Jobs = NO_JOBS,
    *,
    revoked: Jobs = NO_JOBS,
    delay_ms: int = 0,
    protocol: ConnectProtocol = ConnectProtocol.COMPATIBLE,
    leader: str = "x",
) -> SyncResponse:
    assignment = WorkerAssignment(
        leader=MemberId(leader),
        leader_url=WorkerUrl("http://x:8083/"),
        config_offset=ConfigOffset(4),
        assigned=assigned,
        revoked=revoked,
        delay_ms=delay_ms,
    )
    return SyncResponse(error=ErrorCode.none, assignment=encode_assignment(protocol, assignment))


def short_heartbeat_driver(
    interval_ms: int = INTERVAL_MS, rebalance_interval_ms: int = REBALANCE_INTERVAL_MS
) -> MemberDriver:
    worker = MemberDriver()
    worker.member.settings = replace(
        worker.member.settings,
        heartbeat_interval_ms=interval_ms,
        rebalance_heartbeat_interval_ms=rebalance_interval_ms,
        next_round_window_ms=NEXT_ROUND_WINDOW_MS,
    )
    return worker
