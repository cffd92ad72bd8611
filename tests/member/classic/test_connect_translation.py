"""Conversion between the bytes of the embedded Connect protocol and the values of the herder."""

import pytest

from coterie.member.classic.connect_translation import to_assigned, to_member_report, to_worker_assignments
from coterie.nouns.ids import ConfigOffset, GenerationId, InstanceId, MemberId, WorkerUrl
from coterie.nouns.jobs import NO_JOBS, ConnectorName, Jobs
from coterie.nouns.membership import AssignmentChange, ComputedAssignments, MemberReport
from coterie.wire.connect import (
    AssignmentErrorCode,
    ClassicAssignmentDetails,
    ConnectProtocol,
    WorkerAssignment,
    WorkerMetadata,
)
from coterie.wire.connect_opaque import encode_worker_name

ME, OTHER = MemberId("me"), MemberId("other")
URL = WorkerUrl("http://w:8083/")
ORDERS = Jobs.of([ConnectorName("orders")])
STATIC = ConnectProtocol.STATIC


@pytest.mark.parametrize("protocol", list(ConnectProtocol))
def test_claims_and_drains_are_reported_only_if_the_group_uses_the_static_protocol(
    protocol: ConnectProtocol,
) -> None:
    metadata = WorkerMetadata(
        url=URL, config_offset=ConfigOffset(4), static_connectors=ORDERS.connectors, draining=True
    )
    report = to_member_report(metadata, InstanceId("place"), protocol)
    assert (report.claims, report.draining) == ((ORDERS, True) if protocol is STATIC else (None, False))
    assert (report.url, report.instance_id, report.config_offset) == (URL, "place", 4)


def test_an_empty_claim_differs_from_no_claim() -> None:
    nothing = WorkerMetadata(url=URL, config_offset=ConfigOffset(4), static_tasks=frozenset())
    assert to_member_report(nothing, None, STATIC).claims == NO_JOBS
    assert to_member_report(WorkerMetadata(url=URL, config_offset=ConfigOffset(4)), None, STATIC).claims is None


def test_the_owned_jobs_and_the_name_of_a_member_are_reported() -> None:
    owned = WorkerAssignment(leader=OTHER, leader_url=URL, config_offset=ConfigOffset(3), assigned=ORDERS)
    metadata = WorkerMetadata(
        url=URL, config_offset=ConfigOffset(4), allocation=owned, opaque=encode_worker_name(name="worker-2")
    )
    assert to_member_report(metadata, None, STATIC) == MemberReport(
        url=URL, name="worker-2", config_offset=ConfigOffset(4), owned=ORDERS
    )


@pytest.mark.parametrize("mismatch", [False, True])
def test_a_leader_sends_each_member_what_its_herder_decided(mismatch: bool) -> None:
    computed = ComputedAssignments(
        config_offset=ConfigOffset(4),
        assignments={ME: AssignmentChange(revoked=ORDERS), OTHER: AssignmentChange(assigned=ORDERS)},
        delay_ms=300,
        has_config_mismatch=mismatch,
    )
    sent = to_worker_assignments(computed, leader=ME, leader_url=URL)
    error = AssignmentErrorCode.CONFIG_MISMATCH if mismatch else AssignmentErrorCode.NO_ERROR
    assert {
        (assignment.error, assignment.leader, assignment.leader_url, assignment.config_offset, assignment.delay_ms)
        for assignment in sent.values()
    } == {(error, ME, URL, 4, 300)}
    assert (sent[ME].revoked, sent[OTHER].assigned) == (ORDERS, ORDERS)


@pytest.mark.parametrize("protocol", list(ConnectProtocol))
def test_an_assignment_replaces_all_jobs_only_in_an_eager_group(protocol: ConnectProtocol) -> None:
    assignment = WorkerAssignment(
        leader=OTHER, leader_url=URL, config_offset=ConfigOffset(4), assigned=ORDERS, delay_ms=300
    )
    assigned = to_assigned(ME, assignment, generation=GenerationId(7), protocol=protocol)
    assert assigned.replaces_all is (protocol is ConnectProtocol.EAGER)
    assert (assigned.member_id, assigned.epoch, assigned.jobs, assigned.leader) == (ME, 7, ORDERS, OTHER)
    assert assigned.protocol_details == ClassicAssignmentDetails(protocol=protocol, delay_ms=300)
