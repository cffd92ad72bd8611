"""Requests about workers: the state of the group, which the leader returns, and orders to one worker.

The worker that an order names executes the order. Every other worker refuses it, with the URL of the named worker, or
of the leader when it does not have this URL.
"""

from coterie.herder import draining, lifecycle
from coterie.herder.group_protocol import protocol_of
from coterie.herder.group_view import find_members, names_of, worker_id_in
from coterie.herder.messages import Reply, RequestArrived
from coterie.herder.requests.kinds import Answer
from coterie.herder.requests.orders import DrainWorker, RestartWorker, UncordonWorker, WorkerOrder
from coterie.herder.requests.refusals import Problem, RequestRefused, not_found
from coterie.herder.requests.views import DescribeWorkerGroup
from coterie.herder.state import Turn


def on_request(turn: Turn, event: RequestArrived) -> None:
    """Answer a request about workers, or keep it until the view of the group has arrived (:func:`on_described`). An
    order that names this worker by its ``host:port`` is executed at once."""
    request = event.request
    names_this_worker = isinstance(request, WorkerOrder) and request.worker == worker_id_in(turn.herder.settings.url)
    if names_this_worker or protocol_of(turn.herder).request_group_view(turn):
        _answer(turn, event)
    else:
        turn.herder.requests.awaiting_group_view += (event,)


def on_described(turn: Turn) -> None:
    """The view of the group has arrived, or could not be had: answer the requests that wait for it."""
    waiting, turn.herder.requests.awaiting_group_view = turn.herder.requests.awaiting_group_view, ()
    for event in waiting:
        _answer(turn, event)


def _answer(turn: Turn, event: RequestArrived) -> None:
    """Answer with the state of the group, or execute the order if it names this worker. Otherwise refuse the request:
    the refusal contains the URL of the worker that may execute it, or states that this worker has no view of the
    group."""
    match event.request:
        case DescribeWorkerGroup():
            answer: Answer = protocol_of(turn.herder).group_view(turn)
        case DrainWorker() | UncordonWorker() | RestartWorker() as order:
            answer = _refusal_if_other_worker(turn, order.worker) or _execute(turn, order)
        case request:
            raise AssertionError(f"{type(request).__name__} is no request about workers")
    turn.emit(Reply(id=event.id, answer=answer))


def _execute(turn: Turn, order: WorkerOrder) -> Answer:
    match order:
        case DrainWorker():
            return draining.drain(turn)
        case UncordonWorker():
            return draining.uncordon(turn)
        case RestartWorker(settings_error=obstacle):
            return lifecycle.begin_relaunch(turn, obstacle)


def _refusal_if_other_worker(turn: Turn, worker: str) -> RequestRefused | None:
    """The refusal of an order that names another worker, no worker or several workers; None when it names this worker.

    Only the leader can find a worker by its name or instance id. Every other worker recognizes only its own
    ``host:port``, by which the leader's REST API forwards orders.
    """
    herder = turn.herder
    if worker == worker_id_in(herder.settings.url):
        return None
    group = protocol_of(herder).group_view(turn)
    if isinstance(group, RequestRefused):
        return group
    # A member and its predecessor at the same URL are one worker.
    found = {info.url: info for info in find_members(group.members, worker)}
    match list(found.values()):
        case []:
            known = "; ".join(", ".join(dict.fromkeys(names_of(info))) for info in group.members)
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
