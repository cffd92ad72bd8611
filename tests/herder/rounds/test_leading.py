"""What the group speaks decides how a herder leads, and what it does with its work: eager, and the ways to and from it.

Scenes of K415's "Compatibility, Deprecation, and Migration Plan", with the leader and one follower told by hand.
"""

import pytest

from coterie.herder.messages import AppendStatuses, StartTask, StatusesAppended, StopTask
from coterie.herder.seams import TaskProgressed
from coterie.nouns.ids import ConfigOffset, MemberId, WorkerUrl
from coterie.nouns.jobs import NO_JOBS
from coterie.nouns.membership import Lost, MemberReport, MustReleaseAll, Rejoin, Subscribe
from coterie.wire.connect import ConnectProtocol
from tests.herder.builders import ALL_JOBS, COMPATIBLE, EAGER, SESSIONED, STATIC, TASKS, deal, given, lead, only, ready
from tests.herder.by_hand import ME, OTHER, ROUND, ByHand, wanted

COOPERATIVE = pytest.mark.parametrize("protocol", [COMPATIBLE, SESSIONED, STATIC])


# -- a group that speaks eager ----------------------------------------------------------------------------------------


def test_an_eager_round_deals_everything_out_to_everybody() -> None:
    herder = ready()
    dealt = lead(herder, EAGER, {ME: NO_JOBS, OTHER: NO_JOBS})
    assert given(dealt) == ALL_JOBS
    assert not (dealt.assignments[ME].assigned & dealt.assignments[OTHER].assigned)
    assert {one.revoked for one in dealt.assignments.values()} == {NO_JOBS}
    assert dealt.delay_ms == 0


def test_a_leader_is_not_alone_while_somebody_is_there_that_it_cannot_understand() -> None:
    """Such a member learns by its sync that it is out, and until then goes on with what it had."""
    for left_out in (frozenset({OTHER}), frozenset[MemberId]()):
        herder = ready()
        herder.assign(leader=ME, protocol=STATIC)
        members = {ME: MemberReport(url=WorkerUrl("http://me/"), config_offset=ConfigOffset(len(herder.config)))}
        herder.tell(ROUND)
        herder.tell(wanted(members, generation=2, protocol=EAGER, left_out=left_out))
        assert given(herder.computed()) == (NO_JOBS if left_out else ALL_JOBS)


def test_before_an_eager_round_everything_stops_is_committed_and_told() -> None:
    herder = ready()
    herder.assign(assigned=only(*TASKS), protocol=EAGER)
    herder.obey()
    herder.tell(TaskProgressed(task=TASKS[0], batch_id=0, input_rows=1))
    herder.obey()
    herder.take(Subscribe)
    herder.tell(MustReleaseAll())
    stops = herder.take(StopTask)
    assert {stop.task for stop in stops} == set(TASKS)
    herder.do(stops[0])
    assert NO_JOBS not in [order.owned for order in herder.take(Subscribe)]
    herder.do(stops[1])
    (told,) = herder.take(AppendStatuses)
    assert not herder.take(Subscribe), "what it has to say of its tasks is not written yet"
    herder.do(told)
    for more in herder.take(AppendStatuses):
        herder.do(more)
    assert herder.take(Subscribe)[-1].owned == NO_JOBS


def test_before_an_eager_round_a_task_whose_start_has_not_returned_is_owned_until_it_has_started_and_stopped() -> None:
    herder = ready()
    herder.assign(assigned=only(*TASKS), protocol=EAGER)
    started, blocked = herder.take(StartTask)
    herder.do(started)
    herder.obey()
    herder.take(Subscribe)
    herder.tell(MustReleaseAll())
    (stop,) = herder.take(StopTask)
    assert stop.task == started.start.task, "a stop never overlaps a start of the same task"
    herder.do(stop)
    herder.obey()
    assert herder.take(Subscribe)[-1].owned == only(blocked.start.task)
    herder.do(blocked)
    (stop,) = herder.take(StopTask)
    assert stop.task == blocked.start.task
    herder.do(stop)
    herder.obey()
    assert [order.owned for order in herder.take(Subscribe)] == [NO_JOBS]


def test_statuses_that_cannot_be_written_hold_no_round_up() -> None:
    herder = ready()
    herder.assign(assigned=only(*TASKS), protocol=EAGER)
    herder.obey()
    herder.tell(TaskProgressed(task=TASKS[0], batch_id=0, input_rows=1))
    herder.obey()
    herder.take(Subscribe)
    herder.tell(MustReleaseAll())
    for stop in herder.take(StopTask):
        herder.do(stop)
    assert herder.take(AppendStatuses)
    herder.tell(StatusesAppended(failure="the log is away"))
    assert herder.take(Subscribe)[-1].owned == NO_JOBS


def test_whoever_runs_nothing_says_so_at_once_when_everything_is_to_stop() -> None:
    herder = ready()
    herder.assign(protocol=EAGER)
    herder.obey()
    herder.take(Subscribe)
    herder.tell(MustReleaseAll())
    herder.obey()
    assert [order.owned for order in herder.take(Subscribe)] == [NO_JOBS]


def test_an_eager_assignment_replaces_the_whole_and_goes_on_with_what_is_in_both() -> None:
    herder = ready()
    herder.assign(assigned=only(*TASKS))
    herder.obey()
    herder.assign(assigned=only(TASKS[0]), protocol=EAGER)
    assert [stop.task for stop in herder.take(StopTask)] == [TASKS[1]]
    assert not herder.take(StartTask)
    assert not herder.take(Rejoin), "a follower's business is done"


