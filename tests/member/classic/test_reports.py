"""Between the embedded Connect protocol and what a herder reads and decides."""

import pytest

from coterie.member.classic.reports import assigned_to, assignments_of, report_of
from coterie.nouns.ids import ConfigOffset, Generation, InstanceId, MemberId, WorkerUrl
from coterie.nouns.jobs import NO_JOBS, ConnectorName, Jobs
from coterie.nouns.membership import Computed, MemberAssignment, MemberReport
from coterie.wire.connect import AssignmentError, ConnectProtocol, RoundResult, WorkerAssignment, WorkerMetadata
from coterie.wire.connect_opaque import encode_opaque

ME, OTHER = MemberId("me"), MemberId("other")
URL = WorkerUrl("http://w:8083/")
ORDERS = Jobs.of([ConnectorName("orders")])
STATIC = ConnectProtocol.STATIC


@pytest.mark.parametrize("protocol", list(ConnectProtocol))
def test_claims_and_drains_are_reported_where_all_members_speak_static_and_nowhere_else(
    protocol: ConnectProtocol,
) -> None:
    metadata = WorkerMetadata(
        url=URL, config_offset=ConfigOffset(4), static_connectors=ORDERS.connectors, draining=True
    )
    report = report_of(metadata, InstanceId("place"), protocol)
    assert (report.claims, report.draining) == ((ORDERS, True) if protocol is STATIC else (None, False))
    assert (report.url, report.instance_id, report.config_offset) == (URL, "place", 4)


def test_a_claim_on_nothing_is_a_claim() -> None:
    nothing = WorkerMetadata(url=URL, config_offset=ConfigOffset(4), static_tasks=frozenset())
    assert report_of(nothing, None, STATIC).claims == NO_JOBS
    assert report_of(WorkerMetadata(url=URL, config_offset=ConfigOffset(4)), None, STATIC).claims is None


def test_what_a_member_owns_and_its_name_are_reported() -> None:
    owned = WorkerAssignment(leader=OTHER, leader_url=URL, config_offset=ConfigOffset(3), assigned=ORDERS)
    metadata = WorkerMetadata(
        url=URL, config_offset=ConfigOffset(4), allocation=owned, opaque=encode_opaque(name="worker-2")
    )
    assert report_of(metadata, None, STATIC) == MemberReport(
        url=URL, name="worker-2", config_offset=ConfigOffset(4), owned=ORDERS
    )


@pytest.mark.parametrize("mismatch", [False, True])
def test_a_leader_sends_each_member_what_its_herder_decided(mismatch: bool) -> None:
    computed = Computed(
        config_offset=ConfigOffset(4),
        assignments={ME: MemberAssignment(revoked=ORDERS), OTHER: MemberAssignment(assigned=ORDERS)},
        delay_ms=300,
        has_config_mismatch=mismatch,
    )
    sent = assignments_of(computed, leader=ME, leader_url=URL)
    error = AssignmentError.CONFIG_MISMATCH if mismatch else AssignmentError.NO_ERROR
    assert {(one.error, one.leader, one.leader_url, one.config_offset, one.delay_ms) for one in sent.values()} == {
        (error, ME, URL, 4, 300)
    }
    assert (sent[ME].revoked, sent[OTHER].assigned) == (ORDERS, ORDERS)


@pytest.mark.parametrize("protocol", list(ConnectProtocol))
def test_an_assignment_of_an_eager_round_is_whole(protocol: ConnectProtocol) -> None:
    assignment = WorkerAssignment(
        leader=OTHER, leader_url=URL, config_offset=ConfigOffset(4), assigned=ORDERS, delay_ms=300
    )
    assigned = assigned_to(ME, assignment, generation=Generation(7), protocol=protocol)
    assert assigned.is_whole is (protocol is ConnectProtocol.EAGER)
    assert (assigned.member_id, assigned.epoch, assigned.jobs, assigned.leader) == (ME, 7, ORDERS, OTHER)
    assert assigned.token == RoundResult(protocol=protocol, delay_ms=300)
