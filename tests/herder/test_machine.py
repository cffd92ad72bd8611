"""A herder, event by event. Read from the top: a worker's behaviour from its start to its shutdown."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.herder import config_records
from coterie.herder.messages import (
    AppendStatusLines,
    Exit,
    GroupLeft,
    RestartTask,
    RuntimeOpened,
    SendTaskConfigsToLeader,
    SetTimer,
    ShutdownOrdered,
    SplitConnector,
    SplitSucceeded,
    StartTask,
    StatusAppendEnded,
    StopTask,
    TaskConfigsPublicationEnded,
    TaskStartFailed,
    TimerFired,
)
from coterie.herder.requests.ids import RequestId
from coterie.herder.requests.kinds import Request
from coterie.herder.requests.reads import DescribeConnector
from coterie.herder.requests.writes import DeleteConnector, PutConnector, PutTaskConfigs, SetTargetState
from coterie.herder.restart_policy import DEFAULT_RESTART_POLICY
from coterie.herder.seams import (
    TaskCheckpointClosed,
    TaskDied,
    TaskEvent,
    TaskHaltedWithoutOrder,
    TaskProgressed,
    TaskRetrying,
    TaskSpec,
)
from coterie.herder.timers import ConnectorRetryDue
from coterie.herder.work import Failed, OwnershipUnconfirmed, Running
from coterie.nouns.ids import ConfigOffset, Incarnation, WorkerUrl
from coterie.nouns.jobs import NO_JOBS, ConnectorName, ConnectorTaskId, Jobs
from coterie.nouns.membership import (
    Leave,
    MemberReport,
    MembershipLost,
    MembershipRefused,
    Rejoin,
    SendAssignments,
    SetWorkerState,
)
from coterie.nouns.states import TargetState
from coterie.wire.connect import ConnectProtocol
from tests.herder.builders import (
    BOTH_TASKS,
    COMPATIBLE,
    CONFIG,
    CONNECTOR_LINE,
    INCARNATION,
    ORDERS,
    ORDERS_TASK_CONFIGS,
    SESSIONED,
    STATIC,
    TASK_CONFIG_LINES,
    TASKS,
    jobs_of,
    working,
)
from tests.herder.herder_driver import (
    ME,
    OTHER,
    ROUND,
    WALL_MS,
    HerderDriver,
    RunnableChore,
    assignments_requested,
    lease_renewed,
)


def test_nothing_is_sent_to_the_group_before_the_runtime_is_open() -> None:
    herder = HerderDriver()
    herder.write(CONNECTOR_LINE)
    assert not herder.pop_effects(SetWorkerState)
    herder.feed(RuntimeOpened(wall_clock_ms=WALL_MS))
    assert herder.pop_effects(SetWorkerState) == [SetWorkerState(config_offset=ConfigOffset(1), owned=NO_JOBS)]


def test_only_assigned_tasks_with_committed_configs_are_started() -> None:
    herder = HerderDriver()
    herder.open_runtime()
    herder.write(CONNECTOR_LINE)
    herder.assign(assigned=jobs_of(*TASKS))
    assert not herder.pop_effects(StartTask), "assigned, and not committed"
    herder.write(*TASK_CONFIG_LINES)
    started = [order.spec for order in herder.pop_effects(StartTask)]
    assert started == [
        TaskSpec(task=task, connector_incarnation=INCARNATION, config=share)
        for task, share in zip(TASKS, ORDERS_TASK_CONFIGS, strict=True)
    ]


def test_a_worker_that_has_read_less_than_its_leader_reads_before_it_starts_tasks() -> None:
    herder = HerderDriver()
    herder.open_runtime()
    herder.write(CONNECTOR_LINE, *TASK_CONFIG_LINES)
    herder.config.append(CONNECTOR_LINE)  # The leader has read one record more.
    herder.assign(assigned=jobs_of(TASKS[0]))
    assert not herder.pop_effects(StartTask)
    herder.config.pop()
    herder.write(CONNECTOR_LINE)
    assert [order.spec.task for order in herder.pop_effects(StartTask)] == [TASKS[0]]


def test_a_rejoin_is_requested_when_all_revoked_jobs_have_stopped() -> None:
    herder = HerderDriver()
    herder.open_runtime()
    herder.write(CONNECTOR_LINE, *TASK_CONFIG_LINES)
    herder.assign(assigned=jobs_of(*TASKS))
    herder.run_all_chores()
    herder.assign(revoked=jobs_of(*TASKS))
    first, second = herder.pop_effects(StopTask)
    herder.run_chore(first)
    assert not herder.pop_effects(Rejoin)
    herder.run_chore(second)
    assert len(herder.pop_effects(Rejoin)) == 1
    assert herder.pop_effects(SetWorkerState)[-1].owned == NO_JOBS
    herder.run_all_chores()
    assert [line.value and line.value.split(b'"')[3] for line in herder.statuses[-2:]] == [b"UNASSIGNED"] * 2


def test_released_jobs_do_not_wait_for_a_revoked_job_that_still_stops() -> None:
    herder = working()
    herder.assign(revoked=BOTH_TASKS, protocol=STATIC)
    slow, fast = herder.pop_effects(StopTask)
    assert not herder.pop_effects(Rejoin)
    herder.run_chore(fast)
    assert herder.pop_effects(SetWorkerState)[-1].owned == jobs_of(slow.task)
    assert len(herder.pop_effects(Rejoin)) == 1
    herder.feed(ROUND)
    herder.assign(revoked=jobs_of(slow.task), protocol=STATIC)  # The leader revokes the other one again.
    assert not herder.pop_effects(StopTask), "its stop is under way"
    assert not herder.pop_effects(Rejoin), "nothing was released since the join"
    herder.run_chore(slow)
    assert len(herder.pop_effects(Rejoin)) == 1
    herder.feed(ROUND)
    herder.assign(protocol=STATIC)
    assert not herder.pop_effects(Rejoin)


def test_jobs_that_are_released_before_the_join_share_its_round() -> None:
    herder = working()
    herder.write(
        *config_records.task_config_and_commit_lines(ORDERS, [{"share": f"{number}/4"} for number in range(4)])
    )
    four = jobs_of(*(ConnectorTaskId(ORDERS, number) for number in range(4)))
    herder.assign(assigned=four, protocol=STATIC)
    herder.run_all_chores()
    herder.effects.clear()
    herder.assign(revoked=four, protocol=STATIC)
    first, second, third, last = herder.pop_effects(StopTask)
    herder.run_chore(first)
    herder.run_chore(second)
    assert len(herder.pop_effects(Rejoin)) == 1, "the member delays its join, and then reports all that were released"
    herder.feed(ROUND)
    herder.run_chore(third)
    assert not herder.pop_effects(Rejoin), "a round is running"
    herder.assign(revoked=jobs_of(third.task, last.task), protocol=STATIC)
    assert len(herder.pop_effects(Rejoin)) == 1, "its join reported the third one as owned"


@pytest.mark.parametrize("protocol", [COMPATIBLE, SESSIONED])
def test_in_a_group_that_kafka_connect_can_join_a_round_waits_for_all_revoked_jobs(protocol: ConnectProtocol) -> None:
    herder = working(protocol)
    herder.assign(revoked=BOTH_TASKS, protocol=protocol)
    first, second = herder.pop_effects(StopTask)
    herder.run_chore(first)
    assert not herder.pop_effects(Rejoin)
    herder.run_chore(second)
    assert len(herder.pop_effects(Rejoin)) == 1


def test_a_deleted_job_that_is_released_causes_no_round_while_another_job_still_stops() -> None:
    herder = working()
    herder.write(*config_records.task_config_and_commit_lines(ORDERS, ORDERS_TASK_CONFIGS[:1]))
    deleted_task = herder.pop_effects(StopTask)[0]
    herder.run_all_chores()
    herder.effects.clear()
    herder.assign(revoked=BOTH_TASKS, protocol=STATIC)
    (slow,) = herder.pop_effects(StopTask)
    assert not herder.pop_effects(Rejoin)
    herder.run_chore(deleted_task)
    assert not herder.pop_effects(Rejoin)
    herder.run_chore(slow)
    assert len(herder.pop_effects(Rejoin)) == 1


def test_a_revocation_that_completes_during_the_next_rebalance_requests_a_rejoin_after_it() -> None:
    herder = HerderDriver()
    herder.open_runtime()
    herder.write(CONNECTOR_LINE, *TASK_CONFIG_LINES)
    herder.assign(assigned=jobs_of(*TASKS))
    herder.run_all_chores()
    herder.assign(revoked=jobs_of(TASKS[0]))
    herder.feed(ROUND)  # Its join has reported both tasks as owned.
    herder.run_all_chores()
    assert not herder.pop_effects(Rejoin)
    herder.assign()
    assert len(herder.pop_effects(Rejoin)) == 1


def test_a_change_of_one_tasks_config_restarts_only_that_task() -> None:
    herder = HerderDriver()
    herder.open_runtime()
    herder.write(CONNECTOR_LINE, *TASK_CONFIG_LINES)
    herder.assign(assigned=jobs_of(*TASKS))
    herder.run_all_chores()
    herder.write(*config_records.task_config_and_commit_lines(ORDERS, [ORDERS_TASK_CONFIGS[0], {"share": "another"}]))
    assert [order.task for order in herder.pop_effects(StopTask)] == [TASKS[1]]


def test_an_owner_retries_to_publish_through_the_leader_until_there_is_a_newer_config() -> None:
    herder = HerderDriver()
    herder.open_runtime()
    herder.write(CONNECTOR_LINE)
    herder.assign(assigned=jobs_of(ORDERS))
    (split,) = herder.pop_effects(SplitConnector)
    herder.feed(
        SplitSucceeded(connector=ORDERS, config_line_offset=split.config_line_offset, task_configs=ORDERS_TASK_CONFIGS)
    )
    (published,) = herder.pop_effects(SendTaskConfigsToLeader)
    assert (published.leader_url, published.configs) == ("http://leader:8083/", tuple(ORDERS_TASK_CONFIGS))
    delays_ms = []
    for _ in range(10):
        herder.feed(
            TaskConfigsPublicationEnded(
                connector=ORDERS, config_line_offset=split.config_line_offset, refusal="no route"
            )
        )
        (timer,) = [order for order in herder.pop_effects(SetTimer) if isinstance(order.timer, ConnectorRetryDue)]
        delays_ms.append(timer.at_ms - herder.now_ms)
        herder.now_ms = timer.at_ms
        herder.feed(TimerFired(timer=timer.timer))
        (published,) = herder.pop_effects(SendTaskConfigsToLeader)
    assert delays_ms == [250, 500, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000]
    herder.write(config_records.connector_line(ORDERS, {**CONFIG, "new": "yes"}, INCARNATION))
    (newer,) = herder.pop_effects(SplitConnector)
    herder.feed(
        TaskConfigsPublicationEnded(connector=ORDERS, config_line_offset=split.config_line_offset, refusal="no route")
    )
    assert not [order for order in herder.pop_effects(SetTimer) if isinstance(order.timer, ConnectorRetryDue)]
    assert newer.config_line_offset != split.config_line_offset


def test_the_result_of_a_split_of_an_older_config_is_dropped() -> None:
    herder = HerderDriver()
    herder.open_runtime()
    herder.write(CONNECTOR_LINE)
    herder.assign(assigned=jobs_of(ORDERS))
    (old,) = herder.pop_effects(SplitConnector)
    herder.write(config_records.connector_line(ORDERS, {**CONFIG, "new": "yes"}, INCARNATION))
    assert not herder.pop_effects(SplitConnector), "one split at a time"
    herder.feed(
        SplitSucceeded(connector=ORDERS, config_line_offset=old.config_line_offset, task_configs=ORDERS_TASK_CONFIGS)
    )
    (new,) = herder.pop_effects(SplitConnector)
    assert new.config == {**CONFIG, "new": "yes"}
    # The first result belongs to an outdated config: none of it is published.
    assert not herder.pop_effects(SendTaskConfigsToLeader)


def test_the_leader_assigns_jobs_and_requests_a_rejoin_when_the_set_of_jobs_changes() -> None:
    herder = HerderDriver()
    herder.open_runtime()
    herder.write(CONNECTOR_LINE)
    herder.feed(
        assignments_requested(
            {ME: MemberReport(url=WorkerUrl("http://here:8083/"), config_offset=ConfigOffset(1))}, generation=1
        )
    )
    computed = herder.computed()
    assert (computed.assignments[ME].assigned, computed.config_offset) == (jobs_of(ORDERS), 1)
    herder.assign(assigned=computed.assignments[ME].assigned, leader=ME)
    assert not herder.pop_effects(Rejoin)
    herder.run_all_chores()  # It splits the connector, and publishes the task configs itself.
    assert len(herder.pop_effects(Rejoin)) == 1, "there are two new tasks"
    herder.write(config_records.connector_line(ORDERS, {**CONFIG, "new": "yes"}, INCARNATION))
    herder.run_all_chores()
    assert not herder.pop_effects(Rejoin), "already requested, and changed configs need no rebalance"


def test_a_lagging_leader_waits_for_its_config_log_and_then_reports_a_config_mismatch() -> None:
    herder = HerderDriver()
    herder.open_runtime()
    report = MemberReport(url=WorkerUrl("http://there:8083/"), config_offset=ConfigOffset(1))
    herder.feed(assignments_requested({ME: report, OTHER: report}, generation=1))
    assert not herder.pop_effects(SendAssignments)
    (timer,) = herder.pop_effects(SetTimer)
    assert timer.timer == "assign"
    herder.now_ms = timer.at_ms
    herder.feed(TimerFired(timer="assign"))
    failed = herder.computed()
    assert failed.has_config_mismatch
    assert failed.assignments.keys() == {ME, OTHER}

    herder.feed(assignments_requested({ME: report, OTHER: report}, generation=2))
    herder.write(CONNECTOR_LINE)
    assert not herder.computed().has_config_mismatch


def test_a_leader_that_caught_up_after_a_config_mismatch_requests_a_rejoin_at_once() -> None:
    herder = HerderDriver()
    herder.open_runtime()
    report = MemberReport(url=WorkerUrl("http://there:8083/"), config_offset=ConfigOffset(1))
    herder.feed(assignments_requested({ME: report}, generation=1))
    herder.feed(TimerFired(timer="assign"))
    computed = herder.computed()
    herder.write(CONNECTOR_LINE)  # Between its SyncGroup and the end of the rebalance.
    assert not herder.pop_effects(Rejoin)
    herder.complete_computed_round(computed, ConnectProtocol.COMPATIBLE)
    assert len(herder.pop_effects(Rejoin)) == 1


def test_a_lost_membership_stops_all_tasks_and_each_stop_is_reported() -> None:
    herder = HerderDriver()
    herder.open_runtime()
    herder.write(CONNECTOR_LINE, *TASK_CONFIG_LINES)
    herder.assign(assigned=jobs_of(ORDERS, *TASKS))
    herder.run_all_chores()
    herder.pop_effects(SetWorkerState)
    herder.feed(MembershipLost(reason="silence"))
    stops = herder.pop_effects(StopTask)
    assert {stop.grace_ms for stop in stops} == {2_000}, "a fifth of the session, because two thirds are over"
    assert herder.pop_effects(SetWorkerState)[-1].owned == jobs_of(*TASKS)
    for stop in stops:
        herder.run_chore(stop)
    assert herder.pop_effects(SetWorkerState)[-1].owned == NO_JOBS


def test_a_shutdown_stops_tasks_writes_statuses_leaves_and_exits() -> None:
    herder = HerderDriver()
    herder.open_runtime()
    herder.write(CONNECTOR_LINE, *TASK_CONFIG_LINES)
    herder.assign(assigned=jobs_of(*TASKS), leader=ME)
    herder.run_all_chores()
    herder.feed(ShutdownOrdered(reason="SIGTERM"))
    assert not herder.pop_effects(Leave), "its tasks still run"
    herder.run_all_chores()
    assert herder.pop_effects(Leave) == [Leave(reason="SIGTERM")]
    herder.feed(GroupLeft())
    assert herder.pop_effects(Exit) == [Exit(exit_code=0, reason="SIGTERM")]


def test_a_worker_refused_by_its_group_leaves_and_exits_with_an_error() -> None:
    herder = HerderDriver()
    herder.open_runtime()
    herder.feed(MembershipRefused(reason="set session.timeout.ms"))
    herder.run_all_chores()
    assert herder.pop_effects(Leave) == [Leave(reason="set session.timeout.ms")]
    herder.feed(GroupLeft())
    assert herder.pop_effects(Exit) == [Exit(exit_code=1, reason="set session.timeout.ms")]


def test_a_worker_refused_after_joining_stops_its_tasks_before_it_leaves() -> None:
    herder = HerderDriver()
    herder.open_runtime()
    herder.write(CONNECTOR_LINE, *TASK_CONFIG_LINES)
    herder.assign(assigned=jobs_of(*TASKS))
    herder.run_all_chores()
    herder.feed(MembershipRefused(reason="not authorized"))
    assert not herder.pop_effects(Leave), "its tasks still run"
    herder.run_all_chores()
    assert herder.pop_effects(Leave)


def test_a_task_that_does_not_stop_does_not_prevent_the_shutdown() -> None:
    herder = HerderDriver()
    herder.open_runtime()
    herder.write(CONNECTOR_LINE, *TASK_CONFIG_LINES)
    herder.assign(assigned=jobs_of(*TASKS))
    herder.run_all_chores()
    herder.feed(ShutdownOrdered(reason="SIGTERM"))
    herder.pop_effects(StopTask)  # No task stops.
    (timer,) = [order for order in herder.pop_effects(SetTimer) if order.timer == "shutdown"]
    herder.now_ms = timer.at_ms
    herder.feed(TimerFired(timer="shutdown"))
    assert herder.pop_effects(Leave)


def test_unwritten_statuses_are_written_later_unless_newer_ones_exist() -> None:
    herder = HerderDriver()
    herder.open_runtime()
    herder.write(CONNECTOR_LINE, *TASK_CONFIG_LINES)
    herder.assign(assigned=jobs_of(*TASKS))
    (append,) = herder.pop_effects(AppendStatusLines)
    assert len(append.lines) == 2
    for start in herder.pop_effects(StartTask):
        herder.run_chore(start)
    herder.feed(TaskProgressed(task=TASKS[0], batch_id=0, input_rows=1))
    herder.feed(StatusAppendEnded(failure="the log cannot be reached"))
    herder.feed(TimerFired(timer="statuses"))
    (again,) = herder.pop_effects(AppendStatusLines)
    assert [line.value and line.value.split(b'"')[3] for line in again.lines] == [b"RUNNING", b"UNASSIGNED"]


# -- random events ----------------------------------------------------------------------------------------------------


class RandomHerderRun:
    """Feeds random events to a herder, and checks which tasks are started and stopped."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.driver = HerderDriver()
        self.driver.open_runtime()
        self.chores: list[RunnableChore] = []
        self.active: set[ConnectorTaskId] = set()
        self.given = NO_JOBS
        self.request_ids: list[RequestId] = []

    def random_event(self) -> None:
        getattr(self, self.rng.choice([name for name in dir(type(self)) if name.startswith("on_")]))()
        self.collect()

    def collect(self) -> None:
        """No task is started twice, and each is stopped only when it was started."""
        for start in self.driver.pop_effects(StartTask):
            assert start.spec.task not in self.active, "started twice"
            assert start.spec.task in self.given, "started, and not assigned"
            self.active.add(start.spec.task)
            self.chores.append(start)
        for restart in self.driver.pop_effects(RestartTask):
            assert restart.task in self.active, "restarted without a held checkpoint"
            self.chores.append(restart)
        for stop in self.driver.pop_effects(StopTask):
            assert stop.task in self.active, "stopped, and not started"
            self.chores.append(stop)
        self.chores += self.driver.chores()

    def on_chore(self) -> None:
        if self.chores:
            self.end(self.chores.pop(self.rng.randrange(len(self.chores))))

    def end(self, chore: RunnableChore) -> None:
        if isinstance(chore, StartTask) and self.rng.random() < 0.2:
            self.active.discard(chore.spec.task)
            policy = self.rng.choice((None, DEFAULT_RESTART_POLICY))
            self.driver.feed(TaskStartFailed(task=chore.spec.task, trace="no", restart_policy=policy))
        elif isinstance(chore, RestartTask) and self.rng.random() < 0.5:
            self.driver.feed(TaskStartFailed(task=chore.task, trace="no"))
        else:
            if isinstance(chore, StopTask):
                self.active.discard(chore.task)
            self.driver.run_chore(chore)

    def on_assignment(self) -> None:
        everything = self.driver.herder.config.jobs()
        assigned = Jobs.of(job for job in everything - self.given if self.rng.random() < 0.7)
        revoked = Jobs.of(job for job in self.given if self.rng.random() < 0.3)
        self.given = (self.given - revoked) | assigned
        self.driver.assign(assigned=assigned, revoked=revoked, leader=ME)

    def on_loss(self) -> None:
        self.given = NO_JOBS
        self.driver.feed(MembershipLost(reason="chance"))

    def on_round(self) -> None:
        self.driver.feed(ROUND)

    def on_config(self) -> None:
        name = ConnectorName(self.rng.choice("ab"))
        config = {"tasks.max": str(self.rng.randint(1, 3)), "name": name}
        lines = self.rng.choice(
            [
                (config_records.connector_line(name, config, Incarnation(self.rng.choice("xy"))),),
                config_records.task_config_and_commit_lines(
                    name, [{"share": self.rng.choice("01")}] * self.rng.randint(0, 3)
                ),
                config_records.connector_and_target_state_tombstones(name),
                (config_records.target_state_line(name, self.rng.choice(list(TargetState))),),
            ]
        )
        self.driver.write(*lines)

    def on_task(self) -> None:
        running = [task for task, run in self.driver.herder.work.local_tasks.items() if isinstance(run.state, Running)]
        if running:
            task = self.rng.choice(sorted(running))
            events: list[TaskEvent] = [
                TaskProgressed(task=task, batch_id=1, input_rows=1),
                TaskRetrying(task=task, trace="unreachable"),
                TaskDied(task=task, trace="no", holds_checkpoint=True),
                TaskDied(task=task, trace="no", holds_checkpoint=True, can_restart=False),
                TaskDied(task=task, trace="no", holds_checkpoint=False),
                TaskHaltedWithoutOrder(task=task),
                TaskCheckpointClosed(task=task),
            ]
            event = self.rng.choice(events)
            if isinstance(event, TaskHaltedWithoutOrder | TaskCheckpointClosed) or (
                isinstance(event, TaskDied) and not event.holds_checkpoint
            ):
                self.active.discard(task)
            self.driver.feed(event)

    def on_heartbeat(self) -> None:
        self.driver.feed(lease_renewed(sent_at_ms=self.driver.now_ms - self.rng.randint(-10, 10)))

    def on_request(self) -> None:
        name = ConnectorName(self.rng.choice("ab"))
        requests: list[Request] = [
            PutConnector(connector=name, config={"name": name}, may_replace=True),
            DeleteConnector(connector=name),
            SetTargetState(connector=name, target_state=self.rng.choice(list(TargetState))),
            DescribeConnector(connector=name),
            PutTaskConfigs(connector=name, configs=({"share": "0"},)),
        ]
        self.request_ids.append(self.driver.send_request(self.rng.choice(requests)))

    def on_time(self) -> None:
        self.driver.now_ms += self.rng.choice([1, 100, 5_000])

    def on_stray_timer(self) -> None:
        timers = [order.timer for order in self.driver.effects if isinstance(order, SetTimer)]
        if timers:
            self.driver.feed(TimerFired(timer=self.rng.choice(timers)))

    def settle(self) -> None:
        """End of the random events: renew the lease, run one last rebalance, and run every chore."""
        self.driver.feed(lease_renewed(sent_at_ms=self.driver.now_ms))
        self.driver.assign(leader=ME, revoked=self.given - self.driver.herder.config.jobs())
        self.given = self.given & self.driver.herder.config.jobs()
        self.driver.now_ms += 2_000  # Restarts of failed queries and starts are due.
        self.driver.feed(TimerFired(timer="changed jobs"))
        self.collect()
        while self.chores:
            chore = self.chores.pop(0)
            if isinstance(chore, StopTask):
                self.active.discard(chore.task)
            self.driver.run_chore(chore)
            self.collect()


@settings(max_examples=100)
@given(st.integers(0, 2**32))
def test_after_random_events_no_task_runs_twice_and_all_requests_are_answered(seed: int) -> None:
    random_run = RandomHerderRun(Random(seed))
    for _ in range(120):
        random_run.random_event()
    random_run.settle()
    herder = random_run.driver.herder
    assert not herder.requests.writes
    assert not herder.requests.reads
    assert herder.work.are_statuses_written
    answers = [random_run.driver.answer(request) for request in random_run.request_ids]
    assert None not in answers
    expected = {
        task
        for task in herder.place.assigned.tasks
        if herder.config.target_state(task.connector) is TargetState.STARTED
    }
    stuck = {
        task for task, run in herder.work.local_tasks.items() if isinstance(run.state, Failed | OwnershipUnconfirmed)
    }
    assert random_run.active == {task for task in expected if herder.config.task_config(task) is not None} - stuck
