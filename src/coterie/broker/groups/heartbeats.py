"""The longest time between two requests of each member; a large value means that the worker's event loop stalls."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from coterie.nouns.ids import GroupId, MemberId

_MEMBERS_MAX = 10_000
"""Members stay in the statistics after they left; beyond this number, the member that was added first is removed."""


@dataclass(slots=True, kw_only=True)
class _Heard:
    at_ms: int | None
    heartbeats: int = 0
    largest_gap_ms: int = 0


class HeartbeatGaps:
    """The largest time between two requests, for each member. Senders that are no members are not counted: any client
    can send any number of names of any length.

    All requests of a member count. While its JoinGroup or SyncGroup is parked it cannot send heartbeats, so its time
    starts at the response. The time after it left does not count.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._heard: dict[tuple[GroupId, MemberId], _Heard] = {}

    def asked(self, group_id: GroupId, member_id: MemberId, *, is_heartbeat: bool) -> None:
        """The member sent a request."""
        now_ms = self._now_ms()
        heard = self._of(group_id, member_id)
        if heard.at_ms is not None:
            heard.largest_gap_ms = max(heard.largest_gap_ms, now_ms - heard.at_ms)
        heard.at_ms = now_ms
        heard.heartbeats += is_heartbeat

    def answered(self, group_id: GroupId, member_id: MemberId) -> None:
        """The member's JoinGroup or SyncGroup got its response."""
        self._of(group_id, member_id).at_ms = self._now_ms()

    def left(self, group_id: GroupId, member_id: MemberId) -> None:
        heard = self._heard.get((group_id, member_id))
        if heard is not None:
            heard.at_ms = None

    def stats(self) -> Mapping[str, Mapping[str, Mapping[str, int]]]:
        """``{group: {member: {"heartbeats": number, "largest_gap_ms": milliseconds}}}``."""
        groups: dict[str, dict[str, Mapping[str, int]]] = {}
        for (group_id, member_id), heard in sorted(self._heard.items()):
            groups.setdefault(group_id, {})[member_id] = {
                "heartbeats": heard.heartbeats,
                "largest_gap_ms": heard.largest_gap_ms,
            }
        return groups

    def _of(self, group_id: GroupId, member_id: MemberId) -> _Heard:
        key = (group_id, member_id)
        heard = self._heard.get(key)
        if heard is None:
            if len(self._heard) >= _MEMBERS_MAX:
                del self._heard[next(iter(self._heard))]
            heard = self._heard[key] = _Heard(at_ms=None)
        return heard
