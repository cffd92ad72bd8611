"""Writes to the config log, one after the other.

A write waits while the worker starts, while a round is running, and while the leader is not known. It is then refused
unless this worker is the leader (any worker may pause and resume, without waiting for the leader). Then its config is
validated, and the write enters the queue. At the head of the queue, the log is read to its end, so that the write is
checked against the current state; then its lines are appended. The request is answered when this worker has read the
lines back, so that a later request sees them. Validation happens before the queue, so a plug-in that blocks during
validation does not block other writes. A pause or resume passes the queued writes of other connectors that wait for the
leader.

A leader that has read the log to its end since it opened the leader's log (module `leader_log`) has read all lines on
which its writes depend, except target states. It appends its next writes without another lookup of the log's end, and
queued writes of different connectors together, in one append. If the state read so far forbids a write, a lookup comes
before the refusal: another worker may have written a target state that allows the write. A change of offsets, which
only the target state STOPPED allows, always follows a lookup.

A change of offsets is checked at the head of the queue too. It appends no lines: it leaves the queue, and the leader's
runtime changes the checkpoints. When the connector is no longer stopped, or this worker loses its membership, the
runtime is ordered to end the change. The initial offsets of a new connector are set before its config is queued.

The line of a client's write contains the id of the request. When the connection to the leader breaks after a write was
sent, the write is repeated with the same id: it is looked up at the head of the queue, and performed only if the log
does not contain it. The leader that does so has read the log to its end since it became the leader.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile

from coterie.engine.log import NewTopicRecord
from coterie.herder import config_records, leader_log, place, signing
from coterie.herder.config_state import ConfigState
from coterie.herder.connector_names import name_errors
from coterie.herder.group_protocol import protocol_of
from coterie.herder.messages import (
    AppendConfigLines,
    AppendForWrites,
    ApplyOffsetChange,
    CancelTimer,
    ConfigCouldNotBeValidated,
    ConfigValidationCompleted,
    FindConfigLogEnd,
    LogEndLookupForWrite,
    OffsetChangeEnded,
    Reply,
    RequestArrived,
    SetTimer,
    StopConnector,
    ValidateConfig,
)
from coterie.herder.questions import VALIDATION_ACTIVITY, missing_class_refusal, not_validated_refusal
from coterie.herder.requests.ids import LeaderWriteId, RequestId, WriteId
from coterie.herder.requests.kinds import Answer
from coterie.herder.requests.refusals import Problem, RequestRefused, SuccessWithoutContent, timeout_refusal
from coterie.herder.requests.writes import PutTaskConfigs, Write
from coterie.herder.state import (
    AppendingWrite,
    ChangingOffsets,
    FindingConfigLogEnd,
    Herder,
    PendingWrite,
    ReadingToConfigLogEnd,
    SettingInitialOffsets,
    Turn,
    ValidatingWrite,
    WriteAppended,
    WriteAwaitingGroup,
    WriteQueued,
)
from coterie.herder.timers import ConfigLogEndLookupDue, RequestTimeoutDue
from coterie.herder.write_kinds import (
    ConnectorWrite,
    OffsetsWrite,
    TaskConfigsWrite,
    offsets_activity,
    write_kind_of_request,
)
from coterie.nouns.ids import LogPosition
from coterie.nouns.jobs import ConnectorName
from coterie.nouns.states import TargetState

_AWAITING_LEADER_ACTIVITY = "ensuring membership in the cluster"
"""What the worker is doing for a write while no leader is known, in Connect's words."""
LINES_PER_APPEND_MAX = 1_000
"""The number of lines that several writes may append together; one write alone may append more."""
END_LOOKUP_RETRY_MS = 500
"""The wait before the end offset of the config log, which could not be reached, is looked up again for a write."""


def on_request(turn: Turn, event: RequestArrived, request: Write) -> None:
    """Store the write of a request, and set its time limit; :func:`advance_writes`, which follows, begins the write."""
    herder = turn.herder
    herder.requests.writes[event.id] = PendingWrite(
        event.id, write_kind_of_request(request, event.fresh_incarnation), event.attempt
    )
    limit_ms = herder.settings.time_limit_ms(event.attempt)
    turn.emit(SetTimer(timer=RequestTimeoutDue(id=event.id), at_ms=turn.now_ms + limit_ms))


