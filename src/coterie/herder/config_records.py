"""The lines of the config topic: the same bytes as Kafka Connect's, plus an incarnation, which Connect ignores."""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from coterie.engine.log import NewLine
from coterie.herder.session_keys import SessionKey, decode_base64
from coterie.nouns.ids import Incarnation
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId
from coterie.nouns.states import TargetState

# -- parsed lines -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorWritten:
    """``connector-<name>``: a new or updated config; None means deleted."""

    connector: ConnectorName
    config: Mapping[str, str] | None
    incarnation: Incarnation | None = None
    """None when Connect's own tools wrote the line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskWritten:
    """``task-<name>-<i>``: one task's config, which takes effect with the next commit."""

    task: ConnectorTaskId
    config: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class TasksCommitted:
    """``commit-<name>``: the configs of the tasks 0 … ``tasks`` - 1 take effect together."""

    connector: ConnectorName
    tasks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetStateWritten:
    """``target-state-<name>``; None means removed, which reads as STARTED."""

    connector: ConnectorName
    target_state: TargetState | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionKeyWritten:
    """``session-key``: the new key with which all workers sign (KIP-507)."""

    session_key: SessionKey


@dataclass(frozen=True, slots=True, kw_only=True)
class NotForUs:
    """A line that is ignored. With a ``remark``, the line is unexpected and the remark is logged. Without a remark, the
    line is expected: only Kafka Connect needs it, or it is a tombstone that changes nothing here."""

    remark: str | None = None


ConfigRecord: TypeAlias = (
    ConnectorWritten | TaskWritten | TasksCommitted | TargetStateWritten | SessionKeyWritten | NotForUs
)

_SESSION_KEY = "session-key"
_OTHERS_KEYS = ("restart-connector-", "tasks-fencing-", "logger-cluster-")
"""Prefixes of Connect's keys that Coterie does not support; they are matched last, as in Connect."""


# -- reading ----------------------------------------------------------------------------------------------------------


def parse(key: bytes | None, value: bytes | None) -> ConfigRecord:
    """One line of the config topic, parsed. Prefixes are tried in Connect's order. No line raises an exception."""
    name = key.decode(errors="replace") if key is not None else ""
    body = _object(value)
    if value is not None and body is None:
        return NotForUs(remark=f"Ignoring the value of config key {name!r}: it is not a JSON object")
    if name.startswith("target-state-"):
        return _target_state(ConnectorName(name.removeprefix("target-state-")), body)
    if name.startswith("connector-"):
        return _connector(ConnectorName(name.removeprefix("connector-")), body)
    if name.startswith("task-"):
        return _task(name.removeprefix("task-"), body)
    if name.startswith("commit-"):
        return _commit(ConnectorName(name.removeprefix("commit-")), body)
    if name == _SESSION_KEY:
        return _session_key(body)
    if name.startswith(_OTHERS_KEYS):
        return NotForUs()
    return NotForUs(remark=f"Ignoring unknown key {name!r} in the config topic")


def _target_state(connector: ConnectorName, body: Mapping[str, object] | None) -> ConfigRecord:
    if body is None:
        return TargetStateWritten(connector=connector, target_state=None)
    # `state.v2` can be STOPPED; `state`, which workers before KIP-875 read, is PAUSED then.
    for field in ("state.v2", "state"):
        if (state := body.get(field)) in (*TargetState,):
            return TargetStateWritten(connector=connector, target_state=TargetState(str(state)))
    return NotForUs(remark=f"Ignoring the target state of connector {connector}: {dict(body)!r} contains none")


def _connector(connector: ConnectorName, body: Mapping[str, object] | None) -> ConfigRecord:
    if body is None:
        return ConnectorWritten(connector=connector, config=None)
    config = _strings(body.get("properties"))
    if config is None:
        return NotForUs(remark=f"Ignoring the config of connector {connector}: its properties are not strings")
    incarnation = body.get("incarnation")
    known = Incarnation(incarnation) if isinstance(incarnation, str) and incarnation else None
    return ConnectorWritten(connector=connector, config=config, incarnation=known)


