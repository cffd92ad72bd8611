"""Responses to reads, from the state of the config log and the status log.

A read never fails because of a rebalance. It waits until the config log is read to the end offset that the log had at
the request. When that takes longer than ``worker.sync.timeout.ms``, or the log cannot be reached, the response contains
the state read so far.
"""

from collections.abc import Iterable

from coterie.herder import offsets
from coterie.herder.descriptions import connector_status, describe_connector
from coterie.herder.messages import CancelTimer, FindConfigLogEnd, LogEndLookupForRead, Reply, RequestArrived, SetTimer
from coterie.herder.requests.ids import RequestId
from coterie.herder.requests.kinds import Answer
from coterie.herder.requests.orders import RestartConnectorTask
from coterie.herder.requests.reads import (
    ConnectorDescriptions,
    ConnectorInfo,
    ConnectorNames,
    DescribeConnector,
    DescribeConnectorOffsets,
    DescribeConnectors,
    DescribeConnectorStatus,
    DescribeTaskConfigs,
    DescribeTaskStatus,
    ListConnectors,
    Read,
    ReadAnsweredFromLogs,
    TaskConfigs,
    TaskStatus,
)
from coterie.herder.requests.refusals import Problem, RequestRefused, not_found_refusal, unknown_connector_refusal
from coterie.herder.state import Herder, PendingRead, Turn
from coterie.herder.timers import RequestTimeoutDue
from coterie.nouns.ids import LogPosition
from coterie.nouns.jobs import ConnectorName


def on_request(turn: Turn, event: RequestArrived, request: Read | RestartConnectorTask) -> None:
    """Look up the log's end offset for the read or the order, and set its time limit. A DescribeConnectors is answered
    at once, from the state read so far."""
    if isinstance(request, DescribeConnectors):
        turn.emit(Reply(id=event.id, answer=answer_from_state(turn.herder, request)))
        return
    turn.herder.requests.reads[event.id] = PendingRead(request)
    turn.emit(SetTimer(timer=RequestTimeoutDue(id=event.id), at_ms=turn.now_ms + turn.herder.settings.sync_timeout_ms))
    turn.emit(FindConfigLogEnd(purpose=LogEndLookupForRead(id=event.id)))


def on_config_log_end_lookup_ended(turn: Turn, id_: RequestId, end_offset: LogPosition | None) -> None:
    """The read waits until the log is read to ``end_offset``; with None (the log could not be reached) it is answered
    at once."""
    read = turn.herder.requests.reads.get(id_)
    if read is None:
        return
    if end_offset is None:
        _answer_or_continue_read(turn, id_, read)
    else:
        read.end_offset = end_offset


def answer_read_on_timeout(turn: Turn, id_: RequestId) -> None:
    """The time limit is over: answer the read with the state read so far, or continue the order. Does nothing for an
    unknown id, for example of a write."""
    read = turn.herder.requests.reads.get(id_)
    if read is not None:
        _answer_or_continue_read(turn, id_, read)


def answer_ready_reads(turn: Turn) -> None:
    """Answer each read for which this worker has read the config log to the end offset that the log had at the
    request."""
    herder = turn.herder
    for id_, read in list(herder.requests.reads.items()):
        if read.end_offset is not None and herder.has_read_config_to(read.end_offset):
            _answer_or_continue_read(turn, id_, read)


def refuse_all(turn: Turn, problem: Problem, message: str) -> None:
    """Refuse all reads, and all orders to restart a task, that wait for the config log. Their timers are not cancelled,
    and have no effect without the request."""
    for id_ in list(turn.herder.requests.reads):
        del turn.herder.requests.reads[id_]
        turn.emit(Reply(id=id_, answer=RequestRefused(problem=problem, message=message)))


def _answer_or_continue_read(turn: Turn, id_: RequestId, read: PendingRead) -> None:
    """Forget the pending read, and answer it with the state of the logs as far as this worker has read them. Two kinds
    are not answered here: an order to restart a task is added to ``turn.task_orders``, and of a read of offsets the
    next part begins: reading the checkpoints."""
    del turn.herder.requests.reads[id_]
    turn.emit(CancelTimer(timer=RequestTimeoutDue(id=id_)))
    match read.request:
        case RestartConnectorTask() as order:
            turn.task_orders.append((id_, order))
        case DescribeConnectorOffsets(connector=name):
            offsets.begin_offset_read(turn, id_, name)
        case request:
            turn.emit(Reply(id=id_, answer=answer_from_state(turn.herder, request)))


# -- views ------------------------------------------------------------------------------------------------------------


def answer_from_state(herder: Herder, request: ReadAnsweredFromLogs) -> Answer:
    """The response to a read of the logs, from the state read so far. The messages of refusals are Connect's."""
    match request:
        case ListConnectors():
            return ConnectorNames(connectors=tuple(herder.config.sorted_connector_names()))
        case DescribeConnectors(connectors=names):
            return _descriptions_of_existing(herder, names)
        case DescribeConnector(connector=name):
            return describe_connector(herder.config, name)
        case DescribeTaskConfigs(connector=name):
            connector = herder.config.connector(name)
            if connector is None:
                return unknown_connector_refusal(name)
            return TaskConfigs(
                tasks=tuple(zip(herder.config.committed_tasks(name), connector.task_configs, strict=True))
            )
        case DescribeConnectorStatus(connector=name):
            return connector_status(herder.config, herder.statuses, name) or not_found_refusal(
                f"No status found for connector {name}"
            )
        case DescribeTaskStatus(task=task):
            status = herder.statuses.get(task) if herder.config.task_config(task) is not None else None
            if status is None:
                return not_found_refusal(f"No status found for task {task}")
            return TaskStatus(task=task, status=status)


def _descriptions_of_existing(herder: Herder, names: Iterable[ConnectorName]) -> ConnectorDescriptions:
    infos = (describe_connector(herder.config, name) for name in names)
    return ConnectorDescriptions(
        connectors=tuple(
            (info, connector_status(herder.config, herder.statuses, info.connector))
            for info in infos
            if isinstance(info, ConnectorInfo)
        )
    )
