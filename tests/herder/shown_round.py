"""A round as its leader shows it, with two members and the two tasks of one connector."""

from coterie.assignors.claims import Places
from coterie.assignors.members import MemberView
from coterie.herder.group_view import Dealt, deal
from coterie.nouns.ids import ConfigOffset, Generation, MemberId, WorkerUrl
from coterie.nouns.jobs import NO_JOBS, ConnectorName, ConnectorTaskId, Job, Jobs
from coterie.nouns.membership import AssignmentWanted, MemberAssignment, MemberReport

ORDERS = ConnectorName("orders")
FIRST = Jobs(tasks=frozenset({ConnectorTaskId(ORDERS, 0)}))
SECOND = Jobs(tasks=frozenset({ConnectorTaskId(ORDERS, 1)}))
BOTH = FIRST | SECOND
ANNA, BERT = MemberId("anna-1"), MemberId("bert-1")


def dealt(
    views: dict[MemberId, MemberView],
    *,
    assigned: dict[MemberId, Jobs] | None = None,
    former: Dealt | None = None,
    unassigned: dict[Job, str] | None = None,
) -> Dealt:
    """A round in which each member has the name that its id has before the dash."""
    reports = {
        member: MemberReport(
            url=WorkerUrl(f"http://{member}:8083/"), name=member.partition("-")[0], config_offset=ConfigOffset(3)
        )
        for member in views
    }
    assignments = {member: MemberAssignment(assigned=(assigned or {}).get(member, NO_JOBS)) for member in views}
    return deal(
        former,
        AssignmentWanted(token=None, member_id=min(views), members=reports),
        views,
        assignments,
        generation=Generation(1),
        protocol="static",
        places=Places.of(views, BOTH),
        configured=BOTH,
        unassigned=unassigned or {},
    )
