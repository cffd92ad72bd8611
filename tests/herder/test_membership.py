"""One worker and its place: rounds that fail, delays that end, logs that cannot be read, and what asks for a round."""

from dataclasses import replace

import pytest

from coterie.assignors.members import Policy
from coterie.engine.log import NewLine
from coterie.herder import config_records
from coterie.herder.messages import (
    Abandon,
    Event,
    Install,
    Rejoin,
    Say,
    SetTimer,
    StartTask,
    StopTask,
    Subscribe,
    TimerFired,
)
from coterie.nouns.ids import ConfigOffset, MemberId, WorkerUrl
from coterie.nouns.jobs import NO_JOBS, ConnectorName, ConnectorTaskId, Jobs
from coterie.nouns.membership import Computed, Lost, MemberReport
from coterie.nouns.states import TargetState
from coterie.wire.connect import AssignmentError, ConnectProtocol
from tests.herder.by_hand import ME, OTHER, ROUND, ByHand, wanted
from tests.herder.test_machine import BORN, CONFIG, DEALT, LIFE, ORDERS, SHARES, TASKS, only

STOCK = ConnectorName("stock")
STOCK_TASK = ConnectorTaskId(STOCK, 0)
THIRD = MemberId("third")
EVERYTHING = only(ORDERS, *TASKS)
COOPERATIVE = pytest.mark.parametrize(
    "protocol", [ConnectProtocol.COMPATIBLE, ConnectProtocol.SESSIONED, ConnectProtocol.STATIC]
)


def ready(*more: NewLine) -> ByHand:
    herder = ByHand()
    herder.begin()
    herder.write(BORN, *DEALT, *more)
    return herder


def round_of(
    herder: ByHand, owned: dict[MemberId, Jobs], protocol: ConnectProtocol = ConnectProtocol.STATIC
) -> Computed:
    """What this leader answers when ``owned`` is what members say that they run."""
    herder.tell(ROUND)
    members = {
        member: MemberReport(
            url=WorkerUrl(f"http://{member}/"), config_offset=ConfigOffset(len(herder.config)), owned=jobs
        )
        for member, jobs in owned.items()
    }
    herder.tell(wanted(members, generation=herder.generation + 1, protocol=protocol))
    installed = herder.take(Install)
    if not installed:
        herder.now_ms += herder.herder.settings.sync_timeout_ms
        herder.tell(TimerFired(timer="assign"))
        installed = herder.take(Install)
    computed = installed[0].computed
    herder.take_computed(computed, protocol)
    return computed


# -- rounds that fail -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", list(ConnectProtocol))
def test_in_a_round_that_fails_everybody_keeps_what_it_has_and_who_did_not_lag_asks_for_nothing(
    protocol: ConnectProtocol,
) -> None:
    herder = ready()
    herder.assign(assigned=only(*TASKS))
    herder.obey()
    herder.tell(ROUND)
    herder.assign(error=AssignmentError.CONFIG_MISMATCH, protocol=protocol)
    assert not herder.take(StopTask)
    assert not herder.take(Rejoin)
    assert herder.herder.place.assigned == only(*TASKS)


def test_who_lagged_in_a_round_that_failed_asks_for_another_when_it_has_read() -> None:
    herder = ready()
    herder.write(config_records.connector_line(STOCK, {"name": "stock"}, LIFE), read=False)
    herder.assign(error=AssignmentError.CONFIG_MISMATCH)
    assert not herder.take(Rejoin)
    herder.config.pop()
    herder.write(config_records.connector_line(STOCK, {"name": "stock"}, LIFE))
    assert len(herder.take(Rejoin)) == 1


@COOPERATIVE
def test_a_round_that_failed_makes_the_leader_forget_nothing(protocol: ConnectProtocol) -> None:
    """KAFKA-9848: who leaves after it is waited for, and nobody's work is lost that was never dealt out."""
    herder = ready()
    first = round_of(herder, {ME: NO_JOBS, OTHER: NO_JOBS}, protocol)
    owned = {member: one.assigned for member, one in first.assignments.items()}
    herder.write(BORN, read=False)
    failed = round_of(herder, {**owned, THIRD: NO_JOBS}, protocol)
    assert failed.has_config_mismatch
    herder.config.pop()
    herder.write(BORN)
    assert len(herder.take(Rejoin)) == 1
    after = round_of(herder, {ME: owned[ME], THIRD: NO_JOBS}, protocol)
    assert {one.assigned for one in after.assignments.values()} == {NO_JOBS}, "the other has left, and may be back"
    assert after.delay_ms == 300_000


