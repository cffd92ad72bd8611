"""This worker's membership of its group: its assignment, its reports to the member machine, and its lease.

A worker that has read less of the config log than its group cannot start the jobs that are assigned to it; if it is the
leader, it cannot assign jobs to any worker. Such a worker leaves the group after a rebalance timeout, and rejoins when
it has read the config log up to the group's config offset (KAFKA-9849).
"""

from dataclasses import replace

from coterie.herder.messages import FindConfigLogEnd, LogEndLookupOfLaggingWorker, SetTimer, WriteLogMessage
from coterie.herder.requests.refusals import Problem, RequestRefused
from coterie.herder.state import Herder, InRound, LostMembership, RoundCompleted, RoundFailed, StoppingBeforeJoin, Turn
from coterie.nouns.ids import ConfigOffset, LogPosition, MemberId, WorkerUrl
from coterie.nouns.jobs import NO_JOBS, Jobs
from coterie.nouns.member_state import MemberState
from coterie.nouns.membership import Assigned, LeaseRenewed, LeaveAndRejoin, SetWorkerState


def mark_round_running(turn: Turn, state: MemberState) -> None:
    """Record that a round is running, in which this member has reached ``state``. A worker that has to stop all its
    jobs before it joins the round still has to."""
    place = turn.herder.place
    match place.phase:
        case StoppingBeforeJoin() as standing:
            place.phase = replace(standing, member_state=state)
        case _:
            place.phase = InRound(member_state=state, follows_membership_loss=place.is_lost)


def drop_jobs_before_join_unless_done(turn: Turn) -> bool:
    """Drop all assigned jobs, because this worker must stop them before it joins the round. Returns False, and drops
    nothing, if this was already called in the same round."""
    place = turn.herder.place
    was_known = isinstance(place.phase, StoppingBeforeJoin)
    place.phase = StoppingBeforeJoin(
        member_state=MemberState.PREPARING_REBALANCE, follows_membership_loss=place.is_lost
    )
    if not was_known:
        place.assigned = NO_JOBS
        place.last_worker_state = None  # Sent again even if unchanged, because the member waits for it.
    return not was_known


def allow_join_before_statuses_written(turn: Turn) -> None:
    """Let this worker join the round before the statuses of its stopped jobs are written, because an append of statuses
    has failed; they are still written later. Does nothing unless the worker stops all its jobs before a join."""
    place = turn.herder.place
    match place.phase:
        case StoppingBeforeJoin(member_state=state, follows_membership_loss=follows_loss):
            place.phase = InRound(member_state=state, follows_membership_loss=follows_loss)
        case _:
            pass


def apply_round_result(turn: Turn, event: Assigned, *, has_failed: bool) -> None:
    """Apply the result of a round that has ended; in a connect group, a received assignment. If the round
    ``has_failed``, the jobs assigned to this worker stay unchanged. A worker that is leaving accepts no jobs.

    If this worker has read less of the config log than the group, set the timer of :func:`on_config_lag_timeout`. The
    timer is not moved if this worker has not caught up since an earlier round: it was set then.
    """
    herder, place = turn.herder, turn.herder.place
    place.phase = RoundFailed() if has_failed else RoundCompleted()
    place.member_id, place.epoch = event.member_id, event.epoch
    place.leader, place.leader_url = event.leader, event.leader_url
    was_behind = not herder.has_read_config_to(place.group_config_offset)
    place.group_config_offset, place.config_end_unverified = event.config_offset, has_failed
    if not was_behind and not herder.has_read_config_to(event.config_offset):
        _set_lag_timer(turn)
    if not has_failed:
        place.assignment_offset = event.config_offset
        if not herder.lifecycle.is_shutting_down:
            place.assigned = retained_jobs(place.assigned, event) | event.jobs


def set_rebalance_state_if_assigned(turn: Turn, state: MemberState) -> None:
    """Store ``state``, which says how far this worker is in a rebalance of a connect group. Ignored while this worker
    has no assignment."""
    place = turn.herder.place
    match place.phase:
        case RoundCompleted():
            place.phase = RoundCompleted(member_state=state)
        case _:
            pass


def retained_jobs(before: Jobs, event: Assigned) -> Jobs:
    """The jobs of ``before`` that stay assigned to the worker: none if the event replaces all jobs (in an eager round,
    and always in a connect group), else all but the revoked jobs."""
    return NO_JOBS if event.replaces_all else before - event.revoked


def forget_membership(turn: Turn) -> None:
    """The membership is lost: forget the member id, the leader and the assigned jobs. The next worker state is sent to
    the member even if it is unchanged, because the member waits for it."""
    place = turn.herder.place
    place.phase = LostMembership()
    place.member_id = place.leader = MemberId("")
    place.leader_url = WorkerUrl("")
    place.assigned = NO_JOBS
    place.last_worker_state = None  # Sent again even if unchanged, because the member waits for it.


def drop_jobs(turn: Turn) -> None:
    """Drop all assigned jobs, so that they stop. Called when the worker shuts down."""
    turn.herder.place.assigned = NO_JOBS


def renew_lease(turn: Turn, event: LeaseRenewed) -> None:
    """Store the renewed lease if it ends later than the stored one. A lease with a shorter session timeout than the
    stored one, which the coordinator of a connect group may set, is stored even if it ends earlier."""
    place, before = turn.herder.place, turn.herder.place.lease_renewal
    if (
        before is None
        or event.lease_ends_ms > before.lease_ends_ms
        or event.session_timeout_ms < before.session_timeout_ms
    ):
        place.lease_renewal = event


