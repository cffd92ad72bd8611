"""Translates between the embedded Connect protocol and `nouns.membership`."""

from collections.abc import Mapping

from coterie.nouns.ids import Generation, InstanceId, MemberId, WorkerUrl
from coterie.nouns.jobs import NO_JOBS, Jobs
from coterie.nouns.membership import Assigned, Computed, MemberReport
from coterie.wire.connect import (
    AssignmentError,
    ConnectProtocol,
    RoundResult,
    WorkerAssignment,
    WorkerMetadata,
)
from coterie.wire.connect_opaque import name_in


def report_of(metadata: WorkerMetadata, instance_id: InstanceId | None, protocol: ConnectProtocol) -> MemberReport:
    """The report of a member, with the fields that the group's selected ``protocol`` has."""
    is_static = protocol >= ConnectProtocol.STATIC
    claims = None
    if is_static and (metadata.static_connectors is not None or metadata.static_tasks is not None):
        claims = Jobs(metadata.static_connectors or frozenset(), metadata.static_tasks or frozenset())
    return MemberReport(
        url=metadata.url,
        name=name_in(metadata.opaque),
        instance_id=instance_id,
        config_offset=metadata.config_offset,
        owned=metadata.allocation.assigned if metadata.allocation is not None else NO_JOBS,
        claims=claims,
        draining=is_static and metadata.draining,
    )


def assignments_of(
    computed: Computed, *, leader: MemberId, leader_url: WorkerUrl
) -> Mapping[MemberId, WorkerAssignment]:
    """The assignments that the leader sends to the members of its group."""
    error = AssignmentError.CONFIG_MISMATCH if computed.has_config_mismatch else AssignmentError.NO_ERROR
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


def assigned_to(
    member_id: MemberId, assignment: WorkerAssignment, *, generation: Generation, protocol: ConnectProtocol
) -> Assigned:
    """The event with the assignment of a member in ``generation``, whose selected protocol is ``protocol``."""
    return Assigned(
        member_id=member_id,
        epoch=generation,
        jobs=assignment.assigned,
        revoked=assignment.revoked,
        is_whole=protocol is ConnectProtocol.EAGER,
        leader=assignment.leader,
        leader_url=assignment.leader_url,
        config_offset=assignment.config_offset,
        token=RoundResult(protocol=protocol, error=assignment.error, delay_ms=assignment.delay_ms),
    )
