"""The checks of the invariants of simulated workers, whatever the protocol of their group."""

from collections.abc import Mapping, Sequence
from json import loads

from coterie.engine.log import NewTopicRecord
from coterie.herder.requests.kinds import Answer
from coterie.herder.requests.refusals import SuccessWithoutContent
from coterie.herder.requests.writes import DeleteConnector, PutConnector, SetTargetState, Write
from coterie.herder.seams import TaskSpec
from coterie.lab.simulator.invariants import Invariant, Violation, job_list_text
from coterie.lab.simulator.sim_process import sorted_by_name
from coterie.lab.simulator.workers.config_log import ConfigLog
from coterie.lab.simulator.workers.process import WorkerProcess
from coterie.lab.simulator.world import World
from coterie.nouns.jobs import ConnectorTaskId

LEADER_ONLY_KEY_PREFIXES = (b"connector-", b"task-", b"commit-", b"session-key")
"""The beginnings of keys: a line of the config log whose key begins with one of these may be appended by the leader
only."""
KEYS_THAT_DEPEND_ON_EARLIER_LINES = (b"connector-", b"task-", b"commit-")
"""A leader decides about a line whose key begins with one of these by the lines before it; it may append a session key
without having read all of them."""


class WorkersChecker:
    """Checks the workers in the simulation with one seed. A method raises a `Violation` when an invariant is broken."""

    def __init__(self, world: World, config_log: ConfigLog) -> None:
        self._world = world
        self._config_log = config_log
        self.stop_count = 0
        """Number of stops of running tasks that herders have ordered so far."""
        self._last_leader = (0, "")
        """The leadership number and the name of the process that has last appended a line that only the leader may
        append."""
        self._last_leader_lines: dict[WorkerProcess, tuple[int, Sequence[bytes]]] = {}
        """For each process, the offset and the keys of the last lines that it has appended and that only the leader may
        append."""
        self.processes: Mapping[str, WorkerProcess] = {}
        """The processes that have not ended, by name."""

    def check_forged_configs_refused(self, process: WorkerProcess, answer: Answer) -> None:
        """Check that the leader ``process`` has refused forged task configs, if it must. ``answer`` is its response.

        :raises Violation: SIGNED.
        """
        if isinstance(answer, SuccessWithoutContent) and self._are_requests_signed(process):
            raise Violation(Invariant.SIGNED, f"{process.name} accepts task configs that no worker has signed")

    def _are_requests_signed(self, process: WorkerProcess) -> bool:
        """Whether ``process`` must refuse task configs without a valid signature. Always True in this class."""
        return True

    def check_drained_process_exit(self, process: WorkerProcess, code: int) -> None:
        """Check a process that exits with the exit code ``code``: if the process drains, and was not ordered to end for
        another reason, the code must be 0, and the process must own no jobs and run no tasks.

        :raises Violation: DRAINED.
        """
        if process.is_draining and not process.is_ending and (code or process.assigned_jobs or process.running_tasks):
            raise Violation(
                Invariant.DRAINED,
                f"{process.name}, which drains, exits with code {code}: it owns {job_list_text(process.assigned_jobs)} "
                f"and runs {sorted(map(str, process.running_tasks))}",
            )

    def count_and_check_stop_if_running(self, process: WorkerProcess, spec: TaskSpec | None) -> None:
        """Count the stop of a task that the herder of ``process`` orders, and check that it has a reason: the process
        is ending, the task is no longer assigned to it, or the task should no longer run with this config. ``spec`` is
        the running task; None if the task does not run, and then nothing is counted or checked.

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
                f"{process.name} stops {task}, which is assigned to it and runs with its present config",
            )

    def check_acknowledged_write(self, request: Write, process: WorkerProcess, since_offset: int) -> None:
        """Check that the change of ``request``, a user's request whose success ``process`` reports, is in the config
        log and that ``process`` has read it there. ``since_offset`` is the end of the log when the request was sent:
        the change must be at this offset or later.

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
                    f"bug in the simulator: its users do not send this request, which has succeeded: "
                    f"{unexpected_request}"
                )
        read_offset = max(process.herder.config.offset, 0)
        for line in self._config_log.lines[since_offset:read_offset]:
            if line.key == key.encode() and _has_entries_or_is_tombstone(line.value, expected_entries):
                return
        raise Violation(
            Invariant.TOLD_IS_WRITTEN,
            f"{process.name} reports the success of a change of {key}, but has not read this change in the config log",
        )

    def check_leader_appends_in_order(
        self, process: WorkerProcess, leadership: int, lines: Sequence[NewTopicRecord]
    ) -> None:
        """Check ``lines``, which are about to be appended to the config log for ``process``. Nothing is checked if each
        of ``lines`` may be appended by any worker. Otherwise the process that last appended a line that only the leader
        may append must be ``process`` itself, or a process that did not become the leader later than ``process``; then
        ``process`` is stored as the last one. ``leadership`` is the leadership number that ``process`` had when it
        ordered the append.

        :raises Violation: LEADER_LINES_IN_ORDER.
        """
        keys = [line.key for line in lines if line.key is not None and line.key.startswith(LEADER_ONLY_KEY_PREFIXES)]
        if not keys:
            return
        last, name = self._last_leader
        if leadership < last and process.name != name:
            raise Violation(
                Invariant.LEADER_LINES_IN_ORDER,
                f"{process.name}, with the leadership number {leadership}, appends {keys} after {name}, which has the "
                f"higher number {last}",
            )
        self._last_leader = (leadership, process.name)

    def check_leader_has_read_lines(
        self, process: WorkerProcess, position: int, lines: Sequence[NewTopicRecord]
    ) -> None:
        """Check ``lines``, which are about to be appended to the config log for ``process``. If they depend on earlier
        lines (`KEYS_THAT_DEPEND_ON_EARLIER_LINES`), ``process`` must have read all lines that other processes have
        appended as the leader. ``position`` is how far it had read the log when it ordered the append.

        :raises Violation: LEADER_LINES_READ.
        """
        keys = [line.key for line in lines if line.key is not None and line.key.startswith(LEADER_ONLY_KEY_PREFIXES)]
        if any(key.startswith(KEYS_THAT_DEPEND_ON_EARLIER_LINES) for key in keys):
            for other_process, (offset, other_keys) in self._last_leader_lines.items():
                if other_process is not process and offset >= position:
                    raise Violation(
                        Invariant.LEADER_LINES_READ,
                        f"{process.name}, which has read the config log up to {position}, appends {keys}, but "
                        f"{other_process.name} has appended {other_keys} at {offset}",
                    )
        if keys:
            self._last_leader_lines[process] = (self._config_log.end_offset + len(lines) - 1, keys)

    def check_task_start(self, process: WorkerProcess, task: ConnectorTaskId) -> None:
        """Check that ``task``, which ``process`` is about to start, runs on no other process that may still be a member
        of the group and is not paused. Nothing is checked if ``process`` itself was removed from the group.

        :raises Violation: ONE_OWNER.
        """
        if self._was_replaced_or_cut_off(process):
            return  # The process has not received the error yet.
        for other_process in sorted_by_name(self.processes):
            if (
                other_process is not process
                and task in other_process.running_tasks
                and self._may_run_tasks_as_member(other_process)
            ):
                raise Violation(
                    Invariant.ONE_OWNER, f"{process.name} starts {task}, which {other_process.name} still runs"
                )

    def check_task_restart(self, process: WorkerProcess, task: ConnectorTaskId, *, holds_checkpoint: bool) -> None:
        """Check that ``process`` may restart ``task``, whose query has died, on the same checkpoint: the process holds
        the task's checkpoint (``holds_checkpoint``), its lease has not ended, and no other member runs the task.

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
        self.check_task_start(process, task)

    def check_resumed_tasks_run_nowhere_else(self, process: WorkerProcess) -> None:
        """Check that ``process``, which is about to resume, shares no running task with another process that may still
        be a member of the group. Nothing is checked if ``process`` can no longer be a member, as after a long pause.

        :raises Violation: ONE_OWNER.
        """
        if self._may_still_be_member(process):
            for other_process in sorted_by_name(self.processes):
                shared_tasks = sorted(map(str, process.running_tasks.keys() & other_process.running_tasks.keys()))
                if shared_tasks and other_process is not process and self._may_run_tasks_as_member(other_process):
                    raise Violation(
                        Invariant.ONE_OWNER,
                        f"{process.name} resumes and runs {shared_tasks}, which {other_process.name} runs",
                    )

    def check_expired_processes_stopped(self) -> None:
        """Check that each process whose session has ended (no request of it was answered for a session timeout) runs no
        task, if it has had time to stop them. Called every second.

        :raises Violation: STOPPED_WHEN_EXPIRED.
        """
        for process in sorted_by_name(self.processes):
            if self._world.now_ms >= process.session_ends_ms and self._has_had_time_to_stop(process):
                self._check_runs_no_task(process, "has had no response for a session timeout")

    def _has_had_time_to_stop(self, process: WorkerProcess) -> bool:
        """Whether ``process`` has had time to stop its tasks since its last pause. A paused process has not: this time
        begins when the process resumes, because it then handles its due timers and responses in any order."""
        stop_time_ms = process.herder.settings.stop_grace_ms + 300
        return not process.is_paused and process.resumed_at_ms + stop_time_ms < self._world.now_ms

    def _check_runs_no_task(self, process: WorkerProcess, reason: str) -> None:
        """Check that ``process`` runs no task. ``reason`` is the predicate in the text of the violation that says why.

        :raises Violation: STOPPED_WHEN_EXPIRED.
        """
        if process.running_tasks:
            runs = sorted(map(str, process.running_tasks))
            raise Violation(
                Invariant.STOPPED_WHEN_EXPIRED,
                f"{process.name} (member {process.member_id}) {reason} and still runs {runs}",
            )

    def _may_run_tasks_as_member(self, process: WorkerProcess) -> bool:
        """Whether ``process`` is not paused and may still be a member of the group. The tasks that a process without a
        membership still runs are no violation: their next owner takes over their checkpoints, which fences them."""
        return not process.is_paused and self._may_still_be_member(process)

    def _may_still_be_member(self, process: WorkerProcess) -> bool:
        """Whether the coordinator may still have ``process`` as a member: the process was not removed from the group,
        and a request that it sent within the last session timeout was answered."""
        return not self._was_replaced_or_cut_off(process) and self._world.now_ms < process.session_ends_ms

    def _was_replaced_or_cut_off(self, process: WorkerProcess) -> bool:
        """Whether the coordinator has removed ``process`` from the group, although its session has not ended: another
        member has replaced it, or its connection was closed. The process may not have received the error yet. Always
        False in this class."""
        return False


def _has_entries_or_is_tombstone(value: bytes | None, expected_entries: Mapping[str, object] | None) -> bool:
    """Whether ``value``, the JSON object of a line, has all of ``expected_entries``; with ``expected_entries`` None,
    whether the line is a tombstone."""
    if value is None or expected_entries is None:
        return value is None and expected_entries is None
    entries = loads(value)
    return all(entries.get(key) == expected for key, expected in expected_entries.items())
