"""The requests of a connect group's member as values for `kio_entities.build_request`, and the responses from kio's
entities."""

import uuid
from typing import Any

from coterie.member.connect.messages import (
    GroupDescriptionResponse,
    HeartbeatRequest,
    InstallAssignmentRequest,
    PrepareAssignmentRequest,
)
from coterie.nouns.connect_error_codes import ConnectErrorCode
from coterie.nouns.connect_groups import (
    AssignmentToMember,
    Claims,
    ConfiguredJobs,
    HeartbeatResponse,
    InstallAssignmentResponse,
    LeaderOfGroup,
    PrepareAssignmentResponse,
)
from coterie.nouns.group_description import DepartedMemberDescription, GroupDescription, MemberDescription
from coterie.nouns.ids import ConfigOffset, GroupEpoch, InstanceId, LeaderEpoch, MemberEpoch, MemberId, WorkerUrl
from coterie.nouns.jobs import NO_JOBS, Jobs
from coterie.nouns.member_state import MemberState
from coterie.nouns.target_assignments import GroupSnapshot, SnapshotDeparted, SnapshotMember, UnplaceableJobs
from coterie.wire.connect_group_jobs import distinct_jobs_in_arrays, job_arrays
from coterie.wire.kio_entities import Values

_ABSENT = -1
"""In a request or a response: a number that is not given, or that has not changed."""

# -- requests ---------------------------------------------------------------------------------------------------------


def heartbeat_request_values(request: HeartbeatRequest) -> Values:
    """The fields of a ConnectGroupHeartbeat request. Fields that are None in ``request``, because they have not
    changed, are left out."""
    values = {
        "group_id": request.group_id,
        "member_id": request.member_id,
        "member_epoch": request.member_epoch,
        "request_number": request.request_number,
        "instance_id": request.instance_id,
        "rebalance_timeout_ms": request.rebalance_timeout_ms,
        "server_assignor": request.server_assignor,
        "client_assignors": None
        if request.client_assignors is None
        else [
            {
                "name": one.name,
                "minimum_version": one.minimum_version,
                "maximum_version": one.maximum_version,
                "reason": one.reason,
                "version": one.version,
                "metadata": one.metadata,
            }
            for one in request.client_assignors
        ],
        "connectors_and_tasks": None if request.owned is None else job_arrays(request.owned),
        "url": request.url,
        "name": request.name,
        "config_offset": request.config_offset,
        "config_topic_id": None if request.config_topic_id is None else uuid.UUID(bytes=request.config_topic_id),
        "configured": None if request.configured is None else _configured_jobs_values(request.configured),
        "claims": None if request.claims is None else _claims_values(request.claims),
        "draining": None if request.draining is None else int(request.draining),
        "max_wait_ms": request.max_wait_ms,
        "connection_grace_ms": request.connection_grace_ms,
        "resumes": request.resumes,
    }
    return {name: value for name, value in values.items() if value is not None}


def prepare_assignment_request_values(request: PrepareAssignmentRequest) -> Values:
    """The fields of a ConnectGroupPrepareAssignment request."""
    return {"group_id": request.group_id, "member_id": request.member_id, "member_epoch": request.member_epoch}


def install_assignment_request_values(request: InstallAssignmentRequest) -> Values:
    """The fields of a ConnectGroupInstallAssignment request."""
    target = request.target
    return {
        "group_id": request.group_id,
        "member_id": request.member_id,
        "member_epoch": request.member_epoch,
        "group_epoch": request.group_epoch,
        "error": request.assignor_error,
        "members": [
            {
                "member_id": member_id,
                "connectors_and_tasks": job_arrays(one.jobs),
                "version": one.version,
                "metadata": one.metadata,
            }
            for member_id, one in sorted(target.members.items())
        ],
        "deferred": [
            {"member_id": member_id, "delay_ms": one.delay_ms, **job_arrays(one.jobs)}
            for member_id, one in sorted(target.deferred.items())
        ],
        "unplaceable": [{"reason": one.reason, **job_arrays(one.jobs)} for one in target.unplaceable],
        "next_in_ms": _ABSENT if target.next_in_ms is None else target.next_in_ms,
    }


def _configured_jobs_values(configured: ConfiguredJobs) -> Values:
    """The value of the field ``configured``: all configured jobs, and how far the leader had read the config topic."""
    return {"value": {"config_offset": configured.config_offset, **job_arrays(configured.jobs)}}