# -- a log that cannot be read ----------------------------------------------------------------------------------------


def cut_off(herder: ByHand, *, error: AssignmentError = AssignmentError.NO_ERROR) -> None:
    """The group knows one line more than this worker, which does not get to it."""
    herder.config.append(BORN)
    herder.tell(ROUND)
    herder.assign(assigned=only(TASKS[1]) if error is AssignmentError.NO_ERROR else NO_JOBS, error=error)


@pytest.mark.parametrize("error", list(AssignmentError))
def test_a_worker_that_does_not_get_to_read_gives_its_place_up_and_comes_back_when_it_has_read(
    error: AssignmentError,
) -> None:
    herder = ready()
    herder.assign(assigned=only(TASKS[0]))
    herder.obey()
    cut_off(herder, error=error)
    assert not herder.take(StartTask)
    (timer,) = [order for order in herder.take(SetTimer) if order.timer == "behind"]
    assert timer.at_ms == herder.now_ms + 60_000
    herder.now_ms = timer.at_ms
    herder.tell(TimerFired(timer="behind"))
    herder.obey()  # Where nothing was dealt out it looks whether there is so much to read.
    (abandoned,) = herder.take(Abandon)
    assert "the config log is read to 4 of 5" in abandoned.reason
    herder.take(Subscribe)
    herder.tell(Lost(reason=abandoned.reason))
    (stop,) = herder.take(StopTask)
    assert stop.task == TASKS[0], "nothing goes on that the group does not see"
    herder.do(stop)
    assert not herder.herder.owned
    assert not herder.take(Subscribe), "it would only lag again"
    herder.config.pop()
    herder.write(BORN)
    assert [order.owned for order in herder.take(Subscribe)] == [NO_JOBS]


def test_rounds_that_come_while_it_lags_give_it_no_more_time() -> None:
    herder = ready()
    cut_off(herder)
    (timer,) = [order for order in herder.take(SetTimer) if order.timer == "behind"]
    herder.now_ms += 50_000
    cut_off(herder)
    assert not [order for order in herder.take(SetTimer) if order.timer == "behind"]
    herder.now_ms = timer.at_ms
    herder.tell(TimerFired(timer="behind"))
    assert herder.take(Abandon)


def test_who_has_read_in_the_meantime_stays() -> None:
    herder = ready()
    cut_off(herder)
    herder.config.pop()
    herder.write(BORN)
    herder.now_ms += 60_000
    herder.tell(TimerFired(timer="behind"))
    assert not herder.take(Abandon)


# -- another config topic ---------------------------------------------------------------------------------------------


def round_with(herder: ByHand, offsets: dict[MemberId, int], protocol: ConnectProtocol) -> None:
    """This leader is to deal out to members that say how many configs they have read; it is at work itself."""
    herder.tell(ROUND)
    members = {
        member: MemberReport(
            url=WorkerUrl(f"http://{member}:8083/"),
            name=f"{member}-by-name",
            config_offset=ConfigOffset(offset),
            owned=EVERYTHING if member == ME else NO_JOBS,
        )
        for member, offset in offsets.items()
    }
    herder.tell(wanted(members, generation=herder.generation + 1, protocol=protocol))
    herder.obey()


def test_a_leader_that_has_read_more_than_all_others_goes_on_and_says_how_far_to_read() -> None:
    herder = ready()
    herder.assign(leader=ME, protocol=ConnectProtocol.STATIC)
    end = len(herder.config)
    round_with(herder, {ME: end, OTHER: 1, THIRD: -1}, ConnectProtocol.STATIC)
    computed = herder.computed()
    assert (computed.has_config_mismatch, computed.config_offset) == (False, end)
    assert computed.assignments[ME].revoked, (
        "it gives the others their share; they start that when they have read so far"
    )


