"""Members join, return, change their metadata, leave and are removed."""

from collections import Counter
from dataclasses import replace

from coterie.groups.connect.assignor_choice import incompatible_assignors_error, offered_assignor_versions
from coterie.groups.connect.computation import end_computation_of_member, end_pause_after_failures
from coterie.groups.connect.departures import forget_departed_member
from coterie.groups.connect.messages import (
    NO_EPOCH,
    ConfiguredJobsWritten,
    ConnectionGraceTimer,
    CurrentAssignment,
    CurrentAssignmentRemoved,
    Heartbeat,
    HeldJobsTimer,
    MemberDeparted,
    MemberRecord,
    MemberRemoved,
    Removal,
    RemoveMember,
    ResponseHoldTimer,
    RevocationTimer,
    SessionTimer,
    TargetRemoved,
    TargetWritten,
)
from coterie.groups.connect.refusal import ConnectRefusal
from coterie.groups.connect.request_checks import check_member
from coterie.groups.connect.revocations import update_revocations_and_timer
from coterie.groups.connect.soft_state import Idle, InitialRebalanceDelay, NewTargetReason, NotConnected, Session
from coterie.groups.connect.state import Group
from coterie.groups.connect.turn import Turn
from coterie.nouns.connect_error_codes import ConnectErrorCode
from coterie.nouns.connect_groups import (
    JOIN_EPOCH,
    LEAVE_BRIEFLY_EPOCH,
    LEAVE_EPOCH,
    AssignorChangeReason,
    HeartbeatResponse,
    SupportedAssignor,
)
from coterie.nouns.ids import MemberId, WorkerUrl
from coterie.nouns.jobs import NO_JOBS, Jobs
from coterie.nouns.target_assignments import TargetOfMember

NO_TOPIC_ID = bytes(16)
"""The stored id of the config topic if no leader has reported one."""

# -- joining -----------------------------------------------------------------------------------------------------------


def on_join(turn: Turn, request: Heartbeat) -> None:
    """Add the sender of ``request`` to the group, or let it join again, or let it take the place of the static member
    with its instance id, if that has left for a short time.

    :raises ConnectRefusal: UNRELEASED_INSTANCE_ID, when another member has the instance id and has not left;
        STALE_REQUEST, when the request is older than one that was processed; another code when the group cannot accept
        the sender.
    """
    group = turn.group
    member_id = request.member_id
    if member_id in group.members:
        on_rejoin(turn, request)
        return
    departed = group.departed.get(member_id)
    if departed is not None:
        check_request_number_exceeds(request, departed.request_number)
    holder = None if request.instance_id is None else group.static_member_id(request.instance_id)
    if holder is None:
        join_as_new_member(turn, request)
    elif group.has_left_briefly(holder):
        replace_static_member(turn, request, holder)
    else:
        raise ConnectRefusal(
            ConnectErrorCode.UNRELEASED_INSTANCE_ID,
            f"the instance id {request.instance_id} belongs to the member {holder}, which has not left; the instance "
            f"id is free at the end of that member's session ({group.members[holder].session_timeout_ms} ms after its "
            "last heartbeat)",
        )


