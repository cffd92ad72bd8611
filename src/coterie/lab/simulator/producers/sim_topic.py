"""The topic of the producers' simulation, as a fetch reads it from the store: its partitions, their batches, the
aborted transactions."""

from collections.abc import Sequence
from pathlib import Path

from coterie.broker.storage.log import Partition, Topic
from coterie.broker.storage.store import Store
from coterie.broker.storage.transaction_store import (
    AbortedTransaction,
    read_aborted_transactions,
    read_first_unstable_offsets,
)
from coterie.groups.transaction_messages import TopicPartition

TOPIC_NAME = "ledger"
PARTITION_COUNT = 3
"""Number of partitions of the topic."""


def create_store_with_topic() -> Store:
    """A new store in memory with the empty topic. The caller must close the store."""
    store = Store(Path(":memory:"))
    store.free_bytes_min = 0
    store.begin()
    store.create_topic(TOPIC_NAME, PARTITION_COUNT, {})
    store.commit()
    return store


def topic_partition(number: int) -> TopicPartition:
    """The partition ``number`` of the topic."""
    return TopicPartition(TOPIC_NAME, number)


class SimTopic:
    """The topic in the broker's store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.partitions: Sequence[Partition] = ()
        """The partitions, as loaded at the broker's last start and updated since; empty before its first start."""

    def load_partitions(self) -> None:
        """Load the partitions from the store, at a start of the broker. The first unstable offset of a partition is
        that at which the earliest open transaction in the partition begins; None if no transaction is open."""
        (stored,) = self._store.topics()
        self.partitions = Topic(stored).partitions
        first_unstable_offsets = read_first_unstable_offsets(self._store.database)
        for partition in self.partitions:
            partition.first_unstable_offset = first_unstable_offsets.get(partition.row_id)

    def read_batches(self, partition: Partition, offset: int, end_offset: int, *, batches_max: int = -1) -> list[bytes]:
        """The encoded batches whose last offset is ``offset`` or higher and below ``end_offset``, as a fetch returns
        them; only the first ``batches_max`` of them, unless it is -1."""
        rows = self._store.database.execute(
            "SELECT data FROM batches WHERE partition = ? AND last_offset >= ? AND last_offset < ?"
            " ORDER BY last_offset LIMIT ?",
            (partition.row_id, offset, end_offset, batches_max),
        )
        return [data for (data,) in rows]

    def aborted_transactions(self, partition: Partition, offset: int, end_offset: int) -> Sequence[AbortedTransaction]:
        """The aborted transactions that end at ``offset`` or later and begin before ``end_offset``, sorted by their
        first offset."""
        return read_aborted_transactions(self._store.database, partition.row_id, offset, end_offset)
