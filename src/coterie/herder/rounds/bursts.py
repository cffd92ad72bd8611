"""When a change of the set of jobs causes a round: changes within a short time cause one round together.

A created or deleted connector or task needs a round; a changed config does not. Connect runs a round for each change,
so creating 30 connectors takes 46 rounds. Here the first change opens a window (``config.rebalance.window.ms``), at
whose end one round is requested for all changes since then. A round that runs earlier for another reason includes the
changes.

All members read the same log, so each member opens the window and requests the round itself, as in Connect: then the
round does not wait until each member's next heartbeat. A follower that has read the log beyond the offset of the last
assignment may take a change for already assigned; the leader has the exact set of assigned jobs and requests the round.
"""

from coterie.herder.messages import CancelTimer, SetTimer
from coterie.herder.rounds import asking
from coterie.herder.state import Herder, Turn
from coterie.nouns.jobs import ConnectorName, Jobs
from coterie.nouns.states import State


def advance(turn: Turn) -> None:
    herder, rounds = turn.herder, turn.herder.rounds
    if not herder.place.is_settled or rounds.is_asked or herder.life.is_leaving:
        return
    if rounds.assigned_for is None:
        if not herder.place.is_leader and herder.caught_up:
            rounds.assigned_for = herder.config.jobs()
        return
    waits = rounds.window_ends_ms is not None and turn.now_ms < rounds.window_ends_ms
    if waits and rounds.compared_at == herder.config.offset:
        return  # No line was read since then: the difference of large sets is slow, and events are frequent.
    rounds.compared_at = herder.config.offset
    configured = herder.config.jobs()
    if configured == rounds.assigned_for:
        rounds.assigned_for = configured  # The same object: the next comparison of the two large sets is fast.
        close_window(turn)
        return
    more, fewer = configured - rounds.assigned_for, rounds.assigned_for - configured
    if rounds.window_ends_ms is None:
        rounds.window_ends_ms = turn.now_ms + herder.settings.rebalance_window_ms
        turn.order(SetTimer(timer="changed jobs", at_ms=rounds.window_ends_ms))
    if turn.now_ms >= rounds.window_ends_ms or _is_all_of_one(herder, more, fewer):
        close_window(turn)
        asking.ask_for_round(turn, f"the set of jobs has changed: {len(more)} more, {len(fewer)} fewer")


def on_computed(turn: Turn, configured: Jobs) -> None:
    """This leader has computed a round for these jobs."""
    turn.herder.rounds.assigned_for = configured


def forget(turn: Turn) -> None:
    """This worker does not have the set of jobs for which the last round was computed."""
    turn.herder.rounds.assigned_for = None


def close_window(turn: Turn) -> None:
    """Close the window: a round has ended, was requested, or is no longer needed."""
    if turn.herder.rounds.window_ends_ms is not None:
        turn.herder.rounds.window_ends_ms = None
        turn.order(CancelTimer(timer="changed jobs"))


def _is_all_of_one(herder: Herder, more: Jobs, fewer: Jobs) -> bool:
    """Whether the only change is the first commit of one connector's tasks, and no other change is being made. The
    window can then close early: the connector has waited for a window once, before its own round."""
    connectors = {task.connector for task in more.tasks}
    return (
        not fewer
        and not more.connectors
        and len(connectors) == 1
        and all(_has_failed(herder, name) for name in herder.config.unsplit())
        and all(write.kind.request.connector in connectors for write in herder.requests.writes.values())
    )


def _has_failed(herder: Herder, connector: ConnectorName) -> bool:
    """Whether the connector's owner has reported that it cannot be split: then no task configs will follow."""
    status = herder.statuses.get(connector)
    return status is not None and status.state is State.FAILED
