"""What a connect group offers the rest of the herder: relaunch, drain and signed requests."""

from coterie.herder.messages import CloseRuntime, Exit, FindConfigLogEnd, RuntimeClosed, StartTask
from coterie.herder.requests.orders import DrainWorker, RestartWorker
from coterie.herder.requests.refusals import SuccessWithoutContent
from coterie.nouns.jobs import NO_JOBS
from coterie.nouns.membership import (
    Leave,
    MembershipSuspended,
    SetConfiguredJobs,
    SetWorkerState,
    SuspendMembership,
)
from tests.herder.builders import BOTH_TASKS, CONNECTOR_LINE, TASK_CONFIG_LINES
from tests.herder.herder_driver import lease_renewed
from tests.herder.targets.connect_driver import HANDOVER, ConnectHerderDriver, configured_driver


def test_a_relaunching_worker_exits_with_what_its_member_hands_over() -> None:
    driver = configured_driver()
    driver.receive(BOTH_TASKS)
    driver.run_all_chores()
    assert driver.answer(driver.send_request(RestartWorker(worker="here:8083"))) == SuccessWithoutContent()
    driver.run_all_chores()
    assert len(driver.pop_effects(CloseRuntime)) == 1
    driver.feed(RuntimeClosed())
    assert len(driver.pop_effects(SuspendMembership)) == 1
    driver.feed(MembershipSuspended(handover=HANDOVER))
    (end,) = driver.pop_effects(Exit)
    assert (end.relaunches, end.handover) == (True, HANDOVER)


def test_the_next_process_starts_the_same_jobs_and_leads_as_before() -> None:
    driver = ConnectHerderDriver(HANDOVER)
    driver.write(CONNECTOR_LINE, *TASK_CONFIG_LINES)
    driver.feed(lease_renewed(sent_at_ms=driver.now_ms))
    driver.open_runtime()
    assert {start.spec.task for start in driver.pop_effects(StartTask)} == BOTH_TASKS.tasks
    assert len(driver.pop_effects(FindConfigLogEnd)) == 1, "a leader reports only when it has read to the end"
    assert not driver.pop_effects(SetConfiguredJobs)


def test_a_drained_worker_leaves_permanently_when_it_owns_no_job() -> None:
    driver = configured_driver()
    driver.receive(BOTH_TASKS)
    driver.run_all_chores()
    assert driver.answer(driver.send_request(DrainWorker(worker="here:8083"))) == SuccessWithoutContent()
    assert [state.draining for state in driver.pop_effects(SetWorkerState)][-1]
    assert not driver.pop_effects(Leave), "its tasks still run here"
    driver.receive(NO_JOBS, revoked=BOTH_TASKS)
    driver.run_all_chores()
    (leave,) = driver.pop_effects(Leave)
    assert leave.is_permanent
