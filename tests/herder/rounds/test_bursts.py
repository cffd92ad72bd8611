"""Changes of the set of jobs that come close together make one round; each test tells of a burst."""

import pytest

from coterie.engine.log import Line
from coterie.herder import config_records, status_records
from coterie.herder.messages import ConfigLinesRead, SetTimer, StatusLinesRead, TimerFired
from coterie.herder.requests import PutConnector
from coterie.herder.status_records import Status
from coterie.nouns.ids import Generation, Incarnation, MemberId, WorkerId, WorkerUrl
from coterie.nouns.jobs import ConnectorName
from coterie.nouns.membership import Install, Lost, MemberReport, Rejoin
from coterie.nouns.states import State, TargetState
from tests.herder.by_hand import ME, OTHER, ROUND, ByHand, wanted

A, B = ConnectorName("a"), ConnectorName("b")
CONFIG = {"connector.class": "LightSource"}
WINDOW_MS = 300


def settled(leader: MemberId = OTHER) -> ByHand:
    """A worker of a group that has nothing to do."""
    herder = ByHand()
    herder.begin()
    herder.assign(leader=leader)
    return herder


def born(herder: ByHand, name: ConnectorName) -> None:
    herder.write(config_records.connector_line(name, CONFIG, Incarnation("life")))


def dealt(herder: ByHand, name: ConnectorName, tasks: int = 2) -> None:
    herder.write(*config_records.task_config_lines(name, [{"task": str(number)} for number in range(tasks)]))


def leads(herder: ByHand) -> None:
    """It deals out what is configured by now; the round has not ended yet."""
    here = MemberReport(url=WorkerUrl("http://here:8083/"), config_offset=herder.herder.config.offset)
    herder.tell(wanted({ME: here}, generation=herder.generation + 1))
    assert herder.take(Install)


def changed_jobs_timers(herder: ByHand) -> list[int]:
    """The ends of the windows that were opened."""
    return [one.at_ms for one in herder.take(SetTimer) if one.timer == "changed jobs"]


def rounds(herder: ByHand, *, after_ms: int = 0) -> int:
    """How many were asked for, once ``after_ms`` have passed."""
    herder.now_ms += after_ms
    herder.tell(TimerFired(timer="changed jobs"))
    return len(herder.take(Rejoin))


def test_what_comes_within_the_window_makes_one_round_at_its_end() -> None:
    herder = settled()
    born(herder, A)
    assert changed_jobs_timers(herder) == [herder.now_ms + WINDOW_MS]
    assert rounds(herder, after_ms=WINDOW_MS - 1) == 0
    born(herder, B)
    assert not changed_jobs_timers(herder), "the first one counts"
    herder.now_ms += 1
    herder.tell(TimerFired(timer="changed jobs"))
    (asked,) = herder.take(Rejoin)
    assert asked.reason == "the set of jobs has changed: 2 more, 0 fewer"
    assert rounds(herder, after_ms=WINDOW_MS) == 0, "asked for once"


@pytest.mark.parametrize("leader", [ME, OTHER])
def test_leader_and_follower_ask_alike(leader: MemberId) -> None:
    herder = ByHand()
    herder.begin()
    born(herder, A)
    if leader == ME:
        leads(herder)
    herder.assign(leader=leader)
    assert rounds(herder, after_ms=WINDOW_MS) == 0, "what was dealt out is no news"
    born(herder, B)
    assert rounds(herder, after_ms=WINDOW_MS - 1) == 0
    assert rounds(herder, after_ms=1) == 1


def test_a_round_that_comes_anyway_takes_the_changes_in() -> None:
    herder = settled()
    born(herder, A)
    herder.tell(ROUND)
    assert rounds(herder, after_ms=WINDOW_MS) == 0, "one is under way"
    herder.assign()
    assert rounds(herder, after_ms=WINDOW_MS) == 0


def test_what_changes_while_a_round_is_under_way_has_a_window_of_its_own() -> None:
    herder = settled(leader=ME)
    herder.tell(ROUND)
    leads(herder)
    born(herder, A)  # It was dealt out without.
    assert not changed_jobs_timers(herder)
    herder.now_ms += 2 * WINDOW_MS
    herder.assign(leader=ME)
    assert changed_jobs_timers(herder) == [herder.now_ms + WINDOW_MS]
    assert rounds(herder, after_ms=WINDOW_MS - 1) == 0
    assert rounds(herder, after_ms=1) == 1


