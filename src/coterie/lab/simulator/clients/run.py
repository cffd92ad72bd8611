"""The clients' simulation with one seed: a time with faults, then a time without; at the end the running clients must
own all partitions in one generation."""

from collections.abc import Collection
from functools import partial

from coterie.groups.classic.state import ClassicGroupSettings, Group
from coterie.groups.classic.subscriptions import CONSUMER_PROTOCOL_TYPE
from coterie.lab.simulator.clients.checker import ClientsChecker
from coterie.lab.simulator.clients.client import Client
from coterie.lab.simulator.clients.play import (
    GROUP_ID,
    HEARTBEAT_INTERVAL_MS,
    OFFSETS_RETENTION_CHECK_MS,
    OFFSETS_RETENTION_MS,
    REBALANCE_TIMEOUT_MS,
    SESSION_TIMEOUT_MS,
    SUBSCRIBED_PARTITIONS,
    SharedByClients,
)
from coterie.lab.simulator.clients.process_faults import ClientsFaults
from coterie.lab.simulator.coordinator import SimCoordinator
from coterie.lab.simulator.faults import DELIVERY_MAX_MS
from coterie.lab.simulator.invariants import Invariant, Violation
from coterie.lab.simulator.network import Network
from coterie.lab.simulator.outcome import SimulationOutcome, run_to_outcome, run_until_settled
from coterie.lab.simulator.records import RecordKind
from coterie.lab.simulator.world import World
from coterie.lab.steps import PLAIN_STEPS, MachineSteps

FAULTS_DURATION_MS = 120_000
"""How long faults are injected, in simulated time."""
SETTLE_TIMEOUT_MS = 3 * SESSION_TIMEOUT_MS + 3 * REBALANCE_TIMEOUT_MS
"""How long the clients may take to settle when no fault is left: enough for the sessions of dead members to expire, for
processes with one instance id to fence each other, and for three rounds that wait for their slowest member."""
QUIET_DURATION_MS = 2 * SESSION_TIMEOUT_MS
"""For this time after the clients have settled, no rebalance may come."""


def simulate_clients(
    seed: int, *, faults_ms: int = FAULTS_DURATION_MS, trace_lines: int = 15, steps: MachineSteps = PLAIN_STEPS
) -> SimulationOutcome:
    """Run the simulation of clients with ``seed``; the first ``faults_ms`` have faults. A violated invariant is in the
    outcome; every other exception is a bug of a machine or of the simulator, and is raised with the end of the trace in
    a note."""
    world = World(seed)
    group_size_max = world.rng.choice((2, 100, 100, 100))
    limits = ClassicGroupSettings(
        initial_rebalance_delay_ms=world.rng.choice((0, 1_000)),
        group_size_max=group_size_max,
        offsets_retention_ms=OFFSETS_RETENTION_MS,
        offsets_retention_check_interval_ms=OFFSETS_RETENTION_CHECK_MS,
    )
    checker = ClientsChecker(world, group_size_max=group_size_max)
    network = Network(world)
    coordinator = SimCoordinator(world, checker, group_id=GROUP_ID, limits=limits, steps=steps)
    play = SharedByClients(
        world, network, coordinator, protocol_type=world.rng.choice((CONSUMER_PROTOCOL_TYPE, "a third type"))
    )

    def run_faults_and_settle() -> None:
        faults = ClientsFaults(play)
        faults.run_with_faults_and_end_them(faults_ms)
        world.run_until(world.now_ms + DELIVERY_MAX_MS)
        faults.start_missing_services()
        run_until_quiet_and_crash_coordinator(play, faults.live_processes.values())

    return run_to_outcome(
        seed,
        world,
        run_faults_and_settle,
        generation_or_transaction_count=lambda: coordinator.group.generation,
        trace_lines=trace_lines,
    )


def run_until_quiet_and_crash_coordinator(play: SharedByClients, clients: Collection[Client]) -> None:
    """Run until the clients have settled, and then for `QUIET_DURATION_MS`, at whose end the clients must still be
    settled in the same generation. Then crash the coordinator, which checks that a replay of its records gives the
    live group.

    :raises Violation: SETTLES, QUIET, REPLAY_IS_LIVE, or of an invariant that is broken meanwhile.
    """
    world, reason_unsettled = play.world, partial(unsettled_reason, play, clients)
    run_until_settled(
        world, reason_unsettled, Invariant.SETTLES, within_ms=SETTLE_TIMEOUT_MS, every_ms=HEARTBEAT_INTERVAL_MS
    )
    generation = play.coordinator.group.generation
    world.add_record(RecordKind.SETTLED, generation)
    world.run_until(world.now_ms + QUIET_DURATION_MS)
    if reason_unsettled() is not None or play.coordinator.group.generation != generation:
        raise Violation(
            Invariant.QUIET,
            f"settled in generation {generation}; {QUIET_DURATION_MS} ms later the group is in generation "
            f"{play.coordinator.group.generation} ({reason_unsettled() or 'settled again'})",
        )
    play.coordinator.crash()


def unsettled_reason(play: SharedByClients, clients: Collection[Client]) -> str | None:
    """The reason why the clients have not settled; None if the group is STABLE, each client is a member in its
    generation or was refused because the group is full, and each partition has one owner."""
    group: Group = play.coordinator.group
    if not play.coordinator.is_up_with_stable_group:
        return f"the coordinator is down, or the group is not STABLE (its phase is {group.phase})"
    accepted_clients = [client for client in clients if not client.refused_for_size]
    if len(accepted_clients) < len(clients) and len(group.members) < group.limits.group_size_max:
        return "a client is refused for the group's size, and the group is not full"
    if {client.member_id for client in accepted_clients} != group.members.keys():
        return f"members are {sorted(group.members)}, clients are {sorted(client.name for client in accepted_clients)}"
    for client in accepted_clients:
        if not client.is_settled or client.generation != group.generation:
            return f"{client.name} is in generation {client.generation}, the group in {group.generation}"
    owned = sorted(partition for client in accepted_clients for partition in client.owned)
    return None if owned == list(SUBSCRIBED_PARTITIONS) else f"owned partitions are {owned}"
