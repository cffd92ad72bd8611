"""A herder told one thing after the other. Read from the top: this is how one worker thinks."""

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.herder import config_records
from coterie.herder.messages import (
    AppendStatuses,
    ConnectorSplit,
    Exit,
    GroupLeft,
    PublishTaskConfigs,
    RestartTask,
    RuntimeOpened,
    SetTimer,
    ShutdownOrdered,
    SplitConnector,
    StartTask,
    StatusesAppended,
    StopTask,
    TaskConfigsPublished,
    TaskStartFailed,
    TimerFired,
)
from coterie.herder.requests import (
    DeleteConnector,
    DescribeConnector,
    Problem,
    PutConnector,
    PutTaskConfigs,
    Request,
    RequestId,
    RequestRefused,
    SetTargetState,
)
from coterie.herder.seams import TaskClosed, TaskDied, TaskEvent, TaskHalted, TaskProgressed, TaskStart, TaskWaiting
from coterie.herder.timers import RetryDue
from coterie.herder.work import Failed, Running, Taken
from coterie.nouns.ids import ConfigOffset, Incarnation, WorkerUrl
from coterie.nouns.jobs import NO_JOBS, ConnectorName, ConnectorTaskId, Jobs
from coterie.nouns.membership import Install, Leave, Lost, MemberReport, MembershipRefused, Rejoin, Subscribe
from coterie.nouns.states import TargetState
from coterie.wire.connect import ConnectProtocol
from tests.herder.builders import BORN, CONFIG, DEALT, LIFE, ORDERS, SHARES, TASKS, only
from tests.herder.by_hand import ME, OTHER, ROUND, WALL_MS, ByHand, Doable, proved, wanted


def test_nothing_is_said_to_the_group_before_the_runtime_is_open() -> None:
    herder = ByHand()
    herder.write(BORN)
    assert not herder.take(Subscribe)
    herder.tell(RuntimeOpened(wall_ms=WALL_MS))
    assert herder.take(Subscribe) == [Subscribe(config_offset=ConfigOffset(1), owned=NO_JOBS)]


def test_only_what_is_assigned_and_committed_is_started() -> None:
    herder = ByHand()
    herder.begin()
    herder.write(BORN)
    herder.assign(assigned=only(*TASKS))
    assert not herder.take(StartTask), "assigned, and not committed"
    herder.write(*DEALT)
    started = [order.start for order in herder.take(StartTask)]
    assert started == [
        TaskStart(task=task, incarnation=LIFE, config=share) for task, share in zip(TASKS, SHARES, strict=True)
    ]


def test_a_worker_that_knows_less_than_its_leader_reads_before_it_starts() -> None:
    herder = ByHand()
    herder.begin()
    herder.write(BORN, *DEALT)
    herder.config.append(BORN)  # The leader has read a line more.
    herder.assign(assigned=only(TASKS[0]))
    assert not herder.take(StartTask)
    herder.config.pop()
    herder.write(BORN)
    assert [order.start.task for order in herder.take(StartTask)] == [TASKS[0]]


def test_a_rejoin_is_asked_for_when_all_that_was_revoked_has_stopped() -> None:
    herder = ByHand()
    herder.begin()
    herder.write(BORN, *DEALT)
    herder.assign(assigned=only(*TASKS))
    herder.obey()
    herder.assign(revoked=only(*TASKS))
    first, second = herder.take(StopTask)
    herder.do(first)
    assert not herder.take(Rejoin)
    herder.do(second)
    assert len(herder.take(Rejoin)) == 1
    assert herder.take(Subscribe)[-1].owned == NO_JOBS
    herder.obey()
    assert [line.value and line.value.split(b'"')[3] for line in herder.statuses[-2:]] == [b"UNASSIGNED"] * 2


