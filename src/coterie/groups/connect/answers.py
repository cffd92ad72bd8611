"""The end of each step: members take the next step towards their targets, and heartbeats get their responses.

A response is *held* while it would contain no news: no changed assignment, no order to compute, no changed leader.
Members whose heartbeat is held receive news at once; all others receive it in the response to their next heartbeat.
"""

from dataclasses import replace

from coterie.groups.connect.computation import begin_computation_if_due, end_choice_of_unable_member
from coterie.groups.connect.messages import NO_MEMBER, Heartbeat, MemberRecord, ResponseHoldTimer, SessionTimer
from coterie.groups.connect.reconcile import reconcile
from coterie.groups.connect.revocations import update_revocations_and_timer
from coterie.groups.connect.soft_state import (
    Connected,
    MemberChosenToCompute,
    ResponseContents,
    ResponseWithoutNews,
)
from coterie.groups.connect.state import Group
from coterie.groups.connect.turn import Turn
from coterie.nouns.connect_error_codes import ConnectErrorCode
from coterie.nouns.connect_groups import JOIN_EPOCH, AssignmentToMember, HeartbeatResponse, LeaderOfGroup
from coterie.nouns.ids import MemberId
from coterie.nouns.jobs import Jobs

WAITING_MEMBER_HEARTBEAT_INTERVAL_MS = 200
"""The heartbeat interval that responses give to a member that waits for a job or has one to give back."""


def end_step(turn: Turn, request: Heartbeat | None, *, may_hold: bool = True) -> None:
    """Finish a step: appoint a leader and begin a computation where that is due; move the sender of ``request`` towards
    its target, and respond to it, or hold the response (send it later) if it would contain no news and ``may_hold`` is
    True; and send news to the members whose heartbeats are held. ``request`` is None if the step has no heartbeat to
    respond to."""
    group = turn.group
    # Most steps are heartbeats that change nothing. What is decided for a group that has its target stays as it is.
    if request is None or turn.has_records_or_pending_changes or group.needs_target:
        update_leader_and_computation(turn)
    if request is not None:
        move_member_toward_target(turn, request)
        contents = response_contents_for(group, request.member_id)
        hold_ms = response_hold_ms(group, request, contents) if may_hold else 0
        if hold_ms > 0:
            group.sessions[request.member_id].held_heartbeat = request
            turn.set_timer(ResponseHoldTimer(member_id=request.member_id), turn.now_ms + hold_ms)
        else:
            respond_to_heartbeat(turn, request, contents)
    news_of_all = (group.assignment_epoch, group.leader_epoch, group.leader_url)
    if news_of_all != group.announced:
        group.announced = news_of_all
        for member_id in sorted(group.sessions):
            advance_and_respond_to_held_if_news(turn, member_id)
    elif isinstance(group.computation, MemberChosenToCompute):
        advance_and_respond_to_held_if_news(turn, group.computation.member_id)
    while group.freed:
        owner = group.target_owner.get(group.freed.pop())
        if owner is not None:
            advance_and_respond_to_held_if_news(turn, owner)


def update_leader_and_computation(turn: Turn) -> None:
    """Appoint a leader if no present member is one, write the group record if it changes, choose another member to
    compute if the chosen one has become unable, and begin a computation if one is due."""
    group = turn.group
    if group.metadata is not None or group.members:
        turn.appoint_leader_if_none_present()
    group_epoch = group.group_epoch
    turn.write_group_record_if_changed()
    if group.group_epoch != group_epoch:
        end_choice_of_unable_member(turn)
    begin_computation_if_due(turn)
    turn.write_group_record_if_changed()  # `begin_computation_if_due` may have noted why no member can compute


def advance_and_respond_to_held_if_news(turn: Turn, member_id: MemberId) -> None:
    """If the response to the member's heartbeat is held: change the member's assignment by its next step towards the
    target, and send the response if it now contains something new."""
    session = turn.group.sessions.get(member_id)
    if session is None or session.held_heartbeat is None:
        return
    request = session.held_heartbeat
    if can_assigned_jobs_change(turn.group, member_id):
        move_member_toward_target(turn, request)
    contents = response_contents_for(turn.group, member_id)
    if contents.has_news_since(session.sent_contents):
        session.held_heartbeat = None
        turn.cancel_timer(ResponseHoldTimer(member_id=member_id))
        respond_to_heartbeat(turn, request, contents)


def can_assigned_jobs_change(group: Group, member_id: MemberId) -> bool:
    """Whether the next step towards the target may change the member's assigned jobs: the member has a job to give
    back, or its assigned jobs are not those of its target. False if only the member epoch would change: a new epoch is
    reported when the hold of the member's heartbeat ends."""
    current = group.currents[member_id]
    return bool(current.pending) or current.assigned != group.targets[member_id].target.jobs


