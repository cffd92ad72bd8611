"""The output of one step of a machine, and the outbox that releases effects once their records are durable."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

RecordT = TypeVar("RecordT")
EffectT = TypeVar("EffectT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Output(Generic[RecordT, EffectT]):
    """Append ``records``; once they are durable, perform ``effects`` in order."""

    records: tuple[RecordT, ...] = ()
    effects: tuple[EffectT, ...] = ()


class Outbox(Generic[EffectT]):
    """Holds the effects of each step back until its records, and those of all steps before it, are durable.

    A machine may take further steps while its log is being written. A response could show state that is not yet
    durable and that a crash loses. So *every* effect waits, even that of a step that wrote no record.
    """

    def __init__(self) -> None:
        self._held: deque[tuple[int, tuple[EffectT, ...]]] = deque()
        self._written = 0
        self._durable = 0

    def put(self, output: Output[RecordT, EffectT]) -> None:
        self._written += len(output.records)
        if output.effects:
            self._held.append((self._written, output.effects))

    def durable(self, records: int) -> None:
        """``records`` more records are durable."""
        self._durable += records
        assert self._durable <= self._written, "more records durable than were written"

    def release(self) -> Sequence[EffectT]:
        """Remove and return, in order, the effects whose records are durable."""
        released: list[EffectT] = []
        while self._held and self._held[0][0] <= self._durable:
            released.extend(self._held.popleft()[1])
        return released
