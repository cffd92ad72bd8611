"""Finds a classic group's coordinator among the brokers and sends it Kafka's group requests.

A broker processes the requests of one connection in order. It parks a JoinGroup until all members have joined, and a
SyncGroup until the leader has sent the assignments: the response comes only then. Kafka's own clients have one
connection to their coordinator and send no heartbeats while a request is parked. Coterie's members send heartbeats then
(see `member.classic.machine`), so there are separate connections for two kinds of request. Heartbeat and LeaveGroup, to
which a broker responds immediately, are all sent on one connection. A join or sync gets a new connection if an earlier
join or sync is still parked, for instance one that the member no longer waits for. The former connection is closed when
its response has arrived.

If the response to a request does not arrive within its time limit, the connection is closed, because no later response
on that connection arrives either. A request that the member no longer waits for stays outstanding.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from coterie.config.security import KafkaSecurity
from coterie.kafka.connection import (
    HEARTBEAT,
    JOIN_GROUP,
    LEAVE_GROUP,
    SYNC_GROUP,
    ApiVersionRange,
    BrokerConnection,
)
from coterie.kafka.coordinator_finder import MOVED, CoordinatorFinder
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
from coterie.nouns.ids import GenerationId, GroupId, InstanceId, MemberId
from coterie.wire.errors import ErrorCode
from coterie.wire.kio_entities import Values


class KafkaClassicCoordinatorClient:
    """Sends a member's requests to its group's coordinator over TCP (the seam `member.seams.CoordinatorClient`). Sends
    each request once: the member decides whether and when to retry. An error code of a broker is returned in the
    response; a request without a response raises WorldError."""

    def __init__(
        self,
        bootstrap_servers: Sequence[str],
        *,
        client_id: str,
        request_timeout_ms: int,
        parked_timeout_ms: int,
        security: KafkaSecurity = PLAINTEXT,
    ) -> None:
        """``request_timeout_ms`` is the time limit for each attempt to find the coordinator, for opening a connection
        to it, and for the response to a heartbeat or a LeaveGroup. ``parked_timeout_ms`` is the time limit for the
        response to a join or a sync, which a broker parks."""
        finder = CoordinatorFinder(bootstrap_servers, client_id, security)
        self._immediate = _CoordinatorConnections(finder, request_timeout_ms, request_timeout_ms, is_parked=False)
        self._parked = _CoordinatorConnections(finder, request_timeout_ms, parked_timeout_ms, is_parked=True)
        self._closed = False

    async def ask(self, request: Request) -> Response:
        """Send ``request`` and wait for its response; several requests may be outstanding. When there is no
        coordinator, or the coordinator has moved or is loading, a response with the error code is returned. If the
        caller is cancelled, the request may still have its effect.

        :raises WorldError: when no broker responds, the coordinator cannot be reached or does not respond in time, the
            connection broke, or :meth:`close` was called. The next request of the same kind then searches for the
            coordinator again.
        """
        if self._closed:
            raise WorldError(f"this worker has closed its connections to the coordinator of group {request.group_id}")
        match request:
            case HeartbeatRequest():
                answer = await self._immediate.ask(HEARTBEAT, request.group_id, _member_identity_values(request))
                return HeartbeatResponse(error=_error_code_in_response(answer))
            case JoinRequest():
                answer = await self._parked.ask(JOIN_GROUP, request.group_id, _join_request_values(request))
                return _to_join_response(answer)
            case SyncRequest():
                answer = await self._parked.ask(SYNC_GROUP, request.group_id, _sync_request_values(request))
                if isinstance(answer, ErrorCode):
                    return SyncResponse(error=answer)
                return SyncResponse(error=answer.error_code, assignment=answer.assignment)
            case LeaveRequest():
                answer = await self._immediate.ask(LEAVE_GROUP, request.group_id, _leave_request_values(request))
                return LeaveResponse(error=error_code_in_leave_response(answer))

    async def close(self) -> None:
        """Close all connections; outstanding and later requests raise WorldError. Safe to call twice."""
        self._closed = True
        self._immediate.close()
        self._parked.close()
        await asyncio.sleep(0)


class _CoordinatorConnections:
    """The connections to the coordinator for one kind of request: for the requests to which the coordinator responds
    immediately, or for those that it parks. New requests use the current connection, which is opened when it is needed.
    When there is no coordinator, :meth:`ask` returns the error code of FindCoordinator instead of a response."""

    def __init__(
        self, finder: CoordinatorFinder, open_timeout_ms: int, response_timeout_ms: int, *, is_parked: bool
    ) -> None:
        """``open_timeout_ms`` is the time limit for each attempt to find the coordinator, and for opening a connection;
        ``response_timeout_ms`` is that for a response. ``is_parked``: whether the coordinator may park these requests,
        so that each needs a connection without another outstanding request."""
        self._finder = finder
        self._open_timeout_s = open_timeout_ms / 1000
        self._response_timeout_s = response_timeout_ms / 1000
        self._is_parked = is_parked
        self._opening = asyncio.Lock()
        """Held while a connection is chosen or opened, so that concurrent requests do not open several."""
        self._current: BrokerConnection | None = None
        """The connection for the next request; None: the next request opens one."""
        self._connections: set[BrokerConnection] = set()
        """``_current``, and former connections with outstanding requests."""

    async def ask(self, api: ApiVersionRange, group_id: GroupId, values: Values) -> Any:
        """Send a request and wait for the response. Returns kio's response entity; or the error code of FindCoordinator
        when there is no coordinator yet.

        :raises WorldError: when no broker responds, the coordinator cannot be reached or does not respond in time, or
            the connection broke.
        """
        try:
            connection = await self._get_or_open_connection(group_id)
            if isinstance(connection, ErrorCode):
                return connection
            try:
                async with asyncio.timeout(self._response_timeout_s):
                    answer = await connection.ask(api, values)
            except (TimeoutError, WorldError):
                # The responses to later requests on this connection will not arrive either.
                self._close_connection(connection)
                raise
        except TimeoutError:
            raise WorldError(
                f"the coordinator of group {group_id} accepted no connection within {self._open_timeout_s:g} s, or did "
                f"not respond to {api.name} within {self._response_timeout_s:g} s"
            ) from None
        if answer.error_code in MOVED and self._current is connection:
            self._current = None
        self._close_idle_noncurrent_connections()
        return answer

    def close(self) -> None:
        """Close all connections; outstanding requests raise WorldError."""
        for connection in list(self._connections):
            self._close_connection(connection)

    async def _get_or_open_connection(self, group_id: GroupId) -> BrokerConnection | ErrorCode:
        """The current connection if it can take a request, else a new connection to the coordinator; or the error code
        of FindCoordinator when there is no coordinator yet.

        :raises WorldError: when no broker responds, or the coordinator cannot be reached.
        :raises TimeoutError: when opening the connection takes too long.
        """
        async with self._opening:
            current = self._current
            if (
                current is not None
                and not current.is_login_expiring
                and not (self._is_parked and current.has_outstanding_requests)
            ):
                return current
            self._current = None
            self._close_idle_noncurrent_connections()
            coordinator = await self._finder.find(group_id, self._open_timeout_s)
            if isinstance(coordinator, ErrorCode):
                return coordinator
            async with asyncio.timeout(self._open_timeout_s):
                self._current = await self._finder.open_connection(coordinator)
            self._connections.add(self._current)
            return self._current

    def _close_idle_noncurrent_connections(self) -> None:
        """Close the former connections (all but ``_current``) that have no outstanding request."""
        for connection in list(self._connections):
            if connection is not self._current and not connection.has_outstanding_requests:
                self._close_connection(connection)

    def _close_connection(self, connection: BrokerConnection) -> None:
        """Close the connection; no later request uses it."""
        connection.close()
        self._connections.discard(connection)
        if self._current is connection:
            self._current = None


# -- requests and responses, as values without a version ------------------------------------------------------------


def _join_request_values(request: JoinRequest) -> Values:
    """The fields of a JoinGroup request."""
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


def _to_join_response(answer: Any) -> JoinResponse:
    """Convert ``answer``, which is a response to JoinGroup or an error code of FindCoordinator, for the member."""
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
        generation=GenerationId(answer.generation_id),
        protocol=answer.protocol_name or "",
        leader=MemberId(answer.leader),
        member_id=MemberId(answer.member_id),
        metadata_by_member=members if leads else None,
        instance_id_by_member=instance_ids,
        # Before version 9 the response to a leader that rejoined names its former id as the leader, so that the member
        # computes no assignments.
        skip_assignment=getattr(answer, "skip_assignment", False),
    )


def _sync_request_values(request: SyncRequest) -> Values:
    """The fields of a SyncGroup request."""
    return {
        **_member_identity_values(request),
        "protocol_type": request.protocol_type,
        "protocol_name": request.protocol,
        "assignments": tuple({"member_id": id_, "assignment": bytes_} for id_, bytes_ in request.assignments),
    }


def _member_identity_values(request: HeartbeatRequest | SyncRequest) -> Values:
    """The fields that identify a member of a generation. A Heartbeat request consists of them, and a SyncGroup request
    contains them."""
    return {
        "group_id": request.group_id,
        "generation_id": request.generation,
        "member_id": request.member_id,
        "group_instance_id": request.instance_id,
    }


def _leave_request_values(request: LeaveRequest) -> Values:
    """The fields of a LeaveGroup request for one member."""
    leaving = {
        "member_id": request.member_id,
        "group_instance_id": request.instance_id,
        "reason": request.reason or None,
    }
    return {"group_id": request.group_id, "members": (leaving,)}


def error_code_in_leave_response(answer: Any) -> ErrorCode:
    """The error code in ``answer``, a response to LeaveGroup for one member: that of the whole request or, if this is
    NONE, that of the member. An error code of FindCoordinator is returned unchanged."""
    error = _error_code_in_response(answer)
    if error == ErrorCode.none and answer.members:
        error = answer.members[0].error_code
    return error


def _error_code_in_response(answer: Any) -> ErrorCode:
    """The error code in ``answer``, a response; an error code of FindCoordinator is returned unchanged."""
    error: ErrorCode = answer if isinstance(answer, ErrorCode) else answer.error_code
    return error
