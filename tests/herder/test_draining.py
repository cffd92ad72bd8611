"""A worker that is to go for good, and one that is called back."""

from coterie.herder.messages import Exit, GroupLeft, Say, ShutdownOrdered, StopTask
from coterie.herder.requests import (
    DescribeWorker,
    Done,
    DrainWorker,
    Problem,
    RequestRefused,
    RestartWorker,
    UncordonWorker,
    WorkerView,
)
from coterie.nouns.jobs import NO_JOBS
from coterie.nouns.membership import Leave, Lost, Rejoin, Subscribe
from coterie.wire.connect import ConnectProtocol
from tests.herder.builders import BOTH_TASKS, FIRST, STATIC, working
from tests.herder.by_hand import ROUND, ByHand


def told(hand: ByHand) -> Subscribe:
    return hand.take(Subscribe)[-1]


def test_a_drain_says_so_in_the_next_join_and_asks_for_it_while_the_work_goes_on() -> None:
    hand = working()
    assert hand.answer(hand.ask(DrainWorker(worker="here:8083"))) == Done()
    said = told(hand)
    assert (said.draining, said.owned) == (True, BOTH_TASKS)
    assert [rejoin.reason for rejoin in hand.take(Rejoin)] == ["this worker drains"]
    assert not hand.take(StopTask)
    hand.ask(DrainWorker(worker="here:8083"))
    assert not hand.take(Rejoin), "said once"


def test_what_is_revoked_stops_and_when_nothing_is_left_the_worker_leaves_for_good() -> None:
    hand = working()
    hand.ask(DrainWorker(worker="here:8083"))
    hand.tell(ROUND)
    hand.assign(revoked=FIRST, protocol=STATIC)
    hand.obey()
    hand.tell(ROUND)
    assert not hand.take(Leave), "the second task is still here"
    hand.assign(revoked=BOTH_TASKS - FIRST, protocol=STATIC)
    hand.obey()
    assert told(hand).owned == NO_JOBS
    assert not hand.take(Leave), "not before the next round has given its jobs to others"
    hand.tell(ROUND)
    hand.assign(protocol=STATIC)
    hand.obey()
    assert [leave.for_good for leave in hand.take(Leave)] == [True]
    hand.tell(GroupLeft())
    assert [end.code for end in hand.take(Exit)] == [0]


def test_a_drain_that_is_called_back_is_said_in_the_next_join_and_the_worker_stays() -> None:
    hand = working()
    hand.ask(DrainWorker(worker="here:8083"))
    hand.tell(ROUND)
    hand.assign(revoked=BOTH_TASKS, protocol=STATIC)
    hand.obey()
    hand.take(Rejoin)
    assert hand.answer(hand.ask(UncordonWorker(worker="here:8083"))) == Done()
    assert not told(hand).draining
    assert len(hand.take(Rejoin)) == 1
    hand.tell(ROUND)
    hand.assign(assigned=FIRST, protocol=STATIC)
    hand.obey()
    assert not hand.take(Leave)


def test_a_wish_that_comes_during_a_round_is_said_in_the_round_after_it() -> None:
    hand = working()
    hand.tell(ROUND)
    hand.ask(DrainWorker(worker="here:8083"))
    assert not hand.take(Rejoin), "its join may have been sent"
    hand.assign(protocol=STATIC)
    assert len(hand.take(Rejoin)) == 1


def test_a_drain_outlives_the_membership() -> None:
    hand = working()
    hand.ask(DrainWorker(worker="here:8083"))
    hand.tell(Lost(reason="the session is over"))
    hand.obey()
    assert told(hand).draining, "it joins again as one that drains"
    assert not hand.take(Leave), "not before it is known that the group gives it nothing"
    hand.tell(ROUND)
    hand.assign(protocol=STATIC)
    hand.obey()
    assert len(hand.take(Leave)) == 1


def test_sigterm_ends_a_drain_as_it_ends_any_work() -> None:
    hand = working()
    hand.ask(DrainWorker(worker="here:8083"))
    hand.tell(ShutdownOrdered(reason="SIGTERM"))
    hand.obey()
    assert [leave.for_good for leave in hand.take(Leave)] == [False], "it comes back: its place waits for it"


def test_in_a_group_that_has_no_word_for_it_a_drain_is_refused() -> None:
    for protocol in ConnectProtocol:
        if protocol < STATIC:
            hand = working(protocol)
            answer = hand.answer(hand.ask(DrainWorker(worker="here:8083")))
            assert isinstance(answer, RequestRefused)
            assert answer.problem is Problem.NOT_POSSIBLE
            assert f"uses protocol {protocol.setting}" in answer.message
            assert not hand.herder.life.is_draining


def test_a_drain_whose_group_has_come_to_an_older_protocol_is_told_to_wait_and_goes_on_after_it() -> None:
    hand = working()
    hand.ask(DrainWorker(worker="here:8083"))
    for protocol, warns in ((STATIC, False), (ConnectProtocol.SESSIONED, True), (STATIC, False)):
        hand.tell(ROUND)
        hand.assign(protocol=protocol)
        warned = [said.text for said in hand.take(Say) if said.warns]
        assert (
            any("The drain of this worker waits: the group uses protocol sessioned" in text for text in warned) is warns
        )
        view = hand.answer(hand.ask(DescribeWorker()))
        assert isinstance(view, WorkerView)
        assert view.draining
        assert (view.drain_waits is not None) is warns
    assert hand.herder.life.is_draining


def test_whoever_has_no_place_has_nobody_to_hand_its_jobs_to() -> None:
    hand = ByHand()
    hand.begin()
    answer = hand.answer(hand.ask(DrainWorker(worker="here:8083")))
    assert isinstance(answer, RequestRefused)
    assert answer.problem is Problem.NO_LEADER


def test_a_worker_that_drains_is_not_restarted() -> None:
    hand = working()
    hand.ask(DrainWorker(worker="here:8083"))
    answer = hand.answer(hand.ask(RestartWorker(worker="here:8083")))
    assert isinstance(answer, RequestRefused)
    assert answer.problem is Problem.NOT_POSSIBLE


def test_who_is_not_meant_names_the_leader() -> None:
    hand = working()
    answer = hand.answer(hand.ask(DrainWorker(worker="there")))
    assert isinstance(answer, RequestRefused)
    assert (answer.problem, answer.leader_url) == (Problem.NOT_LEADER, "http://leader:8083/")