def submit_own_write_as_leader(turn: Turn, request: PutTaskConfigs) -> None:
    """Submit a write of the leader itself. When it is complete or refused, its response is appended to
    ``own_write_answers`` of the turn in which that happens."""
    requests = turn.herder.requests
    requests.leader_write_count += 1
    id_ = LeaderWriteId(number=requests.leader_write_count)
    requests.writes[id_] = PendingWrite(id_, TaskConfigsWrite(request))


def advance_writes(turn: Turn) -> None:
    """Advance each write as far as is possible now."""
    herder = turn.herder
    for write in list(herder.requests.writes.values()):
        if isinstance(write.phase, WriteAwaitingGroup):
            _begin_write(turn, write)
    while (head := _write_to_advance(herder)) is not None and _advance_write(turn, head):
        pass
    for write in herder.requests.writes.values():
        if write.noted_phase is not write.phase:
            write.noted_phase, write.phase_began_at_ms = write.phase, turn.now_ms


def _begin_write(turn: Turn, write: PendingWrite) -> None:
    """Begin the validation of the write's config, or queue a write that needs none. Does nothing while this worker
    starts.

    A write that needs the leader is refused if a signature is required and is missing or invalid. It then waits while
    no leader is known, for example while a round is running. When a leader is known, the write is refused if another
    worker is the leader. The exception is a repeated write: any worker queues it without a validation, because the
    config log must show first whether the earlier attempt has taken effect.
    """
    herder = turn.herder
    if not herder.lifecycle.is_runtime_open:
        return
    if write.kind.needs_leader:
        if (refusal := _signature_refusal(herder, write)) is not None:
            _answer_write(turn, write, refusal)
            return
        if not herder.place.has_leader_and_current_assignment:
            return
        if write.is_repeat:
            write.phase = WriteQueued(validated_config=None)
            return
        if not herder.place.is_leader_with_current_assignment:
            _answer_write(turn, write, place.not_leader_refusal(herder))
            return
    _validate_or_queue(turn, write)


def _validate_or_queue(turn: Turn, write: PendingWrite) -> None:
    """Start the validation of the write's config, or queue a write that needs none. A config without
    ``connector.class`` is refused at once."""
    herder = turn.herder
    config_to_validate = write.kind.config_to_validate(herder.config)
    if config_to_validate is None:
        write.phase = WriteQueued(validated_config=None)
        return
    assert not isinstance(write.id, LeaderWriteId), "the leader's own writes create no connector"
    if (refusal := missing_class_refusal(config_to_validate.config)) is not None:
        _answer_write(turn, write, refusal)
        return
    write.phase = ValidatingWrite(config_to_validate=config_to_validate)
    turn.emit(
        ValidateConfig(
            id=write.id,
            config=config_to_validate.config,
            configs_of_checkpointed_tasks=config_to_validate.configs_of_checkpointed_tasks,
        )
    )


def _signature_refusal(herder: Herder, write: PendingWrite) -> RequestRefused | None:
    """The refusal of a missing or invalid signature; None when the write needs no signature. Only requests between
    workers are signed; clients' requests and the leader's own writes are not."""
    if not write.kind.is_signed or isinstance(write.id, LeaderWriteId):
        return None
    return signing.signature_refusal(herder, write.kind.signature)


def _write_to_advance(herder: Herder) -> PendingWrite | None:
    """The write at the head of the queue: the write that is under way, else the first queued write that may begin; None
    if there is none. While the writes that need the leader wait (:func:`_awaits_leader_or_leader_log`), a queued pause
    or resume may begin before them, but not before a waiting write of the same connector.

    Only queued writes keep their order. A later write can enter the queue before an earlier write that still waits for
    the group or for its validation. A client that sends its next request after the response to the last one sees no
    wrong order: the last write is then complete or dropped, or it is under way although its request has timed out, and
    ends before all queued writes. (Only a change of offsets that has timed out may end later.)"""
    writes = herder.requests.writes.values()
    if (under_way := next((write for write in writes if write.has_begun_at_queue_head), None)) is not None:
        return under_way
    waiting_connectors: set[ConnectorName] = set()
    for write in writes:
        if isinstance(write.phase, WriteQueued):
            connector = write.kind.request.connector
            may_begin = not write.kind.needs_leader or not _awaits_leader_or_leader_log(herder)
            if may_begin and connector not in waiting_connectors:
                return write
            waiting_connectors.add(connector)
    return None


