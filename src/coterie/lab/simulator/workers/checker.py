"""The checks of the invariants of simulated workers, whatever the protocol of their group."""

from collections.abc import Mapping, Sequence
from json import loads

from coterie.engine.log import NewTopicRecord
from coterie.herder.requests.kinds import Answer
from coterie.herder.requests.refusals import Done
from coterie.herder.requests.writes import DeleteConnector, PutConnector, SetTargetState, Write
from coterie.herder.seams import TaskSpec
from coterie.lab.simulator.invariants import Invariant, Violation, job_list_text
from coterie.lab.simulator.sim_process import sorted_by_name
from coterie.lab.simulator.workers.config_log import ConfigLog
from coterie.lab.simulator.workers.process import WorkerProcess
from coterie.lab.simulator.world import World
from coterie.nouns.jobs import ConnectorTaskId

LEADER_KEYS = (b"connector-", b"task-", b"commit-", b"session-key")
"""The beginnings of the keys of lines that only the leader may append."""


class WorkersChecker:
    """Checks the workers of one seed. A method raises a `Violation` when an invariant is broken."""

    def __init__(self, world: World, config_log: ConfigLog) -> None:
        self._world = world
        self._config_log = config_log
        self.stop_count = 0
        """Number of task stops ordered so far."""
        self._last_leader = (0, "")
        """The leadership of the last worker that has appended a line as the leader, and the name of its process."""
        self.processes: Mapping[str, WorkerProcess] = {}
        """The processes that have not ended, by name."""

    def on_forged_configs_answered(self, process: WorkerProcess, answer: Answer) -> None:
        """Check the response of the leader ``process`` to forged task configs.

        :raises Violation: SIGNED.
        """
        if isinstance(answer, Done) and self._are_requests_signed(process):
            raise Violation(Invariant.SIGNED, f"{process.name} accepts task configs that no worker has signed")

    def _are_requests_signed(self, process: WorkerProcess) -> bool:
        """Whether ``process`` must refuse task configs without a valid signature."""
        return True

    def on_process_exit(self, process: WorkerProcess, code: int) -> None:
        """Check that ``process``, if its worker was ordered to drain and the process was not ordered to end, exits with
        ``code`` 0 and without jobs and tasks.

        :raises Violation: DRAINED.
        """
        if process.is_draining and not process.is_ending and (code or process.assigned_jobs or process.running_tasks):
            raise Violation(
                Invariant.DRAINED,
                f"{process.name} exits with {code}, and still owns {job_list_text(process.assigned_jobs)}",
            )

    def on_task_stop(self, process: WorkerProcess, spec: TaskSpec | None) -> None:
        """Count and check a stop that the herder orders. ``spec`` is the running task; None if no such task runs.

        :raises Violation: STOPPED_FOR_A_REASON.
        """
        if spec is None:
            return
        self.stop_count += 1
        task, offset = spec.task, process.herder.config.offset
        if process.is_ending or task not in process.assigned_jobs:
            return
        if self._config_log.runnable_tasks_at(offset).get(task) == spec:
            raise Violation(
                Invariant.STOPPED_FOR_A_REASON,
                f"{process.name} stops {task}, which is assigned to it and has its present config",
            )

    def on_write_acknowledged(self, request: Write, process: WorkerProcess, since_offset: int) -> None:
        """Check the success of a user's ``request`` that ``process`` reports: the change is in the log from offset
        ``since_offset`` on, the log's end when the request was sent, and the process has read it.

        :raises Violation: TOLD_IS_WRITTEN.
        """
        expected_entries: Mapping[str, object] | None
        match request:
            case PutConnector(connector=name, config=config):
                key, expected_entries = f"connector-{name}", {"properties": dict(config)}
            case DeleteConnector(connector=name):
                key, expected_entries = f"connector-{name}", None
            case SetTargetState(connector=name, target_state=state):
                key, expected_entries = f"target-state-{name}", {"state.v2": state.value}
            case unexpected_request:
                raise AssertionError(
                    f"a success of a request that the simulated users do not send: {unexpected_request}"
                )
        read_offset = max(process.herder.config.offset, 0)
        for line in self._config_log.lines[since_offset:read_offset]:
            if line.key == key.encode() and _has_entries(line.value, expected_entries):
                return
        raise Violation(
            Invariant.TOLD_IS_WRITTEN, f"{process.name} reports that {key} is written, but has not read it in the log"
        )

    def on_config_append(self, process: WorkerProcess, leadership: int, lines: Sequence[NewTopicRecord]) -> None:
        """Check ``lines``, which ``process`` is about to append to the config log: if only the leader may append one of
        them, the last such line in the log is not of another process that became the leader later. ``leadership`` is
        that of ``process`` when it ordered the append.

        :raises Violation: LEADER_LINES_IN_ORDER.
        """
        keys = [line.key for line in lines if line.key is not None and line.key.startswith(LEADER_KEYS)]
        if not keys:
            return
        last, name = self._last_leader
        if leadership < last and process.name != name:
            raise Violation(
                Invariant.LEADER_LINES_IN_ORDER,
                f"{process.name}, leader number {leadership}, appends {keys} after {name}, leader number {last}",
            )
        self._last_leader = (leadership, process.name)

    def on_task_start(self, process: WorkerProcess, task: ConnectorTaskId) -> None:
        """Check that no other process that runs without a pause and may still be a member runs ``task``, which
        ``process`` is about to start. Not checked if ``process`` was replaced.

        :raises Violation: ONE_OWNER.
        """
        if self._was_removed(process):
            return  # The process has not received the error yet.
        for other_process in sorted_by_name(self.processes):
            if (
                other_process is not process
                and task in other_process.running_tasks
                and self._is_running_member(other_process)
            ):
                raise Violation(Invariant.ONE_OWNER, f"{process.name} starts {task}, which {other_process.name} runs")

    def on_task_restart(self, process: WorkerProcess, task: ConnectorTaskId, *, holds_checkpoint: bool) -> None:
        """Check the restart of ``task`` by ``process`` after its query has died. ``holds_checkpoint``: whether the
        process still holds the task's checkpoint.

        :raises Violation: RESTARTED_IN_PLACE, ONE_OWNER.
        """
        if not holds_checkpoint:
            raise Violation(
                Invariant.RESTARTED_IN_PLACE, f"{process.name} restarts {task}, whose checkpoint was taken over"
            )
        if self._world.now_ms >= process.lease_ends_ms:
            late_ms = self._world.now_ms - process.lease_ends_ms
            raise Violation(
                Invariant.RESTARTED_IN_PLACE, f"{process.name} restarts {task} {late_ms} ms after the end of its lease"
            )
        self.on_task_start(process, task)

    def on_process_resume(self, process: WorkerProcess) -> None:
        """Check ``process``, which is about to resume: if it may still be a member, as after a short pause, no other
        worker runs its tasks.

        :raises Violation: ONE_OWNER.
        """
        if self._may_be_member(process):
            for other_process in sorted_by_name(self.processes):
                shared_tasks = sorted(map(str, process.running_tasks.keys() & other_process.running_tasks.keys()))
                if shared_tasks and other_process is not process and self._is_running_member(other_process):
                    raise Violation(
                        Invariant.ONE_OWNER, f"{process.name} resumes {shared_tasks}, which {other_process.name} runs"
                    )

    def check_expired_processes_stopped(self) -> None:
        """Check that each process without a response for a session timeout has stopped its tasks. Called every second.

        :raises Violation: STOPPED_WHEN_EXPIRED.
        """
        for process in sorted_by_name(self.processes):
            if self._world.now_ms >= process.session_ends_ms and self._should_have_stopped(process):
                self._check_runs_no_task(process, "has had no response for a session timeout")

    def _should_have_stopped(self, process: WorkerProcess) -> bool:
        """Whether ``process`` has had time to stop its tasks. A paused process has not; its time begins when it
        resumes, because it then handles timers and responses in any order."""
        stop_time_ms = process.herder.settings.stop_grace_ms + 300
        return not process.is_paused and process.resumed_at_ms + stop_time_ms < self._world.now_ms

    def _check_runs_no_task(self, process: WorkerProcess, reason: str) -> None:
        """Raise if ``process`` runs tasks; ``reason`` says why it must run none.

        :raises Violation: STOPPED_WHEN_EXPIRED.
        """
        if process.running_tasks:
            runs = sorted(map(str, process.running_tasks))
            raise Violation(Invariant.STOPPED_WHEN_EXPIRED, f"{process.member_id} {reason} and still runs {runs}")

    def _is_running_member(self, process: WorkerProcess) -> bool:
        """Whether ``process`` runs without a pause and may still be a member. If it is no member, the tasks that it
        still runs are fenced: their next owner takes over their checkpoints."""
        return not process.is_paused and self._may_be_member(process)

    def _may_be_member(self, process: WorkerProcess) -> bool:
        """Whether the coordinator may still have ``process`` as a member: the process was not removed, and one of its
        requests of the last session timeout has had a response."""
        return not self._was_removed(process) and self._world.now_ms < process.session_ends_ms

    def _was_removed(self, process: WorkerProcess) -> bool:
        """Whether ``process`` is no longer a member of the group and may not have received the error yet: another
        member has replaced it, or its connection was closed."""
        return False


def _has_entries(value: bytes | None, expected_entries: Mapping[str, object] | None) -> bool:
    """Whether the value of a line has all entries of ``expected_entries``; with ``expected_entries`` None, whether the
    line is a tombstone."""
    if value is None or expected_entries is None:
        return value is None and expected_entries is None
    entries = loads(value)
    return all(entries.get(key) == expected for key, expected in expected_entries.items())
