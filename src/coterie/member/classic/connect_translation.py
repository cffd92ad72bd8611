"""Translates between the embedded Connect protocol (`wire.connect`) and the types of `nouns.membership`. ``protocol``
is always the one that the group has selected: claims and drains count only in a group with protocol static. A leader
that has read less of the config log than another member sends the error CONFIG_MISMATCH to all."""

from collections.abc import Mapping

from coterie.nouns.ids import GenerationId, InstanceId, MemberId, WorkerUrl
from coterie.nouns.jobs import NO_JOBS, Jobs
from coterie.nouns.membership import Assigned, ComputedAssignments, MemberReport
from coterie.wire.connect import (
    AssignmentErrorCode,
    ClassicAssignmentDetails,
    ConnectProtocol,
    WorkerAssignment,
    WorkerMetadata,
)
from coterie.wire.connect_opaque import decode_worker_name


def to_member_report(
    metadata: WorkerMetadata, instance_id: InstanceId | None, protocol: ConnectProtocol
) -> MemberReport:
    """The report of a member, from the metadata that it sent. Claims and drain are only used if the group's selected
    ``protocol`` is static or newer."""
    is_static = protocol >= ConnectProtocol.STATIC
    claims = None
    if is_static and (metadata.static_connectors is not None or metadata.static_tasks is not None):
        claims = Jobs(metadata.static_connectors or frozenset(), metadata.static_tasks or frozenset())
    return MemberReport(
        url=metadata.url,
        name=decode_worker_name(metadata.opaque),
        instance_id=instance_id,
        config_offset=metadata.config_offset,
        owned=metadata.allocation.assigned if metadata.allocation is not None else NO_JOBS,
        claims=claims,
        draining=is_static and metadata.draining,
    )


def to_worker_assignments(
    computed: ComputedAssignments, *, leader: MemberId, leader_url: WorkerUrl
) -> Mapping[MemberId, WorkerAssignment]:
    """The assignments that this leader sends, by member id. They contain Connect's error CONFIG_MISMATCH if this leader
    has read less of the config log than another member (``computed.has_config_mismatch``)."""
    error = AssignmentErrorCode.CONFIG_MISMATCH if computed.has_config_mismatch else AssignmentErrorCode.NO_ERROR
    return {
        other: WorkerAssignment(
            error=error,
            leader=leader,
            leader_url=leader_url,
            config_offset=computed.config_offset,
            assigned=one.assigned,
            revoked=one.revoked,
            delay_ms=computed.delay_ms,
        )
        for other, one in computed.assignments.items()
    }


def to_assigned(
    member_id: MemberId, assignment: WorkerAssignment, *, generation: GenerationId, protocol: ConnectProtocol
) -> Assigned:
    """The event with which the herder receives an assignment. ``protocol`` is the selected protocol of
    ``generation``."""
    return Assigned(
        member_id=member_id,
        epoch=generation,
        jobs=assignment.assigned,
        revoked=assignment.revoked,
        replaces_all=protocol is ConnectProtocol.EAGER,
        leader=assignment.leader,
        leader_url=assignment.leader_url,
        config_offset=assignment.config_offset,
        protocol_details=ClassicAssignmentDetails(
            protocol=protocol, error=assignment.error, delay_ms=assignment.delay_ms
        ),
    )
