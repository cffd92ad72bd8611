"""What the simulated workers share: settings, the broker, the network, and each other's addresses."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from coterie.assignors.members import Policy
from coterie.herder.session_keys import SessionKeySettings
from coterie.lab.simulator.coordinator import SimCoordinator
from coterie.lab.simulator.fleet.config_log import ConfigLog
from coterie.lab.simulator.fleet.watch import Watch
from coterie.lab.simulator.network import Network
from coterie.lab.simulator.world import World
from coterie.nouns.ids import GroupId, Incarnation, InstanceId, WorkerUrl
from coterie.nouns.jobs import Jobs
from coterie.nouns.membership import PlaceHandover
from coterie.wire.connect import ConnectProtocol

if TYPE_CHECKING:
    from coterie.lab.simulator.fleet.worker import Process

GROUP = GroupId("fleet")
SESSION_TIMEOUT_MS = 6_000
REBALANCE_TIMEOUT_MS = 30_000
HEARTBEAT_INTERVAL_MS = 1_000
DELAY_MAX_MS = 20_000
STOP_GRACE_MS = 2_000
REQUEST_TIMEOUT_MS = 30_000
LATE_MAX_MS = 8_000
ROUND_INTERVAL_MS = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """How a worker is set: each of its processes as it was when that process began."""

    instance_id: InstanceId | None = None
    protocol: ConnectProtocol = ConnectProtocol.STATIC
    claims: Jobs | None = None


class Cluster:
    """What the processes share: the broker's two ends, the network, and each other's addresses."""

    def __init__(
        self,
        world: World,
        watch: Watch,
        network: Network,
        coordinator: SimCoordinator,
        config_log: ConfigLog,
        policy: Policy,
        session_keys: SessionKeySettings,
    ) -> None:
        self.world = world
        self.watch = watch
        self.network = network
        self.coordinator = coordinator
        self.config_log = config_log
        self.policy = policy
        self.session_keys = session_keys
        self.homes: dict[str, Home] = {}
        """By the worker's name."""
        self.reading_ms: dict[str, int] = {}
        """Workers that read the config log late, and how late."""
        self.processes: dict[str, Process] = {}
        """All that live, by their names, in the order of their births."""
        self.births = 0
        self.on_failed: Callable[[str], None] = lambda home: None
        """What happens when a worker has ended with another code than 0."""
        self.on_drained: Callable[[str], None] = lambda home: None
        self.go_on: Callable[[Process, PlaceHandover | None], None] = lambda process, place: None
        """A process has executed itself anew."""
        self._incarnations = 0

    def at(self, home: str) -> "Process | None":
        """The youngest living process of a worker."""
        return next((process for process in reversed(self.processes.values()) if process.home == home), None)

    def by_url(self, url: WorkerUrl) -> "Process | None":
        return self.at(url.removeprefix("http://").removesuffix("/"))

    def read_config(self) -> None:
        """There is something new in the config log: everybody reads it, each in its own time."""
        for name in sorted(self.processes):
            self.processes[name].reader.soon()

    def fresh_incarnation(self) -> Incarnation:
        self._incarnations += 1
        return Incarnation(f"life-{self._incarnations}")
