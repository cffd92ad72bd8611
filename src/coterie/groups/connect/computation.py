"""The computation of a target assignment: which member computes it, what the assignor receives, and what is installed
(K848C, "Assignment Process").

    NoComputation ── group epoch has risen ──> MemberChosenToCompute ── Prepare ──> MemberComputing ── Install ──┐
       ^  ^                                         │                             │                            │
       │  └──────── the member has gone, was too slow, or its target is invalid ──┘                            │
       └───────────────────────────────────────────────────────────────────────────────────────────────────────┘

With a server-side assignor, CoordinatorComputing takes the place of MemberChosenToCompute and MemberComputing.
InitialRebalanceDelay (the first member has joined) and PauseAfterFailures (no assignor can compute) take the place of
NoComputation until their time is over.
"""

from collections.abc import Sequence
from dataclasses import replace

from coterie.engine.backoff import doubled_delay_ms
from coterie.groups.connect.assignor_choice import (
    common_client_assignor,
    members_reading_all_versions,
    most_named_server_assignor_or_default,
    offered_assignor,
)
from coterie.groups.connect.departures import defer_jobs, end_deferral
from coterie.groups.connect.messages import (
    ComputationTimeoutTimer,
    ComputeTarget,
    InstallAssignment,
    MemberRecord,
    NextComputationTimer,
    PrepareAssignment,
    TargetComputed,
    TargetWritten,
)
from coterie.groups.connect.refusal import ConnectRefusal
from coterie.groups.connect.request_checks import check_computing_request
from coterie.groups.connect.soft_state import (
    CoordinatorComputing,
    Idle,
    InitialRebalanceDelay,
    MemberChosenToCompute,
    MemberComputing,
    NoComputation,
    PauseAfterFailures,
)
from coterie.groups.connect.state import Group
from coterie.groups.connect.target_check import target_error
from coterie.groups.connect.turn import Turn
from coterie.nouns.connect_error_codes import ConnectErrorCode
from coterie.nouns.connect_groups import AssignorChangeReason, InstallAssignmentResponse, PrepareAssignmentResponse
from coterie.nouns.ids import GroupEpoch, MemberId
from coterie.nouns.jobs import NO_JOBS
from coterie.nouns.target_assignments import (
    ComputedTarget,
    GroupSnapshot,
    SnapshotDeparted,
    SnapshotMember,
    TargetOfMember,
)

_RETRY_PAUSE_MS = 1_000
"""The first pause after failed computations (`pause_computations_after_failures`)."""
_RETRY_PAUSE_MAX_MS = 60_000
"""The longest pause after failed computations."""
_SENDING_TIME_DIVISOR = 10
"""A computation's time divided by this number is left for sending the target, or the assignor's error."""
_LISTED_MEMBERS_MAX = 10
"""How many members an error lists."""

# -- begin -------------------------------------------------------------------------------------------------------------


def begin_computation_if_due(turn: Turn) -> None:
    """Begin a computation if a new target is needed, none is being computed, and a member is present. If a delay, a
    pause or the interval since the last computation has not ended yet, set the timer of its end instead. An assignor of
    the coordinator computes if the members have no client-side assignor in common. If they have one, but no member can
    be chosen, the coordinator's assignor of the same name computes; if it has none, computations pause."""
    group = turn.group
    if not (isinstance(group.computation, Idle) and group.needs_target and group.has_present_member()):
        return
    at_ms = next_computation_at_ms(group, group.computation)
    if turn.now_ms < at_ms:
        if group.deadlines.get(NextComputationTimer()) != at_ms:
            turn.set_timer(NextComputationTimer(), at_ms)
        return
    name, able = common_client_assignor_and_able_members(group)
    if name is None:
        order_server_side_computation(turn, most_named_server_assignor_or_default(group.members.values()))
        return
    chosen = choose_computing_member(group, able)
    if chosen is not None:
        group.computation = MemberChosenToCompute(member_id=chosen)
        turn.set_timer(ComputationTimeoutTimer(), turn.now_ms + computation_time_limit_ms(group, chosen))
        return
    if name in group.settings.server_assignors:
        order_server_side_computation(turn, name)
        return
    if not able:
        change_assignment_error(turn, no_able_member_error(group, name))
    pause_computations_after_failures(turn)


