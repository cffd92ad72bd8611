"""The tasks of one simulated process: starts and stops take time, and queries die."""

from collections.abc import Callable
from functools import partial

from coterie.herder import messages as herder
from coterie.herder.seams import TaskDied, TaskProgressed, TaskStart
from coterie.herder.tasks import RESTARTS_MAX
from coterie.lab.simulator.fleet.process import Process
from coterie.lab.simulator.fleet.watch import Watch
from coterie.lab.simulator.records import RecordKind
from coterie.nouns.jobs import ConnectorTaskId


class SimTaskRuntime:
    """The task runtime of one process; it writes `Process.active`."""

    def __init__(self, process: Process, watch: Watch, tell: Callable[[herder.Event], None]) -> None:
        """``tell`` passes an event to the process's herder."""
        self._process = process
        self._rng = process.world.rng
        self._watch = watch
        self._tell = tell
        self._held: dict[ConnectorTaskId, TaskStart] = {}
        """The tasks whose checkpoints the process holds, also those whose query has died."""
        self._deaths: dict[ConnectorTaskId, int] = {}
        """Number of times that each task's query died since its last progress."""
        self._stopping: set[ConnectorTaskId] = set()

    def begin(self, chore: herder.StartTask | herder.RestartTask | herder.StopTask) -> None:
        match chore:
            case herder.StartTask(start=start):
                self._start(start)
            case herder.RestartTask(task=task):
                self._restart(task)
            case herder.StopTask(task=task, grace_ms=grace_ms):
                self._stop(task, grace_ms)

    def close(self) -> None:
        self._process.active.clear()
        self._held.clear()

    def mortal(self) -> list[ConnectorTaskId]:
        """The tasks whose queries may die: they are not being stopped, and their herder would restart them."""
        active = sorted(self._process.active.keys() - self._stopping)
        return [task for task in active if self._deaths[task] < RESTARTS_MAX]

    def die(self, task: ConnectorTaskId, *, is_held: bool) -> None:
        """End the query of ``task``; unless ``is_held``, because another worker took the checkpoint over."""
        self._process.world.record(RecordKind.QUERY_DIES, self._process.name, str(task), is_held)
        del self._process.active[task]
        self._deaths[task] += 1
        if not is_held:
            del self._held[task]
        self._tell(TaskDied(task=task, trace="the query died", is_held=is_held))

    # -- chores -------------------------------------------------------------------------------------------------------

    def _start(self, start: TaskStart) -> None:
        self._record(RecordKind.TASK_STARTS, start.task)
        self._held[start.task] = start
        self._deaths[start.task] = 0
        self._watch.on_start(self._process, start.task)
        self._run(start)

    def _restart(self, task: ConnectorTaskId) -> None:
        self._record(RecordKind.TASK_RESTARTS, task)
        self._watch.on_restart(self._process, task, is_held=task in self._held)
        self._run(self._held[task])

    def _stop(self, task: ConnectorTaskId, grace_ms: int) -> None:
        self._process.world.record(RecordKind.TASK_STOPS, self._process.name, str(task), grace_ms)
        self._watch.on_stop(self._process, self._process.active.get(task))
        self._stopping.add(task)
        self._process.after(self._rng.randint(5, max(grace_ms, 5)), partial(self._stopped, task))

    def _run(self, start: TaskStart) -> None:
        self._process.active[start.task] = start
        self._process.after(self._rng.randint(20, 600), partial(self._started, start))

    def _started(self, start: TaskStart) -> None:
        self._process.after(self._rng.randint(100, 2_000), partial(self._progress, start))
        self._tell(herder.TaskStarted(task=start.task))

    def _progress(self, start: TaskStart) -> None:
        if self._process.active.get(start.task) is start:
            self._deaths[start.task] = 0
            self._tell(TaskProgressed(task=start.task, batch_id=0, input_rows=1))

    def _stopped(self, task: ConnectorTaskId) -> None:
        self._process.active.pop(task, None)  # absent if its query has died or the runtime has closed
        self._held.pop(task, None)
        self._stopping.discard(task)
        self._record(RecordKind.TASK_STOPPED, task)
        self._tell(herder.TaskStopped(task=task))

    def _record(self, kind: RecordKind, task: ConnectorTaskId) -> None:
        self._process.world.record(kind, self._process.name, str(task))