def join_as_new_member(turn: Turn, request: Heartbeat) -> None:
    """Add the sender of ``request`` as a new member; the group epoch rises. If departed members return with the
    request, the new metadata contain the jobs that were deferred for them (``former``), and they are forgotten. The
    first present member of the group begins the initial rebalance delay.

    :raises ConnectRefusal: when the group cannot accept it.
    """
    group = turn.group
    if len(group.members) >= group.settings.group_size_max:
        raise ConnectRefusal(
            ConnectErrorCode.GROUP_MAX_SIZE_REACHED,
            f"group {group.group_id} is full: group.connect.max.size is {group.settings.group_size_max} members",
        )
    metadata = preliminary_member_record_from_join(turn, request)
    check_assignors(group, metadata)
    check_config_topic(group, request)
    returned = returning_members(group, request)
    is_first = not group.has_present_member()
    turn.bump_group_epoch()
    turn.write(
        replace(
            metadata,
            group_epoch=turn.new_group_epoch,
            joined_epoch=turn.new_group_epoch,
            former=Jobs.of(job for one in returned for job in one.jobs),
        )
    )
    turn.write(
        CurrentAssignment(
            member_id=metadata.member_id,
            member_epoch=JOIN_EPOCH,
            previous_epoch=JOIN_EPOCH,
            request_number=request.request_number,
        )
    )
    turn.write(
        TargetWritten(member_id=metadata.member_id, assignment_epoch=NO_EPOCH, target=TargetOfMember(jobs=NO_JOBS))
    )
    for one in returned:
        forget_departed_member(turn, one.member_id)
    group.sessions[metadata.member_id] = Session()
    group.failed_members.discard(metadata.member_id)
    end_pause_after_failures(turn)
    if is_first and isinstance(group.computation, Idle) and group.settings.initial_rebalance_delay_ms:
        group.computation = InitialRebalanceDelay(turn.now_ms + group.settings.initial_rebalance_delay_ms)


def on_rejoin(turn: Turn, request: Heartbeat) -> None:
    """Let a member join again: it has stopped all its jobs. It keeps its target assignment, so it receives its own jobs
    again.

    The group epoch rises, except in two cases: the request repeats a join (until its first target, each heartbeat of a
    member is a join), or a static member returns that left for a short time. In these cases, too, it rises if the
    request changes metadata that affect the target, or if an assignor in the request gives a reason for a new target.

    :raises ConnectRefusal: when the new metadata do not fit the group, or the request is older than one that was
        processed.
    """
    group = turn.group
    member_id = request.member_id
    current, before = group.currents[member_id], group.members[member_id]
    check_request_number_exceeds(request, group.sessions[member_id].request_number)
    if request.instance_id != before.instance_id:
        raise ConnectRefusal(
            ConnectErrorCode.FENCED_INSTANCE_ID,
            f"member {member_id} joined with the instance id {before.instance_id}, and joins again with "
            f"{request.instance_id}; restart the worker, so that it joins with another member id",
        )
    metadata = preliminary_member_record_from_join(turn, request)
    check_assignors(group, metadata)
    check_config_topic(group, request)
    is_changed = is_target_affected(before, metadata) or requests_new_target(request)
    is_repeated = current.member_epoch == JOIN_EPOCH and not current.held_jobs
    was_away = current.member_epoch == LEAVE_BRIEFLY_EPOCH
    if is_changed or not (is_repeated or was_away):
        turn.bump_group_epoch()
    metadata = replace(
        metadata,
        group_epoch=turn.new_group_epoch,
        joined_epoch=before.joined_epoch,
        former=jobs_deferred_until_return(group, before),
    )
    if metadata != replace(before, group_epoch=metadata.group_epoch):
        turn.write(metadata)
    if not is_repeated:
        turn.write(
            CurrentAssignment(
                member_id=member_id,
                member_epoch=JOIN_EPOCH,
                previous_epoch=JOIN_EPOCH,
                request_number=request.request_number,
            )
        )
        update_revocations_and_timer(turn, member_id)
        group.failed_members.discard(member_id)
        end_computation_of_member(turn, member_id)  # it no longer computes
        end_pause_after_failures(turn)


