"""The simulation of workers in a connect group with one seed: a time with faults, then a time without; at the end all
running workers must have settled."""

from coterie.assignors.members import RebalancePolicy
from coterie.groups.connect.settings import ConnectGroupSettings
from coterie.herder.session_keys import SessionKeySettings
from coterie.lab.simulator.connect.assignor import FaultyAssignor
from coterie.lab.simulator.connect.checker import ConnectGroupChecker
from coterie.lab.simulator.connect.cluster import SharedByConnectWorkers
from coterie.lab.simulator.connect.coordinator import SimConnectCoordinator
from coterie.lab.simulator.connect.process_faults import ConnectGroupFaults
from coterie.lab.simulator.connect.settings import ASSIGNOR_NAME, COMPUTATION_TIMEOUT_MS, CONNECTION_GRACE_MS
from coterie.lab.simulator.connect.settled_checks import ConnectChecksAfterFaults
from coterie.lab.simulator.network import Network
from coterie.lab.simulator.outcome import SimulationOutcome, run_to_outcome
from coterie.lab.simulator.workers.config_log import ConfigLog
from coterie.lab.simulator.workers.settings import (
    GROUP_ID,
    HEARTBEAT_INTERVAL_MS,
    ROUND_INTERVAL_MS,
    SCHEDULED_REBALANCE_DELAY_MS,
    SESSION_TIMEOUT_MS,
)
from coterie.lab.simulator.world import World
from coterie.lab.steps import PLAIN_STEPS, MachineSteps

FAULTS_DURATION_MS = 5 * 60_000
"""How long faults are injected, in simulated time."""


def simulate_connect_group(
    seed: int, *, faults_ms: int = FAULTS_DURATION_MS, trace_lines: int = 15, steps: MachineSteps = PLAIN_STEPS
) -> SimulationOutcome:
    """Run the simulation of workers in a connect group with ``seed``; the first ``faults_ms`` have faults. A violated
    invariant is in the outcome; every other exception is a bug of a machine or of the simulator, and is raised with the
    end of the trace in a note. The ``generation_or_transaction_count`` of the outcome is the group epoch."""
    world = World(seed)
    policy = RebalancePolicy(
        max_delay_ms=world.rng.choice(
            (0, SCHEDULED_REBALANCE_DELAY_MS, SCHEDULED_REBALANCE_DELAY_MS, SCHEDULED_REBALANCE_DELAY_MS)
        ),
        moves_per_round_max=world.rng.choice((None, None, None, 1, 3)),
        round_interval_ms=world.rng.choice((0, ROUND_INTERVAL_MS)),
    )
    session_keys = SessionKeySettings(ttl_ms=world.rng.choice((0, 30_000, 3_600_000)))
    settings = ConnectGroupSettings(
        session_timeout_ms=SESSION_TIMEOUT_MS,
        heartbeat_interval_ms=HEARTBEAT_INTERVAL_MS,
        assignment_interval_ms=world.rng.choice((0, 200, 1_000)),
        initial_rebalance_delay_ms=world.rng.choice((0, 3_000)),
        connection_grace_ms=world.rng.choice((0, CONNECTION_GRACE_MS, CONNECTION_GRACE_MS)),
        computation_timeout_ms=COMPUTATION_TIMEOUT_MS,
        server_assignors=(ASSIGNOR_NAME,),
    )
    config_log = ConfigLog()
    checker = ConnectGroupChecker(world, config_log)
    network = Network(world)
    assignor = FaultyAssignor(world, policy)
    coordinator = SimConnectCoordinator(
        world, checker, group_id=GROUP_ID, settings=settings, assignor=assignor, steps=steps
    )
    cluster = SharedByConnectWorkers(
        world, checker, network, coordinator, config_log, policy, session_keys, assignor, steps
    )

    def run_faults_and_checks() -> None:
        faults = ConnectGroupFaults(cluster)
        checker.processes = faults.live_processes
        faults.run_with_faults_and_end_them(faults_ms)
        checks = ConnectChecksAfterFaults(cluster, faults)
        checks.run_until_settled_and_check()
        # Two late messages after each other may end the lease of a member, if an operator has set a short session.
        network.late_probability = 0
        checks.check_no_rebalance_or_task_start()
        checks.check_forged_refused_if_signed()
        checks.make_and_check_one_change()
        coordinator.crash()

    return run_to_outcome(
        seed,
        world,
        run_faults_and_checks,
        generation_or_transaction_count=lambda: coordinator.group.group_epoch,
        trace_lines=trace_lines,
    )
