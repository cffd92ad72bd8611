"""The config topic's records, compared with those of a real Kafka Connect 4.3.1."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.engine.log import NewTopicRecord
from coterie.herder import config_records
from coterie.herder.config_records import (
    ConnectorConfigWritten,
    ConnectorRestartRequested,
    IgnoredLine,
    LoggerLevelWritten,
    SessionKeyWritten,
    TargetStateWritten,
    TaskConfigsCommitted,
    TaskConfigWritten,
)
from coterie.herder.requests.ids import ClientRequestId
from coterie.nouns.ids import Incarnation
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId
from coterie.nouns.states import TargetState

VECTORS = json.loads((Path(__file__).parent / "vectors" / "connect-topics.json").read_text())
RECORDED: list[dict[str, Any]] = [
    record for step in VECTORS["topics"] for record in step["records"] if record["topic"] == "configs"
]
INCARNATION = Incarnation("5f3a")


def encode_again(record: config_records.ConfigRecord) -> list[NewTopicRecord]:
    """The same record, encoded by this code."""
    match record:
        case ConnectorConfigWritten(connector=name, config=None):
            return [config_records.connector_and_target_state_tombstones(name)[0]]
        case ConnectorConfigWritten(connector=name, config=config) if config is not None:
            return [config_records.connector_line(name, config, INCARNATION)]
        case TaskConfigWritten(task=task, config=config):
            return [config_records.task_config_and_commit_lines(task.connector, [config] * (task.task + 1))[task.task]]
        case TaskConfigsCommitted(connector=name, task_count=tasks):
            return [config_records.task_config_and_commit_lines(name, [{}] * tasks)[-1]]
        case TargetStateWritten(connector=name, target_state=None):
            return [config_records.connector_and_target_state_tombstones(name)[1]]
        case TargetStateWritten(connector=name, target_state=target_state) if target_state is not None:
            return [config_records.target_state_line(name, target_state)]
        case SessionKeyWritten(session_key=session_key):
            return [config_records.session_key_line(session_key)]
        case ConnectorRestartRequested():
            return [config_records.restart_line(record)]
        case LoggerLevelWritten():
            return [config_records.logger_level_line(record)]
        case _:
            return []


def test_the_last_line_of_a_write_contains_the_id_of_its_request() -> None:
    name, request = ConnectorName("a"), ClientRequestId("r1")
    target_state = config_records.target_state_line(name, TargetState.STOPPED)
    lines = config_records.with_id_in_last_non_tombstone(
        (*config_records.task_config_and_commit_lines(name, ()), target_state), request
    )
    assert [line.value for line in lines] == [
        b'{"tasks":0}',
        b'{"state":"PAUSED","state.v2":"STOPPED","request":"r1"}',
    ]
    assert config_records.parse_line(lines[-1].key, lines[-1].value) == TargetStateWritten(
        connector=name, target_state=TargetState.STOPPED, request_id=request
    )
    deletion = config_records.with_id_in_last_non_tombstone(
        (target_state, *config_records.connector_and_target_state_tombstones(name)), request
    )
    assert [line.value for line in deletion] == [lines[-1].value, None, None]


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda record: f"{record['o']}-{record['key']}")
def test_connects_records_are_encoded_to_the_same_bytes(recorded: dict[str, Any]) -> None:
    value = recorded["value"]
    parsed = config_records.parse_line(recorded["key"].encode(), None if value is None else value.encode())
    (line,) = encode_again(parsed)
    encoded_value = line.value and line.value.replace(b',"incarnation":"5f3a"', b"")
    assert (line.key.decode(), encoded_value and encoded_value.decode()) == (recorded["key"], value)


def test_a_connector_record_contains_the_incarnation_beside_the_properties() -> None:
    line = config_records.connector_line(ConnectorName("orders"), {"name": "orders", "größe": "8"}, INCARNATION)
    assert line.value == '{"properties":{"name":"orders","größe":"8"},"incarnation":"5f3a"}'.encode()


def test_a_task_key_is_split_at_the_last_dash() -> None:
    parsed = config_records.parse_line(b"task-a-b-1-12", b'{"properties":{}}')
    assert parsed == TaskConfigWritten(task=ConnectorTaskId(ConnectorName("a-b-1"), 12), config={})


def test_the_newer_target_state_field_wins_and_an_unknown_value_falls_back_to_the_older() -> None:
    parsed = config_records.parse_line(b"target-state-a", b'{"state":"PAUSED","state.v2":"STOPPED"}')
    assert parsed == TargetStateWritten(connector=ConnectorName("a"), target_state=TargetState.STOPPED)
    parsed = config_records.parse_line(b"target-state-a", b'{"state":"PAUSED","state.v2":"HIBERNATING"}')
    assert parsed == TargetStateWritten(connector=ConnectorName("a"), target_state=TargetState.PAUSED)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"what-is-this", b"{}"),
        (b"connector-a", b"{"),
        (b"connector-a", b'{"properties":{"a":1}}'),
        (b"connector-a", b"[" * 100_000),
        (b"task-a-x", b'{"properties":{}}'),
        (b"commit-a", b'{"tasks":-1}'),
        (b"commit-a", b'{"tasks":true}'),
        (b"target-state-a", b'{"state":["x"]}'),
        (b"logger-cluster-a", b'{"level":"LOUD"}'),
        (b"logger-cluster-a", b"{}"),
        (None, b"{}"),
    ],
)
def test_an_invalid_record_is_ignored_with_a_log_message(key: bytes | None, value: bytes) -> None:
    parsed = config_records.parse_line(key, value)
    assert isinstance(parsed, IgnoredLine)
    assert parsed.log_message


@given(st.binary(max_size=40), st.none() | st.binary(max_size=200))
def test_no_record_raises_an_exception(key: bytes, value: bytes | None) -> None:
    for prefix in (b"", b"connector-", b"task-", b"commit-", b"target-state-"):
        config_records.parse_line(prefix + key, value)
    config_records.parse_line(b"session-key", value)


@given(st.dictionaries(st.text(max_size=20), st.text(max_size=20), max_size=6), st.text(min_size=1, max_size=30))
def test_any_config_is_decoded_to_the_same_config(config: dict[str, str], name: str) -> None:
    line = config_records.connector_line(ConnectorName(name), config, INCARNATION)
    parsed = config_records.parse_line(line.key, line.value)
    assert parsed == ConnectorConfigWritten(connector=ConnectorName(name), config=config, incarnation=INCARNATION)


GOOD_KEY = {"key": "c2VjcmV0", "algorithm": "HmacSHA256", "creation-timestamp": 1}


@pytest.mark.parametrize(
    "changes",
    [
        {"key": None},
        {"key": ""},
        {"key": "c2VjcmV0="},
        {"key": 7},
        {"algorithm": 7},
        {"creation-timestamp": "1"},
        {"creation-timestamp": 1.5},
        {"creation-timestamp": True},
        {"creation-timestamp": None},
    ],
)
def test_an_invalid_session_key_is_ignored_with_a_log_message_that_does_not_contain_it(changes: dict[str, Any]) -> None:
    value = json.dumps({**GOOD_KEY, **changes}).encode()
    assert isinstance(config_records.parse_line(b"session-key", json.dumps(GOOD_KEY).encode()), SessionKeyWritten)
    parsed = config_records.parse_line(b"session-key", value)
    assert isinstance(parsed, IgnoredLine)
    assert parsed.log_message
    assert "c2VjcmV0" not in parsed.log_message


def test_a_restart_without_valid_fields_restarts_the_connector_only_as_in_connect() -> None:
    parsed = config_records.parse_line(b"restart-connector-a", b'{"include-tasks":"yes"}')
    assert parsed == ConnectorRestartRequested(connector=ConnectorName("a"), include_tasks=False, only_failed=False)
