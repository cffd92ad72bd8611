"""Requests about workers: the state of the group, and orders to one worker.

In a classic group only the leader has the view of the group; in a connect group every worker requests it from the
coordinator. The worker that an order names, or that has the task in the order, executes the order. Every other worker
refuses it, with the URL of that worker, or of the leader when it does not have this URL.
"""

from coterie.herder import draining, lifecycle, restarts, tasks, view_requests
from coterie.herder.group_protocol import protocol_of
from coterie.herder.group_view import find_members_by_first_matching_name, names_of_member, worker_id_of_url
from coterie.herder.messages import Reply
from coterie.herder.requests.ids import RequestId
from coterie.herder.requests.kinds import Answer
from coterie.herder.requests.orders import CancelDrain, DrainWorker, RestartConnectorTask, RestartWorker, WorkerOrder
from coterie.herder.requests.refusals import Problem, RequestRefused, SuccessWithoutContent, not_found_refusal
from coterie.herder.requests.views import DescribeWorkerGroup
from coterie.herder.state import GroupRequest, Turn
from coterie.nouns.jobs import ConnectorTaskId


def on_request(turn: Turn, id_: RequestId, request: GroupRequest) -> None:
    """Answer the request, or keep it until the view of the group has arrived (:func:`answer_requests_for_group_view`).
    An order that names this worker by its ``host:port``, or a task that this worker has, is executed at once. In a
    classic group every request is answered at once."""
    match request:
        case DrainWorker() | CancelDrain() | RestartWorker():
            is_for_this_worker = request.worker == worker_id_of_url(turn.herder.settings.url)
        case RestartConnectorTask():
            is_for_this_worker = request.task in turn.herder.place.assigned
        case DescribeWorkerGroup():
            is_for_this_worker = False
    if is_for_this_worker or protocol_of(turn.herder).request_view_unless_ready(turn):
        _answer_or_refuse_group_request(turn, id_, request)
    else:
        view_requests.keep_until_view_arrives(turn, id_, request)


def execute_task_orders_after_log_read(turn: Turn) -> None:
    """Carry out the orders about tasks that have waited for the config log. An order that names an unknown connector or
    task is refused."""
    while turn.task_orders:
        id_, order = turn.task_orders.pop(0)
        if (refusal := restarts.unknown_task_refusal(turn.herder, order)) is not None:
            turn.emit(Reply(id=id_, answer=refusal))
        else:
            on_request(turn, id_, order)


def answer_requests_for_group_view(turn: Turn) -> None:
    """The view of the group has arrived, or could not be read: answer the requests that wait for it."""
    for id_, request in view_requests.take_all(turn):
        _answer_or_refuse_group_request(turn, id_, request)


def _answer_or_refuse_group_request(turn: Turn, id_: RequestId, request: GroupRequest) -> None:
    """Answer with the state of the group, or execute the order if it is for this worker. Otherwise refuse the request:
    the refusal contains the URL of the worker that may execute it, or states that this worker has no view of the
    group."""
    match request:
        case DescribeWorkerGroup():
            answer: Answer = protocol_of(turn.herder).group_view(turn)
        case DrainWorker() | CancelDrain() | RestartWorker() as order:
            # The worker may have begun to end while the order waited.
            refusal = lifecycle.ending_refusal(turn.herder) or _refusal_unless_names_this_worker(turn, order.worker)
            answer = refusal or _execute_worker_order(turn, order)
        case RestartConnectorTask(task=task):
            refusal = lifecycle.ending_refusal(turn.herder) or _refusal_unless_task_assigned_here(turn, task)
            answer = refusal or _restart_task(turn, task)
    turn.emit(Reply(id=id_, answer=answer))


def _restart_task(turn: Turn, task: ConnectorTaskId) -> Answer:
    tasks.restart(turn, task)
    tasks.reconcile(turn)
    return SuccessWithoutContent()


def _refusal_unless_task_assigned_here(turn: Turn, task: ConnectorTaskId) -> RequestRefused | None:
    """The refusal of an order about a task that another worker has, or no worker; None when this worker has the task.
    If the view of the group names the worker that has the task, the refusal contains this worker. If there is no view
    of the group, the refusal contains the reason."""
    if task in turn.herder.place.assigned:
        return None
    group = protocol_of(turn.herder).group_view(turn)
    if isinstance(group, RequestRefused):
        return group
    url = next((info.url for info in group.members if task in info.owned), None)
    if url is None or url == turn.herder.settings.url:
        message = f"Task {task} is assigned to no worker now; retry the request"
        return RequestRefused(problem=Problem.UNASSIGNED, message=message)
    message = f"Task {task} is assigned to another worker, at {url}"
    return RequestRefused(problem=Problem.NOT_THIS_WORKER, message=message, redirect_url=url)


def _execute_worker_order(turn: Turn, order: WorkerOrder) -> Answer:
    match order:
        case DrainWorker():
            return draining.start_drain(turn)
        case CancelDrain():
            return draining.cancel_drain(turn)
        case RestartWorker(settings_error=settings_error, moves_jobs=True):
            return draining.start_drain_before_relaunch(turn, settings_error)
        case RestartWorker(settings_error=settings_error):
            return lifecycle.begin_relaunch(turn, settings_error)


def _refusal_unless_names_this_worker(turn: Turn, worker: str) -> RequestRefused | None:
    """The refusal of an order that names another worker, no worker or several workers; None when it names this worker.

    A worker that has no view of the group (in a classic group: every worker except the leader) recognizes only its own
    ``host:port``, by which the leader's REST API forwards orders.
    """
    herder = turn.herder
    if worker == worker_id_of_url(herder.settings.url):
        return None
    group = protocol_of(herder).group_view(turn)
    if isinstance(group, RequestRefused):
        return group
    # A member and its predecessor at the same URL are one worker.
    found = {info.url: info for info in find_members_by_first_matching_name(group.members, worker)}
    match list(found.values()):
        case []:
            known = "; ".join(", ".join(dict.fromkeys(names_of_member(info))) for info in group.members)
            return not_found_refusal(f"No worker is called {worker}. The workers of the group: {known}")
        case [info]:
            if info.url == herder.settings.url:
                return None
            message = f"{worker} is another worker, at {info.url}"
            return RequestRefused(problem=Problem.NOT_THIS_WORKER, message=message, redirect_url=info.url)
        case several:
            which = ", ".join(info.worker_id for info in several)
            message = f"{len(several)} workers are called {worker}; name one of {which}"
            return RequestRefused(problem=Problem.BAD_REQUEST, message=message)