# -- downgrade --------------------------------------------------------------------------------------------------------


@COOPERATIVE
def test_when_a_cooperative_group_comes_to_speak_eager_nobody_gets_anything_until_all_have_stopped(
    protocol: ConnectProtocol,
) -> None:
    """K415: a one-time double rebalance, the first of it with empty assignments."""
    herder = ready()
    first = lead(herder, protocol, {ME: NO_JOBS, OTHER: NO_JOBS})
    herder.obey()
    assert not herder.take(Rejoin)
    # A third one has come, which speaks eager alone. Nobody has stopped, and nobody says what it runs.
    dealt = lead(
        herder,
        EAGER,
        {ME: first.assignments[ME].assigned, OTHER: first.assignments[OTHER].assigned, MemberId("third"): NO_JOBS},
    )
    assert given(dealt) == NO_JOBS
    herder.obey()  # It stops its own.
    assert not herder.herder.owned
    assert len(herder.take(Rejoin)) == 1, "the leader brings the second round about"
    # Its members have heard of the eager vote, so they have stopped before they joined.
    dealt = lead(herder, EAGER, {ME: NO_JOBS, OTHER: NO_JOBS, MemberId("third"): NO_JOBS})
    assert given(dealt) == ALL_JOBS
    herder.obey()
    assert not herder.take(Rejoin), "once is enough"


def test_a_leader_that_was_not_in_the_round_before_takes_nobody_to_have_stopped() -> None:
    herder = ready()
    assert given(deal(herder, 7, EAGER, {ME: NO_JOBS, OTHER: NO_JOBS})) == NO_JOBS


def test_a_leader_that_missed_a_round_takes_nobody_to_have_stopped() -> None:
    herder = ready()
    lead(herder, EAGER, {ME: NO_JOBS, OTHER: NO_JOBS})
    assert given(deal(herder, 3, EAGER, {ME: NO_JOBS, OTHER: NO_JOBS})) == NO_JOBS


def test_a_leader_that_was_lost_takes_nobody_to_have_stopped() -> None:
    herder = ready()
    lead(herder, EAGER, {ME: NO_JOBS, OTHER: NO_JOBS})
    herder.tell(Lost(reason="silence"))
    assert given(deal(herder, 2, EAGER, {ME: NO_JOBS, OTHER: NO_JOBS})) == NO_JOBS


def test_in_a_group_that_had_no_round_before_and_in_one_of_its_own_nobody_runs_anything() -> None:
    assert given(deal(ready(), 1, EAGER, {ME: NO_JOBS, OTHER: NO_JOBS})) == ALL_JOBS
    assert given(deal(ready(), 7, EAGER, {ME: NO_JOBS})) == ALL_JOBS


def test_a_follower_of_the_last_eager_round_that_leads_the_next_knows_that_all_have_stopped() -> None:
    herder = ready()
    herder.assign(leader=OTHER, protocol=EAGER)
    assert given(deal(herder, 2, EAGER, {ME: NO_JOBS, MemberId("third"): NO_JOBS})) == ALL_JOBS


def test_a_group_that_has_nothing_to_run_needs_no_second_round() -> None:
    herder = ByHand()
    herder.begin()
    herder.assign(protocol=STATIC, leader=ME)
    lead(herder, EAGER, {ME: NO_JOBS, OTHER: NO_JOBS})
    assert not herder.take(Rejoin)


# -- upgrade ----------------------------------------------------------------------------------------------------------


@COOPERATIVE
def test_the_first_cooperative_round_after_an_eager_one_loses_nothing_and_waits_for_nothing(
    protocol: ConnectProtocol,
) -> None:
    """The last eager worker has left: the others stopped everything before they joined, as they were in an eager group,
    and what they ran, and what it ran, is to be dealt out at once."""
    herder = ready()
    # What this leader remembers of the days before the eager ones says nothing any more.
    lead(herder, protocol, {ME: NO_JOBS, OTHER: NO_JOBS, MemberId("third"): NO_JOBS})
    lead(herder, EAGER, {ME: NO_JOBS, OTHER: NO_JOBS, MemberId("third"): NO_JOBS})
    lead(herder, EAGER, {ME: NO_JOBS, OTHER: NO_JOBS, MemberId("third"): NO_JOBS})
    dealt = lead(herder, protocol, {ME: NO_JOBS, OTHER: NO_JOBS})
    assert given(dealt) == ALL_JOBS
    assert dealt.delay_ms == 0
    # From now on it is as ever: who leaves is waited for, and what was not his goes on.
    dealt = lead(herder, protocol, {ME: dealt.assignments[ME].assigned})
    assert given(dealt) == NO_JOBS
    assert dealt.delay_ms == 300_000


def test_a_delay_that_was_running_when_the_group_came_to_speak_eager_is_over() -> None:
    herder = ready()
    herder.assign(delay_ms=60_000, leader=ME, protocol=STATIC)
    lead(herder, EAGER, {ME: NO_JOBS, OTHER: NO_JOBS})
    lead(herder, EAGER, {ME: NO_JOBS, OTHER: NO_JOBS})
    dealt = lead(herder, STATIC, {ME: NO_JOBS, OTHER: NO_JOBS})
    assert (given(dealt), dealt.delay_ms) == (ALL_JOBS, 0)


# -- who may claim ----------------------------------------------------------------------------------------------------


def test_a_worker_that_claims_all_jobs_is_given_them() -> None:
    dealt = deal(ready(), 1, STATIC, {ME: NO_JOBS, OTHER: NO_JOBS}, {OTHER: ALL_JOBS})
    assert dealt.assignments[OTHER].assigned == ALL_JOBS
