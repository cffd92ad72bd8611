"""Whole workers with simulated shells: from the creation of a connector to its deletion."""

import asyncio

from coterie.herder.requests.orders import SetGroupLoggerLevel
from coterie.herder.requests.reads import ConnectorInfo, ConnectorStatus, DescribeConnector, DescribeConnectorStatus
from coterie.herder.requests.refusals import Problem, RequestRefused, SuccessWithoutContent
from coterie.herder.requests.views import DescribeWorker, WorkerView
from coterie.herder.requests.writes import (
    DeleteConnector,
    DeletedConnector,
    PutConnector,
    SetTargetState,
    WrittenConnector,
)
from coterie.herder.seams import RuntimeDied
from coterie.nouns.jobs import ConnectorName, ConnectorTaskId
from coterie.nouns.logger_levels import LoggerLevel
from coterie.nouns.states import TargetState
from coterie.worker.inbox import now_ms
from coterie.worker.worker import WorkerPhase
from tests.worker.simulated import Cluster, Running, SimulatedRuntime, until

ORDERS, STOCK = ConnectorName("orders"), ConnectorName("stock")


async def states(running: Running, name: ConnectorName = ORDERS) -> tuple[str, list[str]] | None:
    """States of the connector and of its tasks, as one worker reports them."""
    answer = await running.worker.ask(DescribeConnectorStatus(connector=name))
    if not isinstance(answer, ConnectorStatus):
        return None
    return answer.status.state, [status.state for _, status in answer.tasks]


async def until_states(running: Running, connector: str, tasks: list[str], name: ConnectorName = ORDERS) -> None:
    async def is_so() -> bool:
        return await states(running, name) == (connector, tasks)

    await until(is_so)


async def test_a_connector_is_created_runs_and_is_deleted(cluster: Cluster) -> None:
    one = await cluster.start()
    created = await cluster.create("orders", tasks=2)
    assert isinstance(created, WrittenConnector)
    assert created.created
    assert created.info.tasks == ()

    await until_states(one, "RUNNING", ["RUNNING", "RUNNING"])
    assert cluster.running_tasks() == ["orders-0", "orders-1"]
    assert cluster.config_log.keys() == ["connector-orders", "task-orders-0", "task-orders-1", "commit-orders"]

    assert isinstance(await one.worker.ask(DeleteConnector(connector=ORDERS)), DeletedConnector)
    gone = await one.worker.ask(DescribeConnector(connector=ORDERS))
    assert isinstance(gone, RequestRefused)
    assert gone.problem is Problem.NOT_FOUND
    await until(lambda: not cluster.running_tasks())
    await until(lambda: not any(cluster.status_log.latest().values()))


async def test_changing_one_connector_stops_no_task_of_another(cluster: Cluster) -> None:
    """Counts task starts on two workers while a connector is created, changed and deleted."""
    one = await cluster.start()
    await cluster.start()
    await cluster.create("orders", tasks=4)
    await until_states(one, "RUNNING", ["RUNNING"] * 4)
    await cluster.create("stock", tasks=2)
    await until_states(one, "RUNNING", ["RUNNING"] * 2, STOCK)
    await cluster.create("stock", tasks=2, colour="red")
    await until(lambda: cluster.starts()["stock-0"] == 2 and cluster.starts()["stock-1"] == 2)
    assert isinstance(await cluster.leader.worker.ask(DeleteConnector(connector=STOCK)), DeletedConnector)
    await until(lambda: len(cluster.running_tasks()) == 4)
    await cluster.settle()
    starts = {count for task, count in cluster.starts().items() if task.startswith("orders")}
    assert (min(starts) > 1) if cluster.stops_all else (starts == {1})