def common_client_assignor_and_able_members(group: Group) -> tuple[str | None, list[MemberId]]:
    """The client-side assignor of the group, and the members that can compute with it: they read the metadata versions
    of all members, and are no static members that have left for a short time. None and no members if the members have
    no client-side assignor in common."""
    members = group.members_in_joining_order()
    name = common_client_assignor(members)
    if name is None:
        return None, []
    return name, [
        member_id for member_id in members_reading_all_versions(members, name) if not group.has_left_briefly(member_id)
    ]


def no_able_member_error(group: Group, name: str) -> str:
    """Why no member can compute with the assignor ``name``: which metadata versions the members read."""
    offers = ((one, offered_assignor(one, name)) for one in group.members_in_joining_order())
    ranges = [f"{one.member_id}: {its.minimum_version} to {its.maximum_version}" for one, its in offers if its]
    listed = ", ".join(ranges[:_LISTED_MEMBERS_MAX]) + (", …" if len(ranges) > _LISTED_MEMBERS_MAX else "")
    return (
        f"no present member's assignor {name} reads the metadata versions of all members ({listed}); restart the "
        "workers with an older version of the assignor, or start a worker whose assignor reads all these versions"
    )


def change_assignment_error(turn: Turn, text: str) -> None:
    """Change the group's error to ``text``, which is why no target can be computed. The same error is found again after
    each pause, and is then not written again."""
    metadata = turn.group.metadata
    if metadata is not None and metadata.assignment_error != text:
        turn.change_group_record(assignment_error=text)


def end_choice_of_unable_member(turn: Turn) -> None:
    """End the computation of the chosen member if it can no longer compute with the metadata of all members, and has
    not requested the state of the group yet. Another member is then chosen at once. Called when the group epoch has
    risen, because a member may have joined or changed its metadata."""
    group = turn.group
    if (
        isinstance(group.computation, MemberChosenToCompute)
        and group.computation.member_id not in common_client_assignor_and_able_members(group)[1]
    ):
        end_computation(turn)
        group.computed_at_ms = None


def computation_time_limit_ms(group: Group, member_id: MemberId) -> int:
    """The time in ms that the member has to install a target, counted from the choice of this member."""
    return min(group.settings.computation_timeout_ms, group.members[member_id].rebalance_timeout_ms)


def next_computation_at_ms(group: Group, idle: Idle) -> int:
    """The earliest point of time for the next computation: after the delay or the pause ``idle``, and after the minimum
    interval since the end of the last computation (``assignment_interval_ms``). 0 if none of them applies."""
    earliest = 0 if isinstance(idle, NoComputation) else idle.ends_at_ms
    if group.computed_at_ms is None:
        return earliest
    return max(earliest, group.computed_at_ms + group.settings.assignment_interval_ms)


def choose_computing_member(group: Group, able_members: Sequence[MemberId]) -> MemberId | None:
    """The member that is to compute: the leader, else the member that joined first. Only ``able_members``, whose
    assignor reads the metadata of all members, can be chosen; those whose computation failed are skipped. None if no
    member is left."""
    left = [member_id for member_id in able_members if member_id not in group.failed_members]
    if group.leader in left:
        return group.leader
    return left[0] if left else None


def order_server_side_computation(turn: Turn, name: str) -> None:
    """Order the coordinator's own assignor ``name`` to compute a target for the present state of the group."""
    built = make_group_snapshot(turn, name, left_ms=turn.group.settings.computation_timeout_ms)
    turn.group.computation = CoordinatorComputing(snapshot=built)
    turn.effects.append(ComputeTarget(snapshot=built))


def pause_computations_after_failures(turn: Turn) -> None:
    """Begin no computation before a pause has ended; then members whose computation failed may be chosen again. Called
    when no member is left that can compute, and when an assignor of the coordinator has failed. The pause takes 1 s,
    then doubles with each call, up to 60 s, until a target is installed."""
    group = turn.group
    pause_ms = doubled_delay_ms(_RETRY_PAUSE_MS, group.failures, _RETRY_PAUSE_MAX_MS)
    group.failures += 1
    group.failed_members.clear()
    group.computation = PauseAfterFailures(turn.now_ms + pause_ms)
    turn.set_timer(NextComputationTimer(), turn.now_ms + pause_ms)


