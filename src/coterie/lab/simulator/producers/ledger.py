"""The topic of this simulation as its readers receive it: its partitions, their batches, the aborted transactions."""

from collections.abc import Sequence
from pathlib import Path

from coterie.broker.storage.log import Partition, Topic
from coterie.broker.storage.store import Store
from coterie.broker.storage.transaction_store import Aborted, open_offsets, read_aborted
from coterie.groups.transaction_messages import TopicPartition

TOPIC = "ledger"
PARTITIONS = 3


def create_store() -> Store:
    """A store in memory that holds the topic. The caller closes the store."""
    store = Store(Path(":memory:"))
    store.free_bytes_min = 0
    store.begin()
    store.create_topic(TOPIC, PARTITIONS, {})
    store.commit()
    return store


def topic_partition(number: int) -> TopicPartition:
    return TopicPartition(TOPIC, number)


class Ledger:
    def __init__(self, store: Store) -> None:
        self._store = store
        self.partitions: Sequence[Partition] = ()
        """The partitions since the broker's last start; empty before its first start."""

    def load(self) -> None:
        """Create the partitions at a start of the broker, with the first offsets of open transactions."""
        (stored,) = self._store.topics()
        self.partitions = Topic(stored).partitions
        found = open_offsets(self._store.database)
        for partition in self.partitions:
            partition.open_offset = found.get(partition.id)

    def read(self, partition: Partition, offset: int, end_offset: int, *, batches_max: int = -1) -> list[bytes]:
        """The batches from ``offset`` on that end before ``end_offset``, as a fetch returns them."""
        rows = self._store.database.execute(
            "SELECT data FROM batches WHERE partition = ? AND last_offset >= ? AND last_offset < ?"
            " ORDER BY last_offset LIMIT ?",
            (partition.id, offset, end_offset, batches_max),
        )
        return [data for (data,) in rows]

    def aborted(self, partition: Partition, offset: int, end_offset: int) -> Sequence[Aborted]:
        return read_aborted(self._store.database, partition.id, offset, end_offset)
