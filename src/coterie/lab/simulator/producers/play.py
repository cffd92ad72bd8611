"""What the producers of one play share: settings, the broker, the network; and what one transaction is to hold."""

from enum import Enum

from coterie.broker.transactions.writes import BatchAdmission
from coterie.lab.simulator.network import Network
from coterie.lab.simulator.producers.broker import SimBroker
from coterie.lab.simulator.producers.watch import ProducersWatch
from coterie.lab.simulator.world import World

LATE_MAX_MS = 8_000
DELIVERY_TIMEOUT_MS = 1_500
"""For so long a batch is sent again; then its transaction is given up."""
IN_FLIGHT_MAX = 5
"""From a producer's first unanswered batch in a partition to its last one, both counted
(``max.in.flight.requests.per.connection``)."""


class Style(Enum):
    """What a producer speaks, by what lets its batches into a transaction."""

    V10 = BatchAdmission.ADDED_BEFORE
    V11 = BatchAdmission.ADDED_OR_ABORTABLE
    V12 = BatchAdmission.BY_ITSELF
    """KIP-890: batches add their partitions, and each transaction has an epoch of its own."""

    @property
    def bumps_epoch(self) -> bool:
        return self is Style.V12


class ProducersPlay:
    """Everything that happens in one seed happens to this."""

    def __init__(
        self, world: World, network: Network, broker: SimBroker, watch: ProducersWatch, *, timeout_ms: int
    ) -> None:
        self.world = world
        self.network = network
        self.broker = broker
        self.watch = watch
        self.timeout_ms = timeout_ms
        """Of every transaction."""
        self.is_ending = False
        """Every producer commits one last transaction."""
