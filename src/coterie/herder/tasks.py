"""Which tasks run here: each is brought from what it is to what it should be, by one chore at a time.

Whatever happened (an assignment, a config, a target state, a query's death), the same comparison decides:
`should_run` against `Run`. So nothing is started twice, and a change that came while a chore was under way is found
when it ends. A start and a stop of one task never overlap; those of different tasks know nothing of each other.
"""

from coterie.engine.lease import Lease
from coterie.herder import place, statuses
from coterie.herder.messages import (
    Say,
    StartTask,
    StopTask,
    TaskStarted,
    TaskStartFailed,
    TaskStopped,
)
from coterie.herder.seams import TaskFailed, TaskHalted, TaskProgressed, TaskStart, TaskTaken
from coterie.herder.state import Herder, Run, Turn
from coterie.nouns.jobs import ConnectorTaskId
from coterie.nouns.membership import ProvedUntil
from coterie.nouns.states import State, TargetState


def should_run(herder: Herder, task: ConnectorTaskId) -> TaskStart | None:
    """What of ``task`` should run here; None when nothing should."""
    connector = herder.config.connector(task.connector)
    config = herder.config.task_config(task)
    if connector is None or config is None or task not in herder.place.assigned or herder.restarting:
        return None
    if herder.config.target_state(task.connector) is not TargetState.STARTED:
        return None
    return TaskStart(task=task, incarnation=connector.incarnation, config=config)


def reconcile(turn: Turn) -> None:
    herder = turn.herder
    for task in herder.place.assigned.tasks - herder.runs.keys():
        herder.runs[task] = Run()
    for task in sorted(herder.runs):
        _reconcile_one(turn, task, herder.runs[task])


def _reconcile_one(turn: Turn, task: ConnectorTaskId, run: Run) -> None:
    herder = turn.herder
    wanted = should_run(herder, task)
    if not (run.starting or run.stopping):
        if run.running and run.start != wanted:
            run.stopping = True
            turn.order(StopTask(task=task, grace_ms=herder.grace_ms(turn.now_ms)))
        elif wanted is not None and not run.running and _may_start(turn, run, wanted):
            run.start = wanted
            run.starting = True
            run.progressed = False
            run.trace = None
            run.starts += 1
            turn.order(StartTask(start=wanted))
    if not run.active and task not in herder.place.assigned:
        statuses.part(turn, task)
        del herder.runs[task]
    else:
        _show(turn, task, run)


def _may_start(turn: Turn, run: Run, wanted: TaskStart) -> bool:
    herder = turn.herder
    if (
        not (herder.caught_up and herder.place.is_counted_in(turn.now_ms))
        or not herder.is_open
        or herder.leaving is not None
    ):
        return False
    failed_so = run.trace is not None and run.start == wanted
    return not failed_so and run.taken_at_ms is None


def _show(turn: Turn, task: ConnectorTaskId, run: Run) -> None:
    herder = turn.herder
    if run.trace is not None:
        statuses.show(turn, task, State.FAILED, run.trace)
    elif run.starting:
        # Whatever its former owner said last is no longer true.
        statuses.show(turn, task, State.UNASSIGNED)
    elif run.running and not run.stopping:
        if run.progressed:
            statuses.show(turn, task, State.RUNNING)
    elif not run.active and herder.restarting:
        statuses.show(turn, task, State.RESTARTING)
    elif not run.active and herder.caught_up:
        if herder.config.task_config(task) is None:
            statuses.forget(turn, task)
        elif herder.config.target_state(task.connector) is TargetState.PAUSED:
            statuses.show(turn, task, State.PAUSED)


# -- what happens to tasks --------------------------------------------------------------------------------------------


def on_started(turn: Turn, event: TaskStarted) -> None:
    run = turn.herder.runs[event.task]
    run.starting = False
    # Its death, or its loss, may have been told before the start returned.
    run.running = run.trace is None and run.taken_at_ms is None


def on_start_failed(turn: Turn, event: TaskStartFailed) -> None:
    run = turn.herder.runs[event.task]
    run.starting = False
    run.trace = event.trace


def on_stopped(turn: Turn, event: TaskStopped) -> None:
    run = turn.herder.runs[event.task]
    run.stopping = run.running = run.progressed = False


def on_progress(turn: Turn, event: TaskProgressed) -> None:
    run = turn.herder.runs.get(event.task)
    if run is not None and (run.running or run.starting):
        run.progressed = True
        run.batch_id = event.batch_id
        run.input_rows += event.input_rows
        _show(turn, event.task, run)


def on_failed(turn: Turn, event: TaskFailed) -> None:
    run = turn.herder.runs.get(event.task)
    if run is None or not run.active or run.stopping:
        return  # It was on its way out; that it is gone is told by the end of its stop.
    run.running = False
    run.trace = event.trace


def on_taken(turn: Turn, event: TaskTaken | TaskHalted) -> None:
    """It runs here no more, and whether it is still ours is not known."""
    run = turn.herder.runs.get(event.task)
    if run is None or not run.active:
        return
    run.taken_at_ms = turn.now_ms
    if not run.stopping:
        run.running = False
    why = "taken by another worker" if isinstance(event, TaskTaken) else "halted, for this worker stood still"
    turn.order(Say(text=f"Task {event.task} was {why}; it stays stopped until it is known to be ours"))


def on_proved(turn: Turn, event: ProvedUntil) -> None:
    """An answer to a heartbeat sent *after* a task was taken says that it is ours still, if it is assigned still.

    An answer from before may have waited in the socket while this worker was the one that was paused.
    """
    herder = turn.herder
    held_back = not herder.place.is_counted_in(turn.now_ms)
    place.prove(turn, event)
    if held_back:
        reconcile(turn)
    sent_at_ms = event.until_ms - Lease(event.session_timeout_ms).proved_ms
    for task, run in list(herder.runs.items()):
        if run.taken_at_ms is not None and sent_at_ms > run.taken_at_ms:
            run.taken_at_ms = None
            _reconcile_one(turn, task, run)
