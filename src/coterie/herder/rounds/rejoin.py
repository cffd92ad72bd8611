"""When this worker requests a round of its group. Every request is made by `request_rejoin`."""

from coterie.herder.rounds import protocol_features
from coterie.herder.rounds.state import (
    RejoinAfterConfigLogRead,
    RejoinAfterJobsReleased,
    RejoinForStateChange,
    RejoinReason,
)
from coterie.herder.state import Herder, Turn
from coterie.nouns.jobs import Jobs
from coterie.nouns.membership import Rejoin

RELEASED_REASON = "the revoked jobs have been released"
"""The reason of a round that is requested when all revoked jobs have stopped."""
RELEASED_IN_PART_REASON = "some of the revoked jobs have been released"
"""The reason of a round that is requested when some of the revoked jobs have stopped and others still stop."""


def request_rejoin(turn: Turn, reason: str) -> None:
    """Order the member to rejoin, which starts a round; ``reason`` is sent to the coordinator. Does nothing while the
    worker is leaving."""
    if not turn.herder.lifecycle.is_shutting_down:
        turn.herder.rounds.is_rejoin_requested = True
        turn.emit(Rejoin(reason=reason))


def add_or_replace_reason(turn: Turn, reason: RejoinReason) -> None:
    """Store ``reason``, in place of a stored reason of the same kind. A round is requested for it when the condition of
    its kind is met (:func:`request_rejoin_after_release_or_read`, :func:`request_rejoin_to_report_worker_state`)."""
    drop_reasons(turn, type(reason))
    turn.herder.rounds.rejoin_reasons += (reason,)


def drop_reasons(turn: Turn, *kinds: type[RejoinReason]) -> None:
    """Remove the stored reasons of these kinds: no round is requested for them."""
    rounds = turn.herder.rounds
    rounds.rejoin_reasons = tuple(reason for reason in rounds.rejoin_reasons if not isinstance(reason, kinds))


def has_reason(herder: Herder, kind: type[RejoinReason]) -> bool:
    """Whether a reason of this kind is stored, for which no round has been requested yet."""
    return any(isinstance(reason, kind) for reason in herder.rounds.rejoin_reasons)


def must_await_round_before_leaving(herder: Herder) -> bool:
    """Whether a round must end before this worker may leave: it has requested a round that has not ended, or it has to
    request a round in which the released jobs are assigned to other workers."""
    return has_reason(herder, RejoinAfterJobsReleased) or herder.rounds.is_rejoin_requested


def store_state_change(turn: Turn, reason: str) -> None:
    """Store that a state has changed which this worker reports when it joins, for example that it drains.
    :func:`request_rejoin_to_report_worker_state` then requests the round in which the leader receives the change.
    ``reason`` names the change."""
    add_or_replace_reason(turn, RejoinForStateChange(reason=reason))


def clear_rejoin_request_of_ended_round(turn: Turn) -> None:
    """Record that no requested round is outstanding: a round has ended, or the membership is lost."""
    turn.herder.rounds.is_rejoin_requested = False


def request_rejoin_after_release_or_read(turn: Turn) -> None:
    """Request a round for each stored reason whose condition is met: revoked jobs are released and no round is running,
    or the config log is read to the required offset. :func:`request_rejoin_to_report_worker_state` handles the
    remaining kind, `RejoinForStateChange`."""
    herder = turn.herder
    for reason in herder.rounds.rejoin_reasons:
        match reason:
            # Not while a round is running: its join may have been sent while a revoked job still ran, and then the
            # leader counts this job as owned by this worker. The round after it corrects that.
            case RejoinAfterJobsReleased(unreported_releases=unreported) if herder.place.has_current_assignment:
                _request_rejoin_if_released(turn, unreported)
            case RejoinAfterConfigLogRead(end_offset=end) if herder.has_read_config_to(end):
                drop_reasons(turn, RejoinAfterConfigLogRead)
                request_rejoin(turn, "this worker has read the missing part of the config topic")
            case _:
                pass


def _request_rejoin_if_released(turn: Turn, unreported: Jobs) -> None:
    """Request a round if all revoked jobs are released, or if some of ``unreported`` are and the group's protocol
    permits it. No round is requested for a part of the jobs while another requested round has not ended: the join of
    that round reports all jobs that are released before it. The member delays the join for a short time while revoked
    jobs still stop."""
    herder = turn.herder
    stopping = herder.owned_jobs - herder.place.assigned
    if not stopping:
        drop_reasons(turn, RejoinAfterJobsReleased)
        request_rejoin(turn, RELEASED_REASON)
    elif (
        not herder.rounds.is_rejoin_requested
        and unreported - herder.owned_jobs
        and protocol_features.may_rejoin_after_partial_release(herder)
    ):
        add_or_replace_reason(turn, RejoinAfterJobsReleased(unreported_releases=stopping))
        request_rejoin(turn, RELEASED_IN_PART_REASON)


def request_rejoin_to_report_worker_state(turn: Turn) -> None:
    """If a state that this worker reports when it joins has changed (:func:`store_state_change`), request a round: its
    leader receives the new state. Does nothing if no change is stored."""
    for reason in turn.herder.rounds.rejoin_reasons:
        if isinstance(reason, RejoinForStateChange):
            drop_reasons(turn, RejoinForStateChange)
            request_rejoin(turn, reason.reason)