def replace_static_member(turn: Turn, request: Heartbeat, holder: MemberId) -> None:
    """Let the sender of ``request``, with its new member id, take the place of the static member ``holder``, which left
    for a short time. It gets the target assignment and the place in the order of joining of ``holder``. If the sender
    is also a departed member that returns, it gets the jobs that were deferred for it, too. The group epoch rises if
    there are such jobs, if the sender differs from ``holder`` in what affects the target (assignors, claims, draining),
    or if the request has a reason for a new target.

    :raises ConnectRefusal: when the sender's metadata do not fit the group.
    """
    group = turn.group
    before, target = group.members[holder], group.targets[holder]
    metadata = preliminary_member_record_from_join(turn, request)
    check_assignors(group, metadata, instead_of=holder)
    check_config_topic(group, request)
    departed = group.departed.get(request.member_id)
    deferred = NO_JOBS if departed is None else departed.jobs  # in no target, so they need a new one
    if is_target_affected(before, metadata) or requests_new_target(request) or deferred:
        turn.bump_group_epoch()
    drop_all_member_state(turn, holder)
    turn.write(
        replace(
            metadata,
            group_epoch=turn.new_group_epoch,
            joined_epoch=before.joined_epoch,
            former=jobs_deferred_until_return(group, before) | deferred,
        )
    )
    turn.write(
        CurrentAssignment(
            member_id=metadata.member_id,
            member_epoch=JOIN_EPOCH,
            previous_epoch=JOIN_EPOCH,
            request_number=request.request_number,
        )
    )
    turn.write(replace(target, member_id=metadata.member_id))
    if departed is not None:
        forget_departed_member(turn, departed.member_id)
    group.sessions[metadata.member_id] = Session()


def returning_members(group: Group, request: Heartbeat) -> tuple[MemberDeparted, ...]:
    """The departed members that return with ``request``, sorted by member id: the one with the request's member id,
    which thereby acknowledges that all its jobs have stopped; and of those that hold no job, each that has the
    request's instance id, or has no instance id and has the request's URL (not empty)."""
    return tuple(one for _, one in sorted(group.departed.items()) if is_returning_member(one, request))


def is_returning_member(departed: MemberDeparted, request: Heartbeat) -> bool:
    """Whether ``request`` comes from the worker of the departed member (`returning_members`)."""
    if departed.member_id == request.member_id:
        return True
    is_same_instance = request.instance_id is not None and request.instance_id == departed.instance_id
    is_same_url = departed.instance_id is None and bool(request.url) and request.url == departed.url
    return (is_same_instance or is_same_url) and not departed.held


def preliminary_member_record_from_join(turn: Turn, request: Heartbeat) -> MemberRecord:
    """The member's record from ``request``, a join, with the group's session timeout. ``group_epoch`` and
    ``joined_epoch`` are the group epoch before this step; the caller replaces them."""
    group = turn.group
    assert request.rebalance_timeout_ms is not None
    return MemberRecord(
        member_id=request.member_id,
        group_epoch=group.group_epoch,
        joined_epoch=group.group_epoch,
        instance_id=request.instance_id,
        client_id=request.client_id,
        client_host=request.client_host,
        url=request.url or WorkerUrl(""),
        name=request.name or "",
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        session_timeout_ms=group.settings.session_timeout_ms,
        connection_grace_ms=connection_grace_ms_if_sent(request) or 0,
        server_assignor=request.server_assignor,
        client_assignors=assignors_without_reasons(request.client_assignors or ()),
        claims=None if request.claims is None else request.claims.jobs,
        draining=bool(request.draining),
    )


def connection_grace_ms_if_sent(request: Heartbeat) -> int | None:
    """The connection grace in ``request``, in ms, at least 0; None if it has not changed."""
    return None if request.connection_grace_ms is None else max(0, request.connection_grace_ms)


# -- changes of metadata -----------------------------------------------------------------------------------------------


