"""The lines of the config topic. The bytes are those of Kafka Connect, plus an incarnation and the id of a client's
request, which Connect ignores."""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from coterie.engine.log import NewTopicRecord
from coterie.herder.requests.ids import ClientRequestId
from coterie.herder.session_keys import SessionKey, decode_base64_or_raise
from coterie.nouns.ids import Incarnation
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId
from coterie.nouns.logger_levels import LoggerLevel
from coterie.nouns.states import TargetState

# -- parsed lines -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorConfigWritten:
    """``connector-<name>``: a new or changed config of a connector; ``config`` is None when the connector was
    deleted."""

    connector: ConnectorName
    config: Mapping[str, str] | None
    incarnation: Incarnation | None = None
    """None when the line contains none: Connect's own tools wrote it, or it is the tombstone of a deleted connector."""
    request_id: ClientRequestId | None = None
    """The request that wrote the line; None when the line contains none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskConfigWritten:
    """``task-<name>-<number>``: one task's config, which takes effect with the next commit. ``incarnation`` is that of
    the connector; None when Kafka Connect wrote the line."""

    task: ConnectorTaskId
    config: Mapping[str, str]
    incarnation: Incarnation | None = None
    """The incarnation of the task's connector; None when the line contains none, because Kafka Connect wrote the
    line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskConfigsCommitted:
    """``commit-<name>``: the configs of the tasks 0 … ``task_count`` - 1 take effect together."""

    connector: ConnectorName
    task_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetStateWritten:
    """``target-state-<name>``: the new target state of a connector; ``target_state`` is None when the line was removed,
    which means STARTED."""

    connector: ConnectorName
    target_state: TargetState | None
    request_id: ClientRequestId | None = None
    """The request that wrote the line; None when the line contains none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionKeyWritten:
    """``session-key``: the new key with which all workers sign requests (KIP-507)."""

    session_key: SessionKey


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorRestartRequested:
    """``restart-connector-<name>``: every worker restarts its jobs of this connector, as far as the fields require
    (KIP-745). The line changes no state: a worker that reads it while it starts ignores it."""

    connector: ConnectorName
    include_tasks: bool
    """Whether the connector's tasks are restarted, too."""
    only_failed: bool
    """Whether only jobs in the state FAILED are restarted."""
    request_id: ClientRequestId | None = None
    """The request that wrote the line; None when the line contains none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggerLevelWritten:
    """``logger-cluster-<logger>``: every worker sets the level of the logger and of its descendants (KIP-976). The line
    changes no state: a worker that reads it while it starts ignores it."""

    logger: str
    level: LoggerLevel


@dataclass(frozen=True, slots=True, kw_only=True)
class IgnoredLine:
    """A line that is ignored. With a ``log_message``, the line is unexpected and the message is logged. Without a
    message, the line is expected: only Kafka Connect needs it, or it is a tombstone that changes nothing here."""

    log_message: str | None = None


ConfigRecord: TypeAlias = (
    ConnectorConfigWritten
    | TaskConfigWritten
    | TaskConfigsCommitted
    | TargetStateWritten
    | SessionKeyWritten
    | ConnectorRestartRequested
    | LoggerLevelWritten
    | IgnoredLine
)

_SESSION_KEY_RECORD_KEY = "session-key"
"""The record key of the line that contains the session key."""
_UNSUPPORTED_KEY_PREFIX = "tasks-fencing-"
"""The prefix of the keys that Connect uses and Coterie does not support."""


# -- reading ----------------------------------------------------------------------------------------------------------


def parse_line(key: bytes | None, value: bytes | None) -> ConfigRecord:
    """Parse one line of the config topic; invalid and unknown lines become :class:`IgnoredLine`. The prefixes of keys
    are tried in Connect's order. No line raises an exception."""
    name = key.decode(errors="replace") if key is not None else ""
    body = _json_object_or_none(value)
    if value is not None and body is None:
        return IgnoredLine(log_message=f"Ignoring key {name!r} in the config topic: its value is not a JSON object")
    if name.startswith("target-state-"):
        return _parse_target_state(ConnectorName(name.removeprefix("target-state-")), body)
    if name.startswith("connector-"):
        return _parse_connector(ConnectorName(name.removeprefix("connector-")), body)
    if name.startswith("task-"):
        return _parse_task_config(name.removeprefix("task-"), body)
    if name.startswith("commit-"):
        return _parse_commit(ConnectorName(name.removeprefix("commit-")), body)
    if name.startswith("restart-connector-"):
        return _parse_restart(ConnectorName(name.removeprefix("restart-connector-")), body)
    if name == _SESSION_KEY_RECORD_KEY:
        return _parse_session_key(body)
    if name.startswith(_UNSUPPORTED_KEY_PREFIX):
        return IgnoredLine()
    if name.startswith("logger-cluster-"):
        return _parse_logger_level(name.removeprefix("logger-cluster-"), body)
    return IgnoredLine(log_message=f"Ignoring unknown key {name!r} in the config topic")


