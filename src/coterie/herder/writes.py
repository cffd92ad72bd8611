"""Writes to the config log, one after the other.

A write waits until the group has settled, and is refused unless this worker is the leader (any worker may pause and
resume). Then its config is validated, and the write enters the queue. At the head of the queue, the log is read to its
end, so that the write is checked against the current state; then its lines are appended. The request is answered when
this worker has read the lines back, so that a later request sees them. Validation happens before the queue, so a
plug-in that blocks during validation does not block other writes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from coterie.herder import signing
from coterie.herder.messages import (
    AppendConfig,
    CancelTimer,
    ConfigValidated,
    FindConfigEnd,
    ForWrite,
    Reply,
    RequestArrived,
    SetTimer,
    ValidateConfig,
)
from coterie.herder.requests import (
    Answer,
    OwnWrite,
    Problem,
    PutTaskConfigs,
    RequestId,
    RequestRefused,
    Write,
    WriteId,
)
from coterie.herder.state import (
    Appends,
    Arrived,
    CatchesUp,
    FindsEnd,
    Herder,
    InLine,
    LinesWritten,
    Turn,
    Validates,
    WriteTurn,
)
from coterie.herder.timers import LookDue, RequestDue
from coterie.herder.write_kinds import ConfigToValidate, TaskConfigsWrite, kind_of
from coterie.nouns.ids import ConfigOffset
from coterie.nouns.jobs import ConnectorName

LOOK_AGAIN_MS = 500
"""The time before the next lookup of the end offset of a log that could not be reached."""


def on_request(turn: Turn, event: RequestArrived, request: Write) -> None:
    herder = turn.herder
    herder.requests.writes[event.id] = WriteTurn(event.id, kind_of(request, event.fresh_incarnation))
    turn.order(SetTimer(timer=RequestDue(id=event.id), at_ms=turn.now_ms + herder.settings.request_timeout_ms))


def own_write(turn: Turn, request: PutTaskConfigs) -> None:
    """Submit a write of the leader itself; its response is appended to ``turn.own_answers``."""
    requests = turn.herder.requests
    requests.own_writes += 1
    id_ = OwnWrite(number=requests.own_writes)
    requests.writes[id_] = WriteTurn(id_, TaskConfigsWrite(request))


def advance(turn: Turn) -> None:
    """Advance each write as far as is possible now."""
    herder = turn.herder
    for write in list(herder.requests.writes.values()):
        if isinstance(write.stage, Arrived):
            _begin(turn, write)
    while (head := _head(herder)) is not None and _advance_head(turn, head):
        pass


def _begin(turn: Turn, write: WriteTurn) -> None:
    herder = turn.herder
    if write.kind.needs_leader:
        if (refusal := _signature_refusal(herder, write)) is not None:
            _answer(turn, write, refusal)
            return
        if not herder.place.is_settled:
            return
        if not herder.place.is_leader:
            _answer(turn, write, not_leader(herder))
            return
    to_validate = write.kind.to_validate(herder.config)
    if to_validate is None:
        write.stage = InLine(validated=None)
        return
    assert not isinstance(write.id, OwnWrite), "the leader's own writes create no connector"
    write.stage = Validates(asked=to_validate)
    turn.order(ValidateConfig(id=write.id, config=to_validate.config, checkpointed=to_validate.checkpointed))


def _signature_refusal(herder: Herder, write: WriteTurn) -> RequestRefused | None:
    """The refusal of a missing or invalid signature. Only requests between workers are signed, neither clients'
    requests nor the leader's own writes."""
    if not write.kind.is_signed or isinstance(write.id, OwnWrite):
        return None
    return signing.refusal(herder, write.kind.signature)


def _head(herder: Herder) -> WriteTurn | None:
    under_way = (write for write in herder.requests.writes.values() if write.is_under_way)
    in_line = (write for write in herder.requests.writes.values() if isinstance(write.stage, InLine))
    return next(under_way, None) or next(in_line, None)


def _advance_head(turn: Turn, write: WriteTurn) -> bool:
    """Advance the write at the head by one phase; returns False when the write has to wait for an event."""
    match write.stage:
        case InLine(validated=validated):
            write.stage = FindsEnd(validated=validated)
            turn.order(FindConfigEnd(purpose=ForWrite(id=write.id)))
            return False
        case CatchesUp(validated=validated, end=end) if turn.herder.has_read(end):
            return _append(turn, write, validated)
        case LinesWritten(created=created, end=end) if turn.herder.has_read(end):
            _answer(turn, write, write.kind.answer(turn.herder.config, created=created))
            return True
        case _:
            return False


def _append(turn: Turn, write: WriteTurn, validated: ConfigToValidate | None) -> bool:
    herder, kind = turn.herder, write.kind
    if kind.needs_leader and not herder.place.is_leader:
        if not herder.place.is_settled:
            return False
        _answer(turn, write, not_leader(herder))
        return True
    if (refusal := kind.refusal(herder.config)) is not None:
        _answer(turn, write, refusal)
        return True
    if kind.to_validate(herder.config) != validated:
        _begin(turn, write)  # Tasks were committed since the validation started, and may have checkpoints now.
        return True
    write.stage = Appends(created=kind.creates(herder.config))
    turn.order(AppendConfig(purpose=ForWrite(id=write.id), lines=kind.lines(herder.config)))
    return False


# -- events of writes -------------------------------------------------------------------------------------------------


def on_validated(turn: Turn, event: ConfigValidated) -> None:
    write = turn.herder.requests.writes.get(event.id)
    if write is None or not isinstance(write.stage, Validates):
        return
    if event.failure is not None:
        message = f"Failed to validate the config: {event.failure}"
        _answer(turn, write, RequestRefused(problem=Problem.NOT_VALIDATED, message=message))
        return
    # The runtime may report an error of the name, too; only this room's error of the name is kept.
    errors = {**event.errors, **_name_errors(write.kind.request.connector)}
    if errors:
        _answer(turn, write, RequestRefused(problem=Problem.BAD_REQUEST, message=invalid_config_message(errors)))
    else:
        write.stage = InLine(validated=write.stage.asked)