@pytest.mark.parametrize("protocol", list(ConnectProtocol))
def test_whoever_has_read_more_configs_than_there_are_is_told_of_by_name_and_given_nothing(
    protocol: ConnectProtocol,
) -> None:
    herder = ready()
    herder.assign(assigned=EVERYTHING, leader=ME, protocol=protocol)
    herder.obey()
    round_with(herder, {ME: 4, OTHER: 4, THIRD: 999}, protocol)
    dealt, end = herder.computed(), len(herder.config)
    assert (dealt.has_config_mismatch, dealt.config_offset) == (False, end)
    assert (dealt.assignments[THIRD].assigned, dealt.assignments[THIRD].revoked) == (NO_JOBS, NO_JOBS)
    given = [job for one in (dealt.assignments[ME], dealt.assignments[OTHER]) for job in [*one.assigned, *one.revoked]]
    assert given, "the others have their round"
    warned = [order.text for order in herder.take(Say) if order.warns]
    assert len(warned) == 1
    assert f"third-by-name (third:8083) has read 999 lines of configs, and the config topic has {end}:" in warned[0]
    assert "config.storage.topic" in warned[0]


def test_a_leader_that_most_members_are_ahead_of_reads_another_topic_and_steps_aside() -> None:
    herder = ready()
    round_with(herder, {ME: 4, OTHER: 999, THIRD: 999}, ConnectProtocol.STATIC)
    assert not herder.take(Install), "it knows nothing of the others' configs"
    (abandoned,) = herder.take(Abandon)
    assert "most members have read more of the configs, up to 999" in abandoned.reason
    assert [order.text for order in herder.take(Say) if order.warns]
    herder.take(Subscribe)
    herder.tell(Lost(reason=abandoned.reason))
    herder.obey()
    assert not herder.take(Subscribe), "it would be no other than before"


@pytest.mark.parametrize("is_lost", [False, True])
def test_who_has_read_all_that_there_is_keeps_its_place_whatever_a_member_says(is_lost: bool) -> None:
    """An older leader, or Kafka Connect's, takes a member at its word: nobody is given anything, up to 999."""
    herder = ready()
    herder.assign(assigned=only(TASKS[0]))
    herder.obey()
    herder.tell(ROUND)
    herder.assign(
        error=AssignmentError.CONFIG_MISMATCH, config_offset=ConfigOffset(999), protocol=ConnectProtocol.STATIC
    )
    if is_lost:
        herder.tell(Lost(reason="a partition"))
        herder.obey()
    herder.take(Subscribe)
    herder.now_ms += 60_000
    herder.tell(TimerFired(timer="behind"))
    herder.obey()
    assert not herder.take(Abandon)
    assert [order.text for order in herder.take(Say) if order.warns]
    assert [order.owned for order in herder.take(Subscribe)] == ([NO_JOBS] if is_lost else [])
    assert herder.herder.place.assigned == (NO_JOBS if is_lost else only(TASKS[0]))


# -- delays -----------------------------------------------------------------------------------------------------------


def test_a_worker_asks_for_a_round_by_itself_when_the_delay_is_over() -> None:
    herder = ready()
    herder.assign(delay_ms=60_000)
    (timer,) = [order for order in herder.take(SetTimer) if order.timer == "delay over"]
    assert timer.at_ms == herder.now_ms + 60_000
    herder.tell(TimerFired(timer="delay over"))
    assert not herder.take(Rejoin), "a timer is a claim to check"
    herder.now_ms = timer.at_ms
    herder.tell(TimerFired(timer="delay over"))
    assert [order.reason for order in herder.take(Rejoin)] == ["the scheduled rebalance delay is over"]
    herder.tell(TimerFired(timer="delay over"))
    assert not herder.take(Rejoin), "once"


def test_a_delay_that_ends_during_a_round_asks_for_no_other() -> None:
    herder = ready()
    herder.assign(delay_ms=60_000)
    herder.now_ms += 59_000
    herder.tell(ROUND)
    herder.now_ms += 2_000
    herder.tell(TimerFired(timer="delay over"))
    assert not herder.take(Rejoin)
    herder.assign()
    assert not herder.take(Rejoin)


def test_a_delay_that_is_told_again_does_not_begin_anew() -> None:
    """A follower whose delay is over joins, and is answered with the generation that runs. If the leader has died
    meanwhile, and this one leads, nothing is left of the delay."""
    herder = ready()
    herder.assign(assigned=only(TASKS[0]), leader=OTHER, delay_ms=60_000)
    herder.obey()
    herder.now_ms += 60_000
    herder.tell(TimerFired(timer="delay over"))
    assert herder.take(Rejoin)
    herder.tell(ROUND)
    herder.generation -= 1
    herder.assign(assigned=only(TASKS[0]), leader=OTHER, delay_ms=60_000)
    dealt = round_of(herder, {ME: only(TASKS[0])})
    assert dealt.assignments[ME].assigned == EVERYTHING - only(TASKS[0])
    assert dealt.delay_ms == 0