def test_a_revocation_during_the_next_round_is_acknowledged_after_it() -> None:
    herder = ByHand()
    herder.begin()
    herder.write(BORN, *DEALT)
    herder.assign(assigned=only(*TASKS))
    herder.obey()
    herder.assign(revoked=only(TASKS[0]))
    herder.tell(ROUND)  # It has said that it still has both.
    herder.obey()
    assert not herder.take(Rejoin)
    herder.assign()
    assert len(herder.take(Rejoin)) == 1


def test_a_change_of_one_tasks_config_restarts_that_task_alone() -> None:
    herder = ByHand()
    herder.begin()
    herder.write(BORN, *DEALT)
    herder.assign(assigned=only(*TASKS))
    herder.obey()
    herder.write(*config_records.task_config_lines(ORDERS, [SHARES[0], {"share": "another"}]))
    assert [order.task for order in herder.take(StopTask)] == [TASKS[1]]


def test_an_owner_publishes_through_the_leader_again_and_again_until_a_newer_config() -> None:
    herder = ByHand()
    herder.begin()
    herder.write(BORN)
    herder.assign(assigned=only(ORDERS))
    (split,) = herder.take(SplitConnector)
    herder.tell(ConnectorSplit(connector=ORDERS, written_at=split.written_at, configs=SHARES))
    (published,) = herder.take(PublishTaskConfigs)
    assert (published.leader_url, published.configs) == ("http://leader:8083/", tuple(SHARES))
    waits = []
    for _ in range(10):
        herder.tell(TaskConfigsPublished(connector=ORDERS, written_at=split.written_at, refusal="no route"))
        (timer,) = [order for order in herder.take(SetTimer) if isinstance(order.timer, RetryDue)]
        waits.append(timer.at_ms - herder.now_ms)
        herder.now_ms = timer.at_ms
        herder.tell(TimerFired(timer=timer.timer))
        (published,) = herder.take(PublishTaskConfigs)
    assert waits == [250, 500, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000]
    herder.write(config_records.connector_line(ORDERS, {**CONFIG, "new": "yes"}, LIFE))
    (newer,) = herder.take(SplitConnector)
    herder.tell(TaskConfigsPublished(connector=ORDERS, written_at=split.written_at, refusal="no route"))
    assert not [order for order in herder.take(SetTimer) if isinstance(order.timer, RetryDue)]
    assert newer.written_at != split.written_at


def test_a_split_that_was_overtaken_by_a_newer_config_counts_for_nothing() -> None:
    herder = ByHand()
    herder.begin()
    herder.write(BORN)
    herder.assign(assigned=only(ORDERS))
    (old,) = herder.take(SplitConnector)
    herder.write(config_records.connector_line(ORDERS, {**CONFIG, "new": "yes"}, LIFE))
    assert not herder.take(SplitConnector), "one at a time"
    herder.tell(ConnectorSplit(connector=ORDERS, written_at=old.written_at, configs=SHARES))
    (new,) = herder.take(SplitConnector)
    assert new.config == {**CONFIG, "new": "yes"}
    # The first result was of a config that is no more: nothing was published of it.
    assert not herder.take(PublishTaskConfigs)


def test_the_leader_deals_out_and_asks_for_a_round_when_the_jobs_change() -> None:
    herder = ByHand()
    herder.begin()
    herder.write(BORN)
    herder.tell(
        wanted({ME: MemberReport(url=WorkerUrl("http://here:8083/"), config_offset=ConfigOffset(1))}, generation=1)
    )
    computed = herder.computed()
    assert (computed.assignments[ME].assigned, computed.config_offset) == (only(ORDERS), 1)
    herder.assign(assigned=computed.assignments[ME].assigned, leader=ME)
    assert not herder.take(Rejoin)
    herder.obey()  # It splits the connector, and publishes to itself.
    assert len(herder.take(Rejoin)) == 1, "two tasks more"
    herder.write(config_records.connector_line(ORDERS, {**CONFIG, "new": "yes"}, LIFE))
    herder.obey()
    assert not herder.take(Rejoin), "asked for already, and configs that change need none"


