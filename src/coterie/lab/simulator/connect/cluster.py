"""The objects that the workers of a connect group share."""

from coterie.assignors.members import RebalancePolicy
from coterie.herder.session_keys import SessionKeySettings
from coterie.lab.simulator.connect.assignor import FaultyAssignor
from coterie.lab.simulator.connect.checker import ConnectGroupChecker
from coterie.lab.simulator.connect.connections import RepeatedRequestFaults, SimConnection
from coterie.lab.simulator.connect.coordinator import SimConnectCoordinator
from coterie.lab.simulator.connect.settings import ConnectWorkerSetup
from coterie.lab.simulator.network import Network
from coterie.lab.simulator.workers.cluster import SharedByWorkers
from coterie.lab.simulator.workers.config_log import ConfigLog
from coterie.lab.simulator.world import World
from coterie.lab.steps import MachineSteps
from coterie.nouns.ids import MemberId


class SharedByConnectWorkers(SharedByWorkers):
    """The objects that all workers of a connect group in the simulation with one seed share. It does not hold the
    workers."""

    checker: ConnectGroupChecker

    def __init__(
        self,
        world: World,
        checker: ConnectGroupChecker,
        network: Network,
        coordinator: SimConnectCoordinator,
        config_log: ConfigLog,
        policy: RebalancePolicy,
        session_keys: SessionKeySettings,
        assignor: FaultyAssignor,
        steps: MachineSteps,
    ) -> None:
        super().__init__(world, checker, network, config_log, policy, session_keys, steps)
        self.coordinator = coordinator
        self.assignor = assignor
        self.repeated_request_faults = RepeatedRequestFaults()
        self.worker_setups: dict[str, ConnectWorkerSetup] = {}
        """The settings of each worker, by the worker's name. Its next process uses them."""
        self.connections: list[SimConnection] = []
        """The connections of all processes. Those that have ended at the broker are removed when the next connection is
        added."""
        coordinator.on_crash = self._end_connections_after_crash
        self._member_ids = 0

    def add_connection_and_drop_ended(self, connection: SimConnection) -> None:
        """Add ``connection``, a new one, to ``connections``, and remove the connections that have ended at the
        broker."""
        self.connections = [one for one in self.connections if one.is_open_at_broker]
        self.connections.append(connection)

    def _end_connections_after_crash(self) -> None:
        """End all connections at the broker, because the coordinator has crashed."""
        for connection in self.connections:
            connection.end_after_coordinator_crash()

    def fresh_member_id(self, service: str) -> MemberId:
        """A new member id that begins with ``service``."""
        self._member_ids += 1
        return MemberId(f"{service}-{self._member_ids}")
