"""When a change of the set of jobs causes a round. Changes within a short time cause one round together.

A created or deleted connector or task needs a round; a changed config does not. Connect runs a round for each change,
so creating 30 connectors takes 46 rounds. Here the first change opens a window (``config.rebalance.window.ms``), at
whose end one round is requested for all changes since the window was opened. A round that runs earlier for another
reason includes the changes.

All members read the same log, so each member opens the window and requests the round itself, as in Connect: then the
round does not wait until each member's next heartbeat. A follower that has read the log beyond the offset of the last
assignment may consider a changed job as already assigned; the leader has the exact set of assigned jobs and requests
the round.
"""

from coterie.herder.messages import CancelTimer, SetTimer
from coterie.herder.rounds import rejoin
from coterie.herder.state import Herder, Turn
from coterie.nouns.jobs import ConnectorName, Jobs
from coterie.nouns.states import JobState


def update_window_and_rejoin_when_ended(turn: Turn) -> None:
    """Open the window if the set of configured jobs differs from the set of the last round, and close it if the sets
    are equal again. Request a round if the window has ended, or if it can end early
    (:func:`_may_end_window_early`). Does nothing while a round is running or requested, or the worker is
    leaving.

    A follower of another worker's round does not have the set of the last round. When it has read the config log to the
    offset of the last assignment, it stores the present set instead; until then, it opens no window."""
    herder, rounds = turn.herder, turn.herder.rounds
    if not herder.place.has_current_assignment or rounds.is_rejoin_requested or herder.lifecycle.is_shutting_down:
        return
    if rounds.computed_round_jobs is None:
        if not herder.place.is_leader_with_current_assignment and herder.is_caught_up:
            rounds.computed_round_jobs = herder.config.jobs()
        return
    waits = rounds.window_ends_ms is not None and turn.now_ms < rounds.window_ends_ms
    if waits and rounds.compared_config_offset == herder.config.offset:
        return  # No line was read since then: the difference of large sets is slow, and events are frequent.
    rounds.compared_config_offset = herder.config.offset
    configured = herder.config.jobs()
    if configured == rounds.computed_round_jobs:
        rounds.computed_round_jobs = configured  # The same object: the next comparison of the two large sets is fast.
        cancel_rebalance_window(turn)
        return
    more, fewer = configured - rounds.computed_round_jobs, rounds.computed_round_jobs - configured
    if rounds.window_ends_ms is None:
        rounds.window_ends_ms = turn.now_ms + herder.settings.rebalance_window_ms
        turn.emit(SetTimer(timer="changed jobs", at_ms=rounds.window_ends_ms))
    if turn.now_ms >= rounds.window_ends_ms or _may_end_window_early(herder, more, fewer):
        cancel_rebalance_window(turn)
        rejoin.request_rejoin(turn, f"the set of jobs has changed: {len(more)} more, {len(fewer)} fewer")


def store_jobs_of_computed_round(turn: Turn, configured: Jobs) -> None:
    """Store ``configured``, the jobs for which this leader has computed a round."""
    turn.herder.rounds.computed_round_jobs = configured


def forget_jobs_of_computed_round(turn: Turn) -> None:
    """Forget the set of jobs of the last round, because another leader computed that round. This worker then uses the
    set of configured jobs when it has read the config log to the offset of the last assignment."""
    turn.herder.rounds.computed_round_jobs = None


def cancel_rebalance_window(turn: Turn) -> None:
    """Close the window, if it is open, and cancel its timer, because a round has ended or was requested, or no change
    is left. Requests no round."""
    if turn.herder.rounds.window_ends_ms is not None:
        turn.herder.rounds.window_ends_ms = None
        turn.emit(CancelTimer(timer="changed jobs"))


def _may_end_window_early(herder: Herder, more: Jobs, fewer: Jobs) -> bool:
    """Whether the only change is additional tasks of one connector (normally its first commit), every connector that is
    still to be split has the status FAILED, and no write to another connector is pending. The window can then close
    early: the connector has already waited for one window, before the round in which it was assigned."""
    connectors = {task.connector for task in more.tasks}
    return (
        not fewer
        and not more.connectors
        and len(connectors) == 1
        and all(_is_connector_failed(herder, name) for name in herder.config.connectors_to_split())
        and all(write.kind.request.connector in connectors for write in herder.requests.writes.values())
    )


def _is_connector_failed(herder: Herder, connector: ConnectorName) -> bool:
    """Whether the connector has the status FAILED, whatever the cause. Callers take this as: its owner could not split
    it, so no task configs will follow."""
    status = herder.statuses.get(connector)
    return status is not None and status.state is JobState.FAILED
