"""The objects that all producers of one simulation share: settings, broker and network; the producers' protocols."""

from enum import Enum

from coterie.broker.transactions.writes import BatchAdmission
from coterie.lab.simulator.network import Network
from coterie.lab.simulator.producers.broker import SimBroker
from coterie.lab.simulator.producers.watch import ProducersWatch
from coterie.lab.simulator.world import World

LATE_MAX_MS = 8_000
DELIVERY_TIMEOUT_MS = 1_500
"""A batch is sent again for this long; then its transaction is aborted."""
IN_FLIGHT_MAX = 5
"""Maximum number of a producer's batches in a partition from its first one without a response to its last one
(``max.in.flight.requests.per.connection``)."""


class Style(Enum):
    """A producer's protocol version, by the rule that admits its batches to a transaction."""

    V10 = BatchAdmission.ADDED_BEFORE
    V11 = BatchAdmission.ADDED_OR_ABORTABLE
    V12 = BatchAdmission.BY_ITSELF
    """KIP-890: a batch adds its partition to the transaction, and each transaction has a new epoch."""

    @property
    def bumps_epoch(self) -> bool:
        return self is Style.V12


class ProducersPlay:
    """The shared objects of one seed."""

    def __init__(
        self, world: World, network: Network, broker: SimBroker, watch: ProducersWatch, *, timeout_ms: int
    ) -> None:
        self.world = world
        self.network = network
        self.broker = broker
        self.watch = watch
        self.timeout_ms = timeout_ms
        """The transaction timeout of every producer."""
        self.is_ending = False
        """Whether every producer is to commit one last transaction."""
