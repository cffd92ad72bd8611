"""The tasks of this worker: each is brought from its actual state to its target state, by one chore at a time.

After every event (an assignment, a config, a target state, a failed query), the same comparison decides: `should_run`
against `Run`. So no task is started twice, and a change that came during a chore is found when the chore ends. A start
and a stop of one task never overlap; the chores of different tasks are independent.
"""

from dataclasses import replace

from coterie.engine.lease import Lease
from coterie.herder import closed, connectors, place, statuses
from coterie.herder.messages import (
    RestartTask,
    Say,
    SetTimer,
    StartTask,
    StopTask,
    TaskStarted,
    TaskStartFailed,
    TaskStopped,
)
from coterie.herder.seams import TaskClosed, TaskDied, TaskHalted, TaskProgressed, TaskStart, TaskWaiting
from coterie.herder.state import Herder, Turn
from coterie.herder.timers import RestartDue
from coterie.herder.work import (
    Closed,
    Dead,
    Failed,
    NotStarted,
    Restarting,
    Run,
    Running,
    Starting,
    Stopping,
    Taken,
)
from coterie.nouns.jobs import ConnectorTaskId
from coterie.nouns.membership import ProvedUntil
from coterie.nouns.states import State, TargetState

RESTARTS_MAX = 3
"""The number of restarts of a failed query without progress between them."""
RESTART_BACKOFF_MS = 200
"""The wait before the first of these restarts; it doubles with each restart."""


def should_run(herder: Herder, task: ConnectorTaskId) -> TaskStart | None:
    """The start of ``task`` that should run here; None when the task should not run here."""
    connector = herder.config.connector(task.connector)
    config = herder.config.task_config(task)
    if connector is None or config is None or task not in herder.place.assigned or herder.life.is_relaunching:
        return None
    if herder.config.target_state(task.connector) is not TargetState.STARTED:
        return None
    return TaskStart(task=task, incarnation=connector.incarnation, config=config)


def reconcile(turn: Turn) -> None:
    herder, runs = turn.herder, turn.herder.work.runs
    for task in herder.place.assigned.tasks - runs.keys():
        runs[task] = Run()
    for task in sorted(runs):
        _reconcile_one(turn, task, runs[task])


def _reconcile_one(turn: Turn, task: ConnectorTaskId, run: Run) -> None:
    herder = turn.herder
    wanted = should_run(herder, task)
    match run.state:
        case Running(start=start) | Dead(start=start) if start != wanted:
            run.state = Stopping(start=start)
            turn.order(StopTask(task=task, grace_ms=herder.grace_ms(turn.now_ms)))
        case Dead(start=start, trace=trace, restarts_at_ms=None):
            run.state = Stopping(start=start, then=Failed(start=start, trace=trace))
            turn.order(StopTask(task=task, grace_ms=0))
        case Dead(restarts_at_ms=int(at_ms)) as dead if turn.now_ms >= at_ms and herder.place.is_counted_in(
            turn.now_ms
        ):
            run.state = Restarting(start=dead.start, has_progressed=dead.has_progressed, deaths=dead.deaths)
            turn.order(RestartTask(task=task))
        case NotStarted() | Failed() | Closed() if wanted is not None and _may_start(turn, run, wanted):
            run.state = Starting(start=wanted)
            run.starts += 1
            run.outage = None
            turn.order(StartTask(start=wanted))
        case _:
            pass
    if not run.is_active and task not in herder.place.assigned:
        statuses.part(turn, task)
        del herder.work.runs[task]
    else:
        _show(turn, task, run)


def _may_start(turn: Turn, run: Run, wanted: TaskStart) -> bool:
    herder = turn.herder
    if not (herder.caught_up and herder.place.is_counted_in(turn.now_ms)) or not herder.life.is_open:
        return False
    has_ended_so = isinstance(run.state, Failed | Closed) and run.state.start == wanted
    return not has_ended_so and not herder.life.is_leaving


def _show(turn: Turn, task: ConnectorTaskId, run: Run) -> None:
    herder = turn.herder
    match run.state:
        case Failed(trace=trace):
            statuses.show(turn, task, State.FAILED, trace)
        case Starting() | Running() if run.outage is not None:
            statuses.show(turn, task, State.RESTARTING, run.outage)
        case Starting():
            # The last status of the former owner is no longer valid.
            statuses.show(turn, task, State.UNASSIGNED)
        case Running(has_progressed=True) | Dead(has_progressed=True) | Restarting(has_progressed=True):
            statuses.show(turn, task, State.RUNNING)
        case Closed() if herder.config.target_state(task.connector) is TargetState.STARTED:
            statuses.show(turn, task, State.RESTARTING, "The connector's checkpoints are split again")
        case NotStarted() | Taken() | Closed() if herder.life.is_relaunching:
            statuses.show(turn, task, State.RESTARTING)
        case NotStarted() | Taken() | Closed() if herder.caught_up:
            if herder.config.task_config(task) is None:
                statuses.forget(turn, task)
            elif herder.config.target_state(task.connector) is TargetState.PAUSED:
                statuses.show(turn, task, State.PAUSED)
        case _:
            pass


# -- events of tasks --------------------------------------------------------------------------------------------------


def on_started(turn: Turn, event: TaskStarted) -> None:
    run = turn.herder.work.runs[event.task]
    state = run.state
    assert isinstance(state, Starting | Restarting), f"{event.task} has started, but no start was ordered"
    running = Running(start=state.start, has_progressed=state.has_progressed, deaths=state.deaths)
    run.state = state.end or running


