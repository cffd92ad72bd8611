"""Records the longest time between two consecutive requests of each member. If it is large, probably the event loop of
the member's worker has stalled."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from coterie.nouns.ids import GroupId, MemberId

_MEMBERS_MAX = 10_000
"""The maximum number of members in the statistics. Members stay there after they have left; at this number, the member
that was added first is removed for a new one."""


@dataclass(slots=True, kw_only=True)
class _MemberRequestStats:
    """The number of heartbeats of one member, and the longest time between two of its requests. ``gap_began_at_ms`` is
    None before the member's first request and after it has left: the time until its next request is no gap."""

    gap_began_at_ms: int | None
    """When the current gap began: at the member's last request, or at the response to its last JoinGroup or SyncGroup.
    None: the next request begins a gap."""
    heartbeat_count: int = 0
    """The number of Heartbeat requests."""
    largest_gap_ms: int = 0
    """The longest time between two consecutive requests of the member."""


class MemberRequestGaps:
    """For each of the last `_MEMBERS_MAX` members, since the start of the broker: the number of Heartbeat requests, and
    the longest time between two consecutive requests. The caller must report the Heartbeat, JoinGroup and SyncGroup
    requests of members only, not those of other senders: any client can send any number of names of any length.

    After a JoinGroup or SyncGroup the time is counted from its response: while such a request waits in the broker, a
    client of Kafka sends no heartbeats. The time after a LeaveGroup request with the member's id does not count.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        """``now_ms`` is the broker's steady clock."""
        self._now_ms = now_ms
        self._stats_by_member: dict[tuple[GroupId, MemberId], _MemberRequestStats] = {}

    def observe_request(self, group_id: GroupId, member_id: MemberId, *, is_heartbeat: bool) -> None:
        """Record that a Heartbeat, JoinGroup or SyncGroup request of the member has arrived now."""
        now_ms = self._now_ms()
        times = self._find_or_add_member_stats(group_id, member_id)
        if times.gap_began_at_ms is not None:
            times.largest_gap_ms = max(times.largest_gap_ms, now_ms - times.gap_began_at_ms)
        times.gap_began_at_ms = now_ms
        times.heartbeat_count += is_heartbeat

    def observe_response(self, group_id: GroupId, member_id: MemberId) -> None:
        """Record that the response to the member's JoinGroup or SyncGroup is sent now."""
        self._find_or_add_member_stats(group_id, member_id).gap_began_at_ms = self._now_ms()

    def pause_gap_at_leave(self, group_id: GroupId, member_id: MemberId) -> None:
        """Record that the member leaves: the time until its next request does not count."""
        times = self._stats_by_member.get((group_id, member_id))
        if times is not None:
            times.gap_began_at_ms = None

    def stats(self) -> Mapping[str, Mapping[str, Mapping[str, int]]]:
        """``{group id: {member id: {"heartbeats": number, "largest_gap_ms": milliseconds}}}``, sorted. Members that
        have left are included."""
        groups: dict[str, dict[str, Mapping[str, int]]] = {}
        for (group_id, member_id), times in sorted(self._stats_by_member.items()):
            groups.setdefault(group_id, {})[member_id] = {
                "heartbeats": times.heartbeat_count,
                "largest_gap_ms": times.largest_gap_ms,
            }
        return groups

    def _find_or_add_member_stats(self, group_id: GroupId, member_id: MemberId) -> _MemberRequestStats:
        """The member's statistics, which are added if there are none. If there are `_MEMBERS_MAX` members already,
        those of the member that was added first are dropped."""
        key = (group_id, member_id)
        times = self._stats_by_member.get(key)
        if times is None:
            if len(self._stats_by_member) >= _MEMBERS_MAX:
                del self._stats_by_member[next(iter(self._stats_by_member))]
            times = self._stats_by_member[key] = _MemberRequestStats(gap_began_at_ms=None)
        return times