@COOPERATIVE
def test_a_new_leader_keeps_what_is_left_of_the_delay_that_it_was_told_of(protocol: ConnectProtocol) -> None:
    """K415, "Leader leaves the group": then every job that nobody runs counts as lost."""
    herder = ready()
    herder.assign(assigned=only(TASKS[0]), leader=OTHER, delay_ms=60_000, protocol=protocol)
    herder.obey()
    herder.now_ms += 20_000
    dealt = round_of(herder, {ME: only(TASKS[0]), THIRD: NO_JOBS}, protocol)
    assert {one.assigned for one in dealt.assignments.values()} == {NO_JOBS}
    assert dealt.delay_ms == 40_000
    herder.now_ms += 30_000
    dealt = round_of(herder, {ME: only(TASKS[0]), THIRD: NO_JOBS, OTHER: NO_JOBS}, protocol)
    assert {one.assigned for one in dealt.assignments.values()} == {NO_JOBS}
    assert dealt.delay_ms == 10_000
    herder.now_ms += 10_000
    herder.tell(TimerFired(timer="delay over"))
    assert len(herder.take(Rejoin)) == 1
    dealt = round_of(herder, {ME: only(TASKS[0]), THIRD: NO_JOBS, OTHER: NO_JOBS}, protocol)
    assert Jobs.of(job for one in dealt.assignments.values() for job in one.assigned) == EVERYTHING - only(TASKS[0])
    assert dealt.delay_ms == 0


@COOPERATIVE
def test_a_new_leader_that_was_told_of_no_delay_deals_out_at_once(protocol: ConnectProtocol) -> None:
    herder = ready()
    herder.assign(assigned=only(TASKS[0]), leader=OTHER, protocol=protocol)
    dealt = round_of(herder, {ME: only(TASKS[0]), THIRD: NO_JOBS}, protocol)
    assert Jobs.of(job for one in dealt.assignments.values() for job in one.assigned) == EVERYTHING - only(TASKS[0])


# -- moves in portions (design III) -----------------------------------------------------------------------------------


def paced() -> ByHand:
    """A leader that may make a move a second, and whose group has two to make."""
    herder = ready(STOCK_BORN, *STOCK_DEALT)
    policy = Policy(moves_per_round_max=1, round_interval_ms=1_000)
    herder.herder.settings = replace(herder.herder.settings, policy=policy)
    everything = herder.herder.config.jobs()
    herder.assign(assigned=everything, leader=ME)
    herder.obey()
    dealt = round_of(herder, {ME: everything, OTHER: NO_JOBS, THIRD: NO_JOBS})
    herder.obey()
    assert len(dealt.assignments[ME].revoked) == 1
    assert len(herder.take(Rejoin)) == 1
    herder.take(SetTimer)
    herder.now_ms += 100
    dealt = round_of(herder, {ME: everything - dealt.assignments[ME].revoked, OTHER: NO_JOBS, THIRD: NO_JOBS})
    assert dealt.delay_ms == 0, "that is for jobs that wait for their worker"
    return herder


def test_a_leader_asks_for_the_round_that_makes_the_next_moves() -> None:
    herder = paced()
    (timer,) = [order for order in herder.take(SetTimer) if order.timer == "moves"]
    assert timer.at_ms == herder.now_ms + 900
    herder.tell(TimerFired(timer="moves"))
    assert not herder.take(Rejoin), "a timer is a claim to check"
    herder.now_ms = timer.at_ms
    herder.tell(TimerFired(timer="moves"))
    assert [order.reason for order in herder.take(Rejoin)] == ["moves are left to make"]
    herder.tell(TimerFired(timer="moves"))
    assert not herder.take(Rejoin), "once"


@pytest.mark.parametrize("event", [ROUND, Lost(reason="silence"), None], ids=["a round", "loss", "another leads"])
def test_moves_that_are_somebody_elses_by_then_are_not_asked_for(event: Event | None) -> None:
    herder = paced()
    if event is None:
        herder.assign(leader=OTHER)
    else:
        herder.tell(event)
    herder.now_ms += 900
    herder.tell(TimerFired(timer="moves"))
    assert not herder.take(Rejoin)