def test_what_a_follower_has_yet_to_read_of_what_was_dealt_out_is_no_news() -> None:
    herder = settled()
    herder.tell(ROUND)
    born(herder, A)
    line = config_records.connector_line(B, CONFIG, Incarnation("life"))
    herder.write(line, read=False)
    herder.assign()
    assert rounds(herder, after_ms=WINDOW_MS) == 0
    read = Line(partition=0, offset=1, timestamp_ms=0, key=line.key, value=line.value)
    herder.tell(ConfigLinesRead(lines=[read]))
    assert not changed_jobs_timers(herder)
    assert rounds(herder, after_ms=WINDOW_MS) == 0


def test_a_connector_that_came_and_went_within_the_window_needs_no_round() -> None:
    herder = settled()
    born(herder, A)
    herder.write(*config_records.deletion_lines(A))
    assert rounds(herder, after_ms=WINDOW_MS) == 0


def test_deletions_are_gathered_like_births() -> None:
    herder = ByHand()
    herder.begin()
    for name in (A, B):
        born(herder, name)
        dealt(herder, name)
    herder.assign()
    for name in (A, B):
        herder.write(*config_records.deletion_lines(name))
        assert not herder.take(Rejoin)
    assert rounds(herder, after_ms=WINDOW_MS) == 1


def test_all_tasks_of_one_connector_wait_no_second_time() -> None:
    herder = settled()
    born(herder, A)
    assert rounds(herder, after_ms=WINDOW_MS) == 1
    herder.assign()
    dealt(herder, A)
    assert len(herder.take(Rejoin)) == 1


def test_while_other_connectors_are_split_their_tasks_are_waited_for() -> None:
    herder = settled()
    for name in (A, B):
        born(herder, name)
    assert rounds(herder, after_ms=WINDOW_MS) == 1
    herder.assign()
    dealt(herder, A)
    assert not herder.take(Rejoin)
    dealt(herder, B)
    assert not herder.take(Rejoin), "of two connectors; there may be more"
    assert rounds(herder, after_ms=WINDOW_MS) == 1


def test_a_connector_that_is_not_to_run_is_not_waited_for() -> None:
    herder = ByHand()
    herder.begin()
    born(herder, A)
    born(herder, B)
    herder.write(config_records.target_state_line(B, TargetState.PAUSED))
    herder.assign()
    dealt(herder, A)
    assert len(herder.take(Rejoin)) == 1


def test_a_connector_that_cannot_be_split_is_not_waited_for() -> None:
    herder = ByHand()
    herder.begin()
    born(herder, A)
    born(herder, B)
    herder.assign()
    failed = Status(
        state=State.FAILED, worker_id=WorkerId("there:8083"), generation=Generation(1), trace="no such table"
    )
    line = status_records.line_of(B, failed)
    herder.tell(StatusLinesRead(lines=[Line(partition=0, offset=0, timestamp_ms=0, key=line.key, value=line.value)]))
    dealt(herder, A)
    assert len(herder.take(Rejoin)) == 1


def test_a_leader_that_has_another_connector_to_write_waits_for_it() -> None:
    herder = ByHand()
    herder.begin()
    born(herder, A)
    leads(herder)
    herder.assign(leader=ME)
    herder.ask(PutConnector(connector=B, config=CONFIG, replace=False))
    dealt(herder, A)
    assert not herder.take(Rejoin)
    assert rounds(herder, after_ms=WINDOW_MS) == 1


def test_fewer_tasks_of_a_connector_wait_for_the_window() -> None:
    herder = ByHand()
    herder.begin()
    born(herder, A)
    dealt(herder, A)
    herder.assign()
    dealt(herder, A, tasks=1)
    assert not herder.take(Rejoin)
    assert rounds(herder, after_ms=WINDOW_MS) == 1


def test_a_round_that_was_asked_for_when_a_delay_ended_takes_the_changes_in() -> None:
    herder = ByHand()
    herder.begin()
    herder.assign(delay_ms=1_000)
    herder.now_ms += 1_000
    herder.tell(TimerFired(timer="delay over"))
    assert len(herder.take(Rejoin)) == 1
    born(herder, A)
    assert rounds(herder, after_ms=WINDOW_MS) == 0


def test_whoever_has_lost_its_place_asks_for_nothing() -> None:
    herder = settled()
    born(herder, A)
    herder.tell(Lost(reason="silence"))
    assert rounds(herder, after_ms=WINDOW_MS) == 0