def _claims_values(claims: Claims) -> Values:
    """The value of the field ``claims``: the only jobs that the worker may run (KIP-987). ``wildcard`` true means any
    job."""
    return {"value": {"wildcard": claims.jobs is None, **job_arrays(claims.jobs or NO_JOBS)}}


# -- responses --------------------------------------------------------------------------------------------------------


def to_connect_error_code_or_unknown(code: int) -> ConnectErrorCode:
    """Convert the error code of a response. A code that this version of Coterie does not have becomes
    UNKNOWN_SERVER_ERROR."""
    try:
        return ConnectErrorCode(code)
    except ValueError:
        return ConnectErrorCode.UNKNOWN_SERVER_ERROR


def error_message_naming_unknown_code(code: int, message: str | None) -> str | None:
    """The error message of a response, None if there is none. For a code that this version of Coterie does not have,
    the message begins with the number of the code."""
    if code == to_connect_error_code_or_unknown(code):
        return message
    return f"unknown error code {code}: {message}" if message else f"unknown error code {code}"


def to_heartbeat_response(entity: Any) -> HeartbeatResponse:
    """Convert a ConnectGroupHeartbeat response for the member.

    :raises InvalidFieldError: when a job is not valid.
    """
    assignment = entity.assignment
    return HeartbeatResponse(
        error=to_connect_error_code_or_unknown(entity.error_code),
        message=error_message_naming_unknown_code(entity.error_code, entity.error_message),
        member_epoch=MemberEpoch(entity.member_epoch),
        heartbeat_interval_ms=entity.heartbeat_interval_ms,
        assignment=None
        if assignment is None
        else AssignmentToMember(
            jobs=distinct_jobs_in_arrays(assignment.connectors_and_tasks),
            jobs_by_assignment_epoch={
                GroupEpoch(one.epoch): distinct_jobs_in_arrays(one) for one in assignment.job_epochs
            },
            assignment_epoch=GroupEpoch(entity.assignment_epoch),
            config_offset=ConfigOffset(entity.config_offset),
            version=assignment.version,
            metadata=assignment.metadata,
        ),
        leader=None
        if entity.leader_id is None
        else LeaderOfGroup(
            member_id=MemberId(entity.leader_id),
            leader_epoch=LeaderEpoch(entity.leader_epoch),
            url=WorkerUrl(entity.leader_url or ""),
        ),
        session_timeout_ms=_none_if_absent(entity.session_timeout_ms),
    )


def to_prepare_assignment_response(entity: Any) -> PrepareAssignmentResponse:
    """Convert a ConnectGroupPrepareAssignment response. It contains a snapshot only if it has no error code.

    :raises InvalidFieldError: when a job is not valid.
    """
    error = to_connect_error_code_or_unknown(entity.error_code)
    return PrepareAssignmentResponse(
        error=error,
        message=error_message_naming_unknown_code(entity.error_code, entity.error_message),
        snapshot=_to_group_snapshot(entity) if error is ConnectErrorCode.NONE else None,
    )


def to_install_assignment_response(entity: Any) -> InstallAssignmentResponse:
    """Convert a ConnectGroupInstallAssignment response."""
    return InstallAssignmentResponse(
        error=to_connect_error_code_or_unknown(entity.error_code),
        message=error_message_naming_unknown_code(entity.error_code, entity.error_message),
    )


def to_group_description_response(entity: Any) -> GroupDescriptionResponse:
    """Convert a ConnectGroupDescribe response for one group. It contains a description only if it has no error code.

    :raises InvalidFieldError: when a job is not valid.
    :raises ValueError: when a member has an unknown state, or the response does not contain one group.
    """
    (group,) = entity.groups
    error = to_connect_error_code_or_unknown(group.error_code)
    return GroupDescriptionResponse(
        error=error,
        message=error_message_naming_unknown_code(group.error_code, group.error_message),
        description=_to_group_description(group) if error is ConnectErrorCode.NONE else None,
    )


# -- structs ----------------------------------------------------------------------------------------------------------


