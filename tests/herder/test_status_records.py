"""The status topic's lines, beside those that a real Kafka Connect 4.3.1 wrote, and whose word counts."""

import json
from pathlib import Path
from typing import Any

import pytest

from coterie.engine.log import Line
from coterie.herder.status_records import Status, StatusState, job_of, line_of, status_of
from coterie.nouns.ids import Generation, WorkerId
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId, Job
from coterie.nouns.states import State

VECTORS = json.loads((Path(__file__).parent / "vectors" / "connect-topics.json").read_text())
RECORDED: list[dict[str, Any]] = [
    record for step in VECTORS["topics"] for record in step["records"] if record["topic"] == "status"
]
TASK = ConnectorTaskId(ConnectorName("orders"), 0)
HERE, THERE = WorkerId("here:8083"), WorkerId("there:8083")


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda record: f"{record['o']}-{record['key']}")
def test_what_connect_wrote_is_written_again_to_the_byte(recorded: dict[str, Any]) -> None:
    job = job_of(recorded["key"].encode())
    if job is None:
        assert recorded["key"].startswith("status-topic-")
        return
    value = recorded["value"]
    status = None if value is None else status_of(value.encode())
    assert (status is None) == (value is None)
    line = line_of(job, status)
    assert (line.key.decode(), line.value and line.value.decode()) == (recorded["key"], value)


def said(state: StatusState, job: Job, status: Status | None) -> None:
    line = line_of(job, status)
    state.apply(Line(partition=0, offset=0, timestamp_ms=0, key=line.key, value=line.value))


def status(state: State, worker: WorkerId, generation: int) -> Status:
    return Status(state=state, worker_id=worker, generation=Generation(generation))


def test_a_farewell_that_comes_late_does_not_hide_that_the_task_runs_elsewhere() -> None:
    statuses = StatusState()
    running = status(State.RUNNING, THERE, 5)
    said(statuses, TASK, running)
    said(statuses, TASK, status(State.UNASSIGNED, HERE, 4))
    assert statuses.get(TASK) == running
    said(statuses, TASK, status(State.UNASSIGNED, HERE, 6))
    assert statuses.get(TASK) == status(State.UNASSIGNED, HERE, 6)


def test_a_former_owner_may_not_speak_over_a_newer_one() -> None:
    statuses = StatusState()
    assert statuses.may_say_safely(TASK, status(State.FAILED, HERE, 1))
    said(statuses, TASK, status(State.RUNNING, THERE, 5))
    assert not statuses.may_say_safely(TASK, status(State.FAILED, HERE, 4))
    assert statuses.may_say_safely(TASK, status(State.FAILED, HERE, 5))
    assert statuses.may_say_safely(TASK, status(State.FAILED, THERE, 1))


@pytest.mark.parametrize(
    "value", [b"", b"{", b"[]", b"null", b'{"state":"X","worker_id":"a","generation":1}', b"[" * 99_999]
)
def test_a_value_that_is_no_status_changes_nothing(value: bytes) -> None:
    statuses = StatusState()
    running = status(State.RUNNING, HERE, 1)
    said(statuses, TASK, running)
    statuses.apply(Line(partition=0, offset=1, timestamp_ms=0, key=b"status-task-orders-0", value=value))
    assert statuses.get(TASK) == running


def test_a_destroyed_job_is_a_tombstone() -> None:
    statuses = StatusState()
    said(statuses, TASK, status(State.RUNNING, HERE, 1))
    said(statuses, TASK, status(State.DESTROYED, HERE, 1))
    assert statuses.get(TASK) is None
