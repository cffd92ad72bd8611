"""The status topic's records, compared with those of a real Kafka Connect 4.3.1, and which of two statuses wins."""

import json
from pathlib import Path
from typing import Any

import pytest

from coterie.engine.log import TopicRecord
from coterie.herder.status_records import (
    FirstTopicUse,
    Status,
    StatusState,
    active_topic_line,
    active_topic_of_key,
    job_of_key,
    parse_status,
    status_line_of_job,
)
from coterie.nouns.ids import GenerationId, WorkerId
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId, Job
from coterie.nouns.states import JobState

VECTORS = json.loads((Path(__file__).parent / "vectors" / "connect-topics.json").read_text())
RECORDED: list[dict[str, Any]] = [
    record for step in VECTORS["topics"] for record in step["records"] if record["topic"] == "status"
]
TASK = ConnectorTaskId(ConnectorName("orders"), 0)
HERE, THERE = WorkerId("here:8083"), WorkerId("there:8083")


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda record: f"{record['o']}-{record['key']}")
def test_connects_status_records_are_encoded_to_the_same_bytes(recorded: dict[str, Any]) -> None:
    job = job_of_key(recorded["key"].encode())
    if job is None:
        assert topic_line_as_recorded(recorded) == (recorded["key"], recorded["value"])
        return
    value = recorded["value"]
    status = None if value is None else parse_status(value.encode())
    assert (status is None) == (value is None)
    line = status_line_of_job(job, status)
    assert (line.key.decode(), line.value and line.value.decode()) == (recorded["key"], value)


def topic_line_as_recorded(recorded: dict[str, Any]) -> tuple[str, str | None]:
    """The line about the active topic that the key and value of ``recorded`` name."""
    active_topic = active_topic_of_key(recorded["key"].encode())
    assert active_topic is not None
    fields = None if recorded["value"] is None else json.loads(recorded["value"])["topic"]
    use = (
        None
        if fields is None
        else FirstTopicUse(task_number=fields["task"], discovered_at_ms=fields["discoverTimestamp"])
    )
    line = active_topic_line(active_topic, use)
    assert line.key is not None
    return line.key.decode(), None if line.value is None else line.value.decode()


def apply_status(state: StatusState, job: Job, status: Status | None) -> None:
    line = status_line_of_job(job, status)
    state.apply(TopicRecord(partition=0, offset=0, timestamp_ms=0, key=line.key, value=line.value))


def status(state: JobState, worker: WorkerId, generation: int) -> Status:
    return Status(state=state, worker_id=worker, generation=GenerationId(generation))


def test_a_late_unassigned_status_does_not_replace_the_new_owners_status() -> None:
    statuses = StatusState()
    running = status(JobState.RUNNING, THERE, 5)
    apply_status(statuses, TASK, running)
    apply_status(statuses, TASK, status(JobState.UNASSIGNED, HERE, 4))
    assert statuses.get(TASK) == running
    apply_status(statuses, TASK, status(JobState.UNASSIGNED, HERE, 6))
    assert statuses.get(TASK) == status(JobState.UNASSIGNED, HERE, 6)


def test_a_former_owner_may_not_overwrite_a_newer_owners_status() -> None:
    statuses = StatusState()
    assert statuses.may_overwrite(TASK, status(JobState.FAILED, HERE, 1))
    apply_status(statuses, TASK, status(JobState.RUNNING, THERE, 5))
    assert not statuses.may_overwrite(TASK, status(JobState.FAILED, HERE, 4))
    assert statuses.may_overwrite(TASK, status(JobState.FAILED, HERE, 5))
    assert statuses.may_overwrite(TASK, status(JobState.FAILED, THERE, 1))


@pytest.mark.parametrize(
    "value", [b"", b"{", b"[]", b"null", b'{"state":"X","worker_id":"a","generation":1}', b"[" * 99_999]
)
def test_an_invalid_status_changes_nothing(value: bytes) -> None:
    statuses = StatusState()
    running = status(JobState.RUNNING, HERE, 1)
    apply_status(statuses, TASK, running)
    statuses.apply(TopicRecord(partition=0, offset=1, timestamp_ms=0, key=b"status-task-orders-0", value=value))
    assert statuses.get(TASK) == running


def test_a_destroyed_job_has_a_tombstone() -> None:
    statuses = StatusState()
    apply_status(statuses, TASK, status(JobState.RUNNING, HERE, 1))
    apply_status(statuses, TASK, status(JobState.DESTROYED, HERE, 1))
    assert statuses.get(TASK) is None
