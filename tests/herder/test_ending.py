"""A worker that begins its process anew, and the life that goes on in its place."""

from coterie.herder.messages import (
    CloseRuntime,
    Exit,
    RuntimeClosed,
    SetTimer,
    ShutdownOrdered,
    StartTask,
    StopTask,
    TimerFired,
)
from coterie.herder.requests import Done, DrainWorker, Problem, RequestRefused, RestartWorker
from coterie.nouns.jobs import NO_JOBS
from coterie.nouns.membership import Leave, Lost, MemberState, PlaceHandover, Rejoin, Subscribe
from coterie.nouns.states import State
from tests.herder.builders import BOTH_TASKS, FIRST, STATIC, deal, given, working
from tests.herder.by_hand import ME, OTHER, ROUND, ByHand, proved


def restarted(hand: ByHand) -> Exit:
    """All that a restart takes, up to its end."""
    assert hand.answer(hand.ask(RestartWorker(worker="here:8083"))) == Done()
    hand.obey()
    assert len(hand.take(CloseRuntime)) == 1
    hand.tell(RuntimeClosed())
    (end,) = hand.take(Exit)
    return end


def next_life(place: PlaceHandover | None, former: ByHand) -> ByHand:
    hand = ByHand(place)
    hand.generation = former.generation
    hand.write(*former.config)
    return hand


def test_a_restart_stops_all_tasks_and_keeps_all_jobs() -> None:
    hand = working()
    hand.ask(RestartWorker(worker="here:8083"))
    assert {stop.task for stop in hand.take(StopTask)} == BOTH_TASKS.tasks
    assert all(said.owned == BOTH_TASKS for said in hand.take(Subscribe)), "to the group it still has them"
    assert not hand.take(CloseRuntime), "they have not stopped"


def test_it_ends_in_its_place_and_without_a_farewell() -> None:
    hand = working()
    end = restarted(hand)
    assert (end.code, end.restarts) == (0, True)
    assert end.place is not None
    assert (end.place.jobs, end.place.member_id, end.place.generation) == (BOTH_TASKS, ME, 1)
    assert not end.place.must_ask_for_round, "a follower needs none"
    assert not hand.take(Leave)
    shown = {str(task): hand.herder.statuses.get(task) for task in BOTH_TASKS.tasks}
    assert {status.state for status in shown.values() if status is not None} == {State.RESTARTING}


def test_whoever_could_not_start_again_says_so_and_stops_nothing() -> None:
    hand = working()
    answer = hand.answer(hand.ask(RestartWorker(worker="here:8083", obstacle="worker.properties cannot be read")))
    assert answer == RequestRefused(
        problem=Problem.NOT_POSSIBLE,
        message="here was not restarted: it could not start with its current settings. "
        "worker.properties cannot be read",
    )
    hand.obey()
    assert not hand.take(StopTask)
    assert not hand.herder.life.is_relaunching


def test_a_leader_asks_for_a_round_in_its_next_life_to_know_its_members_again() -> None:
    hand = working()
    hand.assign(leader=ME, protocol=STATIC)
    end = restarted(hand)
    assert end.place is not None
    assert end.place.must_ask_for_round
    again = next_life(end.place, hand)
    again.tell(proved(sent_at_ms=again.now_ms))
    assert not again.take(Rejoin), "not before it can work"
    again.begin()
    assert len(again.take(Rejoin)) == 1


def test_a_leader_that_restarts_within_a_delay_goes_on_waiting_for_who_has_left() -> None:
    hand = working()
    hand.assign(leader=ME, protocol=STATIC, delay_ms=300_000)
    ends_ms = hand.now_ms + 300_000
    end = restarted(hand)
    again = next_life(end.place, hand)
    again.now_ms = hand.now_ms + 5_000
    again.begin()
    assert [timer.at_ms for timer in again.take(SetTimer) if timer.timer == "delay over"] == [ends_ms]
    dealt = deal(again, again.generation + 1, STATIC, {ME: FIRST, OTHER: NO_JOBS})
    assert given(dealt) == NO_JOBS, "it may be back"
    assert dealt.delay_ms == 295_000
    late = next_life(end.place, hand)
    late.now_ms = ends_ms
    late.begin()
    dealt = deal(late, late.generation + 1, STATIC, {ME: FIRST, OTHER: NO_JOBS})
    assert given(dealt) == late.herder.config.jobs() - FIRST


