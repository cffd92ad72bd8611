"""When a set of jobs that has changed becomes a round: changes that come close together make one.

Connectors or tasks that come or go need a round; a config that only changes does not. Connect makes a round of each,
so that creating 30 connectors takes 46 of them. Here the first change opens a window
(``config.rebalance.window.ms``), and its end asks for one round for all that has come by then. A round that comes
anyway takes the changes in.

All members read the same log, so each opens the window and asks by itself, as Connect's do: then the round waits for
nobody's next heartbeat. Where a follower has read on beyond what was dealt out it may take a change for dealt out; the
leader, which knows, asks then.
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
        return  # Nothing was read since: differences of large sets take long, and events are many.
    rounds.compared_at = herder.config.offset
    configured = herder.config.jobs()
    if configured == rounds.assigned_for:
        rounds.assigned_for = configured  # The same object: two large sets are compared once a line, not at each event.
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
    """It is not known here for which jobs the last round was computed."""
    turn.herder.rounds.assigned_for = None


def close_window(turn: Turn) -> None:
    """A round has come, was asked for, or is needed no longer."""
    if turn.herder.rounds.window_ends_ms is not None:
        turn.herder.rounds.window_ends_ms = None
        turn.order(CancelTimer(timer="changed jobs"))


def _is_all_of_one(herder: Herder, more: Jobs, fewer: Jobs) -> bool:
    """All tasks of one connector have come, and nothing else is on its way: it has waited once, for its first round."""
    connectors = {task.connector for task in more.tasks}
    return (
        not fewer
        and not more.connectors
        and len(connectors) == 1
        and all(_has_failed(herder, name) for name in herder.config.unsplit())
        and all(write.kind.request.connector in connectors for write in herder.requests.writes.values())
    )


def _has_failed(herder: Herder, connector: ConnectorName) -> bool:
    """Its owner says that it cannot be split: nobody waits for its tasks."""
    status = herder.statuses.get(connector)
    return status is not None and status.state is State.FAILED