def update_member_metadata(turn: Turn, request: Heartbeat) -> None:
    """Store the metadata that a heartbeat of a member changes. The group epoch rises if the changes affect the target,
    or if an assignor gives a reason for a new target.

    :raises ConnectRefusal: UNSUPPORTED_ASSIGNOR, when the new assignors do not fit the group; FENCED_INSTANCE_ID, when
        the instance id is not the member's. All of the request is refused then.
    """
    group = turn.group
    before = group.members[request.member_id]
    changes: dict[str, object] = {
        name: value
        for name, value in (
            ("rebalance_timeout_ms", request.rebalance_timeout_ms),
            ("url", request.url),
            ("name", request.name),
            ("connection_grace_ms", connection_grace_ms_if_sent(request)),
            ("draining", request.draining),
        )
        if value is not None
    }
    if request.claims is not None:
        changes["claims"] = request.claims.jobs
    if request.client_assignors:
        changes |= {"client_assignors": assignors_without_reasons(request.client_assignors), "server_assignor": None}
    elif request.server_assignor is not None:
        changes |= {"client_assignors": (), "server_assignor": request.server_assignor}
    if request.instance_id not in (None, before.instance_id):
        joined_with = "no instance id" if before.instance_id is None else f"the instance id {before.instance_id}"
        raise ConnectRefusal(
            ConnectErrorCode.FENCED_INSTANCE_ID,
            f"member {request.member_id} joined with {joined_with}, which cannot change; the worker must join with "
            "another member id",
        )
    if before.former:
        changes["former"] = jobs_deferred_until_return(group, before)
    if not changes:
        return  # as in most heartbeats
    metadata = replace(before, **changes)  # type: ignore[arg-type]
    if (offered_assignor_versions(metadata), metadata.server_assignor) != (
        offered_assignor_versions(before),
        before.server_assignor,
    ):
        check_assignors(group, metadata)
    if is_target_affected(before, metadata) or requests_new_target(request):
        turn.bump_group_epoch()
    if metadata != before:
        turn.write(replace(metadata, group_epoch=turn.new_group_epoch))


def jobs_deferred_until_return(group: Group, metadata: MemberRecord) -> Jobs:
    """The jobs that were deferred for this member until it returned (`MemberRecord.former`), as long as they count:
    empty once a target was computed after the return, and for a member that is not a returned one."""
    return metadata.former if metadata.group_epoch > group.assignment_epoch else NO_JOBS


def is_target_affected(before: MemberRecord, after: MemberRecord) -> bool:
    """Whether the change of a member's metadata requires a new target assignment."""
    return (before.client_assignors, before.server_assignor, before.claims, before.draining) != (
        after.client_assignors,
        after.server_assignor,
        after.claims,
        after.draining,
    )


def requests_new_target(request: Heartbeat) -> bool:
    """Whether an assignor in the request gives a reason, which requests a new target assignment."""
    return any(assignor.reason != AssignorChangeReason.NONE for assignor in request.client_assignors or ())


def assignors_without_reasons(assignors: tuple[SupportedAssignor, ...]) -> tuple[SupportedAssignor, ...]:
    """The assignors without their reasons, as they are stored: a reason counts for one computation only."""
    return tuple(
        replace(one, reason=AssignorChangeReason.NONE) if one.reason != AssignorChangeReason.NONE else one
        for one in assignors
    )


def store_new_target_reasons(turn: Turn, request: Heartbeat) -> None:
    """Store for the next computation why assignors in ``request`` ask for a new target."""
    for one in request.client_assignors or ():
        if one.reason != AssignorChangeReason.NONE:
            given = turn.group.reasons.setdefault(request.member_id, {})
            given[one.name] = NewTargetReason(reason=one.reason, group_epoch=turn.new_group_epoch)


