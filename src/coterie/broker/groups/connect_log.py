"""Log messages for operators about connect groups: why a member was removed, and why no target assignment
could be computed. The descriptions of the groups (ConnectGroupDescribe) contain both, too."""

import logging

from coterie.groups.connect.messages import ConnectOutput, Event, GroupRecord, Heartbeat, MemberDeparted, Removal
from coterie.nouns.connect_groups import LEAVE_BRIEFLY_EPOCH, LEAVE_EPOCH
from coterie.nouns.ids import GroupId
from coterie.nouns.text import count_text

logger = logging.getLogger(__name__)


def log_member_removals_and_computation_errors(
    group_id: GroupId, event: Event, output: ConnectOutput, before: GroupRecord | None
) -> None:
    """Log, from the ``output`` of the step for ``event``: each removal of a member; and an error of a computation,
    unless ``before`` has the same error. ``before`` is the group's metadata record before the step; None if there was
    none. A removal by a Heartbeat request, with which the member leaves, is logged at level INFO, all else as a
    warning."""
    for removal in output.removals:
        # An operator need not act when a member leaves by its request.
        level = logging.INFO if isinstance(event, Heartbeat) else logging.WARNING
        logger.log(
            level,
            "Group %s: the member %s (%s) %s. %s",
            group_id,
            removal.member_id,
            removal.url,
            _describe_removal(event, removal),
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


def _describe_removal(event: Event, removal: Removal) -> str:
    """The predicate of a sentence for the log: by which request a member has left, or why it was removed."""
    match event:
        case Heartbeat(member_id=removal.member_id, member_epoch=member_epoch) if member_epoch == LEAVE_EPOCH:
            return "has left the group permanently: its worker was drained"
        case Heartbeat(member_id=removal.member_id, member_epoch=member_epoch) if member_epoch == LEAVE_BRIEFLY_EPOCH:
            return "has left the group and may return: its worker has stopped"
        case _:
            return f"was removed: {removal.reason}"


def _describe_effect_on_jobs(departed: MemberDeparted | None) -> str:
    """A sentence for the log: what becomes of the jobs of a member that was removed. If some jobs may still run on the
    member's worker, the sentence is about these only. ``departed`` is None if no job is deferred for the member, and
    none may still run on its worker."""
    if departed is None:
        return "No job waits for the member's return"
    if departed.held:
        return (
            f"{count_text(len(departed.held), 'job')} may still run on the worker of this member, and no other worker "
            "starts them before the end of the member's session"
        )
    return (
        f"{count_text(len(departed.jobs), 'job')} {'waits' if len(departed.jobs) == 1 else 'wait'} for the member's "
        "return, for at most scheduled.rebalance.max.delay.ms, and then can move to other workers"
    )
