"""What the simulated workers share: settings, the broker, the network, and each other's addresses."""

from typing import TYPE_CHECKING

from coterie.lab.simulator.config_log import ConfigLog
from coterie.lab.simulator.coordinator import SimCoordinator
from coterie.lab.simulator.network import Network
from coterie.lab.simulator.watch import Watch
from coterie.lab.simulator.world import World
from coterie.nouns.ids import GroupId, WorkerUrl

if TYPE_CHECKING:
    from coterie.lab.simulator.worker import Process

GROUP = GroupId("fleet")
SESSION_TIMEOUT_MS = 6_000
REBALANCE_TIMEOUT_MS = 30_000
HEARTBEAT_INTERVAL_MS = 1_000
DELAY_MAX_MS = 20_000
STOP_GRACE_MS = 2_000
REQUEST_TIMEOUT_MS = 30_000
LATE_MAX_MS = 8_000


class Cluster:
    """What the processes share: the broker's two ends, the network, and each other's addresses."""

    def __init__(
        self, world: World, watch: Watch, network: Network, coordinator: SimCoordinator, config_log: ConfigLog
    ) -> None:
        self.world = world
        self.watch = watch
        self.network = network
        self.coordinator = coordinator
        self.config_log = config_log
        self.static: frozenset[str] = frozenset()
        """Names of the workers that have a `group.instance.id`."""
        self.processes: dict[str, Process] = {}
        """The living process of each worker that has one, by the worker's name."""

    def read_config(self) -> None:
        """There is something new in the config log: everybody reads it, each in its own time."""
        for name in sorted(self.processes):
            self.processes[name].read_config_soon()

    def by_url(self, url: WorkerUrl) -> "Process | None":
        return self.processes.get(url.removeprefix("http://").removesuffix("/"))
