"""A worker that drains to leave permanently, and a drain that is cancelled."""

from dataclasses import replace

from coterie.herder.messages import Exit, GroupLeft, ShutdownOrdered, StopTask, WriteLogMessage
from coterie.herder.requests.orders import DrainWorker, RestartWorker, UncordonWorker
from coterie.herder.requests.refusals import Problem, RequestRefused, SuccessWithoutContent
from coterie.herder.requests.views import DescribeWorker, WorkerView
from coterie.nouns.jobs import NO_JOBS
from coterie.nouns.membership import Leave, MembershipLost, Rejoin, SetWorkerState
from coterie.wire.connect import ConnectProtocol
from tests.herder.builders import BOTH_TASKS, FIRST, STATIC, working
from tests.herder.herder_driver import ROUND, HerderDriver


def last_worker_state(driver: HerderDriver) -> SetWorkerState:
    return driver.pop_effects(SetWorkerState)[-1]


def test_a_drain_is_reported_in_the_next_join_and_requests_a_rejoin_while_the_tasks_run() -> None:
    driver = working()
    assert driver.answer(driver.send_request(DrainWorker(worker="here:8083"))) == SuccessWithoutContent()
    sent = last_worker_state(driver)
    assert (sent.draining, sent.owned) == (True, BOTH_TASKS)
    assert [rejoin.reason for rejoin in driver.pop_effects(Rejoin)] == ["this worker drains"]
    assert not driver.pop_effects(StopTask)
    driver.send_request(DrainWorker(worker="here:8083"))
    assert not driver.pop_effects(Rejoin), "reported once"


def test_a_draining_worker_leaves_permanently_when_all_its_jobs_are_revoked_and_stopped() -> None:
    driver = working()
    driver.send_request(DrainWorker(worker="here:8083"))
    driver.feed(ROUND)
    driver.assign(revoked=FIRST, protocol=STATIC)
    driver.run_all_chores()
    driver.feed(ROUND)
    assert not driver.pop_effects(Leave), "the second task still runs"
    driver.assign(revoked=BOTH_TASKS - FIRST, protocol=STATIC)
    driver.run_all_chores()
    assert last_worker_state(driver).owned == NO_JOBS
    assert not driver.pop_effects(Leave), "not before the next rebalance has assigned its jobs to other workers"
    driver.feed(ROUND)
    driver.assign(protocol=STATIC)
    driver.run_all_chores()
    assert [leave.is_permanent for leave in driver.pop_effects(Leave)] == [True]
    driver.feed(GroupLeft())
    assert [end.exit_code for end in driver.pop_effects(Exit)] == [0]


def test_a_cancelled_drain_is_reported_in_the_next_join_and_the_worker_stays() -> None:
    driver = working()
    driver.send_request(DrainWorker(worker="here:8083"))
    driver.feed(ROUND)
    driver.assign(revoked=BOTH_TASKS, protocol=STATIC)
    driver.run_all_chores()
    driver.pop_effects(Rejoin)
    assert driver.answer(driver.send_request(UncordonWorker(worker="here:8083"))) == SuccessWithoutContent()
    assert not last_worker_state(driver).draining
    assert len(driver.pop_effects(Rejoin)) == 1
    driver.feed(ROUND)
    driver.assign(assigned=FIRST, protocol=STATIC)
    driver.run_all_chores()
    assert not driver.pop_effects(Leave)


def test_a_drain_ordered_during_a_rebalance_is_reported_in_the_next_one() -> None:
    driver = working()
    driver.feed(ROUND)
    driver.send_request(DrainWorker(worker="here:8083"))
    assert not driver.pop_effects(Rejoin), "the join may have been sent already"
    driver.assign(protocol=STATIC)
    assert len(driver.pop_effects(Rejoin)) == 1


def test_a_drain_continues_after_a_lost_membership() -> None:
    driver = working()
    driver.send_request(DrainWorker(worker="here:8083"))
    driver.feed(MembershipLost(reason="the session is over"))
    driver.run_all_chores()
    assert last_worker_state(driver).draining, "it joins again as a draining worker"
    assert not driver.pop_effects(Leave), "not before the next rebalance shows that it is assigned nothing"
    driver.feed(ROUND)
    driver.assign(protocol=STATIC)
    driver.run_all_chores()
    assert len(driver.pop_effects(Leave)) == 1


def test_sigterm_ends_a_draining_worker_like_any_other() -> None:
    driver = working()
    driver.send_request(DrainWorker(worker="here:8083"))
    driver.feed(ShutdownOrdered(reason="SIGTERM"))
    driver.run_all_chores()
    assert [leave.is_permanent for leave in driver.pop_effects(Leave)] == [False], (
        "not permanently: its jobs are deferred until it returns"
    )


def test_a_drain_is_refused_if_the_groups_protocol_cannot_announce_it() -> None:
    for protocol in ConnectProtocol:
        if protocol < STATIC:
            driver = working(protocol)
            answer = driver.answer(driver.send_request(DrainWorker(worker="here:8083")))
            assert isinstance(answer, RequestRefused)
            assert answer.problem is Problem.NOT_POSSIBLE
            assert f"uses protocol {protocol.setting}" in answer.message
            assert not driver.herder.lifecycle.is_draining


