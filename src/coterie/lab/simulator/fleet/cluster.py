"""The objects that the workers of a classic group share."""

from coterie.assignors.members import RebalancePolicy
from coterie.herder.session_keys import SessionKeySettings
from coterie.lab.simulator.coordinator import SimCoordinator
from coterie.lab.simulator.fleet.checker import FleetChecker
from coterie.lab.simulator.fleet.settings import FleetSetup
from coterie.lab.simulator.network import Network
from coterie.lab.simulator.workers.cluster import SharedByWorkers
from coterie.lab.simulator.workers.config_log import ConfigLog
from coterie.lab.simulator.world import World
from coterie.lab.steps import Steps


class SharedByClassicWorkers(SharedByWorkers):
    """The objects that all workers of a classic group in the simulation with one seed share. It does not hold the
    workers."""

    checker: FleetChecker

    def __init__(
        self,
        world: World,
        checker: FleetChecker,
        network: Network,
        coordinator: SimCoordinator,
        config_log: ConfigLog,
        policy: RebalancePolicy,
        session_keys: SessionKeySettings,
        steps: Steps,
    ) -> None:
        super().__init__(world, checker, network, config_log, policy, session_keys, steps)
        self.coordinator = coordinator
        self.worker_setups: dict[str, FleetSetup] = {}
        """The settings of each worker, by the worker's name. Its next process uses them."""
