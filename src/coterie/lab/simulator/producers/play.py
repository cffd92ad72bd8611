"""The objects that all producers of one simulation share: settings, broker, network and checker. And the protocol
versions of producers."""

from enum import Enum

from coterie.broker.transactions.writes import UnaddedPartitionRule
from coterie.lab.simulator.network import Network
from coterie.lab.simulator.producers.broker import SimBroker
from coterie.lab.simulator.producers.checker import ProducersChecker
from coterie.lab.simulator.world import World

REQUEST_DELAY_MAX_MS = 8_000
"""By how much a request whose connection broke may arrive late."""
DELIVERY_TIMEOUT_MS = 1_500
"""A batch without an acknowledgement is sent again until this time has passed since it was made; then the producer
gives up the batch and aborts the transaction."""
IN_FLIGHT_MAX = 5
"""``max.in.flight.requests.per.connection``: the greatest number of a producer's batches in one partition, counted from
the first batch without an acknowledgement to the last batch sent."""


class ProduceVersion(Enum):
    """The version of the Produce API that a producer uses. The value of a member says how the broker then admits the
    producer's batches to a transaction."""

    V10 = UnaddedPartitionRule.DEFAULT_ERROR
    V11 = UnaddedPartitionRule.GENERIC_ERROR_SUPPORTED
    V12 = UnaddedPartitionRule.ADD_PARTITION
    """KIP-890: a batch adds its partition to the transaction, and each transaction has a new producer epoch. With V10
    and V11 the producer adds the partition with AddPartitionsToTxn before its first batch."""

    @property
    def bumps_epoch(self) -> bool:
        """Whether the end of each transaction gives the producer a new epoch."""
        return self is ProduceVersion.V12


class SharedByProducers:
    """The objects that all producers of the simulation with one seed share."""

    def __init__(
        self, world: World, network: Network, broker: SimBroker, checker: ProducersChecker, *, timeout_ms: int
    ) -> None:
        self.world = world
        self.network = network
        self.broker = broker
        self.checker = checker
        self.timeout_ms = timeout_ms
        """The transaction timeout of every producer."""
        self.is_ending = False
        """Whether the next transaction of every producer is its last one."""
