"""A member's part in a round: a round begins, it ends with an assignment, or the membership is lost."""

from coterie.herder import place, statuses
from coterie.herder.messages import CancelTimer, SetTimer, WriteLogMessage
from coterie.herder.rounds import leading, protocol_features, rebalance_window, rejoin
from coterie.herder.rounds.state import RejoinAfterConfigLogRead, RejoinAfterJobsReleased
from coterie.herder.state import Herder, Turn
from coterie.nouns.ids import GenerationId
from coterie.nouns.jobs import NO_JOBS, Jobs
from coterie.nouns.member_state import MemberState
from coterie.nouns.membership import Assigned, ClassicMembershipHandover, MembershipLost
from coterie.wire.connect import AssignmentErrorCode, ClassicAssignmentDetails


def on_round_begun(turn: Turn, state: MemberState) -> None:
    """A round has begun: this worker has sent JoinGroup. An assignment of an earlier round that was to be computed is
    dropped."""
    place.mark_round_running(turn, state)
    leading.drop_pending_assignment(turn)


def on_stop_all_before_join(turn: Turn) -> None:
    """A round of an eager group has begun, which this worker joins only after all its tasks have stopped: drop all its
    jobs."""
    leading.drop_pending_assignment(turn)
    if place.drop_jobs_before_join_unless_done(turn):
        turn.emit(
            WriteLogMessage(text="Rebalance with protocol eager: this worker stops all its tasks before it rejoins")
        )
        rejoin.drop_reasons(turn, RejoinAfterJobsReleased)


def on_assigned(turn: Turn, event: Assigned) -> None:
    """A round has ended: apply its result, log it, and store for which reasons another round must follow. A failed
    round changes no assignment. The leader also writes the statuses of unassigned and deleted jobs."""
    herder, result = turn.herder, ClassicAssignmentDetails.checked_instance(event.protocol_details)
    is_repeated_answer = not herder.place.is_lost and event.epoch == herder.place.epoch
    has_failed = result.error is not AssignmentErrorCode.NO_ERROR
    herder.rounds.protocol = result.protocol
    rejoin.clear_rejoin_request_of_ended_round(turn)
    rebalance_window.cancel_rebalance_window(turn)
    leading.drop_pending_assignment(turn)
    if event.leader != event.member_id:
        rebalance_window.forget_jobs_of_computed_round(turn)
        leading.forget_last_round(turn)
    turn.emit(WriteLogMessage(text=_round_summary(event)))
    place.apply_round_result(turn, event, has_failed=has_failed)
    rejoin.drop_reasons(turn, RejoinAfterConfigLogRead)
    if has_failed:
        # All members keep their jobs. A worker whose config log lagged requests another round when it has caught up;
        # the leader's config log lagged in this round, even if it has caught up since then.
        if event.leader == event.member_id or not herder.has_read_config_to(event.config_offset):
            rejoin.add_or_replace_reason(turn, RejoinAfterConfigLogRead(end_offset=event.config_offset))
        return
    herder.rounds.last_completed_generation = GenerationId(event.epoch)
    if event.replaces_all:
        # Each member has stopped all its jobs before, or stops them now: no job can be lost by dropping the memory.
        leading.reset_assignor_state(turn)
        rejoin.drop_reasons(turn, RejoinAfterJobsReleased)
        if must_rejoin_after_empty_eager_round(herder.rounds.computed_round_jobs, configured=herder.config.jobs()):
            rejoin.add_or_replace_reason(turn, RejoinAfterJobsReleased())
    if not herder.lifecycle.is_shutting_down and _needs_rejoin_after_release(herder, event.revoked):
        # A deleted job is assigned to no worker: no round need follow its release while other jobs still stop.
        unreported = event.revoked & herder.config.jobs() if herder.is_caught_up else event.revoked
        rejoin.add_or_replace_reason(turn, RejoinAfterJobsReleased(unreported_releases=unreported))
    if not is_repeated_answer:
        # A follower that rejoins may receive the current generation again, whose delay started earlier.
        _set_rebalance_delay_timer(turn, result.delay_ms)
        herder.rounds.completed_rounds += 1
    if herder.place.is_leader_with_current_assignment:
        leading.set_postponed_moves_timer(turn)
        statuses.delete_orphaned_statuses(turn)
        statuses.report_unassigned_jobs(turn, leading.unassigned_reasons(herder))


def must_rejoin_after_empty_eager_round(computed_round_jobs: Jobs | None, *, configured: Jobs) -> bool:
    """Whether this leader must request the next round, because its eager round assigned no job although jobs are
    configured: not all members had stopped their tasks. ``computed_round_jobs`` is the set of jobs that the round
    assigned (None: this worker did not compute the round)."""
    return computed_round_jobs == NO_JOBS and bool(configured)


