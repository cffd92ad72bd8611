"""The checks after the last fault, whatever the protocol of the group: all running workers settle, and no further
rebalance comes."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Generic

from coterie.assignors.assignor_state import union_of_jobs
from coterie.herder.connectors import RETRY_MAX_MS
from coterie.lab.simulator.invariants import Invariant, Violation, job_list_text
from coterie.lab.simulator.records import RecordKind
from coterie.lab.simulator.sim_process import sorted_by_name
from coterie.lab.simulator.workers.cluster import SharedByWorkers
from coterie.lab.simulator.workers.process_faults import WorkersFaults, WorkerT
from coterie.lab.simulator.workers.settings import (
    HEARTBEAT_INTERVAL_MS,
    REBALANCE_TIMEOUT_MS,
    ROUND_INTERVAL_MS,
    SCHEDULED_REBALANCE_DELAY_MS,
    SESSION_TIMEOUT_MS,
)
from coterie.nouns.jobs import Jobs

SETTLE_TIMEOUT_MS = (
    RETRY_MAX_MS
    + 2 * SESSION_TIMEOUT_MS
    + 2 * SCHEDULED_REBALANCE_DELAY_MS
    + 2 * REBALANCE_TIMEOUT_MS
    + 30 * ROUND_INTERVAL_MS
)
"""How long the workers may take to settle when no fault is left: enough for task configs to reach the leader, for the
sessions of dead members to expire, for two scheduled rebalance delays, for two rounds that wait for their slowest
member, and for 30 rounds that move one job each."""
QUIET_DURATION_MS = 3 * SCHEDULED_REBALANCE_DELAY_MS
"""For this time after the workers have settled, no rebalance may come."""
KEY_ROTATION_DELAY_MAX_MS = 10_000
"""How long after the end of its TTL a session key may still be the newest one."""

FORGED_CONFIGS_WAIT_MS = 5_000
"""How long a check waits after forged task configs were sent: long enough for a leader to write, read and acknowledge
task configs that it accepts."""


class WorkersChecksAfterFaults(ABC, Generic[WorkerT]):
    """The checks after the last fault in the simulation with one seed. The public methods advance the simulated
    time."""

    def __init__(self, cluster: SharedByWorkers, faults: WorkersFaults[WorkerT]) -> None:
        self._cluster = cluster
        self._faults = faults
        self._world = cluster.world

    @property
    def _processes(self) -> Sequence[WorkerT]:
        """The processes that have not ended, sorted by name."""
        return sorted_by_name(self._faults.live_processes)

    # -- of the group's protocol --------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def _generation_or_group_epoch(self) -> int:
        """The generation of a classic group, or the group epoch of a connect group: it rises with each rebalance."""

    @property
    @abstractmethod
    def _are_requests_signed(self) -> bool:
        """Whether the group's protocol signs requests."""

    @property
    @abstractmethod
    def _transmits_claims(self) -> bool:
        """Whether the members report their claims and drains to the group with its present protocol."""

    @abstractmethod
    def _unsettled_member_reason(self, process: WorkerT) -> str | None:
        """The reason why ``process`` has not settled as a member of the group; None when it has."""

    @abstractmethod
    def _unsettled_group_reason(self) -> str | None:
        """The reason why the group has not settled although all its members have; None when it has."""

    @abstractmethod
    def _due_rebalance_reason(self) -> str | None:
        """The reason why a further rebalance is due although all members have settled; None when no rebalance is
        due."""

    # -- settling -----------------------------------------------------------------------------------------------------

    def run_until_settled_and_check(self) -> None:
        """Run until the workers have been settled for a session timeout without a rebalance or a start of a task; then
        check the claims, the balance and the configs of the running tasks.

        :raises Violation: SETTLES, CLAIMED_ONLY, BALANCED, RUNS_AS_CONFIGURED.
        """
        world = self._world
        until_ms = world.now_ms + SETTLE_TIMEOUT_MS
        settled_state, unchanged_since_ms = None, world.now_ms
        # The last fault may have an effect only when a lease expires, so the group must be settled for one session.
        while settled_state is None or world.now_ms < unchanged_since_ms + SESSION_TIMEOUT_MS:
            if world.now_ms >= until_ms:
                reason = self._unsettled_reason() or "rounds or task starts continue"
                raise Violation(Invariant.SETTLES, f"not settled after {SETTLE_TIMEOUT_MS} ms without faults: {reason}")
            world.run_until(world.now_ms + HEARTBEAT_INTERVAL_MS)
            current = self._generation_and_start_count() if self._unsettled_reason() is None else None
            if current != settled_state:
                settled_state, unchanged_since_ms = current, world.now_ms
        self._check_claims()
        self._check_balance_of_unclaimed_jobs()
        self._check_running_configs()
        world.add_record(RecordKind.SETTLED, self._generation_or_group_epoch)

    def check_no_rebalance_or_task_start(self) -> None:
        """Run for `QUIET_DURATION_MS`; check that no rebalance and no start of a task comes in this time, that the
        workers are still settled, and that the session key is not too old.

        :raises Violation: QUIET, KEYS_ROTATE.
        """
        state_before = self._generation_and_start_count()
        self._world.run_until(self._world.now_ms + QUIET_DURATION_MS)
        if self._generation_and_start_count() != state_before:
            raise Violation(
                Invariant.QUIET,
                f"settled in (generation or epoch, number of task starts) {state_before}; {QUIET_DURATION_MS} ms later "
                f"they are {self._generation_and_start_count()}",
            )
        if (reason := self._unsettled_reason()) is not None:
            raise Violation(
                Invariant.QUIET,
                f"settled in generation or epoch {state_before[0]}; {QUIET_DURATION_MS} ms later {reason}",
            )
        self._check_session_key_age()

    def check_forged_refused_if_signed(self) -> None:
        """If the group's protocol signs requests, send task configs without a valid signature to the leader, and run
        for `FORGED_CONFIGS_WAIT_MS`.

        :raises Violation: SIGNED, when the leader accepts such task configs.
        """
        if self._are_requests_signed:
            self._world.add_record(RecordKind.FORGED)
            self._faults.operators.send_all_forged_task_configs()
            self._world.run_until(self._world.now_ms + FORGED_CONFIGS_WAIT_MS)

    def _generation_and_start_count(self) -> tuple[int, int]:
        """The group's generation or epoch, and the number of starts of the tasks that the running workers have now. A
        rebalance changes the first, a restarted task the second."""
        starts = sum(run.starts for process in self._processes for run in process.herder.work.local_tasks.values())
        return self._generation_or_group_epoch, starts

    def _unsettled_reason(self) -> str | None:
        """The reason why the running workers have not settled; None when they have: the group is stable and no further
        rebalance is due, each job that a worker may run has one owner, each task that should run runs, all task configs
        are written, and no request of a user is without a response."""
        log = self._cluster.config_log
        owned, runnable_tasks, processes = Jobs(), log.runnable_tasks_at(log.end_offset), self._processes
        for process in processes:
            if (reason := self._unsettled_member_reason(process)) is not None:
                return reason
            if process.herder.requests.writes:
                return f"a user's request to {process.name} has no response yet"
            if process.herder.place.assigned != process.assigned_jobs:
                owned_text, assigned_text = (
                    job_list_text(process.herder.place.assigned),
                    job_list_text(process.assigned_jobs),
                )
                return f"{process.name} owns {owned_text} by its herder, but {assigned_text} by its assignments"
            if process.running_tasks.keys() != process.assigned_jobs.tasks & runnable_tasks.keys():
                running = sorted(map(str, process.running_tasks))
                return (
                    f"{process.name} runs {running}, not the tasks that should run of its jobs, "
                    f"{job_list_text(process.assigned_jobs)}"
                )
            if process.assigned_jobs & owned:
                return f"{job_list_text(process.assigned_jobs & owned)} is owned by two workers"
            owned |= process.assigned_jobs
        if (reason := self._unsettled_group_reason()) is not None:
            return reason
        assignable = self._assignable_jobs(log.configured_jobs_at(log.end_offset))
        if owned != assignable:
            return (
                f"no worker owns {job_list_text(assignable - owned)}; a worker owns, but must not, "
                f"{job_list_text(owned - assignable)}"
            )
        if unpublished := [name for name in log.connectors_with_outdated_task_configs() if name in owned.connectors]:
            return f"the task configs of {unpublished} are not written"
        if (reason := self._due_rebalance_reason()) is not None:
            return reason
        if drained_names := [
            process.name for process in processes if process.is_draining and not process.assigned_jobs
        ]:
            return f"{drained_names} have drained and have not left"
        return None

    # -- checks of the settled group ----------------------------------------------------------------------------------

    def _processes_for_unclaimed_jobs(self) -> Sequence[WorkerT]:
        """The processes that may run all jobs that no worker claims: those that have no claims and do not drain; all
        processes, if the group's protocol transmits no claims."""
        if not self._transmits_claims:
            return self._processes
        return [
            process
            for process in self._processes
            if process.claims is None and not process.herder.lifecycle.is_draining
        ]

    def _claimed_jobs(self) -> Jobs:
        """The jobs that workers claim, without the claims of draining workers; none if the group's protocol transmits
        no claims."""
        claims = [process.claims for process in self._processes if not process.herder.lifecycle.is_draining]
        return (
            union_of_jobs([claimed for claimed in claims if claimed is not None]) if self._transmits_claims else Jobs()
        )

    def _assignable_jobs(self, configured: Jobs) -> Jobs:
        """The jobs of ``configured`` that some non-draining worker may run, or that a draining worker still owns
        because no other worker may run them."""
        if self._processes_for_unclaimed_jobs():
            return configured
        jobs_of_draining = union_of_jobs(
            [process.assigned_jobs for process in self._processes if process.herder.lifecycle.is_draining]
        )
        return configured & (self._claimed_jobs() | jobs_of_draining)

    def _check_claims(self) -> None:
        """Check that no non-draining worker owns a job that it may not run because of claims.

        :raises Violation: CLAIMED_ONLY.
        """
        claimed = self._claimed_jobs()
        for process in self._processes:
            if not self._transmits_claims or process.herder.lifecycle.is_draining:
                continue
            ineligible = (
                process.assigned_jobs & claimed if process.claims is None else process.assigned_jobs - process.claims
            )
            if ineligible:
                raise Violation(
                    Invariant.CLAIMED_ONLY, f"{process.name} owns {job_list_text(ineligible)}, which it may not run"
                )

    def _check_balance_of_unclaimed_jobs(self) -> None:
        """Check that the unclaimed jobs are balanced over the workers that may run all of them: the numbers of
        connectors, of tasks and of jobs each differ by one at most.

        :raises Violation: BALANCED.
        """
        loads = [process.assigned_jobs - self._claimed_jobs() for process in self._processes_for_unclaimed_jobs()]
        kinds: dict[str, Callable[[Jobs], int]] = {
            "connectors": lambda jobs: len(jobs.connectors),
            "tasks": lambda jobs: len(jobs.tasks),
            "jobs": len,
        }
        for kind, count_jobs in kinds.items():
            counts = sorted(map(count_jobs, loads))
            if loads and counts[-1] - counts[0] > 1:
                raise Violation(
                    Invariant.BALANCED, f"the numbers of {kind} on the workers differ by more than 1: {counts}"
                )

    def _check_running_configs(self) -> None:
        """Check that each running task runs with its present config.

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
                    raise Violation(
                        Invariant.RUNS_AS_CONFIGURED,
                        f"{process.name} runs {texts[0]}, but should run {texts[1]} (the task's present config)",
                    )

    def _check_session_key_age(self) -> None:
        """If the group's protocol signs requests, check that there is a session key that is not too old.

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
