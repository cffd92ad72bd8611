"""The simulation of workers in a classic group with one seed: a time with faults, then a time without; at the end all
running workers must have settled."""

from coterie.assignors.members import RebalancePolicy
from coterie.groups.classic.state import ClassicGroupSettings
from coterie.herder.session_keys import SessionKeySettings
from coterie.lab.simulator.coordinator import SimCoordinator
from coterie.lab.simulator.fleet.checker import ClassicGroupChecker
from coterie.lab.simulator.fleet.cluster import SharedByClassicWorkers
from coterie.lab.simulator.fleet.process_faults import ClassicGroupFaults
from coterie.lab.simulator.fleet.settled_checks import ClassicChecksAfterFaults
from coterie.lab.simulator.network import Network
from coterie.lab.simulator.outcome import SimulationOutcome, run_to_outcome
from coterie.lab.simulator.workers.config_log import ConfigLog
from coterie.lab.simulator.workers.settings import (
    GROUP_ID,
    ROUND_INTERVAL_MS,
    SCHEDULED_REBALANCE_DELAY_MS,
    SESSION_TIMEOUT_MS,
)
from coterie.lab.simulator.workers.settled_checks import QUIET_DURATION_MS, SETTLE_TIMEOUT_MS
from coterie.lab.simulator.world import World
from coterie.lab.steps import PLAIN_STEPS, MachineSteps

FAULTS_DURATION_MS = 8 * 60_000
"""How long faults are injected, in simulated time."""
COORDINATOR_LIMITS = ClassicGroupSettings(
    initial_rebalance_delay_ms=1_000,
    offsets_retention_check_interval_ms=FAULTS_DURATION_MS + 3 * SETTLE_TIMEOUT_MS + QUIET_DURATION_MS,
)
"""The coordinator's settings. Its first check for expired offsets comes after the end of a simulation, because this
check removes an empty group without offsets, as the workers' group is when no worker runs."""


def simulate_fleet(
    seed: int, *, faults_ms: int = FAULTS_DURATION_MS, trace_lines: int = 15, steps: MachineSteps = PLAIN_STEPS
) -> SimulationOutcome:
    """Run the simulation of workers in a classic group with ``seed``; the first ``faults_ms`` have faults. A violated
    invariant is in the outcome; every other exception is a bug of a machine or of the simulator, and is raised with the
    end of the trace in a note."""
    world = World(seed)
    policy = RebalancePolicy(
        max_delay_ms=world.rng.choice(
            (0, SCHEDULED_REBALANCE_DELAY_MS, SCHEDULED_REBALANCE_DELAY_MS, SCHEDULED_REBALANCE_DELAY_MS)
        ),
        moves_per_round_max=world.rng.choice((None, None, None, 1, 3)),
        round_interval_ms=world.rng.choice((0, ROUND_INTERVAL_MS)),
    )
    session_keys = SessionKeySettings(ttl_ms=world.rng.choice((0, 30_000, 3_600_000)))
    config_log = ConfigLog()
    checker = ClassicGroupChecker(world, config_log, policy, session_timeout_ms=SESSION_TIMEOUT_MS)
    network = Network(world)
    coordinator = SimCoordinator(world, checker, group_id=GROUP_ID, limits=COORDINATOR_LIMITS, steps=steps)
    cluster = SharedByClassicWorkers(world, checker, network, coordinator, config_log, policy, session_keys, steps)

    def run_faults_and_checks() -> None:
        faults = ClassicGroupFaults(cluster)
        checker.processes = faults.live_processes
        faults.run_with_faults_and_end_them(faults_ms)
        checks = ClassicChecksAfterFaults(cluster, faults)
        checks.run_until_settled_and_check()
        checks.check_no_rebalance_or_task_start()
        checks.check_forged_refused_if_signed()
        checks.make_and_check_one_change()
        coordinator.crash()

    return run_to_outcome(
        seed,
        world,
        run_faults_and_checks,
        generation_or_transaction_count=lambda: coordinator.group.generation,
        trace_lines=trace_lines,
    )
