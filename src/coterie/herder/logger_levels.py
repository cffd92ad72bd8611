"""Levels of loggers for all workers of the group (KIP-976).

A level is a line of the config log, which any worker may write, and which every worker that runs applies when it reads
the line. A worker that starts ignores the lines that were written before: its loggers begin with their own levels. It
applies a line that was written later when its runtime is open, because the loggers of the runtime do not exist before.
"""

from coterie.herder import config_records
from coterie.herder.config_records import LoggerLevelWritten
from coterie.herder.messages import AppendConfigLines, AppendForLoggerLevel, Reply, SetLoggerLevel
from coterie.herder.requests.ids import RequestId
from coterie.herder.requests.kinds import Answer
from coterie.herder.requests.orders import SetGroupLoggerLevel
from coterie.herder.requests.refusals import Problem, RequestRefused, SuccessWithoutContent
from coterie.herder.state import Turn


def on_request(turn: Turn, id_: RequestId, request: SetGroupLoggerLevel) -> None:
    """Append the line that sets the level of the logger on all workers; the request is answered when it is durable."""
    line = config_records.logger_level_line(LoggerLevelWritten(logger=request.logger, level=request.level))
    turn.herder.requests.logger_level_appends.add(id_)
    turn.emit(AppendConfigLines(purpose=AppendForLoggerLevel(id=id_), lines=(line,)))


def answer_request_of_durable_level(turn: Turn, id_: RequestId) -> None:
    """The line that sets the level is durable: answer its request ``id_``."""
    _answer_request(turn, id_, SuccessWithoutContent())


def on_append_failed(turn: Turn, id_: RequestId, reason: str) -> None:
    """The line that sets the level could not be appended: refuse its request ``id_``, with ``reason``."""
    message = f"Failed to write to the config topic: {reason}"
    _answer_request(turn, id_, RequestRefused(problem=Problem.LOG_FAILED, message=message))


def refuse_all(turn: Turn, message: str) -> None:
    """Refuse all pending requests with LOG_FAILED: their lines may still become durable. ``message`` is the reason."""
    uncertain = (
        f"{message}. The logger's new level is being written to the config topic and may still be set on all workers; "
        "read the logger's level to find out"
    )
    refusal = RequestRefused(problem=Problem.LOG_FAILED, message=uncertain)
    # In the order of the ids: that of a set differs between processes.
    for id_ in sorted(turn.herder.requests.logger_level_appends):
        _answer_request(turn, id_, refusal)


def on_level_written(turn: Turn, line: LoggerLevelWritten) -> None:
    """A line with a logger's level was read: set the level in this process, at once or when the runtime is open. Does
    nothing if the line was written before this worker started."""
    lifecycle = turn.herder.lifecycle
    if lifecycle.is_runtime_open:
        turn.emit(SetLoggerLevel(logger=line.logger, level=line.level))
    elif lifecycle.is_config_log_read:
        lifecycle.levels_to_set += (line,)


def _answer_request(turn: Turn, id_: RequestId, answer: Answer) -> None:
    """Answer the request and forget it. Does nothing if it was answered before."""
    appends = turn.herder.requests.logger_level_appends
    if id_ in appends:
        appends.remove(id_)
        turn.emit(Reply(id=id_, answer=answer))


def set_levels_awaiting_runtime(turn: Turn) -> None:
    """The runtime is open: set the levels that were written while it opened, in the order of their lines, because a
    level of a logger replaces the earlier ones of its descendants."""
    levels, turn.herder.lifecycle.levels_to_set = turn.herder.lifecycle.levels_to_set, ()
    for line in levels:
        turn.emit(SetLoggerLevel(logger=line.logger, level=line.level))