def on_start_failed(turn: Turn, event: TaskStartFailed) -> None:
    run = turn.herder.work.runs[event.task]
    match run.state:
        case Starting(start=start):
            run.state = Failed(start=start, trace=event.trace)
        case Restarting() as state:
            died = TaskDied(task=event.task, trace=event.trace, is_held=True)
            run.state = state.end or _after_death(turn, died, state)
        case _:
            raise AssertionError(f"{event.task} could not start, but no start was ordered")


def on_stopped(turn: Turn, event: TaskStopped) -> None:
    run = turn.herder.work.runs[event.task]
    assert isinstance(run.state, Stopping), f"{event.task} has stopped, but no stop was ordered"
    run.state = run.state.then or NotStarted()


def on_progress(turn: Turn, event: TaskProgressed) -> None:
    run = turn.herder.work.runs.get(event.task)
    if run is None or not run.is_active:
        return
    match run.state:
        case Starting() | Running() | Restarting() as state if state.deaths or not state.has_progressed:
            run.state = replace(state, has_progressed=True, deaths=0)
        case Dead(has_progressed=False) as dead:
            run.state = replace(dead, has_progressed=True)
        case _:
            pass
    run.outage = None
    run.batch_id = event.batch_id
    run.input_rows += event.input_rows
    run.bad_records = event.bad_records
    _show(turn, event.task, run)


def on_waiting(turn: Turn, event: TaskWaiting) -> None:
    run = turn.herder.work.runs.get(event.task)
    if run is None or not run.is_active:
        return
    run.outage = event.trace
    _show(turn, event.task, run)


def on_died(turn: Turn, event: TaskDied) -> None:
    if not event.is_held:
        _on_taken(turn, event.task, "stopped because another worker took its checkpoint over")
        return
    if (run := turn.herder.work.runs.get(event.task)) is None:
        return
    run.outage = None
    match run.state:
        case Running() as state:
            run.state = _after_death(turn, event, state)
        case Starting(end=None) | Restarting(end=None) as state:
            run.state = replace(state, end=_after_death(turn, event, state))
        case _:
            pass  # The task is being stopped; `TaskStopped` ends it.


def on_halted(turn: Turn, event: TaskHalted) -> None:
    _on_taken(turn, event.task, "halted because this worker's event loop was blocked")


def on_closed(turn: Turn, event: TaskClosed) -> None:
    run = turn.herder.work.runs.get(event.task)
    closed.watch(turn, event.task.connector)
    match run and run.state:
        case Running(start=start) | Dead(start=start):
            assert run is not None
            run.state = Closed(start=start)
            connectors.on_closed(turn, start)
        case Starting(end=None) | Restarting(end=None) as state:
            assert run is not None
            run.state = replace(state, end=Closed(start=state.start))
            connectors.on_closed(turn, state.start)
        case _:
            pass  # The task is being stopped; another start would find the checkpoint generation closed again.


def _after_death(turn: Turn, event: TaskDied, before: Starting | Running | Restarting) -> Dead:
    """Schedule a restart on the same checkpoint, `RESTARTS_MAX` times at most. After that, or when no restart can help,
    the task fails."""
    deaths = before.deaths + 1
    restarts_at_ms = None
    if event.can_restart and deaths <= RESTARTS_MAX:
        restarts_at_ms = turn.now_ms + (RESTART_BACKOFF_MS << before.deaths)
        turn.order(SetTimer(timer=RestartDue(task=event.task), at_ms=restarts_at_ms))
    return Dead(
        start=before.start,
        has_progressed=before.has_progressed,
        deaths=deaths,
        trace=event.trace,
        restarts_at_ms=restarts_at_ms,
    )


def _on_taken(turn: Turn, task: ConnectorTaskId, how: str) -> None:
    """The task no longer runs here, and it may be assigned to another worker now."""
    run = turn.herder.work.runs.get(task)
    if run is None or not run.is_active:
        return
    taken = Taken(at_ms=turn.now_ms)
    match run.state:
        case Starting() | Restarting() as state:
            run.state = replace(state, end=taken)
        case Stopping(then=Failed()):
            return  # The task has failed: this start is not tried again.
        case Stopping() as stopping:
            run.state = replace(stopping, then=taken)
        case _:
            run.state = taken
    text = (
        f"Task {task} was {how}. If it is still assigned to this worker, it starts again after the coordinator has "
        "answered a heartbeat that is sent from now on."
    )
    turn.order(Say(text=text))


def on_proved(turn: Turn, event: ProvedUntil) -> None:
    """An answered heartbeat that was sent *after* a task was taken confirms that the task still belongs to this worker,
    if it is still assigned here.

    The response to an earlier heartbeat does not: it may have waited in the socket while this process was paused.
    """
    herder = turn.herder
    held_back = not herder.place.is_counted_in(turn.now_ms)
    place.prove(turn, event)
    if held_back:
        reconcile(turn)
    sent_at_ms = event.until_ms - Lease(event.session_timeout_ms).proved_ms
    for task, run in list(herder.work.runs.items()):
        match run.state:
            case Taken(at_ms=at_ms) if sent_at_ms > at_ms:
                run.state = NotStarted()
                _reconcile_one(turn, task, run)
            case Stopping(then=Taken(at_ms=at_ms)) as state if sent_at_ms > at_ms:
                run.state = replace(state, then=None)
            case _:
                pass
