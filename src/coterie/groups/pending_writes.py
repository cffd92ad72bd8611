"""Values that open transactions have written, until the transaction's marker commits or drops them.

The value of a key is that of its last record in the log, without the records of open and aborted transactions. So the
order of the records counts, and not the order in which the transactions end: a record that no transaction wrote, and a
record of a committed transaction, override every earlier pending value of their key. Compaction follows the same rule.
The coordinators of groups and the load of their log both use this module.
"""

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

KeyT = TypeVar("KeyT", bound=Hashable)
ValueT = TypeVar("ValueT")


@dataclass(slots=True)
class OpenTransactionWrites(Generic[KeyT, ValueT]):
    """The values that open transactions have written, by key and producer id, until the transaction's marker commits or
    drops them. The object is false if there are none."""

    _values_by_key_and_producer: dict[KeyT, dict[int, ValueT]] = field(default_factory=dict)
    """By key and then by producer id, in the order of the log. A producer has one open transaction at most."""

    def __bool__(self) -> bool:
        return bool(self._values_by_key_and_producer)

    def __contains__(self, key: KeyT) -> bool:
        return key in self._values_by_key_and_producer

    def __iter__(self) -> Iterator[KeyT]:
        """The keys that have pending values."""
        return iter(self._values_by_key_and_producer)

    def items(self) -> Iterator[tuple[KeyT, int, ValueT]]:
        """Each key with a producer id and its pending value; the values of one key in the order of the log."""
        for key, values in self._values_by_key_and_producer.items():
            for producer_id, value in values.items():
                yield key, producer_id, value

    def write(self, producer_id: int, key: KeyT, value: ValueT) -> None:
        """Add ``value``, which the open transaction of ``producer_id`` has written for ``key``. It replaces this
        producer's earlier pending value of the key, and comes last in the key's order."""
        values = self._values_by_key_and_producer.setdefault(key, {})
        values.pop(producer_id, None)
        values[producer_id] = value

    def drop_values_of_key(self, key: KeyT) -> None:
        """Drop all pending values of ``key``: a record that no transaction wrote was appended for the key, and replaces
        them."""
        self._values_by_key_and_producer.pop(key, None)

    def end_transaction(self, producer_id: int, *, is_commit: bool) -> Mapping[KeyT, ValueT]:
        """End the transaction of ``producer_id`` and drop its pending values. After a commit, returns these values by
        key, and also drops the pending values that other producers wrote earlier for the same keys; after an abort,
        returns an empty mapping."""
        committed: dict[KeyT, ValueT] = {}
        for key in [key for key, values in self._values_by_key_and_producer.items() if producer_id in values]:
            values = self._values_by_key_and_producer[key]
            if is_commit:
                for writer in list(values):
                    value = values.pop(writer)
                    if writer == producer_id:
                        committed[key] = value
                        break
            else:
                del values[producer_id]
            if not values:
                del self._values_by_key_and_producer[key]
        return committed
