"""Drives one member of a connect group by hand: records what it sends and reports, and answers its requests."""

from typing import Any, TypeVar

from coterie.engine.timers import Timers
from coterie.member.connect.machine import step
from coterie.member.connect.messages import (
    Effect,
    Event,
    HeartbeatRequest,
    Request,
    Response,
    Timer,
)
from coterie.member.connect.state import InGroup, Member, MemberSettings, OfferedAssignor
from coterie.member.events import (
    CancelTimer,
    MemberStarted,
    RequestFailed,
    ResponseReceived,
    Send,
    SetTimer,
    TimerFired,
    WriteLogMessage,
)
from coterie.member.seams import Step
from coterie.nouns.connect_error_codes import ConnectErrorCode
from coterie.nouns.connect_groups import AssignmentToMember, HeartbeatResponse, LeaderOfGroup
from coterie.nouns.ids import ConfigOffset, GroupEpoch, GroupId, LeaderEpoch, MemberEpoch, MemberId, WorkerUrl
from coterie.nouns.jobs import NO_JOBS, ConnectorName, ConnectorTaskId, Jobs
from coterie.nouns.membership import ConnectMembershipHandover, SetConfiguredJobs, SetWorkerState, UpdateAssignor

EventT = TypeVar("EventT")
RequestT = TypeVar("RequestT", bound=Request)

SESSION_MS, INTERVAL_MS = 9_000, 1_000
LEASE_MS = 6_000
A = ConnectorName("a")
A0, A1, A2 = (Jobs.of([ConnectorTaskId(A, number)]) for number in range(3))
SOME = Jobs.of([A]) | A0
ME, OTHER = MemberId("me"), MemberId("other")
COOPERATIVE = OfferedAssignor(
    name="cooperative", minimum_version=0, maximum_version=3, metadata_version=3, metadata=b"m"
)

HANDOVER = ConnectMembershipHandover(
    member_id=MemberId("former"),
    member_epoch=MemberEpoch(5),
    request_number=70,
    session_timeout_ms=SESSION_MS,
    leader=OTHER,
    leader_url=WorkerUrl("http://other"),
    leader_epoch=LeaderEpoch(2),
    assignment_epoch=GroupEpoch(5),
    config_offset=ConfigOffset(4),
    jobs=SOME,
    jobs_by_assignment_epoch={GroupEpoch(5): SOME},
    version=1,
    metadata=b"hello",
)
"""The membership of the previous process."""