def _to_group_snapshot(entity: Any) -> GroupSnapshot:
    """Convert a response to ConnectGroupPrepareAssignment to the snapshot of the group that an assignor takes."""
    configured = entity.configured.value
    return GroupSnapshot(
        group_epoch=GroupEpoch(entity.group_epoch),
        assignor=entity.assignor_name,
        members=tuple(_to_snapshot_member(one) for one in entity.members),
        departed=tuple(
            SnapshotDeparted(
                member_id=MemberId(one.member_id),
                instance_id=_to_instance_id(one.instance_id),
                url=WorkerUrl(one.url),
                jobs=distinct_jobs_in_arrays(one),
                delay_left_ms=_none_if_absent(one.delay_left_ms),
            )
            for one in entity.departed
        ),
        config_offset=ConfigOffset(_ABSENT if configured is None else configured.config_offset),
        configured=NO_JOBS if configured is None else distinct_jobs_in_arrays(configured),
        max_delay_ms=_none_if_absent(entity.max_delay_ms),
        time_limit_ms=max(1, entity.time_limit_ms),
    )


def _to_snapshot_member(struct: Any) -> SnapshotMember:
    """Convert one member in a response to ConnectGroupPrepareAssignment, for an assignor."""
    target = distinct_jobs_in_arrays(struct.connectors_and_tasks)
    return SnapshotMember(
        member_id=MemberId(struct.member_id),
        member_epoch=MemberEpoch(struct.member_epoch),
        instance_id=_to_instance_id(struct.instance_id),
        url=WorkerUrl(struct.url),
        name=struct.name,
        config_offset=ConfigOffset(struct.config_offset),
        version=struct.assignor.version,
        reason=struct.assignor.reason,
        metadata=struct.assignor.metadata,
        claims=None if struct.claims.value is None else distinct_jobs_in_arrays(struct.claims.value),
        draining=struct.draining,
        target=target,
        current=target if struct.current.value is None else distinct_jobs_in_arrays(struct.current.value),
        pending=_jobs_in_tagged_field(struct.pending),
        former_jobs=_jobs_in_tagged_field(struct.former),
    )


def _to_group_description(group: Any) -> GroupDescription:
    """Convert one group in a response to ConnectGroupDescribe."""
    return GroupDescription(
        state=group.group_state,
        group_epoch=GroupEpoch(group.group_epoch),
        assignment_epoch=GroupEpoch(group.assignment_epoch),
        assignor=group.assignor_name,
        computing_member=MemberId(group.computing_member),
        assignment_error=group.assignment_error,
        leader=MemberId(group.leader_id),
        leader_epoch=LeaderEpoch(group.leader_epoch),
        config_offset=ConfigOffset(group.config_offset),
        members=tuple(_to_member_description(one) for one in group.members),
        departed=tuple(
            DepartedMemberDescription(
                member_id=MemberId(one.member_id),
                instance_id=_to_instance_id(one.instance_id),
                url=WorkerUrl(one.url),
                jobs=distinct_jobs_in_arrays(one),
                delay_left_ms=_none_if_absent(one.delay_left_ms),
                held_jobs_left_ms=one.held_left_ms,
                reason=one.reason,
            )
            for one in group.departed
        ),
        unplaceable=tuple(
            UnplaceableJobs(jobs=distinct_jobs_in_arrays(one), reason=one.reason) for one in group.unplaceable
        ),
        configs={one.name: one.value for one in group.configs},
    )


def _to_member_description(struct: Any) -> MemberDescription:
    """Convert one member in a response to ConnectGroupDescribe."""
    return MemberDescription(
        member_id=MemberId(struct.member_id),
        member_epoch=MemberEpoch(struct.member_epoch),
        state=MemberState(struct.state),
        instance_id=_to_instance_id(struct.instance_id),
        client_id=struct.client_id,
        client_host=struct.client_host,
        url=WorkerUrl(struct.url),
        name=struct.name,
        config_offset=ConfigOffset(struct.config_offset),
        claims=None if struct.claims is None else distinct_jobs_in_arrays(struct.claims),
        draining=struct.draining,
        assigned=distinct_jobs_in_arrays(struct.assigned),
        pending=distinct_jobs_in_arrays(struct.pending),
        target=distinct_jobs_in_arrays(struct.target),
        awaited_jobs_by_holder={MemberId(one.holder_id): distinct_jobs_in_arrays(one) for one in struct.awaited},
    )


def _jobs_in_tagged_field(struct: Any) -> Jobs:
    """The jobs in a tagged field; no jobs if the field is absent."""
    return NO_JOBS if struct.value is None else distinct_jobs_in_arrays(struct.value)


def _to_instance_id(value: str | None) -> InstanceId | None:
    return None if value is None else InstanceId(value)


def _none_if_absent(number: int) -> int | None:
    """``number``, a number of a response; None for -1, which means that the number is not given."""
    return None if number == _ABSENT else number
