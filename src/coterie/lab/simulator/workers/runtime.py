"""The tasks of one simulated process: their starts and stops take time, some starts fail, and their queries die."""

from collections import Counter
from collections.abc import Callable
from functools import partial

from coterie.herder import messages as herder
from coterie.herder.restart_policy import DEFAULT_RESTART_POLICY
from coterie.herder.seams import TaskDied, TaskProgressed, TaskSpec
from coterie.lab.simulator.records import RecordKind
from coterie.lab.simulator.workers.cluster import SharedByWorkers
from coterie.lab.simulator.workers.process import WorkerProcess
from coterie.nouns.jobs import ConnectorTaskId


class SimTaskRuntime:
    """The task runtime of one process, in place of Spark. It writes `WorkerProcess.running_tasks`."""

    def __init__(
        self, process: WorkerProcess, cluster: SharedByWorkers, feed_herder: Callable[[herder.Event], None]
    ) -> None:
        """``feed_herder`` passes an event to the herder of ``process``."""
        self._process = process
        self._rng = process.world.rng
        self._cluster = cluster
        self._checker = cluster.checker
        self._feed_herder = feed_herder
        self._specs_with_checkpoint: dict[ConnectorTaskId, TaskSpec] = {}
        """For each task whose checkpoint the process holds, also if its query has died: the config with which it was
        started."""
        self._failure_count_by_task: Counter[ConnectorTaskId] = Counter()
        """For each task, how many starts have failed and how many queries have died since its last progress or stop: at
        least the number that the herder counts for its restarts."""
        self._stopping_tasks: set[ConnectorTaskId] = set()
        """The tasks that are being stopped."""

    def begin_chore(self, chore: herder.StartTask | herder.RestartTask | herder.StopTask) -> None:
        """Begin to start, restart or stop a task, as ``chore`` orders. The herder receives the result as an event
        later."""
        match chore:
            case herder.StartTask(spec=spec):
                self._start_task(spec)
            case herder.RestartTask(task=task):
                self._restart_task(task)
            case herder.StopTask(task=task, grace_ms=grace_ms):
                self._stop_task(task, grace_ms)

    def close(self) -> None:
        """End all tasks at once, and give up their checkpoints. The herder receives no event about them."""
        self._process.running_tasks.clear()
        self._specs_with_checkpoint.clear()

    def restartable_running_tasks(self) -> list[ConnectorTaskId]:
        """The tasks whose queries a fault may let die: they run, are not being stopped, and the herder will restart
        them. Sorted."""
        running_tasks = sorted(self._process.running_tasks.keys() - self._stopping_tasks)
        return [task for task in running_tasks if self._would_be_restarted(task)]

    def let_query_die(self, task: ConnectorTaskId, *, holds_checkpoint: bool) -> None:
        """Let the query of the running ``task`` die, and report that to the herder. With ``holds_checkpoint`` False the
        reason is that another worker has taken over the task's checkpoint."""
        self._process.world.add_record(RecordKind.QUERY_DIES, self._process.name, str(task), holds_checkpoint)
        del self._process.running_tasks[task]
        self._failure_count_by_task[task] += 1
        if not holds_checkpoint:
            del self._specs_with_checkpoint[task]
            del self._failure_count_by_task[task]
        self._feed_herder(TaskDied(task=task, trace="the query died", holds_checkpoint=holds_checkpoint))

    # -- chores -------------------------------------------------------------------------------------------------------

    def _start_task(self, spec: TaskSpec) -> None:
        self._record_task(RecordKind.TASK_STARTS, spec.task)
        self._checker.check_task_start(self._process, spec.task)
        if self._process.world.now_ms < self._cluster.task_starts_fail_until_ms and self._would_be_restarted(spec.task):
            self._report_failed_start_later(spec.task)
            return
        self._specs_with_checkpoint[spec.task] = spec
        self._run_query_and_report_later(spec)

    def _report_failed_start_later(self, task: ConnectorTaskId) -> None:
        """Report to the herder, up to 600 ms later, that the start of ``task`` has failed."""
        self._record_task(RecordKind.TASK_START_FAILS, task)
        self._failure_count_by_task[task] += 1
        failed = herder.TaskStartFailed(task=task, trace="no checkpoints", restart_policy=DEFAULT_RESTART_POLICY)
        self._process.call_after(self._rng.randint(20, 600), partial(self._feed_herder, failed))

    def _restart_task(self, task: ConnectorTaskId) -> None:
        self._record_task(RecordKind.FAILED_QUERY_RESTARTS, task)
        self._checker.check_task_restart(self._process, task, holds_checkpoint=task in self._specs_with_checkpoint)
        self._run_query_and_report_later(self._specs_with_checkpoint[task])

    def _stop_task(self, task: ConnectorTaskId, grace_ms: int) -> None:
        self._process.world.add_record(RecordKind.TASK_STOP_ORDERED, self._process.name, str(task), grace_ms)
        self._checker.count_and_check_stop_if_running(self._process, self._process.running_tasks.get(task))
        self._stopping_tasks.add(task)
        self._process.call_after(self._rng.randint(5, max(grace_ms, 5)), partial(self._end_task_and_report, task))

    def _run_query_and_report_later(self, spec: TaskSpec) -> None:
        """Begin to run the task's query; up to 600 ms later, report to the herder that the task has started."""
        self._process.running_tasks[spec.task] = spec
        self._process.call_after(self._rng.randint(20, 600), partial(self._report_started, spec))

    def _report_started(self, spec: TaskSpec) -> None:
        """Report to the herder that the task has started, and up to 2 s later its first progress."""
        self._process.call_after(self._rng.randint(100, 2_000), partial(self._report_progress, spec))
        self._feed_herder(herder.TaskStarted(task=spec.task))

    def _report_progress(self, spec: TaskSpec) -> None:
        """Report progress to the herder and forget the task's failures, unless its query has died or was stopped."""
        if self._process.running_tasks.get(spec.task) is spec:
            del self._failure_count_by_task[spec.task]
            self._feed_herder(TaskProgressed(task=spec.task, batch_id=0, input_rows=1))

    def _end_task_and_report(self, task: ConnectorTaskId) -> None:
        """End the task, give up its checkpoint, and report to the herder that the task has stopped."""
        self._process.running_tasks.pop(task, None)  # absent if its query has died or the runtime has closed
        self._specs_with_checkpoint.pop(task, None)
        self._stopping_tasks.discard(task)
        del self._failure_count_by_task[task]
        self._record_task(RecordKind.TASK_STOPPED, task)
        self._feed_herder(herder.TaskStopped(task=task))

    def _would_be_restarted(self, task: ConnectorTaskId) -> bool:
        """Whether the herder will restart ``task`` after one more failed start or dead query."""
        return self._failure_count_by_task[task] < DEFAULT_RESTART_POLICY.restarts_max

    def _record_task(self, kind: RecordKind, task: ConnectorTaskId) -> None:
        """Add a record of this ``kind`` about ``task``."""
        self._process.world.add_record(kind, self._process.name, str(task))
