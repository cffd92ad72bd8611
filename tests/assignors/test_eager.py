"""The eager assignor deals connectors, then tasks, round and round."""

from coterie.assignors.eager import assign
from coterie.lab.scenario.notation import parse_jobs
from coterie.nouns.ids import MemberId
from coterie.nouns.jobs import NO_JOBS

W1, W2 = MemberId("W1"), MemberId("W2")


def test_the_kth_job_goes_to_the_kth_member_and_tasks_go_on_where_connectors_ended() -> None:
    dealt = assign(parse_jobs("AC0 AT0 AT1 BC0 CC0 CT0"), [W2, W1])
    assert dealt == {W1: parse_jobs("AC0 CC0 AT1"), W2: parse_jobs("BC0 AT0 CT0")}


def test_nothing_to_deal_and_nobody_to_deal_to() -> None:
    assert assign(NO_JOBS, [W1]) == {W1: NO_JOBS}
    assert assign(parse_jobs("AC0"), []) == {}