def _advance_write(turn: Turn, write: PendingWrite) -> bool:
    """Advance the write of :func:`_write_to_advance` by one phase. Returns whether :func:`advance_writes` may continue;
    False means that the write waits for an event."""
    match write.phase:
        case WriteQueued() as phase:
            if _needs_log_end_lookup(turn.herder, write):
                _begin_log_end_lookup(turn, write, phase)
                return False
            return _append_or_validate_next_writes(turn, write)
        case ReadingToConfigLogEnd(end_offset=end) as phase if turn.herder.has_read_config_to(end):
            return _check_and_append(turn, write, phase)
        case WriteAppended(replaced_config=replaced, end_offset=end) if turn.herder.has_read_config_to(end):
            herder = turn.herder
            _answer_write(
                turn, write, write.kind.answer_when_complete(herder.config, herder.statuses, replaced_config=replaced)
            )
            return True
        case _:
            return False


def _awaits_leader_or_leader_log(herder: Herder) -> bool:
    """Whether no leader is known, or this worker is the leader and may not write as the leader yet. False on a worker
    that is not the leader and knows it: it refuses such writes later."""
    if herder.place.is_leader_with_current_assignment:
        return herder.leader_log.writable_opening_number is None
    return not herder.place.has_leader_and_current_assignment


def _needs_log_end_lookup(herder: Herder, write: PendingWrite) -> bool:
    """Whether the log must be read to its end before the queued write may be performed. False if this worker, as the
    leader, has read all lines on which the write depends, and the write is allowed by them: target states, which other
    workers write, can only make a refused write of the leader possible. (They can also forbid a change of offsets.)"""
    kind = write.kind
    return (
        not kind.needs_leader
        or isinstance(kind, OffsetsWrite)
        or not (herder.place.is_leader_with_current_assignment and herder.leader_log.has_read_log)
        or _answer_if_possibly_performed_before(herder, write) is not None
        or kind.refusal(herder.config) is not None
    )


def _begin_log_end_lookup(turn: Turn, write: PendingWrite, phase: WriteQueued) -> None:
    """Look up the end of the log for the write, which is then read to that end and checked."""
    opening = turn.herder.leader_log.writable_opening_number if write.kind.needs_leader else None
    if opening is not None:
        leader_log.on_log_end_lookup_ordered(turn)
    write.phase = FindingConfigLogEnd(validated_config=phase.validated_config, leader_log_opening_number=opening)
    turn.emit(FindConfigLogEnd(purpose=LogEndLookupForWrite(id=write.id)))


def _append_or_validate_next_writes(turn: Turn, first: PendingWrite) -> bool:
    """Append the lines of ``first``, which needs no lookup of the log's end, and with them those of the queued writes
    that follow: up to a second write of a connector, a write that needs a lookup, or `LINES_PER_APPEND_MAX` lines. If
    tasks were committed since the validation of ``first`` began, validate its config again instead. Returns whether
    :func:`advance_writes` may continue."""
    herder = turn.herder
    if _validate_again_if_outdated(turn, first):
        return True
    joined = [first]
    connectors = {first.kind.request.connector}
    line_count = len(_lines_to_append(herder.config, first))
    for write in herder.requests.writes.values():
        if write is first or not isinstance(write.phase, WriteQueued):
            continue
        if (
            first.must_be_appended_alone
            or write.must_be_appended_alone
            or write.kind.request.connector in connectors
            or _needs_log_end_lookup(herder, write)
            or write.kind.config_to_validate(herder.config) != write.phase.validated_config
        ):
            break
        line_count += len(_lines_to_append(herder.config, write))
        if line_count > LINES_PER_APPEND_MAX:
            break
        joined.append(write)
        connectors.add(write.kind.request.connector)
    _append(turn, joined, herder.leader_log.writable_opening_number)
    return False


