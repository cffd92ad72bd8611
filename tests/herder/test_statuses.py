"""What is said of jobs that nobody has, and whose word counts when words cross each other."""

import json
from typing import Any

import pytest

from coterie.engine.log import Line, NewLine
from coterie.herder.config_records import deletion_lines
from coterie.herder.messages import AppendStatuses, StatusesAppended, StatusLinesRead, TimerFired
from coterie.herder.seams import TaskProgressed
from coterie.herder.status_records import Status, line_of
from coterie.nouns.ids import Generation, MemberId, WorkerId
from coterie.nouns.jobs import NO_JOBS, Job, Jobs
from coterie.nouns.membership import Computed
from coterie.nouns.states import State
from coterie.wire.connect import ConnectProtocol
from tests.herder.builders import ORDERS, TASKS, deal, lead, only, ready
from tests.herder.by_hand import ME, OTHER, ByHand

STATIC = ConnectProtocol.STATIC
THIRD = MemberId("third")
NOBODY = "no worker claims it, and every worker that is not draining runs only the jobs that it claims"


def lead_static(herder: ByHand, owned: dict[MemberId, Jobs], claims: dict[MemberId, Jobs] | None = None) -> Computed:
    dealt = deal(herder, herder.generation + 1, STATIC, owned, claims)
    mine = dealt.assignments[ME]
    herder.assign(assigned=mine.assigned, revoked=mine.revoked, leader=ME, protocol=STATIC)
    return dealt


def appended(herder: ByHand) -> list[tuple[str, dict[str, Any]]]:
    """What it orders to be written now, which stays unwritten."""
    lines = [line for order in herder.orders if isinstance(order, AppendStatuses) for line in order.lines]
    return [(line.key.decode(), json.loads(line.value)) for line in lines if line.value is not None]


def shown(herder: ByHand, job: Job) -> tuple[State, str | None, str] | None:
    status = herder.herder.statuses.get(job)
    return None if status is None else (status.state, status.trace, status.worker_id)


def says(herder: ByHand, job: Job, state: State, worker: str, generation: int) -> None:
    """Another worker's word comes back from the status log."""
    line = line_of(job, Status(state=state, worker_id=WorkerId(worker), generation=Generation(generation)))
    read(herder, line)


def read(herder: ByHand, line: NewLine) -> None:
    herder.tell(StatusLinesRead(lines=[Line(partition=0, offset=0, timestamp_ms=0, key=line.key, value=line.value)]))


def test_what_nobody_may_take_is_unassigned_with_the_reason_and_told_once() -> None:
    herder = ready()
    claims = {ME: only(ORDERS), OTHER: only(TASKS[0])}
    lead_static(herder, {ME: NO_JOBS, OTHER: NO_JOBS}, claims)
    herder.obey()
    assert shown(herder, TASKS[1]) == (State.UNASSIGNED, NOBODY, "here:8083")
    written = len(herder.statuses)
    for _ in range(3):
        lead_static(herder, {ME: only(ORDERS), OTHER: only(TASKS[0])}, claims)
        herder.obey()
    assert len(herder.statuses) == written, "nothing has changed"