def move_member_toward_target(turn: Turn, request: Heartbeat) -> None:
    """Change the assignment of the sender of ``request`` by the next step towards its target. The timer for the jobs
    that the sender has to give back is updated.

    The current assignment is written if it changes. It is also written if it contains a job that the sender has not
    reported, so that the number of this request is in the log. A late older request does not list that job and would
    seem to give it back; by the number it is refused, also after a load.
    """
    group = turn.group
    member_id = request.member_id
    session = group.sessions[member_id]
    before, epoch = group.currents[member_id], group.assignment_epoch_to_reach(member_id)
    after = before
    if epoch is not None:
        after = reconcile(
            before,
            target=group.targets[member_id].target.jobs,
            assignment_epoch=epoch,
            request_epoch=request.member_epoch,
            owned=request.owned,
            # A job of this member's target that it still holds is one that it gives back with this request.
            is_free=lambda job: group.holder.get(job, member_id) == member_id and job not in group.second_holders,
            is_in_a_target=group.target_owner.__contains__,
            has_received_responses=session.has_confirmed_all_responses,
        )
    reported = (
        request.owned if request.owned is not None or session.sent_contents is None else session.sent_contents.jobs
    )
    is_listed = reported is not None and (after.assigned == reported or after.assigned <= reported)
    if after != before or (not is_listed and after.assigned and before.request_number < session.request_number):
        turn.write(replace(after, request_number=session.request_number))
    update_revocations_and_timer(turn, member_id)


def response_hold_ms(group: Group, request: Heartbeat, contents: ResponseContents) -> int:
    """How long the response to ``request``, with these ``contents``, may be held, in ms; 0 if it must be sent now.

    The response is sent now if it contains news. It is also sent now if ``request`` has all fields, because the member
    may not have received an earlier response, except in two cases:

    - The member has certainly received every response, and its epoch has not changed. This is so while the member gives
      its jobs back one after the other, with one heartbeat for each job.
    - The request repeats a join, because the member has no target yet. A member sets ``max_wait_ms`` in such a request
      only if it has received the response to its join.
    """
    if contents.has_news_since(group.sessions[request.member_id].sent_contents):
        return 0
    if request.has_all_fields and not (
        has_received_every_response(group, request) or still_awaits_first_target(group, request)
    ):
        return 0
    metadata = group.members[request.member_id]
    return group.settings.response_hold_ms(
        request.max_wait_ms, metadata.session_timeout_ms, metadata.connection_grace_ms
    )


def has_received_every_response(group: Group, request: Heartbeat) -> bool:
    """Whether the sender of ``request`` has certainly received the contents of all earlier responses, its member epoch
    included."""
    is_epoch_known = request.member_epoch == group.currents[request.member_id].member_epoch
    return is_epoch_known and group.sessions[request.member_id].has_confirmed_all_responses


def still_awaits_first_target(group: Group, request: Heartbeat) -> bool:
    """Whether the member has joined and was moved to no target since, so that its heartbeats still have the epoch of a
    join."""
    return request.member_epoch == JOIN_EPOCH == group.currents[request.member_id].member_epoch


def response_contents_for(group: Group, member_id: MemberId) -> ResponseContents:
    """The values that a response to the member would contain now: its jobs, the leader, the session timeout, and the
    order to compute if the member was chosen for that."""
    chosen = group.computation if isinstance(group.computation, MemberChosenToCompute) else None
    return ResponseContents(
        jobs=group.currents[member_id].assigned,
        leader_epoch=group.leader_epoch,
        leader_url=group.leader_url,
        session_timeout_ms=group.settings.session_timeout_ms,
        chosen_computation=chosen if chosen is not None and chosen.member_id == member_id else None,
    )


def respond_to_heartbeat(turn: Turn, request: Heartbeat, contents: ResponseContents) -> None:
    """Send the response to ``request``, with these ``contents``. Fields whose values the member has received, or has
    itself sent in ``request``, are left out, unless ``request`` is a join or has all fields. A longer session timeout
    in the response applies to the member at once."""
    group = turn.group
    member_id = request.member_id
    session, current = group.sessions[member_id], group.currents[member_id]
    sent = session.sent_contents
    if request.member_epoch != current.member_epoch or contents.has_news_since(sent):
        session.has_confirmed_all_responses = False  # until a request shows that the member has received this response
    # A response to a join, or to a request with all fields, leaves nothing out.
    known = None if request.member_epoch == JOIN_EPOCH or request.has_all_fields else sent
    has_assignment = known is None or contents.jobs != (request.owned if request.owned is not None else known.jobs)
    has_leader = known is None or (contents.leader_epoch, contents.leader_url) != (known.leader_epoch, known.leader_url)
    has_timeout = known is None or contents.session_timeout_ms != known.session_timeout_ms
    if has_timeout:
        apply_session_timeout_if_longer(turn, group.members[member_id], contents.session_timeout_ms)
    response = HeartbeatResponse(
        error=ConnectErrorCode.NONE if contents.chosen_computation is None else ConnectErrorCode.COMPUTE_ASSIGNMENT,
        member_epoch=current.member_epoch,
        heartbeat_interval_ms=WAITING_MEMBER_HEARTBEAT_INTERVAL_MS
        if has_jobs_to_await_or_release(group, member_id)
        else group.settings.heartbeat_interval_ms,
        assignment=assignment_in_response(group, member_id) if has_assignment else None,
        leader=leader_in_response(group) if has_leader else None,
        session_timeout_ms=contents.session_timeout_ms if has_timeout else None,
    )
    turn.reply(request.reply_to, response)
    session.sent_contents = contents
    has_news = has_assignment or has_leader or has_timeout or contents.chosen_computation is not None
    session.response_without_news = (
        None if has_news or turn.has_records_or_pending_changes else ResponseWithoutNews(response, group.record_count)
    )