def _validate_again_if_outdated(turn: Turn, write: PendingWrite) -> bool:
    """If the config that has to be validated is another one than was validated, validate the write again. Returns
    whether it is another one."""
    assert isinstance(write.phase, WriteQueued | ReadingToConfigLogEnd)
    if write.kind.config_to_validate(turn.herder.config) == write.phase.validated_config:
        return False
    # A repeat was not validated yet. Otherwise tasks were committed since the validation started, and may have
    # checkpoints now.
    _validate_or_queue(turn, write)
    return True


def _append(turn: Turn, writes: Sequence[PendingWrite], leader_log_opening_number: int | None) -> None:
    """Append the lines of ``writes`` together."""
    config = turn.herder.config
    lines = tuple(line for write in writes for line in _lines_to_append(config, write))
    for write in writes:
        known = config.connector(write.kind.request.connector)
        write.phase = AppendingWrite(replaced_config=None if known is None else known.config)
    turn.emit(
        AppendConfigLines(
            purpose=AppendForWrites(ids=tuple(write.id for write in writes)),
            lines=lines,
            leader_log_opening_number=leader_log_opening_number,
        )
    )


def _check_and_append(turn: Turn, write: PendingWrite, phase: ReadingToConfigLogEnd) -> bool:
    """Check the write against the current state of the log, then append its lines or begin its change of offsets, or
    refuse it. A write that an earlier attempt has performed is answered like that attempt. If tasks were committed
    since the validation began, validate the config again; if the leader's log was opened again since the lookup of the
    log's end, look that up again. Returns whether :func:`advance_writes` may continue."""
    herder, kind = turn.herder, write.kind
    if phase.leader_log_opening_number is not None:
        leader_log.on_log_read_to_end(turn, phase.leader_log_opening_number)
    if (answer := _answer_if_possibly_performed_before(herder, write)) is not None:
        _answer_write(turn, write, answer)
        return True
    if kind.needs_leader and not herder.place.is_leader_with_current_assignment:
        if herder.place.has_leader_and_current_assignment:
            _answer_write(turn, write, place.not_leader_refusal(herder))
        else:
            write.phase = WriteQueued(validated_config=phase.validated_config)
        return True
    if (refusal := kind.refusal(herder.config)) is not None:
        _answer_write(turn, write, refusal)
        return True
    if kind.needs_leader and (
        phase.leader_log_opening_number is None
        or phase.leader_log_opening_number != herder.leader_log.writable_opening_number
    ):
        write.phase = WriteQueued(validated_config=phase.validated_config)
        return True
    if _validate_again_if_outdated(turn, write):
        return True
    if isinstance(kind, OffsetsWrite):
        _begin_or_refuse_offset_change(turn, write, kind)
        return True
    _append(turn, [write], phase.leader_log_opening_number)
    return False


def _lines_to_append(config: ConfigState, write: PendingWrite) -> tuple[NewTopicRecord, ...]:
    """The lines of the write; those of a client's write contain the id of the request."""
    lines = write.kind.lines(config)
    if write.attempt is None:
        return lines
    return config_records.with_id_in_last_non_tombstone(
        (*write.kind.request_id_carrier_lines(config), *lines), write.attempt.id
    )


def _answer_if_possibly_performed_before(herder: Herder, write: PendingWrite) -> Answer | None:
    """The response to a write that an earlier attempt has performed; a refusal if the log cannot tell whether one has.
    None for a write that may be performed now."""
    if write.attempt is None:
        return None
    written = herder.config.written_request(write.attempt.id)
    if written is not None:
        return write.kind.answer_when_complete(herder.config, herder.statuses, replaced_config=written.replaced_config)
    if not write.is_repeat or (
        write.kind.can_be_looked_up_in_config_log and protocol_of(herder).are_repeated_writes_deduplicated(herder)
    ):
        return None
    message = (
        "The connection to the leader broke after the request was sent to it. It is unknown whether the request has "
        "taken effect or still will; read the connector to find out"
    )
    return RequestRefused(problem=Problem.OUTCOME_UNKNOWN, message=message)


