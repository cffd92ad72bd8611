"""A member of a classic group that uses almost no resources: one TCP connection, heartbeats encoded once, one request
in flight."""

import asyncio
import itertools
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from kio.schema.find_coordinator.v4 import request as find_coordinator
from kio.schema.heartbeat.v4 import request as heartbeat
from kio.schema.join_group.v9 import request as join_group
from kio.schema.join_group.v9 import response as joined
from kio.schema.sync_group.v5 import request as sync_group
from kio.schema.types import GroupId
from kio.static.primitive import i8, i32, i32Timedelta

from coterie.wire.errors import ErrorCode
from coterie.wire.frames import LENGTH_SIZE, RequestHeader, decode_response, encode_request, with_length

PROTOCOL_TYPE = "light"
PROTOCOL = "even"
SESSION_TIMEOUT = timedelta(seconds=45)
REBALANCE_TIMEOUT = timedelta(seconds=300)
SUBSCRIPTION = b"s" * 30
ASSIGNMENT = b"a" * 40

_RETRIABLE_ERRORS = (
    ErrorCode.coordinator_load_in_progress, ErrorCode.coordinator_not_available, ErrorCode.not_coordinator
)  # fmt: skip
_RETRY_S = 0.1
_CORRELATION_ID_AT, _CORRELATION_ID_SIZE = 8, 4
"""Position of the correlation id in a request: after length, API key and version. In a response it is the first
field."""
_CORRELATION_ID_OF_ASK = 2**30
"""The first correlation id of requests that are not encoded before; heartbeats have lower ones."""
_HEARTBEAT_ERROR_AT = 9
"""Position of the error code in the responses to Heartbeat v4 and ConnectGroupHeartbeat: after correlation id, empty
tagged fields, throttle time."""


class LightConnection(asyncio.Protocol):
    """The connection of one member. Responses are matched by correlation id: real members have a second request in
    flight only while a held heartbeat is unanswered."""

    def __init__(self, client_id: str) -> None:
        self.sent_bytes = 0
        self.received_bytes = 0
        self.requests = 0
        self._client_id = client_id
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._correlation_ids = itertools.count(_CORRELATION_ID_OF_ASK)
        self._unanswered: dict[bytes, Callable[[bytes], None]] = {}
        """What is called with the frame of each response that is not received yet, by its correlation id."""
        self._lost: Exception | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = exc or ConnectionError("the broker has closed a member's connection")

    def data_received(self, data: bytes) -> None:
        self._received += data
        while len(self._received) >= LENGTH_SIZE:
            size = LENGTH_SIZE + int.from_bytes(self._received[:LENGTH_SIZE])
            if len(self._received) < size:
                return
            frame = bytes(self._received[LENGTH_SIZE:size])
            del self._received[:size]
            self.received_bytes += size
            self._unanswered.pop(frame[:_CORRELATION_ID_SIZE])(frame)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def frame_of(self, request: Any, correlation_id: int = 0) -> bytes:
        """The bytes of a request, with their length."""
        return with_length(encode_request(request, correlation_id=correlation_id, client_id=self._client_id)[1])

    async def ask(self, request: Any, when_sent: Callable[[], None] | None = None) -> Any:
        """Send a request; returns the response. ``when_sent`` is called in between."""
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        def on_frame(frame: bytes) -> None:
            if not answer.done():  # it is done if the asyncio task that awaited it was cancelled
                answer.set_result(frame)

        self.send(self.frame_of(request, next(self._correlation_ids)), on_frame)
        if when_sent is not None:
            when_sent()
        return decoded(await answer, request)

    def send(self, frame: bytes, on_frame: Callable[[bytes], None]) -> None:
        """Send the bytes of a request; ``on_frame`` is called with the response's frame."""
        if self._lost is not None:
            raise self._lost
        assert self._transport is not None
        correlation_id = frame[_CORRELATION_ID_AT : _CORRELATION_ID_AT + _CORRELATION_ID_SIZE]
        assert correlation_id not in self._unanswered, "one request at a time of each correlation id"
        self._unanswered[correlation_id] = on_frame
        self.requests += 1
        self.sent_bytes += len(frame)
        self._transport.write(frame)