def test_a_follower_that_restarts_within_a_delay_asks_for_the_round_at_its_end() -> None:
    hand = working()
    hand.assign(protocol=STATIC, delay_ms=300_000)
    again = next_life(restarted(hand).place, hand)
    again.begin()
    again.tell(proved(sent_at_ms=again.now_ms))
    assert not again.take(Rejoin)
    again.now_ms += 300_000
    again.tell(TimerFired(timer="delay over"))
    assert len(again.take(Rejoin)) == 1


def test_a_round_that_comes_meanwhile_changes_the_place() -> None:
    hand = working()
    hand.ask(RestartWorker(worker="here:8083"))
    hand.tell(ROUND)
    hand.obey()
    assert not hand.take(CloseRuntime), "the round's end says what the place is"
    hand.assign(revoked=FIRST, protocol=STATIC)
    hand.obey()
    hand.tell(ROUND)
    hand.assign(protocol=STATIC)
    assert len(hand.take(CloseRuntime)) == 1
    hand.tell(RuntimeClosed())
    (end,) = hand.take(Exit)
    assert end.place is not None
    assert end.place.jobs == BOTH_TASKS - FIRST


def test_it_does_not_wait_for_ever_for_what_does_not_stop() -> None:
    hand = working()
    hand.ask(RestartWorker(worker="here:8083"))
    hand.tell(TimerFired(timer="relaunch"))
    assert len(hand.take(CloseRuntime)) == 1


def test_who_loses_its_place_while_it_restarts_begins_as_a_new_member() -> None:
    hand = working()
    hand.ask(RestartWorker(worker="here:8083"))
    hand.tell(Lost(reason="the session is over"))
    hand.obey()
    hand.tell(TimerFired(timer="relaunch"))
    hand.tell(RuntimeClosed())
    (end,) = hand.take(Exit)
    assert (end.restarts, end.place) == (True, None)


def test_sigterm_ends_a_worker_that_restarts() -> None:
    hand = working()
    hand.ask(RestartWorker(worker="here:8083"))
    hand.tell(ShutdownOrdered(reason="SIGTERM"))
    hand.obey()
    hand.tell(RuntimeClosed())
    assert not hand.take(Exit), "it leaves first"
    assert len(hand.take(Leave)) == 1


def test_a_worker_that_restarts_takes_no_orders() -> None:
    hand = working()
    hand.ask(RestartWorker(worker="here:8083"))
    answer = hand.answer(hand.ask(DrainWorker(worker="here:8083")))
    assert isinstance(answer, RequestRefused)
    assert answer.problem is Problem.SHUTTING_DOWN


# -- the life after ---------------------------------------------------------------------------------------------------


def test_the_next_life_has_the_same_jobs_and_starts_them_when_its_place_is_proved_and_it_can() -> None:
    hand = working()
    again = next_life(restarted(hand).place, hand)
    assert (again.herder.owned, again.herder.place.state, again.herder.place.is_settled) == (
        BOTH_TASKS,
        MemberState.STABLE,
        True,
    )
    again.begin()
    assert not again.take(StartTask), "others may have been given them"
    again.tell(proved(sent_at_ms=again.now_ms))
    assert {start.start.task for start in again.take(StartTask)} == BOTH_TASKS.tasks


def test_a_place_that_is_proved_before_the_runtime_is_open_waits_for_it() -> None:
    hand = working()
    again = next_life(restarted(hand).place, hand)
    again.tell(proved(sent_at_ms=again.now_ms))
    assert not again.take(StartTask)
    again.begin()
    assert {start.start.task for start in again.take(StartTask)} == BOTH_TASKS.tasks


def test_a_place_that_was_lost_meanwhile_starts_nothing() -> None:
    hand = working()
    again = next_life(restarted(hand).place, hand)
    again.tell(Lost(reason="the coordinator has removed this member (UNKNOWN_MEMBER_ID)"))
    again.take(Subscribe)
    again.tell(proved(sent_at_ms=again.now_ms))
    again.obey()
    assert not again.take(Subscribe), "it joins as any worker does: when it can work"
    again.begin()
    again.obey()
    assert [said.owned for said in again.take(Subscribe)] == [NO_JOBS]
    assert again.herder.owned == NO_JOBS
    assert not again.take(StartTask)