class MemberDriver:
    """One member machine, its timers and what it emits; the clock moves only in ``advance_clock``."""

    def __init__(
        self,
        place: ConnectMembershipHandover | None = None,
        *,
        step: Step[Member, Request, Response, Timer] = step,
        **settings: Any,
    ) -> None:
        self.step = step
        values: dict[str, Any] = {
            "assignors": (COOPERATIVE,),
            "config_topic_id": bytes(16),
            "coordinator_hold_max_ms": 1_000,
        }
        self.member = Member(
            MemberSettings(group_id=GroupId("fleet"), member_id=ME, url=WorkerUrl("http://me"), **(values | settings)),
            place,
        )
        self.now_ms = 0
        self.timers = Timers[Timer]()
        self.sent: list[Send[Request]] = []
        """The requests without a response, oldest first."""
        self.logged: list[str] = []
        self.events: list[Effect] = []
        """Events for the herder, oldest first."""
        self.feed(MemberStarted())

    def feed(self, event: Event) -> None:
        for effect in self.step(self.member, event, now_ms=self.now_ms).effects:
            match effect:
                case Send():
                    self.sent.append(effect)
                case SetTimer(timer=timer, at_ms=at_ms):
                    self.timers.set(timer, at_ms)
                case CancelTimer(timer=timer):
                    self.timers.cancel(timer)
                case WriteLogMessage(text=text):
                    self.logged.append(text)
                case _:
                    self.events.append(effect)

    def advance_clock(self, ms: int) -> None:
        end_ms = self.now_ms + ms
        while (at_ms := self.timers.next_deadline_ms()) is not None and at_ms <= end_ms:
            self.now_ms = max(self.now_ms, at_ms)
            due = self.timers.pop_due(self.now_ms)
            assert due is not None
            self.feed(TimerFired(timer=due))
        self.now_ms = end_ms

    def own(self, owned: Jobs = NO_JOBS, *, draining: bool = False, config_offset: int = 4) -> None:
        self.feed(SetWorkerState(config_offset=ConfigOffset(config_offset), owned=owned, draining=draining))

    def configure(self, jobs: Jobs, config_offset: int = 4, *, leader_epoch: int = 1) -> None:
        offset, epoch = ConfigOffset(config_offset), LeaderEpoch(leader_epoch)
        self.feed(SetConfiguredJobs(leader_epoch=epoch, config_offset=offset, jobs=jobs))

    def update_assignor(self, metadata: bytes = b"m", reason: int = 0, *, name: str = COOPERATIVE.name) -> None:
        self.feed(UpdateAssignor(name=name, metadata_version=2, metadata=metadata, reason=reason))

    def join(self, jobs: Jobs = SOME, *, leader: MemberId = OTHER) -> HeartbeatRequest:
        """Join, and receive and start ``jobs``; returns the join."""
        self.own()
        request = self.answer(accepted(0, leader=leader, is_full=True))
        self.advance_clock(INTERVAL_MS)
        self.answer(accepted(1, jobs, leader=leader, is_full=True))
        self.own(jobs)
        self.events.clear()
        return request

    def end_hold(self) -> HeartbeatRequest:
        """The hold of the newest heartbeat ends: it is answered, and nothing has changed."""
        self.advance_clock(1_000)
        assert isinstance(self.member.place, InGroup)
        return self.answer(accepted(self.member.place.member_epoch))

    @property
    def heartbeat(self) -> HeartbeatRequest:
        """The newest heartbeat without a response."""
        request = self.pending(HeartbeatRequest).request
        assert isinstance(request, HeartbeatRequest)
        return request

    def pending(self, kind: type[RequestT]) -> Send[Request]:
        return next(send for send in reversed(self.sent) if isinstance(send.request, kind))

    def count(self, kind: type[Request]) -> int:
        """The number of requests of ``kind`` without a response."""
        return sum(isinstance(send.request, kind) for send in self.sent)

    def answer(self, response: Response, *, oldest: bool = False) -> HeartbeatRequest:
        """Answer the newest heartbeat, or the oldest one, and return it."""
        found = [send for send in self.sent if isinstance(send.request, HeartbeatRequest)]
        request = self.reply(found[0 if oldest else -1], response)
        assert isinstance(request, HeartbeatRequest)
        return request

    def reply(self, send: Send[Request], response: Response) -> Request:
        self.sent.remove(send)
        self.feed(ResponseReceived(id=send.id, response=response))
        return send.request

    def refuse(self, error: ConnectErrorCode, message: str | None = None) -> HeartbeatRequest:
        """Answer the newest heartbeat with an error."""
        return self.answer(HeartbeatResponse(error=error, message=message))

    def fail(self, kind: type[Request] = HeartbeatRequest) -> None:
        """The newest request of ``kind`` fails."""
        send = self.pending(kind)
        self.sent.remove(send)
        self.feed(RequestFailed(id=send.id, reason="the connection broke"))

    def take_events(self, kind: type[EventT]) -> list[EventT]:
        """The events of ``kind`` since the last call; events of other kinds are dropped."""
        found: list[EventT] = [effect for effect in self.events if isinstance(effect, kind)]
        self.events.clear()
        return found


def accepted(
    epoch: int,
    jobs: Jobs | None = None,
    *,
    leader: MemberId | None = None,
    is_full: bool = False,
    session_timeout_ms: int = SESSION_MS,
    error: ConnectErrorCode = ConnectErrorCode.NONE,
    leader_epoch: int = 1,
) -> HeartbeatResponse:
    """The response to an accepted heartbeat, with an assignment if ``jobs`` are given; ``is_full``: with all fields."""
    if is_full and jobs is None:
        jobs = NO_JOBS
    assignment = None
    if jobs is not None:
        assignment = AssignmentToMember(
            jobs=jobs,
            jobs_by_assignment_epoch={GroupEpoch(epoch): jobs} if jobs else {},
            assignment_epoch=GroupEpoch(epoch),
            config_offset=ConfigOffset(4),
        )
    return HeartbeatResponse(
        error=error,
        member_epoch=MemberEpoch(epoch),
        heartbeat_interval_ms=INTERVAL_MS,
        assignment=assignment,
        leader=None if leader is None else leader_named(leader, leader_epoch),
        session_timeout_ms=session_timeout_ms if is_full else None,
    )


def leader_named(member_id: MemberId, leader_epoch: int = 1) -> LeaderOfGroup:
    return LeaderOfGroup(
        member_id=member_id, leader_epoch=LeaderEpoch(leader_epoch), url=WorkerUrl(f"http://{member_id}")
    )
