"""The values of the responses of connect groups, for `kio_entities.build_response`."""

from typing import Any

from coterie.broker.apis.operations import AUTHORIZED_OPERATIONS_OMITTED
from coterie.groups.connect.messages import DescribedDepartedMember, DescribedMember, DescribeGroupResponse
from coterie.nouns.connect_groups import (
    AssignmentToMember,
    HeartbeatResponse,
    InstallAssignmentResponse,
    LeaderOfGroup,
    PrepareAssignmentResponse,
)
from coterie.nouns.ids import GroupId
from coterie.nouns.target_assignments import GroupSnapshot, SnapshotDeparted, SnapshotMember, UnplaceableJobs
from coterie.wire.connect_group_jobs import job_arrays
from coterie.wire.kio_entities import Values

_NO_DURATION = -1
"""The value of a duration that does not exist or has not changed."""
_THROTTLE_TIME = {"throttle_time_ms": 0}
"""The broker has no quotas and throttles no request."""


def heartbeat_values(response: HeartbeatResponse) -> Values:
    """The values of a response to ConnectGroupHeartbeat."""
    return {
        **_THROTTLE_TIME,
        **_error_values(response),
        "member_epoch": response.member_epoch,
        "heartbeat_interval_ms": response.heartbeat_interval_ms,
        "session_timeout_ms": _duration_value(response.session_timeout_ms),
        **({} if response.leader is None else _leader_values(response.leader)),
        **({} if response.assignment is None else _assignment_values(response.assignment)),
    }


def prepare_assignment_values(response: PrepareAssignmentResponse) -> Values:
    """The values of a response to ConnectGroupPrepareAssignment."""
    snapshot = response.snapshot
    return {
        **_THROTTLE_TIME,
        **_error_values(response),
        **({"group_epoch": 0, "assignor_name": "", "members": ()} if snapshot is None else _snapshot_values(snapshot)),
    }


def install_assignment_values(response: InstallAssignmentResponse) -> Values:
    """The values of a response to ConnectGroupInstallAssignment."""
    return {**_THROTTLE_TIME, **_error_values(response)}


def describe_values(groups: list[Values]) -> Values:
    """The values of a response to ConnectGroupDescribe with the entries ``groups`` (:func:`described_group_values`)."""
    return {**_THROTTLE_TIME, "groups": groups}


def described_group_values(
    group_id: GroupId,
    response: DescribeGroupResponse,
    *,
    authorized_operations: int = AUTHORIZED_OPERATIONS_OMITTED,
) -> Values:
    """The entry of one group in a response to ConnectGroupDescribe."""
    return {
        **_error_values(response),
        "group_id": group_id,
        "group_state": response.state,
        "group_epoch": response.group_epoch,
        "assignment_epoch": response.assignment_epoch,
        "assignor_name": response.assignor,
        "computing_member": response.computing_member,
        "assignment_error": response.assignment_error,
        "leader_id": response.leader,
        "leader_epoch": response.leader_epoch,
        "config_offset": response.config_offset,
        "members": [_described_member_values(one) for one in response.members],
        "departed": [_described_departed_values(one) for one in response.departed_members],
        "unplaceable": [_unplaceable_jobs_and_reason_values(one) for one in response.unplaceable],
        "authorized_operations": authorized_operations,
        "configs": [{"name": name, "value": value} for name, value in sorted(response.effective_configs.items())],
    }


# -- structs ----------------------------------------------------------------------------------------------------------


def _error_values(
    response: HeartbeatResponse | PrepareAssignmentResponse | InstallAssignmentResponse | DescribeGroupResponse,
) -> dict[str, Any]:
    """The error code and message of a response."""
    return {"error_code": response.error, "error_message": response.message}


def _leader_values(leader: LeaderOfGroup) -> dict[str, Any]:
    """The fields of a heartbeat response about the leader."""
    return {"leader_id": leader.member_id, "leader_epoch": leader.leader_epoch, "leader_url": leader.url}


def _assignment_values(assignment: AssignmentToMember) -> dict[str, Any]:
    """The fields of a heartbeat response about the assignment."""
    return {
        "assignment": {
            # A computation that fails leaves the targets as they are, so no assignment is the result of an error.
            "error": 0,
            "connectors_and_tasks": job_arrays(assignment.jobs),
            "version": assignment.version,
            "metadata": assignment.metadata,
            "job_epochs": [
                {"epoch": epoch, **job_arrays(jobs)}
                for epoch, jobs in sorted(assignment.jobs_by_assignment_epoch.items())
            ],
        },
        "assignment_epoch": assignment.assignment_epoch,
        "config_offset": assignment.config_offset,
    }


