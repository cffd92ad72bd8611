"""Requests about workers: the leader's state of the group, and orders to one worker.

The worker that an order names executes it. Every other worker refuses the order, with the URL of the named worker, or
of the leader when it does not have this URL.
"""

from coterie.herder import draining, ending
from coterie.herder.group_view import called, names_of, worker_id_in
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
    turn.order(Reply(id=event.id, answer=leading.group_view_of(turn) or not_leader(turn.herder)))


def on_order(turn: Turn, event: RequestArrived, order: WorkerOrder) -> None:
    answer = _elsewhere(turn.herder, order.worker) or _obey(turn, order)
    turn.order(Reply(id=event.id, answer=answer))


def _obey(turn: Turn, order: WorkerOrder) -> Answer:
    match order:
        case DrainWorker():
            return draining.drain(turn)
        case UncordonWorker():
            return draining.uncordon(turn)
        case RestartWorker(obstacle=obstacle):
            return ending.restart(turn, obstacle)


def _elsewhere(herder: Herder, worker: str) -> RequestRefused | None:
    """The refusal of an order that names another worker; None when it names this worker.

    Only the leader resolves names. The other workers recognize only their own address, which is in the orders that the
    leader forwards.
    """
    if worker == worker_id_in(herder.settings.url):
        return None
    if (dealt := leading.last_computed(herder)) is None:
        return not_leader(herder)
    # A member and its predecessor at the same URL are one worker.
    found = {info.url: info for info in called(dealt.members, worker)}
    match list(found.values()):
        case []:
            known = "; ".join(", ".join(dict.fromkeys(names_of(info))) for info in dealt.members)
            return not_found(f"No worker is called {worker}. The workers of the group: {known}")
        case [info]:
            if info.url == herder.settings.url:
                return None
            message = f"{worker} is another worker, at {info.url}"
            return RequestRefused(problem=Problem.NOT_THIS_WORKER, message=message, leader_url=info.url)
        case several:
            which = ", ".join(info.worker_id for info in several)
            message = f"{len(several)} workers are called {worker}; name one of {which}"
            return RequestRefused(problem=Problem.BAD_REQUEST, message=message)