def _begin_or_refuse_offset_change(turn: Turn, write: PendingWrite, kind: OffsetsWrite) -> None:
    """Let the runtime change the offsets of the connector. Refused if this worker's lease has ended: another worker may
    then be the leader, and may resume the connector."""
    herder, name = turn.herder, kind.request.connector
    connector = herder.config.connector(name)
    assert connector is not None, "a change of a connector that does not exist is refused"
    assert not isinstance(write.id, LeaderWriteId), "the leader itself changes no offsets"
    if not herder.place.has_valid_lease(turn.now_ms):
        message = "The worker's membership of its group is not confirmed at the moment; send the request again"
        _answer_write(turn, write, RequestRefused(problem=Problem.NO_LEADER, message=message))
        return
    write.phase = ChangingOffsets(incarnation=connector.incarnation)
    turn.emit(
        ApplyOffsetChange(
            id=write.id,
            connector=name,
            incarnation=connector.incarnation,
            config=connector.config,
            configs_of_checkpointed_tasks=connector.configs_of_checkpointed_tasks,
            change=kind.request.change,
        )
    )


def abort_forbidden_offset_changes(turn: Turn) -> None:
    """Order the runtime to end the changes of offsets whose connector is no longer stopped, or was deleted, and all
    changes when this worker has lost its membership."""
    herder = turn.herder
    for write in herder.requests.writes.values():
        match write.phase:
            case ChangingOffsets(is_abort_ordered=False, incarnation=incarnation) as phase:
                name = write.kind.request.connector
                connector = herder.config.connector(name)
                is_same = connector is not None and connector.incarnation == incarnation
                if herder.place.is_lost or not is_same or herder.config.target_state(name) is not TargetState.STOPPED:
                    write.phase = replace(phase, is_abort_ordered=True)
                    turn.emit(StopConnector(connector=name))
            case _:
                pass


# -- events of writes -------------------------------------------------------------------------------------------------


def on_validation_ended(turn: Turn, event: ConfigValidationCompleted | ConfigCouldNotBeValidated) -> None:
    """Queue the validated write. Refuse it when its config or the connector's name is not valid, or when it could not
    be validated. A write with initial offsets of a new connector first lets the runtime set these offsets. Does nothing
    if no such write is being validated."""
    write = turn.herder.requests.writes.get(event.id)
    if write is None or not isinstance(write.phase, ValidatingWrite):
        return
    if isinstance(event, ConfigCouldNotBeValidated):
        _answer_write(turn, write, not_validated_refusal(event.failure))
        return
    if (message := event.infos.unknown_class_message) is not None:
        _answer_write(turn, write, RequestRefused(problem=Problem.BAD_REQUEST, message=message))
        return
    if (message := event.infos.client_property_type_error) is not None:
        _answer_write(turn, write, RequestRefused(problem=Problem.NOT_VALIDATED, message=message))
        return
    # The runtime may report an error of the name, too; only this room's error of the name is kept.
    errors = event.infos.with_errors_replaced(name_errors(write.kind.request.connector)).errors
    if errors:
        _answer_write(turn, write, RequestRefused(problem=Problem.BAD_REQUEST, message=invalid_config_message(errors)))
    elif (change := _initial_offset_change(turn.herder, write)) is not None:
        write.phase = SettingInitialOffsets(validated_config=write.phase.config_to_validate)
        turn.emit(change)
    else:
        write.phase = WriteQueued(validated_config=write.phase.config_to_validate)


def _initial_offset_change(herder: Herder, write: PendingWrite) -> ApplyOffsetChange | None:
    """The order to set the offsets at which a new connector begins; None when the write has none, or creates no
    connector. Nothing reads them before the connector exists, since its incarnation is new."""
    kind = write.kind
    if not isinstance(kind, ConnectorWrite) or kind.request.initial_offsets is None:
        return None
    if not kind.creates_connector(herder.config):
        return None
    assert not isinstance(write.id, LeaderWriteId), "the leader itself creates no connector"
    return ApplyOffsetChange(
        id=write.id,
        connector=kind.request.connector,
        incarnation=kind.incarnation(herder.config),
        config=kind.request.config,
        configs_of_checkpointed_tasks=(),
        change=kind.request.initial_offsets,
    )


