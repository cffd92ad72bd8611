"""ConnectGroupDescribe and ListGroups: a group's state for clients that are not its members."""

from coterie.groups.connect.assignor_choice import common_client_assignor, most_named_server_assignor_or_default
from coterie.groups.connect.messages import (
    NO_MEMBER,
    DescribedDepartedMember,
    DescribedMember,
    DescribeGroup,
    DescribeGroupResponse,
)
from coterie.groups.connect.refusal import ConnectRefusal
from coterie.groups.connect.state import Group
from coterie.groups.connect.turn import Turn
from coterie.nouns.connect_error_codes import ConnectErrorCode
from coterie.nouns.connect_groups import JOIN_EPOCH
from coterie.nouns.ids import MemberId
from coterie.nouns.jobs import Job, Jobs
from coterie.nouns.member_state import MemberState


def on_describe_group(turn: Turn, request: DescribeGroup) -> None:
    """Reply with the group's state, and with its members if the request asks for them.

    :raises ConnectRefusal: INVALID_REQUEST, for an empty group id; GROUP_ID_NOT_FOUND, when the group does not exist.
    """
    group = turn.group
    if not group.group_id:
        raise ConnectRefusal(ConnectErrorCode.INVALID_REQUEST, "the request has an empty group id")
    metadata = group.metadata
    if metadata is None:
        raise ConnectRefusal(ConnectErrorCode.GROUP_ID_NOT_FOUND, f"there is no connect group {group.group_id}")
    members = group.members_in_joining_order()
    response = DescribeGroupResponse(
        state=group.group_state(),
        group_epoch=group.group_epoch,
        assignment_epoch=group.assignment_epoch,
        assignor=common_client_assignor(members) or most_named_server_assignor_or_default(members),
        computing_member=group.computing_member_id or NO_MEMBER,
        assignment_error=metadata.assignment_error,
        leader=group.leader or NO_MEMBER,
        leader_epoch=group.leader_epoch,
        config_offset=group.config_offset,
        members=tuple(describe_member(group, one.member_id) for one in members) if request.includes_members else (),
        departed_members=describe_all_departed_members(group, turn.now_ms) if request.includes_members else (),
        unplaceable=metadata.unplaceable,
        configs=group.configs,
        effective_configs=group.settings.configs(),
    )
    turn.reply(request.reply_to, response)


def describe_member(group: Group, member_id: MemberId) -> DescribedMember:
    """The member in a ConnectGroupDescribe response: its metadata, its state, its jobs, and on which other members,
    also departed ones, jobs of its target may still run."""
    current, target = group.currents[member_id], group.targets[member_id].target.jobs
    awaited: dict[MemberId, list[Job]] = {}
    for job in target - current.assigned:
        holder = group.holder.get(job)
        if holder not in (None, member_id):
            awaited.setdefault(holder, []).append(job)
    return DescribedMember(
        metadata=group.members[member_id],
        member_epoch=current.member_epoch,
        state=member_state(group, member_id),
        config_offset=group.sessions[member_id].config_offset,
        assigned=current.assigned,
        pending=current.pending,
        target=target,
        awaited_jobs_by_holder={holder: Jobs.of(jobs) for holder, jobs in sorted(awaited.items())},
    )


def member_state(group: Group, member_id: MemberId) -> MemberState:
    """How far the member is in the rebalance: UNJOINED while it has left for a short time (LEAVE_BRIEFLY_EPOCH),
    PREPARING_REBALANCE before its first target and while it has jobs to give back, COMPLETING_REBALANCE while it waits
    for jobs of its target, otherwise STABLE."""
    current = group.currents[member_id]
    if current.member_epoch < JOIN_EPOCH:
        return MemberState.UNJOINED
    if (
        current.member_epoch == JOIN_EPOCH
        or current.pending
        or not current.assigned <= group.targets[member_id].target.jobs
    ):
        return MemberState.PREPARING_REBALANCE
    if current.assigned != group.targets[member_id].target.jobs:
        return MemberState.COMPLETING_REBALANCE
    return MemberState.STABLE


def describe_all_departed_members(group: Group, now_ms: int) -> tuple[DescribedDepartedMember, ...]:
    """All departed members in a ConnectGroupDescribe response, sorted by member id; the times that are left count from
    ``now_ms``."""
    return tuple(
        DescribedDepartedMember(
            departed_member=one,
            delay_left_ms=None if one.deadline_ms is None else max(0, one.deadline_ms - now_ms),
            held_jobs_left_ms=max(0, one.held_until_ms - now_ms) if one.held else 0,
        )
        for _, one in sorted(group.departed.items())
    )