def store_configured_jobs_if_from_leader(turn: Turn, request: Heartbeat) -> None:
    """Store the configured jobs that the leader reports. The group epoch rises if the jobs differ from those of an
    earlier report. A report of another member is ignored, and so is a report that equals the same leader's last one or
    has a lower config offset. If the group has no leader, one is appointed first."""
    group = turn.group
    reported = request.configured
    if reported is None:
        return
    turn.appoint_leader_if_none_present()
    if request.member_id != turn.new_leader:
        return
    known, topic_id = group.configured, group.sessions[request.member_id].config_topic_id
    if topic_id is None:
        topic_id = NO_TOPIC_ID if known is None else known.config_topic_id
    if (
        known is not None
        and known.leader_epoch == turn.new_leader_epoch
        and (reported.config_offset < known.configured.config_offset or reported == known.configured)
    ):
        return
    if known is not None and reported.jobs != known.configured.jobs:
        turn.bump_group_epoch()
    turn.write(
        ConfiguredJobsWritten(
            group_epoch=turn.new_group_epoch,
            config_topic_id=topic_id,
            leader_epoch=turn.new_leader_epoch,
            configured=reported,
        )
    )


# -- leaving -----------------------------------------------------------------------------------------------------------


def on_leave(turn: Turn, request: Heartbeat) -> None:
    """Let a member leave: its jobs have stopped. With LEAVE_EPOCH the next target gives them to other members. With
    LEAVE_BRIEFLY_EPOCH the jobs of a dynamic member are deferred by the scheduled rebalance delay, and a static member
    stays in the group, with its target, until its session ends.

    :raises ConnectRefusal: UNKNOWN_MEMBER_ID, when the group has no such member and no such departed member;
        STALE_REQUEST, when the request is older than one that was processed.
    """
    group = turn.group
    member_id = request.member_id
    if member_id in group.departed:
        on_leave_of_departed_member(turn, request)
        return
    check_member(group, member_id)
    session, current = group.sessions[member_id], group.currents[member_id]
    check_request_number_exceeds(request, session.request_number)
    session.request_number = max(session.request_number, request.request_number)
    if request.member_epoch == LEAVE_EPOCH:
        remove_member(turn, member_id, jobs_may_still_run=False, defers_jobs=False, reason="it has left")
    elif group.members[member_id].instance_id is None:
        remove_member(
            turn, member_id, jobs_may_still_run=False, defers_jobs=True, reason="it has left for a short time"
        )
    else:
        turn.write(
            replace(
                current,
                member_epoch=LEAVE_BRIEFLY_EPOCH,
                previous_epoch=LEAVE_BRIEFLY_EPOCH,
                assigned=NO_JOBS,
                pending=NO_JOBS,
                job_epochs={},
                request_number=session.request_number,
            )
        )
        respond_to_held_heartbeat_if_any(turn, member_id, HeartbeatResponse(member_epoch=LEAVE_BRIEFLY_EPOCH))
        update_revocations_and_timer(turn, member_id)
        session.connection = NotConnected()
        turn.cancel_timer(ConnectionGraceTimer(member_id=member_id))
        end_computation_of_member(turn, member_id)
    turn.reply(request.reply_to, HeartbeatResponse(member_epoch=request.member_epoch))


def on_leave_of_departed_member(turn: Turn, request: Heartbeat) -> None:
    """Process the leave of a member that is no longer in the group: its worker runs no job any more, so the jobs that
    were held for it are free. With LEAVE_EPOCH the member does not return, so its jobs are no longer deferred either.
    If its record stays, it gets the number of ``request``: a late older request must not count as the member's return.

    :raises ConnectRefusal: when the request is older than one that was processed.
    """
    departed = turn.group.departed[request.member_id]
    check_request_number_exceeds(request, departed.request_number)
    if request.member_epoch == LEAVE_EPOCH:
        forget_departed_member(turn, request.member_id)
        if departed.jobs:
            turn.bump_group_epoch()
    elif departed.jobs:
        number = max(departed.request_number, request.request_number)
        if (changed := replace(departed, held=NO_JOBS, request_number=number)) != departed:
            turn.write(changed)
        turn.cancel_timer(HeldJobsTimer(member_id=request.member_id))
    else:
        forget_departed_member(turn, request.member_id)
    turn.reply(request.reply_to, HeartbeatResponse(member_epoch=request.member_epoch))


