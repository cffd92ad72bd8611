"""What the simulated workers share: settings, the broker's two ends, the network, the watch."""

from collections.abc import Callable

from coterie.assignors.members import Policy
from coterie.herder.session_keys import SessionKeySettings
from coterie.lab.simulator.coordinator import SimCoordinator
from coterie.lab.simulator.fleet.config_log import ConfigLog
from coterie.lab.simulator.fleet.settings import Home
from coterie.lab.simulator.fleet.watch import Watch
from coterie.lab.simulator.network import Network
from coterie.lab.simulator.world import World
from coterie.lab.steps import Steps
from coterie.nouns.ids import Incarnation
from coterie.nouns.membership import PlaceHandover


class Cluster:
    def __init__(
        self,
        world: World,
        watch: Watch,
        network: Network,
        coordinator: SimCoordinator,
        config_log: ConfigLog,
        policy: Policy,
        session_keys: SessionKeySettings,
        steps: Steps,
    ) -> None:
        self.world = world
        self.watch = watch
        self.network = network
        self.coordinator = coordinator
        self.config_log = config_log
        self.policy = policy
        self.session_keys = session_keys
        self.steps = steps
        self.homes: dict[str, Home] = {}
        """By the worker's name."""
        self.reading_ms: dict[str, int] = {}
        """Workers that read the config log late, and how late."""
        self.on_failed: Callable[[str], None] = lambda home: None
        """What happens when a worker has ended with another code than 0."""
        self.on_drained: Callable[[str], None] = lambda home: None
        self.go_on: Callable[[str, PlaceHandover | None], None] = lambda home, place: None
        """A process of the worker has executed itself anew."""
        self._incarnations = 0

    def fresh_incarnation(self) -> Incarnation:
        self._incarnations += 1
        return Incarnation(f"life-{self._incarnations}")
