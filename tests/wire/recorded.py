"""Reads the decoded form that the recorder of a real Connect's messages (tests/wire/vectors) wrote beside the bytes."""

from collections.abc import Mapping
from typing import Any

from coterie.nouns.ids import ConfigOffset, MemberId, WorkerUrl
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId, Jobs
from coterie.wire.connect import AssignmentErrorCode, WorkerAssignment


def jobs_of(entries: Any) -> Jobs:
    """The recorder's decoded form: pairs or objects of a connector and its tasks, -1 the connector itself."""
    pairs = [(e["connector"], e["tasks"]) if isinstance(e, Mapping) else e for e in entries]
    return Jobs.of(
        ConnectorName(name) if task == -1 else ConnectorTaskId(ConnectorName(name), task)
        for name, tasks in pairs
        for task in tasks
    )


def assignment_of(decoded: Mapping[str, Any]) -> WorkerAssignment:
    return WorkerAssignment(
        error=AssignmentErrorCode(decoded["error"]),
        leader=MemberId(decoded["leader"]),
        leader_url=WorkerUrl(decoded["leader_url"]),
        config_offset=ConfigOffset(decoded["config_offset"]),
        assigned=jobs_of(decoded["assigned"]),
        revoked=jobs_of(decoded.get("revoked", ())),
        delay_ms=decoded.get("delay_ms", 0),
    )