def session_timeout_removal_reason(group: Group, member_id: MemberId) -> str:
    """Why the member, whose session timeout has passed, is removed. For the member's worker, and for the operator."""
    timeout = f"{group.members[member_id].session_timeout_ms} ms (its session timeout)"
    if group.has_left_briefly(member_id):
        return f"it left for a short time, and did not return within {timeout}"
    return f"for {timeout} it sent no request that the coordinator accepted"


def remove_member(turn: Turn, member_id: MemberId, *, jobs_may_still_run: bool, defers_jobs: bool, reason: str) -> None:
    """Remove a member; the group epoch rises. If its jobs may still run on its worker (``jobs_may_still_run``), no
    other member gets them until its session would have ended. If the group ``defers_jobs`` for the member's return, its
    jobs are deferred. A held heartbeat of the member gets UNKNOWN_MEMBER_ID. ``reason`` is for its worker and for
    operators."""
    group = turn.group
    metadata, session = group.members[member_id], group.sessions[member_id]
    held = group.currents[member_id].held_jobs if jobs_may_still_run else NO_JOBS
    jobs = jobs_to_defer(group, member_id) if defers_jobs else NO_JOBS
    departed = None
    if held or jobs:
        departed = MemberDeparted(
            member_id=member_id,
            instance_id=metadata.instance_id,
            url=metadata.url,
            jobs=jobs,
            held=held,
            held_until_ms=session.ends_at_ms,
            left_at_ms=turn.now_ms,
            deadline_ms=None,
            request_number=session.request_number,
            reason=reason,
        )
        turn.write(departed)
    turn.removals.append(Removal(member_id=member_id, url=metadata.url, reason=reason, departed=departed))
    turn.bump_group_epoch()
    message = f"member {member_id} is not in the group any more: {reason}"
    respond_to_held_heartbeat_if_any(
        turn, member_id, HeartbeatResponse(error=ConnectErrorCode.UNKNOWN_MEMBER_ID, message=message)
    )
    drop_all_member_state(turn, member_id)
    if not group.members:
        group.failures = 0  # The first pause of the next members is short again.
    if held:
        turn.set_timer(HeldJobsTimer(member_id=member_id), session.ends_at_ms)


def jobs_to_defer(group: Group, member_id: MemberId) -> Jobs:
    """The jobs that are deferred for the member if it is removed now: its assigned jobs, and those that were deferred
    until its return (`MemberRecord.former`) and that it has not received yet, except those that another member holds. A
    static member that left for a short time has no jobs: the jobs of its target wait for it."""
    metadata, target = group.members[member_id], group.targets[member_id].target.jobs
    jobs = target if group.has_left_briefly(member_id) else group.currents[member_id].assigned
    # A target that was computed since the return decides which of the former jobs the member gets.
    former = jobs_deferred_until_return(group, metadata) or metadata.former & target
    return jobs | Jobs.of(job for job in former if group.holder.get(job, member_id) == member_id)


def member_to_remove_or_raise(group: Group, request: RemoveMember) -> MemberId:
    """The member that ``request`` removes: if the request has an instance id, the static member with this instance id;
    otherwise the member with the request's member id.

    :raises ConnectRefusal: UNKNOWN_MEMBER_ID, when there is no such member; FENCED_INSTANCE_ID, when the request has
        both ids, and another member has the instance id.
    """
    if request.instance_id is None:
        check_member(group, request.member_id)
        return request.member_id
    holder = group.static_member_id(request.instance_id)
    if holder is None:
        raise ConnectRefusal(
            ConnectErrorCode.UNKNOWN_MEMBER_ID,
            f"no member of group {group.group_id} has the instance id {request.instance_id}",
        )
    if request.member_id not in ("", holder):
        raise ConnectRefusal(
            ConnectErrorCode.FENCED_INSTANCE_ID,
            f"no member was removed: the request names member {request.member_id} and the instance id "
            f"{request.instance_id}, which belongs to member {holder}",
        )
    return holder