def _parse_target_state(connector: ConnectorName, body: Mapping[str, object] | None) -> ConfigRecord:
    if body is None:
        return TargetStateWritten(connector=connector, target_state=None)
    # `state.v2` can be STOPPED; `state`, which workers before KIP-875 read, is PAUSED then.
    for field in ("state.v2", "state"):
        if (state := body.get(field)) in (*TargetState,):
            return TargetStateWritten(
                connector=connector, target_state=TargetState(str(state)), request_id=_request_id_in(body)
            )
    return IgnoredLine(
        log_message=f"Ignoring the target state of connector {connector}: {dict(body)!r} contains no known target state"
    )


def _parse_connector(connector: ConnectorName, body: Mapping[str, object] | None) -> ConfigRecord:
    if body is None:
        return ConnectorConfigWritten(connector=connector, config=None)
    config = _as_string_mapping(body.get("properties"))
    if config is None:
        return IgnoredLine(
            log_message=f"Ignoring the config of connector {connector}: its properties are missing or are not strings"
        )
    return ConnectorConfigWritten(
        connector=connector, config=config, incarnation=_incarnation_in(body), request_id=_request_id_in(body)
    )


def _parse_task_config(name: str, body: Mapping[str, object] | None) -> ConfigRecord:
    try:
        task = ConnectorTaskId.parse(name)
    except ValueError as error:
        return IgnoredLine(log_message=f"Ignoring a task's config in the config topic, because of its key: {error}")
    if body is None:
        return IgnoredLine()
    config = _as_string_mapping(body.get("properties"))
    if config is None:
        return IgnoredLine(
            log_message=f"Ignoring the config of task {task}: its properties are missing or are not strings"
        )
    return TaskConfigWritten(task=task, config=config, incarnation=_incarnation_in(body))


def _parse_commit(connector: ConnectorName, body: Mapping[str, object] | None) -> ConfigRecord:
    if body is None:
        return IgnoredLine()
    tasks = body.get("tasks")
    if not isinstance(tasks, int) or isinstance(tasks, bool) or tasks < 0:
        return IgnoredLine(
            log_message=f"Ignoring a commit of connector {connector}: {tasks!r} is not a number of tasks"
        )
    return TaskConfigsCommitted(connector=connector, task_count=tasks)


def _parse_restart(connector: ConnectorName, body: Mapping[str, object] | None) -> ConfigRecord:
    """Parse the line that requests a restart of a connector. A field that is missing or is not a boolean counts as
    false, as in Connect; a tombstone is ignored."""
    if body is None:
        return IgnoredLine()
    return ConnectorRestartRequested(
        connector=connector,
        include_tasks=body.get("include-tasks") is True,
        only_failed=body.get("only-failed") is True,
        request_id=_request_id_in(body),
    )


def _incarnation_in(body: Mapping[str, object]) -> Incarnation | None:
    """The connector's incarnation in the line with this ``body``; None when it contains none."""
    incarnation = body.get("incarnation")
    return Incarnation(incarnation) if isinstance(incarnation, str) and incarnation else None


def _request_id_in(body: Mapping[str, object]) -> ClientRequestId | None:
    """The id of the request that wrote the line with this ``body``; None when it contains none."""
    request = body.get("request")
    return ClientRequestId(request) if isinstance(request, str) else None


def _parse_logger_level(logger: str, body: Mapping[str, object] | None) -> ConfigRecord:
    if body is None:
        return IgnoredLine()
    level = body.get("level")
    if not isinstance(level, str) or level.upper() not in (*LoggerLevel,):
        return IgnoredLine(log_message=f"Ignoring the level of logger {logger}: {level!r} is not a level")
    return LoggerLevelWritten(logger=logger, level=LoggerLevel(level.upper()))


def _parse_session_key(body: Mapping[str, object] | None) -> ConfigRecord:
    """Parse the value of the session key. The message about an invalid key quotes no part of it."""
    fields = body or {}
    key, algorithm, created_at_ms = (fields.get(name) for name in ("key", "algorithm", "creation-timestamp"))
    if not (isinstance(key, str) and isinstance(algorithm, str) and type(created_at_ms) is int):
        return IgnoredLine(
            log_message="Ignoring a session key: its key, algorithm or creation-timestamp is missing or invalid"
        )
    try:
        decoded = decode_base64_or_raise(key)
    except ValueError as error:
        return IgnoredLine(log_message=f"Ignoring a session key: {error}")
    if not decoded:
        return IgnoredLine(log_message="Ignoring a session key: the key is empty")
    return SessionKeyWritten(session_key=SessionKey(key=decoded, algorithm=algorithm, created_at_ms=created_at_ms))


