"""Finds a connect group's coordinator among the brokers and sends it the requests of one member.

All requests of the member are sent on one connection, also while others are outstanding: a broker that holds the
response to a heartbeat sends it when the next request arrives on the same connection. If the response to a request does
not arrive within its time limit, the connection is closed, because no later response on it arrives either; the next
request opens another one. So when a connection fails, at least one request fails with it; after a failed request, the
member's next heartbeat contains all fields.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from coterie.config.security import KafkaSecurity
from coterie.kafka.connect_group_values import (
    heartbeat_request_values,
    install_assignment_request_values,
    prepare_assignment_request_values,
    to_connect_error_code_or_unknown,
    to_group_description_response,
    to_heartbeat_response,
    to_install_assignment_response,
    to_prepare_assignment_response,
)
from coterie.kafka.connection import (
    CONNECT_GROUP_DESCRIBE,
    CONNECT_GROUP_HEARTBEAT,
    CONNECT_GROUP_INSTALL_ASSIGNMENT,
    CONNECT_GROUP_PREPARE_ASSIGNMENT,
    ApiVersionRange,
    BrokerConnection,
    NoValidResponseError,
    UnsupportedApiError,
)
from coterie.kafka.coordinator_finder import MOVED, CoordinatorFinder
from coterie.kafka.security import PLAINTEXT
from coterie.member.connect.messages import (
    GroupDescriptionRequest,
    GroupDescriptionResponse,
    HeartbeatRequest,
    InstallAssignmentRequest,
    PrepareAssignmentRequest,
    Request,
    Response,
)
from coterie.nouns.connect_error_codes import ConnectErrorCode
from coterie.nouns.connect_groups import HeartbeatResponse, InstallAssignmentResponse, PrepareAssignmentResponse
from coterie.nouns.errors import WireError, WorldError
from coterie.nouns.ids import GroupId
from coterie.wire.errors import ErrorCode
from coterie.wire.kio_entities import Values

_MOVED = frozenset(int(error) for error in MOVED)


class KafkaConnectCoordinatorClient:
    """Sends a member's requests to the coordinator of its connect group over TCP (the seam
    `member.seams.CoordinatorClient`). Sends each request once: the member decides whether and when to retry. An error
    code of a broker is returned in the response; a request without a response raises WorldError."""

    def __init__(
        self,
        bootstrap_servers: Sequence[str],
        *,
        client_id: str,
        request_timeout_ms: int,
        security: KafkaSecurity = PLAINTEXT,
    ) -> None:
        """``request_timeout_ms`` is the time limit for each attempt to find the coordinator, and for opening a
        connection to it. Each request has the time limit of its response (``response_timeout_ms``)."""
        self._finder = CoordinatorFinder(bootstrap_servers, client_id, security)
        self._open_timeout_s = request_timeout_ms / 1000
        self._opening = asyncio.Lock()
        """Held while a connection is opened, so that concurrent requests use the same one, in their order."""
        self._connection: BrokerConnection | None = None
        self._is_closed = False

    async def ask(self, request: Request) -> Response:
        """Send ``request`` and wait for its response; several requests may be outstanding. When there is no
        coordinator, the coordinator has moved or is loading, or the broker does not serve connect groups, a response
        with the error code is returned.

        :raises WorldError: when no broker responds, the coordinator cannot be reached or does not respond in time, the
            response is not valid, the connection broke or its login expires, or :meth:`close` was called. The next
            request then searches for the coordinator again.
        """
        try:
            match request:
                case HeartbeatRequest():
                    return await self._ask_coordinator(
                        CONNECT_GROUP_HEARTBEAT, request, heartbeat_request_values(request), to_heartbeat_response
                    )
                case PrepareAssignmentRequest():
                    values = prepare_assignment_request_values(request)
                    return await self._ask_coordinator(
                        CONNECT_GROUP_PREPARE_ASSIGNMENT, request, values, to_prepare_assignment_response
                    )
                case InstallAssignmentRequest():
                    values = install_assignment_request_values(request)
                    return await self._ask_coordinator(
                        CONNECT_GROUP_INSTALL_ASSIGNMENT, request, values, to_install_assignment_response
                    )
                case GroupDescriptionRequest():
                    values = {"group_ids": (request.group_id,), "include_authorized_operations": False}
                    return await self._ask_coordinator(
                        CONNECT_GROUP_DESCRIBE, request, values, to_group_description_response
                    )
        except UnsupportedApiError as error:
            return _make_error_response(request, ConnectErrorCode.UNSUPPORTED_VERSION, str(error))

    async def close(self) -> None:
        """Close the connection; outstanding and later requests raise WorldError. Safe to call twice."""
        self._is_closed = True
        self._close_connection(self._connection)
        await asyncio.sleep(0)

    async def _ask_coordinator(
        self, api: ApiVersionRange, request: Request, values: Values, to_response: Callable[[Any], Response]
    ) -> Response:
        """Send a request and return its response. If FindCoordinator returns an error code, no request is sent, and the
        response has that code.

        :raises UnsupportedApiError: when the coordinator does not serve connect groups.
        :raises WorldError: as :meth:`ask`.
        """
        connection = await self._get_or_open_connection(request.group_id)
        if isinstance(connection, ErrorCode):
            return _make_error_response(
                request,
                to_connect_error_code_or_unknown(connection),
                f"no coordinator of group {request.group_id} was found: {connection.name}",
            )
        try:
            async with asyncio.timeout(request.response_timeout_ms / 1000):
                entity = await connection.ask(api, values)
            response = to_response(entity)
        except TimeoutError:
            self._close_connection(connection)
            raise WorldError(
                f"the coordinator of group {request.group_id} did not respond to {api.name} within "
                f"{request.response_timeout_ms} ms"
            ) from None
        except (WireError, ValueError) as error:
            self._close_connection(connection)
            raise NoValidResponseError(
                f"the response of the coordinator of group {request.group_id} to {api.name} is not valid: {error}"
            ) from error
        except WorldError:
            self._close_connection(connection)
            raise
        if response.error in _MOVED:
            self._close_connection(connection)
        return response

    async def _get_or_open_connection(self, group_id: GroupId) -> BrokerConnection | ErrorCode:
        """The connection, which is opened if there is none; or the error code of FindCoordinator when there is no
        coordinator yet.

        :raises WorldError: when no broker responds, the coordinator cannot be reached, the login on the connection
            expires, or :meth:`close` was called.
        """
        async with self._opening:
            if self._is_closed:
                raise WorldError(f"this worker has closed its connection to the coordinator of group {group_id}")
            current = self._connection
            if current is not None and not current.is_login_expiring:
                return current
            if current is not None:
                # The request fails, because the first one on a new connection has to contain all fields.
                self._close_connection(current)
                raise WorldError(
                    "the SASL login of the connection to the group's coordinator expires soon; this worker closes the "
                    "connection, and logs in again on a new connection"
                )
            coordinator = await self._finder.find(group_id, self._open_timeout_s)
            if isinstance(coordinator, ErrorCode):
                return coordinator
            try:
                async with asyncio.timeout(self._open_timeout_s):
                    opened = await self._finder.open_connection(coordinator)
            except TimeoutError:
                raise WorldError(
                    f"the coordinator of group {group_id} at {coordinator} accepted no connection within "
                    f"{self._open_timeout_s:g} s"
                ) from None
            if self._is_closed:
                opened.close()
                raise WorldError(f"this worker has closed its connection to the coordinator of group {group_id}")
            self._connection = opened
            return opened

    def _close_connection(self, connection: BrokerConnection | None) -> None:
        """Close ``connection``, so that no later request uses it. Does nothing for None."""
        if connection is not None:
            connection.close()
            if self._connection is connection:
                self._connection = None


def _make_error_response(request: Request, error: ConnectErrorCode, message: str) -> Response:
    """A response to ``request`` that the coordinator itself has not sent: with this error and message, and without
    other content."""
    match request:
        case HeartbeatRequest():
            return HeartbeatResponse(error=error, message=message)
        case PrepareAssignmentRequest():
            return PrepareAssignmentResponse(error=error, message=message)
        case InstallAssignmentRequest():
            return InstallAssignmentResponse(error=error, message=message)
        case GroupDescriptionRequest():
            return GroupDescriptionResponse(error=error, message=message)