def drop_all_member_state(turn: Turn, member_id: MemberId) -> None:
    """Write the tombstones of a member's three records, and drop its soft state and its timers. If the member was
    chosen to compute, its computation ends."""
    group = turn.group
    turn.write(MemberRemoved(member_id=member_id))
    turn.write(TargetRemoved(member_id=member_id))
    turn.write(CurrentAssignmentRemoved(member_id=member_id))
    del group.sessions[member_id]
    group.reasons.pop(member_id, None)
    group.failed_members.discard(member_id)
    for key in (SessionTimer, RevocationTimer, ResponseHoldTimer, ConnectionGraceTimer):
        turn.cancel_timer(key(member_id=member_id))
    end_computation_of_member(turn, member_id)


def respond_to_held_heartbeat_if_any(turn: Turn, member_id: MemberId, response: HeartbeatResponse) -> None:
    """Send ``response`` to the held heartbeat of the member, if there is one."""
    session = turn.group.sessions[member_id]
    if session.held_heartbeat is not None:
        turn.reply(session.held_heartbeat.reply_to, response)
        session.held_heartbeat = None
        turn.cancel_timer(ResponseHoldTimer(member_id=member_id))


# -- checks ------------------------------------------------------------------------------------------------------------


def check_request_number_exceeds(request: Heartbeat, last: int) -> None:
    """Check that the number of ``request`` is greater than ``last``, the number of the last request that was processed:
    a repetition of that request does not pass. A request without a number (0) passes. The caller stores the number.

    :raises ConnectRefusal: STALE_REQUEST, when the number is not greater.
    """
    if request.request_number and request.request_number <= last:
        raise ConnectRefusal(
            ConnectErrorCode.STALE_REQUEST,
            f"the request of member {request.member_id} has the number {request.request_number}, but the coordinator "
            f"has already processed the number {last}; the request is ignored",
        )


def check_assignors(group: Group, metadata: MemberRecord, *, instead_of: MemberId | None = None) -> None:
    """Check that the group can work with the assignors in ``metadata``, those of a new member or of a member with new
    metadata. ``instead_of`` is the member that a new member replaces; its assignors do not count.

    :raises ConnectRefusal: UNSUPPORTED_ASSIGNOR, when it cannot.
    """
    name = metadata.server_assignor
    if name is not None and name not in group.settings.server_assignors:
        known = ", ".join(group.settings.server_assignors) or "none"
        raise ConnectRefusal(
            ConnectErrorCode.UNSUPPORTED_ASSIGNOR, f"the coordinator has no assignor {name}; its assignors: {known}"
        )
    replaced = [group.members[one] for one in {metadata.member_id, instead_of} if one in group.members]
    others = group.offers - Counter(map(offered_assignor_versions, replaced))
    reason = incompatible_assignors_error(others, offered_assignor_versions(metadata))
    if reason is not None:
        raise ConnectRefusal(ConnectErrorCode.UNSUPPORTED_ASSIGNOR, reason)


def check_config_topic(group: Group, request: Heartbeat) -> None:
    """Check that a member that joins reads the config topic of the group's leader. Passes if one of the two topics is
    unknown, or the member is the leader.

    :raises ConnectRefusal: INVALID_REQUEST, when the member reads another topic.
    """
    known, topic_id = group.configured, request.config_topic_id
    if known is None or topic_id is None or group.leader in (None, request.member_id):
        return
    if NO_TOPIC_ID in (topic_id, known.config_topic_id):
        return
    if topic_id != known.config_topic_id:
        raise ConnectRefusal(
            ConnectErrorCode.INVALID_REQUEST,
            f"this worker reads the config topic with the id {topic_id.hex()}, and the group's leader reads the one "
            f"with the id {known.config_topic_id.hex()}; check config.storage.topic and bootstrap.servers of the "
            "worker",
        )
