"""Finds a classic group's coordinator among the brokers and sends it Kafka's group requests.

A broker processes the requests of one connection in order. It parks a JoinGroup until all members have joined, and a
SyncGroup until the leader has synced. Kafka's own clients have one connection to their coordinator and send no
heartbeats meanwhile. Coterie's members do (see `member.classic.machine`), so there are two *lanes*. Heartbeats and
LeaveGroup, to which a broker responds immediately, are pipelined on one connection. A join or sync gets a new
connection if another join or sync is still parked, for instance one that the member no longer waits for. The previous
connection is closed when its response has arrived.

If the response to a request does not arrive within its time limit, the connection is closed, because no later response
on that connection arrives either. A request that the member no longer waits for stays outstanding.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from coterie.config.security import KafkaSecurity
from coterie.kafka.connection import (
    FIND_COORDINATOR,
    HEARTBEAT,
    JOIN_GROUP,
    LEAVE_GROUP,
    SYNC_GROUP,
    Address,
    ApiRange,
    BrokerConnection,
)
from coterie.kafka.security import PLAINTEXT
from coterie.member.classic.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinRequest,
    JoinResponse,
    LeaveRequest,
    LeaveResponse,
    Request,
    Response,
    SyncRequest,
    SyncResponse,
)
from coterie.nouns.errors import WorldError
from coterie.nouns.ids import Generation, GroupId, InstanceId, MemberId
from coterie.wire.errors import ErrorCode
from coterie.wire.shapes import Values

_GROUP_KEY = 0
"""FindCoordinator's key type for groups."""
_MOVED = (ErrorCode.not_coordinator, ErrorCode.coordinator_not_available)


class KafkaCoordinator:
    """Matches `member.seams.Coordinator`. Sends each request once: the member decides whether and when to retry."""

    def __init__(
        self,
        bootstrap_servers: Sequence[str],
        *,
        client_id: str,
        request_timeout_ms: int,
        parked_timeout_ms: int,
        security: KafkaSecurity = PLAINTEXT,
    ) -> None:
        """``request_timeout_ms`` is the time limit of requests to which a broker responds immediately;
        ``parked_timeout_ms`` is that of joins and syncs, which a broker parks."""
        finder = _Finder(bootstrap_servers, client_id, security)
        self._prompt = _Lane(finder, request_timeout_ms, request_timeout_ms, is_parked=False)
        self._parked = _Lane(finder, request_timeout_ms, parked_timeout_ms, is_parked=True)
        self._closed = False

    async def ask(self, request: Request) -> Response:
        """Send ``request`` and await its response; several requests may be outstanding. A request that is cancelled may
        still have its effect.

        :raises WorldError: when no broker responds, the coordinator cannot be reached or the connection broke. The
            next request then searches for the coordinator again.
        """
        if self._closed:
            raise WorldError("the connections to the group's coordinator are closed")
        match request:
            case HeartbeatRequest():
                answer = await self._prompt.ask(HEARTBEAT, request.group_id, _heartbeat(request))
                return HeartbeatResponse(error=_error(answer))
            case JoinRequest():
                answer = await self._parked.ask(JOIN_GROUP, request.group_id, _join(request))
                return _joined(answer)
            case SyncRequest():
                answer = await self._parked.ask(SYNC_GROUP, request.group_id, _sync(request))
                if isinstance(answer, ErrorCode):
                    return SyncResponse(error=answer)
                return SyncResponse(error=answer.error_code, assignment=answer.assignment)
            case LeaveRequest():
                answer = await self._prompt.ask(LEAVE_GROUP, request.group_id, _leave(request))
                return LeaveResponse(error=_left(answer))

    async def close(self) -> None:
        """Drop all connections; outstanding requests fail. Safe to call twice."""
        self._closed = True
        self._prompt.close()
        self._parked.close()
        await asyncio.sleep(0)


class _Finder:
    """Requests the coordinator of a group from the bootstrap servers."""

    def __init__(self, bootstrap_servers: Sequence[str], client_id: str, security: KafkaSecurity) -> None:
        self._client_id = client_id
        self._security = security
        self._servers = [Address.parse(server) for server in bootstrap_servers]

    async def find(self, group_id: GroupId, timeout_s: float) -> Address | ErrorCode:
        """The coordinator's address, or the error code in a broker's response when there is no coordinator yet.

        :raises WorldError: when no broker responds; the message contains the reason for each broker.
        """
        reasons: list[str] = []
        for server in list(self._servers):
            try:
                async with asyncio.timeout(timeout_s):
                    return await self._ask(server, group_id)
            except TimeoutError:
                reasons.append(f"the broker at {server} did not respond within {timeout_s:g} s")
            except WorldError as error:
                reasons.append(str(error))
            # Try the other brokers first next time.
            self._servers.append(self._servers.pop(0))
        raise WorldError("; ".join(reasons))

    async def open(self, server: Address) -> BrokerConnection:
        """:raises WorldError: when the broker cannot be reached, or rejects this client."""
        return await BrokerConnection.open(server, client_id=self._client_id, security=self._security)

    async def _ask(self, server: Address, group_id: GroupId) -> Address | ErrorCode:
        connection = await self.open(server)
        try:
            # Up to version 3 request and response have fields for one key; from version 4 on they have a list of keys.
            values = {"key": group_id, "key_type": _GROUP_KEY, "coordinator_keys": (group_id,)}
            answer = await connection.ask(FIND_COORDINATOR, values)
        finally:
            connection.close()
        found = answer.coordinators[0] if getattr(answer, "coordinators", ()) else answer
        error: ErrorCode = found.error_code
        return Address(found.host, found.port) if error == ErrorCode.none else error


