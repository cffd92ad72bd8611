"""The checks of the invariants in the simulation of connect groups, at each step of the coordinator and of the workers.

The checks of the coordinator's steps are in `step_checks`, those of the responses in `response_checks`.
"""

from coterie.groups.connect.messages import ConnectionGraceTimer, Heartbeat, Request, Response
from coterie.groups.connect.state import Group
from coterie.groups.effects import TimerFired
from coterie.herder.seams import TaskSpec
from coterie.lab.simulator.connect.coordinator import ConnectCoordinatorStep
from coterie.lab.simulator.connect.process import ConnectWorkerProcess
from coterie.lab.simulator.connect.response_checks import ResponseChecker
from coterie.lab.simulator.connect.step_checks import CoordinatorStepChecker
from coterie.lab.simulator.invariants import Invariant, Violation
from coterie.lab.simulator.sim_process import sorted_by_name
from coterie.lab.simulator.workers.checker import WorkersChecker
from coterie.lab.simulator.workers.config_log import ConfigLog
from coterie.lab.simulator.workers.process import WorkerProcess
from coterie.lab.simulator.world import World
from coterie.nouns.connect_groups import JOIN_EPOCH
from coterie.nouns.ids import MemberId
from coterie.nouns.jobs import ConnectorTaskId


class ConnectGroupChecker(WorkersChecker):
    """Checks the workers and the coordinator of their connect group; implements
    `coordinator.ConnectCoordinatorChecker`."""

    def __init__(self, world: World, config_log: ConfigLog) -> None:
        super().__init__(world, config_log)
        self._steps = CoordinatorStepChecker(world)
        self._responses = ResponseChecker()
        self._cut_off: set[MemberId] = set()
        """The members that the coordinator removed because their connections were closed, and of which it has accepted
        no newer heartbeat since. If a proxy has closed the connection while the process lives, the process runs its
        tasks until its lease ends. Only then may a task run twice at once; the data plane (Spark) refuses the writes of
        the older run."""
        self._last_request_number: dict[MemberId, int] = {}
        """By member, the highest request number of its accepted heartbeats."""
        self._last_run: dict[ConnectorTaskId, tuple[int, str]] = {}
        """By task, the job epoch of its last checked start, and the owner that started it."""
        self.stopped_tasks: list[ConnectorTaskId] = []
        """The running tasks whose stops herders have ordered so far, in the order of these orders; a task may be in the
        list more than once."""

    # -- the coordinator --------------------------------------------------------------------------------------------

    def check_step(self, step: ConnectCoordinatorStep) -> None:
        """Check one step of the coordinator, and store which members it has removed because their connections were
        closed."""
        self._steps.check_step(step)
        match step.event:
            case TimerFired(key=ConnectionGraceTimer(member_id=member_id)) if member_id not in step.group.members:
                self._cut_off.add(member_id)
            case Heartbeat(member_id=member_id, request_number=number) if step.is_accepted_heartbeat:
                # A repeated heartbeat, which arrives late, is no sign that the process has a connection again.
                if number > self._last_request_number.get(member_id, -1):
                    self._last_request_number[member_id] = number
                    self._cut_off.discard(member_id)
            case _:
                pass

    def check_sent_response(self, request: Request, response: Response) -> None:
        """Check ``response`` to ``request`` when it is sent."""
        self._responses.check_sent_response(request, response)

    def check_and_store_loaded_group(self, group: Group) -> None:
        """Check the group that the coordinator has loaded, at its first start or after a crash, and set what is stored
        about its members to the loaded state."""
        self._responses.check_and_store_loaded_group(group)
        self._steps.check_and_store_loaded_group(group)

    # -- workers ----------------------------------------------------------------------------------------------------

    def check_member_epoch_not_lower(self, process: ConnectWorkerProcess, epoch: int) -> None:
        """Check ``epoch``, the member epoch of an assignment that ``process`` receives: unless it is 0, it must not be
        lower than that of the assignment before.

        :raises Violation: CLIENT_EPOCH_RISES.
        """
        if epoch != JOIN_EPOCH and epoch < process.received_epoch:
            raise Violation(
                Invariant.CLIENT_EPOCH_RISES,
                f"{process.name} receives the member epoch {epoch} after {process.received_epoch}",
            )

    def check_leader_read_log_before_report(self, process: ConnectWorkerProcess, config_offset: int) -> None:
        """Check the report of the configured jobs that the leader ``process`` sends. ``config_offset``, the offset up
        to which ``process`` has read the config log, must not be below the end offset that the log had when ``process``
        learned that it is the leader.

        :raises Violation: CONFIGURED_TO_THE_END.
        """
        if max(config_offset, 0) < process.config_log_end_when_led:  # -1: nothing was read
            raise Violation(
                Invariant.CONFIGURED_TO_THE_END,
                f"{process.name} reports the configured jobs at the config offset {config_offset}, but the log ended "
                f"at {process.config_log_end_when_led} when the process learned that it is the leader",
            )

    def check_task_start(self, process: WorkerProcess, task: ConnectorTaskId) -> None:
        """Check that ``process`` may start ``task``, and store the start as the last run of the task. The session of
        ``process`` must not have ended. No other process that may still be a member must run the task. The job epoch
        must not be lower than that of the last run; it must be higher if the last run had another owner, so that the
        data plane (Spark) can refuse the writes of that run.

        Only the session is checked, and nothing is stored, if the coordinator has removed the member of ``process``
        because its connection was closed, and has accepted no heartbeat of this member since.

        :raises Violation: ONE_OWNER, STOPPED_WHEN_EXPIRED, STALE_EFFECT.
        """
        assert isinstance(process, ConnectWorkerProcess)
        if self._world.now_ms >= process.session_ends_ms:
            raise Violation(
                Invariant.STOPPED_WHEN_EXPIRED, f"{process.name} starts {task} after the end of its session"
            )
        if process.member_id in self._cut_off:
            return
        for other in sorted_by_name(self.processes):
            if other is not process and task in other.running_tasks and self._may_still_be_member(other):
                raise Violation(Invariant.ONE_OWNER, f"{process.name} starts {task}, which {other.name} still runs")
        owner = process.instance_id or process.member_id
        epoch = process.job_epochs.get(task)
        last_epoch, last_owner = self._last_run.get(task, (0, owner))
        if epoch is None or epoch < last_epoch or (epoch == last_epoch and owner != last_owner):
            raise Violation(
                Invariant.STALE_EFFECT,
                f"{process.name} starts {task} with the job epoch {epoch}, but {last_owner} has started it with "
                f"{last_epoch}",
            )
        self._last_run[task] = (epoch, owner)

    def check_drained_process_exit(self, process: WorkerProcess, code: int) -> None:
        # A job may be assigned to a drained worker that is about to leave: the worker does not start it.
        if process.is_draining and not process.is_ending and (code or process.running_tasks):
            runs = sorted(map(str, process.running_tasks))
            raise Violation(
                Invariant.DRAINED,
                f"{process.name}, which drains, exits with code {code} while it runs the tasks {runs}: a drained "
                "worker must exit with code 0 and without a task",
            )

    def count_and_check_stop_if_running(self, process: WorkerProcess, spec: TaskSpec | None) -> None:
        super().count_and_check_stop_if_running(process, spec)
        if spec is not None:
            self.stopped_tasks.append(spec.task)

    def _may_run_tasks_as_member(self, process: WorkerProcess) -> bool:
        # A paused process counts, too: its jobs stay held until its session ends.
        return self._may_still_be_member(process)

    def _was_replaced_or_cut_off(self, process: WorkerProcess) -> bool:
        return process.member_id in self._cut_off
