"""One seed of the clients' simulation: faults, then none; then all running clients must share all partitions in one
generation."""

from collections.abc import Collection
from functools import partial

from coterie.groups.classic.state import Group, Limits
from coterie.groups.classic.subscriptions import CONSUMER
from coterie.lab.simulator.clients.client import Client
from coterie.lab.simulator.clients.play import (
    GROUP,
    HEARTBEAT_INTERVAL_MS,
    OFFSETS_RETENTION_CHECK_MS,
    OFFSETS_RETENTION_MS,
    PARTITIONS,
    REBALANCE_TIMEOUT_MS,
    SESSION_TIMEOUT_MS,
    ClientsPlay,
)
from coterie.lab.simulator.clients.watch import ClientsWatch
from coterie.lab.simulator.clients.weather import ClientsWeather
from coterie.lab.simulator.coordinator import SimCoordinator
from coterie.lab.simulator.faults import LATEST_MS
from coterie.lab.simulator.invariants import Invariant, Violation
from coterie.lab.simulator.network import Network
from coterie.lab.simulator.outcome import Outcome, settle, told_by
from coterie.lab.simulator.records import RecordKind
from coterie.lab.simulator.world import World
from coterie.lab.steps import STEPS, Steps

WEATHER_MS = 120_000
SETTLE_MS = 3 * SESSION_TIMEOUT_MS + 3 * REBALANCE_TIMEOUT_MS
"""Enough time for silent members to expire, for copies to fence each other, and for three rounds that wait for their
slowest member."""
QUIET_MS = 2 * SESSION_TIMEOUT_MS


def simulate_clients(
    seed: int, *, weather_ms: int = WEATHER_MS, story_lines: int = 15, steps: Steps = STEPS
) -> Outcome:
    """Run one seed. An exception is a crash of a machine or of the simulator; its note has the end of the trace."""
    world = World(seed)
    group_size_max = world.rng.choice((2, 100, 100, 100))
    limits = Limits(
        initial_rebalance_delay_ms=world.rng.choice((0, 1_000)),
        group_size_max=group_size_max,
        offsets_retention_ms=OFFSETS_RETENTION_MS,
        offsets_retention_check_ms=OFFSETS_RETENTION_CHECK_MS,
    )
    watch = ClientsWatch(world, group_size_max=group_size_max)
    network = Network(world)
    coordinator = SimCoordinator(world, watch, group_id=GROUP, limits=limits, steps=steps)
    play = ClientsPlay(world, network, coordinator, protocol_type=world.rng.choice((CONSUMER, "a third type")))

    def story() -> None:
        weather = ClientsWeather(play)
        weather.run(weather_ms)
        world.run_until(world.now_ms + LATEST_MS)
        weather.start_missing()
        check_calm(play, weather.living.values())

    return told_by(seed, world, story, generations=lambda: coordinator.group.generation, story_lines=story_lines)


def check_calm(play: ClientsPlay, clients: Collection[Client]) -> None:
    world, missing = play.world, partial(unsettled, play, clients)
    settle(world, missing, Invariant.SETTLES, within_ms=SETTLE_MS, every_ms=HEARTBEAT_INTERVAL_MS)
    generation = play.coordinator.group.generation
    world.record(RecordKind.SETTLED, generation)
    world.run_until(world.now_ms + QUIET_MS)
    if missing() is not None or play.coordinator.group.generation != generation:
        raise Violation(
            Invariant.QUIET,
            f"settled in generation {generation}, then came {play.coordinator.group.generation}: {missing()}",
        )
    play.coordinator.crash()


def unsettled(play: ClientsPlay, clients: Collection[Client]) -> str | None:
    """The reason why the clients have not settled; None when they have."""
    group: Group = play.coordinator.group
    if not play.coordinator.is_stable:
        return f"the group is {group.phase}"
    inside = [client for client in clients if not client.turned_away]
    if len(inside) < len(clients) and len(group.members) < group.limits.group_size_max:
        return "a client is refused for the group's size, and the group is not full"
    if {client.member_id for client in inside} != group.members.keys():
        return f"members are {sorted(group.members)}, clients are {sorted(client.name for client in inside)}"
    for client in inside:
        if not client.is_settled or client.generation != group.generation:
            return f"{client.name} is in generation {client.generation}, the group in {group.generation}"
    owned = sorted(partition for client in inside for partition in client.owned)
    return None if owned == list(PARTITIONS) else f"owned partitions are {owned}"
