"""The checks after the last fault in a connect group; also the check that one more change takes few computations of a
target, and stops few tasks."""

from collections.abc import Callable
from functools import partial

from coterie.lab.simulator.connect.cluster import SharedByConnectWorkers
from coterie.lab.simulator.connect.process_faults import ConnectGroupFaults
from coterie.lab.simulator.connect.worker import ConnectGroupWorker
from coterie.lab.simulator.invariants import Invariant, Violation
from coterie.lab.simulator.records import RecordKind
from coterie.lab.simulator.workers.settings import STOP_GRACE_MS
from coterie.lab.simulator.workers.settled_checks import WorkersChecksAfterFaults
from coterie.lab.simulator.workers.users import BURST_CONNECTORS
from coterie.nouns.connect_groups import JOIN_EPOCH


class ConnectChecksAfterFaults(WorkersChecksAfterFaults[ConnectGroupWorker]):
    """The checks after the last fault in the simulation of a connect group with one seed. The public methods advance
    the simulated time."""

    _cluster: SharedByConnectWorkers
    _faults: ConnectGroupFaults

    @property
    def _generation_or_group_epoch(self) -> int:
        return self._cluster.coordinator.group.group_epoch

    @property
    def _are_requests_signed(self) -> bool:
        return True

    @property
    def _transmits_claims(self) -> bool:
        return True

    def _unsettled_member_reason(self, process: ConnectGroupWorker) -> str | None:
        group = self._cluster.coordinator.group
        current = group.currents.get(process.member_id)
        if current is None:
            return f"{process.name} is not a member"
        if process.herder.place.epoch != current.member_epoch or not process.herder.place.has_current_assignment:
            return (
                f"{process.name} has the member epoch {process.herder.place.epoch} or a rebalance in progress, the "
                f"coordinator has {current.member_epoch} for it"
            )
        if group.configured is not None and current.member_epoch == JOIN_EPOCH:
            return f"{process.name} has no target assignment"
        if process.assigned_jobs != current.assigned:
            return f"{process.name} has not received exactly the jobs that the coordinator assigns"
        return None

    def _unsettled_group_reason(self) -> str | None:
        coordinator, processes = self._cluster.coordinator, self._processes
        if not coordinator.is_up_with_stable_group and processes:
            return (
                f"the coordinator is down, or the group is not STABLE (its state is {coordinator.group.group_state()})"
            )
        if {process.member_id for process in processes} != coordinator.group.members.keys():
            members = sorted(coordinator.group.members)
            return f"members are {members}, workers are {[process.name for process in processes]}"
        return None

    def _due_rebalance_reason(self) -> str | None:
        group = self._cluster.coordinator.group
        if group.departed:
            return f"jobs are deferred for, or may still run on, the departed members {sorted(group.departed)}"
        if group.metadata is not None and group.metadata.next_at_ms is not None:
            return "moves are postponed to the next computation"
        return None

    # -- one change after the last fault ----------------------------------------------------------------------------

    def make_and_check_one_change(self) -> None:
        """Make one random change, wait until the workers have settled, and check that no more targets were computed
        than the change needs (unless the policy limits moves), and that no more tasks stopped. Neither is checked if a
        worker has less time to give jobs back than a stop takes.

        :raises Violation: FEW_ROUNDS, ONLY_WHAT_MUST_MOVE, or those of `run_until_settled_and_check`.
        """
        faults = self._faults
        # The task configs of an unassigned connector may be outdated: its next owner writes new ones.
        stale_count = len(self._cluster.config_log.connectors_with_outdated_task_configs())
        draining_count = sum(process.is_draining for process in self._processes)
        # A worker that relaunches after its drain joins again.
        returning_count = sum(process.relaunches_after_drain for process in self._processes)
        # Name, change, number of targets that have to be computed, and the number of tasks that may stop.
        new_connectors = [
            name for name in BURST_CONNECTORS if name not in self._cluster.config_log.sorted_connector_names()
        ]
        # If the drained worker is restarted, it joins again.
        drain_computations_max = 3 if faults.must_restart_drained_worker else 2
        changes: list[tuple[str, Callable[[], None], int, Callable[[], int | None]]] = [
            # The leader reports each connector and its tasks.
            ("burst", partial(self._create_connector_burst, new_connectors), 2 * len(new_connectors) + 2, lambda: 0),
            ("delete", faults.users.delete_random_connector, 2, lambda: None),
            ("join", faults.start_additional_worker, 1, self._task_count_of_additional_worker),
            ("drain", faults.operators.drain_random_worker, drain_computations_max, lambda: None),
            # A session or a connection ends; a delay passes.
            ("die", faults.kill_random_process_permanently, 3, lambda: None),
        ]
        # A worker that takes longer for a stop than its rebalance timeout is removed, stops all tasks, and joins again.
        are_stops_in_time = all(one.worker_setup.rebalance_timeout_ms > STOP_GRACE_MS for one in self._processes)
        name, change, computations_max, stops_max = self._world.rng.choice(changes)
        running_before = {task for process in self._processes for task in process.running_tasks}
        stops_before = len(self._cluster.checker.stopped_tasks)
        computations_before = self._cluster.coordinator.installed_target_count
        self._world.add_record(RecordKind.CHANGE, name)
        change()
        self.run_until_settled_and_check()
        if not are_stops_in_time:
            return
        computations = self._cluster.coordinator.installed_target_count - computations_before
        if (
            computations > computations_max + stale_count + 2 * draining_count + 2 * returning_count
            and self._cluster.policy.moves_per_round_max is None
        ):
            raise Violation(
                Invariant.FEW_ROUNDS,
                f"{computations} targets were computed for the change {name!r}, which needs {computations_max} at most",
            )
        # A task that a target has given to a worker may start there while the next target gives it to another one.
        stopped_tasks = self._cluster.checker.stopped_tasks[stops_before:]
        stop_count, stop_count_max = sum(task in running_before for task in stopped_tasks), stops_max()
        if stop_count_max is not None and not stale_count and not draining_count and stop_count > stop_count_max:
            raise Violation(
                Invariant.ONLY_WHAT_MUST_MOVE,
                f"{stop_count} tasks stop for the change {name!r}, which requires {stop_count_max} stops at most",
            )

    def _task_count_of_additional_worker(self) -> int:
        """The number of tasks that the additional worker now owns. At most this number of tasks may stop when this
        worker joins, because each of these tasks has moved to it."""
        return sum(len(process.assigned_jobs.tasks) for process in self._processes if process.service == "one-more")

    def _create_connector_burst(self, connectors: list[str]) -> None:
        """Request to create ``connectors``, one every 20 ms."""
        for number, name in enumerate(connectors):
            self._world.call_after(
                20 * number, partial(self._faults.users.put_connector, name, self._world.rng.randint(1, 2))
            )
