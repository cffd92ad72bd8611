"""The first step after the replay of a group's records. A crash may have interrupted the records of a step anywhere.
This step completes or undoes such a step before the coordinator sends its first response."""

from dataclasses import replace

from coterie.groups.connect.departures import forget_departed_member
from coterie.groups.connect.messages import (
    CurrentAssignmentRemoved,
    HeldJobsTimer,
    MemberDeparted,
    MemberRemoved,
    RebalanceDelayTimer,
    SessionTimer,
    TargetRemoved,
    TargetWritten,
)
from coterie.groups.connect.revocations import update_revocations_and_timer
from coterie.groups.connect.soft_state import Session
from coterie.groups.connect.state import Group, rebuild_target_owners, share_equal_job_sets
from coterie.groups.connect.turn import Turn
from coterie.nouns.ids import GroupEpoch
from coterie.nouns.jobs import Jobs
from coterie.nouns.target_assignments import TargetOfMember


def on_loaded(turn: Turn) -> None:
    """If the log has only some records of the last step, remove or complete what they describe, and increase the group
    epoch; then set the timers. Each member gets a full session, and a full rebalance timeout if it has jobs to give
    back. A next target that the last one has ordered (`ComputedTarget.next_in_ms`) is due at once."""
    group = turn.group
    # A replayed log may contain targets that were written in part and restored by an earlier load.
    rebuild_target_owners(group)
    last_epoch = greatest_epoch_in_records(group)
    if is_last_step_incomplete(group):
        remove_incomplete_members(turn)
        if has_target_newer_than_group_record(group):
            set_targets_to_current_jobs(turn)
        turn.change_group_record(group_epoch=GroupEpoch(last_epoch + 1))
    share_equal_job_sets(group)
    group.freed.clear()  # no heartbeat is held
    for member_id, current in sorted(group.currents.items()):
        metadata = group.members[member_id]
        ends_at_ms = turn.now_ms + metadata.session_timeout_ms
        group.sessions[member_id] = Session(request_number=current.request_number, ends_at_ms=ends_at_ms)
        turn.set_timer(SessionTimer(member_id=member_id), ends_at_ms)
        update_revocations_and_timer(turn, member_id)
    set_timers_of_departed_members(turn)
    if group.metadata is not None and group.metadata.next_at_ms is not None:
        # Due at once: if the clock was set back, the stored time may be hours away.
        turn.change_group_record(group_epoch=GroupEpoch(last_epoch + 1), next_at_ms=None)


def greatest_epoch_in_records(group: Group) -> GroupEpoch:
    """The greatest epoch in any record: no later step may use it again."""
    epochs = [group.group_epoch, group.assignment_epoch]
    epochs += [one.group_epoch for one in group.members.values()]
    epochs += [one.assignment_epoch for one in group.targets.values()]
    if group.configured is not None:
        epochs.append(group.configured.group_epoch)
    return max(epochs)


def is_last_step_incomplete(group: Group) -> bool:
    """Whether the loaded records show that the last step was written only in part."""
    ids = group.members.keys()
    if ids != group.targets.keys() or ids != group.currents.keys() or ids & group.departed.keys():
        return True
    if group.metadata is None:
        return bool(ids or group.departed or group.configured)
    return (
        greatest_epoch_in_records(group) > group.group_epoch
        or has_target_newer_than_group_record(group)
        or does_current_target_differ_from_configured(group)
    )


def has_target_newer_than_group_record(group: Group) -> bool:
    """Whether the records of a target assignment were written, but not the group record that completes them."""
    return any(one.assignment_epoch > group.assignment_epoch for one in group.targets.values())


def does_current_target_differ_from_configured(group: Group) -> bool:
    """Whether the target assignment belongs to the present group epoch, and its jobs, with the deferred and the
    unplaceable ones, are not exactly the configured jobs."""
    metadata = group.metadata
    if metadata is None or metadata.assignment_epoch < metadata.group_epoch:
        return False
    placed = Jobs.of(group.target_owner)
    for departed in group.departed.values():
        if departed.deadline_ms is not None:
            placed |= departed.jobs
    for unplaceable in metadata.unplaceable:
        placed |= unplaceable.jobs
    configured = group.configured_jobs
    return not (placed <= configured and configured <= placed)


def remove_incomplete_members(turn: Turn) -> None:
    """Remove the records of members that lack one of their three records (metadata, target, current assignment), and
    the records of departed members that are members again."""
    group = turn.group
    complete = group.members.keys() & group.targets.keys() & group.currents.keys()
    for member_id in sorted((group.members.keys() | group.targets.keys() | group.currents.keys()) - complete):
        if member_id in group.members:
            turn.write(MemberRemoved(member_id=member_id))
        if member_id in group.targets:
            turn.write(TargetRemoved(member_id=member_id))
        if member_id in group.currents:
            turn.write(CurrentAssignmentRemoved(member_id=member_id))
    for member_id in sorted(group.departed.keys() & complete):
        forget_departed_member(turn, member_id)
    if group.leader is not None and group.leader not in group.members:
        turn.change_group_record(leader=None)


def set_targets_to_current_jobs(turn: Turn) -> None:
    """Write the present jobs of each member as its target, because the last target was written only in part."""
    group = turn.group
    for member_id, current in sorted(group.currents.items()):
        target = TargetOfMember(jobs=current.assigned)
        if group.targets[member_id].target != target or (
            group.targets[member_id].assignment_epoch > group.assignment_epoch
        ):
            turn.write(TargetWritten(member_id=member_id, assignment_epoch=group.assignment_epoch, target=target))
    rebuild_target_owners(group)


def set_timers_of_departed_members(turn: Turn) -> None:
    """Set the timers of departed members to the times in their records."""
    for member_id, departed in sorted(turn.group.departed.items()):
        current = with_times_of_present_clock(departed, turn.now_ms)
        if current != departed:
            turn.write(current)
        if current.held:
            turn.set_timer(HeldJobsTimer(member_id=member_id), max(turn.now_ms, current.held_until_ms))
        if current.deadline_ms is not None:
            turn.set_timer(RebalanceDelayTimer(member_id=member_id), max(turn.now_ms, current.deadline_ms))


def with_times_of_present_clock(departed: MemberDeparted, now_ms: int) -> MemberDeparted:
    """``departed`` with earlier times if the clock was set back since the member left: the member then left ``now_ms``,
    and each wait is as long as it was at its start. Snapshots and later loads count from these times, too."""
    ahead_ms = departed.left_at_ms - now_ms
    if ahead_ms <= 0:
        return departed
    return replace(
        departed,
        left_at_ms=now_ms,
        held_until_ms=departed.held_until_ms - ahead_ms,
        deadline_ms=None if departed.deadline_ms is None else departed.deadline_ms - ahead_ms,
    )
