"""The data that the coordinator of connect groups needs of one client connection: which heartbeats on it have no
response yet, and which members use it.

A heartbeat is *held* while the broker delays its response until there is something new for the member. Responses are
sent in the order of the requests, so a held heartbeat delays the responses to all later requests on the connection.
Therefore any later request on the connection ends the hold, and a heartbeat that was followed by another request before
it was handled is not held.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import NamedTuple, Protocol, TypeVar

from coterie.groups.connect.messages import ConnectionClosed, Heartbeat, ReleaseHeldResponse
from coterie.groups.connect.state import Group
from coterie.nouns.connect_error_codes import ConnectErrorCode
from coterie.nouns.connect_groups import JOIN_EPOCH, HeartbeatResponse
from coterie.nouns.ids import GroupId, MemberId, ReplyTo

_MEMBERS_MAX = 10_000
"""The maximum number of members that are stored for one connection; at this number, the member that was added first is
dropped. The end of the connection is then not reported for the dropped member: it stays in its group until its session
ends."""
_NUMBERS = count(1)
"""Gives each connection of this process a number."""


T = TypeVar("T")


class CoordinatedGroups(Protocol):
    """The connect groups of which this broker is the coordinator (`connect.ConnectGroups`)."""

    def inspect_group(self, group_id: GroupId, look: Callable[[Group], T]) -> T | None:
        """What ``look`` returns for the group's state, which ``look`` must not change; None if there is no such
        group."""
        ...

    def notify(self, group_id: GroupId, notification: ConnectionClosed | ReleaseHeldResponse) -> None:
        """Let the machine of the group, if the group exists, handle ``notification`` now."""
        ...


class _PendingHeartbeat(NamedTuple):
    """A heartbeat without a response."""

    group_id: GroupId
    member_id: MemberId
    reply_to: ReplyTo


class MemberConnection:
    """One client connection as the coordinator of connect groups sees it: its heartbeats without a response, and the
    members that use it."""

    def __init__(self, groups: CoordinatedGroups | None) -> None:
        """``groups`` is None if the broker does not serve connect groups."""
        self._groups = groups
        self.number = next(_NUMBERS)
        """The number of this connection, unique in this process."""
        self._request_count = 0
        """The number of requests of any API that were read from this connection."""
        self._pending: dict[int, _PendingHeartbeat] = {}
        """The heartbeats without a response, by the number of the request."""
        self._members: dict[tuple[GroupId, MemberId], None] = {}
        """The members whose heartbeats on this connection were accepted, the oldest first."""

    def count_request_and_release_holds(self) -> int:
        """Record that a request of any API was read, and let the groups respond at once to the heartbeats that they
        hold back on this connection. Returns the number of the request."""
        self._request_count += 1
        if self._pending and self._groups is not None:
            for group_id, member_id, reply_to in tuple(self._pending.values()):
                self._groups.notify(group_id, ReleaseHeldResponse(reply_to=reply_to, member_id=member_id))
        return self._request_count

    def record_heartbeat_and_limit_wait(
        self, number: int, group_id: GroupId, request: Heartbeat, *, may_hold: bool
    ) -> Heartbeat:
        """Record that the group's machine receives ``request`` now, the request with this ``number`` on the connection.
        Returns the request to pass to the machine. Its ``max_wait_ms`` is 0, so that its response is not held back, if
        a later request was read meanwhile or ``may_hold`` is False."""
        self._pending[number] = _PendingHeartbeat(group_id, request.member_id, request.reply_to)
        if request.max_wait_ms > 0 and (number < self._request_count or not may_hold):
            return replace(request, max_wait_ms=0)
        return request

    def record_heartbeat_end_and_membership(self, number: int, response: HeartbeatResponse | None) -> None:
        """Record that the heartbeat with this request number was answered; ``response`` is None if the heartbeat gets
        no response. A member belongs to this connection from its first accepted heartbeat until it leaves the group or
        is unknown to the group."""
        ended = self._pending.pop(number, None)
        if ended is None or response is None:
            return
        key = (ended.group_id, ended.member_id)
        if response.error in (ConnectErrorCode.NONE, ConnectErrorCode.COMPUTE_ASSIGNMENT):
            if response.member_epoch < JOIN_EPOCH:
                self._members.pop(key, None)
            elif key not in self._members:
                if len(self._members) >= _MEMBERS_MAX:
                    del self._members[next(iter(self._members))]
                self._members[key] = None
        elif response.error is ConnectErrorCode.UNKNOWN_MEMBER_ID:
            self._members.pop(key, None)

    def held_heartbeat_count(self) -> int:
        """The number of heartbeats on this connection whose responses the groups hold back until there is something new
        for the member."""
        groups = self._groups
        if groups is None:
            return 0
        return sum(
            1
            for group_id, member_id, reply_to in self._pending.values()
            if groups.inspect_group(group_id, lambda group: _is_response_held(group, member_id, reply_to))  # noqa: B023 (called at once)
        )

    def notify_groups_of_close(self) -> None:
        """Must be called when the client has closed the connection in an orderly way. Sends `ConnectionClosed` to the
        group of each member that uses this connection or has a heartbeat without a response on it."""
        if self._groups is None:
            return
        senders = (*self._members, *((one.group_id, one.member_id) for one in self._pending.values()))
        members: dict[GroupId, dict[MemberId, None]] = {}
        for group_id, member_id in senders:
            members.setdefault(group_id, {})[member_id] = None
        for group_id, some in members.items():
            self._groups.notify(group_id, ConnectionClosed(connection_number=self.number, member_ids=tuple(some)))


def _is_response_held(group: Group, member_id: MemberId, reply_to: ReplyTo) -> bool:
    """Whether the group holds back the response to the member's heartbeat ``reply_to`` until there is something new for
    the member."""
    session = group.sessions.get(member_id)
    return session is not None and session.held_heartbeat is not None and session.held_heartbeat.reply_to == reply_to
