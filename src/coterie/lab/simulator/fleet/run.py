"""One seed from start to result: faults, then none; then all running workers must have settled."""

from coterie.assignors.members import Policy
from coterie.groups.classic.state import Limits
from coterie.herder.session_keys import SessionKeySettings
from coterie.lab.simulator.coordinator import SimCoordinator
from coterie.lab.simulator.fleet.calm import QUIET_MS, SETTLE_MS, Calm
from coterie.lab.simulator.fleet.cluster import Cluster
from coterie.lab.simulator.fleet.config_log import ConfigLog
from coterie.lab.simulator.fleet.settings import DELAY_MAX_MS, GROUP, ROUND_INTERVAL_MS, SESSION_TIMEOUT_MS
from coterie.lab.simulator.fleet.watch import Watch
from coterie.lab.simulator.fleet.weather import Weather
from coterie.lab.simulator.network import Network
from coterie.lab.simulator.outcome import Outcome, told_by
from coterie.lab.simulator.world import World
from coterie.lab.steps import STEPS, Steps

WEATHER_MS = 8 * 60_000
LIMITS = Limits(initial_rebalance_delay_ms=1_000, offsets_retention_check_ms=WEATHER_MS + 3 * SETTLE_MS + QUIET_MS)
"""The first retention check comes after the end of a seed: the workers' group has no offsets, so a check would remove
the group while it is empty."""


def simulate(seed: int, *, weather_ms: int = WEATHER_MS, story_lines: int = 15, steps: Steps = STEPS) -> Outcome:
    """Run one seed. An exception is a crash of a machine or of the simulator; its note has the end of the trace."""
    world = World(seed)
    policy = Policy(
        max_delay_ms=world.rng.choice((0, DELAY_MAX_MS, DELAY_MAX_MS, DELAY_MAX_MS)),
        moves_per_round_max=world.rng.choice((None, None, None, 1, 3)),
        round_interval_ms=world.rng.choice((0, ROUND_INTERVAL_MS)),
    )
    session_keys = SessionKeySettings(ttl_ms=world.rng.choice((0, 30_000, 3_600_000)))
    config_log = ConfigLog()
    watch = Watch(world, config_log, policy, session_timeout_ms=SESSION_TIMEOUT_MS)
    network = Network(world)
    coordinator = SimCoordinator(world, watch, group_id=GROUP, limits=LIMITS, steps=steps)
    cluster = Cluster(world, watch, network, coordinator, config_log, policy, session_keys, steps)

    def story() -> None:
        weather = Weather(cluster)
        watch.processes = weather.living
        weather.run(weather_ms)
        calm = Calm(cluster, weather)
        calm.settle()
        calm.stay_quiet()
        calm.refuse_strangers()
        calm.change_something()
        coordinator.crash()

    return told_by(seed, world, story, generations=lambda: coordinator.group.generation, story_lines=story_lines)
