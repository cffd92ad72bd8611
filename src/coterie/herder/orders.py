"""Requests about workers: the state of the group, which the leader returns, and orders to one worker.

The worker that an order names executes the order. Every other worker refuses it, with the URL of the named worker, or
of the leader when it does not have this URL.
"""

from coterie.herder import draining, lifecycle
from coterie.herder.group_view import find_members, names_of, worker_id_in
from coterie.herder.messages import Reply, RequestArrived
from coterie.herder.requests import (
    Answer,
    DrainWorker,
    Problem,
    RequestRefused,
    RestartWorker,
    UncordonWorker,
    WorkerOrder,
    not_found,
)
from coterie.herder.rounds import leading
from coterie.herder.state import Herder, Turn
from coterie.herder.writes import not_leader


def on_describe(turn: Turn, event: RequestArrived) -> None:
    """Answer with the leader's state of the group; refused if this worker is not the leader, or has computed no
    round."""
    turn.emit(Reply(id=event.id, answer=leading.group_view_of(turn) or not_leader(turn.herder)))


def on_order(turn: Turn, event: RequestArrived, order: WorkerOrder) -> None:
    """Execute the order if it names this worker, else refuse it, with the URL of the worker that may execute it."""
    answer = _refusal_if_other_worker(turn.herder, order.worker) or _execute(turn, order)
    turn.emit(Reply(id=event.id, answer=answer))


def _execute(turn: Turn, order: WorkerOrder) -> Answer:
    match order:
        case DrainWorker():
            return draining.drain(turn)
        case UncordonWorker():
            return draining.uncordon(turn)
        case RestartWorker(settings_error=obstacle):
            return lifecycle.begin_relaunch(turn, obstacle)


def _refusal_if_other_worker(herder: Herder, worker: str) -> RequestRefused | None:
    """The refusal of an order that names another worker, no worker or several workers; None when it names this worker.

    Only the leader can find a worker by its name or instance id. Every other worker recognizes only its own
    ``host:port``, by which the leader's REST API forwards orders.
    """
    if worker == worker_id_in(herder.settings.url):
        return None
    if (dealt := leading.last_round_of(herder)) is None:
        return not_leader(herder)
    # A member and its predecessor at the same URL are one worker.
    found = {info.url: info for info in find_members(dealt.members, worker)}
    match list(found.values()):
        case []:
            known = "; ".join(", ".join(dict.fromkeys(names_of(info))) for info in dealt.members)
            return not_found(f"No worker is called {worker}. The workers of the group: {known}")
        case [info]:
            if info.url == herder.settings.url:
                return None
            message = f"{worker} is another worker, at {info.url}"
            return RequestRefused(problem=Problem.NOT_THIS_WORKER, message=message, redirect_url=info.url)
        case several:
            which = ", ".join(info.worker_id for info in several)
            message = f"{len(several)} workers are called {worker}; name one of {which}"
            return RequestRefused(problem=Problem.BAD_REQUEST, message=message)