async def test_a_config_that_changes_nothing_for_a_task_does_not_restart_it(cluster: Cluster) -> None:
    one = await cluster.start()
    await cluster.create("orders", tasks=2)
    await until_states(one, "RUNNING", ["RUNNING"] * 2)
    written = len(cluster.config_log.lines)
    same = {"connector.class": "SimulatedSource", "tasks.max": "2", "name": "orders"}
    answer = await one.worker.ask(PutConnector(connector=ORDERS, config=same, may_replace=True))
    assert isinstance(answer, WrittenConnector)
    assert not answer.created
    await cluster.settle()
    assert len(cluster.config_log.lines) == written + 1, "the same tasks are not published again"
    assert cluster.starts() == {"orders-0": 1, "orders-1": 1}


async def test_pausing_resuming_and_stopping_follow_connects_states(cluster: Cluster) -> None:
    one = await cluster.start()
    two = await cluster.start()
    await cluster.create("orders", tasks=2)
    await until_states(two, "RUNNING", ["RUNNING"] * 2)

    follower = next(running for running in (one, two) if running is not cluster.leader)
    pause = SetTargetState(connector=ORDERS, target_state=TargetState.PAUSED)
    assert await follower.worker.ask(pause) == SuccessWithoutContent(), "any worker may pause"
    await until_states(one, "PAUSED", ["PAUSED"] * 2)
    assert cluster.running_tasks() == []

    resume = SetTargetState(connector=ORDERS, target_state=TargetState.STARTED)
    await follower.worker.ask(resume)
    await until_states(one, "RUNNING", ["RUNNING"] * 2)
    assert len(cluster.running_tasks()) == 2

    stop = SetTargetState(connector=ORDERS, target_state=TargetState.STOPPED)
    assert await cluster.leader.worker.ask(stop) == SuccessWithoutContent()
    await until_states(one, "STOPPED", [])
    assert cluster.running_tasks() == []
    assert cluster.config_log.keys()[-2:] == ["commit-orders", "target-state-orders"]

    await one.worker.ask(resume)
    await until_states(one, "RUNNING", ["RUNNING"] * 2)


async def test_a_connector_created_stopped_gets_its_tasks_when_it_is_resumed(cluster: Cluster) -> None:
    one = await cluster.start()
    config = {"connector.class": "SimulatedSource", "tasks.max": "2", "name": "orders"}
    asked = PutConnector(connector=ORDERS, config=config, may_replace=False, initial_state=TargetState.STOPPED)
    await one.worker.ask(asked)
    await until_states(one, "STOPPED", [])
    assert cluster.config_log.keys() == ["target-state-orders", "connector-orders"]
    await one.worker.ask(SetTargetState(connector=ORDERS, target_state=TargetState.STARTED))
    await until_states(one, "RUNNING", ["RUNNING"] * 2)


async def test_tasks_of_a_leaving_worker_move_and_none_runs_twice(cluster: Cluster) -> None:
    one = await cluster.start()
    two = await cluster.start()
    await cluster.create("orders", tasks=4)
    await until_states(one, "RUNNING", ["RUNNING"] * 4)
    await cluster.settle()
    kept = set(one.runtime.running)
    two.worker.order_shutdown("SIGTERM")
    ended = await two.run
    assert ended.exit_code == 0
    assert two.membership.left
    assert two.runtime.closed
    await until(lambda: len(one.runtime.running) == 4)
    await until_states(one, "RUNNING", ["RUNNING"] * 4)
    assert {cluster.starts()[str(task)] for task in kept} == {2 if cluster.stops_all else 1}


async def test_a_joining_worker_gets_the_tasks_that_the_other_released(cluster: Cluster) -> None:
    one = await cluster.start()
    await cluster.create("orders", tasks=4)
    await until_states(one, "RUNNING", ["RUNNING"] * 4)
    two = await cluster.start()
    await until(lambda: len(one.runtime.running) == len(two.runtime.running) == 2)
    await until_states(two, "RUNNING", ["RUNNING"] * 4)
    assert sum(cluster.starts().values()) == (8 if cluster.stops_all else 6)
    assert len(one.runtime.stops) == (4 if cluster.stops_all else 2)