def test_what_waits_for_a_worker_that_has_left_is_not_shown_as_running_on_it() -> None:
    herder = ready()
    dealt = lead(herder, STATIC, {ME: NO_JOBS, OTHER: NO_JOBS})
    herder.obey()
    lost = dealt.assignments[OTHER].assigned
    for job in lost:
        says(herder, job, State.RUNNING, "other", herder.generation)
    lead(herder, STATIC, {ME: dealt.assignments[ME].assigned})
    herder.obey()
    reason = "other has left the group and may rejoin: the job waits for scheduled.rebalance.max.delay.ms"
    assert {shown(herder, job) for job in lost} == {(State.UNASSIGNED, reason, "here:8083")}
    written = len(herder.statuses)
    herder.now_ms += 10_000  # Another round comes, in which less of the delay is left.
    dealt = lead(herder, STATIC, {ME: dealt.assignments[ME].assigned, THIRD: NO_JOBS})
    herder.obey()
    assert len(herder.statuses) == written
    # The delay is over: the next one says so itself when it runs.
    herder.now_ms += 300_000
    dealt = lead(herder, STATIC, {ME: herder.herder.owned, THIRD: NO_JOBS})
    mine = [task for task in dealt.assignments[ME].assigned.tasks if task in lost]
    herder.obey()
    for task in mine:
        herder.tell(TaskProgressed(task=task, batch_id=0, input_rows=1))
    herder.obey()
    for job in (job for job in dealt.assignments[THIRD].assigned if job in lost):
        says(herder, job, State.RUNNING, "third", herder.generation)
        assert shown(herder, job) == (State.RUNNING, None, "third")
    assert {shown(herder, task) for task in mine} <= {(State.RUNNING, None, "here:8083")}


def test_a_late_reason_is_not_written_over_what_the_next_owner_says() -> None:
    herder = ready()
    claims = {ME: only(ORDERS), OTHER: only(TASKS[0])}
    lead_static(herder, {ME: NO_JOBS, OTHER: NO_JOBS}, claims)
    while not any(key == "status-task-orders-1" for key, _ in appended(herder)):
        herder.take(AppendStatuses)
        herder.tell(StatusesAppended())
    herder.take(AppendStatuses)
    herder.tell(StatusesAppended(failure="the log is away"))
    lead_static(herder, {ME: herder.herder.owned, OTHER: only(TASKS[0]), THIRD: NO_JOBS})
    says(herder, TASKS[1], State.PAUSED, "third", herder.generation)
    herder.tell(TimerFired(timer="statuses"))
    assert not any(key == "status-task-orders-1" for key, _ in appended(herder))


@pytest.mark.parametrize("state", [State.RUNNING, State.PAUSED, State.FAILED])
def test_whoever_reads_a_late_reason_does_not_believe_it(state: State) -> None:
    herder = ready()
    herder.assign()
    says(herder, TASKS[1], state, "third", 7)
    late = Status(
        state=State.UNASSIGNED, worker_id=WorkerId("leader"), generation=Generation(6), trace="every worker is draining"
    )
    read(herder, line_of(TASKS[1], late))
    assert shown(herder, TASKS[1]) == (state, None, "third")


def test_a_farewell_that_comes_after_the_reason_does_not_hide_it() -> None:
    herder = ready()
    claims = {ME: only(ORDERS), OTHER: only(TASKS[0])}
    lead_static(herder, {ME: NO_JOBS, OTHER: NO_JOBS}, claims)
    herder.obey()
    says(herder, TASKS[1], State.UNASSIGNED, "third", 0)
    assert shown(herder, TASKS[1]) == (State.UNASSIGNED, NOBODY, "here:8083")


def test_a_follower_says_nothing_of_what_nobody_has() -> None:
    herder = ready()
    deal(herder, 1, STATIC, {ME: NO_JOBS, OTHER: NO_JOBS}, {ME: only(ORDERS), OTHER: only(TASKS[0])})
    herder.assign(leader=OTHER, protocol=STATIC)
    assert not appended(herder), "another one's round came to be"


def test_no_reason_outlives_its_job_though_it_was_on_its_way_when_that_was_deleted() -> None:
    herder = ready()
    claims = {ME: only(TASKS[0]), OTHER: only(ORDERS)}
    lead_static(herder, {ME: NO_JOBS, OTHER: NO_JOBS}, claims)
    assert any(key == "status-task-orders-1" for key, _ in appended(herder))
    appends = herder.take(AppendStatuses)
    herder.write(*deletion_lines(ORDERS))
    lead_static(herder, {ME: herder.herder.owned, OTHER: NO_JOBS}, claims)
    for append in appends:
        herder.do(append)
    herder.obey()
    assert shown(herder, TASKS[1]) is None
