"""Changes of the set of jobs that come close together make one round; each test tells of a burst."""

from coterie.herder import config_records
from coterie.herder.messages import Rejoin, SetTimer, TimerFired
from coterie.herder.requests import PutConnector
from coterie.nouns.ids import Incarnation, MemberId
from coterie.nouns.jobs import ConnectorName
from coterie.nouns.states import TargetState
from coterie.wire.connect_events import MembershipLost, RebalanceStarted
from tests.herder.by_hand import ME, OTHER, ByHand

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


def rounds(herder: ByHand, *, after_ms: int = 0) -> int:
    """How many were asked for, once ``after_ms`` have passed."""
    herder.now_ms += after_ms
    herder.tell(TimerFired(timer="changed jobs"))
    return len(herder.take(Rejoin))


def test_what_comes_within_the_window_makes_one_round_at_its_end() -> None:
    herder = settled()
    born(herder, A)
    (timer,) = (one for one in herder.take(SetTimer) if one.timer == "changed jobs")
    assert timer.at_ms == herder.now_ms + WINDOW_MS
    assert rounds(herder, after_ms=WINDOW_MS - 1) == 0
    born(herder, B)
    assert not [one for one in herder.take(SetTimer) if one.timer == "changed jobs"], "the first one counts"
    herder.now_ms += 1
    herder.tell(TimerFired(timer="changed jobs"))
    (asked,) = herder.take(Rejoin)
    assert asked.reason == "the set of jobs has changed: 2 more, 0 fewer"
    assert rounds(herder, after_ms=WINDOW_MS) == 0, "asked for once"


def test_leader_and_follower_ask_alike() -> None:
    for leader in (ME, OTHER):
        herder = ByHand()
        herder.begin()
        herder.write(config_records.connector_line(A, CONFIG, Incarnation("life")))
        herder.assign(leader=leader)
        assert rounds(herder, after_ms=WINDOW_MS) == 0, "what was dealt out is no news"
        if leader == OTHER:
            born(herder, B)
            assert rounds(herder, after_ms=WINDOW_MS) == 1


def test_a_round_that_comes_anyway_takes_the_changes_in() -> None:
    herder = settled()
    born(herder, A)
    herder.tell(RebalanceStarted())
    assert rounds(herder, after_ms=WINDOW_MS) == 0, "one is under way"
    herder.assign()
    assert rounds(herder, after_ms=WINDOW_MS) == 0


def test_what_changes_while_a_round_is_under_way_has_a_window_of_its_own() -> None:
    herder = settled()
    herder.tell(RebalanceStarted())
    born(herder, A)
    herder.write(config_records.connector_line(B, CONFIG, Incarnation("life")), read=False)
    herder.assign()
    assert rounds(herder, after_ms=WINDOW_MS) == 0, "it has not read all that was dealt out, so it knows of no change"


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


def test_a_leader_that_has_another_connector_to_write_waits_for_it() -> None:
    herder = ByHand()
    herder.begin()
    born(herder, A)
    herder.assign(leader=ME)
    herder.herder.assigned_for = herder.herder.config.jobs()  # As it has dealt out.
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


def test_whoever_has_lost_its_place_asks_for_nothing() -> None:
    herder = settled()
    born(herder, A)
    herder.tell(MembershipLost(reason="silence"))
    assert rounds(herder, after_ms=WINDOW_MS) == 0