def test_a_leader_that_lags_waits_for_its_log_and_then_says_that_nobody_gets_anything() -> None:
    herder = ByHand()
    herder.begin()
    there = MemberReport(url=WorkerUrl("http://there:8083/"), config_offset=ConfigOffset(1))
    herder.tell(wanted({ME: there, OTHER: there}, generation=1))
    assert not herder.take(Install)
    (timer,) = herder.take(SetTimer)
    assert timer.timer == "assign"
    herder.now_ms = timer.at_ms
    herder.tell(TimerFired(timer="assign"))
    failed = herder.computed()
    assert failed.has_config_mismatch
    assert failed.assignments.keys() == {ME, OTHER}

    herder.tell(wanted({ME: there, OTHER: there}, generation=2))
    herder.write(BORN)
    assert not herder.computed().has_config_mismatch


def test_a_leader_that_caught_up_too_late_asks_for_another_round_at_once() -> None:
    herder = ByHand()
    herder.begin()
    there = MemberReport(url=WorkerUrl("http://there:8083/"), config_offset=ConfigOffset(1))
    herder.tell(wanted({ME: there}, generation=1))
    herder.tell(TimerFired(timer="assign"))
    computed = herder.computed()
    herder.write(BORN)  # Between its answer and the end of the round.
    assert not herder.take(Rejoin)
    herder.take_computed(computed, ConnectProtocol.COMPATIBLE)
    assert len(herder.take(Rejoin)) == 1


def test_a_lost_membership_stops_all_and_is_told_when_nothing_is_left() -> None:
    herder = ByHand()
    herder.begin()
    herder.write(BORN, *DEALT)
    herder.assign(assigned=only(ORDERS, *TASKS))
    herder.obey()
    herder.take(Subscribe)
    herder.tell(Lost(reason="silence"))
    stops = herder.take(StopTask)
    assert {stop.grace_ms for stop in stops} == {2_000}, "a fifth of the session, for two thirds are over"
    assert herder.take(Subscribe)[-1].owned == only(*TASKS)
    for stop in stops:
        herder.do(stop)
    assert herder.take(Subscribe)[-1].owned == NO_JOBS


def test_a_shut_down_stops_writes_leaves_and_exits() -> None:
    herder = ByHand()
    herder.begin()
    herder.write(BORN, *DEALT)
    herder.assign(assigned=only(*TASKS), leader=ME)
    herder.obey()
    waiting = herder.ask(DeleteConnector(connector=ORDERS))
    herder.tell(ShutdownOrdered(reason="SIGTERM"))
    refused = herder.answer(waiting)
    assert isinstance(refused, RequestRefused)
    assert refused.problem is Problem.SHUTTING_DOWN
    assert not herder.take(Leave), "its tasks still run"
    herder.obey()
    assert herder.take(Leave) == [Leave(reason="SIGTERM")]
    herder.tell(GroupLeft())
    assert herder.take(Exit) == [Exit(code=0, reason="SIGTERM")]


def test_a_worker_that_its_group_refuses_says_so_and_exits_with_an_error() -> None:
    herder = ByHand()
    herder.begin()
    herder.tell(MembershipRefused(reason="set session.timeout.ms"))
    assert herder.take(Leave) == [Leave(reason="set session.timeout.ms")]
    herder.tell(GroupLeft())
    assert herder.take(Exit) == [Exit(code=1, reason="set session.timeout.ms")]


def test_a_worker_that_is_refused_later_stops_its_tasks_before_it_leaves() -> None:
    herder = ByHand()
    herder.begin()
    herder.write(BORN, *DEALT)
    herder.assign(assigned=only(*TASKS))
    herder.obey()
    herder.tell(MembershipRefused(reason="not authorized"))
    assert not herder.take(Leave), "its tasks still run"
    herder.obey()
    assert herder.take(Leave)


