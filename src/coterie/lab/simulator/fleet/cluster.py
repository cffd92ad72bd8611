"""The objects that the workers of a classic group share."""

from coterie.assignors.members import RebalancePolicy
from coterie.herder.session_keys import SessionKeySettings
from coterie.lab.simulator.coordinator import SimCoordinator
from coterie.lab.simulator.fleet.checker import ClassicGroupChecker
from coterie.lab.simulator.fleet.settings import ClassicWorkerSetup
from coterie.lab.simulator.network import Network
from coterie.lab.simulator.workers.cluster import SharedByWorkers
from coterie.lab.simulator.workers.config_log import ConfigLog
from coterie.lab.simulator.world import World
from coterie.lab.steps import MachineSteps


class SharedByClassicWorkers(SharedByWorkers):
    """The objects that all workers of a classic group in the simulation with one seed share. It does not hold the
    workers."""

    checker: ClassicGroupChecker

    def __init__(
        self,
        world: World,
        checker: ClassicGroupChecker,
        network: Network,
        coordinator: SimCoordinator,
        config_log: ConfigLog,
        policy: RebalancePolicy,
        session_keys: SessionKeySettings,
        steps: MachineSteps,
    ) -> None:
        super().__init__(world, checker, network, config_log, policy, session_keys, steps)
        self.coordinator = coordinator
        self.worker_setups: dict[str, ClassicWorkerSetup] = {}
        """The settings of each worker, by the worker's name. Its next process uses them."""