async def test_a_worker_that_loses_its_membership_stops_all_tasks_and_rejoins_without_jobs(cluster: Cluster) -> None:
    one = await cluster.start()
    await cluster.create("orders", tasks=2)
    await until_states(one, "RUNNING", ["RUNNING"] * 2)
    await cluster.lose(one)
    await until(lambda: len(one.runtime.stops) == 2)
    await until(lambda: len(one.runtime.running) == 2)
    assert cluster.starts() == {"orders-0": 2, "orders-1": 2}


async def test_a_task_whose_checkpoint_was_taken_restarts_only_after_a_later_heartbeat(
    classic_cluster: Cluster,
) -> None:
    one = await classic_cluster.start()
    await classic_cluster.create("orders")
    await until_states(one, "RUNNING", ["RUNNING"])
    task = ConnectorTaskId(ORDERS, 0)
    one.simulated_membership.answer_heartbeat(now_ms())
    before_ms = now_ms()
    one.runtime.fail_query(task, "taken", holds_checkpoint=False)
    await until_phase(one, "taken")
    one.simulated_membership.answer_heartbeat(before_ms - 1)
    await one.worker.ask(DescribeWorker())
    assert one.runtime.starts == [task], "a heartbeat sent before the take-over does not count"
    one.simulated_membership.answer_heartbeat(now_ms() + 1)
    await until(lambda: one.runtime.starts == [task, task])


async def until_phase(running: Running, phase: str) -> None:
    async def is_so() -> bool:
        view = await running.worker.ask(DescribeWorker())
        return isinstance(view, WorkerView) and [task.phase for task in view.tasks] == [phase]

    await until(is_so)


async def test_a_failed_query_is_restarted_on_the_same_worker(classic_cluster: Cluster) -> None:
    one = await classic_cluster.start()
    await classic_cluster.create("orders")
    await until_states(one, "RUNNING", ["RUNNING"])
    task = ConnectorTaskId(ORDERS, 0)
    one.simulated_membership.answer_heartbeat(now_ms())
    one.runtime.fail_query(task, "boom")
    await until(lambda: one.runtime.restarts == [task] and task in one.runtime.running)
    assert one.runtime.starts == [task], "the task was started instead of restarted"
    one.runtime.broken[task] = "it does not start"
    one.runtime.fail_query(task, "boom")
    await until_states(one, "RUNNING", ["FAILED"])
    assert one.runtime.restarts == [task] * 3
    assert not one.runtime.dead


async def test_a_failed_task_shows_its_trace_and_stays_failed(cluster: Cluster) -> None:
    one = await cluster.start()
    await cluster.create("orders", tasks=2)
    await until_states(one, "RUNNING", ["RUNNING"] * 2)
    one.runtime.fail_query(ConnectorTaskId(ORDERS, 1), "java.lang.IllegalStateException: no", can_restart=False)
    await until_states(one, "RUNNING", ["RUNNING", "FAILED"])
    answer = await one.worker.ask(DescribeConnectorStatus(connector=ORDERS))
    assert isinstance(answer, ConnectorStatus)
    assert answer.tasks[1][1].trace == "java.lang.IllegalStateException: no"
    assert cluster.starts() == {"orders-0": 1, "orders-1": 1}


async def test_a_task_that_cannot_start_fails_until_its_config_changes(cluster: Cluster) -> None:
    one = await cluster.start()
    await cluster.create("orders", unstartable="no such path")
    await until_states(one, "RUNNING", ["FAILED"])
    await cluster.create("orders", colour="red")
    await until_states(one, "RUNNING", ["RUNNING"])


async def test_a_connector_that_cannot_be_split_is_failed_with_the_reason(cluster: Cluster) -> None:
    one = await cluster.start()
    await cluster.create("orders", unsplittable="the folder /nowhere does not exist")
    await until_states(one, "FAILED", [])
    answer = await one.worker.ask(DescribeConnectorStatus(connector=ORDERS))
    assert isinstance(answer, ConnectorStatus)
    assert answer.status.trace == "the folder /nowhere does not exist"