def _snapshot_values(snapshot: GroupSnapshot) -> dict[str, Any]:
    """The fields of a response to ConnectGroupPrepareAssignment that describe the group, for the assignor of the worker
    that sent the request."""
    return {
        "group_epoch": snapshot.group_epoch,
        "assignor_name": snapshot.assignor,
        "members": [_snapshot_member_values(one) for one in snapshot.members],
        "configured": {"value": {"config_offset": snapshot.config_offset, **job_arrays(snapshot.configured)}},
        "departed": [_snapshot_departed_values(one) for one in snapshot.departed],
        "max_delay_ms": _duration_value(snapshot.max_delay_ms),
        "time_limit_ms": snapshot.time_limit_ms,
    }


def _snapshot_member_values(member: SnapshotMember) -> Values:
    """The entry of one member in a response to ConnectGroupPrepareAssignment. The worker that sent the request passes
    these entries to its assignor."""
    nullable_jobs = {
        "claims": member.claims,
        "current": None if member.current == member.target else member.current,
        "pending": member.pending or None,
        "former": member.former_jobs or None,
    }
    return {
        "member_id": member.member_id,
        "member_epoch": member.member_epoch,
        "instance_id": member.instance_id,
        "assignor": {"version": member.version, "reason": member.reason, "metadata": member.metadata},
        "connectors_and_tasks": job_arrays(member.target),
        "url": member.url,
        "name": member.name,
        "config_offset": member.config_offset,
        "draining": member.draining,
        # Null is the default. Most members have four nulls, and kio takes long to write a struct for each of them.
        **{name: {"value": job_arrays(jobs)} for name, jobs in nullable_jobs.items() if jobs is not None},
    }


def _snapshot_departed_values(departed: SnapshotDeparted) -> Values:
    """The entry of one departed member in a response to ConnectGroupPrepareAssignment. The worker that sent the request
    passes these entries to its assignor."""
    return {
        "member_id": departed.member_id,
        "instance_id": departed.instance_id,
        "url": departed.url,
        "delay_left_ms": _duration_value(departed.delay_left_ms),
        **job_arrays(departed.jobs),
    }


def _described_member_values(member: DescribedMember) -> Values:
    """The entry of one member in a response to ConnectGroupDescribe."""
    metadata = member.metadata
    return {
        "member_id": metadata.member_id,
        "instance_id": metadata.instance_id,
        "client_id": metadata.client_id,
        "client_host": metadata.client_host,
        "url": metadata.url,
        "name": metadata.name,
        "member_epoch": member.member_epoch,
        "state": member.state,
        "draining": metadata.draining,
        "config_offset": member.config_offset,
        "claims": None if metadata.claims is None else job_arrays(metadata.claims),
        "assigned": job_arrays(member.assigned),
        "pending": job_arrays(member.pending),
        "target": job_arrays(member.target),
        "awaited": [
            {"holder_id": holder, **job_arrays(jobs)} for holder, jobs in sorted(member.awaited_jobs_by_holder.items())
        ],
    }


def _described_departed_values(described: DescribedDepartedMember) -> Values:
    """The entry of one departed member in a response to ConnectGroupDescribe."""
    departed = described.departed_member
    return {
        "member_id": departed.member_id,
        "instance_id": departed.instance_id,
        "url": departed.url,
        "delay_left_ms": _duration_value(described.delay_left_ms),
        "held_left_ms": described.held_jobs_left_ms,
        **job_arrays(departed.jobs),
        "reason": departed.reason,
    }


def _unplaceable_jobs_and_reason_values(unplaceable: UnplaceableJobs) -> Values:
    """The entry of one reason in a response to ConnectGroupDescribe: the reason, and the jobs that no member may run
    because of it."""
    return {"reason": unplaceable.reason, **job_arrays(unplaceable.jobs)}


def _duration_value(duration_ms: int | None) -> int:
    """The value of a duration in a response: -1 if ``duration_ms`` is None."""
    return _NO_DURATION if duration_ms is None else duration_ms
