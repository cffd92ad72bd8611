"""Reads of connectors' offsets. Any worker reads them from the checkpoints through its runtime; it needs neither the
leader nor the worker that has the connector.
"""

from coterie.herder.messages import CancelTimer, OffsetReadEnded, ReadConnectorOffsets, Reply, SetTimer
from coterie.herder.requests.ids import RequestId
from coterie.herder.requests.kinds import Answer
from coterie.herder.requests.reads import ConnectorOffsets
from coterie.herder.requests.refusals import Problem, RequestRefused, timeout_refusal, unknown_connector_refusal
from coterie.herder.state import PendingOffsetRead, Turn
from coterie.herder.timers import RequestTimeoutDue
from coterie.nouns.jobs import ConnectorName


def begin_offset_read(turn: Turn, id_: RequestId, name: ConnectorName) -> None:
    """Let the runtime read the offsets of the connector ``name``, or refuse the request if there is no such connector.
    Called when the request need not wait for the config log any more."""
    connector = turn.herder.config.connector(name)
    if connector is None:
        turn.emit(Reply(id=id_, answer=unknown_connector_refusal(name)))
        return
    turn.herder.requests.offset_reads[id_] = PendingOffsetRead(connector=name, began_at_ms=turn.now_ms)
    turn.emit(SetTimer(timer=RequestTimeoutDue(id=id_), at_ms=turn.now_ms + turn.herder.settings.request_timeout_ms))
    turn.emit(ReadConnectorOffsets(id=id_, connector=name, incarnation=connector.incarnation, config=connector.config))


def on_offset_read_ended(turn: Turn, event: OffsetReadEnded) -> None:
    """Answer the request; does nothing if it has timed out."""
    if event.id not in turn.herder.requests.offset_reads:
        return
    if event.failure is None:
        _answer_offset_read(turn, event.id, ConnectorOffsets(offsets=event.offsets))
    else:
        _answer_offset_read(turn, event.id, RequestRefused(problem=Problem.OFFSETS_FAILED, message=event.failure))


def on_request_timeout(turn: Turn, id_: RequestId) -> None:
    """The time limit of the request is over: refuse it. Does nothing for an unknown id, for example of a write."""
    read = turn.herder.requests.offset_reads.get(id_)
    if read is not None:
        activity, began_at_ms = f"reading the offsets of connector {read.connector}", read.began_at_ms
        _answer_offset_read(turn, id_, timeout_refusal(activity, turn.herder.wall_clock_ms(began_at_ms)))


def refuse_all(turn: Turn, problem: Problem, message: str) -> None:
    """Refuse all pending reads of offsets."""
    for id_ in list(turn.herder.requests.offset_reads):
        _answer_offset_read(turn, id_, RequestRefused(problem=problem, message=message))


def _answer_offset_read(turn: Turn, id_: RequestId, answer: Answer) -> None:
    """Answer the read and forget it."""
    del turn.herder.requests.offset_reads[id_]
    turn.emit(CancelTimer(timer=RequestTimeoutDue(id=id_)))
    turn.emit(Reply(id=id_, answer=answer))
