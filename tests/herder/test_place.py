"""A worker whose config log does not go as far as its group's, and who reads another one."""

import pytest

from coterie.herder.messages import Say, SetTimer, StartTask, StopTask, TimerFired
from coterie.nouns.ids import ConfigOffset, MemberId, WorkerUrl
from coterie.nouns.jobs import NO_JOBS
from coterie.nouns.membership import Abandon, Install, Lost, MemberReport, Subscribe
from coterie.wire.connect import AssignmentError, ConnectProtocol
from tests.herder.builders import ALL_JOBS, BORN, TASKS, only, ready
from tests.herder.by_hand import ME, OTHER, ROUND, ByHand, wanted

THIRD = MemberId("third")


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
    assert "this worker has read the config topic to offset 4 of 5" in abandoned.reason
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
            owned=ALL_JOBS if member == ME else NO_JOBS,
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
    herder.assign(assigned=ALL_JOBS, leader=ME, protocol=protocol)
    herder.obey()
    round_with(herder, {ME: 4, OTHER: 4, THIRD: 999}, protocol)
    dealt, end = herder.computed(), len(herder.config)
    assert (dealt.has_config_mismatch, dealt.config_offset) == (False, end)
    assert (dealt.assignments[THIRD].assigned, dealt.assignments[THIRD].revoked) == (NO_JOBS, NO_JOBS)
    given = [job for one in (dealt.assignments[ME], dealt.assignments[OTHER]) for job in [*one.assigned, *one.revoked]]
    assert given, "the others have their round"
    warned = [order.text for order in herder.take(Say) if order.warns]
    assert len(warned) == 1
    assert f"third-by-name (third:8083) reported config offset 999, but the config topic ends at {end}." in warned[0]
    assert "config.storage.topic" in warned[0]


def test_a_leader_that_most_members_are_ahead_of_reads_another_topic_and_steps_aside() -> None:
    herder = ready()
    round_with(herder, {ME: 4, OTHER: 999, THIRD: 999}, ConnectProtocol.STATIC)
    assert not herder.take(Install), "it knows nothing of the others' configs"
    (abandoned,) = herder.take(Abandon)
    assert "most members have read the config topic to offset 999" in abandoned.reason
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
