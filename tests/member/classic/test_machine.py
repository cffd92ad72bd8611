"""A request that was given up: its late answer has no effect."""

from coterie.member.classic.messages import (
    SyncRequest,
)
from coterie.member.events import Answered
from coterie.nouns.membership import (
    Lost,
    Rejoin,
)
from tests.member.classic.driving import Worker, joined


def test_a_join_that_is_never_answered_is_given_up_and_its_late_answer_ignored(worker: Worker) -> None:
    worker.subscribe()
    late = worker.out[-1]
    worker.pass_time(66_000)
    assert len(worker.out) == 2
    worker.feed(Answered(id=late.id, response=joined()))
    assert worker.sent(SyncRequest) is None


def test_a_late_answer_to_a_join_of_a_former_life_means_nothing(worker: Worker) -> None:
    worker.settle()
    worker.feed(Rejoin(reason="a wish"))
    parked = worker.out[-1]
    worker.pass_time(6_000)
    assert worker.heard(Lost)
    worker.feed(Answered(id=parked.id, response=joined(2)))
    assert worker.sent(SyncRequest) is None
