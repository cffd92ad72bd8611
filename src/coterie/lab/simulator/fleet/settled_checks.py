"""The checks after the last fault: all running workers settle, no further rebalance comes, and one more change takes
few rounds."""

from collections.abc import Callable, Sequence
from functools import partial

from coterie.assignors.assignor_state import union
from coterie.herder.connectors import RETRY_MAX_MS
from coterie.lab.simulator.fleet.cluster import Cluster
from coterie.lab.simulator.fleet.process import Process
from coterie.lab.simulator.fleet.process_faults import FleetFaults
from coterie.lab.simulator.fleet.rounds import job_list_text
from coterie.lab.simulator.fleet.settings import (
    DELAY_MAX_MS,
    HEARTBEAT_INTERVAL_MS,
    REBALANCE_TIMEOUT_MS,
    ROUND_INTERVAL_MS,
    SESSION_TIMEOUT_MS,
)
from coterie.lab.simulator.fleet.users import BURST_CONNECTORS
from coterie.lab.simulator.invariants import Invariant, Violation
from coterie.lab.simulator.records import RecordKind
from coterie.lab.simulator.sim_process import sorted_by_name
from coterie.nouns.jobs import Jobs
from coterie.wire.connect import ConnectProtocol

SETTLE_MS = RETRY_MAX_MS + 2 * SESSION_TIMEOUT_MS + 2 * DELAY_MAX_MS + 2 * REBALANCE_TIMEOUT_MS + 30 * ROUND_INTERVAL_MS
"""How long the workers may take to settle: enough for task configs to reach the leader, for silent members to expire,
for two delays, for two rounds that wait for their slowest member, and for 30 rounds that move one job each."""
QUIET_MS = 3 * DELAY_MAX_MS
"""For this time after the workers have settled, no rebalance may come."""
KEY_ROTATION_DELAY_MAX_MS = 10_000
"""How long after the end of its TTL a session key must have been replaced."""

UNSIGNED_WAIT_MS = 5_000
"""Long enough for a leader to write, read and acknowledge task configs that it accepts."""


