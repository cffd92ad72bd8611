"""Builder: the snapshot of a rebalance in its leader, with two members and the two tasks of one connector."""

from coterie.assignors.claims import Eligibility
from coterie.assignors.members import MemberSpec, RebalancePolicy
from coterie.herder.group_view import RoundSnapshot, snapshot_round
from coterie.nouns.ids import ConfigOffset, GenerationId, MemberId, WorkerUrl
from coterie.nouns.jobs import NO_JOBS, ConnectorName, ConnectorTaskId, Job, Jobs
from coterie.nouns.membership import AssignmentChange, AssignmentsRequested, MemberReport

ORDERS = ConnectorName("orders")
FIRST = Jobs(tasks=frozenset({ConnectorTaskId(ORDERS, 0)}))
SECOND = Jobs(tasks=frozenset({ConnectorTaskId(ORDERS, 1)}))
BOTH = FIRST | SECOND
ANNA, BERT = MemberId("anna-1"), MemberId("bert-1")


def round_snapshot(
    views: dict[MemberId, MemberSpec],
    *,
    assigned: dict[MemberId, Jobs] | None = None,
    previous: RoundSnapshot | None = None,
    unassigned: dict[Job, str] | None = None,
    policy: RebalancePolicy | None = None,
) -> RoundSnapshot:
    """The snapshot of a rebalance; each member's name is the part of its id before the dash."""
    reports = {
        member: MemberReport(
            url=WorkerUrl(f"http://{member}:8083/"), name=member.partition("-")[0], config_offset=ConfigOffset(3)
        )
        for member in views
    }
    assignments = {member: AssignmentChange(assigned=(assigned or {}).get(member, NO_JOBS)) for member in views}
    return snapshot_round(
        previous,
        AssignmentsRequested(token=None, member_id=min(views), members=reports),
        views,
        assignments,
        generation=GenerationId(1),
        protocol="static",
        eligibility=Eligibility.from_members(views, BOTH),
        configured=BOTH,
        unassigned=unassigned or {},
        policy=policy or RebalancePolicy(),
    )
