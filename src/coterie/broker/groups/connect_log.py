"""Writes to the broker's log what operators must know of connect groups: why a member was removed, and why no target
assignment could be computed. The descriptions of the groups contain both, too."""

import logging
from collections.abc import Sequence

from coterie.groups.connect.messages import (
    Event,
    GroupMetadata,
    Heartbeat,
    MemberDeparted,
    MemberRemoved,
    Record,
)
from coterie.nouns.ids import GroupId

logger = logging.getLogger(__name__)


def log_removals_and_errors(
    group_id: GroupId, event: Event, records: Sequence[Record], before: GroupMetadata | None
) -> None:
    """Log each removal of a member, and a new error of a computation, among the ``records`` that the group's machine
    has written for ``event``. ``before`` is the group's metadata record before the step; None if there was none."""
    removed = {record.member_id for record in records if isinstance(record, MemberRemoved)}
    for record in records:
        match record:
            case MemberDeparted(member_id=member_id) if member_id in removed:
                # An operator need not act when a member leaves by its request.
                level = logging.INFO if isinstance(event, Heartbeat) else logging.WARNING
                logger.log(
                    level,
                    "Group %s: the member %s (%s) was removed: %s. %s",
                    group_id,
                    member_id,
                    record.url,
                    record.reason,
                    _describe_effect_on_jobs(record),
                )
            case GroupMetadata(assignment_error=error) if error and error != (before and before.assignment_error):
                logger.warning(
                    "Group %s: no target assignment was computed, the assignments stay as they are; will retry: %s",
                    group_id,
                    error,
                )
            case _:
                pass


def _describe_effect_on_jobs(departed: MemberDeparted) -> str:
    """A sentence for the log: what becomes of the jobs of a member that was removed."""
    if departed.held:
        return (
            f"{len(departed.held)} jobs may still run on the worker of this member, so they start on no other worker "
            "before the end of the member's session"
        )
    return (
        f"{len(departed.jobs)} jobs wait for the member's return, at most for the scheduled rebalance delay, or move "
        "to other workers"
    )
