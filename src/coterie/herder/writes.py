"""Writes to the config log, one after the other.

A write waits until the group has settled, is refused unless this worker leads (pausing and resuming any worker may
do), has its config validated, and stands in line. At the head of the line the log is read to its end, so that what
it is checked against is the truth; then its lines are appended; and when they have come back it is answered, so that
whoever asks next sees them. Validation is outside the line: a plug-in that blocks in it blocks nobody else.
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
"""How long to wait before asking once more for the end of a log that cannot be reached."""


def on_request(turn: Turn, event: RequestArrived, request: Write) -> None:
    herder = turn.herder
    herder.requests.writes[event.id] = WriteTurn(event.id, kind_of(request, event.fresh_incarnation))
    turn.order(SetTimer(timer=RequestDue(id=event.id), at_ms=turn.now_ms + herder.settings.request_timeout_ms))


def own_write(turn: Turn, request: PutTaskConfigs) -> None:
    """A write that this leader asks of itself; what it comes to is found in ``turn.own_answers``."""
    requests = turn.herder.requests
    requests.own_writes += 1
    id_ = OwnWrite(number=requests.own_writes)
    requests.writes[id_] = WriteTurn(id_, TaskConfigsWrite(request))


def advance(turn: Turn) -> None:
    """Bring each write as far as it can come now."""
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
    assert not isinstance(write.id, OwnWrite), "a leader creates no connector of itself"
    write.stage = Validates(asked=to_validate)
    turn.order(ValidateConfig(id=write.id, config=to_validate.config, checkpointed=to_validate.checkpointed))


def _signature_refusal(herder: Herder, write: WriteTurn) -> RequestRefused | None:
    """Only what workers ask of each other is signed, not what users ask, nor what a leader asks of itself."""
    if not write.kind.is_signed or isinstance(write.id, OwnWrite):
        return None
    return signing.refusal(herder, write.kind.signature)


def _head(herder: Herder) -> WriteTurn | None:
    under_way = (write for write in herder.requests.writes.values() if write.is_under_way)
    in_line = (write for write in herder.requests.writes.values() if isinstance(write.stage, InLine))
    return next(under_way, None) or next(in_line, None)


def _advance_head(turn: Turn, write: WriteTurn) -> bool:
    """One step; False when it has to wait for something."""
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
        _begin(turn, write)  # Tasks were committed since the validation began, which may have checkpoints now.
        return True
    write.stage = Appends(created=kind.creates(herder.config))
    turn.order(AppendConfig(purpose=ForWrite(id=write.id), lines=kind.lines(herder.config)))
    return False


# -- what happens to writes -------------------------------------------------------------------------------------------


def on_validated(turn: Turn, event: ConfigValidated) -> None:
    write = turn.herder.requests.writes.get(event.id)
    if write is None or not isinstance(write.stage, Validates):
        return
    if event.failure is not None:
        message = f"Failed to validate the config: {event.failure}"
        _answer(turn, write, RequestRefused(problem=Problem.NOT_VALIDATED, message=message))
        return
    # The runtime may refuse the name as well; one sentence about it is enough.
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
        # Nothing is written yet: a broker that is soon back costs the user no more than this wait.
        turn.order(SetTimer(timer=LookDue(id=id_), at_ms=turn.now_ms + LOOK_AGAIN_MS))
        return
    write.stage = CatchesUp(validated=write.stage.validated, end=end)


def on_look_due(turn: Turn, id_: WriteId) -> None:
    write = turn.herder.requests.writes.get(id_)
    if write is not None and isinstance(write.stage, FindsEnd):
        turn.order(FindConfigEnd(purpose=ForWrite(id=id_)))


def on_appended(turn: Turn, id_: WriteId, end: ConfigOffset) -> None:
    write = turn.herder.requests.writes.get(id_)
    if write is not None:  # Otherwise it was refused meanwhile, because this worker is leaving.
        assert isinstance(write.stage, Appends)
        write.stage = LinesWritten(created=write.stage.created, has_timed_out=write.stage.has_timed_out, end=end)


def on_append_failed(turn: Turn, id_: WriteId, reason: str) -> None:
    write = turn.herder.requests.writes.get(id_)
    if write is not None:
        message = f"Failed to write to the config topic: {reason}"
        _answer(turn, write, RequestRefused(problem=Problem.LOG_FAILED, message=message))


def on_due(turn: Turn, id_: RequestId) -> None:
    """Nobody waits longer than this. What has not begun is given up; what has, is done all the same."""
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
    """What this worker says to what only the leader can do."""
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


# -- small hands ------------------------------------------------------------------------------------------------------

_NAME_SIZE_MAX = 255
"""File systems' own, for a connector's folder; and of one beyond 32,767 no member could tell its group."""


def _name_errors(name: ConnectorName) -> dict[str, list[str]]:
    if not name.strip():
        return {"name": ["Invalid value  for configuration name: String may not be empty"]}
    if name in (".", ".."):
        # Clients resolve these in a URL's path before they send it, so that no request reaches such a connector.
        return {"name": [f"Invalid value {name} for configuration name: a URL's path cannot hold it"]}
    if not name.isprintable() or "/" in name:
        # A name with a slash could be created, as in Connect, and then be reached by no path.
        return {"name": [f"Invalid value {name!r} for configuration name: it holds a slash or control characters"]}
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
    """Connect's text, with every error on a line of its own."""
    sentences = [sentence for key in errors for sentence in errors[key]]
    return "\n".join(
        (
            f"Connector configuration is invalid and contains the following {len(sentences)} error(s):",
            *sentences,
            "You can also find the above list of errors at the endpoint "
            "`/connector-plugins/{connectorType}/config/validate`",
        )
    )