# -- writing ----------------------------------------------------------------------------------------------------------


def connector_line(connector: ConnectorName, config: Mapping[str, str], incarnation: Incarnation) -> NewTopicRecord:
    """The line with a connector's config."""
    return _make_line(f"connector-{connector}", {"properties": dict(config), "incarnation": incarnation})


def connector_and_target_state_tombstones(connector: ConnectorName) -> tuple[NewTopicRecord, ...]:
    """The lines that delete a connector: the tombstone of its config, then the tombstone of its target state, which is
    Connect's order."""
    return (_make_line(f"connector-{connector}", None), _make_line(f"target-state-{connector}", None))


def task_config_and_commit_lines(
    connector: ConnectorName, configs: Sequence[Mapping[str, str]], incarnation: Incarnation | None = None
) -> tuple[NewTopicRecord, ...]:
    """The line with each task's config and the connector's ``incarnation``, then the commit line with which these
    configs take effect. With an incarnation None the lines are those of Kafka Connect."""
    incarnation_field = {} if incarnation is None else {"incarnation": incarnation}
    tasks = (
        _make_line(f"task-{ConnectorTaskId(connector, i)}", {"properties": dict(config), **incarnation_field})
        for i, config in enumerate(configs)
    )
    return (*tasks, _make_line(f"commit-{connector}", {"tasks": len(configs)}))


def target_state_line(connector: ConnectorName, target_state: TargetState) -> NewTopicRecord:
    """The line with a connector's target state."""
    # Workers before KIP-875 do not support STOPPED: they read PAUSED instead.
    older = TargetState.PAUSED if target_state is TargetState.STOPPED else target_state
    return _make_line(f"target-state-{connector}", {"state": older.value, "state.v2": target_state.value})


def restart_line(restart: ConnectorRestartRequested) -> NewTopicRecord:
    """The line that requests a restart of a connector."""
    fields = {"include-tasks": restart.include_tasks, "only-failed": restart.only_failed}
    return _make_line(f"restart-connector-{restart.connector}", fields)


def logger_level_line(written: LoggerLevelWritten) -> NewTopicRecord:
    """The line with the level of a logger on all workers."""
    return _make_line(f"logger-cluster-{written.logger}", {"level": written.level.value})


def with_id_in_last_non_tombstone(
    lines: tuple[NewTopicRecord, ...], request: ClientRequestId
) -> tuple[NewTopicRecord, ...]:
    """``lines``, with the id of the request that writes them added to the last of them that is no tombstone; there must
    be such a line. Connect ignores the id."""
    last = max(number for number, line in enumerate(lines) if line.value is not None)
    value = lines[last].value
    assert value is not None
    with_id = NewTopicRecord(key=lines[last].key, value=encode_json({**json.loads(value), "request": request}))
    return (*lines[:last], with_id, *lines[last + 1 :])


def session_key_line(session_key: SessionKey) -> NewTopicRecord:
    """The line with the session key, as Connect writes it."""
    fields = {
        "key": base64.b64encode(session_key.key).decode(),
        "algorithm": session_key.algorithm,
        "creation-timestamp": session_key.created_at_ms,
    }
    return _make_line(_SESSION_KEY_RECORD_KEY, fields)


# -- helpers ----------------------------------------------------------------------------------------------------------


def _make_line(key: str, value: Mapping[str, object] | None) -> NewTopicRecord:
    """A line of the config topic; a tombstone when ``value`` is None."""
    return NewTopicRecord(key=key.encode(), value=None if value is None else encode_json(value))


def encode_json(value: object) -> bytes:
    """``value`` as JSON, in the form in which Connect's JsonConverter writes it: without blanks, non-ASCII characters
    unescaped."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _json_object_or_none(value: bytes | None) -> Mapping[str, object] | None:
    """The JSON object in ``value``; None for a tombstone, and when ``value`` is no JSON object."""
    if value is None:
        return None
    try:
        parsed = json.loads(value)
    except (ValueError, RecursionError):
        return None
    return parsed if isinstance(parsed, dict) else None


def _as_string_mapping(value: object) -> Mapping[str, str] | None:
    """``value`` if it is a mapping whose values are strings, else None."""
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        return None
    return value
