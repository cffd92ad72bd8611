"""A worker that relaunches its process, and the next process, which continues the membership."""

from coterie.herder.messages import (
    CloseRequestIntake,
    CloseRuntime,
    Exit,
    FindConfigLogEnd,
    RequestIntakeClosed,
    RuntimeClosed,
    SetTimer,
    ShutdownOrdered,
    StartTask,
    StopTask,
    TimerFired,
)
from coterie.herder.requests.orders import DrainWorker, RestartWorker
from coterie.herder.requests.refusals import Problem, RequestRefused, SuccessWithoutContent
from coterie.herder.requests.writes import DeleteConnector, SetTargetState
from coterie.nouns.jobs import NO_JOBS
from coterie.nouns.member_state import MemberState
from coterie.nouns.membership import ClassicMembershipHandover, Handover, Leave, MembershipLost, Rejoin, SetWorkerState
from coterie.nouns.states import JobState, TargetState
from tests.herder.builders import BOTH_TASKS, DELETED, FIRST, ORDERS, STATIC, assigned_jobs, compute_round, working
from tests.herder.herder_driver import ME, OTHER, ROUND, HerderDriver, lease_renewed


def restart_to_exit(driver: HerderDriver) -> Exit:
    """Run a restart until the process exits."""
    assert driver.answer(driver.send_request(RestartWorker(worker="here:8083"))) == SuccessWithoutContent()
    driver.run_all_chores()
    assert len(driver.pop_effects(CloseRuntime)) == 1
    driver.feed(RuntimeClosed())
    (end,) = driver.pop_effects(Exit)
    return end


def next_process(place: Handover | None, previous: HerderDriver) -> HerderDriver:
    driver = HerderDriver(place)
    driver.generation = previous.generation
    driver.write(*previous.config)
    return driver


def test_a_restart_stops_all_tasks_and_keeps_all_jobs() -> None:
    driver = working()
    driver.send_request(RestartWorker(worker="here:8083"))
    assert {stop.task for stop in driver.pop_effects(StopTask)} == BOTH_TASKS.tasks
    assert all(state.owned == BOTH_TASKS for state in driver.pop_effects(SetWorkerState)), (
        "the group still counts them as owned"
    )
    assert not driver.pop_effects(CloseRuntime), "the tasks have not stopped"


def test_a_restarting_worker_exits_with_a_handover_and_without_leaving() -> None:
    driver = working()
    end = restart_to_exit(driver)
    assert (end.exit_code, end.relaunches) == (0, True)
    assert isinstance(end.handover, ClassicMembershipHandover)
    assert (end.handover.jobs, end.handover.member_id, end.handover.generation) == (BOTH_TASKS, ME, 1)
    assert not end.handover.must_start_rebalance, "a follower needs no rejoin"
    assert not driver.pop_effects(Leave)
    status_by_task = {str(task): driver.herder.statuses.get(task) for task in BOTH_TASKS.tasks}
    assert {status.state for status in status_by_task.values() if status is not None} == {JobState.RESTARTING}


def test_a_restart_with_invalid_settings_is_refused_and_stops_nothing() -> None:
    driver = working()
    answer = driver.answer(
        driver.send_request(RestartWorker(worker="here:8083", settings_error="worker.properties cannot be read"))
    )
    assert answer == RequestRefused(
        problem=Problem.NOT_POSSIBLE,
        message="here was not restarted: it could not start with its current settings. "
        "worker.properties cannot be read",
    )
    driver.run_all_chores()
    assert not driver.pop_effects(StopTask)
    assert not driver.herder.lifecycle.is_relaunching


def test_a_restarted_leader_requests_a_rejoin_to_receive_its_members_reports() -> None:
    driver = working()
    driver.assign(leader=ME, protocol=STATIC)
    end = restart_to_exit(driver)
    assert isinstance(end.handover, ClassicMembershipHandover)
    assert end.handover.must_start_rebalance
    next_driver = next_process(end.handover, driver)
    next_driver.feed(lease_renewed(sent_at_ms=next_driver.now_ms))
    assert not next_driver.pop_effects(Rejoin), "not before the runtime is open"
    next_driver.open_runtime()
    assert len(next_driver.pop_effects(Rejoin)) == 1