class SettledChecks:
    """The checks of one seed. They run the world."""

    def __init__(self, cluster: Cluster, faults: FleetFaults) -> None:
        self._cluster = cluster
        self._faults = faults
        self._world = cluster.world

    @property
    def _processes(self) -> Sequence[Process]:
        """The processes that have not ended, by name."""
        return sorted_by_name(self._faults.live_processes)

    @property
    def _protocol(self) -> str | None:
        """The group's protocol."""
        return self._cluster.coordinator.group.protocol

    # -- settling -----------------------------------------------------------------------------------------------------

    def wait_until_settled(self) -> None:
        """Run until the workers have been settled for a session timeout; then check claims, balance and the configs of
        the running tasks.

        :raises Violation: SETTLES, CLAIMED_ONLY, BALANCED, RUNS_AS_CONFIGURED.
        """
        world = self._world
        until_ms = world.now_ms + SETTLE_MS
        settled_state, unchanged_since_ms = None, world.now_ms
        # The last fault may have an effect only when a lease expires, so the group must be settled for one session.
        while settled_state is None or world.now_ms < unchanged_since_ms + SESSION_TIMEOUT_MS:
            if world.now_ms >= until_ms:
                reason = self._unsettled_reason() or "rounds or task starts continue"
                raise Violation(Invariant.SETTLES, f"{SETTLE_MS} ms after the last change {reason}")
            world.run_until(world.now_ms + HEARTBEAT_INTERVAL_MS)
            current = self._generation_and_start_count() if self._unsettled_reason() is None else None
            if current != settled_state:
                settled_state, unchanged_since_ms = current, world.now_ms
        self._check_claims()
        self._check_balance()
        self._check_running_configs()
        world.add_record(RecordKind.SETTLED, self._cluster.coordinator.group.generation)

    def check_no_rebalance(self) -> None:
        """Run for `QUIET_MS`. No round and no start of a task may come, and the session key must not be too old.

        :raises Violation: QUIET, KEYS_ROTATE.
        """
        state_before = self._generation_and_start_count()
        self._world.run_until(self._world.now_ms + QUIET_MS)
        if self._generation_and_start_count() != state_before:
            generation_now = self._cluster.coordinator.group.generation
            raise Violation(Invariant.QUIET, f"settled in generation {state_before[0]}, then came {generation_now}")
        if (reason := self._unsettled_reason()) is not None:
            raise Violation(Invariant.QUIET, f"settled in generation {state_before[0]}, then {reason}")
        self._check_session_key()

    def check_unsigned_refused(self) -> None:
        """Send task configs without a valid signature, if the group's protocol signs requests, and run for
        `UNSIGNED_WAIT_MS`.

        :raises Violation: SIGNED, when the leader accepts them.
        """
        if self._are_requests_signed:
            self._world.add_record(RecordKind.FORGED)
            self._faults.operators.forge_all_task_configs()
            self._world.run_until(self._world.now_ms + UNSIGNED_WAIT_MS)

    def _generation_and_start_count(self) -> tuple[int, int]:
        """The group's generation and the number of task starts of all workers. A rebalance changes the first, a
        restarted task the second."""
        starts = sum(run.starts for process in self._processes for run in process.herder.work.task_runs.values())
        return self._cluster.coordinator.group.generation, starts

    def _unsettled_reason(self) -> str | None:
        """The reason why the running workers have not settled; None when they have: the group is stable, each job has
        one owner, and each task that should run does."""
        group, log = self._cluster.coordinator.group, self._cluster.config_log
        owned, runnable_tasks, processes = Jobs(), log.runnable_tasks_at(log.end_offset), self._processes
        for process in processes:
            if not process.herder.place.is_settled or process.herder.place.epoch != group.generation:
                return f"{process.name} is in generation {process.herder.place.epoch}, the group in {group.generation}"
            if process.herder.place.assigned != process.assigned_jobs:
                owned_text, assigned_text = (
                    job_list_text(process.herder.place.assigned),
                    job_list_text(process.assigned_jobs),
                )
                return f"{process.name} owns {owned_text}, was assigned {assigned_text}"
            if process.running_tasks.keys() != process.assigned_jobs.tasks & runnable_tasks.keys():
                running = sorted(map(str, process.running_tasks))
                return f"{process.name} runs {running}, owns {job_list_text(process.assigned_jobs)}"
            if process.assigned_jobs & owned:
                return f"{job_list_text(process.assigned_jobs & owned)} is owned by two workers"
            owned |= process.assigned_jobs
        if not self._cluster.coordinator.is_stable:
            return f"the group is {group.phase}"
        if {process.member.member_id for process in processes} != group.members.keys():
            return f"members are {sorted(group.members)}, workers are {[process.name for process in processes]}"
        assignable = self._assignable_jobs(log.configured_jobs_at(log.end_offset))
        if owned != assignable:
            return f"unowned: {job_list_text(assignable - owned)}, not to be owned: {job_list_text(owned - assignable)}"
        if unpublished := [name for name in log.connectors_without_published_tasks() if name in owned.connectors]:
            return f"the task configs of {unpublished} are not written"
        herders = [process.herder for process in processes]
        if any(
            herder.rounds.deferred_until_ms is not None or herder.leader_state.moves_at_ms is not None
            for herder in herders
        ):
            return "a round is due: jobs are deferred, or moves are postponed"
        if drained_names := [
            process.name for process in processes if process.is_draining and not process.assigned_jobs
        ]:
            return f"{drained_names} have drained and have not left"
        return None

    # -- checks of the settled group ----------------------------------------------------------------------------------

    @property
    def _are_requests_signed(self) -> bool:
        """Whether the group's protocol signs requests."""
        return self._protocol not in (ConnectProtocol.EAGER.wire_name, ConnectProtocol.COMPATIBLE.wire_name)

    @property
    def _has_static_protocol(self) -> bool:
        """Whether the group's protocol transmits claims and drains."""
        return self._protocol == ConnectProtocol.STATIC.wire_name

    def _wildcard_processes(self) -> Sequence[Process]:
        """The processes that may run all jobs that no worker claims."""
        if not self._has_static_protocol:
            return self._processes
        return [
            process
            for process in self._processes
            if process.claims is None and not process.herder.lifecycle.is_draining
        ]

    def _claimed_jobs(self) -> Jobs:
        """The jobs that workers claim, without the claims of draining workers."""
        claims = [process.claims for process in self._processes if not process.herder.lifecycle.is_draining]
        return union([claimed for claimed in claims if claimed is not None]) if self._has_static_protocol else Jobs()

    def _assignable_jobs(self, configured: Jobs) -> Jobs:
        """The jobs of ``configured`` that some worker may run, or that a draining worker keeps because no other worker
        may run them."""
        if self._wildcard_processes():
            return configured
        jobs_of_draining = union(
            [process.assigned_jobs for process in self._processes if process.herder.lifecycle.is_draining]
        )
        return configured & (self._claimed_jobs() | jobs_of_draining)

    def _check_claims(self) -> None:
        """No worker owns a job that it may not run.

        :raises Violation: CLAIMED_ONLY.
        """
        claimed = self._claimed_jobs()
        for process in self._processes:
            if not self._has_static_protocol or process.herder.lifecycle.is_draining:
                continue
            ineligible = (
                process.assigned_jobs & claimed if process.claims is None else process.assigned_jobs - process.claims
            )
            if ineligible:
                raise Violation(
                    Invariant.CLAIMED_ONLY, f"{process.name} owns {job_list_text(ineligible)}, which it may not run"
                )

    def _check_balance(self) -> None:
        """The loads of the workers that may run any unclaimed job differ by one job of each kind at most.

        :raises Violation: BALANCED.
        """
        loads = [process.assigned_jobs - self._claimed_jobs() for process in self._wildcard_processes()]
        kinds: dict[str, Callable[[Jobs], int]] = {
            "connectors": lambda jobs: len(jobs.connectors),
            "tasks": lambda jobs: len(jobs.tasks),
            "jobs": len,
        }
        for kind, count_jobs in kinds.items():
            counts = sorted(map(count_jobs, loads))
            if loads and counts[-1] - counts[0] > 1:
                raise Violation(Invariant.BALANCED, f"{kind} by worker are {counts}")

    def _check_running_configs(self) -> None:
        """Each running task has the present config.

        :raises Violation: RUNS_AS_CONFIGURED.
        """
        runnable_tasks = self._cluster.config_log.runnable_tasks_at(self._cluster.config_log.end_offset)
        for process in self._processes:
            for task, spec in process.running_tasks.items():
                if spec != runnable_tasks[task]:
                    texts = [
                        f"{described_spec} with {dict(described_spec.config)}"
                        for described_spec in (spec, runnable_tasks[task])
                    ]  # a repr omits the config
                    raise Violation(Invariant.RUNS_AS_CONFIGURED, f"{process.name} runs {' and not '.join(texts)}")

    def _check_session_key(self) -> None:
        """There is a session key that is not too old, if the group's protocol signs requests.

        :raises Violation: KEYS_ROTATE.
        """
        if not self._are_requests_signed:
            return
        lines = self._cluster.config_log.lines
        written_ms = max((line.timestamp_ms for line in lines if line.key == b"session-key"), default=None)
        if written_ms is None:
            raise Violation(Invariant.KEYS_ROTATE, "there is no session key")
        ttl_ms, old_ms = self._cluster.session_keys.ttl_ms, self._world.now_ms - written_ms
        if ttl_ms and old_ms > ttl_ms + KEY_ROTATION_DELAY_MAX_MS:
            raise Violation(Invariant.KEYS_ROTATE, f"the session key is {old_ms} ms old, its TTL is {ttl_ms} ms")

    # -- one change after the last fault ------------------------------------------------------------------------------

    def check_one_change(self) -> None:
        """Make one random change, wait until the workers have settled, and check how many rounds came and how many
        tasks stopped.

        :raises Violation: FEW_ROUNDS, ONLY_WHAT_MUST_MOVE, or those of `wait_until_settled`.
        """
        faults = self._faults
        # The task configs of an unassigned connector may be outdated: its next owner writes new ones.
        is_stale = bool(self._cluster.config_log.connectors_without_published_tasks())
        # Name, change, number of rounds that it takes, and whether tasks may stop for it.
        changes: list[tuple[str, Callable[[], None], int, bool]] = [
            ("burst", self._create_burst, 4, False),
            ("lag", self._create_during_leader_lag, 5, False),
            ("delete", faults.users.delete_random_connector, 2, True),
            ("join", faults.start_additional_worker, 4 if is_stale else 2, True),
            ("drain", faults.operators.drain_random_worker, 3, True),
            # A session expires; a delay passes; the worker's jobs are assigned; other workers may release jobs.
            ("die", faults.kill_permanently, 4, True),
        ]
        checker = self._cluster.checker
        generation, stops_before, undelivered_before = (
            self._cluster.coordinator.group.generation,
            checker.stop_count,
            checker.undelivered_assignment_count,
        )
        # A late assignment may be overtaken by the next round, which then is an additional one. Without late responses
        # this is rare and costs one round, which assigns the same jobs to the member again.
        self._cluster.network.late_probability = 0
        # A draining worker that had to stay, since no worker could take its jobs, may be able to leave now.
        draining_count = sum(process.is_draining for process in self._processes)
        name, change, rounds_max, may_stop = self._world.rng.choice(changes)
        self._world.add_record(RecordKind.CHANGE, name)
        change()
        rounds_max += draining_count
        self.wait_until_settled()
        rounds_max += checker.undelivered_assignment_count > undelivered_before
        round_count = self._cluster.coordinator.group.generation - generation
        if round_count > rounds_max and self._cluster.policy.moves_per_round_max is None:
            raise Violation(Invariant.FEW_ROUNDS, f"{round_count} rounds came, at most {rounds_max} are needed")
        stop_count = checker.stop_count - stops_before
        if stop_count and not may_stop and self._protocol != ConnectProtocol.EAGER.wire_name:
            raise Violation(Invariant.ONLY_WHAT_MUST_MOVE, f"{stop_count} tasks stop, none needs to")

    def _create_burst(self) -> None:
        """Create several connectors within a short time."""
        for number, name in enumerate(BURST_CONNECTORS):
            if name not in self._cluster.config_log.connector_names():
                self._world.call_after(
                    20 * number, partial(self._faults.users.put_connector, name, self._world.rng.randint(1, 2))
                )

    def _create_during_leader_lag(self) -> None:
        """Create a connector while the leader reads the config log late."""
        self._faults.delay_leader_config_reads()
        self._faults.users.put_connector("late", self._world.rng.randint(1, 2))