def end_pause_after_failures(turn: Turn) -> None:
    """End the pause after failed computations: a member has joined, and it may be able to compute. If all fail again,
    the next pause is longer."""
    group = turn.group
    if isinstance(group.computation, PauseAfterFailures):
        group.computation = NoComputation()


def make_group_snapshot(turn: Turn, name: str, *, left_ms: int) -> GroupSnapshot:
    """The state of the group as the assignor ``name`` receives it, with the reasons for which members ask for a new
    target. The target has to be installed within ``left_ms``."""
    group = turn.group
    return GroupSnapshot(
        group_epoch=group.group_epoch,
        assignor=name,
        members=tuple(make_snapshot_member(group, one, name) for one in group.members_in_joining_order()),
        departed=tuple(
            SnapshotDeparted(
                member_id=one.member_id,
                instance_id=one.instance_id,
                url=one.url,
                jobs=one.jobs,
                delay_left_ms=None if one.deadline_ms is None else max(0, one.deadline_ms - turn.now_ms),
            )
            for _, one in sorted(group.departed.items())
            if one.jobs
        ),
        config_offset=group.config_offset,
        configured=group.configured_jobs,
        max_delay_ms=group.settings.max_delay_ms,
        time_limit_ms=assignor_time_limit_ms(left_ms),
    )