def test_a_leader_restarted_during_a_delay_continues_it() -> None:
    driver = working()
    driver.assign(leader=ME, protocol=STATIC, delay_ms=300_000)
    ends_ms = driver.now_ms + 300_000
    end = restart_to_exit(driver)
    next_driver = next_process(end.handover, driver)
    next_driver.now_ms = driver.now_ms + 5_000
    next_driver.open_runtime()
    assert [timer.at_ms for timer in next_driver.pop_effects(SetTimer) if timer.timer == "delay over"] == [ends_ms]
    computed = compute_round(next_driver, next_driver.generation + 1, STATIC, {ME: FIRST, OTHER: NO_JOBS})
    assert assigned_jobs(computed) == NO_JOBS, "the departed worker may return"
    assert computed.delay_ms == 295_000
    late_driver = next_process(end.handover, driver)
    late_driver.now_ms = ends_ms
    late_driver.open_runtime()
    computed = compute_round(late_driver, late_driver.generation + 1, STATIC, {ME: FIRST, OTHER: NO_JOBS})
    assert assigned_jobs(computed) == late_driver.herder.config.jobs() - FIRST


def test_a_follower_restarted_during_a_delay_requests_a_rejoin_at_its_end() -> None:
    driver = working()
    driver.assign(protocol=STATIC, delay_ms=300_000)
    next_driver = next_process(restart_to_exit(driver).handover, driver)
    next_driver.open_runtime()
    next_driver.feed(lease_renewed(sent_at_ms=next_driver.now_ms))
    assert not next_driver.pop_effects(Rejoin)
    next_driver.now_ms += 300_000
    next_driver.feed(TimerFired(timer="delay over"))
    assert len(next_driver.pop_effects(Rejoin)) == 1


def test_a_rebalance_during_a_restart_changes_the_handover() -> None:
    driver = working()
    driver.send_request(RestartWorker(worker="here:8083"))
    driver.feed(ROUND)
    driver.run_all_chores()
    assert not driver.pop_effects(CloseRuntime), "the end of the rebalance decides the handover"
    driver.assign(revoked=FIRST, protocol=STATIC)
    driver.run_all_chores()
    driver.feed(ROUND)
    driver.assign(protocol=STATIC)
    assert len(driver.pop_effects(CloseRuntime)) == 1
    driver.feed(RuntimeClosed())
    (end,) = driver.pop_effects(Exit)
    assert end.handover is not None
    assert end.handover.jobs == BOTH_TASKS - FIRST


def test_a_restart_waits_only_for_a_limited_time_for_stops() -> None:
    driver = working()
    driver.send_request(RestartWorker(worker="here:8083"))
    driver.feed(TimerFired(timer="relaunch"))
    assert len(driver.pop_effects(CloseRuntime)) == 1


def test_a_worker_that_loses_its_membership_while_it_restarts_begins_as_a_new_member() -> None:
    driver = working()
    driver.send_request(RestartWorker(worker="here:8083"))
    driver.feed(MembershipLost(reason="the session is over"))
    driver.run_all_chores()
    driver.feed(TimerFired(timer="relaunch"))
    driver.feed(RuntimeClosed())
    (end,) = driver.pop_effects(Exit)
    assert (end.relaunches, end.handover) == (True, None)


def test_a_leader_that_stops_serves_writes_until_its_tasks_have_stopped_and_leaves_when_all_are_answered() -> None:
    driver = working()
    driver.assign(leader=ME)
    driver.feed(ShutdownOrdered(reason="SIGTERM"))
    paused, deleted = (
        driver.send_request(SetTargetState(connector=ORDERS, target_state=TargetState.PAUSED)),
        driver.send_request(DeleteConnector(connector=ORDERS)),
    )
    lookups = driver.pop_effects(FindConfigLogEnd)
    driver.run_all_chores()
    assert not driver.pop_effects(Leave), "two writes have reached it"
    for lookup in lookups:
        driver.run_chore(lookup)
    assert not driver.pop_effects(Leave), "the second write is not answered"
    driver.run_all_chores()
    assert (driver.answer(paused), driver.answer(deleted)) == (SuccessWithoutContent(), DELETED)
    assert len(driver.pop_effects(Leave)) == 1
    late = driver.answer(driver.send_request(DeleteConnector(connector=ORDERS)))
    assert isinstance(late, RequestRefused)
    assert late.problem is Problem.SHUTTING_DOWN


