"""Drives one group machine of a coordinator: feeds events, keeps its log, its timers and its responses."""

from collections.abc import Callable
from itertools import count

import pytest

from coterie.engine.timers import Timers
from coterie.groups.classic.machine import step
from coterie.groups.classic.messages import (
    Event,
    GenerationWritten,
    GroupLoaded,
    Heartbeat,
    JoinGroup,
    JoinGroupResponse,
    LeaveGroup,
    LeaveGroupResponse,
    LeavingMember,
    MemberProtocol,
    Record,
    ReplyTo,
    Response,
    SyncGroup,
    SyncGroupResponse,
    TimerKey,
)
from coterie.groups.classic.offset_messages import TransactionEnded
from coterie.groups.classic.state import ClassicGroupSettings, Group, GroupPhase, apply, check_all_invariants
from coterie.groups.effects import CancelTimer, Reply, SetTimer, TimerFired
from coterie.nouns.ids import GenerationId, GroupId, InstanceId, MemberId
from coterie.wire.errors import ErrorCode


class GroupDriver:
    """One group machine, its log, timers and responses; the clock moves only in ``advance_clock``."""

    def __init__(self, limits: ClassicGroupSettings) -> None:
        self.limits = limits
        self.group = Group(GroupId("fleet"), limits)
        self.now_ms = 0
        self.log: list[Record | TransactionEnded] = []
        """The records of the machine and, as in the topic, the markers of transactions."""
        self.timers = Timers[TimerKey]()
        self.responses: dict[ReplyTo, Response] = {}
        self._reply_to = map(ReplyTo, count(1))
        self._member_numbers = count(1)

    @property
    def phase(self) -> GroupPhase:
        return self.group.phase

    @property
    def generations(self) -> list[GenerationWritten]:
        """The log's records of this type."""
        return [record for record in self.log if isinstance(record, GenerationWritten)]

    def feed(self, event: Event) -> None:
        output = step(self.group, event, now_ms=self.now_ms)
        check_all_invariants(self.group)
        self.log.extend([event] if isinstance(event, TransactionEnded) else output.records)
        for effect in output.effects:
            match effect:
                case Reply(to=to, response=response):
                    assert to not in self.responses, "one response per request"
                    self.responses[to] = response
                case SetTimer(key=key, at_ms=at_ms):
                    self.timers.set(key, at_ms)
                case CancelTimer(key=key):
                    self.timers.cancel(key)

    def advance_clock(self, ms: int) -> None:
        """Advance the clock; timers fire when they are due."""
        until_ms = self.now_ms + ms
        while (at_ms := self.timers.next_deadline_ms()) is not None and at_ms <= until_ms:
            self.now_ms = at_ms
            key = self.timers.pop_due(at_ms)
            assert key is not None
            self.feed(TimerFired(key=key))
        self.now_ms = until_ms

    def restart(self) -> None:
        """The coordinator crashes and another one replays its log."""
        self.group = Group(GroupId("fleet"), self.limits)
        self.timers = Timers[TimerKey]()
        for record in self.log:
            apply(self.group, record)
        self.feed(GroupLoaded())

    # -- requests: each returns the key of its response in ``responses`` ------------------------------------------

    def join(
        self,
        member_id: str = "",
        *,
        protocols: tuple[tuple[str, bytes], ...] = (("v1", b"I am new"),),
        requires_known_member_id: bool = False,
        session_ms: int = 10_000,
        rebalance_ms: int = 60_000,
        protocol_type: str = "connect",
        instance: str | None = None,
        version: int = 9,
    ) -> ReplyTo:
        reply_to = next(self._reply_to)
        self.feed(
            JoinGroup(
                reply_to=reply_to,
                member_id=MemberId(member_id),
                fresh_member_id=MemberId(f"m{next(self._member_numbers)}" if not member_id else "unused"),
                instance_id=InstanceId(instance) if instance is not None else None,
                supports_skip_assignment=version >= 9,
                requires_known_member_id=requires_known_member_id,
                client_id="worker",
                client_host="/127.0.0.1",
                session_timeout_ms=session_ms,
                rebalance_timeout_ms=rebalance_ms,
                protocol_type=protocol_type,
                protocols=tuple(MemberProtocol(name=name, metadata=metadata) for name, metadata in protocols),
            )
        )
        return reply_to

    def sync(
        self,
        member_id: str,
        generation: int | None = None,
        *,
        assignments: dict[str, bytes] | None = None,
        protocol_type: str | None = None,
        protocol: str | None = None,
        instance: str | None = None,
    ) -> ReplyTo:
        reply_to = next(self._reply_to)
        self.feed(
            SyncGroup(
                reply_to=reply_to,
                member_id=MemberId(member_id),
                instance_id=InstanceId(instance) if instance is not None else None,
                generation=GenerationId(generation) if generation is not None else self.group.generation,
                protocol_type=protocol_type,
                protocol=protocol,
                assignments=tuple((MemberId(other), data) for other, data in (assignments or {}).items()),
            )
        )
        return reply_to

    def heartbeat(self, member_id: str, generation: int | None = None, *, instance: str | None = None) -> ErrorCode:
        reply_to = next(self._reply_to)
        self.feed(
            Heartbeat(
                reply_to=reply_to,
                member_id=MemberId(member_id),
                generation=GenerationId(generation) if generation is not None else self.group.generation,
                instance_id=InstanceId(instance) if instance is not None else None,
            )
        )
        return self.responses[reply_to].error

    def leave(self, *member_ids: str, instance: str | None = None) -> LeaveGroupResponse:
        """``instance``: the instance id of each member."""
        reply_to = next(self._reply_to)
        instance_id = InstanceId(instance) if instance is not None else None
        members = tuple(
            LeavingMember(member_id=MemberId(member_id), instance_id=instance_id) for member_id in member_ids
        )
        self.feed(LeaveGroup(reply_to=reply_to, members=members))
        response = self.responses[reply_to]
        assert isinstance(response, LeaveGroupResponse)
        return response

    # -- responses ------------------------------------------------------------------------------------------------

    def is_parked(self, reply_to: ReplyTo) -> bool:
        return reply_to not in self.responses

    def error(self, reply_to: ReplyTo) -> ErrorCode:
        return self.responses[reply_to].error

    def join_response(self, reply_to: ReplyTo) -> JoinGroupResponse:
        response = self.responses[reply_to]
        assert isinstance(response, JoinGroupResponse)
        return response

    def sync_response(self, reply_to: ReplyTo) -> SyncGroupResponse:
        response = self.responses[reply_to]
        assert isinstance(response, SyncGroupResponse)
        return response

    # -- a stable group -------------------------------------------------------------------------------------------

    def settle(self, members: int) -> list[str]:
        """A stable group: ``m1`` leads, each member has its own name as its assignment."""
        joins = [self.join() for _ in range(members)]
        self.advance_clock(self.limits.initial_rebalance_delay_ms * 2)
        member_ids = [str(self.join_response(join).member_id) for join in joins]
        for member_id in reversed(member_ids):
            self.sync(member_id, assignments={other: other.encode() for other in member_ids})
        assert self.phase is GroupPhase.STABLE
        return member_ids


@pytest.fixture
def driver() -> GroupDriver:
    return GroupDriver(ClassicGroupSettings())


@pytest.fixture
def new_driver() -> Callable[[ClassicGroupSettings], GroupDriver]:
    return GroupDriver
