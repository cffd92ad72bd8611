"""Who takes an order: the same worker, whoever is asked."""

from dataclasses import replace

import pytest

from coterie.assignors.members import MemberView
from coterie.herder.group_view import Dealt
from coterie.herder.requests import Answer, Done, Problem, RequestRefused, UncordonWorker
from coterie.nouns.ids import InstanceId, MemberId, WorkerId, WorkerUrl
from tests.herder.builders import STATIC, working
from tests.herder.by_hand import ME, OTHER
from tests.herder.shown_round import ANNA, dealt


def known(*members: tuple[MemberId, str, str, str | None]) -> Dealt:
    """A round of members: each with its id, name, ``host:port`` and instance id."""
    (any_member,) = dealt({ANNA: MemberView()}).members
    return replace(
        dealt({ANNA: MemberView()}),
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


def ordered(worker: str, *members: tuple[MemberId, str, str, str | None]) -> Answer | None:
    """What the leader, at here:8083, answers of a group of ``members``."""
    hand = working()
    hand.assign(leader=ME, protocol=STATIC)
    hand.herder.lead.dealt = known(*members)
    return hand.answer(hand.ask(UncordonWorker(worker=worker)))


def test_a_follower_obeys_only_its_address_and_leaves_names_to_the_leader() -> None:
    hand = working()
    answer = hand.answer(hand.ask(UncordonWorker(worker="here")))
    assert isinstance(answer, RequestRefused)
    assert answer.problem is Problem.NOT_LEADER
    assert hand.answer(hand.ask(UncordonWorker(worker="here:8083"))) == Done()


def test_a_name_that_the_leader_shares_with_another_is_refused() -> None:
    answer = ordered("a", (ME, "a", "here:8083", None), (OTHER, "a", "there:8083", None))
    assert isinstance(answer, RequestRefused)
    assert (answer.problem, answer.message) == (
        Problem.BAD_REQUEST,
        "2 workers are called a; name one of here:8083, there:8083",
    )


def test_the_name_of_another_goes_before_the_leaders_own_instance_id() -> None:
    answer = ordered("lead", (ME, "a", "here:8083", "lead"), (OTHER, "lead", "there:8083", None))
    assert isinstance(answer, RequestRefused)
    assert (answer.problem, answer.leader_url) == (Problem.NOT_THIS_WORKER, "http://there:8083/")


@pytest.mark.parametrize("called", ["a", "here:8083"])
def test_who_was_at_the_same_address_before_is_the_same_worker(called: str) -> None:
    assert ordered(called, (ME, "a", "here:8083", None), (MemberId("dead"), "a", "here:8083", None)) == Done()
