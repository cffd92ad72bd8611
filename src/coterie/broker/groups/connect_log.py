"""Log messages for operators about connect groups: why a member was removed, and why no target assignment
could be computed. The descriptions of the groups (ConnectGroupDescribe) contain both, too."""

import logging

from coterie.groups.connect.messages import ConnectOutput, Event, GroupRecord, Heartbeat, MemberDeparted
from coterie.nouns.ids import GroupId

logger = logging.getLogger(__name__)


def log_removals_and_errors(group_id: GroupId, event: Event, output: ConnectOutput, before: GroupRecord | None) -> None:
    """Log, from the ``output`` of the step for ``event``: each removal of a member; and an error of a computation,
    unless ``before`` has the same error. ``before`` is the group's metadata record before the step; None if there was
    none. A removal by a Heartbeat request, with which the member leaves, is logged at level INFO, all else as a
    warning."""
    for removal in output.removals:
        # An operator need not act when a member leaves by its request.
        level = logging.INFO if isinstance(event, Heartbeat) else logging.WARNING
        logger.log(
            level,
            "Group %s: the member %s (%s) was removed: %s. %s",
            group_id,
            removal.member_id,
            removal.url,
            removal.reason,
            _describe_effect_on_jobs(removal.departed),
        )
    for record in output.records:
        match record:
            case GroupRecord(assignment_error=error) if error and error != (before and before.assignment_error):
                logger.warning(
                    "Group %s: no target assignment was computed, the assignments stay as they are; will retry: %s",
                    group_id,
                    error,
                )
            case _:
                pass


def _describe_effect_on_jobs(departed: MemberDeparted | None) -> str:
    """A sentence for the log: what becomes of the jobs of a member that was removed. If some jobs may still run on the
    member's worker, the sentence is about these only. ``departed`` is None if no job is deferred for the member, and
    none may still run on its worker."""
    if departed is None:
        return "No job waits for the member's return"
    if departed.held:
        return (
            f"{len(departed.held)} jobs may still run on the worker of this member, so they start on no other worker "
            "before the end of the member's session"
        )
    return (
        f"{len(departed.jobs)} jobs wait for the member's return, at most for the scheduled rebalance delay, or move "
        "to other workers"
    )
