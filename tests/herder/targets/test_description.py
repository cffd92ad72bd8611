"""Requests about the group wait for the coordinator's description; the leader reports the jobs without a worker."""

from dataclasses import replace

import pytest

from coterie.herder.messages import Event, RequestArrived, ShutdownOrdered, TimerFired
from coterie.herder.requests.ids import RequestId
from coterie.herder.requests.orders import CancelDrain, DrainWorker, RestartWorker, WorkerOrder
from coterie.herder.requests.refusals import Problem, RequestRefused, SuccessWithoutContent
from coterie.herder.requests.views import DescribeWorkerGroup, GroupView
from coterie.nouns.ids import Incarnation
from coterie.nouns.jobs import NO_JOBS
from coterie.nouns.membership import GroupDescribed, Leave, RequestGroupDescription
from coterie.nouns.states import JobState
from coterie.nouns.target_assignments import UnplaceableJobs
from tests.herder.builders import BOTH_TASKS, FIRST
from tests.herder.herder_driver import ME, OTHER
from tests.herder.targets.connect_driver import OTHER_URL, configured_driver, described_group, described_member

GROUP = described_group(described_member(ME, assigned=FIRST), described_member(OTHER, assigned=BOTH_TASKS - FIRST))

RESTART = RequestArrived(
    id=RequestId(99), request=RestartWorker(worker="here:8083"), fresh_incarnation=Incarnation("incarnation-99")
)


def test_any_worker_describes_the_group() -> None:
    driver = configured_driver()
    driver.receive(FIRST)
    request = driver.send_request(DescribeWorkerGroup())
    assert len(driver.pop_effects(RequestGroupDescription)) == 1
    assert driver.answer(request) is None
    driver.feed(GroupDescribed(description=GROUP))
    view = driver.answer(request)
    assert isinstance(view, GroupView)
    assert [(member.name, member.owned) for member in view.members] == [("here", FIRST), ("there", BOTH_TASKS - FIRST)]


def test_two_requests_cause_one_question() -> None:
    driver = configured_driver()
    driver.receive(FIRST)
    requests = [driver.send_request(DescribeWorkerGroup()) for _ in range(2)]
    assert len(driver.pop_effects(RequestGroupDescription)) == 1
    driver.feed(GroupDescribed(description=GROUP))
    assert all(isinstance(driver.answer(request), GroupView) for request in requests)


def test_without_a_description_a_request_is_refused() -> None:
    driver = configured_driver()
    driver.receive(FIRST)
    request = driver.send_request(DescribeWorkerGroup())
    driver.feed(GroupDescribed(description=None, error="the coordinator did not respond"))
    refused = driver.answer(request)
    assert isinstance(refused, RequestRefused)
    assert refused.problem is Problem.NO_LEADER
    assert "the coordinator did not respond" in refused.message


def test_an_order_by_name_waits_for_the_names_of_the_workers() -> None:
    driver = configured_driver()
    driver.receive(FIRST)
    own, others = driver.send_request(CancelDrain(worker="here")), driver.send_request(DrainWorker(worker="there"))
    assert (driver.answer(own), driver.answer(others)) == (None, None)
    driver.feed(GroupDescribed(description=GROUP))
    assert driver.answer(own) == SuccessWithoutContent()
    refused = driver.answer(others)
    assert isinstance(refused, RequestRefused)
    assert (refused.problem, refused.redirect_url) == (Problem.NOT_THIS_WORKER, OTHER_URL)


def test_an_order_by_host_and_port_is_executed_at_once() -> None:
    driver = configured_driver()
    driver.receive(FIRST)
    assert driver.answer(driver.send_request(DrainWorker(worker="here:8083"))) == SuccessWithoutContent()
    assert not driver.pop_effects(RequestGroupDescription)


def test_a_worker_leaves_when_the_requests_that_wait_for_the_view_are_answered() -> None:
    driver = configured_driver()
    driver.receive(FIRST)
    driver.feed(ShutdownOrdered(reason="SIGTERM"))
    request = driver.send_request(DescribeWorkerGroup())
    driver.run_all_chores()
    assert not driver.pop_effects(Leave), "a request has reached it"
    driver.feed(GroupDescribed(description=GROUP))
    assert isinstance(driver.answer(request), GroupView)
    driver.run_all_chores()
    assert len(driver.pop_effects(Leave)) == 1


@pytest.mark.parametrize(
    ("last_event", "message"),
    [
        (ShutdownOrdered(reason="SIGTERM"), "Worker is shutting down"),
        (RESTART, "Worker is restarting"),
    ],
    ids=["shutdown", "relaunch"],
)
def test_a_worker_that_ends_refuses_the_requests_that_wait_for_the_view(last_event: Event, message: str) -> None:
    driver = configured_driver()
    driver.receive(FIRST)
    drained = driver.send_request(DrainWorker(worker="here"))
    driver.feed(last_event)
    described = driver.send_request(DescribeWorkerGroup())
    driver.feed(TimerFired(timer="shutdown"))
    driver.feed(TimerFired(timer="relaunch"))
    refusal = RequestRefused(problem=Problem.SHUTTING_DOWN, message=message)
    assert (driver.answer(described), driver.answer(drained)) == (refusal, refusal)
    driver.feed(GroupDescribed(description=GROUP))
    assert driver.answer(drained) == refusal
    assert not driver.herder.lifecycle.is_draining


@pytest.mark.parametrize(
    "order",
    [
        DrainWorker(worker="here"),
        CancelDrain(worker="here"),
        RestartWorker(worker="here"),
        RestartWorker(worker="here", moves_jobs=True),
    ],
)
def test_an_order_that_waits_for_the_view_is_not_executed_after_a_shutdown_has_begun(order: WorkerOrder) -> None:
    driver = configured_driver()
    driver.receive(FIRST)
    id_ = driver.send_request(order)
    driver.feed(ShutdownOrdered(reason="SIGTERM"))
    driver.feed(GroupDescribed(description=GROUP))
    assert driver.answer(id_) == RequestRefused(problem=Problem.SHUTTING_DOWN, message="Worker is shutting down")
    assert driver.herder.lifecycle.is_shutting_down
    assert not driver.herder.lifecycle.is_draining


def test_the_leader_reports_a_job_that_no_worker_may_run() -> None:
    driver = configured_driver()
    driver.receive(NO_JOBS, leader=ME)
    unplaceable = (UnplaceableJobs(jobs=FIRST, reason="no worker claims it"),)
    driver.feed(GroupDescribed(description=replace(GROUP, unplaceable=unplaceable)))
    driver.run_all_chores()
    (task,) = FIRST.tasks
    status = driver.herder.statuses.get(task)
    assert status is not None
    assert (status.state, status.trace) == (JobState.UNASSIGNED, "no worker claims it")
