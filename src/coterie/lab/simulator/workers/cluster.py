"""The objects that the simulated workers share: settings, the config log, the network, the checker of invariants."""

from collections.abc import Callable

from coterie.assignors.members import RebalancePolicy
from coterie.herder.session_keys import SessionKeySettings
from coterie.lab.simulator.network import Network
from coterie.lab.simulator.workers.checker import WorkersChecker
from coterie.lab.simulator.workers.config_log import ConfigLog
from coterie.lab.simulator.world import World
from coterie.lab.steps import MachineSteps
from coterie.nouns.ids import Incarnation
from coterie.nouns.membership import Handover


class SharedByWorkers:
    """The objects that all workers in the simulation with one seed share. It does not hold the workers."""

    def __init__(
        self,
        world: World,
        checker: WorkersChecker,
        network: Network,
        config_log: ConfigLog,
        policy: RebalancePolicy,
        session_keys: SessionKeySettings,
        steps: MachineSteps,
    ) -> None:
        self.world = world
        self.checker = checker
        self.network = network
        self.config_log = config_log
        self.policy = policy
        """The rebalance policy of every leader and assignor."""
        self.session_keys = session_keys
        self.steps = steps
        self.config_read_delay_ms: dict[str, int] = {}
        """For each worker that reads the config log late, the delay of its reads in ms, by the worker's name."""
        self.task_starts_fail_until_ms = 0
        """The time until which starts of tasks fail, because they cannot reach the folder of the checkpoints."""
        self.on_process_failed: Callable[[str], None] = lambda worker: None
        """Called with the worker's name when a process has ended with an exit code other than 0."""
        self.on_worker_drained: Callable[[str], None] = lambda worker: None
        """Called with the worker's name when the process of a draining worker has ended with exit code 0."""
        self.relaunch: Callable[[str, Handover | None], None] = lambda worker, handover: None
        """Called some time after a process has ended to relaunch itself, with the worker's name, and with the
        membership that the next process continues (None: the next process joins as a new member)."""
        self._incarnations = 0

    def fresh_incarnation(self) -> Incarnation:
        """A new incarnation, which no connector has had."""
        self._incarnations += 1
        return Incarnation(f"life-{self._incarnations}")
