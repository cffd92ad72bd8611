"""The way to a classic group's coordinator: finds it among the brokers and speaks Kafka's group APIs with it.

A broker takes the requests of one connection in turn, and parks a JoinGroup until all members have joined, a SyncGroup
until the leader has synced. Kafka's own clients have one connection to their coordinator and send no heartbeats
meanwhile. Ours do (see `member.classic.machine`), so there are two *lanes*: heartbeats and LeaveGroup, which a broker
answers at once, are pipelined on one connection. A join or a sync never waits behind another one that is still parked,
for instance because the member has given that one up: it gets a new connection, and the former one is closed when its
request is answered.

A request that is not answered within its time limit closes its connection, because no later answer on that connection
arrives either. A request that the member gave up earlier stays outstanding.
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
    """Matches `member.seams.Coordinator`. Asks once: whether and when to ask again is the member's business."""

    def __init__(
        self,
        bootstrap_servers: Sequence[str],
        *,
        client_id: str,
        request_timeout_ms: int,
        parked_timeout_ms: int,
        security: KafkaSecurity = PLAINTEXT,
    ) -> None:
        """``request_timeout_ms`` is the time limit of requests that a broker answers at once, ``parked_timeout_ms`` of
        joins and syncs, which a broker parks."""
        finder = _Finder(bootstrap_servers, client_id, security)
        self._prompt = _Lane(finder, request_timeout_ms, request_timeout_ms, is_parked=False)
        self._parked = _Lane(finder, request_timeout_ms, parked_timeout_ms, is_parked=True)
        self._closed = False

    async def ask(self, request: Request) -> Response:
        """Send ``request`` and await its answer; several may be outstanding. A request that is cancelled may still
        have its effect.

        :raises WorldError: when no broker answers, the coordinator cannot be reached or the connection broke. The
            next request finds the coordinator anew.
        """
        if self._closed:
            raise WorldError("the way to the group's coordinator is closed")
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
    """Knows some brokers, of which one at least should tell which broker is a group's coordinator."""

    def __init__(self, bootstrap_servers: Sequence[str], client_id: str, security: KafkaSecurity) -> None:
        self._client_id = client_id
        self._security = security
        self._servers = [Address.parse(server) for server in bootstrap_servers]

    async def find(self, group_id: GroupId, timeout_s: float) -> Address | ErrorCode:
        """The coordinator, or why there is none yet.

        :raises WorldError: when no broker answers; the message tells the reason of each.
        """
        reasons: list[str] = []
        for server in list(self._servers):
            try:
                async with asyncio.timeout(timeout_s):
                    return await self._ask(server, group_id)
            except TimeoutError:
                reasons.append(f"the broker at {server} did not answer in {timeout_s:g} s")
            except WorldError as error:
                reasons.append(str(error))
            # Next time the others first.
            self._servers.append(self._servers.pop(0))
        raise WorldError("; ".join(reasons))

    async def open(self, server: Address) -> BrokerConnection:
        """:raises WorldError: when it cannot be reached, or lets us not in."""
        return await BrokerConnection.open(server, client_id=self._client_id, security=self._security)

    async def _ask(self, server: Address, group_id: GroupId) -> Address | ErrorCode:
        connection = await self.open(server)
        try:
            # Up to version 3 one key is asked for and answered at the top, since 4 there is a list of them.
            values = {"key": group_id, "key_type": _GROUP_KEY, "coordinator_keys": (group_id,)}
            answer = await connection.ask(FIND_COORDINATOR, values)
        finally:
            connection.close()
        found = answer.coordinators[0] if getattr(answer, "coordinators", ()) else answer
        error: ErrorCode = found.error_code
        return Address(found.host, found.port) if error == ErrorCode.none else error


class _Lane:
    """Connections to the coordinator for one kind of requests, opened when needed; one of them takes new requests."""

    def __init__(self, finder: _Finder, open_timeout_ms: int, answer_timeout_ms: int, *, is_parked: bool) -> None:
        """``is_parked``: the broker may park these requests, so each needs a connection that waits for no other."""
        self._finder = finder
        self._open_timeout_s = open_timeout_ms / 1000
        self._answer_timeout_s = answer_timeout_ms / 1000
        self._is_parked = is_parked
        self._opening = asyncio.Lock()
        self._current: BrokerConnection | None = None
        self._connections: set[BrokerConnection] = set()
        """``_current``, and former ones with requests that are not answered yet."""

    async def ask(self, api: ApiRange, group_id: GroupId, values: Values) -> Any:
        """Kio's response entity; or the error with which a broker said that there is no coordinator yet."""
        try:
            connection = await self._connected(group_id)
            if isinstance(connection, ErrorCode):
                return connection
            try:
                async with asyncio.timeout(self._answer_timeout_s):
                    answer = await connection.ask(api, values)
            except (TimeoutError, WorldError):
                # What was sent after it on this connection will not be answered either.
                self._drop(connection)
                raise
        except TimeoutError:
            raise WorldError(f"the group's coordinator did not answer {api.name} in time") from None
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


# -- requests and answers, in values that know no version -----------------------------------------------------------


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
        # Before version 9 a leader that came back is given its former id as the leader's, and so does not lead.
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
    """A member of a generation, as SyncGroup names it too."""
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
    """The error at the top concerns the group, that of the one member the member."""
    error = _error(answer)
    if error == ErrorCode.none and answer.members:
        error = answer.members[0].error_code
    return error


def _error(answer: Any) -> ErrorCode:
    error: ErrorCode = answer if isinstance(answer, ErrorCode) else answer.error_code
    return error