def test_a_task_that_does_not_stop_does_not_hold_up_the_end() -> None:
    herder = ByHand()
    herder.begin()
    herder.write(BORN, *DEALT)
    herder.assign(assigned=only(*TASKS))
    herder.obey()
    herder.tell(ShutdownOrdered(reason="SIGTERM"))
    herder.take(StopTask)  # Nobody obeys.
    (timer,) = [order for order in herder.take(SetTimer) if order.timer == "shutdown"]
    herder.now_ms = timer.at_ms
    herder.tell(TimerFired(timer="shutdown"))
    assert herder.take(Leave)


def test_statuses_that_could_not_be_written_are_written_later_unless_newer_ones_are_known() -> None:
    herder = ByHand()
    herder.begin()
    herder.write(BORN, *DEALT)
    herder.assign(assigned=only(*TASKS))
    (said,) = herder.take(AppendStatuses)
    assert len(said.lines) == 2
    for start in herder.take(StartTask):
        herder.do(start)
    herder.tell(TaskProgressed(task=TASKS[0], batch_id=0, input_rows=1))
    herder.tell(StatusesAppended(failure="the log is gone"))
    herder.tell(TimerFired(timer="statuses"))
    (again,) = herder.take(AppendStatuses)
    assert [line.value and line.value.split(b'"')[3] for line in again.lines] == [b"RUNNING", b"UNASSIGNED"]


# -- whatever happens -------------------------------------------------------------------------------------------------


