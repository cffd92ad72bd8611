"""What the listeners of a worker's rebalances are told: in which order, and after which starts and stops."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.herder.config_records import target_state_line
from coterie.herder.messages import (
    Event,
    NotifyRebalanceListeners,
    RuntimeOpened,
    ShutdownOrdered,
    StartTask,
    StopTask,
    TaskStarted,
    TaskStartFailed,
    TaskStopped,
)
from coterie.herder.requests.orders import RestartWorker
from coterie.herder.seams import JobsAssigned, JobsLost, JobsRevoked
from coterie.nouns.ids import GroupEpoch
from coterie.nouns.jobs import NO_JOBS, Job, Jobs
from coterie.nouns.membership import Leave, MembershipLost, SetWorkerState
from coterie.nouns.states import TargetState
from coterie.nouns.target_assignments import TargetOfMember
from tests.herder.builders import (
    ALL_JOBS,
    BOTH_TASKS,
    CONNECTOR_LINE,
    FIRST,
    ORDERS,
    TASK_CONFIG_LINES,
    TASKS,
    working,
)
from tests.herder.herder_driver import WALL_MS, lease_renewed
from tests.herder.targets.connect_driver import HANDOVER, ConnectHerderDriver, configured_driver

SECOND = BOTH_TASKS - FIRST
HANDED_ON = JobsAssigned(
    jobs=BOTH_TASKS,
    assignment_epoch=HANDOVER.assignment_epoch,
    assignment=TargetOfMember(jobs=BOTH_TASKS, version=HANDOVER.version, metadata=HANDOVER.metadata),
)


def working_driver(jobs: Jobs = BOTH_TASKS) -> ConnectHerderDriver:
    """A worker that runs ``jobs``, of which the listeners were told."""
    driver = configured_driver()
    driver.receive(jobs)
    driver.run_all_chores()
    assert driver.news()
    return driver


def assigned(jobs: Jobs, *, all_jobs: Jobs | None = None, epoch: int = 1) -> JobsAssigned:
    """The news of the assignment of ``jobs``; they are all jobs of the worker, unless ``all_jobs`` is given."""
    target = TargetOfMember(jobs=jobs if all_jobs is None else all_jobs)
    return JobsAssigned(jobs=jobs, assignment_epoch=GroupEpoch(epoch), assignment=target)


# -- assigned ---------------------------------------------------------------------------------------------------------


def test_an_assignment_is_announced_once_when_the_last_of_its_tasks_was_started() -> None:
    driver = configured_driver()
    driver.receive(ALL_JOBS)
    assert driver.news() == [], "no start has returned"
    driver.feed(TaskStarted(task=TASKS[0]))
    assert driver.news() == []
    driver.feed(TaskStarted(task=TASKS[1]))
    assert driver.news() == [assigned(ALL_JOBS)]
    driver.receive(ALL_JOBS)
    assert driver.news() == [], "nothing is new"


def test_a_start_that_fails_and_a_job_that_is_not_to_run_delay_no_announcement() -> None:
    driver = configured_driver()
    driver.receive(FIRST)
    driver.feed(TaskStartFailed(task=TASKS[0], trace="no"))
    assert driver.news() == [assigned(FIRST)]
    driver.write(target_state_line(ORDERS, TargetState.PAUSED))
    driver.receive(ALL_JOBS)
    assert driver.news() == [assigned(ALL_JOBS - FIRST, all_jobs=ALL_JOBS, epoch=2)]


def test_the_announcement_contains_all_jobs_and_the_message_of_the_assignor() -> None:
    driver = working_driver(FIRST)
    driver.receive(BOTH_TASKS, metadata=b"hello")
    driver.run_all_chores()
    (news,) = driver.news()
    assert news == JobsAssigned(
        jobs=SECOND,
        assignment_epoch=GroupEpoch(2),
        assignment=TargetOfMember(jobs=BOTH_TASKS, version=1, metadata=b"hello"),
    )


def test_an_assignment_that_this_worker_cannot_start_yet_is_not_announced() -> None:
    driver = ConnectHerderDriver()
    driver.write(CONNECTOR_LINE, *TASK_CONFIG_LINES)
    driver.receive(ALL_JOBS)
    assert driver.news() == [], "the runtime is not open"
    driver.feed(RuntimeOpened(wall_clock_ms=WALL_MS))
    driver.run_all_chores()
    assert driver.news() == [assigned(ALL_JOBS)]


def test_a_relaunch_announces_nothing_and_the_next_process_announces_all_jobs_of_a_confirmed_membership() -> None:
    driver = working_driver()
    driver.send_request(RestartWorker(worker="here:8083"))
    driver.run_all_chores()
    assert driver.news() == []
    following = ConnectHerderDriver(HANDOVER)
    following.write(CONNECTOR_LINE, *TASK_CONFIG_LINES)
    following.open_runtime()
    assert following.news() == [], "no heartbeat was answered"
    following.feed(lease_renewed(sent_at_ms=following.now_ms))
    following.run_all_chores()
    assert following.news() == [HANDED_ON]


def test_an_assignment_waits_for_the_lines_of_the_config_topic_from_which_it_was_computed() -> None:
    driver = ConnectHerderDriver()
    driver.open_runtime()
    driver.write(CONNECTOR_LINE, read=False)
    driver.receive(ALL_JOBS)
    assert driver.news() == [], "the configs are not read"


@pytest.mark.parametrize("is_opened_first", [True, False])
def test_paused_jobs_of_a_relaunched_worker_wait_for_its_runtime_and_an_answered_heartbeat(
    is_opened_first: bool,
) -> None:
    driver = ConnectHerderDriver(HANDOVER)
    driver.write(CONNECTOR_LINE, *TASK_CONFIG_LINES, target_state_line(ORDERS, TargetState.PAUSED))
    events: list[Event] = [RuntimeOpened(wall_clock_ms=WALL_MS), lease_renewed(sent_at_ms=driver.now_ms)]
    first, second = events if is_opened_first else reversed(events)
    driver.feed(first)
    assert driver.news() == []
    driver.feed(second)
    assert driver.news() == [HANDED_ON]


def test_a_relaunch_while_tasks_start_announces_nothing() -> None:
    driver = configured_driver()
    driver.receive(BOTH_TASKS)
    driver.send_request(RestartWorker(worker="here:8083"))
    driver.run_all_chores()
    assert driver.news() == []


# -- revoked and lost -------------------------------------------------------------------------------------------------


def test_revoked_jobs_are_announced_once_after_the_last_stop_and_delay_no_acknowledgement() -> None:
    driver = working_driver(ALL_JOBS)
    driver.receive(NO_JOBS, revoked=ALL_JOBS)
    driver.pop_effects(SetWorkerState)
    driver.feed(TaskStopped(task=TASKS[0]))
    (acknowledgement,) = driver.pop_effects(SetWorkerState)
    assert acknowledgement.owned == SECOND
    assert driver.news() == []
    driver.feed(TaskStopped(task=TASKS[1]))
    assert driver.news() == [JobsRevoked(jobs=ALL_JOBS)]
    assert not driver.pop_effects(SetWorkerState)[0].owned


def test_a_slow_stop_delays_no_announcement_of_other_jobs() -> None:
    driver = working_driver(FIRST)
    driver.receive(SECOND, revoked=FIRST)
    (stop,) = driver.pop_effects(StopTask)
    driver.run_all_chores()
    assert driver.news() == [assigned(SECOND, epoch=2)]
    driver.run_chore(stop)
    assert driver.news() == [JobsRevoked(jobs=FIRST)]


def test_a_job_that_is_revoked_before_it_was_announced_is_not_announced() -> None:
    driver = configured_driver()
    driver.receive(BOTH_TASKS)
    starts = driver.pop_effects(StartTask)
    driver.receive(SECOND, revoked=FIRST)
    for start in starts:
        driver.run_chore(start)
    driver.run_all_chores()
    assert driver.news() == [assigned(SECOND, epoch=2)]


@pytest.mark.parametrize(
    ("lost", "news"),
    [
        (MembershipLost(reason="the coordinator responded UNKNOWN_MEMBER_ID"), JobsRevoked(jobs=BOTH_TASKS)),
        (MembershipLost(reason="no response", has_lease_ended=True), JobsLost(jobs=BOTH_TASKS)),
    ],
    ids=["fenced", "lease ended"],
)
def test_after_a_loss_all_jobs_are_announced_before_the_worker_joins_again(
    lost: MembershipLost, news: JobsRevoked | JobsLost
) -> None:
    driver = working_driver()
    driver.effects.clear()
    driver.feed(lost)
    for stop in driver.pop_effects(StopTask):
        assert driver.news() == []
        driver.run_chore(stop)
    kinds = [effect for effect in driver.effects if isinstance(effect, NotifyRebalanceListeners | SetWorkerState)]
    assert kinds[-2] == NotifyRebalanceListeners(news=news)
    assert isinstance(kinds[-1], SetWorkerState), "the join"
    assert not kinds[-1].owned
    driver.effects.clear()
    driver.receive(FIRST)
    driver.run_all_chores()
    driver.receive(NO_JOBS, revoked=FIRST)
    driver.run_all_chores()
    assert driver.news() == [assigned(FIRST, epoch=2), JobsRevoked(jobs=FIRST)], "the loss is over"


def test_a_worker_that_shuts_down_announces_its_jobs_as_revoked_before_it_leaves() -> None:
    driver = working_driver()
    driver.effects.clear()
    driver.feed(ShutdownOrdered(reason="SIGTERM"))
    driver.run_all_chores()
    notified, left = (
        [number for number, effect in enumerate(driver.effects) if isinstance(effect, kind)]
        for kind in (NotifyRebalanceListeners, Leave)
    )
    assert driver.news() == [JobsRevoked(jobs=BOTH_TASKS)]
    assert notified < left


def test_a_classic_group_announces_nothing() -> None:
    driver = working()
    driver.assign(revoked=BOTH_TASKS)
    driver.run_all_chores()
    assert not driver.pop_effects(NotifyRebalanceListeners)


# -- any order of events ----------------------------------------------------------------------------------------------

JOBS: list[Job] = [ORDERS, *TASKS]
ASSIGNMENTS = st.frozensets(st.sampled_from(JOBS)).map(Jobs.of)
EVENTS = st.lists(
    st.one_of(ASSIGNMENTS, st.sampled_from(["lost", "fenced", "chore", "failure", "pause", "start"])), max_size=25
)


@given(EVENTS)
def test_each_job_is_announced_by_turns_as_assigned_and_as_stopped(events: list[Jobs | str]) -> None:
    driver = configured_driver()
    held = NO_JOBS
    for event in [*events, "start", ALL_JOBS]:
        match event:
            case Jobs() as jobs:
                driver.receive(jobs, revoked=driver.herder.place.assigned - jobs)
            case "lost" | "fenced":
                driver.feed(MembershipLost(reason="chance", has_lease_ended=event == "lost"))
            case "pause" | "start":
                state = TargetState.PAUSED if event == "pause" else TargetState.STARTED
                driver.write(target_state_line(ORDERS, state))
            case _:
                orders = [order for order in driver.effects if isinstance(order, StartTask | StopTask)]
                for order in orders[:1]:
                    driver.effects.remove(order)
                    if event == "failure" and isinstance(order, StartTask):
                        driver.feed(TaskStartFailed(task=order.spec.task, trace="no"))
                    else:
                        driver.run_chore(order)
        held = after_news(driver, held)
    driver.run_all_chores()
    assert after_news(driver, held) == ALL_JOBS


def after_news(driver: ConnectHerderDriver, held: Jobs) -> Jobs:
    """The jobs that a listener believes to run here, after the news since the last call; it believed ``held``."""
    active = Jobs(tasks=driver.herder.work.tasks_that_may_hold_checkpoint)
    for news in driver.news():
        match news:
            case JobsAssigned(jobs=jobs, assignment=target):
                assert jobs
                assert not held & jobs, "announced twice"
                assert jobs <= target.jobs <= held | jobs
                held |= jobs
            case JobsRevoked(jobs=jobs) | JobsLost(jobs=jobs):
                assert jobs
                assert jobs <= held, "stopped, and never announced"
                assert not active & jobs, "it may still run"
                held -= jobs
    return held