class _Lane:
    """The connections to the coordinator for one kind of request, opened when needed; new requests use one of them."""

    def __init__(self, finder: _Finder, open_timeout_ms: int, answer_timeout_ms: int, *, is_parked: bool) -> None:
        """``is_parked``: the broker may park these requests, so each needs a connection without other requests."""
        self._finder = finder
        self._open_timeout_s = open_timeout_ms / 1000
        self._answer_timeout_s = answer_timeout_ms / 1000
        self._is_parked = is_parked
        self._opening = asyncio.Lock()
        self._current: BrokerConnection | None = None
        self._connections: set[BrokerConnection] = set()
        """``_current``, and previous connections with outstanding requests."""

    async def ask(self, api: ApiRange, group_id: GroupId, values: Values) -> Any:
        """kio's response entity; or the error code of FindCoordinator when there is no coordinator yet."""
        try:
            connection = await self._connected(group_id)
            if isinstance(connection, ErrorCode):
                return connection
            try:
                async with asyncio.timeout(self._answer_timeout_s):
                    answer = await connection.ask(api, values)
            except (TimeoutError, WorldError):
                # The responses to later requests on this connection will not arrive either.
                self._drop(connection)
                raise
        except TimeoutError:
            raise WorldError(f"the group's coordinator did not respond to {api.name} in time") from None
        if answer.error_code in _MOVED and self._current is connection:
            self._current = None
        self._drop_former()
        return answer

    def close(self) -> None:
        for connection in list(self._connections):
            self._drop(connection)

    async def _connected(self, group_id: GroupId) -> BrokerConnection | ErrorCode:
        async with self._opening:
            current = self._current
            if current is not None and not current.is_stale and not (self._is_parked and current.is_busy):
                return current
            self._current = None
            self._drop_former()
            coordinator = await self._finder.find(group_id, self._open_timeout_s)
            if isinstance(coordinator, ErrorCode):
                return coordinator
            async with asyncio.timeout(self._open_timeout_s):
                self._current = await self._finder.open(coordinator)
            self._connections.add(self._current)
            return self._current

    def _drop_former(self) -> None:
        for connection in list(self._connections):
            if connection is not self._current and not connection.is_busy:
                self._drop(connection)

    def _drop(self, connection: BrokerConnection) -> None:
        connection.close()
        self._connections.discard(connection)
        if self._current is connection:
            self._current = None


# -- requests and responses, as values without a version ------------------------------------------------------------


def _join(request: JoinRequest) -> Values:
    return {
        "group_id": request.group_id,
        "session_timeout": request.session_timeout_ms,
        "rebalance_timeout": request.rebalance_timeout_ms,
        "member_id": request.member_id,
        "group_instance_id": request.instance_id,
        "protocol_type": request.protocol_type,
        "protocols": tuple({"name": name, "metadata": metadata} for name, metadata in request.protocols),
        "reason": request.reason or None,
    }


def _joined(answer: Any) -> JoinResponse:
    if isinstance(answer, ErrorCode):
        return JoinResponse(error=answer)
    leads = answer.error_code == ErrorCode.none and answer.leader == answer.member_id
    members = {MemberId(member.member_id): member.metadata for member in answer.members}
    instance_ids = {
        MemberId(member.member_id): InstanceId(member.group_instance_id)
        for member in answer.members
        if member.group_instance_id is not None
    }
    return JoinResponse(
        error=answer.error_code,
        generation=Generation(answer.generation_id),
        protocol=answer.protocol_name or "",
        leader=MemberId(answer.leader),
        member_id=MemberId(answer.member_id),
        members=members if leads else None,
        instance_ids=instance_ids,
        # Before version 9 the response to a leader that rejoined names its former id as the leader, so that the member
        # computes no assignments.
        skip_assignment=getattr(answer, "skip_assignment", False),
    )


def _sync(request: SyncRequest) -> Values:
    return {
        **_heartbeat(request),
        "protocol_type": request.protocol_type,
        "protocol_name": request.protocol,
        "assignments": tuple({"member_id": id_, "assignment": bytes_} for id_, bytes_ in request.assignments),
    }


def _heartbeat(request: HeartbeatRequest | SyncRequest) -> Values:
    """The fields that identify a member of a generation, in Heartbeat and SyncGroup."""
    return {
        "group_id": request.group_id,
        "generation_id": request.generation,
        "member_id": request.member_id,
        "group_instance_id": request.instance_id,
    }


def _leave(request: LeaveRequest) -> Values:
    leaving = {
        "member_id": request.member_id,
        "group_instance_id": request.instance_id,
        "reason": request.reason or None,
    }
    return {"group_id": request.group_id, "members": (leaving,)}


def _left(answer: Any) -> ErrorCode:
    """The error of the whole request, or else the error of its only member."""
    error = _error(answer)
    if error == ErrorCode.none and answer.members:
        error = answer.members[0].error_code
    return error


def _error(answer: Any) -> ErrorCode:
    error: ErrorCode = answer if isinstance(answer, ErrorCode) else answer.error_code
    return error