def on_offset_change_ended(turn: Turn, event: OffsetChangeEnded) -> None:
    """The runtime has changed the offsets, or could not. Answer the request; but when it has set the initial offsets of
    a new connector, queue the connector's config."""
    write = turn.herder.requests.writes.get(event.id)
    if write is None:
        return
    match write.phase:
        case SettingInitialOffsets(validated_config=validated) if event.refusal is None:
            write.phase = WriteQueued(validated_config=validated)
        case SettingInitialOffsets() | ChangingOffsets() if event.refusal is not None:
            _answer_write(turn, write, event.refusal)
        case ChangingOffsets():
            _answer_write(turn, write, SuccessWithoutContent())
        case _:
            pass


def on_config_log_end_lookup_ended(turn: Turn, id_: WriteId, end_offset: LogPosition | None) -> None:
    """The write waits until the log is read to ``end_offset``; with None (the log could not be reached) the lookup is
    repeated."""
    write = turn.herder.requests.writes.get(id_)
    if write is None or not isinstance(write.phase, FindingConfigLogEnd):
        return
    if end_offset is None:
        # Nothing has been written, so the lookup can be retried: after a short outage the client has only waited.
        turn.emit(SetTimer(timer=ConfigLogEndLookupDue(id=id_), at_ms=turn.now_ms + END_LOOKUP_RETRY_MS))
        return
    write.phase = ReadingToConfigLogEnd(
        validated_config=write.phase.validated_config,
        leader_log_opening_number=write.phase.leader_log_opening_number,
        end_offset=end_offset,
    )


def repeat_log_end_lookup(turn: Turn, id_: WriteId) -> None:
    """Repeat the lookup of the log's end offset, if the write still needs it."""
    write = turn.herder.requests.writes.get(id_)
    if write is not None and isinstance(write.phase, FindingConfigLogEnd):
        turn.emit(FindConfigLogEnd(purpose=LogEndLookupForWrite(id=id_)))


def on_appended(turn: Turn, ids: Sequence[WriteId], end_offset: LogPosition) -> None:
    """The lines of the writes are durable: the writes are answered when this worker has read them."""
    for write in _writes_with_ids(turn.herder, ids):
        assert isinstance(write.phase, AppendingWrite)
        write.phase = WriteAppended(replaced_config=write.phase.replaced_config, end_offset=end_offset)


def on_append_failed(turn: Turn, ids: Sequence[WriteId], *, is_fenced: bool, are_lines_discarded: bool) -> None:
    """Appending the lines of the writes has failed. If the append was fenced, nothing was appended, and the writes
    begin again. So do several writes whose lines were discarded together, each alone: the log may refuse the lines of
    one of them. Otherwise, or if its request has timed out, refuse the write with Connect's message, which has no
    reason: its lines may be in the log. The worker has logged the reason, unless the append was fenced."""
    is_joint = len(ids) > 1
    for write in _writes_with_ids(turn.herder, ids):
        assert isinstance(write.phase, AppendingWrite)
        if (is_fenced or (are_lines_discarded and is_joint)) and not write.has_timed_out:
            write.phase = WriteAwaitingGroup()
            write.must_be_appended_alone = write.must_be_appended_alone or not is_fenced
        else:
            message = "Error writing connector configuration to Kafka"
            _answer_write(turn, write, RequestRefused(problem=Problem.LOG_FAILED, message=message))


def _writes_with_ids(herder: Herder, ids: Sequence[WriteId]) -> Sequence[PendingWrite]:
    """The writes of an append that has ended, without those that were refused before, because this worker is
    leaving."""
    return [herder.requests.writes[id_] for id_ in ids if id_ in herder.requests.writes]


def on_request_timeout(turn: Turn, id_: RequestId) -> None:
    """The time limit of the request is over: refuse it. If the append of the write, or its change of offsets, has
    begun, it is still completed, and later writes wait for an append (not for a change of offsets). Otherwise the write
    is dropped, also while the initial offsets of its connector are being set. Does nothing for an unknown id, for
    example of a read."""
    write = turn.herder.requests.writes.get(id_)
    if write is None or write.has_timed_out:
        return
    awaited = _blocking_write(turn.herder, write)
    refusal = timeout_refusal(
        _activity_text(turn.herder, awaited), turn.herder.wall_clock_ms(awaited.phase_began_at_ms)
    )
    match write.phase:
        case AppendingWrite() | WriteAppended() | ChangingOffsets():
            turn.emit(Reply(id=id_, answer=refusal))
            write.has_timed_out = True
        case _:
            _answer_write(turn, write, refusal)