def send_changed_worker_state_if_allowed(turn: Turn) -> None:
    """Send a ``SetWorkerState`` order to the member if this worker's state has changed since the last order.

    The order, and with it the next join, waits in three cases. A worker that is not a member waits until its runtime is
    open. A worker that stops all its jobs before a join waits until their statuses are written
    (:class:`StoppingBeforeJoin`). After a loss of the membership, a worker waits until it has read the config log up to
    its group's config offset."""
    herder, place = turn.herder, turn.herder.place
    worker_state = SetWorkerState(
        config_offset=herder.config.offset,
        owned=herder.owned_jobs,
        draining=herder.lifecycle.is_draining,
        allowed_jobs_until_restart=herder.allowed_jobs_until_restart,
    )
    awaits_statuses = isinstance(place.phase, StoppingBeforeJoin) and not herder.work.are_statuses_written
    is_out = place.is_lost and not herder.has_read_config_to(place.group_config_offset)
    # A worker does not join before its runtime is open; a relaunched worker is in its group already.
    may_join = herder.lifecycle.is_runtime_open or bool(place.member_id)
    if may_join and worker_state != place.last_worker_state and not awaits_statuses and not is_out:
        place.last_worker_state = worker_state
        turn.emit(worker_state)


def not_leader_refusal(herder: Herder) -> RequestRefused:
    """The refusal of a request that only the leader can serve: with the leader's URL if another worker is the leader,
    else NO_LEADER."""
    if herder.place.leader_url and not herder.place.is_leader_of_last_round:
        message = "Cannot complete request because this worker is not the leader"
        return RequestRefused(problem=Problem.NOT_LEADER, message=message, redirect_url=herder.place.leader_url)
    message = "Cannot complete request momentarily due to no known leader URL, likely because a rebalance was underway."
    return RequestRefused(problem=Problem.NO_LEADER, message=message)


# -- a worker that has read less of the config log than its group -----------------------------------------------------


def on_config_lag_timeout(turn: Turn) -> None:
    """Order the member to leave the group and rejoin if this worker still has read less of the config log than its
    group, a rebalance timeout after it fell behind. If only a member reported the group's config offset, look up the
    log's end offset first."""
    herder, place = turn.herder, turn.herder.place
    if herder.lifecycle.is_shutting_down or herder.has_read_config_to(place.group_config_offset):
        return
    if place.config_end_unverified:
        place.last_lookup_id += 1
        turn.emit(FindConfigLogEnd(purpose=LogEndLookupOfLaggingWorker(log_end_lookup_id=place.last_lookup_id)))
    else:
        _leave_and_rejoin(turn)


def rejoin_unless_log_ends_here(turn: Turn, log_end_lookup_id: int, end_offset: LogPosition | None) -> None:
    """The lookup of :func:`on_config_lag_timeout` has ended; ``end_offset`` None means that the log could not be
    reached. If this worker has read the log to its end, the reported offset is wrong: log a warning and use the end
    offset. Otherwise leave the group and rejoin, and set the timer of :func:`on_config_lag_timeout` again. Does nothing
    after the result of an older lookup, or if this worker has caught up or is leaving."""
    herder, place = turn.herder, turn.herder.place
    if (
        log_end_lookup_id != place.last_lookup_id
        or herder.lifecycle.is_shutting_down
        or herder.has_read_config_to(place.group_config_offset)
    ):
        return
    if end_offset is not None and herder.has_read_config_to(end_offset):
        text = (
            f"A member reported config offset {place.group_config_offset}, but the config topic ends at "
            f"{end_offset}. Check that all "
            "workers have the same config.storage.topic, and whether this topic has lost records."
        )
        turn.emit(WriteLogMessage(text=text, is_warning=True))
        place.group_config_offset = ConfigOffset(end_offset)
        send_changed_worker_state_if_allowed(turn)
    else:
        _leave_and_rejoin(turn)
        _set_lag_timer(turn)


def resign_as_leader(turn: Turn, *, highest_config_offset: ConfigOffset, end_offset: LogPosition) -> None:
    """Order the member to leave the group and rejoin, so that another worker becomes the leader; log a warning. Called
    when most members have read the config log to offsets beyond the end of this worker's config log: they read another
    config topic."""
    place = turn.herder.place
    place.group_config_offset, place.config_end_unverified = highest_config_offset, False
    reason = (
        f"most members reported config offsets beyond {end_offset}, where this worker's config topic ends; the highest "
        f"is {highest_config_offset}. Check config.storage.topic: it must be the same on all workers"
    )
    turn.emit(WriteLogMessage(text=f"This worker leaves the group and rejoins: {reason}", is_warning=True))
    turn.emit(LeaveAndRejoin(reason=reason))


def _leave_and_rejoin(turn: Turn) -> None:
    """Order the member to leave the group and to rejoin, unless the membership is lost already."""
    herder = turn.herder
    if not herder.place.is_lost:
        reason = (
            f"this worker has read the config topic to offset {max(herder.config.offset, 0)} of "
            f"{herder.place.group_config_offset}, and no further within "
            f"rebalance.timeout.ms={herder.settings.rebalance_timeout_ms}"
        )
        turn.emit(LeaveAndRejoin(reason=reason))


def _set_lag_timer(turn: Turn) -> None:
    turn.emit(SetTimer(timer="behind", at_ms=turn.now_ms + turn.herder.settings.rebalance_timeout_ms))
