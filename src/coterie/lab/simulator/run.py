"""One seed from birth to verdict: weather, then calm, then everything alive must have settled."""

from collections.abc import Callable

from coterie.assignors.members import Policy
from coterie.groups.state import Limits
from coterie.herder.connectors import RETRY_MAX_MS
from coterie.lab.simulator.cluster import (
    DELAY_MAX_MS,
    GROUP,
    HEARTBEAT_INTERVAL_MS,
    REBALANCE_TIMEOUT_MS,
    SESSION_TIMEOUT_MS,
    Cluster,
)
from coterie.lab.simulator.config_log import ConfigLog
from coterie.lab.simulator.coordinator import SimCoordinator
from coterie.lab.simulator.invariants import Invariant, Violation
from coterie.lab.simulator.network import Network
from coterie.lab.simulator.outcome import Outcome, told_by
from coterie.lab.simulator.rounds import told
from coterie.lab.simulator.watch import Watch
from coterie.lab.simulator.weather import Weather
from coterie.lab.simulator.world import World
from coterie.nouns.jobs import Jobs

WEATHER_MS = 8 * 60_000
SETTLE_MS = RETRY_MAX_MS + 2 * SESSION_TIMEOUT_MS + 2 * DELAY_MAX_MS + 2 * REBALANCE_TIMEOUT_MS
"""Task configs reach the leader, silent members go, a delay runs out, two rounds wait for their slowest member."""
QUIET_MS = 3 * DELAY_MAX_MS
LIMITS = Limits(initial_rebalance_delay_ms=1_000, offsets_retention_check_ms=WEATHER_MS + SETTLE_MS + QUIET_MS)
"""Nobody commits offsets here: a group that is empty for a while stays, until the seed is over."""


def simulate(seed: int, *, weather_ms: int = WEATHER_MS, story_lines: int = 15) -> Outcome:
    """Play one seed. Whatever it raises is a crash, of a machine or of the simulator, and tells its story in a note."""
    world = World(seed)
    config_log = ConfigLog()
    policy = Policy(max_delay_ms=world.rng.choice((0, DELAY_MAX_MS, DELAY_MAX_MS, DELAY_MAX_MS)))
    watch = Watch(world, config_log, policy, session_timeout_ms=SESSION_TIMEOUT_MS)
    network = Network(world)
    coordinator = SimCoordinator(world, watch, group_id=GROUP, limits=LIMITS)
    cluster = Cluster(world, watch, network, coordinator, config_log, policy)
    watch.processes = cluster.processes

    def story() -> None:
        weather = Weather(cluster)
        weather.begin()
        _look_every_second(world, watch)
        world.run_until(weather_ms)
        weather.end()
        _settle(cluster)

    return told_by(seed, world, story, generations=lambda: coordinator.group.generation, story_lines=story_lines)


def _look_every_second(world: World, watch: Watch) -> None:
    watch.on_second()
    world.after(1_000, lambda: _look_every_second(world, watch))


def _settle(cluster: Cluster) -> None:
    world = cluster.world
    until_ms = world.now_ms + SETTLE_MS
    settled, since_ms = None, world.now_ms
    # What the last fault has begun may show only when a lease runs out: it has to look settled for a session.
    while settled is None or world.now_ms < since_ms + SESSION_TIMEOUT_MS:
        if world.now_ms >= until_ms:
            missing = _unsettled(cluster) or "one round follows the other"
            raise Violation(Invariant.SETTLES, f"{SETTLE_MS} ms after the last fault {missing}")
        world.run_until(world.now_ms + HEARTBEAT_INTERVAL_MS)
        now = (cluster.coordinator.group.generation, _starts(cluster)) if _unsettled(cluster) is None else None
        if now != settled:
            settled, since_ms = now, world.now_ms
    _check_balance(cluster)
    _check_work(cluster)
    generation, starts = cluster.coordinator.group.generation, _starts(cluster)
    world.say(f"settled in generation {generation}")
    world.run_until(world.now_ms + QUIET_MS)
    if (cluster.coordinator.group.generation, _starts(cluster)) != (generation, starts):
        raise Violation(
            Invariant.QUIET, f"settled in generation {generation}, then came {cluster.coordinator.group.generation}"
        )
    if (unsettled := _unsettled(cluster)) is not None:
        raise Violation(Invariant.QUIET, f"settled in generation {generation}, then {unsettled}")
    cluster.coordinator.crash()


def _unsettled(cluster: Cluster) -> str | None:
    """What is still missing; None when everything alive has settled."""
    group, configured = cluster.coordinator.group, cluster.config_log.jobs_at(cluster.config_log.end)
    if unpublished := cluster.config_log.unpublished():
        return f"task configs are not written of {unpublished}"
    if not cluster.coordinator.is_stable:
        return f"the group is {group.phase}"
    processes = [cluster.processes[name] for name in sorted(cluster.processes)]
    if {process.member.member_id for process in processes} != group.members.keys():
        return f"members are {sorted(group.members)}, workers are {sorted(cluster.processes)}"
    owned = Jobs()
    work = cluster.config_log.work_at(cluster.config_log.end)
    for process in processes:
        if not process.herder.settled or process.herder.generation != group.generation:
            return f"{process.name} is in generation {process.herder.generation}, the group in {group.generation}"
        if process.herder.assigned != process.given:
            return f"{process.name} has {told(process.herder.assigned)}, was given {told(process.given)}"
        if process.active.keys() != process.given.tasks & work.keys():
            return f"{process.name} runs {sorted(map(str, process.active))}, has {told(process.given)}"
        if process.given & owned:
            return f"{told(process.given & owned)} belongs to two workers"
        owned |= process.given
    if owned != configured:
        return f"nobody has {told(configured - owned)}, too much is {told(owned - configured)}"
    if any(process.herder.deferred_until_ms is not None for process in processes):
        return "a delay runs"
    return None


def _check_balance(cluster: Cluster) -> None:
    loads = [process.herder.assigned for process in cluster.processes.values()]
    kinds: dict[str, Callable[[Jobs], int]] = {
        "connectors": lambda jobs: len(jobs.connectors),
        "tasks": lambda jobs: len(jobs.tasks),
        "jobs": len,
    }
    for kind, count in kinds.items():
        counts = sorted(map(count, loads))
        if counts[-1] - counts[0] > 1:
            raise Violation(Invariant.BALANCED, f"{kind} by worker are {counts}")


def _check_work(cluster: Cluster) -> None:
    work = cluster.config_log.work_at(cluster.config_log.end)
    for process in cluster.processes.values():
        for task, start in process.active.items():
            if start != work[task]:
                raise Violation(Invariant.RUNS_AS_CONFIGURED, f"{process.name} runs {start}, not {work[task]}")


def _starts(cluster: Cluster) -> int:
    return sum(run.starts for process in cluster.processes.values() for run in process.herder.runs.values())