def refuse_all(turn: Turn, problem: Problem, message: str) -> None:
    """Refuse and forget all pending writes: with ``problem`` those that have changed nothing, with LOG_FAILED those
    that have begun and may still take effect. ``message`` is the reason."""
    for write in list(turn.herder.requests.writes.values()):
        match write.phase:
            case AppendingWrite() | WriteAppended() | ChangingOffsets():
                uncertain = (
                    f"{message}. The request for connector {write.kind.request.connector} is in progress and may still "
                    "take effect; read the connector to find out"
                )
                refusal = RequestRefused(problem=Problem.LOG_FAILED, message=uncertain)
            case _:
                refusal = RequestRefused(problem=problem, message=message)
        _answer_write(turn, write, refusal)


def _answer_write(turn: Turn, write: PendingWrite, answer: Answer) -> None:
    """Answer the write and forget it. A write whose request has timed out was answered before."""
    del turn.herder.requests.writes[write.id]
    if isinstance(write.id, LeaderWriteId):
        turn.own_write_answers.append((write.kind.request, answer))
    elif not write.has_timed_out:
        turn.emit(CancelTimer(timer=RequestTimeoutDue(id=write.id)))
        turn.emit(Reply(id=write.id, answer=answer))


# -- helpers ----------------------------------------------------------------------------------------------------------


def _blocking_write(herder: Herder, write: PendingWrite) -> PendingWrite:
    """The write for which ``write`` waits, whose activity a timeout message names; ``write`` itself if it waits for no
    other write.

    Only a queued write that does not wait for the leader itself can wait for another write: normally for the write at
    the head of the queue. If an earlier write of the same connector waits for the leader, ``write`` waits for that one:
    the head of the queue is then a write of another connector."""
    awaits_leader = _awaits_leader_or_leader_log(herder)
    if not isinstance(write.phase, WriteQueued) or (write.kind.needs_leader and awaits_leader):
        return write
    if awaits_leader:
        for earlier in takewhile(lambda other: other is not write, herder.requests.writes.values()):
            is_same_connector = earlier.kind.request.connector == write.kind.request.connector
            if is_same_connector and isinstance(earlier.phase, WriteQueued) and earlier.kind.needs_leader:
                return earlier
    return _write_to_advance(herder) or write


def _activity_text(herder: Herder, write: PendingWrite) -> str:
    """What the worker is doing for the write, as a part of the message of a timeout; in Connect's words where Connect
    has the same activity."""
    match write.phase:
        case WriteAwaitingGroup() if not herder.lifecycle.is_runtime_open:
            return "reading to the end of internal topics, or starting the task runtime"
        case WriteAwaitingGroup():
            return _AWAITING_LEADER_ACTIVITY
        case WriteQueued() if _awaits_leader_or_leader_log(herder):
            return (
                "reclaiming write privileges for the config topic"
                if herder.place.is_leader_with_current_assignment
                else _AWAITING_LEADER_ACTIVITY
            )
        case ValidatingWrite():
            return VALIDATION_ACTIVITY
        case SettingInitialOffsets():
            return offsets_activity(write.kind.request.connector)
        case WriteQueued() | FindingConfigLogEnd() | ReadingToConfigLogEnd():
            return "reading to the end of the config topic"
        case AppendingWrite() | WriteAppended() | ChangingOffsets():
            return write.kind.activity


def invalid_config_message(errors: Mapping[str, Sequence[str]]) -> str:
    """Connect's text for an invalid config, with each error on a separate line."""
    sentences = [sentence for key in errors for sentence in errors[key]]
    return "\n".join(
        (
            f"Connector configuration is invalid and contains the following {len(sentences)} error(s):",
            *sentences,
            "You can also find the above list of errors at the endpoint "
            "`/connector-plugins/{connectorType}/config/validate`",
        )
    )
