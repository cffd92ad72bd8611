"""The objects that all producers of one simulation share: settings, broker, network and checker. And the protocol
versions of producers."""

from enum import Enum

from coterie.broker.transactions.writes import TransactionSupport
from coterie.lab.simulator.network import Network
from coterie.lab.simulator.producers.broker import SimBroker
from coterie.lab.simulator.producers.checker import ProducersChecker
from coterie.lab.simulator.world import World

REQUEST_DELAY_MAX_MS = 8_000
"""How late a request may arrive whose connection broke."""
DELIVERY_TIMEOUT_MS = 1_500
"""A batch without a response is sent again until this time after it was made; then the producer gives up the batch and
aborts the transaction."""
IN_FLIGHT_MAX = 5
"""``max.in.flight.requests.per.connection``: the greatest number of a producer's batches in one partition, counted from
the first one without a response to the last one sent."""


class TransactionProtocol(Enum):
    """A producer's version of the Produce API. Its value is the way in which the broker admits the producer's batches
    to a transaction."""

    V10 = TransactionSupport.DEFAULT_ERROR
    V11 = TransactionSupport.GENERIC_ERROR_SUPPORTED
    V12 = TransactionSupport.ADD_PARTITION
    """KIP-890: a batch adds its partition to the transaction, and each transaction has a new epoch. In V10 and V11
    AddPartitionsToTxn adds the partition before the first batch."""

    @property
    def bumps_epoch(self) -> bool:
        """Whether the end of each transaction gives the producer a new epoch."""
        return self is TransactionProtocol.V12


class ProducersPlay:
    """The objects that all producers of one seed share."""

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
        """Whether every producer is to commit one last transaction and then to end."""