def test_a_restarting_leader_answers_its_writes_before_its_runtime_closes() -> None:
    driver = working()
    driver.assign(leader=ME)
    driver.send_request(RestartWorker(worker="here:8083"))
    deleted = driver.send_request(DeleteConnector(connector=ORDERS))
    (lookup,) = driver.pop_effects(FindConfigLogEnd)
    driver.run_all_chores()
    assert not driver.pop_effects(CloseRuntime), "a write has reached it"
    driver.run_chore(lookup)
    driver.run_all_chores()
    assert driver.answer(deleted) == DELETED
    assert len(driver.pop_effects(CloseRuntime)) == 1


def test_a_worker_whose_tasks_do_not_stop_accepts_no_more_requests_after_their_grace_period() -> None:
    driver = working()
    driver.feed(ShutdownOrdered(reason="SIGTERM"))
    assert not driver.pop_effects(CloseRequestIntake)
    (due,) = (timer for timer in driver.pop_effects(SetTimer) if timer.timer == "last requests")
    assert due.at_ms == driver.now_ms + driver.herder.settings.stop_grace_ms
    driver.feed(TimerFired(timer=due.timer))
    assert len(driver.pop_effects(CloseRequestIntake)) == 1
    driver.feed(RequestIntakeClosed())
    assert not driver.pop_effects(Leave), "its tasks still run"
    driver.run_all_chores()
    assert len(driver.pop_effects(Leave)) == 1
    assert not driver.pop_effects(CloseRequestIntake), "it was ordered before"


def test_sigterm_ends_a_restarting_worker() -> None:
    driver = working()
    driver.send_request(RestartWorker(worker="here:8083"))
    driver.feed(ShutdownOrdered(reason="SIGTERM"))
    driver.run_all_chores()
    driver.feed(RuntimeClosed())
    assert not driver.pop_effects(Exit), "it leaves the group first"
    assert len(driver.pop_effects(Leave)) == 1


def test_a_restarting_worker_refuses_orders() -> None:
    driver = working()
    driver.send_request(RestartWorker(worker="here:8083"))
    answer = driver.answer(driver.send_request(DrainWorker(worker="here:8083")))
    assert isinstance(answer, RequestRefused)
    assert answer.problem is Problem.SHUTTING_DOWN


# -- the next process -------------------------------------------------------------------------------------------------


def test_the_next_process_starts_the_same_jobs_after_a_lease_renewal_with_an_open_runtime() -> None:
    driver = working()
    next_driver = next_process(restart_to_exit(driver).handover, driver)
    assert (
        next_driver.herder.owned_jobs,
        next_driver.herder.place.member_state,
        next_driver.herder.place.has_current_assignment,
    ) == (
        BOTH_TASKS,
        MemberState.STABLE,
        True,
    )
    next_driver.open_runtime()
    assert not next_driver.pop_effects(StartTask), "the jobs may have been assigned to other workers"
    next_driver.feed(lease_renewed(sent_at_ms=next_driver.now_ms))
    assert {start.spec.task for start in next_driver.pop_effects(StartTask)} == BOTH_TASKS.tasks


def test_a_lease_renewed_before_the_runtime_is_open_starts_tasks_when_it_opens() -> None:
    driver = working()
    next_driver = next_process(restart_to_exit(driver).handover, driver)
    next_driver.feed(lease_renewed(sent_at_ms=next_driver.now_ms))
    assert not next_driver.pop_effects(StartTask)
    next_driver.open_runtime()
    assert {start.spec.task for start in next_driver.pop_effects(StartTask)} == BOTH_TASKS.tasks


def test_after_a_loss_of_the_handed_over_membership_nothing_is_started() -> None:
    driver = working()
    next_driver = next_process(restart_to_exit(driver).handover, driver)
    next_driver.feed(MembershipLost(reason="the coordinator has removed this member (UNKNOWN_MEMBER_ID)"))
    next_driver.pop_effects(SetWorkerState)
    next_driver.feed(lease_renewed(sent_at_ms=next_driver.now_ms))
    next_driver.run_all_chores()
    assert not next_driver.pop_effects(SetWorkerState), "it joins like any worker: when the runtime is open"
    next_driver.open_runtime()
    next_driver.run_all_chores()
    assert [state.owned for state in next_driver.pop_effects(SetWorkerState)] == [NO_JOBS]
    assert next_driver.herder.owned_jobs == NO_JOBS
    assert not next_driver.pop_effects(StartTask)