class World:
    """Hands out random facts, and keeps the books on what is started and stopped."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.by_hand = ByHand()
        self.by_hand.begin()
        self.chores: list[Doable] = []
        self.active: set[ConnectorTaskId] = set()
        self.given = NO_JOBS
        self.asked: list[RequestId] = []

    def turn(self) -> None:
        getattr(self, self.rng.choice([name for name in dir(type(self)) if name.startswith("on_")]))()
        self.collect()

    def collect(self) -> None:
        """No task is started twice, and each is stopped only when it was started."""
        for start in self.by_hand.take(StartTask):
            assert start.start.task not in self.active, "started twice"
            assert start.start.task in self.given, "started, and not assigned"
            self.active.add(start.start.task)
            self.chores.append(start)
        for restart in self.by_hand.take(RestartTask):
            assert restart.task in self.active, "started again, and nothing is held"
            self.chores.append(restart)
        for stop in self.by_hand.take(StopTask):
            assert stop.task in self.active, "stopped, and not started"
            self.chores.append(stop)
        self.chores += self.by_hand.chores()

    def on_chore(self) -> None:
        if self.chores:
            self.end(self.chores.pop(self.rng.randrange(len(self.chores))))

    def end(self, chore: Doable) -> None:
        if isinstance(chore, StartTask) and self.rng.random() < 0.2:
            self.active.discard(chore.start.task)
            self.by_hand.tell(TaskStartFailed(task=chore.start.task, trace="no"))
        elif isinstance(chore, RestartTask) and self.rng.random() < 0.5:
            self.by_hand.tell(TaskStartFailed(task=chore.task, trace="no"))
        else:
            if isinstance(chore, StopTask):
                self.active.discard(chore.task)
            self.by_hand.do(chore)

    def on_assignment(self) -> None:
        everything = self.by_hand.herder.config.jobs()
        assigned = Jobs.of(job for job in everything - self.given if self.rng.random() < 0.7)
        revoked = Jobs.of(job for job in self.given if self.rng.random() < 0.3)
        self.given = (self.given - revoked) | assigned
        self.by_hand.assign(assigned=assigned, revoked=revoked, leader=ME)

    def on_loss(self) -> None:
        self.given = NO_JOBS
        self.by_hand.tell(Lost(reason="chance"))

    def on_round(self) -> None:
        self.by_hand.tell(ROUND)

    def on_config(self) -> None:
        name = ConnectorName(self.rng.choice("ab"))
        config = {"tasks.max": str(self.rng.randint(1, 3)), "name": name}
        lines = self.rng.choice(
            [
                (config_records.connector_line(name, config, Incarnation(self.rng.choice("xy"))),),
                config_records.task_config_lines(name, [{"share": self.rng.choice("01")}] * self.rng.randint(0, 3)),
                config_records.deletion_lines(name),
                (config_records.target_state_line(name, self.rng.choice(list(TargetState))),),
            ]
        )
        self.by_hand.write(*lines)

    def on_task(self) -> None:
        running = [task for task, run in self.by_hand.herder.work.runs.items() if isinstance(run.state, Running)]
        if running:
            task = self.rng.choice(sorted(running))
            events: list[TaskEvent] = [
                TaskProgressed(task=task, batch_id=1, input_rows=1),
                TaskWaiting(task=task, trace="away"),
                TaskDied(task=task, trace="no", is_held=True),
                TaskDied(task=task, trace="no", is_held=True, can_restart=False),
                TaskDied(task=task, trace="no", is_held=False),
                TaskHalted(task=task),
                TaskClosed(task=task),
            ]
            event = self.rng.choice(events)
            if isinstance(event, TaskHalted | TaskClosed) or (isinstance(event, TaskDied) and not event.is_held):
                self.active.discard(task)
            self.by_hand.tell(event)

    def on_heartbeat(self) -> None:
        self.by_hand.tell(proved(sent_at_ms=self.by_hand.now_ms - self.rng.randint(-10, 10)))

    def on_request(self) -> None:
        name = ConnectorName(self.rng.choice("ab"))
        requests: list[Request] = [
            PutConnector(connector=name, config={"name": name}, replace=True),
            DeleteConnector(connector=name),
            SetTargetState(connector=name, target_state=self.rng.choice(list(TargetState))),
            DescribeConnector(connector=name),
            PutTaskConfigs(connector=name, configs=({"share": "0"},)),
        ]
        self.asked.append(self.by_hand.ask(self.rng.choice(requests)))

    def on_time(self) -> None:
        self.by_hand.now_ms += self.rng.choice([1, 100, 5_000])

    def on_stray_timer(self) -> None:
        timers = [order.timer for order in self.by_hand.orders if isinstance(order, SetTimer)]
        if timers:
            self.by_hand.tell(TimerFired(timer=self.rng.choice(timers)))

    def settle(self) -> None:
        """Chance has had its say: a place that is proved, a last round, and every chore done."""
        self.by_hand.tell(proved(sent_at_ms=self.by_hand.now_ms))
        self.by_hand.assign(leader=ME, revoked=self.given - self.by_hand.herder.config.jobs())
        self.given = self.given & self.by_hand.herder.config.jobs()
        self.by_hand.now_ms += 2_000  # Queries that died are due to be started again.
        self.by_hand.tell(TimerFired(timer="changed jobs"))
        self.collect()
        while self.chores:
            chore = self.chores.pop(0)
            if isinstance(chore, StopTask):
                self.active.discard(chore.task)
            self.by_hand.do(chore)
            self.collect()


@settings(max_examples=100)
@given(st.integers(0, 2**32))
def test_whatever_happens_no_task_runs_twice_and_all_is_answered_in_the_end(seed: int) -> None:
    world = World(Random(seed))
    for _ in range(120):
        world.turn()
    world.settle()
    herder = world.by_hand.herder
    assert not herder.requests.writes
    assert not herder.requests.reads
    assert herder.work.is_all_written
    answers = [world.by_hand.answer(request) for request in world.asked]
    assert None not in answers
    should = {
        task
        for task in herder.place.assigned.tasks
        if herder.config.target_state(task.connector) is TargetState.STARTED
    }
    stuck = {task for task, run in herder.work.runs.items() if isinstance(run.state, Failed | Taken)}
    assert world.active == {task for task in should if herder.config.task_config(task) is not None} - stuck