def resume_inherited_membership(turn: Turn) -> None:
    """The runtime is open: set the timer of the scheduled rebalance delay that the previous process has received, if
    one runs. (The member joins after the first `SetWorkerState` order, which `place` sends.)"""
    if turn.herder.rounds.rebalance_delay_ends_ms is not None:
        turn.emit(SetTimer(timer="delay over", at_ms=turn.herder.rounds.rebalance_delay_ends_ms))


def on_membership_lost(turn: Turn, event: MembershipLost) -> None:
    """The membership is lost: drop all jobs, so that all tasks stop, and forget the results of earlier rounds. The
    member rejoins, with no owned jobs, when all tasks have stopped."""
    text = f"The group membership is lost; this worker stops all its tasks, and rejoins unless it ends: {event.reason}"
    turn.emit(WriteLogMessage(text=text))
    place.forget_membership(turn)
    rejoin.clear_rejoin_request_of_ended_round(turn)
    rejoin.drop_reasons(turn, RejoinAfterConfigLogRead, RejoinAfterJobsReleased)
    rebalance_window.cancel_rebalance_window(turn)
    rebalance_window.forget_jobs_of_computed_round(turn)
    leading.drop_pending_assignment(turn)
    leading.forget_last_round(turn)
    # A group that its coordinator has lost starts its generations at 1 again: an old memory could pass for a new one.
    leading.reset_assignor_state(turn)
    _set_rebalance_delay_timer(turn, 0)


def request_rejoin_if_timers_due(turn: Turn) -> None:
    """Request a round if the scheduled rebalance delay has ended, or if this worker is the leader and the time has come
    at which postponed moves may continue. Does nothing while a round is running."""
    rounds = turn.herder.rounds
    # Not while a round is running: its end brings a new delay.
    if (
        turn.herder.place.has_current_assignment
        and rounds.rebalance_delay_ends_ms is not None
        and turn.now_ms >= rounds.rebalance_delay_ends_ms
    ):
        rounds.rebalance_delay_ends_ms = None
        rejoin.request_rejoin(turn, "the scheduled rebalance delay is over")
    if leading.clear_moves_deadline_if_due(turn):
        rejoin.request_rejoin(turn, "the time has come to continue postponed moves of jobs")


def membership_handover(herder: Herder) -> ClassicMembershipHandover | None:
    """The membership that the relaunched process continues; None when this worker is not a member, or has ended no
    round yet."""
    here, protocol = herder.place, protocol_features.protocol_name(herder)
    if protocol is None or not here.member_id:
        return None
    return ClassicMembershipHandover(
        member_id=here.member_id,
        generation=GenerationId(here.epoch),
        protocol=protocol,
        leader=here.leader,
        leader_url=here.leader_url,
        config_offset=here.assignment_offset,
        jobs=here.assigned,
        rebalance_delay_ends_ms=herder.rounds.rebalance_delay_ends_ms,
        may_have_missed_protocol_change=not here.has_current_assignment,
        must_start_rebalance=here.is_leader_of_last_round
        or rejoin.has_reason(herder, RejoinAfterJobsReleased)
        or not here.has_current_assignment
        or herder.allowed_jobs_until_restart is not None,  # The next process takes new jobs again.
    )


def _needs_rejoin_after_release(herder: Herder, revoked: Jobs) -> bool:
    """Whether a round must follow the release of the ``revoked`` jobs. True if one of them is still configured, because
    another worker must receive it; this worker assumes that if its config log is behind.

    If all of them were deleted, a round is needed only if one still runs here. This worker may have reported it as
    owned, and if it is created again, the leader would count it as owned by this worker."""
    exists = not herder.is_caught_up or bool(revoked & herder.config.jobs())
    return bool(revoked) and (exists or bool(revoked & herder.owned_jobs))


def _round_summary(event: Assigned) -> str:
    """The result of a round for this worker, as a log message."""
    result = ClassicAssignmentDetails.checked_instance(event.protocol_details)
    given = ", ".join(map(str, event.jobs)) or "nothing"
    back = ", ".join(map(str, event.revoked)) or "nothing"
    waits = f"; the next rebalance is in {result.delay_ms} ms" if result.delay_ms else ""
    wrong = f"; {result.error.name}" if result.error else ""
    return (
        f"Generation {event.epoch} (protocol {result.protocol.setting}), led by {event.leader_url}: "
        f"assigned {given}; revoked {back}{waits}{wrong}"
    )


def _set_rebalance_delay_timer(turn: Turn, delay_ms: int) -> None:
    """Set the timer of the scheduled rebalance delay to ``delay_ms`` from now; 0 cancels it."""
    rounds = turn.herder.rounds
    if delay_ms > 0:
        rounds.rebalance_delay_ends_ms = turn.now_ms + delay_ms
        turn.emit(SetTimer(timer="delay over", at_ms=rounds.rebalance_delay_ends_ms))
    elif rounds.rebalance_delay_ends_ms is not None:
        rounds.rebalance_delay_ends_ms = None
        turn.emit(CancelTimer(timer="delay over"))