def assignor_time_limit_ms(left_ms: int) -> int:
    """The time limit of an assignor, in ms, if its target must be installed within ``left_ms``: nine tenths of it, and
    at least 1. The last tenth is for sending the target, or the assignor's error, to the coordinator
    (:data:`_SENDING_TIME_DIVISOR`)."""
    return max(1, left_ms - left_ms // _SENDING_TIME_DIVISOR)


def make_snapshot_member(group: Group, metadata: MemberRecord, name: str) -> SnapshotMember:
    """One member in the form that the assignor ``name`` receives."""
    member_id = metadata.member_id
    current, assignor = group.currents[member_id], offered_assignor(metadata, name)
    given = group.reasons.get(member_id, {}).get(name)
    return SnapshotMember(
        member_id=member_id,
        member_epoch=current.member_epoch,
        instance_id=metadata.instance_id,
        url=metadata.url,
        name=metadata.name,
        config_offset=group.sessions[member_id].config_offset,
        version=0 if assignor is None else assignor.version,
        reason=AssignorChangeReason.NONE if given is None else given.reason,
        metadata=b"" if assignor is None else assignor.metadata,
        claims=metadata.claims,
        draining=metadata.draining,
        target=group.targets[member_id].target.jobs,
        current=current.assigned,
        pending=current.pending,
        # The jobs that waited for the member count until a target was computed.
        former_jobs=metadata.former if metadata.group_epoch > group.assignment_epoch else NO_JOBS,
    )


# -- the chosen member -------------------------------------------------------------------------------------------------


def on_prepare_assignment(turn: Turn, request: PrepareAssignment) -> None:
    """Respond to ``request`` with the present state of the group, if its sender is the member that was chosen to
    compute the target assignment. If the sender repeats its request, and can no longer read the metadata of all
    members, the response has the state of the previous response again.

    :raises ConnectRefusal: when the request is not valid, or its sender was not chosen.
    """
    group = turn.group
    check_computing_request(group, request)
    check_was_chosen_to_compute(group, request.member_id)
    left_ms = group.deadlines[ComputationTimeoutTimer()] - turn.now_ms
    name, able = common_client_assignor_and_able_members(group)
    if name is not None and request.member_id in able:
        built = make_group_snapshot(turn, name, left_ms=left_ms)
    else:
        # The response to an earlier Prepare was lost, and a member has joined since whose metadata this one cannot
        # read: it computes for the members of that time, and another computation follows.
        assert isinstance(group.computation, MemberComputing), "a member that was chosen can compute"
        built = replace(group.computation.snapshot, time_limit_ms=assignor_time_limit_ms(left_ms))
    group.computation = MemberComputing(member_id=request.member_id, snapshot=built)
    turn.reply(request.reply_to, PrepareAssignmentResponse(snapshot=built))


def check_was_chosen_to_compute(group: Group, member_id: MemberId) -> None:
    """Check that the member was chosen to compute the target assignment, and that its computation has not ended.

    :raises ConnectRefusal: UNKNOWN_MEMBER_ID, when the member was not chosen, or its computation has ended; it may
        still be a member of the group.
    """
    if group.computing_member_id != member_id:
        raise ConnectRefusal(
            ConnectErrorCode.UNKNOWN_MEMBER_ID,
            f"member {member_id} does not compute the assignment: it was not chosen, or its computation has ended",
        )


def on_install_assignment(turn: Turn, request: InstallAssignment) -> None:
    """Install the target that the chosen member computed, if the request answers the last Prepare and the target is
    valid. If the member's assignor has failed or the target is not valid, another member is chosen; the response has
    the error INVALID_ASSIGNMENT only for an invalid target.

    :raises ConnectRefusal: when the request is not valid, or answers no computation that is in progress.
    """
    group = turn.group
    check_computing_request(group, request)
    if group.installed == (request.member_id, request.group_epoch):
        turn.reply(request.reply_to, InstallAssignmentResponse())  # a repeated request
        return
    check_was_chosen_to_compute(group, request.member_id)
    computation = group.computation
    if not isinstance(computation, MemberComputing):
        raise ConnectRefusal(
            ConnectErrorCode.UNKNOWN_MEMBER_ID,
            f"member {request.member_id} must send ConnectGroupPrepareAssignment before ConnectGroupInstallAssignment",
        )
    built = computation.snapshot
    if request.group_epoch != built.group_epoch:
        raise ConnectRefusal(
            ConnectErrorCode.INVALID_ASSIGNMENT,
            f"the assignment is for the group epoch {request.group_epoch}, and the last response to "
            f"ConnectGroupPrepareAssignment had {built.group_epoch}; it is not installed",
        )
    if request.assignor_error:
        fail_computation(
            turn,
            request.member_id,
            f"the assignor of member {request.member_id} returned the error {request.assignor_error}",
        )
        turn.reply(request.reply_to, InstallAssignmentResponse())
        return
    error = target_error(request.target, built, request.members_listed_twice, request.jobs_listed_twice)
    if error is not None:
        fail_computation(turn, request.member_id, f"the target of member {request.member_id} is invalid: {error}")
        turn.reply(
            request.reply_to,
            InstallAssignmentResponse(error=ConnectErrorCode.INVALID_ASSIGNMENT, message=error),
        )
        return
    install_target(turn, request.target, built)
    group.installed = (request.member_id, request.group_epoch)
    turn.reply(request.reply_to, InstallAssignmentResponse())


def on_target_computed(turn: Turn, event: TargetComputed) -> None:
    """Install the target that an assignor of the coordinator has computed. If the assignor has failed or the target is
    invalid, the next computation begins after a pause. A result for another computation than the one in progress is
    ignored."""
    computation = turn.group.computation
    if not isinstance(computation, CoordinatorComputing) or computation.snapshot.group_epoch != event.group_epoch:
        return
    built = computation.snapshot
    error = event.assignor_error or "the assignor failed"
    if event.target is not None:
        error = target_error(event.target, built, frozenset(), NO_JOBS) or ""
        if not error:
            install_target(turn, event.target, built)
            turn.group.failed_members.clear()  # A member may compute for the next group epoch.
            return
    turn.change_group_record(assignment_error=f"the coordinator's assignor {built.assignor} failed: {error}")
    pause_computations_after_failures(turn)


# -- end ---------------------------------------------------------------------------------------------------------------


def install_target(turn: Turn, target: ComputedTarget, built: GroupSnapshot) -> None:
    """Write the target that was computed from the snapshot ``built``, defer jobs for departed members, and end the
    computation. Members that have left since, and jobs that are no longer configured, are dropped; members that have
    joined since get an empty target. If the target orders a next computation, its timer is set."""
    group = turn.group
    epoch, configured = built.group_epoch, group.configured_jobs
    new_ids = new_static_id_by_former_id(group, built)
    targets = {new_ids.get(member_id, member_id): one for member_id, one in target.members.items()}
    for member_id in sorted(group.members):
        before = group.targets[member_id]
        after = targets.get(member_id, TargetOfMember(jobs=NO_JOBS))
        after = replace(after, jobs=after.jobs & configured)
        if after != before.target:
            turn.write(TargetWritten(member_id=member_id, assignment_epoch=epoch, target=after))
    known = {one.member_id for one in built.departed}
    for member_id, departed in sorted(group.departed.items()):
        deferred = target.deferred.get(member_id)
        if deferred is not None and (left := deferred.jobs & configured):
            defer_jobs(turn, departed, replace(deferred, jobs=left))
        elif member_id in known:
            end_deferral(turn, departed)
    turn.change_group_record(
        assignment_epoch=epoch,
        unplaceable=tuple(
            replace(one, jobs=left) for one in target.unplaceable if (left := one.jobs & configured) != NO_JOBS
        ),
        assignment_error="",
        next_at_ms=None if target.next_in_ms is None else turn.now_ms + target.next_in_ms,
    )
    forget_reasons_up_to_epoch(group, epoch)
    group.failures = 0
    end_computation(turn)
    if target.next_in_ms is not None:
        turn.set_timer(NextComputationTimer(), turn.now_ms + target.next_in_ms)


def forget_reasons_up_to_epoch(group: Group, group_epoch: GroupEpoch) -> None:
    """Forget the reasons that a computation for ``group_epoch`` has received. Reasons that members have given since
    then stay for the next computation."""
    for member_id, given in list(group.reasons.items()):
        left = {name: one for name, one in given.items() if one.group_epoch > group_epoch}
        if left:
            group.reasons[member_id] = left
        else:
            del group.reasons[member_id]


def new_static_id_by_former_id(group: Group, built: GroupSnapshot) -> dict[MemberId, MemberId]:
    """The static members that have returned with another member id since ``built``: the new id by the former one. Their
    return requests no new target, so the one that was computed for the former id must count for the new one."""
    return {
        one.member_id: new_id
        for one in built.members
        if one.instance_id is not None
        and one.member_id not in group.members
        and (new_id := group.static_member_id(one.instance_id)) is not None
    }


def fail_computation(turn: Turn, member_id: MemberId, why: str) -> None:
    """End the member's computation, which has failed because of ``why``. Another member is chosen at the end of this
    step; this member is skipped until a pause, or until it joins again."""
    turn.group.failed_members.add(member_id)
    turn.change_group_record(assignment_error=why)
    end_computation(turn)
    turn.group.computed_at_ms = None  # the next member computes at once


def end_computation(turn: Turn) -> None:
    """End the computation in progress. The minimum interval to the next computation counts from now."""
    group = turn.group
    group.computation = NoComputation()
    group.computed_at_ms = turn.now_ms
    turn.cancel_timer(ComputationTimeoutTimer())


def end_computation_of_member(turn: Turn, member_id: MemberId) -> None:
    """Called when a member has left or has joined again. If the member was chosen to compute, its computation ends, and
    another member is chosen at the end of this step."""
    if turn.group.computing_member_id == member_id:
        end_computation(turn)
        turn.group.computed_at_ms = None


def on_computation_timeout(turn: Turn) -> None:
    """Called when the time of the chosen member is over. Its computation has failed, because it has installed no target
    in time: another member is chosen."""
    chosen = turn.group.computing_member_id
    if chosen is not None:
        timeout_ms = computation_time_limit_ms(turn.group, chosen)
        fail_computation(turn, chosen, f"member {chosen} has not installed a target within {timeout_ms} ms")


def on_next_computation_timer(turn: Turn) -> None:
    """Called when `NextComputationTimer` fires. End a delay or a pause whose time is over, and raise the group epoch if
    the next target is due (`ComputedTarget.next_in_ms`). The end of this step then begins a computation."""
    group = turn.group
    metadata = group.metadata
    if metadata is not None and metadata.next_at_ms is not None and turn.now_ms >= metadata.next_at_ms:
        turn.change_group_record(next_at_ms=None)
        turn.bump_group_epoch()
    idle = group.computation
    if isinstance(idle, InitialRebalanceDelay | PauseAfterFailures) and turn.now_ms >= idle.ends_at_ms:
        group.computation = NoComputation()
