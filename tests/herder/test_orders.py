"""Which worker executes an order: the same one for a request to any worker."""

from dataclasses import replace

import pytest

from coterie.assignors.members import MemberSpec
from coterie.herder.group_view import RoundSnapshot
from coterie.herder.requests.kinds import Answer
from coterie.herder.requests.orders import UncordonWorker
from coterie.herder.requests.refusals import Problem, RequestRefused, SuccessWithoutContent
from coterie.nouns.ids import InstanceId, MemberId, WorkerId, WorkerUrl
from tests.herder.builders import STATIC, working
from tests.herder.herder_driver import ME, OTHER
from tests.herder.shown_round import ANNA, round_snapshot


def snapshot_of(*members: tuple[MemberId, str, str, str | None]) -> RoundSnapshot:
    """The snapshot of a rebalance with ``members``: each has its id, name, ``host:port`` and instance id."""
    (any_member,) = round_snapshot({ANNA: MemberSpec()}).members
    return replace(
        round_snapshot({ANNA: MemberSpec()}),
        members=tuple(
            replace(
                any_member,
                member_id=member,
                name=name,
                worker_id=WorkerId(at),
                url=WorkerUrl(f"http://{at}/"),
                instance_id=None if instance is None else InstanceId(instance),
            )
            for member, name, at, instance in members
        ),
    )


def answer_to_order(worker: str, *members: tuple[MemberId, str, str, str | None]) -> Answer | None:
    """The answer of the leader, at here:8083, in a group of ``members``."""
    driver = working()
    driver.assign(leader=ME, protocol=STATIC)
    driver.herder.leader_state.last_round = snapshot_of(*members)
    return driver.answer(driver.send_request(UncordonWorker(worker=worker)))


def test_a_follower_accepts_only_its_own_address_and_redirects_names_to_the_leader() -> None:
    driver = working()
    answer = driver.answer(driver.send_request(UncordonWorker(worker="here")))
    assert isinstance(answer, RequestRefused)
    assert answer.problem is Problem.NOT_LEADER
    assert driver.answer(driver.send_request(UncordonWorker(worker="here:8083"))) == SuccessWithoutContent()


def test_a_name_that_the_leader_shares_with_another_worker_is_refused() -> None:
    answer = answer_to_order("a", (ME, "a", "here:8083", None), (OTHER, "a", "there:8083", None))
    assert isinstance(answer, RequestRefused)
    assert (answer.problem, answer.message) == (
        Problem.BAD_REQUEST,
        "2 workers are called a; name one of here:8083, there:8083",
    )


def test_another_workers_name_has_precedence_over_the_leaders_instance_id() -> None:
    answer = answer_to_order("lead", (ME, "a", "here:8083", "lead"), (OTHER, "lead", "there:8083", None))
    assert isinstance(answer, RequestRefused)
    assert (answer.problem, answer.redirect_url) == (Problem.NOT_THIS_WORKER, "http://there:8083/")


@pytest.mark.parametrize("name_in_order", ["a", "here:8083"])
def test_a_previous_member_at_the_same_address_counts_as_the_same_worker(name_in_order: str) -> None:
    assert (
        answer_to_order(name_in_order, (ME, "a", "here:8083", None), (MemberId("dead"), "a", "here:8083", None))
        == SuccessWithoutContent()
    )