def _task(name: str, body: Mapping[str, object] | None) -> ConfigRecord:
    try:
        task = ConnectorTaskId.parse(name)
    except ValueError as error:
        return NotForUs(remark=f"Ignoring a task's config: {error}")
    if body is None:
        return NotForUs()
    config = _strings(body.get("properties"))
    if config is None:
        return NotForUs(remark=f"Ignoring the config of task {task}: its properties are not strings")
    return TaskWritten(task=task, config=config)


def _commit(connector: ConnectorName, body: Mapping[str, object] | None) -> ConfigRecord:
    if body is None:
        return NotForUs()
    tasks = body.get("tasks")
    if not isinstance(tasks, int) or isinstance(tasks, bool) or tasks < 0:
        return NotForUs(remark=f"Ignoring a commit of connector {connector}: {tasks!r} is not a number of tasks")
    return TasksCommitted(connector=connector, tasks=tasks)


def _session_key(body: Mapping[str, object] | None) -> ConfigRecord:
    """The remark of an invalid key quotes no part of it."""
    fields = body or {}
    key, algorithm, created_at_ms = (fields.get(name) for name in ("key", "algorithm", "creation-timestamp"))
    if not (isinstance(key, str) and isinstance(algorithm, str) and type(created_at_ms) is int):
        return NotForUs(remark="Ignoring a session key: a key, an algorithm or a creation-timestamp is missing")
    try:
        decoded = decode_base64(key)
    except ValueError as error:
        return NotForUs(remark=f"Ignoring a session key: {error}")
    if not decoded:
        return NotForUs(remark="Ignoring a session key: it is empty")
    return SessionKeyWritten(session_key=SessionKey(key=decoded, algorithm=algorithm, created_at_ms=created_at_ms))


# -- writing ----------------------------------------------------------------------------------------------------------


def connector_line(connector: ConnectorName, config: Mapping[str, str], incarnation: Incarnation) -> NewLine:
    return _line(f"connector-{connector}", {"properties": dict(config), "incarnation": incarnation})


def deletion_lines(connector: ConnectorName) -> tuple[NewLine, ...]:
    """The tombstone of the config, then the tombstone of the target state: Connect's order."""
    return (_line(f"connector-{connector}", None), _line(f"target-state-{connector}", None))


def task_config_lines(connector: ConnectorName, configs: Sequence[Mapping[str, str]]) -> tuple[NewLine, ...]:
    """Each task's config, then the commit with which the configs take effect."""
    tasks = (
        _line(f"task-{ConnectorTaskId(connector, i)}", {"properties": dict(config)}) for i, config in enumerate(configs)
    )
    return (*tasks, _line(f"commit-{connector}", {"tasks": len(configs)}))


def target_state_line(connector: ConnectorName, target_state: TargetState) -> NewLine:
    # Workers before KIP-875 do not support STOPPED: they read PAUSED instead.
    older = TargetState.PAUSED if target_state is TargetState.STOPPED else target_state
    return _line(f"target-state-{connector}", {"state": older.value, "state.v2": target_state.value})


def session_key_line(session_key: SessionKey) -> NewLine:
    fields = {
        "key": base64.b64encode(session_key.key).decode(),
        "algorithm": session_key.algorithm,
        "creation-timestamp": session_key.created_at_ms,
    }
    return _line(_SESSION_KEY, fields)


# -- helpers ----------------------------------------------------------------------------------------------------------


def _line(key: str, value: Mapping[str, object] | None) -> NewLine:
    return NewLine(key=key.encode(), value=None if value is None else dump(value))


def dump(value: object) -> bytes:
    """JSON as Connect's JsonConverter writes it: without blanks, non-ASCII characters unescaped."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _object(value: bytes | None) -> Mapping[str, object] | None:
    if value is None:
        return None
    try:
        parsed = json.loads(value)
    except (ValueError, RecursionError):
        return None
    return parsed if isinstance(parsed, dict) else None


def _strings(value: object) -> Mapping[str, str] | None:
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        return None
    return value
