"""The eager assignor: first connectors, then tasks, round robin over the members."""

from coterie.assignors.eager import assign
from coterie.lab.scenario.notation import parse_jobs
from coterie.nouns.ids import MemberId
from coterie.nouns.jobs import NO_JOBS

W1, W2 = MemberId("W1"), MemberId("W2")


def test_the_nth_job_goes_to_the_nth_member_and_tasks_continue_after_the_connectors() -> None:
    assigned = assign(parse_jobs("AC0 AT0 AT1 BC0 CC0 CT0"), [W2, W1])
    assert assigned == {W1: parse_jobs("AC0 CC0 AT1"), W2: parse_jobs("BC0 AT0 CT0")}


def test_without_jobs_or_without_members_nothing_is_assigned() -> None:
    assert assign(NO_JOBS, [W1]) == {W1: NO_JOBS}
    assert assign(parse_jobs("AC0"), []) == {}
