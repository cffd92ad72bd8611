"""A group without members: it can be deleted, and it expires."""

from coterie.groups.connect.departures import forget_departed_member
from coterie.groups.connect.messages import (
    ComputationTimeoutTimer,
    ConfigsRemoved,
    ConfiguredJobsRemoved,
    DeleteGroup,
    EmptyGroupExpiryTimer,
    ErrorOnlyResponse,
    GroupRemoved,
    NextComputationTimer,
)
from coterie.groups.connect.refusal import ConnectRefusal
from coterie.groups.connect.turn import Turn
from coterie.nouns.connect_error_codes import ConnectErrorCode


def schedule_or_cancel_group_expiry(turn: Turn) -> None:
    """Set the timer of the group's expiry while the group has no members, and cancel it otherwise. After a reload the
    retention time begins again. Called at the end of each step that has written a record, and after a load."""
    group = turn.group
    if group.metadata is None or group.members:
        turn.cancel_timer(EmptyGroupExpiryTimer())
    elif EmptyGroupExpiryTimer() not in group.deadlines:
        turn.set_timer(EmptyGroupExpiryTimer(), turn.now_ms + group.settings.empty_group_retention_ms)


def delete_group(turn: Turn, request: DeleteGroup) -> None:
    """Delete the group and its configs.

    :raises ConnectRefusal: GROUP_ID_NOT_FOUND, when the group has neither a group record nor configs; NON_EMPTY_GROUP,
        when it has members, or jobs may still run on a departed member.
    """
    group = turn.group
    if group.is_nonexistent:
        raise ConnectRefusal(ConnectErrorCode.GROUP_ID_NOT_FOUND, f"there is no connect group {group.group_id}")
    if group.members:
        raise ConnectRefusal(
            ConnectErrorCode.NON_EMPTY_GROUP,
            f"group {group.group_id} has {len(group.members)} members; only a group without members can be deleted",
        )
    held_until_ms = max((one.held_until_ms for one in group.departed.values() if one.held), default=0)
    if held_until_ms:
        raise ConnectRefusal(
            ConnectErrorCode.NON_EMPTY_GROUP,
            f"jobs may still run on a member that was removed from group {group.group_id} (by an operator, or because "
            f"it gave back revoked jobs too late); try again in {max(0, held_until_ms - turn.now_ms)} ms",
        )
    remove_empty_group(turn, with_configs=True)
    turn.reply(request.reply_to, ErrorOnlyResponse())


def remove_empty_group(turn: Turn, *, with_configs: bool) -> None:
    """Remove the records of a group without members. Its configs are removed only ``with_configs``, when an operator
    deletes the group; they stay when the group expires, because an operator may set them before a worker joins."""
    group = turn.group
    for member_id in sorted(group.departed):
        forget_departed_member(turn, member_id)
    if group.configured is not None:
        turn.write(ConfiguredJobsRemoved())
    if with_configs and group.configs:
        turn.write(ConfigsRemoved())
    if group.metadata is not None:
        turn.write(GroupRemoved())
    turn.cancel_timer(NextComputationTimer())
    turn.cancel_timer(ComputationTimeoutTimer())
    group.forget_computations()