async def test_splitting_is_retried_until_the_connectors_server_can_be_reached(cluster: Cluster) -> None:
    runtime = SimulatedRuntime()
    runtime.outages[ORDERS] = 2
    one = await cluster.start(runtime=runtime)
    await cluster.create("orders")
    await until_states(one, "RUNNING", ["RUNNING"])
    assert runtime.outages[ORDERS] == 0


async def test_the_runtime_is_notified_of_a_deleted_connector(cluster: Cluster) -> None:
    one = await cluster.start()
    await cluster.create("orders")
    await until_states(one, "RUNNING", ["RUNNING"])
    one.runtime.forgotten.clear()
    await one.worker.ask(DeleteConnector(connector=ORDERS))
    await until(lambda: one.runtime.forgotten == [ORDERS])


async def test_a_task_without_progress_is_not_shown_as_running(cluster: Cluster) -> None:
    runtime = SimulatedRuntime()
    runtime.progressing = False
    one = await cluster.start(runtime=runtime)
    await cluster.create("orders")
    await until(lambda: one.runtime.running)
    await until_states(one, "RUNNING", ["UNASSIGNED"])


async def test_a_blocked_plug_in_delays_other_connectors_only_in_an_eager_rebalance(
    cluster: Cluster,
) -> None:
    one = await cluster.start()
    gates = {call: asyncio.Event() for call in ("validate a", "split b", "start c")}
    one.runtime.blocked.update(gates)
    blocked = asyncio.create_task(cluster.create("a"))
    await cluster.create("b")
    await cluster.create("c")
    await until(lambda: one.runtime.at_gates == gates.keys())
    await cluster.create("orders")
    others = ["orders-0"]
    if cluster.stops_all:
        # The rebalance for orders ends the start of c-0 after the grace, and c-0 is started again.
        await until(lambda: [str(task) for task in one.runtime.ended_starts] == ["c-0"])
        others = ["c-0", "orders-0"]
    await until(lambda: cluster.running_tasks() == others)
    await until_states(one, "RUNNING", ["RUNNING"])
    for gate in gates.values():
        gate.set()
    await blocked
    await until(lambda: cluster.running_tasks() == ["a-0", "b-0", "c-0", "orders-0"])


async def test_other_asyncio_tasks_run_between_two_steps_of_the_herder(cluster: Cluster) -> None:
    """Otherwise the worker sends no heartbeat until the herder has processed all queued events."""
    running = await cluster.start()
    asked = [asyncio.create_task(running.worker.ask(DescribeWorker())) for _ in range(100)]
    rounds = 0
    while not all(one.done() for one in asked):
        await asyncio.sleep(0)
        rounds += 1
    assert all(isinstance(one.result(), WorkerView) for one in asked)
    assert rounds >= len(asked)


async def test_an_ended_runtime_ends_the_worker_with_the_reason(cluster: Cluster) -> None:
    one = await cluster.start()
    await cluster.create("orders")
    await until_states(one, "RUNNING", ["RUNNING"])
    one.runtime.emit(RuntimeDied(reason="the JVM is gone"))
    ended = await one.run
    assert (ended.exit_code, ended.reason) == (1, "the JVM is gone")
    assert one.membership.left


async def test_a_read_error_of_the_log_shuts_the_worker_down_with_the_reason(cluster: Cluster) -> None:
    one = await cluster.start()
    await cluster.create("orders", tasks=1)
    await until_states(one, "RUNNING", ["RUNNING"])
    cluster.config_log.truncate()
    ended = await one.run
    assert (ended.exit_code, ended.reason) == (1, "the log no longer has its first lines")
    assert one.membership.left
    assert cluster.running_tasks() == []


