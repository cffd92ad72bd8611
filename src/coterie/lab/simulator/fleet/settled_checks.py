"""The checks after the last fault in a classic group: also, that one more change takes few rounds."""

from collections.abc import Callable
from functools import partial

from coterie.lab.simulator.fleet.cluster import SharedByClassicWorkers
from coterie.lab.simulator.fleet.process import ClassicWorkerProcess
from coterie.lab.simulator.fleet.process_faults import ClassicGroupFaults
from coterie.lab.simulator.fleet.worker import ClassicGroupWorker
from coterie.lab.simulator.invariants import Invariant, Violation
from coterie.lab.simulator.records import RecordKind
from coterie.lab.simulator.workers.settled_checks import WorkersChecksAfterFaults
from coterie.lab.simulator.workers.users import BURST_CONNECTORS
from coterie.wire.connect import ConnectProtocol


class ClassicChecksAfterFaults(WorkersChecksAfterFaults[ClassicGroupWorker]):
    """The checks after the last fault in the simulation of a classic group with one seed. The public methods advance
    the simulated time."""

    _cluster: SharedByClassicWorkers
    _faults: ClassicGroupFaults

    @property
    def _protocol_wire_name(self) -> str | None:
        """The wire name of the group's protocol; None if the present generation has none yet."""
        return self._cluster.coordinator.group.protocol

    @property
    def _generation_or_group_epoch(self) -> int:
        return self._cluster.coordinator.group.generation

    @property
    def _are_requests_signed(self) -> bool:
        return self._protocol_wire_name not in (ConnectProtocol.EAGER.wire_name, ConnectProtocol.COMPATIBLE.wire_name)

    @property
    def _transmits_claims(self) -> bool:
        return self._protocol_wire_name == ConnectProtocol.STATIC.wire_name

    def _unsettled_member_reason(self, process: ClassicWorkerProcess) -> str | None:
        generation = self._cluster.coordinator.group.generation
        if not process.herder.place.has_current_assignment or process.herder.place.epoch != generation:
            return f"{process.name} is in generation {process.herder.place.epoch}, the group in {generation}"
        return None

    def _unsettled_group_reason(self) -> str | None:
        group = self._cluster.coordinator.group
        if not self._cluster.coordinator.is_up_with_stable_group:
            return f"the coordinator is down, or the group is not STABLE (its phase is {group.phase})"
        if {process.member.member_id for process in self._processes} != group.members.keys():
            return f"members are {sorted(group.members)}, workers are {[process.name for process in self._processes]}"
        return None

    def _due_rebalance_reason(self) -> str | None:
        herders = [process.herder for process in self._processes]
        if any(
            herder.rounds.rebalance_delay_ends_ms is not None or herder.leader_state.moves_at_ms is not None
            for herder in herders
        ):
            return "a round is due: jobs are deferred, or moves are postponed"
        return None

    # -- one change after the last fault ------------------------------------------------------------------------------

    def make_and_check_one_change(self) -> None:
        """Make one random change, wait until the workers have settled, and check that no more rounds came than the
        change needs (unless the policy limits moves), and that no task stopped if the change requires no stop.

        :raises Violation: FEW_ROUNDS, ONLY_WHAT_MUST_MOVE, or those of `run_until_settled_and_check`.
        """
        faults = self._faults
        # The task configs of an unassigned connector may be outdated: its next owner writes new ones.
        is_stale = bool(self._cluster.config_log.connectors_with_outdated_task_configs())
        # Name, change, number of rounds that it takes, and whether tasks may stop for it.
        changes: list[tuple[str, Callable[[], None], int, bool]] = [
            ("burst", self._create_connector_burst, 4, False),
            ("lag", self._create_connector_during_lag, 5, False),
            ("delete", faults.users.delete_random_connector, 2, True),
            ("join", faults.start_additional_worker, 4 if is_stale else 2, True),
            ("drain", faults.operators.drain_random_worker, 3, True),
            # A session expires; a delay passes; the worker's jobs are assigned; other workers may release jobs.
            ("die", faults.kill_random_process_permanently, 4, True),
        ]
        checker = self._cluster.checker
        # In a group whose protocol is eager, the change stops all tasks, also if the change ends that protocol.
        is_eager = self._protocol_wire_name == ConnectProtocol.EAGER.wire_name
        generation, stops_before, undelivered_before, releases_before = (
            self._cluster.coordinator.group.generation,
            checker.stop_count,
            checker.refused_sync_count,
            checker.rejoin_after_release_count,
        )
        # A late assignment may be overtaken by the next round, which then is an additional one. Without late responses
        # this is rare and costs one round, which assigns the same jobs to the member again.
        self._cluster.network.late_probability = 0
        # A draining worker that had to stay, since no worker could take its jobs, may be able to leave now.
        draining_count = sum(process.is_draining for process in self._processes)
        # A worker that relaunches after its drain joins again: the workers may release jobs for it.
        returning_count = sum(process.relaunches_after_drain for process in self._processes)
        name, change, rounds_max, may_stop = self._world.rng.choice(changes)
        self._world.add_record(RecordKind.CHANGE, name)
        change()
        rounds_max += draining_count + 3 * returning_count
        self.run_until_settled_and_check()
        rounds_max += checker.refused_sync_count > undelivered_before
        # The bounds contain one round after the release of revoked jobs. If a job stops after its worker has joined
        # that round, the worker requests another round.
        rounds_max += max(checker.rejoin_after_release_count - releases_before - 1, 0)
        round_count = self._cluster.coordinator.group.generation - generation
        if round_count > rounds_max and self._cluster.policy.moves_per_round_max is None:
            raise Violation(
                Invariant.FEW_ROUNDS,
                f"{round_count} rounds came after the change {name!r}, which needs {rounds_max} at most",
            )
        stop_count = checker.stop_count - stops_before
        if stop_count and not may_stop and not is_eager and not returning_count:
            raise Violation(
                Invariant.ONLY_WHAT_MUST_MOVE,
                f"{stop_count} tasks stop for the change {name!r}, which requires no stop",
            )

    def _create_connector_burst(self) -> None:
        """Request to create those of `BURST_CONNECTORS` that do not exist, one every 20 ms."""
        for number, name in enumerate(BURST_CONNECTORS):
            if name not in self._cluster.config_log.sorted_connector_names():
                self._world.call_after(
                    20 * number, partial(self._faults.users.put_connector, name, self._world.rng.randint(1, 2))
                )

    def _create_connector_during_lag(self) -> None:
        """Request to create a connector while the leader's reads of the config log are delayed by 5 s."""
        self._faults.delay_leader_config_reads()
        self._faults.users.put_connector("late", self._world.rng.randint(1, 2))
