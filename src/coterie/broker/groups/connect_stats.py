"""Statistics of the connect groups of a broker, counted from the steps of their machines since the broker's start."""

from collections import Counter
from collections.abc import Mapping, Sequence

from coterie.groups.connect.messages import (
    NO_EPOCH,
    ComputationTimeoutTimer,
    ConnectionGraceTimer,
    CurrentAssignment,
    CurrentAssignmentRemoved,
    Event,
    GroupRecord,
    Heartbeat,
    InstallAssignment,
    MemberRemoved,
    Record,
    RemoveMember,
    Response,
    RevocationTimer,
    SessionTimer,
    TargetComputed,
)
from coterie.groups.effects import TimerFired
from coterie.nouns.connect_error_codes import ConnectErrorCode
from coterie.nouns.connect_groups import JOIN_EPOCH
from coterie.nouns.ids import GroupId, MemberId

_REMOVAL_REASON_BY_TIMER = {
    SessionTimer: "session timeout",
    RevocationTimer: "rebalance timeout",
    ConnectionGraceTimer: "closed connection",
}
"""The reason why a member was removed, by the class of the timer that fired."""


class ConnectGroupStats:
    """Counts computations of target assignments, their errors, refused requests and removed members of all connect
    groups, and measures how long members take to give back revoked jobs."""

    def __init__(self) -> None:
        self._computations = 0
        """The number of computations that had a target as their result."""
        self._computation_errors = 0
        """The number of computations that failed, or could not begin because no member can compute."""
        self._refusals: Counter[str] = Counter()
        """The number of refused requests, by the name of the error code."""
        self._removals: Counter[str] = Counter()
        """The number of removed members, by reason."""
        self._revoked_at_ms: dict[tuple[GroupId, MemberId], int] = {}
        """For each member that must still give back jobs: when the first of these jobs was revoked."""
        self._revocations = 0
        """The number of finished revocations: a revocation begins when jobs of a member are revoked, and is finished
        when the member has given all of them back."""
        self._revocations_ms = 0
        """The duration of all finished revocations together."""
        self._longest_revocation_ms = 0

    def observe_step(
        self, group_id: GroupId, event: Event, records: Sequence[Record], before: GroupRecord | None, now_ms: int
    ) -> None:
        """Count the computations, errors, removals and revocations among the ``records`` that the group's machine has
        written for ``event``. ``before`` is the group's metadata record before the step; None if there was none."""
        last_epoch, last_error = (
            (NO_EPOCH, "") if before is None else (before.assignment_epoch, before.assignment_error)
        )
        for record in records:
            match record:
                case GroupRecord():
                    if record.assignment_epoch > last_epoch:
                        self._computations += 1
                        last_error = ""  # an error in this record is of the next computation
                    if record.assignment_error and (
                        record.assignment_error != last_error or _may_end_computation(event)
                    ):
                        self._computation_errors += 1
                case MemberRemoved():
                    self._removals[_removal_reason(event)] += 1
                case CurrentAssignment(member_id=member_id, pending=pending):
                    if pending:
                        self._revoked_at_ms.setdefault((group_id, member_id), now_ms)
                    else:
                        self._record_revocation_end_if_any(group_id, member_id, now_ms)
                case CurrentAssignmentRemoved(member_id=member_id):
                    self._revoked_at_ms.pop((group_id, member_id), None)
                case _:
                    pass

    def observe_response(self, response: Response) -> None:
        """Count ``response`` if it refuses a request. COMPUTE_ASSIGNMENT, the order to compute a target, is an error
        code but no refusal."""
        if response.error not in (ConnectErrorCode.NONE, ConnectErrorCode.COMPUTE_ASSIGNMENT):
            self._refusals[response.error.name] += 1

    def stats(self, groups_by_state: Mapping[str, int]) -> Mapping[str, object]:
        """The statistics as JSON values: ``groups_by_state``, the present number of groups in each state; and since the
        broker's start the numbers of computations with a result and with an error, of refused requests by error code,
        and of removed members by reason; and the number, the total duration and the longest duration, in ms, of the
        finished revocations."""
        return {
            "groups": dict(groups_by_state),
            "computations": self._computations,
            "computation_errors": self._computation_errors,
            "refusals": dict(sorted(self._refusals.items())),
            "removals": dict(sorted(self._removals.items())),
            "revocations": {
                "count": self._revocations,
                "total_ms": self._revocations_ms,
                "longest_ms": self._longest_revocation_ms,
            },
        }

    def _record_revocation_end_if_any(self, group_id: GroupId, member_id: MemberId, now_ms: int) -> None:
        """Called when the member has no revoked job left to give back: if it had any, count one finished revocation and
        its duration."""
        since_ms = self._revoked_at_ms.pop((group_id, member_id), None)
        if since_ms is not None:
            self._revocations += 1
            self._revocations_ms += now_ms - since_ms
            self._longest_revocation_ms = max(self._longest_revocation_ms, now_ms - since_ms)


def _may_end_computation(event: Event) -> bool:
    """Whether ``event`` can end a computation of a target assignment: with a result, an error, or the timeout."""
    match event:
        case TargetComputed() | InstallAssignment() | TimerFired(key=ComputationTimeoutTimer()):
            return True
        case _:
            return False


def _removal_reason(event: Event) -> str:
    """The reason for which ``event`` has removed a member, as the statistics name it; ``other`` if it has no name."""
    match event:
        case TimerFired(key=key):
            return _REMOVAL_REASON_BY_TIMER.get(type(key), "other")
        case RemoveMember():
            return "operator"
        case Heartbeat(member_epoch=epoch):
            return "left" if epoch < JOIN_EPOCH else "replaced"
        case _:
            return "other"