async def test_a_runtime_that_cannot_open_ends_the_worker_before_it_joins(cluster: Cluster) -> None:
    runtime = SimulatedRuntime()
    runtime.failure = "No Java was found; install one"
    one = await cluster.start(runtime=runtime, wait=False)
    ended = await one.run
    assert (ended.exit_code, ended.reason) == (1, "No Java was found; install one")
    assert not cluster.has_begun


async def test_a_worker_joins_only_when_its_runtime_is_open(cluster: Cluster) -> None:
    runtime = SimulatedRuntime()
    runtime.opens.clear()
    one = await cluster.start(runtime=runtime, wait=False)
    await until(lambda: one.worker.startup_step == "starting the task runtime")
    answer = await one.worker.ask(DescribeConnector(connector=ORDERS))
    assert isinstance(answer, RequestRefused)
    assert answer.problem is Problem.STARTING
    write = asyncio.create_task(
        one.worker.ask(
            PutConnector(connector=ORDERS, config={"connector.class": "X", "name": ORDERS}, may_replace=False)
        )
    )
    assert not cluster.has_begun
    runtime.opens.set()
    await cluster.settle()
    assert one.worker.phase is WorkerPhase.RUNNING
    assert isinstance(await write, WrittenConnector), "a write waits for the start of the worker"


async def test_a_failed_append_refuses_the_write_and_the_next_write_succeeds(cluster: Cluster) -> None:
    await cluster.start()
    cluster.config_log.broken = True
    refused = await cluster.create("orders")
    assert isinstance(refused, RequestRefused)
    assert refused.problem is Problem.LOG_FAILED
    cluster.config_log.broken = False
    assert isinstance(await cluster.create("orders"), WrittenConnector)


async def test_a_write_waits_until_the_log_can_be_reached_again(cluster: Cluster) -> None:
    await cluster.start()
    cluster.config_log.unreachable = True
    write = asyncio.create_task(cluster.create("orders"))
    await until(lambda: cluster.config_log.end_lookups > 1)
    cluster.config_log.unreachable = False
    assert isinstance(await write, WrittenConnector)


async def test_reads_are_served_from_memory_when_the_log_cannot_be_reached(cluster: Cluster) -> None:
    one = await cluster.start()
    await cluster.create("orders")
    await until_states(one, "RUNNING", ["RUNNING"])
    cluster.config_log.unreachable = True
    assert isinstance(await one.worker.ask(DescribeConnector(connector=ORDERS)), ConnectorInfo)
    cluster.config_log.unreachable = False


async def test_every_worker_shows_a_write_as_soon_as_it_is_acknowledged(cluster: Cluster) -> None:
    one = await cluster.start()
    two = await cluster.start()
    for number in range(20):
        await cluster.create(f"c{number}")
        for running in (one, two):
            seen = await running.worker.ask(DescribeConnector(connector=ConnectorName(f"c{number}")))
            assert isinstance(seen, ConnectorInfo)


async def test_a_level_of_a_logger_that_is_written_while_the_runtime_opens_is_set_when_it_is_open(
    cluster: Cluster,
) -> None:
    name = "org.example"
    one, runtime = await cluster.start(), SimulatedRuntime()
    one.runtime.loggers = {name: LoggerLevel.WARN}
    runtime.loggers = {name: LoggerLevel.WARN}
    runtime.opens.clear()
    two = await cluster.start(runtime=runtime, wait=False)
    await until(lambda: two.worker.startup_step == "starting the task runtime")
    assert await one.worker.ask(SetGroupLoggerLevel(logger=name, level=LoggerLevel.DEBUG)) == SuccessWithoutContent()
    await until(lambda: two.worker._herder.config.position == len(cluster.config_log.lines))
    runtime.opens.set()
    await until(lambda: runtime.loggers[name] is LoggerLevel.DEBUG)
    assert one.runtime.loggers[name] is LoggerLevel.DEBUG