def test_a_drain_waits_with_a_warning_while_the_group_uses_an_older_protocol() -> None:
    driver = working()
    driver.send_request(DrainWorker(worker="here:8083"))
    for protocol, is_warning in ((STATIC, False), (ConnectProtocol.SESSIONED, True), (STATIC, False)):
        driver.feed(ROUND)
        driver.assign(protocol=protocol)
        warnings = [sent.text for sent in driver.pop_effects(WriteLogMessage) if sent.is_warning]
        assert (
            any("The drain of this worker waits: the group uses protocol sessioned" in text for text in warnings)
            is is_warning
        )
        view = driver.answer(driver.send_request(DescribeWorker()))
        assert isinstance(view, WorkerView)
        assert view.draining
        assert (view.drain_wait_reason is not None) is is_warning
    assert driver.herder.lifecycle.is_draining


def test_a_drain_is_refused_without_a_membership() -> None:
    driver = HerderDriver()
    driver.open_runtime()
    answer = driver.answer(driver.send_request(DrainWorker(worker="here:8083")))
    assert isinstance(answer, RequestRefused)
    assert answer.problem is Problem.NO_LEADER


def test_a_draining_worker_is_not_restarted() -> None:
    driver = working()
    driver.send_request(DrainWorker(worker="here:8083"))
    answer = driver.answer(driver.send_request(RestartWorker(worker="here:8083")))
    assert isinstance(answer, RequestRefused)
    assert answer.problem is Problem.NOT_POSSIBLE


MOVES_JOBS_AND_RESTARTS = RestartWorker(worker="here:8083", moves_jobs=True)


def move_all_jobs(driver: HerderDriver) -> None:
    driver.feed(ROUND)
    driver.assign(revoked=BOTH_TASKS, protocol=STATIC)
    driver.run_all_chores()
    driver.feed(ROUND)
    driver.assign(protocol=STATIC)
    driver.run_all_chores()


def drained_before_its_restart() -> HerderDriver:
    """A worker that was ordered to move its jobs and to restart, and has no job any more."""
    driver = working()
    assert driver.answer(driver.send_request(MOVES_JOBS_AND_RESTARTS)) == SuccessWithoutContent()
    assert driver.answer(driver.send_request(MOVES_JOBS_AND_RESTARTS)) == SuccessWithoutContent(), (
        "it has begun already"
    )
    assert not driver.pop_effects(StopTask), "its jobs run until they move"
    move_all_jobs(driver)
    return driver


def test_a_worker_that_moves_its_jobs_leaves_and_restarts_as_a_new_member() -> None:
    driver = drained_before_its_restart()
    (leave,) = driver.pop_effects(Leave)
    assert leave.is_permanent, "the group does not wait for it"
    driver.feed(GroupLeft())
    (end,) = driver.pop_effects(Exit)
    assert (end.exit_code, end.relaunches, end.handover) == (0, True, None)


def test_sigterm_ends_a_worker_that_has_moved_its_jobs_instead_of_restarting_it() -> None:
    driver = drained_before_its_restart()
    driver.feed(ShutdownOrdered(reason="SIGTERM"))
    driver.feed(GroupLeft())
    (end,) = driver.pop_effects(Exit)
    assert (end.exit_code, end.relaunches, end.reason) == (0, False, "SIGTERM")


def test_a_restart_that_moves_jobs_can_be_cancelled_or_made_a_drain() -> None:
    driver = working()
    driver.send_request(MOVES_JOBS_AND_RESTARTS)
    refused = driver.answer(driver.send_request(RestartWorker(worker="here:8083")))
    assert isinstance(refused, RequestRefused)
    assert "moves its jobs and then restarts" in refused.message
    assert driver.answer(driver.send_request(UncordonWorker(worker="here:8083"))) == SuccessWithoutContent()
    assert not driver.herder.lifecycle.is_draining

    driver.send_request(MOVES_JOBS_AND_RESTARTS)
    assert driver.answer(driver.send_request(DrainWorker(worker="here:8083"))) == SuccessWithoutContent()
    refused = driver.answer(driver.send_request(MOVES_JOBS_AND_RESTARTS))
    assert isinstance(refused, RequestRefused)
    assert "exits when the drain is complete" in refused.message
    move_all_jobs(driver)
    driver.feed(GroupLeft())
    (end,) = driver.pop_effects(Exit)
    assert not end.relaunches


def test_a_restart_that_moves_jobs_is_refused_with_invalid_settings_and_without_a_membership() -> None:
    driver = working()
    order = replace(MOVES_JOBS_AND_RESTARTS, settings_error="worker.properties cannot be read")
    refused = driver.answer(driver.send_request(order))
    assert isinstance(refused, RequestRefused)
    assert (refused.problem, driver.herder.lifecycle.is_draining) == (Problem.NOT_POSSIBLE, False)
    driver = HerderDriver()
    driver.open_runtime()
    refused = driver.answer(driver.send_request(MOVES_JOBS_AND_RESTARTS))
    assert isinstance(refused, RequestRefused)
    assert refused.problem is Problem.NO_LEADER


def test_an_order_for_another_worker_is_redirected_to_the_leader() -> None:
    driver = working()
    answer = driver.answer(driver.send_request(DrainWorker(worker="there")))
    assert isinstance(answer, RequestRefused)
    assert (answer.problem, answer.redirect_url) == (Problem.NOT_LEADER, "http://leader:8083/")