def decoded(frame: bytes, request: Any) -> Any:
    """The response to ``request`` in ``frame``."""
    correlation_id = int.from_bytes(frame[:_CORRELATION_ID_SIZE])
    header = RequestHeader(api_key=request.__api_key__, api_version=request.__version__, correlation_id=correlation_id)
    return decode_response(frame, header)


def error_of_heartbeat(frame: bytes) -> int:
    """The error code of the response to a heartbeat of either protocol."""
    return int.from_bytes(frame[_HEARTBEAT_ERROR_AT : _HEARTBEAT_ERROR_AT + 2], signed=True)


class LightMember(LightConnection):
    """One member of a classic group."""

    def __init__(self, group_id: str, number: int) -> None:
        super().__init__(f"light-{number}")
        self.member_id = ""
        self.generation = -1
        self.assignment = b""
        self._group_id = GroupId(group_id)
        self._heartbeat = b""

    # -- requests -----------------------------------------------------------------------------------------------------

    def send_heartbeat(self, on_error: Callable[[int], None]) -> None:
        """Send a heartbeat; ``on_error`` is called with the response's error code."""
        self.send(self._heartbeat, lambda frame: on_error(error_of_heartbeat(frame)))

    async def heartbeat(self) -> int:
        """Send a heartbeat; returns the response's error code."""
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.send_heartbeat(answer.set_result)
        return await answer

    async def find_coordinator(self) -> None:
        """Send FindCoordinator until there is a coordinator: a new Kafka broker first creates the topic for groups."""
        request = find_coordinator.FindCoordinatorRequest(key_type=i8(0), coordinator_keys=(self._group_id,))
        while True:
            answer = await self.ask(request)
            if answer.coordinators[0].error_code == ErrorCode.none:
                return
            await asyncio.sleep(_RETRY_S)

    async def join_and_sync(self, when_sent: Callable[[], None] | None = None) -> None:
        """Join and sync until this member has an assignment; ``when_sent`` is called after each JoinGroup is sent."""
        while True:
            answer = await self.ask(self._join(), when_sent)
            if answer.error_code == ErrorCode.member_id_required:
                self.member_id = answer.member_id
                continue
            if answer.error_code == ErrorCode.rebalance_in_progress:
                continue
            if answer.error_code in _RETRIABLE_ERRORS:
                await asyncio.sleep(_RETRY_S)
                continue
            assert answer.error_code == ErrorCode.none, answer.error_code
            self.member_id = answer.member_id
            self.generation = answer.generation_id
            synced = await self.ask(self._sync(answer))
            if synced.error_code == ErrorCode.rebalance_in_progress:
                continue
            assert synced.error_code == ErrorCode.none, synced.error_code
            self.assignment = synced.assignment
            self._heartbeat = self.frame_of(
                heartbeat.HeartbeatRequest(
                    group_id=self._group_id, generation_id=i32(self.generation), member_id=self.member_id
                )
            )
            return

    # -- helpers ------------------------------------------------------------------------------------------------------

    def _join(self) -> Any:
        return join_group.JoinGroupRequest(
            group_id=self._group_id,
            session_timeout=i32Timedelta.parse(SESSION_TIMEOUT),
            rebalance_timeout=i32Timedelta.parse(REBALANCE_TIMEOUT),
            member_id=self.member_id,
            group_instance_id=None,
            protocol_type=PROTOCOL_TYPE,
            protocols=(join_group.JoinGroupRequestProtocol(name=PROTOCOL, metadata=SUBSCRIPTION),),
        )

    def _sync(self, answer: joined.JoinGroupResponse) -> Any:
        return sync_group.SyncGroupRequest(
            group_id=self._group_id,
            generation_id=i32(self.generation),
            member_id=self.member_id,
            group_instance_id=None,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=PROTOCOL,
            # Empty for all members but the leader: only its JoinGroup response contains the other members.
            assignments=tuple(
                sync_group.SyncGroupRequestAssignment(member_id=member.member_id, assignment=ASSIGNMENT)
                for member in answer.members
            ),
        )