def on_end_found(turn: Turn, id_: WriteId, end: ConfigOffset | None) -> None:
    write = turn.herder.requests.writes.get(id_)
    if write is None or not isinstance(write.stage, FindsEnd):
        return
    if end is None:
        # Nothing has been written, so the lookup can be retried: after a short outage the client has only waited.
        turn.order(SetTimer(timer=LookDue(id=id_), at_ms=turn.now_ms + LOOK_AGAIN_MS))
        return
    write.stage = CatchesUp(validated=write.stage.validated, end=end)


def on_look_due(turn: Turn, id_: WriteId) -> None:
    write = turn.herder.requests.writes.get(id_)
    if write is not None and isinstance(write.stage, FindsEnd):
        turn.order(FindConfigEnd(purpose=ForWrite(id=id_)))


def on_appended(turn: Turn, id_: WriteId, end: ConfigOffset) -> None:
    write = turn.herder.requests.writes.get(id_)
    if write is not None:  # Otherwise it was refused before the append returned, because this worker is leaving.
        assert isinstance(write.stage, Appends)
        write.stage = LinesWritten(created=write.stage.created, has_timed_out=write.stage.has_timed_out, end=end)


def on_append_failed(turn: Turn, id_: WriteId, reason: str) -> None:
    write = turn.herder.requests.writes.get(id_)
    if write is not None:
        message = f"Failed to write to the config topic: {reason}"
        _answer(turn, write, RequestRefused(problem=Problem.LOG_FAILED, message=message))


def on_due(turn: Turn, id_: RequestId) -> None:
    """The request has timed out. A write whose append has not started is dropped; another write still completes."""
    write = turn.herder.requests.writes.get(id_)
    if write is None:
        return
    refusal = RequestRefused(problem=Problem.TIMED_OUT, message=f"Request timed out. {_stage_summary(write)}")
    match write.stage:
        case Appends(has_timed_out=True) | LinesWritten(has_timed_out=True):
            pass
        case Appends() | LinesWritten() as stage:
            turn.order(Reply(id=id_, answer=refusal))
            write.stage = replace(stage, has_timed_out=True)
        case _:
            _answer(turn, write, refusal)


def refuse_all(turn: Turn, problem: Problem, message: str) -> None:
    for write in list(turn.herder.requests.writes.values()):
        _answer(turn, write, RequestRefused(problem=problem, message=message))


def not_leader(herder: Herder) -> RequestRefused:
    """The refusal of a request that only the leader can serve."""
    if herder.place.leader_url and not herder.place.is_named_leader:
        message = "Cannot complete request because this worker is not the leader"
        return RequestRefused(problem=Problem.NOT_LEADER, message=message, leader_url=herder.place.leader_url)
    message = "Cannot complete request momentarily due to no known leader URL, likely because a rebalance was underway."
    return RequestRefused(problem=Problem.NO_LEADER, message=message)


def _answer(turn: Turn, write: WriteTurn, answer: Answer) -> None:
    del turn.herder.requests.writes[write.id]
    match write.id, write.stage:
        case OwnWrite(), _:
            turn.own_answers.append((write.kind.request, answer))
        case _, Appends(has_timed_out=True) | LinesWritten(has_timed_out=True):
            pass  # The request was answered when it timed out.
        case id_, _:
            turn.order(CancelTimer(timer=RequestDue(id=id_)))
            turn.order(Reply(id=id_, answer=answer))


# -- helpers ----------------------------------------------------------------------------------------------------------

_NAME_SIZE_MAX = 255
"""In bytes: the limit of file systems, because a connector's folder has its name. The group protocol's own limit is
32,767 bytes."""


def _name_errors(name: ConnectorName) -> dict[str, list[str]]:
    if not name.strip():
        return {"name": ["Invalid value  for configuration name: String may not be empty"]}
    if name in (".", ".."):
        # Clients resolve these names in a URL's path before they send it, so no request can reach such a connector.
        return {"name": [f"Invalid value {name} for configuration name: a URL's path cannot contain it"]}
    if not name.isprintable() or "/" in name:
        # A connector with a slash in its name could be created, as in Connect, but no path could reach it.
        return {"name": [f"Invalid value {name!r} for configuration name: it contains a slash or control characters"]}
    if len(name.encode()) > _NAME_SIZE_MAX:
        return {
            "name": [f"Invalid value {name[:40]}… for configuration name: it is longer than {_NAME_SIZE_MAX} bytes"]
        }
    return {}


def _stage_summary(write: WriteTurn) -> str:
    name: ConnectorName = write.kind.request.connector
    match write.stage:
        case Arrived():
            doing = "ensuring membership in the cluster"
        case Validates():
            doing = f"performing multi-property validation for the connector {name}"
        case InLine() | FindsEnd() | CatchesUp():
            doing = "reading to the end of the config topic"
        case Appends() | LinesWritten():
            doing = f"writing a config for connector {name} to the config topic"
    return f"The worker is currently {doing}"


def invalid_config_message(errors: Mapping[str, Sequence[str]]) -> str:
    """Connect's text, with every error on a separate line."""
    sentences = [sentence for key in errors for sentence in errors[key]]
    return "\n".join(
        (
            f"Connector configuration is invalid and contains the following {len(sentences)} error(s):",
            *sentences,
            "You can also find the above list of errors at the endpoint "
            "`/connector-plugins/{connectorType}/config/validate`",
        )
    )