# -- what asks for a round --------------------------------------------------------------------------------------------

STOCK_BORN = config_records.connector_line(STOCK, {"name": "stock", "tasks.max": "1"}, LIFE)
STOCK_DEALT = config_records.task_config_lines(STOCK, [{"share": "0/1"}])


@pytest.mark.parametrize(
    ("lines", "restarted"),
    [
        ((config_records.connector_line(ORDERS, {**CONFIG, "colour": "red"}, LIFE),), []),
        (config_records.task_config_lines(ORDERS, SHARES), []),
        (config_records.task_config_lines(ORDERS, [SHARES[0], {"share": "new"}]), [TASKS[1]]),
        ((config_records.target_state_line(ORDERS, TargetState.PAUSED),), TASKS),
        ((config_records.target_state_line(STOCK, TargetState.PAUSED),), [STOCK_TASK]),
    ],
    ids=["another config", "the same tasks", "another task config", "pause", "pause of the other"],
)
@pytest.mark.parametrize("protocol", list(ConnectProtocol))
def test_a_config_that_only_changes_asks_for_no_round_and_stops_what_it_concerns(
    protocol: ConnectProtocol, lines: tuple[NewLine, ...], restarted: list[ConnectorTaskId]
) -> None:
    herder = ready(STOCK_BORN, *STOCK_DEALT)
    herder.assign(assigned=only(*TASKS, STOCK_TASK), protocol=protocol)
    herder.obey()
    herder.write(*lines)
    herder.now_ms += 1_000
    herder.tell(TimerFired(timer="changed jobs"))
    assert not herder.take(Rejoin)
    assert sorted(stop.task for stop in herder.take(StopTask)) == restarted


@pytest.mark.parametrize(
    ("lines", "stopped"),
    [
        ((config_records.connector_line(ConnectorName("new"), {"name": "new"}, LIFE),), []),
        (config_records.task_config_lines(ORDERS, [*SHARES, {"share": "2/2"}]), []),
        (config_records.task_config_lines(ORDERS, SHARES[:1]), [TASKS[1]]),
        (config_records.deletion_lines(ORDERS), TASKS),
    ],
    ids=["a connector more", "a task more", "a task less", "a connector less"],
)
@pytest.mark.parametrize("protocol", list(ConnectProtocol))
def test_jobs_that_come_or_go_ask_for_a_round_and_before_it_nothing_else_stops(
    protocol: ConnectProtocol, lines: tuple[NewLine, ...], stopped: list[ConnectorTaskId]
) -> None:
    herder = ready(STOCK_BORN, *STOCK_DEALT)
    herder.assign(assigned=only(*TASKS, STOCK_TASK), protocol=protocol)
    herder.obey()
    herder.write(*lines)
    herder.now_ms += 1_000
    herder.tell(TimerFired(timer="changed jobs"))
    assert len(herder.take(Rejoin)) == 1
    assert sorted(stop.task for stop in herder.take(StopTask)) == stopped


@pytest.mark.parametrize("is_slow", [False, True])
def test_giving_back_what_is_deleted_asks_for_no_round_unless_it_still_runs(is_slow: bool) -> None:
    herder = ready()
    herder.assign(assigned=only(*TASKS))
    herder.obey()
    herder.write(*config_records.deletion_lines(ORDERS))
    stops = herder.take(StopTask)
    if not is_slow:
        for stop in stops:
            herder.do(stop)
    herder.assign(revoked=only(*TASKS))
    assert not herder.take(Rejoin)
    for stop in stops if is_slow else ():
        herder.do(stop)
    assert not herder.herder.owned
    assert len(herder.take(Rejoin)) == is_slow


def test_giving_back_what_may_exist_asks_for_a_round_though_this_worker_has_only_read_that_it_does_not() -> None:
    herder = ready()
    herder.assign(assigned=only(*TASKS))
    herder.obey()
    herder.write(*config_records.deletion_lines(ORDERS))
    herder.obey()
    herder.write(config_records.connector_line(ORDERS, {"name": ORDERS}, LIFE), read=False)
    herder.assign(revoked=only(*TASKS))
    assert len(herder.take(Rejoin)) == 1
