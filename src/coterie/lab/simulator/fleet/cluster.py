"""The objects that the simulated workers share: settings, group coordinator, config log, network, invariant checks."""

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
        """Delay in ms of each worker that reads the config log late."""
        self.on_failed: Callable[[str], None] = lambda home: None
        """Called when a worker's process has ended with an exit code other than 0."""
        self.on_drained: Callable[[str], None] = lambda home: None
        self.go_on: Callable[[str, PlaceHandover | None], None] = lambda home, place: None
        """Called when a worker's process relaunches itself."""
        self._incarnations = 0

    def fresh_incarnation(self) -> Incarnation:
        self._incarnations += 1
        return Incarnation(f"life-{self._incarnations}")