def answer_heartbeat_if_without_news(turn: Turn, request: Heartbeat) -> bool:
    """If the heartbeat ``request`` has a new number and reports no change, and the group has not changed since the last
    response to its sender: renew the session, and send a response with the same content. Returns whether that was done.
    Otherwise nothing is changed.

    This is a shorter way to what a whole step would do (`tests/groups/connect/test_repeated_heartbeats.py` compares
    the two): the whole step takes three times as long, and nearly every heartbeat of a group without news is such a
    request. Heartbeats whose response may be held always take the whole step.
    """
    group = turn.group
    session = group.sessions.get(request.member_id)
    if session is None or (last := session.response_without_news) is None:
        return False
    connection = session.connection
    if (
        last.record_count != group.record_count
        or request.reports_changes
        or request.member_epoch != last.response.member_epoch
        or request.request_number <= session.request_number
        or request.max_wait_ms
        or session.held_heartbeat is not None
        or not session.has_confirmed_all_responses
        or not isinstance(connection, Connected)
        or connection.connection_number != request.connection_number
        or connection.resumes
        or group.needs_target
    ):
        return False
    session.request_number = request.request_number
    renew_session(turn, request.member_id)
    turn.reply(request.reply_to, last.response)
    return True


def has_jobs_to_await_or_release(group: Group, member_id: MemberId) -> bool:
    """Whether the member has a job to give back, or waits for a job or for its first target."""
    current = group.currents[member_id]
    if current.pending or len(current.assigned) != len(group.targets[member_id].target.jobs):
        return True
    return group.needs_target and group.assignment_epoch_to_reach(member_id) is None


def assignment_in_response(group: Group, member_id: MemberId) -> AssignmentToMember:
    """The member's current assignment, in the form of heartbeat responses."""
    current, target = group.currents[member_id], group.targets[member_id].target
    return AssignmentToMember(
        jobs=current.assigned,
        jobs_by_assignment_epoch={
            epoch: assigned
            for epoch, jobs in sorted(current.job_epochs.items())
            if (assigned := jobs & current.assigned) != Jobs()
        },
        assignment_epoch=group.assignment_epoch,
        config_offset=group.config_offset,
        version=target.version,
        metadata=target.metadata,
    )


def leader_in_response(group: Group) -> LeaderOfGroup:
    """The group's leader, in the form of heartbeat responses; without a leader, its member id and URL are empty."""
    return LeaderOfGroup(member_id=group.leader or NO_MEMBER, leader_epoch=group.leader_epoch, url=group.leader_url)


# -- sessions ----------------------------------------------------------------------------------------------------------


def renew_session(turn: Turn, member_id: MemberId) -> None:
    """Renew the member's session: it ends a session timeout from now.

    The timer is set only if it is not set, or would fire too late. A timer that fires before the session ends is set
    again then: once for each session timeout, instead of once for each heartbeat.
    """
    group = turn.group
    session, timer = group.sessions[member_id], SessionTimer(member_id=member_id)
    session.ends_at_ms = turn.now_ms + group.members[member_id].session_timeout_ms
    deadline_ms = group.deadlines.get(timer)
    if deadline_ms is None or deadline_ms > session.ends_at_ms:
        turn.set_timer(timer, session.ends_at_ms)


def apply_session_timeout_if_longer(turn: Turn, metadata: MemberRecord, timeout_ms: int) -> None:
    """Apply the session timeout ``timeout_ms``, which a response is about to report to the member, if it is longer than
    the member's present one: the member's lease depends on it as soon as the member has received it. A shorter timeout
    applies only from the member's next request on (`apply_confirmed_shorter_session_timeout`)."""
    if timeout_ms > metadata.session_timeout_ms:
        turn.write(replace(metadata, session_timeout_ms=timeout_ms))
        renew_session(turn, metadata.member_id)


def apply_confirmed_shorter_session_timeout(turn: Turn, request: Heartbeat) -> None:
    """Apply the session timeout of the last response to the sender of ``request``, if it is shorter than the present
    one and ``request`` proves that the sender has received that response.

    A request with all fields does not prove it: members send all fields while another request is unanswered, and after
    a lost response.
    """
    group, member_id = turn.group, request.member_id
    metadata, sent = group.members[member_id], group.sessions[member_id].sent_contents
    if sent is not None and sent.session_timeout_ms < metadata.session_timeout_ms and not request.has_all_fields:
        turn.write(replace(metadata, session_timeout_ms=sent.session_timeout_ms))
