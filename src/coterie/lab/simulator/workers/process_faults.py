"""The starts and the faults of workers; and random changes: of settings, drains, requests of users. Each fault ends
after some time, and at the end no fault is left."""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Generic, TypeVar

from coterie.lab.simulator.faults import FaultInjector
from coterie.lab.simulator.infrastructure_faults import FaultyServer, InfrastructureFaults
from coterie.lab.simulator.network import Direction
from coterie.lab.simulator.records import RecordKind
from coterie.lab.simulator.sim_process import newest_process, sorted_by_name
from coterie.lab.simulator.workers.cluster import SharedByWorkers
from coterie.lab.simulator.workers.operators import Operators
from coterie.lab.simulator.workers.users import CONNECTOR_NAMES, ConnectorUsers
from coterie.lab.simulator.workers.worker import SimWorker
from coterie.nouns.jobs import NO_JOBS, ConnectorName, ConnectorTaskId, Jobs
from coterie.nouns.membership import Handover

WORKER_NAMES = ("w1", "w2", "w3", "w4", "w5", "w6")
"""The names of the workers; a seed has the first few of them."""
WorkerT = TypeVar("WorkerT", bound=SimWorker)


class WorkersFaults(FaultInjector[WorkerT], Generic[WorkerT]):
    """Starts the workers, and injects the faults and sends the requests of users and operators in the simulation with
    one seed. At the end of the faults the paused processes resume, missing workers start unless they were killed
    permanently, and the coordinator crashes once more. A base class: a subclass chooses the settings of the workers,
    and then calls `_choose_and_set_worker_faults`."""

    def __init__(self, cluster: SharedByWorkers, coordinator: FaultyServer) -> None:
        names = WORKER_NAMES[: cluster.world.rng.randint(2, len(WORKER_NAMES))]
        super().__init__(cluster.world, InfrastructureFaults(cluster.world, cluster.network, coordinator, names), names)
        self._cluster = cluster
        self.users = ConnectorUsers(cluster, self.live_processes)
        self.operators = Operators(cluster, self.live_processes)
        cluster.on_process_failed = self._schedule_restart
        cluster.on_worker_drained = self._maybe_restart_drained_worker
        cluster.relaunch = self._start_relaunched_process
        self._workers_to_start_later: list[str] = []
        """The workers that have not started yet. `_start_next_worker` starts the last one in the list."""

    def _choose_and_set_worker_faults(self, faults_of_protocol: Mapping[Callable[[], None], int]) -> None:
        """Choose the workers that start later, and the faults of this seed: each possible fault is left out with a
        probability of 25 %. ``faults_of_protocol`` are the possible faults that only this protocol of the group has,
        with their weights."""
        self._workers_to_start_later = list(self._services[self._rng.randint(1, len(self._services)) :])
        weight_by_fault = {
            self._pause_random_process: 4,
            self._delay_pause_and_cut_random_process: 2,
            self._drop_large_messages: 2,
            self._kill_and_restart_random_process: 4,
            self._kill_and_restart_several_processes: 1,
            self._kill_and_restart_leader: 2,
            self._shut_down_and_restart_random_worker: 2,
            self.kill_random_process_permanently: 1,
            self._maybe_pause_and_start_second_process: 2,
            self._start_next_worker: 3,
            self._delay_random_config_reads: 2,
            self._let_random_query_die: 4,
            self._let_task_starts_fail_everywhere: 2,
            **faults_of_protocol,
            self._restart_with_random_claims: 2,
            self.operators.drain_random_worker: 6,
            self.operators.cancel_random_drain: 2,
            self.operators.restart_random_worker: 2,
            self.operators.send_forged_task_configs: 1,
            self.users.put_random_connector: 3,
            self.users.put_connector_burst: 1,
            self.users.delete_connector_burst: 1,
            self.users.delete_random_connector: 1,
            self.users.set_random_target_state: 2,
        }
        # Each seed omits some faults: some bugs show only where other faults do not interfere.
        self._set_faults_and_choose_interval(
            {fault: weight for fault, weight in weight_by_fault.items() if self._rng.random() < 0.75},
            mean_intervals_ms=(2_000, 6_000, 15_000, 40_000),
        )

    @abstractmethod
    def _change_worker_setup(self, name: str, **settings: Any) -> None:
        """Change the ``settings`` of the worker ``name``: its next process uses the new values."""

    @abstractmethod
    def _start_process(self, name: str, handover: Handover | None = None) -> None:
        """Start a process of the worker ``name`` now. ``handover`` is the membership that the process continues; None:
        it joins as a new member."""

    def _random_claims_maybe_empty(self) -> Jobs:
        """Random claims of a worker: no job at all, or a few jobs. Other workers may claim some of these jobs, too, and
        some of these jobs may never be configured."""
        if self._rng.random() < 0.2:
            return NO_JOBS
        connectors = [ConnectorName(name) for name in (*CONNECTOR_NAMES, "absent")]
        tasks = [ConnectorTaskId(name, number) for name in connectors for number in range(4)]
        return Jobs(
            frozenset(name for name in connectors if self._rng.random() < 0.3),
            frozenset(task for task in tasks if self._rng.random() < 0.3),
        )

    def schedule_starts_and_faults(self) -> None:
        """Schedule the starts of the first workers, each in the next 4 s, the requests to create connectors, from 6 s
        on, and the first fault; begin the checks of every second."""
        for name in self._services:
            if name not in self._workers_to_start_later:
                self._world.call_after(self._rng.randint(0, 4_000), partial(self.start_service_if_missing, name))
        for number, connector in enumerate(CONNECTOR_NAMES[: self._rng.randint(1, len(CONNECTOR_NAMES))]):
            self._world.call_after(
                6_000 + 50 * number, partial(self.users.put_connector, connector, self._rng.randint(1, 6))
            )
        self._schedule_next_fault()
        self._check_every_second()

    def _check_every_second(self) -> None:
        """Run the checks of every second now, and again in one second."""
        self._cluster.checker.check_expired_processes_stopped()
        self._world.call_after(1_000, self._check_every_second)

    def end_process_faults(self) -> None:
        """Resume paused processes, start each worker that has no process or one that is ending, except those in
        ``_never_restarted``, create a connector later if there is none, and crash the coordinator once more."""
        self._cluster.config_read_delay_ms.clear()
        self._cluster.task_starts_fail_until_ms = 0
        self._workers_to_start_later.clear()
        for process in sorted_by_name(self.live_processes):
            self._resume_process_if_paused(process)
        for name in self._services:
            newest = newest_process(self.live_processes, name)
            if (newest is None or newest.is_ending) and name not in self._never_restarted:
                self._prepare_start_after_faults(name)
                self.start_service_if_missing(name)
        if not self._cluster.config_log.sorted_connector_names():
            self._world.call_after(
                6_000, partial(self.users.put_connector, CONNECTOR_NAMES[0], self._rng.randint(1, 6))
            )
        self._infrastructure_faults.crash_and_restart_coordinator()

    def _prepare_start_after_faults(self, name: str) -> None:
        """Called before the worker ``name`` starts after the last fault. Does nothing in this class."""

    def delay_leader_config_reads(self) -> None:
        """For 5 s, delay the leader's reads of the config log by 5 s. While the leader has read less of the log than
        another member, its rounds assign nothing."""
        for process in sorted_by_name(self.live_processes):
            if process.herder.place.is_leader_with_current_assignment:
                self._delay_config_reads(process.service, 5_000, lasts_ms=5_000)

    def _is_fenced_when_replaced(self, process: WorkerT) -> bool:
        """Whether ``process`` receives an error and ends when a second process of the same worker joins the group.
        False in this class."""
        return False

    # -- faults ------------------------------------------------------------------------------------------------------

    def _resume_process_if_paused(self, process: WorkerT) -> None:
        """Check and resume ``process``, if it is paused and has not ended. If a newer process of the same worker runs,
        and ``process`` does not end itself because of that, it is killed in the next 3 s."""
        if not (process.is_alive and process.is_paused):
            return
        self._cluster.checker.check_resumed_tasks_run_nowhere_else(process)
        super()._resume_process_if_paused(process)
        if newest_process(self.live_processes, process.service) is not process and not self._is_fenced_when_replaced(
            process
        ):
            # It was replaced while it was paused; the operator ends it as soon as it can be reached again.
            self._world.call_after(
                self._rng.randint(1, 3_000), partial(self._kill_replaced_and_start_if_missing, process)
            )

    def _delay_pause_and_cut_random_process(self) -> None:
        """Overload the host of a random process: for 1.5 s responses arrive late, then the process pauses, then it
        resumes while its link is still cut.

        A response that arrives during the pause is read only when the process resumes, and no other response arrives
        soon after it.
        """
        process = self._random_process()
        if process is None or process.is_paused:
            return
        link = self._cluster.network.find_or_add_link_faults(process.service)
        link.delayed_until_ms[Direction.TO_WORKER] = self._world.now_ms + 1_500
        pause_ms, link_cut_after_pause_ms = self._rng.choice((4_000, 6_000)), self._rng.choice((3_000, 7_000))
        self._world.call_after(
            1_200, partial(self._pause_for, process, pause_ms, link_cut_after_pause_ms=link_cut_after_pause_ms)
        )

    def _drop_large_messages(self) -> None:
        """Let the link of a random worker lose large messages, for 8 or 20 s."""
        name = self._rng.choice(self._services)
        link = self._cluster.network.find_or_add_link_faults(name)
        link.drops_large_messages = True
        self._world.add_record(RecordKind.NARROW, name)

        def end_losses() -> None:
            link.drops_large_messages = False

        self._infrastructure_faults.ends.end_after(
            self._rng.choice((8_000, 20_000)), ("large messages", name), end_losses
        )

    def _kill_replaced_and_start_if_missing(self, process: WorkerT) -> None:
        """Kill ``process``, which a newer process of its worker has replaced, unless it has ended. Start the worker if
        it then has no process."""
        if process.is_alive:
            process.kill(RecordKind.REPLACED)
            self.start_service_if_missing(process.service)  # if no other process of the worker runs by now

    def _maybe_pause_and_start_second_process(self) -> None:
        """Start a second process of the worker of a random process, as an operator does on another host when the first
        process cannot be reached: the first process pauses for 2 to 20 s. If the first process ends itself when another
        one replaces it, it does not pause in 30 % of the cases. Does nothing if the random process is not the newest
        one of its worker, or has to pause and is paused already."""
        process = self._random_process()
        if process is None or newest_process(self.live_processes, process.service) is not process:
            return
        if not self._is_fenced_when_replaced(process) or self._rng.random() < 0.7:
            if process.is_paused:
                return
            process.pause()
            self._world.call_after(
                self._rng.choice((2_000, 8_000, 20_000)), partial(self._resume_process_if_paused, process)
            )
        self._start_process(process.service)

    def _kill_and_restart_several_processes(self) -> None:
        """Kill two or three random processes; their workers start again some time later."""
        for _ in range(self._rng.randint(2, 3)):
            self._kill_and_restart_random_process()

    def _kill_and_restart_leader(self) -> None:
        """Kill the first process, by name, that acts as the leader, if there is one; its worker starts again some time
        later."""
        for process in sorted_by_name(self.live_processes):
            if process.herder.place.is_leader_with_current_assignment:
                process.kill(RecordKind.LEADER_KILLED)
                self._schedule_restart(process.service)
                return

    def _shut_down_and_restart_random_worker(self) -> None:
        """Shut a random worker down cleanly, if it is not paused; it starts again some time later."""
        process = self._random_process()
        if process is not None and not process.is_paused:
            process.shut_down()
            self._schedule_restart(process.service)

    def _start_next_worker(self) -> None:
        """Start one of the workers that have not started yet, if there is one."""
        if self._workers_to_start_later:
            self.start_service_if_missing(self._workers_to_start_later.pop())

    def _delay_random_config_reads(self) -> None:
        """Delay the reads of the config log by a random worker by 0.5 to 9 s, for 1 to 30 s."""
        name = self._rng.choice(self._services)
        read_delay_ms = self._rng.choice((500, 2_000, 5_000, 9_000))
        self._delay_config_reads(name, read_delay_ms, lasts_ms=self._rng.randint(1_000, 30_000))

    def _delay_config_reads(self, name: str, read_delay_ms: int, *, lasts_ms: int) -> None:
        """For ``lasts_ms``, delay the reads of the config log by the worker ``name`` by ``read_delay_ms``."""
        self._cluster.config_read_delay_ms[name] = read_delay_ms
        self._world.add_record(RecordKind.READS_LATE, name, read_delay_ms)

        def end_delay() -> None:
            self._cluster.config_read_delay_ms.pop(name, None)

        self._infrastructure_faults.ends.end_after(lasts_ms, ("config reads", name), end_delay)

    def _let_random_query_die(self) -> None:
        """Let the query of a random task of a random process die; in 20 % of the cases because another worker has taken
        over the task's checkpoint. In 30 % of the cases the process pauses soon after this."""
        process = self._random_process()
        if process is None or process.is_paused or not (tasks := process.runtime.restartable_running_tasks()):
            return
        process.runtime.let_query_die(self._rng.choice(tasks), holds_checkpoint=self._rng.random() < 0.8)
        if self._rng.random() < 0.3:
            pause_ms = self._rng.choice((2_000, 5_000, 8_000))
            self._world.call_after(self._rng.randint(1, 200), partial(self._pause_for, process, pause_ms))

    def _let_task_starts_fail_everywhere(self) -> None:
        """For 0.5 to 10 s, let starts of tasks fail on all workers. Not affected are running tasks, restarts after
        the death of a query, and starts of tasks that the herder would not start again."""
        lasts_ms = self._rng.choice((500, 2_000, 10_000))
        self._cluster.task_starts_fail_until_ms = self._world.now_ms + lasts_ms
        self._world.add_record(RecordKind.CHECKPOINTS_AWAY, lasts_ms)

    def _pause_for(self, process: WorkerT, pause_ms: int, *, link_cut_after_pause_ms: int = 0) -> None:
        """Pause ``process`` for ``pause_ms``. If ``link_cut_after_pause_ms`` is not 0, also cut its link from now until
        ``link_cut_after_pause_ms`` after the pause. Does nothing if the process has ended or is paused, or the faults
        have ended."""
        if process.is_alive and not process.is_paused and not self._have_faults_ended:
            process.pause()
            self._world.call_after(pause_ms, partial(self._resume_process_if_paused, process))
            if link_cut_after_pause_ms:
                self._infrastructure_faults.cut_link(process.service, pause_ms + link_cut_after_pause_ms)

    def _restart_with_random_claims(self) -> None:
        """Set random claims, or no claims, for a random worker, and restart the worker."""
        claims = self._random_claims_maybe_empty() if self._rng.random() < 0.6 else None
        self._restart_with_settings(self._rng.choice(self._services), claims=claims)

    def _restart_with_settings(self, name: str, **settings: Any) -> None:
        """Change the ``settings`` of the worker ``name``. If a process of it runs without a pause, shut this process
        down, and start the worker again after 0.5 or 3 s. Does nothing after the faults have ended."""
        if self._have_faults_ended:
            return
        self._change_worker_setup(name, **settings)
        process = newest_process(self.live_processes, name)
        if process is not None and not process.is_paused:
            process.shut_down()
            self._world.call_after(self._rng.choice((500, 3_000)), lambda: self.start_service_if_missing(name))

    def _maybe_restart_drained_worker(self, service: str) -> None:
        """Schedule the restart of the worker ``service``, which has drained and left, or never restart it. During the
        faults about 70 % are restarted, after the faults none; the last worker that may still be restarted always
        is."""
        if (self._have_faults_ended or self._rng.random() < 0.3) and not self.must_restart_drained_worker:
            self._never_restarted.add(service)
        else:
            self._schedule_restart(service)

    @property
    def must_restart_drained_worker(self) -> bool:
        """Whether a worker that has drained and left is always restarted: at most one may still be restarted."""
        return len(self._services) - len(self._never_restarted) <= 1

    def _start_relaunched_process(self, service: str, handover: Handover | None) -> None:
        """Start the next process of the worker ``service``, unless another process of this worker runs. It continues
        the membership ``handover``; None: it joins as a new member."""
        if newest_process(self.live_processes, service) is None:
            self._start_process(service, handover)

    def _schedule_restart(self, service: str) -> None:
        in_ms = self._rng.choice((1_000, 4_000, 9_000, 30_000))
        # A worker that ends after the last fault starts again before the check for a settled group.
        self._world.call_after(
            1_000 if self._have_faults_ended else in_ms, lambda: self.start_service_if_missing(service)
        )

    def start_service_if_missing(self, service: str) -> None:
        """Start a process of the worker ``service``, unless one runs, ``service`` is in ``_never_restarted``, or it is
        in the list of the workers that have not started yet. If its process is ending, try again every 0.5 s."""
        if service in self._never_restarted or service in self._workers_to_start_later:
            return
        process = newest_process(self.live_processes, service)
        if process is None:
            self._start_process(service)
        elif process.is_ending:
            # The worker's previous process has not ended yet.
            self._world.call_after(500, lambda: self.start_service_if_missing(service))
